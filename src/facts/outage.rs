//! Whether a text says that the world outside is down: a rate limit, a server's
//! fault, a dead connection. Not the agent's doing, so not the agent's loop.

use std::sync::LazyLock;

use aho_corasick::{AhoCorasick, MatchKind};

/// An outage is told in a line or two; a page that mentions one is a result.
const RESULT_BYTES_MAX: usize = 160;
/// Errors carry stack traces and headers; their beginning says what they are.
const ERROR_BYTES_MAX: usize = 2_048;

/// Words that no ordinary failure uses.
#[rustfmt::skip]
const PHRASES: &[&str] = &[
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

static SEEKER: LazyLock<Option<AhoCorasick>> = LazyLock::new(|| {
    AhoCorasick::builder()
        .ascii_case_insensitive(true)
        .match_kind(MatchKind::LeftmostFirst)
        .build(PHRASES)
        .ok()
});

/// A failure whose error is an outage.
pub(super) fn is_error(error: &str) -> bool {
    let head = crate::domain::text::prefix(error, ERROR_BYTES_MAX);
    says_so(head) || has_status(head)
}

/// A success whose whole short result is the report of an outage.
pub(super) fn is_result(result: &str) -> bool {
    let result = result.trim();
    result.len() <= RESULT_BYTES_MAX
        && says_so(result)
        && !result.contains('\n')
        && result.to_ascii_lowercase().contains("error")
        || result.len() <= RESULT_BYTES_MAX / 4 && leading_status(result)
}

/// A phrase at the beginning of a word: `ENOTFOUND` is not in `FileNotFoundError`.
fn says_so(text: &str) -> bool {
    let begins_word = |start: usize| {
        let before = text.as_bytes().get(start.wrapping_sub(1));
        before.is_none_or(|byte| !byte.is_ascii_alphanumeric())
    };
    SEEKER.as_ref().is_some_and(|seeker| {
        seeker
            .find_iter(text)
            .any(|found| begins_word(found.start()))
    })
}

/// "503 Service Unavailable": the status comes first and a reason follows.
fn leading_status(text: &str) -> bool {
    let (number, rest) = text.split_once(' ').unwrap_or((text, ""));
    is_status(number) && says_so(rest)
}

/// 429 or 5xx as a word, where the text says what kind of number it is.
fn has_status(text: &str) -> bool {
    let mut before = "";
    for word in text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')) {
        if word.is_empty() {
            continue;
        }
        let told = [
            "http",
            "status",
            "code",
            "response",
            "status_code",
            "statuscode",
        ];
        let is_told =
            told.iter().any(|name| name.eq_ignore_ascii_case(before)) || before.is_empty();
        if is_status(word) && is_told {
            return true;
        }
        before = word;
    }
    false
}

fn is_status(word: &str) -> bool {
    word == "429"
        || (word.len() == 3 && word.starts_with('5') && word.bytes().all(|b| b.is_ascii_digit()))
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
            "Error: connect ECONNREFUSED 127.0.0.1:5432",
            "requests.exceptions.ConnectionError: Connection refused",
            "overloaded_error",
            "500: Internal Server Error",
        ] {
            assert!(is_error(error), "{error}");
        }
    }

    #[test]
    fn ordinary_failures_are_not() {
        for error in [
            "401 Unauthorized: token expired",
            "command timed out after 30s",
            "FileNotFoundError: [Errno 2] No such file or directory: '/x/500'",
            "1 failed, 503 passed",
            "line 512: syntax error",
            "EIO",
            "404 Not Found",
            "AssertionError: Error: 500 !== 200",
            "ModuleNotFoundError: No module named 'x'",
        ] {
            assert!(!is_error(error), "{error}");
        }
    }

    #[test]
    fn only_a_short_result_that_is_nothing_else_is_an_outage() {
        assert!(is_result("upstream error 503 network_error"));
        assert!(is_result("503 Service Unavailable"));
        assert!(!is_result(
            "fn retry() { // on connection refused we wait }"
        ));
        assert!(!is_result(
            "the docs say: on 503 service unavailable, retry\nand so on"
        ));
        assert!(!is_result("200 ok"));
        assert!(!is_result("500 rows"));
    }
}
