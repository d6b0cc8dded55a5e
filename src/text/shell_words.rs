//! Splits a shell command line into words and operators.
//!
//! `split_plain` borrows the words from the line and handles most lines. `SplitLine`
//! handles any line and copies the text, because it must remove quotes and escapes.
//! Both give the same words wherever `split_plain` succeeds. Cost: one table lookup per
//! byte for a plain line, without an allocation up to 24 words.

use std::str::Bytes;

use smallvec::SmallVec;

/// Most lines fit without a heap allocation.
pub(crate) type ShellWords<'a> = SmallVec<[&'a str; 24]>;

/// The role of a byte in a command line.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ShellByte {
    /// Part of a word.
    Plain,
    Space,
    Newline,
    Quote,
    Operator,
    /// An escape, or the start of a comment.
    Special,
}

static SHELL_BYTES: [ShellByte; 256] = {
    let mut bytes = [ShellByte::Plain; 256];
    bytes[b' ' as usize] = ShellByte::Space;
    bytes[b'\t' as usize] = ShellByte::Space;
    bytes[b'\n' as usize] = ShellByte::Newline;
    bytes[b'"' as usize] = ShellByte::Quote;
    bytes[b'\'' as usize] = ShellByte::Quote;
    bytes[b';' as usize] = ShellByte::Operator;
    bytes[b'|' as usize] = ShellByte::Operator;
    bytes[b'&' as usize] = ShellByte::Operator;
    bytes[b'>' as usize] = ShellByte::Operator;
    bytes[b'\\' as usize] = ShellByte::Special;
    bytes[b'#' as usize] = ShellByte::Special;
    bytes
};

/// Splits a line into words borrowed from it. Returns `None` if the line has an escape,
/// a comment or a partly quoted word, which most lines do not have; use `SplitLine`
/// then.
pub(crate) fn split_plain(line: &str) -> Option<ShellWords<'_>> {
    let bytes = line.as_bytes();
    let mut words = ShellWords::new();
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        at = match SHELL_BYTES[usize::from(*byte)] {
            ShellByte::Plain => push_word(line, at, at, &mut words)?,
            ShellByte::Space => at + 1,
            ShellByte::Newline => {
                words.push(";");
                at + 1
            }
            ShellByte::Quote => push_quoted(line, at, &mut words)?,
            ShellByte::Operator => push_operator(line, at, &mut words)?,
            ShellByte::Special => return None,
        };
    }
    Some(words)
}

/// Pushes the word that begins at `start` and continues at `at`. Returns the offset of
/// its end.
fn push_word<'a>(
    line: &'a str,
    start: usize,
    mut at: usize,
    words: &mut ShellWords<'a>,
) -> Option<usize> {
    let bytes = line.as_bytes();
    while let Some(byte) = bytes.get(at) {
        match SHELL_BYTES[usize::from(*byte)] {
            ShellByte::Plain => at += 1,
            // `a&>b` and `>&1` are kept whole, because they redirect and do not
            // separate commands.
            ShellByte::Operator if is_redirecting_ampersand(bytes, at) => {
                if bytes.get(at + 1) == Some(byte) {
                    return None;
                }
                at += 1;
            }
            ShellByte::Space | ShellByte::Newline | ShellByte::Operator => break,
            ShellByte::Quote | ShellByte::Special => return None,
        }
    }
    words.push(line.get(start..at)?);
    Some(at)
}

/// Pushes a word that is quoted as a whole. Returns the offset after its closing quote.
fn push_quoted<'a>(line: &'a str, at: usize, words: &mut ShellWords<'a>) -> Option<usize> {
    let bytes = line.as_bytes();
    let quote = *bytes.get(at)?;
    let len = memchr::memchr(quote, bytes.get(at + 1..)?)?;
    let word = line.get(at + 1..at + 1 + len)?;
    let after = at + len + 2;
    let ends_word = matches!(
        bytes.get(after),
        None | Some(b' ' | b'\t' | b'\n' | b';' | b'|' | b'>')
    );
    // A backslash within single quotes is not an escape.
    let escapes = quote == b'"' && memchr::memchr(b'\\', word.as_bytes()).is_some();
    if escapes || !ends_word {
        return None;
    }
    words.push(word);
    Some(after)
}

/// Pushes an operator, or the word that begins with it. Returns the offset of its end.
fn push_operator<'a>(line: &'a str, at: usize, words: &mut ShellWords<'a>) -> Option<usize> {
    let bytes = line.as_bytes();
    if is_redirecting_ampersand(bytes, at) {
        return push_word(line, at, at, words);
    }
    let byte = *bytes.get(at)?;
    let end = at
        + if bytes.get(at + 1) == Some(&byte) {
            2
        } else {
            1
        };
    // `>&1` is kept whole.
    if byte == b'>' && bytes.get(end) == Some(&b'&') {
        return push_word(line, at, end, words);
    }
    words.push(line.get(at..end)?);
    Some(end)
}

/// Whether the byte at `at` is the `&` of `>&` or `&>`.
fn is_redirecting_ampersand(bytes: &[u8], at: usize) -> bool {
    bytes.get(at) == Some(&b'&')
        && (bytes.get(at + 1) == Some(&b'>')
            || at.checked_sub(1).and_then(|before| bytes.get(before)) == Some(&b'>'))
}

/// The words of any line, with quotes and escapes interpreted as a shell does.
pub(crate) struct SplitLine {
    /// All words concatenated, without quotes and escapes.
    text: String,
    ends: SmallVec<[usize; 24]>,
}

impl SplitLine {
    /// Returns `None` if a quote is not closed or the line ends with an escape.
    pub fn parse(line: &str) -> Option<Self> {
        let spaced = space_operators(line);
        let mut bytes = spaced.bytes();
        let mut text = Vec::with_capacity(spaced.len());
        let mut ends = SmallVec::new();
        while let Some(byte) = bytes.next() {
            match byte {
                b' ' | b'\t' | b'\n' => {}
                b'#' => {
                    bytes.by_ref().find(|byte| *byte == b'\n');
                }
                _ => {
                    unquote_word(byte, &mut bytes, &mut text)?;
                    ends.push(text.len());
                }
            }
        }
        let text = String::from_utf8(text).ok()?;
        Some(Self { text, ends })
    }

    pub fn words(&self) -> ShellWords<'_> {
        let begins = std::iter::once(&0).chain(&self.ends);
        let words = begins.zip(&self.ends);
        words
            .filter_map(|(begin, end)| self.text.get(*begin..*end))
            .collect()
    }
}

/// Appends the word that begins with `first`, up to white space, to `text`.
fn unquote_word(first: u8, bytes: &mut Bytes<'_>, text: &mut Vec<u8>) -> Option<()> {
    let mut next = Some(first);
    while let Some(byte) = next {
        match byte {
            b'"' => unquote_double_quoted(bytes, text)?,
            b'\'' => loop {
                match bytes.next()? {
                    b'\'' => break,
                    byte => text.push(byte),
                }
            },
            b'\\' => text.extend(Some(bytes.next()?).filter(|byte| *byte != b'\n')),
            b' ' | b'\t' | b'\n' => break,
            _ => text.push(byte),
        }
        next = bytes.next();
    }
    Some(())
}

fn unquote_double_quoted(bytes: &mut Bytes<'_>, text: &mut Vec<u8>) -> Option<()> {
    loop {
        match bytes.next()? {
            b'"' => return Some(()),
            b'\\' => match bytes.next()? {
                b'\n' => {}
                byte @ (b'$' | b'`' | b'"' | b'\\') => text.push(byte),
                byte => text.extend([b'\\', byte]),
            },
            byte => text.push(byte),
        }
    }
}

/// Puts spaces around operators outside quotes, so that splitting at white space
/// separates them.
fn space_operators(line: &str) -> String {
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
                // The line feed stays, because it ends a comment.
                out.push_str(" ;\n");
                continue;
            }
            (None, ';' | '|' | '&' | '>') => {
                // `2>&1` and `&>` are kept whole, because they redirect and do not
                // separate commands.
                let redirects = c == '&' && (out.ends_with('>') || chars.peek() == Some(&'>'));
                let is_doubled = chars.next_if_eq(&c).is_some();
                if redirects {
                    out.push(c);
                } else {
                    out.push(' ');
                    out.push(c);
                    if is_doubled {
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn operators_and_quotes_make_words() {
        let check = |line: &str, expected: &[&str]| {
            assert_eq!(split_plain(line).unwrap().as_slice(), expected, "{line}");
            let split = SplitLine::parse(line).unwrap();
            assert_eq!(split.words().as_slice(), expected, "{line}");
        };
        check("cd a&&ls -l b", &["cd", "a", "&&", "ls", "-l", "b"]);
        check(
            "grep -n 'a b' f 2>&1|head",
            &["grep", "-n", "a b", "f", "2", ">&1", "|", "head"],
        );
        check("echo \"x\">>f\nls", &["echo", "x", ">>", "f", ";", "ls"]);
        check(
            "run 2>/dev/null; run &",
            &["run", "2", ">", "/dev/null", ";", "run", "&"],
        );
        assert_eq!(split_plain("echo a\\ b"), None);
        let split = SplitLine::parse("echo --x='a b'").unwrap();
        assert_eq!(split.words().as_slice(), ["echo", "--x=a b"]);
        assert!(SplitLine::parse("echo 'a").is_none());
        let split = SplitLine::parse("# a comment\nls b").unwrap();
        assert_eq!(split.words().as_slice(), ["ls", "b"]);
    }

    proptest! {
        /// The fast path gives the same words as the general one wherever it succeeds.
        #[test]
        fn the_fast_path_for_plain_lines_gives_the_same_words(
            line in r#"(a|é| |\t|\n|;|\||&|>|>&1|2>|&&|'|"|'a b'|"c;d"|\\|\#|=){0,12}"#,
        ) {
            let split = SplitLine::parse(&line);
            if let Some(words) = split_plain(&line) {
                prop_assert_eq!(Some(words), split.as_ref().map(SplitLine::words));
            }
            let split = split.map(|split| split.words().iter().map(|word| word.to_string()).collect());
            prop_assert_eq!(split, shlex::split(&space_operators(&line)));
        }
    }
}
