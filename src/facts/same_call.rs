//! What makes two calls the same: the tool, and the arguments without those that only
//! explain the call or limit its output; of a command line its meaning, not its spelling.
//! docs/same-call.md describes the notion for users.
//!
//! Two spellings of a command line are one call if they differ in quotes, a `cd` before
//! it, redirections of streams, a `tail` or `head` behind it, a `timeout` or `sleep` of
//! another length, or an `echo` of the exit code. The directory is a fact of its own,
//! because the same command may do other work in another one.

use crate::{
    domain::Sig,
    text::{
        HashKey,
        key::SignatureKind,
        shell_words::{self, ShellWords, SplitLine},
    },
    tools::{arguments, shell},
};

/// Which arguments distinguish the calls of a tool.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ArgumentFilter<'t> {
    /// Configured by `ignore_args`.
    pub ignore: &'t [String],
    /// The tool makes something, so its texts are what it makes: the description of a
    /// ticket.
    pub keeps_explanations: bool,
    /// The command is compared by its meaning.
    pub is_shell: bool,
}

impl ArgumentFilter<'_> {
    pub fn is_ignored(&self, name: &str) -> bool {
        self.ignore.iter().any(|ignored| *ignored == name)
            || arguments::is_limit(name)
            || arguments::is_request_id(name)
            || (!self.keeps_explanations && arguments::is_explanation(name))
    }
}

/// A longer line is a program and compared as it is.
const LINE_BYTES_MAX: usize = 1_024;

/// A command line by its meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CommandHash {
    pub meaning: u64,
    /// The directory that it changes to, unless it names its files absolutely.
    pub directory: Option<Sig>,
}

pub(super) fn hash_command(line: &str, key: &HashKey) -> CommandHash {
    let script = shell::unwrap_shell_script(line);
    // The text of a heredoc is what the command is about.
    if script.len() > LINE_BYTES_MAX || script.contains("<<") {
        return hash_unparsed(&script, key);
    }
    match shell_words::split_plain(&script) {
        Some(words) => hash_meaning(&words, key),
        None => match SplitLine::parse(&script) {
            Some(split) => hash_meaning(&split.words(), key),
            None => hash_unparsed(&script, key),
        },
    }
}

fn hash_unparsed(script: &str, key: &HashKey) -> CommandHash {
    CommandHash {
        meaning: hash_words(script.split_whitespace(), key),
        directory: None,
    }
}

fn hash_words<'w>(words: impl IntoIterator<Item = &'w str>, key: &HashKey) -> u64 {
    words.into_iter().fold(0, |hash, word| {
        let word = key.hash_text(SignatureKind::JsonText, word);
        key.hash_pair(SignatureKind::Json, hash, word)
    })
}

fn hash_meaning(words: &[&str], key: &HashKey) -> CommandHash {
    let (mut directory, mut is_absolute) = (None, false);
    let mut kept = ShellWords::new();
    let mut separator = ";";
    let mut rest = words;
    while !rest.is_empty() {
        let end = rest.iter().position(|word| shell::is_separator(word));
        let (part, after) = rest.split_at(end.unwrap_or(rest.len()));
        if let ["cd", path] = part {
            let path = path.trim_end_matches('/');
            directory = (path != ".").then(|| key.signature(SignatureKind::Target, path, 0));
        } else {
            is_absolute |= part.iter().any(|word| word.starts_with('/'));
        }
        let next = after.first().copied().unwrap_or_default();
        push_meaning(part, [separator, next], &mut kept);
        separator = next;
        rest = after.get(1..).unwrap_or_default();
    }
    let meaning = if kept.is_empty() {
        hash_words(words.iter().copied(), key)
    } else {
        hash_words(kept, key)
    };
    CommandHash {
        meaning,
        directory: directory.filter(|_| !is_absolute),
    }
}

/// Adds the words of a simple command that matter. `separator` stands before it, `next`
/// after it.
fn push_meaning<'a>(part: &[&'a str], [separator, next]: [&'a str; 2], kept: &mut ShellWords<'a>) {
    let command = without_prefix(part);
    let Some((name, arguments)) = command.split_first() else {
        return;
    };
    match *name {
        "cd" | "pushd" | "popd" | "true" | ":" | "source" | "." | "set" => return,
        // Echoes the exit code, or a heading before the output. What it pipes into the next
        // command is that command's input.
        "echo" if next != "|" && !arguments.iter().any(|word| shell::is_redirection(word)) => {
            return;
        }
        // Shows a part of the output.
        "head" | "tail" | "cat" | "less" | "more" if separator == "|" => {
            let is_option = |word: &&str| {
                word.starts_with('-') || word.bytes().all(|byte| byte.is_ascii_digit())
            };
            if arguments.iter().all(is_option) {
                return;
            }
        }
        _ => {}
    }
    if !kept.is_empty() {
        // `&&`, `;` and a new line are one way to say "then".
        kept.push(if matches!(separator, "|" | "||" | "&") {
            separator
        } else {
            ";"
        });
    }
    if *name == "sleep" {
        kept.push("sleep");
        return;
    }
    push_without_redirections(command, kept);
}

/// The command without `timeout 60` and the like before it.
fn without_prefix<'w, 'a>(mut words: &'w [&'a str]) -> &'w [&'a str] {
    while let Some((first, rest)) = words.split_first() {
        words = match *first {
            "time" | "nohup" | "command" | "exec" => rest,
            "timeout" => {
                let options = rest.iter().take_while(|word| word.starts_with('-')).count();
                rest.get(options + 1..).unwrap_or_default()
            }
            _ => return words,
        };
    }
    words
}

/// Adds words without redirections of streams to each other or to nowhere.
fn push_without_redirections<'a>(words: &[&'a str], kept: &mut ShellWords<'a>) {
    let mut at = 0;
    while let Some(word) = words.get(at) {
        let next = words.get(at + 1).copied().unwrap_or_default();
        let dropped = match *word {
            ">&1" | ">&2" => 1,
            ">" | ">>" | "&>" | ">&" if matches!(next, "/dev/null" | "1" | "2") => 2,
            _ => 0,
        };
        if dropped == 0 {
            kept.push(word);
            at += 1;
            continue;
        }
        // The number of the stream stands before its redirection.
        if matches!(kept.last(), Some(&("1" | "2"))) {
            kept.pop();
        }
        at += dropped;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_same(spellings: &[&str]) {
        let hashes = spellings
            .iter()
            .map(|line| hash_command(line, &HashKey::fixed()).meaning);
        let first = hashes.clone().next();
        for (hash, line) in hashes.zip(spellings) {
            assert_eq!(Some(hash), first, "{line}");
        }
    }

    #[track_caller]
    fn check_different(first: &str, second: &str) {
        let key = HashKey::fixed();
        let meaning = |line| hash_command(line, &key).meaning;
        assert_ne!(meaning(first), meaning(second));
    }

    #[test]
    fn spellings_of_a_command_are_one_command() {
        check_same(&[
            "pytest -q tests/a.py",
            "cd /w && pytest -q tests/a.py",
            "pytest -q tests/a.py 2>&1",
            "pytest -q 'tests/a.py' 2>&1 | tail -20",
            "timeout 60 pytest -q \"tests/a.py\" | head -n 5",
            "pytest -q tests/a.py 2>/dev/null; echo \"exit: $?\"",
            "bash -lc 'pytest -q tests/a.py'",
            "pytest -q tests/a.py || true",
        ]);
        check_same(&["sleep 5 && curl x", "sleep 30; curl x"]);
    }

    #[test]
    fn other_commands_are_not() {
        check_different("pytest a.py", "pytest b.py");
        check_different("CC=gcc make", "CC=clang make");
        check_different("ls | wc -l", "ls");
        check_different("cat a | tail -5", "cat b | tail -5");
        check_different("echo a > f", "echo b > f");
        check_different("cat > f <<EOF\na\nEOF", "cat > f <<EOF\nb\nEOF");
        check_different("echo a", "echo b");
        check_different("make > log", "make > other");
        check_different("echo '1+1' | ./parse", "echo '2*3' | ./parse");
        check_different("cd a && echo x | nc h 1", "cd a && echo y | nc h 1");
    }

    #[test]
    fn the_directory_is_that_of_the_last_cd() {
        let key = HashKey::fixed();
        let directory = |line| hash_command(line, &key).directory;
        assert_eq!(directory("cd a && make"), directory("cd a/; make -j4"));
        assert_ne!(directory("cd a && make"), directory("cd b && make"));
        assert_eq!(directory("cd a && x; cd b && y"), directory("cd b && make"));
        for line in ["make", "cd . && make", "cd a && make -f /w/Makefile"] {
            assert_eq!(directory(line), None, "{line}");
        }
    }

    #[test]
    fn explanations_and_limits_do_not_distinguish_calls() {
        let filter = ArgumentFilter::default();
        for name in [
            "description",
            "explanation",
            "reason",
            "timeout",
            "timeoutMs",
            "yield_time_ms",
        ] {
            assert!(filter.is_ignored(name), "{name}");
        }
        for name in ["path", "command", "timezone", "limit", "offset", "mode"] {
            assert!(!filter.is_ignored(name), "{name}");
        }
        let making = ArgumentFilter {
            keeps_explanations: true,
            ..filter
        };
        assert!(!making.is_ignored("description") && making.is_ignored("timeout"));
    }
}
