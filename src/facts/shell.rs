//! What a shell command does: `bash` with `cat f` is a read, `sed -i` an edit,
//! `pytest` a test run, `sleep 5` a wait.

mod words;

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
    /// It holds a patch.
    pub patches: bool,
}

impl Command<'_> {
    fn plain(class: Class) -> Self {
        Self {
            class,
            target: None,
            lines: None,
            writes: false,
            patches: false,
        }
    }

    pub fn into_owned<'b>(self) -> Command<'b> {
        let target = self.target.map(|target| Cow::Owned(target.into_owned()));
        Command { target, ..self }
    }
}

/// How a patch begins, wherever it stands.
const PATCH: &str = "*** Begin Patch";

/// Longer lines are programs, not commands: they are taken as they are.
const LINE_BYTES_MAX: usize = 1_024;

/// Reads a command line. The strongest of its simple commands says what it does:
/// one that waits makes the line a poll, one that nobody knows makes it a run,
/// whatever it writes besides, and only a line of nothing but looking is a read
/// or a search.
pub(super) fn read(line: &str) -> Command<'_> {
    if line.trim().is_empty() {
        return Command::plain(Class::Poll);
    }
    // One letter of it first: most lines have none.
    if line.as_bytes().contains(&b'*') && line.contains(PATCH) {
        return Command {
            patches: true,
            ..Command::plain(Class::Edit)
        };
    }
    match without_documents(script(line)) {
        Cow::Borrowed(line) => of_script(line),
        Cow::Owned(line) => of_script(&line).into_owned(),
    }
}

fn of_script(line: &str) -> Command<'_> {
    let words = (line.len() <= LINE_BYTES_MAX).then(|| words::words(line));
    let Some(words) = words.flatten() else {
        return Command::plain(Class::Execute);
    };
    let mut writes = false;
    let mut strongest: Option<Part> = None;
    let parts = words.split(|word| matches!(&**word, "&&" | "||" | ";" | "|" | "&"));
    for part in parts.filter_map(Part::read) {
        writes |= part.class.writes();
        if strongest
            .as_ref()
            .is_none_or(|known| part.rank() > known.rank())
        {
            strongest = Some(part);
        }
    }
    strongest.map_or_else(
        || Command::plain(Class::Execute),
        |part| Command {
            class: part.class,
            target: part.target,
            lines: part.lines,
            writes,
            patches: false,
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
    if !line.as_bytes().contains(&b'<') || !line.contains("<<") {
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

/// A simple command.
struct Part<'a> {
    class: Class,
    target: Option<Cow<'a, str>>,
    lines: Option<(u32, u32)>,
}

impl<'a> Part<'a> {
    /// `None`: it says nothing about what the line does (`cd`, `export`, a
    /// filter behind a pipe).
    fn read(words: &[Cow<'a, str>]) -> Option<Self> {
        let written = redirected(words);
        let (name, rest) = command(before_redirection(words))?;
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
                Self::plain(Class::Edit, rest.last().cloned())
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

    fn plain(class: Class, target: Option<Cow<'a, str>>) -> Self {
        Self {
            class,
            target,
            lines: None,
        }
    }

    /// `sed -n '10,20p' file` shows lines; any other `sed` is a filter.
    fn sed(rest: &[Cow<'a, str>]) -> Option<Self> {
        let script = rest.iter().find(|word| !word.starts_with('-'))?;
        let (from, to) = script.strip_suffix('p')?.split_once(',')?;
        let lines = Some((from.parse().ok()?, to.parse().ok()?));
        let file = rest.last().filter(|word| *word != script)?;
        Some(Self {
            lines,
            ..Self::plain(Class::Read, Some(file.clone()))
        })
    }

    fn git(rest: &[Cow<'a, str>]) -> Self {
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
        match verb.map(|verb| &**verb) {
            Some(verb) if CHANGES.contains(&verb) => Self::plain(Class::Write, None),
            Some("grep") => Self::plain(Class::Search, None),
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
fn command<'w, 'a>(words: &'w [Cow<'a, str>]) -> Option<(&'w str, &'w [Cow<'a, str>])> {
    let mut words = words;
    loop {
        let (first, rest) = words.split_first()?;
        let assignment = first.split_once('=').is_some_and(|(name, _)| {
            !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
        });
        let prefix = matches!(
            &**first,
            "sudo" | "env" | "time" | "nohup" | "exec" | "command"
        );
        let timeout = first == "timeout";
        if !(assignment || prefix || timeout) {
            return Some((first.rsplit('/').next().unwrap_or(first), rest));
        }
        words = if timeout { rest.get(1..)? } else { rest };
    }
}

/// The file that output goes to, unless it is thrown away, and whether it is
/// added to it.
fn redirected<'a>(words: &[Cow<'a, str>]) -> Option<(Cow<'a, str>, bool)> {
    let at = words.iter().position(|word| word == ">" || word == ">>")?;
    let file = words.get(at + 1)?;
    let kept = !file.starts_with("/dev/") && !file.starts_with('&');
    kept.then(|| (file.clone(), words[at] == ">>"))
}

/// The words before `> file` and `2> file`.
fn before_redirection<'w, 'a>(words: &'w [Cow<'a, str>]) -> &'w [Cow<'a, str>] {
    let redirects =
        |word: &Cow<'_, str>| matches!(&**word, ">" | ">>" | ">&" | "&>" | ">&1" | ">&2");
    let Some(at) = words.iter().position(redirects) else {
        return words;
    };
    match words.get(..at).unwrap_or(words) {
        [before @ .., last] if last == "1" || last == "2" => before,
        before => before,
    }
}

/// The last argument that is no option and no number of one.
fn operand<'a>(rest: &[Cow<'a, str>]) -> Option<Cow<'a, str>> {
    rest.iter().rfind(|word| !word.starts_with('-')).cloned()
}

/// `-n 40`, `-40`, `-n40`.
fn count_of(rest: &[Cow<'_, str>]) -> Option<u32> {
    let mut words = rest.iter();
    while let Some(word) = words.next() {
        if word == "-n" {
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
