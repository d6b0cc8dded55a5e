//! Cuts the echo of a call's arguments out of its answer: "no matches for X" is one
//! answer whatever X is.
//!
//! The texts among the arguments are replaced first, as a whole. Then a token (letters,
//! digits, `_ - . / @`) of the answer that is a token of the arguments, or a path that
//! ends with one, is replaced. Numbers are kept, because they are what an answer is about,
//! unless one is the whole value of an argument: "order 1001 not found".
//! Cost: linear in both texts, which have limits. A byte of an answer is hashed at most 17
//! times, because of the slashes before it, and compared with at most 8 texts.

use std::hash::BuildHasher;

use foldhash::fast::FixedState;
use smallvec::SmallVec;

/// Replaces an echoed token.
const PLACEHOLDER: &str = "@";
/// Longer arguments are a file or a program, whose words are those of any answer.
const ARGS_BYTES_MAX: usize = 2_048;
/// Longer answers carry information of their own.
const ANSWER_BYTES_MAX: usize = 2_048;

/// The most parts of a path that may precede the echoed one.
const SLASHES_MAX: usize = 16;

/// Texts of the arguments that are looked for as a whole.
const VALUES_MAX: usize = 8;
/// A shorter text occurs inside many words, a longer one is hardly echoed as a whole.
const VALUE_BYTES: std::ops::RangeInclusive<usize> = 3..=200;

/// An answer without the echo. Most answers that are no fit without an allocation.
#[derive(Debug, Default)]
pub struct CutText(SmallVec<[u8; 512]>);

impl CutText {
    fn push_str(&mut self, text: &str) {
        self.0.extend_from_slice(text.as_bytes());
    }

    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).unwrap_or_default()
    }
}

/// What an answer may echo: the texts and tokens of a call's arguments, and its tool's
/// name.
#[derive(Debug, Default)]
pub struct EchoTokens {
    /// The longest texts first, since a short one may be part of a longer one.
    values: SmallVec<[Box<str>; VALUES_MAX]>,
    /// Hashes of the tokens in lower case, sorted.
    hashes: SmallVec<[u64; 32]>,
    /// The same of the names of the arguments. An answer echoes one in quotes; without, it is
    /// a word like any other ("use offset and limit").
    names: SmallVec<[u64; 8]>,
    /// The hashes of numbers that are whole values of arguments.
    numbers: SmallVec<[u64; 4]>,
    filter: TokenFilter,
}

/// Rules out most tokens without hashing them: one bit per length and per first byte.
#[derive(Debug, Default)]
struct TokenFilter {
    lengths: u64,
    first_bytes: u64,
}

impl TokenFilter {
    fn bits(token: &str) -> (u64, u64) {
        let first = token.bytes().next().unwrap_or_default();
        (
            1 << token.len().min(63),
            1 << (first.to_ascii_lowercase() & 63),
        )
    }

    fn add(&mut self, token: &str) {
        let (length, first_byte) = Self::bits(token);
        self.lengths |= length;
        self.first_bytes |= first_byte;
    }

    fn may_contain(&self, token: &str) -> bool {
        let (length, first_byte) = Self::bits(token);
        self.lengths & length != 0 && self.first_bytes & first_byte != 0
    }
}

impl EchoTokens {
    pub fn new(tool: &str, args: &str) -> Self {
        if args.len() > ARGS_BYTES_MAX {
            return Self::default();
        }
        let mut filter = TokenFilter::default();
        let mut hashes = SmallVec::new();
        let mut names = SmallVec::new();
        for token in tokens(tool).filter(|token| token.is_name) {
            filter.add(token.text);
            hashes.push(hash_token(token.text));
        }
        let mut numbers = SmallVec::new();
        for token in tokens(args) {
            if !token.is_name {
                if numbers.len() < VALUES_MAX && is_number_value(args, &token) {
                    numbers.push(hash_token(token.text));
                }
                continue;
            }
            let after = args.get(token.start + token.text.len()..);
            if is_common_word(token.text) {
                continue;
            }
            filter.add(token.text);
            if after.is_some_and(is_end_of_name) {
                names.push(hash_token(token.text));
            } else {
                hashes.push(hash_token(token.text));
            }
        }
        hashes.sort_unstable();
        hashes.dedup();
        let values = quoted_texts(args).take(VALUES_MAX).map(Box::from);
        let mut values: SmallVec<[Box<str>; VALUES_MAX]> = values.collect();
        values.sort_by_key(|value| std::cmp::Reverse(value.len()));
        Self {
            values,
            hashes,
            names,
            numbers,
            filter,
        }
    }

    /// The answer without the echo; `None`: it has none.
    pub fn cut(&self, answer: &str) -> Option<CutText> {
        if (self.hashes.is_empty() && self.names.is_empty() && self.numbers.is_empty())
            || answer.is_empty()
            || answer.len() > ANSWER_BYTES_MAX
        {
            return None;
        }
        let mut without_values = None::<CutText>;
        for value in &self.values {
            let text = without_values.as_ref().map_or(answer, CutText::as_str);
            if let Some(replaced) = replace_whole(text, value) {
                without_values = Some(replaced);
            }
        }
        match without_values {
            Some(text) => Some(self.cut_tokens(text.as_str()).unwrap_or(text)),
            None => self.cut_tokens(answer),
        }
    }

    fn cut_tokens(&self, answer: &str) -> Option<CutText> {
        let mut kept = CutText::default();
        let mut from = 0;
        let mut last_echo_end = None;
        for token in tokens(answer) {
            let is_quoted = || {
                let before = answer.get(..token.start).unwrap_or_default();
                before.ends_with(['\'', '"', '`'])
            };
            let is_echo = if token.is_name {
                self.contains(&token, is_quoted)
            } else {
                !self.numbers.is_empty() && self.numbers.contains(&hash_token(token.text))
            };
            if !is_echo {
                continue;
            }
            let between = answer.get(from..token.start).unwrap_or_default();
            // "Jon Smyth" and "Smyth" are one echo each.
            let continues = last_echo_end == Some(from) && between.chars().all(is_gap);
            if !continues {
                kept.push_str(between);
                kept.push_str(PLACEHOLDER);
            }
            from = token.start + token.text.len();
            last_echo_end = Some(from);
        }
        last_echo_end?;
        kept.push_str(answer.get(from..).unwrap_or_default());
        Some(kept)
    }

    fn contains(&self, token: &EchoToken<'_>, is_quoted: impl Fn() -> bool) -> bool {
        let is_token = |token: &str| {
            self.filter.may_contain(token) && {
                let hash = hash_token(token);
                self.hashes.binary_search(&hash).is_ok()
                    || self.names.contains(&hash) && is_quoted()
            }
        };
        // A relative path is often echoed as an absolute one.
        let text = token.text;
        is_token(text)
            || token.has_slash
                && memchr::memchr_iter(b'/', text.as_bytes())
                    .take(SLASHES_MAX)
                    .any(|at| text.get(at + 1..).is_some_and(is_token))
    }
}

/// Whether a word is so short that an answer has it by chance: "is", "the".
fn is_common_word(token: &str) -> bool {
    const BYTES_MAX: usize = 3;
    token.len() <= BYTES_MAX && token.bytes().all(|byte| byte.is_ascii_lowercase())
}

/// Whether a number is the whole value of an argument in JSON, with or without quotes. A
/// number of one digit occurs by chance.
fn is_number_value(args: &str, token: &EchoToken<'_>) -> bool {
    const DIGITS_MIN: usize = 2;
    let before = args.get(..token.start).unwrap_or_default();
    let after = args
        .get(token.start + token.text.len()..)
        .unwrap_or_default();
    let (before, after) = match (before.strip_suffix('"'), after.strip_prefix('"')) {
        (Some(before), Some(after)) => (before, after),
        (None, None) => (before, after),
        _ => return false,
    };
    token.text.len() >= DIGITS_MIN
        && token.text.bytes().all(|byte| byte.is_ascii_digit())
        && before.trim_ascii_end().ends_with(':')
        && after.trim_ascii_start().starts_with([',', '}'])
}

/// Whether the text continues behind the name of an argument in JSON.
fn is_end_of_name(after: &str) -> bool {
    after
        .strip_prefix('"')
        .is_some_and(|after| after.trim_ascii_start().starts_with(':'))
}

/// The texts between quotes in JSON that are no names. One with an escape is not echoed as it
/// stands.
fn quoted_texts(args: &str) -> impl Iterator<Item = &str> {
    let mut parts = args.split('"').skip(1);
    std::iter::from_fn(move || {
        loop {
            let text = parts.next()?;
            let behind = parts.next().unwrap_or_default();
            let is_value = !behind.trim_ascii_start().starts_with(':');
            let is_echoed = is_value
                && VALUE_BYTES.contains(&text.len())
                && !text.contains('\\')
                && is_name(text);
            if is_echoed {
                return Some(text);
            }
        }
    })
}

/// Replaces a text where it is not part of a longer word; `None`: it does not occur.
fn replace_whole(text: &str, value: &str) -> Option<CutText> {
    let mut kept = CutText::default();
    let mut from = 0;
    // Faster for texts of this size than to prepare a searcher for each value.
    let (bytes, value_bytes) = (text.as_bytes(), value.as_bytes());
    for at in memchr::memchr_iter(*value_bytes.first()?, bytes) {
        if at < from || !bytes.get(at..)?.starts_with(value_bytes) {
            continue;
        }
        let (before, behind) = (text.get(..at)?, text.get(at + value.len()..)?);
        let is_part = before.ends_with(char::is_alphanumeric)
            && value.starts_with(char::is_alphanumeric)
            || behind.starts_with(char::is_alphanumeric) && value.ends_with(char::is_alphanumeric);
        if !is_part {
            kept.push_str(text.get(from..at)?);
            kept.push_str(PLACEHOLDER);
            from = at + value.len();
        }
    }
    (from > 0).then(|| {
        kept.push_str(text.get(from..).unwrap_or_default());
        kept
    })
}

pub(super) struct EchoToken<'a> {
    start: usize,
    pub text: &'a str,
    /// It has a letter. A number is no name: it may be the result.
    is_name: bool,
    has_slash: bool,
}

/// The tokens of a text. Punctuation at their ends belongs to the sentence.
pub(super) fn tokens(text: &str) -> impl Iterator<Item = EchoToken<'_>> {
    let mut at = 0;
    std::iter::from_fn(move || {
        loop {
            let (start, _) = run_end(text, at, GAP);
            let (end, classes) = run_end(text, start, !GAP);
            if start == end {
                return None;
            }
            at = end;
            // Without the punctuation of the sentence.
            let token = text.get(start..end)?;
            let trimmed = token.trim_start_matches(['.', '-']);
            let start = start + (token.len() - trimmed.len());
            let text = trimmed.trim_end_matches(['.', '-', '/']);
            if !text.is_empty() {
                return Some(EchoToken {
                    start,
                    text,
                    is_name: classes & LETTER != 0,
                    has_slash: classes & SLASH != 0,
                });
            }
        }
    })
}

/// The classes of chars, a bit each. The last three are parts of tokens.
const GAP: u8 = 1;
const LETTER: u8 = 2;
const SLASH: u8 = 4;
/// A digit, or one of `_ - . @`.
const OTHER: u8 = 8;

/// The class of each byte; 0: a part of a char that is not ASCII.
static BYTE_CLASSES: [u8; 256] = {
    let mut classes = [0; 256];
    let mut byte = 0;
    while byte < 128u8 {
        classes[byte as usize] = match byte {
            b'a'..=b'z' | b'A'..=b'Z' => LETTER,
            b'/' => SLASH,
            b'0'..=b'9' | b'_' | b'-' | b'.' | b'@' => OTHER,
            _ => GAP,
        };
        byte += 1;
    }
    classes
};

/// The class of a char that is not ASCII.
#[cold]
fn wide_class(c: char) -> u8 {
    if c.is_alphabetic() {
        LETTER
    } else if c.is_numeric() {
        OTHER
    } else {
        GAP
    }
}

/// The end of the chars from `at` on that are of these classes, and the classes among them.
fn run_end(text: &str, mut at: usize, wanted: u8) -> (usize, u8) {
    let mut found = 0;
    while let Some(byte) = text.as_bytes().get(at) {
        let (mut class, mut len) = (BYTE_CLASSES[usize::from(*byte)], 1);
        if class == 0 {
            let Some(c) = text.get(at..).and_then(|rest| rest.chars().next()) else {
                break;
            };
            (class, len) = (wide_class(c), c.len_utf8());
        }
        if class & wanted == 0 {
            break;
        }
        found |= class;
        at += len;
    }
    (at, found)
}

/// Whether a char may stand between two echoed tokens of one echo.
fn is_gap(c: char) -> bool {
    !c.is_alphanumeric() && c != '\n'
}

/// Whether a text has a letter.
fn is_name(token: &str) -> bool {
    token.chars().any(char::is_alphabetic)
}

/// Not keyed: an agent that makes tokens collide only cuts its own answers.
pub(super) fn hash_token(token: &str) -> u64 {
    let mut lowered = SmallVec::<[u8; 64]>::from_slice(token.as_bytes());
    lowered.make_ascii_lowercase();
    FixedState::default().hash_one(lowered.as_slice())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(args: &str, answer: &str) -> String {
        EchoTokens::new("find", args)
            .cut(answer)
            .map_or(answer.to_owned(), |cut| cut.as_str().to_owned())
    }

    #[test]
    fn answers_that_echo_their_arguments_are_one_answer() {
        for (args, answers) in [
            (["parse_row", "readRow"], "No symbol named '{}' found"),
            (
                ["src/a.rs", "lib/b/c.rs"],
                "ENOENT: no such file or directory, open '/w/{}'",
            ),
            (["Jon Smyth", "Smyth"], "No customers found for '{}'"),
            (["user_name", "username"], "column \"{}\" does not exist"),
            (["web-7f9", "web-0"], "pods \"{}\" not found"),
            (
                ["#submit", "form >> button.primary"],
                "waiting for locator('{}')",
            ),
            (["Title 1", "Heading"], "shape '{}' is not there"),
            (["1001", "2001"], "Order {} not found"),
        ] {
            let [first, second] = args.map(|name| {
                let args = format!("{{\"q\": \"{name}\"}}");
                cut(&args, &answers.replace("{}", name))
            });
            assert_eq!(first, second);
            assert!(first.contains(PLACEHOLDER), "{first}");
        }
    }

    #[test]
    fn numbers_and_other_words_are_kept() {
        assert_eq!(cut("{\"channel\": 3}", "3.0 V"), "3.0 V");
        assert_eq!(cut("{\"q\": \"cat\"}", "no category"), "no category");
        assert_eq!(cut("{\"index\": 3}", "3 failed"), "3 failed");
        assert_eq!(cut("{\"cmd\": \"head -40 a\"}", "40 left"), "40 left");
    }

    #[test]
    fn the_name_of_an_argument_is_an_echo_in_quotes_only() {
        let answer = "use offset and limit to read less";
        assert_eq!(cut("{\"limit\": 5, \"p\": \"a.rs\"}", answer), answer);
        assert_eq!(
            cut("{\"arguments\": \"\"}", "unexpected argument 'arguments'"),
            "unexpected argument '@'"
        );
    }

    #[test]
    fn a_path_is_an_echo_behind_few_others() {
        let answer = |slashes: usize| format!("no file {}src/a.rs", "w/".repeat(slashes));
        let args = "{\"path\": \"src/a.rs\"}";
        // The text as a whole is found at any depth; its token alone shows the bound.
        let tokens = EchoTokens {
            values: SmallVec::new(),
            ..EchoTokens::new("find", args)
        };
        assert!(tokens.cut(&answer(SLASHES_MAX)).is_some());
        assert!(tokens.cut(&answer(SLASHES_MAX + 1)).is_none());
    }

    #[test]
    fn long_texts_are_left_as_they_are() {
        let long = "a ".repeat(ANSWER_BYTES_MAX);
        assert!(EchoTokens::new("", "a").cut(&long).is_none());
        assert!(EchoTokens::new("", &long).cut("a b").is_none());
    }
}
