//! A command line in words, operators among them.

use std::borrow::Cow;

use smallvec::SmallVec;

/// As many as most lines have without an allocation.
pub(super) type Words<'a> = SmallVec<[Cow<'a, str>; 16]>;

/// The words of a line; `None`: its quotes do not match.
pub(super) fn words(line: &str) -> Option<Words<'_>> {
    match plain(line) {
        Some(words) => Some(words),
        None => split(line),
    }
}

/// Any line: `shlex` knows what quotes and escapes mean.
fn split(line: &str) -> Option<Words<'_>> {
    let words = shlex::split(&spaced(line))?;
    Some(words.into_iter().map(Cow::Owned).collect())
}

/// The same of a line without escapes, comments and words that are quoted in
/// part, which most are, without a copy. `None`: it is none.
fn plain<'a>(line: &'a str) -> Option<Words<'a>> {
    let bytes = line.as_bytes();
    let mut words = Words::new();
    // Where the word began that goes on.
    let mut begun: Option<usize> = None;
    let end = |words: &mut Words<'a>, begun: Option<usize>, at: usize| {
        let word = begun.and_then(|begun| line.get(begun..at));
        words.extend(word.map(Cow::Borrowed));
    };
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        let next = bytes.get(at + 1);
        match byte {
            b'\\' | b'#' => return None,
            b' ' | b'\t' => {
                end(&mut words, begun.take(), at);
                at += 1;
            }
            b'\n' => {
                end(&mut words, begun.take(), at);
                words.push(Cow::Borrowed(";"));
                at += 1;
            }
            b'"' | b'\'' => {
                let quoted = bytes.get(at + 1..).unwrap_or_default();
                let len = quoted.iter().position(|other| other == byte)?;
                let escapes = quoted.get(..len)?.contains(&b'\\');
                let after = at + len + 2;
                let alone = matches!(
                    bytes.get(after),
                    None | Some(b' ' | b'\t' | b'\n' | b';' | b'|' | b'>')
                );
                if escapes || !alone || begun.is_some() {
                    return None;
                }
                end(&mut words, Some(at + 1), at + 1 + len);
                at = after;
            }
            b';' | b'|' | b'&' | b'>' => {
                let after_redirection = at > 0 && bytes.get(at - 1) == Some(&b'>');
                let redirects = *byte == b'&' && (after_redirection || next == Some(&b'>'));
                let len = if next == Some(byte) { 2 } else { 1 };
                if redirects {
                    if len == 2 {
                        return None;
                    }
                    begun.get_or_insert(at);
                } else {
                    end(&mut words, begun.replace(at), at);
                    // `>&1` stays whole.
                    if *byte != b'>' || bytes.get(at + len) != Some(&b'&') {
                        end(&mut words, begun.take(), at + len);
                    }
                }
                at += len;
            }
            _ => {
                begun.get_or_insert(at);
                at += 1;
            }
        }
    }
    end(&mut words, begun, at);
    Some(words)
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn operators_and_quotes_make_words() {
        let check = |line: &str, expected: &[&str]| {
            assert_eq!(plain(line).unwrap().as_slice(), expected, "{line}");
            assert_eq!(split(line).unwrap().as_slice(), expected, "{line}");
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
        assert_eq!(plain("echo a\\ b"), None);
        assert_eq!(
            words("echo --x='a b'").unwrap().as_slice(),
            ["echo", "--x=a b"]
        );
        assert_eq!(words("echo 'a"), None);
    }

    proptest! {
        /// The short way is the long one, wherever it is taken.
        #[test]
        fn a_plain_line_has_the_words_that_it_has_anyway(
            line in r#"(a|é| |\t|\n|;|\||&|>|>&1|2>|&&|'|"|'a b'|"c;d"|\\|\#|=){0,12}"#,
        ) {
            if let Some(words) = plain(&line) {
                prop_assert_eq!(Some(words), split(&line));
            }
        }
    }
}
