//! Reads the status in the answer of a tool: what was asked about is still under way, or
//! it has died. The position decides, not the word alone: the value of a status key in
//! JSON, a cell of a table, the text after a label, or the whole of a short answer. A
//! sentence or a source file that contains the word has no status.
//!
//! Cost: one vectorized search over at most 4 KiB; the rest runs only if it finds a part
//! of a status word or a status key.

mod sentence;

use std::sync::LazyLock;

use aho_corasick::packed;

pub use self::sentence::is_pending_failure;
use self::sentence::says_pending;
use crate::domain::sanitize;

/// A longer text is a document or a log.
const TEXT_BYTES_MAX: usize = 2_048;
/// The descriptions of cloud resources are longer.
const JSON_BYTES_MAX: usize = 4_096;
/// One line, as in `RUNNING None`.
const SHORT_BYTES_MAX: usize = 160;
/// The longest status: `UPDATE_COMPLETE_CLEANUP_IN_PROGRESS` and the like.
const VALUE_BYTES_MAX: usize = 48;
/// A larger object with a status "pending" is a record, such as an order.
const PENDING_RECORD_BYTES_MAX: usize = 512;

/// States of something under way.
#[rustfmt::skip]
const PENDING_WORDS: &[&str] = &[
    "pending", "queued", "enqueued", "running", "waiting", "processing", "building",
    "provisioning", "creating", "deploying", "starting", "initializing", "initialising",
    "scheduling", "preparing", "executing", "updating", "installing", "pulling", "inprogress",
    "progressing",
];
/// States of something that has been taken on and has not begun. Elsewhere than in a status
/// they are a receipt.
const ACCEPTED_WORDS: &[&str] = &["scheduled", "submitted", "accepted"];
/// States that also begin a short answer with more words after them.
const PENDING_OPENERS: &[&str] = &["pending", "queued", "in_progress", "waiting", "processing"];
/// The same in other scripts, where words are not set apart.
#[rustfmt::skip]
const PENDING_ELSEWHERE: &[&str] = &[
    "処理中", "実行中", "待機中", "作成中", "保留中", "处理中", "處理中", "运行中", "執行中", "进行中", "等待中",
    "排队", "대기 중", "진행 중", "처리 중", "выполняется", "в очереди", "ожидает",
];
/// Words that end in "ing" and are no activity.
#[rustfmt::skip]
const OTHER_ING_WORDS: &[&str] = &[
    "warning", "missing", "failing", "passing", "nothing", "existing", "string", "blocking",
    "outstanding", "matching", "conflicting", "upcoming",
];
/// States of something that does not go on by itself.
#[rustfmt::skip]
const DEAD_WORDS: &[&str] = &[
    "failed", "failure", "error", "errored", "crashed", "killed", "aborted", "cancelled",
    "canceled", "dead", "oomkilled", "crashloopbackoff", "imagepullbackoff", "errimagepull",
    "exited",
];
/// What programs print when they die.
const DEATH_PHRASES: &[&str] = &[
    "Traceback (most recent call last)",
    "panicked at ",
    "Segmentation fault",
    "core dumped",
    "OOMKilled",
];

/// Parts of the words, keys and phrases of this module in the two cases in which they occur:
/// without one of them a text has no status. The searcher takes at most 64.
#[rustfmt::skip]
const CANDIDATE_PARTS: &[&str] = &[
    "ending", "ueued", "unning", "aiting", "ocessing", "uilding", "visioning", "reating",
    "eploying", "tarting", "itializing", "itialising", "heduling", "eparing", "ecuting",
    "pdating", "stalling", "ulling", "rogress", "Init:",
    "ENDING", "UEUED", "UNNING", "AITING", "OCESSING", "UILDING", "VISIONING", "REATING",
    "EPLOYING", "TARTING", "ITIALIZING", "EPARING", "PDATING", "ROGRESS",
    "tatus\"", "tate\"", "hase\"", "TATUS\"", "TATE\"", "one\"", "JOBID",
    "tatus: ", "tate: ", "hase: ", "tatus'", "tate'", "hase'",
    "ready", "Ready", "omplete", "inished", " yet", " queue", "ease wait",
    "cheduled", "ubmitted", "ccepted", "CHEDULED", "UBMITTED", "CCEPTED",
];

static CANDIDATES: LazyLock<Option<packed::Searcher>> =
    LazyLock::new(|| packed::Searcher::new(CANDIDATE_PARTS));

fn has_candidate(text: &str) -> bool {
    match &*CANDIDATES {
        Some(searcher) => searcher.find(text).is_some(),
        None => true,
    }
}

/// Whether an answer says that what was asked about is still under way.
pub fn is_pending(answer: &str) -> bool {
    let text = answer.trim();
    if text.len() <= SHORT_BYTES_MAX && is_pending_elsewhere(text) {
        return true;
    }
    if is_json(text) {
        let text = sanitize::prefix(text, JSON_BYTES_MAX);
        return has_candidate(text)
            && (json_statuses(text).any(|(key, value)| is_pending_in_json(text, key, value))
                || json_entries(text).any(|(key, value)| is_pending_flag(text, key, value)));
    }
    if text.is_empty() || text.len() > TEXT_BYTES_MAX {
        return false;
    }
    let is_one_word = text.len() <= VALUE_BYTES_MAX && !text.contains(char::is_whitespace);
    // A state is in capital letters, a receipt is not.
    let is_state = || is_accepted(text) && !text.bytes().any(|byte| byte.is_ascii_lowercase());
    if is_one_word && (is_pending_value(text, true) || is_state()) {
        return true;
    }
    has_candidate(text) && !is_commit_or_diff(text) && is_pending_text(text)
}

fn is_pending_elsewhere(text: &str) -> bool {
    !text.is_ascii() && PENDING_ELSEWHERE.iter().any(|word| text.contains(word))
}

fn is_json(text: &str) -> bool {
    text.starts_with(['{', '['])
}

fn is_commit_or_diff(text: &str) -> bool {
    ["diff ", "commit ", "--- ", "@@ "]
        .iter()
        .any(|start| text.starts_with(start))
}

fn is_pending_in_json(text: &str, key: &str, value: &str) -> bool {
    let is_accepted = is_accepted(value);
    if !is_accepted && !is_pending_value(value, true) || is_steady(text, value) {
        return false;
    }
    // An order or a ticket may be pending for days; the agent does not wait for it.
    !((is_accepted || value.eq_ignore_ascii_case("pending"))
        && text.starts_with('{')
        && is_record(text)
        && !ends_with_word(key, "phase"))
}

fn is_accepted(value: &str) -> bool {
    ACCEPTED_WORDS
        .iter()
        .any(|word| word.eq_ignore_ascii_case(value))
}

/// Whether JSON describes an object with more than its status.
fn is_record(text: &str) -> bool {
    text.len() > PENDING_RECORD_BYTES_MAX
        || ["\": [", "\":[", "': ["]
            .iter()
            .any(|list| text.contains(list))
}

/// Whether a state "running" is the one in which something stays: a container or a service
/// that is up.
fn is_steady(text: &str, value: &str) -> bool {
    let is_up = || {
        json_entries(text).any(|(key, value)| match key {
            "Running" | "running" => begins_with_word(value, "true"),
            "uptime" | "Pid" | "pid" => true,
            _ => false,
        })
    };
    value.eq_ignore_ascii_case("running") && is_up()
}

/// `"building": true`, `"done": false`, `'isReady': False`.
fn is_pending_flag(text: &str, key: &str, value: &str) -> bool {
    const FLAGS: &[&str] = &["building", "pending", "processing", "progress"];
    const ENDS: &[&str] = &["done", "ready", "complete", "completed", "finished"];
    let is_one_of = |flags: &[&str]| flags.iter().any(|flag| ends_with_word(key, flag));
    begins_with_word(value, "true") && is_one_of(FLAGS)
        || begins_with_word(value, "false")
            && (key == "done" || !is_record(text) && is_one_of(ENDS) && !is_task(text))
}

/// Whether JSON describes a task on a list, which is complete when a person says so.
fn is_task(text: &str) -> bool {
    json_entries(text).any(|(key, _)| {
        ["title", "task", "text", "todo", "due", "assignee"]
            .iter()
            .any(|word| ends_with_word(key, word))
    })
}

fn begins_with_word(value: &str, word: &str) -> bool {
    value
        .get(..word.len())
        .is_some_and(|start| start.eq_ignore_ascii_case(word))
}

fn is_pending_text(text: &str) -> bool {
    let is_one_line = !text.contains('\n');
    let is_short = text.len() <= SHORT_BYTES_MAX;
    if is_short && (is_one_line && begins_with_pending(text) || says_pending(text)) {
        return true;
    }
    // A column of its own under a heading is in capital letters.
    let is_column = |line: &str| {
        is_short && !line.bytes().any(|byte| byte.is_ascii_lowercase()) && {
            is_pending_value(line.trim(), false)
        }
    };
    text.lines().any(|line| {
        is_column(line)
            || labelled_status(line)
                .is_some_and(|value| is_pending_value(value, true) || is_accepted(value))
            || !line.contains("active (running)")
                && line_cells(line, is_one_line).any(|cell| is_pending_value(cell, false))
    }) || is_queue_of_jobs(text)
}

/// The value after a label that names a status: `Status: transcribing`.
fn labelled_status(line: &str) -> Option<&str> {
    let (label, value) = line.split_once(": ")?;
    let is_status = ["status", "state", "phase"]
        .iter()
        .any(|word| ends_with_word(label, word));
    is_status.then(|| value.trim_matches(|c: char| c.is_whitespace() || "\"'.,;…".contains(c)))
}

/// A table of Slurm, which has codes for states.
fn is_queue_of_jobs(text: &str) -> bool {
    let mut lines = text.lines();
    let is_queue = lines
        .next()
        .is_some_and(|heading| heading.trim_start().starts_with("JOBID"));
    is_queue
        && lines
            .flat_map(str::split_whitespace)
            .any(|cell| matches!(cell, "PD" | "R" | "CF" | "CG"))
}

/// Whether a short answer opens with a status: `PENDING Priority`, `in_progress 3 / 9`,
/// `Waiting for the rollout`. "Running migrations" is a sentence.
fn begins_with_pending(text: &str) -> bool {
    if text.starts_with("Waiting for ") {
        return true;
    }
    let first = text.split_whitespace().next().unwrap_or_default();
    let is_upper = first
        .bytes()
        .all(|byte| byte.is_ascii_uppercase() || byte == b'_');
    if is_upper {
        is_pending_value(first, false)
    } else {
        PENDING_OPENERS.contains(&first)
    }
}

/// The cells of a line of a table, or the texts around its labels. None if the line is a
/// single cell, which is a sentence, or if it says that all of its parts are ready.
fn line_cells(line: &str, accept_single: bool) -> impl Iterator<Item = &str> {
    let cells = move || {
        line.split(['\t', '|', '(', ')', '<', '>', '='])
            .flat_map(|part| part.split("  "))
            .flat_map(|part| part.split(": "))
            .map(|cell| {
                cell.trim_matches(|c: char| c.is_whitespace() || "\"'.,;*•-[]…{}".contains(c))
            })
            .filter(|cell| !cell.is_empty())
    };
    let is_table = accept_single || cells().nth(1).is_some();
    let is_ready = cells().any(is_full_share);
    cells().filter(move |_| is_table && !is_ready)
}

/// `1/1`: all of them are ready.
fn is_full_share(cell: &str) -> bool {
    cell.split_once('/').is_some_and(|(ready, all)| {
        ready == all && !ready.is_empty() && ready.bytes().all(|byte| byte.is_ascii_digit())
    })
}

/// Whether a value is a state of something under way. `any_activity`: the value is known
/// to be a status, so any participle is one: `Rendering`.
fn is_pending_value(value: &str, any_activity: bool) -> bool {
    if value.is_empty() || value.len() > VALUE_BYTES_MAX {
        return false;
    }
    let mut words: [&str; 6] = [""; 6];
    let mut count = 0;
    for word in name_words(value) {
        let Some(place) = words.get_mut(count) else {
            return false;
        };
        *place = word;
        count += 1;
    }
    let is_one_of = |word: &str, list: &[&str]| list.iter().any(|w| w.eq_ignore_ascii_case(word));
    let is_joined = !value.contains(' ');
    match words.get(..count).unwrap_or_default() {
        [.., before, last]
            if before.eq_ignore_ascii_case("in") && last.eq_ignore_ascii_case("progress") =>
        {
            true
        }
        [only] => {
            is_one_of(only, PENDING_WORDS)
                || any_activity && is_participle(only) && !is_one_of(only, OTHER_ING_WORDS)
        }
        // "Still waiting" does not say that anything is under way.
        [still, state] if still.eq_ignore_ascii_case("still") => {
            is_one_of(state, PENDING_WORDS) && !state.eq_ignore_ascii_case("waiting")
        }
        // `Init:0/1`
        ["Init", rest @ ..] => rest
            .iter()
            .all(|word| word.bytes().all(|byte| byte.is_ascii_digit())),
        [not, ready] if not.eq_ignore_ascii_case("not") => is_one_of(ready, &["ready", "started"]),
        // `pending-install`, `ContainerCreating`, but not "Server running".
        [first, .., last] if is_joined => {
            is_one_of(first, &["pending", "queued", "waiting"])
                || is_one_of(last, PENDING_WORDS)
                || any_activity && is_participle(first) && !is_one_of(first, OTHER_ING_WORDS)
        }
        _ => false,
    }
}

fn is_participle(word: &str) -> bool {
    const WORD_BYTES_MIN: usize = 6;
    let ending = word
        .len()
        .checked_sub(3)
        .and_then(|at| word.as_bytes().get(at..));
    word.len() >= WORD_BYTES_MIN
        && word.is_ascii()
        && ending.is_some_and(|ending| ending.eq_ignore_ascii_case(b"ing"))
}

/// The words of a name in any case: `InProgress`, `IN_PROGRESS`, `in-progress`.
fn name_words(value: &str) -> impl Iterator<Item = &str> {
    let parts = value.split(|c: char| !c.is_alphanumeric());
    parts.filter(|part| !part.is_empty()).flat_map(|part| {
        let mut rest = part;
        std::iter::from_fn(move || {
            let bytes = rest.as_bytes();
            let end = (1..bytes.len()).find(|at| {
                let (before, here) = (bytes.get(at - 1), bytes.get(*at));
                before.is_some_and(u8::is_ascii_lowercase)
                    && here.is_some_and(u8::is_ascii_uppercase)
            });
            let (word, after) = rest.split_at(end.unwrap_or(rest.len()));
            rest = after;
            (!word.is_empty()).then_some(word)
        })
    })
}

fn ends_with_word(key: &str, word: &str) -> bool {
    name_words(key)
        .last()
        .is_some_and(|last| last.eq_ignore_ascii_case(word))
}

/// The keys that hold a status, with their values, in JSON that may be cut off.
fn json_statuses(text: &str) -> impl Iterator<Item = (&str, &str)> {
    const STATUS_KEYS: &[&str] = &["status", "state", "phase", "conclusion", "health"];
    json_entries(text)
        .filter(|(key, _)| STATUS_KEYS.iter().any(|word| ends_with_word(key, word)))
        .filter_map(|(key, value)| {
            let quote = value.chars().next().filter(|c| is_quote(*c))?;
            let inner = value.get(1..)?;
            let end = inner.find(quote)?;
            Some((key, inner.get(..end)?))
        })
}

fn is_quote(c: char) -> bool {
    matches!(c, '"' | '\'')
}

/// The keys of JSON or of a dictionary of Python, each with the text that begins with its
/// value.
fn json_entries(text: &str) -> impl Iterator<Item = (&str, &str)> {
    let mut rest = text;
    std::iter::from_fn(move || {
        loop {
            let quote_at = rest.find(is_quote)?;
            let quote = *rest.as_bytes().get(quote_at)?;
            let string = rest.get(quote_at + 1..)?;
            let end = string_end(string, quote)?;
            let after = string.get(end + 1..)?;
            rest = after;
            if let Some(value) = after.trim_start().strip_prefix(':') {
                return Some((string.get(..end)?, value.trim_start()));
            }
        }
    })
}

/// Where the string ends that begins here, behind its quote.
fn string_end(string: &str, quote: u8) -> Option<usize> {
    let mut is_escaped = false;
    string.bytes().position(|byte| {
        let ends = byte == quote && !is_escaped;
        is_escaped = byte == b'\\' && !is_escaped;
        ends
    })
}

/// Whether an answer says that what was asked about will not go on: a failed state, an
/// exit code other than 0, a traceback. Not if anything in it is still under way.
pub fn is_dead(answer: &str) -> bool {
    let text = sanitize::suffix(answer.trim(), JSON_BYTES_MAX);
    if is_pending(text) || text.contains("retry") {
        return false;
    }
    if DEATH_PHRASES.iter().any(|phrase| text.contains(phrase)) || has_exit_code(text) {
        return true;
    }
    if is_json(text) {
        return json_statuses(text).any(|(_, value)| is_dead_value(value));
    }
    let is_one_line = !text.contains('\n');
    text.lines()
        .any(|line| begins_with_error(line) || line_cells(line, is_one_line).any(is_dead_value))
}

/// `FAILED`, `CREATE_FAILED`, `ROLLBACK_COMPLETE`, `CrashLoopBackOff`.
fn is_dead_value(value: &str) -> bool {
    let is_word = |word: &str| DEAD_WORDS.iter().any(|w| w.eq_ignore_ascii_case(word));
    let mut words = name_words(value);
    value.len() <= VALUE_BYTES_MAX
        && !value.contains(' ')
        && (is_word(value)
            || words
                .next()
                .is_some_and(|first| first.eq_ignore_ascii_case("rollback"))
            || words.last().is_some_and(is_word))
}

fn begins_with_error(line: &str) -> bool {
    let line = line.trim_start();
    ["error:", "fatal:", "fatal error", "exception:"]
        .iter()
        .any(|start| {
            line.get(..start.len())
                .is_some_and(|head| head.eq_ignore_ascii_case(start))
        })
}

/// Whether the text names an exit code other than 0: `exit code 1`, `exited with code 2`,
/// `Exited (137)`, `"exit_code": 1`.
fn has_exit_code(text: &str) -> bool {
    const LABEL_BYTES_MAX: usize = 24;
    let bytes = text.as_bytes();
    let mut exits = memchr::memchr2_iter(b'e', b'E', bytes).filter(|at| {
        bytes
            .get(*at..at + 4)
            .is_some_and(|word| word.eq_ignore_ascii_case(b"exit"))
    });
    exits.any(|at| {
        let label = bytes.get(at + 4..).unwrap_or_default();
        let number_at = label
            .iter()
            .take(LABEL_BYTES_MAX)
            .position(|byte| byte.is_ascii_digit() || *byte == b'\n' || *byte == b'.');
        let number = number_at.and_then(|at| label.get(at..)).unwrap_or_default();
        number
            .iter()
            .take_while(|byte| byte.is_ascii_digit())
            .any(|digit| *digit != b'0')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_under_way_is_recognised_by_its_position() {
        for answer in [
            "CREATE_IN_PROGRESS",
            "Creating",
            "Transcoding",
            "PENDING Priority",
            "in_progress 12 / 100",
            "running  sent=1200  ok=1200",
            "{\"job\": \"exp-77\", \"state\": \"processing\", \"url\": null}",
            "{\"TrainingJobStatus\": \"InProgress\", \"SecondaryStatus\": \"Training\"}",
            "{\"status\": {\"state\": \"PENDING\"}}",
            "{\"id\": 1, \"readyState\":\"BUILDING\"}",
            "[{\"name\": \"build\", \"state\": \"PENDING\"}]",
            "NAME    READY   STATUS    RESTARTS   AGE\napi-x   0/1     Pending   0          4s",
            "NAME    READY   STATUS              RESTARTS\napi-x   0/1     ContainerCreating   0",
            "NAME   READY   STATUS     RESTARTS   AGE\ndb-0   0/1     Init:0/1   0          9s",
            "build\tpending\t0\thttps://ci.example/1\nlint\tpass\t41s\thttps://ci.example/2",
            "NAME: mon\nSTATUS: pending-install\nREVISION: 1",
            "shop-db-1 Up 3 seconds (health: starting)",
            "stage build: finished with exit code 0\nstage package: running",
            "<status>running</status>",
            "Waiting for deployment \"api\" rollout to finish: 0 of 1 updated replicas",
            "Still running...",
            "{\"render\": \"r-51\", \"状態\": \"処理中\"}",
            "任务正在排队",
            "     State\n----------\n   RUNNING",
            "JOBID PARTITION NAME USER ST TIME\n4411 gpu train me PD 0:00",
            "Health Status:  Progressing\nSync Status: Synced",
            "Build 4 is still running (stage 2 of 5)",
            "{\"building\": true, \"result\": null}",
            "{\"name\": \"operations/1\", \"done\": false}",
            "Upload: Processing your file… 42 %",
            "{'id': 'j-41', 'status': 'processing', 'note': \"it's long\"}",
            "{'state': 'Transcoding'}",
            "Still processing, please check back later.",
            "Your export is currently running.",
            "The build is running",
            "Render r1 is in the queue (position 4)",
            "Not ready yet",
            "The transcript isn't available yet.",
            "rollout has not finished (1 old replica is pending termination)",
            "Import running: please wait",
            "The deployment is still in progress, 3 of 5 instances updated.",
            "{\"name\": \"docs\", \"ready\": false}",
            "{\"batch\": 7, \"isComplete\": false, \"errors\": 0}",
            "{'finished': False}",
            "{\"run\": 9, \"status\": \"scheduled\"}",
            "SUBMITTED",
            "Status: accepted",
        ] {
            assert!(is_pending(answer), "{answer}");
            assert!(!is_dead(answer), "{answer}");
        }
    }

    #[test]
    fn a_text_with_the_word_has_no_status() {
        for answer in [
            "",
            "completed",
            "CREATE_COMPLETE",
            "Running migrations:\n  No migrations to apply.",
            "running 12 tests\ntest a ... ok\n\ntest result: ok. 12 passed; 0 failed",
            "     Running unittests src/lib.rs (target/debug/deps/tab-6f1d3c2b9a11e0f4)",
            "The server is running on port 3000",
            "INFO: Server running",
            "still waiting",
            "  main\n  pending\n  release",
            "NAME    READY   STATUS    RESTARTS   AGE\napi-x   1/1     Running   0          4s",
            "{\"name\": \"pending\", \"status\": \"done\"}",
            "{\"status\": \"missing\"}",
            "diff --git a/x b/x\n+  status: pending",
            "{\"order\": 1, \"status\": \"pending\", \"items\": [{\"name\": \"lamp\"}]}",
            "Command running in background with ID: bash_1",
            "{\"building\": false, \"done\": true}",
            "Nobody knows whether it is still there",
            "JOBID PARTITION NAME USER ST TIME",
            "Processing complete: 100 %",
            "     Active: active (running)",
            "{\"Status\":\"running\",\"Running\":true,\"ExitCode\":0}",
            "nginx is running",
            "submitted",
            "The endpoint is not implemented yet",
            "Not supported yet.",
            "{\"id\": 1, \"title\": \"Buy milk\", \"completed\": false}",
            "{\"order\": 1, \"status\": \"accepted\", \"items\": [{\"name\": \"lamp\"}]}",
            "{\"ready\": true}",
            "I am not sure about it",
        ] {
            assert!(!is_pending(answer), "{answer}");
        }
    }

    #[test]
    fn something_dead_is_recognised() {
        for answer in [
            "Traceback (most recent call last):\n  File \"a.py\", line 1\nKeyError: 'x'",
            "ROLLBACK_COMPLETE\tThe following resource(s) failed to create: [Nat].",
            "importer: Exited (139) 2 minutes ago",
            "{\"status\": \"FAILED\", \"exit_code\": 137}",
            "<status>failed</status>\n<exit_code>1</exit_code>",
            "web-0   0/1     ImagePullBackOff   0          2m",
            "completed\nProcess exited with code 2",
            "CREATE_FAILED",
            "error: no space left on device",
        ] {
            assert!(is_dead(answer), "{answer}");
        }
    }

    #[test]
    fn something_that_goes_on_or_has_ended_well_is_not_dead() {
        for answer in [
            "stage build: finished with exit code 0\nstage test: finished with exit code 0",
            "{\"current\": {\"state\": \"RUNNING\"}, \"previous\": {\"state\": \"FAILED\"}}",
            "running  sent=1200  ok=1200  errors=1  failed assertions=0",
            "attempt 1/5: error: connection reset by peer, retrying in 20s",
            "epoch 3/12 loss 2.31",
            "completed",
            "",
        ] {
            assert!(!is_dead(answer), "{answer}");
        }
    }

    #[test]
    fn every_status_word_is_a_candidate() {
        assert!(CANDIDATES.is_some());
        for word in PENDING_WORDS.iter().chain(ACCEPTED_WORDS) {
            assert!(has_candidate(word), "{word}");
        }
    }
}
