//! What a shell command does: `bash` with `cat f` is a read, `sed -i` an edit,
//! `pytest` a test run, `sleep 5` a wait.

use std::borrow::Cow;

use super::tools::Class;

/// What was made of a command line.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Command<'a> {
    pub class: Class,
    /// The file it is about; `None`: the whole line.
    pub target: Option<Cow<'a, str>>,
    /// The lines of the file it shows, from 1.
    pub lines: Option<(u32, u32)>,
    /// A part of it changes a file, whatever the whole does.
    pub writes: bool,
}

/// How a patch begins, wherever it stands.
pub(super) const PATCH: &str = "*** Begin Patch";

/// Longer lines are programs, not commands: they are taken as they are.
const LINE_BYTES_MAX: usize = 1_024;

/// Reads a command line. The strongest of its simple commands says what it does:
/// one that waits makes the line a poll, one that nobody knows makes it a run,
/// whatever it writes besides, and only a line of nothing but looking is a read
/// or a search.
pub(super) fn read(line: &str) -> Command<'_> {
    let plain = |class| Command {
        class,
        target: None,
        lines: None,
        writes: false,
    };
    if line.trim().is_empty() {
        return plain(Class::Poll);
    }
    if line.contains(PATCH) {
        return plain(Class::Edit);
    }
    let line = without_documents(script(line));
    let words = (line.len() <= LINE_BYTES_MAX)
        .then(|| shlex::split(&spaced(&line)))
        .flatten();
    let Some(words) = words else {
        return plain(Class::Execute);
    };
    let parts: Vec<Part> = words
        .split(|word| matches!(word.as_str(), "&&" | "||" | ";" | "|" | "&"))
        .filter_map(Part::read)
        .collect();
    let writes = parts.iter().any(|part| part.class.writes());
    let strongest = parts
        .into_iter()
        .reduce(|a, b| if b.rank() > a.rank() { b } else { a });
    strongest.map_or_else(
        || plain(Class::Execute),
        |part| Command {
            class: part.class,
            target: part.target.map(Cow::Owned),
            lines: part.lines,
            writes,
        },
    )
}

/// The script of `bash -lc "…"`, else the line itself.
fn script(line: &str) -> Cow<'_, str> {
    const SHELLS: &[&str] = &["bash", "sh", "zsh", "/bin/bash", "/bin/sh"];
    let inner = || {
        let (shell, rest) = line.trim_start().split_once(' ')?;
        let (flag, script) = rest.split_once(' ')?;
        (SHELLS.contains(&shell) && matches!(flag, "-c" | "-lc")).then_some(script.trim())
    };
    let Some(script) = inner() else {
        return Cow::Borrowed(line);
    };
    // Quoted as one word, or the words of a list that were joined.
    match shlex::split(script) {
        Some(words) if words.len() == 1 => Cow::Owned(words.concat()),
        _ => Cow::Borrowed(script),
    }
}

/// The line without the texts between `<<TAG` and `TAG`.
fn without_documents(line: Cow<'_, str>) -> Cow<'_, str> {
    if !line.contains("<<") {
        return line;
    }
    let mut out = String::new();
    let mut lines = line.lines();
    while let Some(line) = lines.next() {
        let Some((before, tag)) = line.split_once("<<") else {
            out.push_str(line);
            out.push('\n');
            continue;
        };
        let tag = tag.trim_start_matches(['-', ' ']);
        let tag = tag.split_whitespace().next().unwrap_or_default();
        let tag = tag.trim_matches(['\'', '"']);
        out.push_str(before);
        out.push('\n');
        lines.by_ref().find(|line| line.trim() == tag);
    }
    Cow::Owned(out)
}

/// Puts white space around operators that stand outside quotes, so that
/// splitting into words finds them.
fn spaced(line: &str) -> String {
    let mut out = String::with_capacity(line.len() + 8);
    let mut quote = None;
    let mut chars = line.chars().peekable();
    while let Some(c) = chars.next() {
        match (quote, c) {
            (None, '\\') => {
                out.push(c);
                out.extend(chars.next());
                continue;
            }
            (None, '\'' | '"') => quote = Some(c),
            (Some(open), _) if open == c => quote = None,
            (None, '\n') => {
                out.push_str(" ; ");
                continue;
            }
            (None, ';' | '|' | '&' | '>') => {
                // `2>&1` and `&>` stay whole: they redirect, they do not part.
                let redirects = c == '&' && (out.ends_with('>') || chars.peek() == Some(&'>'));
                let again = chars.next_if_eq(&c).is_some();
                if redirects {
                    out.push(c);
                } else {
                    out.push(' ');
                    out.push(c);
                    if again {
                        out.push(c);
                    }
                    if c != '>' || chars.peek() != Some(&'&') {
                        out.push(' ');
                    }
                }
                continue;
            }
            _ => {}
        }
        out.push(c);
    }
    out
}

/// A simple command.
struct Part {
    class: Class,
    target: Option<String>,
    lines: Option<(u32, u32)>,
}

impl Part {
    /// `None`: it says nothing about what the line does (`cd`, `export`, a
    /// filter behind a pipe).
    fn read(words: &[String]) -> Option<Self> {
        let written = redirected(words);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let (name, rest) = command(before_redirection(&words))?;
        // Where the output of a run goes does not matter; that of an `echo` does.
        let prints = matches!(
            name,
            "echo" | "printf" | "cat" | "sed" | "awk" | "jq" | "sort"
        );
        if let Some((file, appends)) = written.filter(|_| prints) {
            let class = if appends { Class::Edit } else { Class::Write };
            return Some(Self::plain(class, Some(file)));
        }
        let part = match name {
            "cd" | "export" | "set" | "true" | "source" | "wc" | "sort" | "uniq" | "awk"
            | "cut" | "tr" | "xargs" | "jq" => return None,
            "cat" | "less" | "more" | "bat" | "nl" | "file" | "stat" => {
                Self::plain(Class::Read, operand(rest))
            }
            "head" => Self {
                lines: count_of(rest).map(|n| (1, n)),
                ..Self::plain(Class::Read, operand(rest))
            },
            // Which lines the end of a file has, nobody knows.
            "tail" => Self::plain(Class::Search, None),
            "grep" | "rg" | "ag" | "find" | "fd" | "which" | "ls" | "tree" | "pwd" | "du" => {
                Self::plain(Class::Search, None)
            }
            "sleep" | "wait" => Self::plain(Class::Poll, None),
            "sed" if rest.iter().any(|word| word.starts_with("-i")) => {
                Self::plain(Class::Edit, rest.last().map(|word| (*word).to_owned()))
            }
            "sed" => Self::sed(rest)?,
            "tee" | "patch" => Self::plain(Class::Write, operand(rest)),
            // Many files, or a directory: the command itself is what is written.
            "touch" | "mkdir" | "rm" | "mv" | "cp" | "ln" | "chmod" => {
                Self::plain(Class::Write, None)
            }
            "git" => Self::git(rest),
            _ => Self::plain(Class::Execute, None),
        };
        Some(part)
    }

    fn plain(class: Class, target: Option<String>) -> Self {
        Self {
            class,
            target,
            lines: None,
        }
    }

    /// `sed -n '10,20p' file` shows lines; any other `sed` is a filter.
    fn sed(rest: &[&str]) -> Option<Self> {
        let script = rest.iter().find(|word| !word.starts_with('-'))?;
        let (from, to) = script.strip_suffix('p')?.split_once(',')?;
        let lines = Some((from.parse().ok()?, to.parse().ok()?));
        let file = rest.last().filter(|word| *word != script)?;
        Some(Self {
            lines,
            ..Self::plain(Class::Read, Some((*file).to_owned()))
        })
    }

    fn git(rest: &[&str]) -> Self {
        const CHANGES: &[&str] = &[
            "add",
            "commit",
            "checkout",
            "switch",
            "merge",
            "rebase",
            "reset",
            "restore",
            "stash",
            "apply",
            "am",
            "mv",
            "rm",
            "push",
            "pull",
            "cherry-pick",
            "revert",
            "tag",
            "branch",
        ];
        let verb = rest.iter().find(|word| !word.starts_with('-'));
        match verb {
            Some(verb) if CHANGES.contains(verb) => Self::plain(Class::Write, None),
            Some(&"grep") => Self::plain(Class::Search, None),
            _ => Self::plain(Class::Execute, None),
        }
    }

    fn rank(&self) -> u8 {
        match self.class {
            Class::Poll => 4,
            Class::Execute | Class::Exempt | Class::Other => 3,
            Class::Write | Class::Edit => 2,
            Class::Search => 1,
            Class::Read => 0,
        }
    }
}

/// The name of a command without its path, and its arguments; assignments,
/// `sudo`, `timeout 10` and the like before it do not count.
fn command<'a, 'w>(words: &'a [&'w str]) -> Option<(&'w str, &'a [&'w str])> {
    let mut words = words;
    loop {
        let (first, rest) = words.split_first()?;
        let assignment = first.split_once('=').is_some_and(|(name, _)| {
            !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
        });
        let prefix = matches!(
            *first,
            "sudo" | "env" | "time" | "nohup" | "exec" | "command"
        );
        let timeout = *first == "timeout";
        if !(assignment || prefix || timeout) {
            return Some((first.rsplit('/').next().unwrap_or(first), rest));
        }
        words = if timeout { rest.get(1..)? } else { rest };
    }
}

/// The file that output goes to, unless it is thrown away, and whether it is
/// added to it.
fn redirected(words: &[String]) -> Option<(String, bool)> {
    let at = words.iter().position(|word| word == ">" || word == ">>")?;
    let file = words.get(at + 1)?;
    let kept = !file.starts_with("/dev/") && !file.starts_with('&');
    kept.then(|| (file.clone(), words[at] == ">>"))
}

/// The words before `> file` and `2> file`.
fn before_redirection<'a, 'w>(words: &'a [&'w str]) -> &'a [&'w str] {
    let redirects = |word: &&str| matches!(*word, ">" | ">>" | ">&" | "&>" | ">&1" | ">&2");
    match words.iter().position(redirects) {
        Some(at) => match words.get(..at).unwrap_or(words) {
            [before @ .., "1" | "2"] => before,
            before => before,
        },
        None => words,
    }
}

/// The last argument that is no option and no number of one.
fn operand(rest: &[&str]) -> Option<String> {
    let last = rest.iter().rfind(|word| !word.starts_with('-'))?;
    Some((*last).to_owned())
}

/// `-n 40`, `-40`, `-n40`.
fn count_of(rest: &[&str]) -> Option<u32> {
    let mut words = rest.iter();
    while let Some(word) = words.next() {
        if *word == "-n" {
            return words.next()?.parse().ok();
        }
        if let Some(number) = word.strip_prefix("-n").or_else(|| word.strip_prefix('-')) {
            return number.parse().ok();
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(line: &str, class: Class, target: Option<&str>) {
        let command = read(line);
        assert_eq!(
            (command.class, command.target.as_deref()),
            (class, target),
            "{line}"
        );
    }

    #[test]
    fn looking_is_reading_or_searching() {
        check("cat src/main.rs", Class::Read, Some("src/main.rs"));
        check(
            "cd app && cat src/main.rs",
            Class::Read,
            Some("src/main.rs"),
        );
        check("/bin/cat 'a b.txt'", Class::Read, Some("a b.txt"));
        check("head -n 40 a.rs", Class::Read, Some("a.rs"));
        check("cat a.rs | wc -l", Class::Read, Some("a.rs"));
        check("cat a.rs 2>/dev/null", Class::Read, Some("a.rs"));
        check("cat a.rs 2>&1", Class::Read, Some("a.rs"));
        check("grep -rn foo src", Class::Search, None);
        check("cat a | grep b", Class::Search, None);
        check("sed -n '10,20p' a.rs", Class::Read, Some("a.rs"));
    }

    #[test]
    fn changing_is_writing() {
        check("sed -i 's/a/b/' a.rs", Class::Edit, Some("a.rs"));
        check("echo hi > out.txt", Class::Write, Some("out.txt"));
        check("echo hi>>out.txt", Class::Edit, Some("out.txt"));
        check("cd a && git add . && git commit -m x", Class::Write, None);
        check("mkdir -p a/b", Class::Write, None);
    }

    #[test]
    fn everything_else_is_a_run() {
        check("pytest -q", Class::Execute, None);
        check("cargo test 2>&1 | tail -5", Class::Execute, None);
        check("RUST_LOG=debug timeout 10 cargo run", Class::Execute, None);
        check("make > /dev/null 2>&1", Class::Execute, None);
        check("pytest > out.txt; tail out.txt", Class::Execute, None);
        check("pytest | tee log", Class::Execute, None);
        check("echo 'x' > a.py && python a.py", Class::Execute, None);
        assert!(read("echo 'x' > a.py && python a.py").writes);
        check("git status --short", Class::Execute, None);
        check("echo 'a > b'", Class::Execute, None);
        check("echo \"unbalanced", Class::Execute, None);
    }

    #[test]
    fn waiting_is_polling() {
        check("", Class::Poll, None);
        check("  \n", Class::Poll, None);
        check("sleep 30", Class::Poll, None);
        check("sleep 30 && curl localhost", Class::Poll, None);
    }

    #[test]
    fn shown_lines_are_known() {
        assert_eq!(read("sed -n '10,20p' a.rs").lines, Some((10, 20)));
        assert_eq!(read("head -40 a.rs").lines, Some((1, 40)));
        assert_eq!(read("cat a.rs").lines, None);
    }
}
