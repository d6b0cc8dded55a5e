//! Reads in a short sentence that something is under way: "still processing", "not ready yet",
//! "in the queue".
//!
//! Cost: one look at each word of an answer of a line or two.

use super::{PENDING_WORDS, has_candidate};

/// Whether the error of a failed call says that what it asks for is not there yet: a pod
/// that is created, a database that starts.
pub fn is_pending_failure(error: &str) -> bool {
    const ERROR_BYTES_MAX: usize = 320;
    const PHRASES: &[&str] = &["waiting to start", "starting up", "no response"];
    /// What failed for good, or tests that say so.
    const FINAL: &[&str] = &[
        "failing",
        "failed",
        "FAILED",
        "ssert",
        "Traceback",
        "BackOff",
    ];
    error.len() <= ERROR_BYTES_MAX
        && (PHRASES.iter().any(|phrase| error.contains(phrase))
            || has_candidate(error) && says_pending(error))
        && !FINAL.iter().any(|word| error.contains(word))
}

/// "Build 4 is still running (stage 2 of 5)", "Processing your file… 42 %", "Your export is
/// currently running", "not ready yet", "in the queue".
pub(super) fn says_pending(text: &str) -> bool {
    let mut words = text
        .split(|c: char| !c.is_alphanumeric())
        .filter(|word| !word.is_empty());
    let is_pending = |word: &str| {
        !word.eq_ignore_ascii_case("waiting")
            && PENDING_WORDS
                .iter()
                .any(|pending| pending.eq_ignore_ascii_case(word))
    };
    let is_part_done = text.contains('%') && !text.contains("100");
    if is_part_done && words.clone().any(is_pending) {
        return true;
    }
    let is = |word: &str, known: &str| word.eq_ignore_ascii_case(known);
    let mut subject = "";
    while let Some(word) = words.next() {
        let mut after = words.clone();
        let next = after.next().unwrap_or_default();
        let says_so = if is(word, "is") || is(word, "still") || is(word, "currently") {
            // Services run for good, jobs do not.
            let may_run = !is(word, "is") || is_job(subject);
            is_pending(next) && (may_run || !is(next, "running"))
                || is(next, "in") && is(after.next().unwrap_or_default(), "progress")
        } else if is(word, "not") || is(word, "t") && subject.ends_with('n') {
            says_not_yet(words.clone())
        } else if is(word, "in") {
            is(next, "queue") || is(next, "the") && is(after.next().unwrap_or_default(), "queue")
        } else {
            is(word, "please") && is(next, "wait")
        };
        if says_so {
            return true;
        }
        subject = word;
    }
    false
}

/// Whether what follows "not" will come: "not ready yet", "not yet available", "not finished
/// (1 of 3)". What is not implemented or not supported will not come by itself.
fn says_not_yet<'a>(after: impl Iterator<Item = &'a str>) -> bool {
    /// Words from "not" to "yet".
    const WORDS_MAX: usize = 4;
    #[rustfmt::skip]
    const OTHERS: &[&str] = &[
        "implemented", "supported", "exist", "defined", "installed", "configured", "committed",
        "written", "possible", "used", "known", "found", "documented", "allowed", "authorized",
        "logged", "staged", "tracked", "tested", "included", "set", "enabled", "initialized",
    ];
    let mut says_so = false;
    for (number, word) in after.take(WORDS_MAX).enumerate() {
        let is_one_of = |list: &[&str]| list.iter().any(|known| known.eq_ignore_ascii_case(word));
        if is_one_of(OTHERS) {
            return false;
        }
        says_so |= is_one_of(&["yet"]) || number == 0 && is_one_of(&["ready", "finished"]);
    }
    says_so
}

/// Whether a word names something that runs and ends.
fn is_job(word: &str) -> bool {
    #[rustfmt::skip]
    const JOBS: &[&str] = &[
        "job", "build", "task", "run", "export", "import", "query", "pipeline", "deployment",
        "workflow", "backup", "migration", "scan", "upload", "download", "transfer", "training",
        "rollout", "operation", "render", "crawl", "sync", "batch", "restore", "analysis",
    ];
    JOBS.iter().any(|known| known.eq_ignore_ascii_case(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_may_say_that_something_is_not_there_yet() {
        for error in [
            "Exit code 2\nlocalhost:5432 - no response",
            "container \"web\" in pod \"web-0\" is waiting to start: ContainerCreating",
            "FATAL:  the database system is starting up",
            "Error: the index is not ready",
        ] {
            assert!(is_pending_failure(error), "{error}");
        }
        for error in [
            "Exit code 1",
            "container \"web\" is waiting to start: trying and failing to pull image",
            "FAILED t.py::test_a - the job is still running",
            "error: not yet implemented",
        ] {
            assert!(!is_pending_failure(error), "{error}");
        }
    }
}
