//! Recognises outages of other systems: a rate limit, a server fault, a dead connection.
//! They are not caused by the agent, so they are no loop of the agent.
//!
//! A text is an outage if it contains a phrase that ordinary failures do not use, or an
//! HTTP status with a label or a reason, unless it is the output of a test. Phrases are
//! found with one Aho-Corasick automaton. Cost: linear, at most 2 KiB of an error.

use std::sync::LazyLock;

use aho_corasick::{AhoCorasick, Anchored, Input, Match, MatchKind, StartKind};
use memchr::memchr2_iter;

use crate::domain::sanitize;

/// An outage is a line or two; a longer text that mentions one is a result.
const RESULT_BYTES_MAX: usize = 160;
/// Errors carry stack traces and headers; their beginning says what went wrong.
const ERROR_BYTES_MAX: usize = 2_048;

/// Phrases that no ordinary failure uses.
#[rustfmt::skip]
const OUTAGE_PHRASES: &[&str] = &[
    "too many requests", "rate limit", "rate_limit", "ratelimit", "quota exceeded",
    "service unavailable", "temporarily unavailable", "bad gateway", "gateway timeout",
    "gateway time-out", "internal server error", "server is overloaded", "overloaded_error",
    "connection refused", "connection reset", "connection timed out", "connection aborted",
    "connection error", "connection closed", "connecttimeout", "econnrefused", "econnreset",
    "etimedout", "enotfound", "eai_again", "ehostunreach", "network is unreachable",
    "network_error", "network error", "upstream error", "upstream connect error",
    "could not resolve host", "name or service not known", "socket hang up",
    "remote end closed connection", "tls handshake timeout",
];

/// Two automata of one list: each is faster than one that supports both searches.
static PHRASE_SEARCHER: LazyLock<Option<AhoCorasick>> =
    LazyLock::new(|| build_searcher(StartKind::Unanchored));
static PREFIX_SEARCHER: LazyLock<Option<AhoCorasick>> =
    LazyLock::new(|| build_searcher(StartKind::Anchored));

fn build_searcher(start: StartKind) -> Option<AhoCorasick> {
    AhoCorasick::builder()
        .ascii_case_insensitive(true)
        .match_kind(MatchKind::LeftmostFirst)
        .start_kind(start)
        .build(OUTAGE_PHRASES)
        .ok()
}

/// Whether an error is an outage.
pub fn is_outage_error(error: &str) -> bool {
    let head = sanitize::prefix(error, ERROR_BYTES_MAX);
    (contains_phrase(head) || starts_with_status(head) || contains_labelled_status(head))
        && !is_test_output(head)
}

/// Whether a short result of a success is nothing but the report of an outage.
pub fn is_outage_result(result: &str) -> bool {
    let trimmed = result.trim();
    let is_one_line = trimmed.len() <= RESULT_BYTES_MAX && !trimmed.contains('\n');
    is_one_line
        && (starts_with_phrase(trimmed) || starts_with_status(trimmed))
        && !is_test_output(trimmed)
}

/// Whether a text is the output of tests, which may be about an outage.
fn is_test_output(text: &str) -> bool {
    const TEST_OUTPUT_WORDS: &[&str] = &[
        "FAILED ",
        "AssertionError",
        "assert ",
        " test passed",
        "assertion ",
    ];
    let follows_digit = |word| {
        text.match_indices(word).any(|(at, _)| {
            let before = at.checked_sub(1).and_then(|at| text.as_bytes().get(at));
            before.is_some_and(u8::is_ascii_digit)
        })
    };
    follows_digit(" failed")
        || follows_digit(" passed")
        || TEST_OUTPUT_WORDS.iter().any(|word| text.contains(word))
}

/// Whether the text contains a phrase as whole words: `ENOTFOUND` is not in
/// `FileNotFoundError`, and `test_rate_limit.py` is a name.
fn contains_phrase(text: &str) -> bool {
    PHRASE_SEARCHER.as_ref().is_some_and(|searcher| {
        searcher
            .find_iter(text)
            .any(|found| is_whole_word(text, found))
    })
}

fn starts_with_phrase(text: &str) -> bool {
    let message = ["error: ", "Error: "]
        .iter()
        .find_map(|prefix| text.strip_prefix(prefix))
        .unwrap_or(text);
    let input = Input::new(message).anchored(Anchored::Yes);
    let found = PREFIX_SEARCHER
        .as_ref()
        .and_then(|searcher| searcher.find(input));
    found.is_some_and(|found| is_whole_word(message, found))
}

fn is_whole_word(text: &str, found: Match) -> bool {
    let is_boundary = |at: Option<&u8>| {
        at.is_none_or(|byte| !byte.is_ascii_alphanumeric() && !b"_/.-".contains(byte))
    };
    let bytes = text.as_bytes();
    let before = found.start().checked_sub(1).and_then(|at| bytes.get(at));
    let after = bytes.get(found.end()).filter(|byte| **byte != b'.');
    is_boundary(before) && is_boundary(after)
}

/// Whether the text starts with a status and a reason: "503 Service Unavailable".
fn starts_with_status(text: &str) -> bool {
    let (number, rest) = text.split_once([' ', ':']).unwrap_or((text, ""));
    is_status(number) && contains_phrase(rest)
}

/// Whether the text contains 429 or 5xx as a word after a label such as "status".
fn contains_labelled_status(text: &str) -> bool {
    const STATUS_LABELS: &[&str] = &["http", "status", "response", "status_code", "statuscode"];
    // Most errors contain no such number.
    let mut fours_and_fives = memchr2_iter(b'4', b'5', text.as_bytes());
    if !fours_and_fives.any(|at| text.get(at..at + 3).is_some_and(is_status)) {
        return false;
    }
    let mut previous_words = ["", ""];
    for word in text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')) {
        if word.is_empty() {
            continue;
        }
        let is_label = |name: &str| {
            STATUS_LABELS
                .iter()
                .any(|label| label.eq_ignore_ascii_case(name))
        };
        let is_labelled = is_label(previous_words[1])
            || (previous_words[1].eq_ignore_ascii_case("code") && is_label(previous_words[0]));
        if is_status(word) && is_labelled {
            return true;
        }
        previous_words = [previous_words[1], word];
    }
    false
}

fn is_status(word: &str) -> bool {
    #[rustfmt::skip]
    const STATUSES: &[&str] = &[
        "429", "500", "501", "502", "503", "504", "507", "508", "511", "520", "521", "522", "523",
        "524", "525", "526", "529",
    ];
    STATUSES.contains(&word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_limits_server_faults_and_dead_connections_are_outages() {
        for error in [
            "429 Too Many Requests",
            "HTTP 503",
            "status code: 502",
            "Request failed with status code 429",
            "HTTP 502: Bad Gateway (https://api.github.com/graphql)",
            "fatal: unable to access: Could not resolve host: github.com",
            "Error: connect ECONNREFUSED 127.0.0.1:5432",
            "requests.exceptions.ConnectionError: Connection refused",
            "overloaded_error",
            "500: Internal Server Error",
        ] {
            assert!(is_outage_error(error), "{error}");
        }
    }

    #[test]
    fn ordinary_failures_are_no_outages() {
        for error in [
            "401 Unauthorized: token expired",
            "command timed out after 30s",
            "FileNotFoundError: [Errno 2] No such file or directory: '/x/500'",
            "1 failed, 503 passed",
            "line 512: syntax error",
            "EIO",
            "404 Not Found",
            "FAILED tests/test_rate_limit.py::test_burst - 4 failed",
            "grep: a_rate_limit.log: No such file or directory",
            "500 rows limit exceeded",
            "code 512 overflow",
            "AssertionError: Error: 500 !== 200",
            "ModuleNotFoundError: No module named 'x'",
        ] {
            assert!(!is_outage_error(error), "{error}");
        }
    }

    #[test]
    fn a_result_is_an_outage_only_if_it_is_short_and_nothing_else() {
        assert!(is_outage_result("upstream error 503 network_error"));
        assert!(is_outage_result("503 Service Unavailable"));
        assert!(!is_outage_result(
            "fn retry() { // on connection refused we wait }"
        ));
        assert!(!is_outage_result(
            "the docs say: on 503 service unavailable, retry\nand so on"
        ));
        assert!(!is_outage_result("Error: rate limit test passed for a"));
        assert!(!is_outage_result("200 ok"));
        assert!(!is_outage_result("500 rows"));
    }
}
