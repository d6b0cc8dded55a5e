//! What a shell command line does: `cat f` is a read, `sed -i` an edit, `pytest` a run,
//! `sleep 5` a wait.
//!
//! The line is split into simple commands at its operators (`text::shell_words`). Each is
//! classified by its name and arguments, and the one with the highest rank decides for the
//! line. Cost: linear in the line, at most 1 KiB of it.

use std::borrow::Cow;

use memchr::memchr3;

use super::{
    ToolClass,
    command_effect::{self, CommandEffect},
};
use crate::text::shell_words;

/// A classified command line.
#[derive(Debug, PartialEq, Eq)]
pub struct ShellCommand<'a> {
    pub class: ToolClass,
    /// The file it acts on; `None`: the whole line is the target.
    pub target: Option<Cow<'a, str>>,
    /// The lines of the file that it shows, counted from 1.
    pub lines: Option<(u32, u32)>,
    /// A part of it changes a file or something else, whatever the whole does.
    pub writes_files: bool,
    pub moves_world: bool,
    pub has_patch: bool,
}

impl ShellCommand<'_> {
    fn with_class(class: ToolClass) -> Self {
        Self {
            class,
            target: None,
            lines: None,
            writes_files: false,
            moves_world: false,
            has_patch: false,
        }
    }

    pub fn into_owned<'b>(self) -> ShellCommand<'b> {
        let target = self.target.map(|target| Cow::Owned(target.into_owned()));
        ShellCommand { target, ..self }
    }
}

/// The first line of a patch.
const PATCH_HEADER: &str = "*** Begin Patch";

/// The lines that `head` shows without a number.
const HEAD_LINES: u32 = 10;

/// A longer line is a program, which counts as a run.
const LINE_BYTES_MAX: usize = 1_024;

/// Classifies a command line by the simple command with the highest rank: one that waits
/// makes the line a poll; an unknown one makes it a run, whatever else it writes; only a
/// line that does nothing but read is a read or a search.
pub fn parse_command_line(line: &str) -> ShellCommand<'_> {
    if line.trim_start().is_empty() {
        return ShellCommand::with_class(ToolClass::Poll);
    }
    // Most lines have neither a patch nor a program, and so none of these bytes.
    if memchr3(b'*', b'<', b'(', line.as_bytes()).is_none() {
        return parse_script(unwrap_shell_script(line));
    }
    if line.contains(PATCH_HEADER) {
        return ShellCommand {
            has_patch: true,
            ..ShellCommand::with_class(ToolClass::Edit)
        };
    }
    let script = unwrap_shell_script(line);
    let writes_by_program = runs_program(&script) && command_effect::script_writes(&script);
    let command = parse_script(strip_heredocs(script));
    ShellCommand {
        writes_files: command.writes_files || writes_by_program,
        ..command
    }
}

/// Whether an interpreter reads its program from the command line.
fn runs_program(script: &str) -> bool {
    const INTERPRETERS: &[&str] = &["python", "perl", "node", "ruby", "php", "deno", "bun "];
    ["<<", " -c ", " -e "].iter().any(|by| script.contains(by))
        && INTERPRETERS.iter().any(|name| script.contains(name))
}

fn parse_script(line: Cow<'_, str>) -> ShellCommand<'_> {
    if line.len() > LINE_BYTES_MAX {
        return ShellCommand::with_class(ToolClass::Execute);
    }
    match line {
        Cow::Borrowed(line) => parse_line(line),
        Cow::Owned(line) => parse_line(&line).into_owned(),
    }
}

fn parse_line(line: &str) -> ShellCommand<'_> {
    if let Some(words) = shell_words::split_plain(line) {
        return parse_words(&words);
    }
    match shell_words::SplitLine::parse(line) {
        Some(split) => parse_words(&split.words()).into_owned(),
        None => ShellCommand::with_class(ToolClass::Execute),
    }
}

fn parse_words<'a>(words: &[&'a str]) -> ShellCommand<'a> {
    let mut writes_files = false;
    let mut moves_world = false;
    let mut strongest: Option<SimpleCommand> = None;
    let mut is_computed = false;
    for part_words in words.split(|word| is_separator(word)) {
        if let Some(read) = &mut strongest
            && read.class == ToolClass::Read
            && let Some(lines) = filtered_lines(part_words)
        {
            read.lines = read.lines.or(Some(lines));
            continue;
        }
        let Some(part) = SimpleCommand::parse(part_words) else {
            is_computed |= strongest.is_some() && computes(part_words);
            continue;
        };
        writes_files |= part.class.is_write() || part.effect.changes;
        moves_world |= part.effect.moves_world;
        if strongest
            .as_ref()
            .is_none_or(|known| part.rank() > known.rank())
        {
            strongest = Some(part);
        }
    }
    strongest.map_or_else(
        || ShellCommand::with_class(ToolClass::Execute),
        |part| ShellCommand {
            // What is computed from a file differs with every computation.
            class: match part.class {
                ToolClass::Read if is_computed => ToolClass::Search,
                class => class,
            },
            target: part
                .target
                .filter(|_| !(is_computed && part.class == ToolClass::Read))
                .map(Cow::Borrowed),
            lines: part.lines,
            writes_files,
            moves_world,
            has_patch: false,
        },
    )
}

/// The lines that a filter without a file shows of what is piped into it.
fn filtered_lines(words: &[&str]) -> Option<(u32, u32)> {
    match split_name(words)? {
        (b"sed", ["-n", script]) => parse_line_range(script),
        (b"head", rest) => match rest {
            ["-n", _] => parse_line_count(rest).map(|n| (1, n)),
            [option] if option.starts_with('-') => parse_line_count(rest).map(|n| (1, n)),
            [] => Some((1, HEAD_LINES)),
            _ => None,
        },
        _ => None,
    }
}

/// The lines of `10,20p`.
fn parse_line_range(script: &str) -> Option<(u32, u32)> {
    let (from, to) = script.strip_suffix('p')?.split_once(',')?;
    Some((from.parse().ok()?, to.parse().ok()?))
}

/// Whether a line waits before it does anything else: `sleep 3 && curl …`, or asks again until
/// something answers: `until curl …; do sleep 1; done`.
pub fn waits_first(line: &str) -> bool {
    let script = unwrap_shell_script(line);
    let mut parts = script
        .split(['&', ';', '\n'])
        .map(str::trim)
        .filter(|part| !part.is_empty());
    let first = parts.find(|part| !part.starts_with("cd ") && !part.starts_with('#'));
    first.is_none_or(|part| {
        let name = part.split_whitespace().next().unwrap_or_default();
        matches!(name, "sleep" | "wait" | "until" | "while" | "for")
    })
}

/// Whether a filter shows something else than lines of its input: `jq .a`, `sort | uniq -c`.
fn computes(words: &[&str]) -> bool {
    let name = words.first().map_or(&b""[..], |name| name.as_bytes());
    matches!(name, b"jq" | b"awk" | b"cut" | b"tr" | b"sort" | b"uniq")
}

/// Whether a word separates two simple commands. The match is on bytes, which compiles to
/// comparisons; a match on strings calls a function for each.
pub fn is_separator(word: &str) -> bool {
    matches!(word.as_bytes(), b"&&" | b"||" | b";" | b"|" | b"&")
}

/// The script of `bash -lc "…"`, else the line itself.
pub fn unwrap_shell_script(line: &str) -> Cow<'_, str> {
    const SHELLS: &[&str] = &["bash", "sh", "zsh", "/bin/bash", "/bin/sh"];
    let trimmed = line.trim_start();
    if !trimmed.starts_with(['b', 's', 'z', '/']) {
        return Cow::Borrowed(line);
    }
    let mut parts = trimmed.splitn(3, ' ');
    let script = match (parts.next(), parts.next(), parts.next()) {
        (Some(shell), Some("-c" | "-lc"), Some(script)) if SHELLS.contains(&shell) => script.trim(),
        _ => return Cow::Borrowed(line),
    };
    // The script is quoted as one word, or it is the joined words of a list.
    match shlex::split(script) {
        Some(words) if words.len() == 1 => Cow::Owned(words.concat()),
        _ => Cow::Borrowed(script),
    }
}

/// The line without its heredocs, the texts between `<<TAG` and `TAG`.
fn strip_heredocs(line: Cow<'_, str>) -> Cow<'_, str> {
    if !line.as_bytes().contains(&b'<') || !line.contains("<<") {
        return line;
    }
    let mut out = String::new();
    let mut lines = line.lines();
    while let Some(line) = lines.next() {
        let Some((before, after)) = line.split_once("<<") else {
            out.push_str(line);
            out.push('\n');
            continue;
        };
        let after = after.trim_start_matches(['-', ' ']);
        let end = after.find([' ', '\t', ';', '|', '&', '>', ')']);
        let (tag, behind) = after.split_at(end.unwrap_or(after.len()));
        let tag = tag.trim_matches(['\'', '"', '\\']);
        // `cat <<EOF > f` redirects behind the tag.
        out.push_str(before);
        out.push_str(behind);
        out.push('\n');
        lines.by_ref().find(|line| line.trim() == tag);
    }
    Cow::Owned(out)
}

/// One command of a line, without operators.
struct SimpleCommand<'a> {
    class: ToolClass,
    target: Option<&'a str>,
    lines: Option<(u32, u32)>,
    effect: CommandEffect,
}

impl<'a> SimpleCommand<'a> {
    /// `None`: the command does not affect what the line does (`cd`, `export`, a filter
    /// after a pipe).
    fn parse(words: &[&'a str]) -> Option<Self> {
        let redirection = words.iter().position(|word| is_redirection(word));
        let (name, rest) =
            split_name(redirection.map_or(words, |at| words_before_redirection(words, at)))?;
        // A redirected `echo` or filter writes a file; the log of a run does not matter.
        if let Some(at) = redirection
            && let b"echo" | b"printf" | b"cat" | b"sed" | b"awk" | b"jq" | b"sort" = name
            && let Some((file, appends)) = redirection_target(words.get(at..)?)
        {
            let class = if appends {
                ToolClass::Edit
            } else {
                ToolClass::Write
            };
            return Some(Self::with_target(class, Some(file)));
        }
        let part = match name {
            b"cd" | b"export" | b"set" | b"true" | b"source" | b"wc" | b"sort" | b"uniq"
            | b"awk" | b"cut" | b"tr" | b"xargs" | b"jq" => return None,
            b"cat" | b"less" | b"more" | b"bat" | b"nl" | b"file" | b"stat" => {
                Self::with_target(ToolClass::Read, last_operand(rest))
            }
            b"head" => Self {
                lines: parse_line_count(rest).map(|n| (1, n)),
                ..Self::with_target(ToolClass::Read, last_operand(rest))
            },
            // The numbers of the last lines are unknown, so this is no read of a range.
            b"tail" => Self::with_target(ToolClass::Search, None),
            b"grep" | b"rg" | b"ag" | b"find" | b"fd" | b"which" | b"ls" | b"tree" | b"pwd"
            | b"du" => Self::with_target(ToolClass::Search, None),
            b"sleep" | b"wait" => Self::with_target(ToolClass::Poll, None),
            b"sed" if rest.iter().any(|word| word.starts_with("-i")) => {
                Self::with_target(ToolClass::Edit, rest.last().copied())
            }
            b"sed" => Self::parse_sed(rest)?,
            b"tee" | b"patch" => Self::with_target(ToolClass::Write, last_operand(rest)),
            // Several files or a directory: the command line itself is the target.
            b"touch" | b"mkdir" | b"rm" | b"mv" | b"cp" | b"ln" | b"chmod" => {
                Self::with_target(ToolClass::Write, None)
            }
            b"git" => Self::parse_git(rest),
            _ => Self {
                effect: command_effect::command_effect(name, rest),
                ..Self::with_target(ToolClass::Execute, None)
            },
        };
        Some(part)
    }

    fn with_target(class: ToolClass, target: Option<&'a str>) -> Self {
        Self {
            class,
            target,
            lines: None,
            effect: CommandEffect::default(),
        }
    }

    /// `sed -n '10,20p' file` shows lines; any other `sed` is a filter.
    fn parse_sed(rest: &[&'a str]) -> Option<Self> {
        let script = rest.iter().find(|word| !word.starts_with('-'))?;
        let lines = Some(parse_line_range(script)?);
        let file = rest.last().filter(|word| *word != script)?;
        Some(Self {
            lines,
            ..Self::with_target(ToolClass::Read, Some(file))
        })
    }

    fn parse_git(rest: &[&'a str]) -> Self {
        let effect = command_effect::git_effect(rest);
        // The content of a file in a revision.
        if let ["show", file] = rest
            && file.contains(':')
        {
            return Self::with_target(ToolClass::Read, Some(file));
        }
        let class = if effect.changes {
            ToolClass::Write
        } else if command_effect::git_only_looks(rest) {
            ToolClass::Search
        } else {
            ToolClass::Execute
        };
        Self {
            effect,
            ..Self::with_target(class, None)
        }
    }

    fn rank(&self) -> u8 {
        match self.class {
            ToolClass::Poll => 4,
            ToolClass::Execute | ToolClass::Exempt | ToolClass::Other => 3,
            ToolClass::Write | ToolClass::Edit => 2,
            ToolClass::Search => 1,
            ToolClass::Read => 0,
        }
    }
}

/// The name of a command without its path, and its arguments. Skips assignments, `sudo`,
/// `timeout 10`, the `do` of a loop and the like.
fn split_name<'w, 'a>(mut words: &'w [&'a str]) -> Option<(&'a [u8], &'w [&'a str])> {
    loop {
        let (first_word, rest) = words.split_first()?;
        let first = first_word.as_bytes();
        words = match first {
            b"sudo" | b"env" | b"time" | b"nohup" | b"exec" | b"command" | b"do" => rest,
            b"timeout" => rest.get(1..)?,
            _ if is_assignment(first) => rest,
            _ => {
                let path = first.iter().rposition(|byte| *byte == b'/');
                let name = first.get(path.map_or(0, |at| at + 1)..)?;
                return Some((name, rest));
            }
        };
    }
}

fn is_assignment(word: &[u8]) -> bool {
    let in_name = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
    let end = word.iter().position(|byte| !in_name(byte));
    end.is_some_and(|end| end > 0 && word.get(end) == Some(&b'='))
}

/// Whether a word redirects output to the next one.
pub fn is_redirection(word: &str) -> bool {
    matches!(
        word.as_bytes(),
        b">" | b">>" | b">&" | b"&>" | b">&1" | b">&2"
    )
}

/// The words before the redirection at `at`: `> file` or `2> file`.
fn words_before_redirection<'w, 'a>(words: &'w [&'a str], at: usize) -> &'w [&'a str] {
    match words.get(..at).unwrap_or(words) {
        [before @ .., "1" | "2"] => before,
        before => before,
    }
}

/// The file that output is redirected to, unless it is a device, and whether it is appended.
fn redirection_target<'a>(words: &[&'a str]) -> Option<(&'a str, bool)> {
    let at = words.iter().position(|word| matches!(*word, ">" | ">>"))?;
    let file = *words.get(at + 1)?;
    let is_file = !file.starts_with("/dev/") && !file.starts_with('&');
    is_file.then(|| (file, words[at] == ">>"))
}

/// The last argument that is not an option.
fn last_operand<'a>(rest: &[&'a str]) -> Option<&'a str> {
    rest.iter().rfind(|word| !word.starts_with('-')).copied()
}

/// The line count of `head`: `-n 40`, `-40`, `-n40`.
fn parse_line_count(rest: &[&str]) -> Option<u32> {
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

    #[test]
    fn a_line_waits_first_or_after_something_else() {
        for line in [
            "",
            "sleep 3 && curl localhost",
            "cd /w && sleep 3; curl localhost",
            "# wait for it\nsleep 3",
            "until nc -z db 5432; do sleep 1; done",
            "bash -lc 'sleep 3; curl localhost'",
        ] {
            assert!(waits_first(line), "{line}");
        }
        assert!(!waits_first("node app.js & sleep 3; curl localhost"));
        assert!(!waits_first("npm test; sleep 1"));
    }

    #[track_caller]
    fn check(line: &str, class: ToolClass, target: Option<&str>) {
        let command = parse_command_line(line);
        assert_eq!(
            (command.class, command.target.as_deref()),
            (class, target),
            "{line}"
        );
    }

    #[test]
    fn commands_that_only_look_are_reads_or_searches() {
        check("cat src/main.rs", ToolClass::Read, Some("src/main.rs"));
        check(
            "cd app && cat src/main.rs",
            ToolClass::Read,
            Some("src/main.rs"),
        );
        check("/bin/cat 'a b.txt'", ToolClass::Read, Some("a b.txt"));
        check("head -n 40 a.rs", ToolClass::Read, Some("a.rs"));
        check("cat a.rs | wc -l", ToolClass::Read, Some("a.rs"));
        check("cat a.rs 2>/dev/null", ToolClass::Read, Some("a.rs"));
        check("cat a.rs 2>&1", ToolClass::Read, Some("a.rs"));
        check("grep -rn foo src", ToolClass::Search, None);
        check("git status --short", ToolClass::Search, None);
        check("git show HEAD:a.rs", ToolClass::Read, Some("HEAD:a.rs"));
        check("cat a | grep b", ToolClass::Search, None);
        check("sed -n '10,20p' a.rs", ToolClass::Read, Some("a.rs"));
    }

    #[test]
    fn what_is_computed_from_a_file_is_no_read_of_it() {
        check("cat f.json | jq .a", ToolClass::Search, None);
        check("cat f | sort | uniq -c", ToolClass::Search, None);
        check("cat f | head -3", ToolClass::Read, Some("f"));
        check("nl -ba f | sed -n '3,9p'", ToolClass::Read, Some("f"));
    }

    #[test]
    fn commands_that_change_files_are_writes() {
        check("sed -i 's/a/b/' a.rs", ToolClass::Edit, Some("a.rs"));
        check("echo hi > out.txt", ToolClass::Write, Some("out.txt"));
        check("echo hi>>out.txt", ToolClass::Edit, Some("out.txt"));
        check(
            "cat <<'EOF' > a.py\nprint(1)\nEOF",
            ToolClass::Write,
            Some("a.py"),
        );
        check(
            "cd a && git add . && git commit -m x",
            ToolClass::Write,
            None,
        );
        check("mkdir -p a/b", ToolClass::Write, None);
    }

    #[test]
    fn all_other_commands_are_runs() {
        check("pytest -q", ToolClass::Execute, None);
        check("cargo test 2>&1 | tail -5", ToolClass::Execute, None);
        check(
            "RUST_LOG=debug timeout 10 cargo run",
            ToolClass::Execute,
            None,
        );
        check("make > /dev/null 2>&1", ToolClass::Execute, None);
        check("pytest > out.txt; tail out.txt", ToolClass::Execute, None);
        check("pytest | tee log", ToolClass::Execute, None);
        check("echo 'x' > a.py && python a.py", ToolClass::Execute, None);
        assert!(parse_command_line("echo 'x' > a.py && python a.py").writes_files);
        check("echo 'a > b'", ToolClass::Execute, None);
        check("echo \"unbalanced", ToolClass::Execute, None);
    }

    #[test]
    fn commands_that_wait_are_polls() {
        check("", ToolClass::Poll, None);
        check("  \n", ToolClass::Poll, None);
        check("sleep 30", ToolClass::Poll, None);
        check("sleep 30 && curl localhost", ToolClass::Poll, None);
    }

    #[test]
    fn the_shown_lines_are_parsed() {
        assert_eq!(
            parse_command_line("sed -n '10,20p' a.rs").lines,
            Some((10, 20))
        );
        assert_eq!(parse_command_line("head -40 a.rs").lines, Some((1, 40)));
        assert_eq!(parse_command_line("cat a.rs").lines, None);
        let piped = |line| {
            let command = parse_command_line(line);
            (command.class, command.lines)
        };
        for line in [
            "nl -ba a.rs | sed -n '10,20p'",
            "cat a.rs | sed -n 10,20p",
            "git show HEAD:a.rs | sed -n '10,20p'",
        ] {
            assert_eq!(piped(line), (ToolClass::Read, Some((10, 20))), "{line}");
        }
        assert_eq!(piped("cat a | head -n 5"), (ToolClass::Read, Some((1, 5))));
        assert_eq!(piped("cat a | head"), (ToolClass::Read, Some((1, 10))));
        assert_eq!(piped("cat a; head -5 b").1, None);
    }
}
