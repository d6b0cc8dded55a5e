use std::{
    collections::{BTreeMap, btree_map::Entry},
    fs::File,
    io::{BufReader, Read},
    path::Path,
};

use serde::Deserialize;
use thiserror::Error;

use crate::{
    cli::{
        Failure,
        trace::{self, input::Lines, line},
    },
    domain::{IdError, SessionId},
};

/// What is known of sessions, by a person's word.
pub(super) type Labels = BTreeMap<SessionId, Label>;

/// What a person says of a session.
#[derive(Debug)]
pub(super) struct Label {
    pub looping: bool,
    /// Where the loop begins.
    pub first_loop_event: Option<u32>,
    pub kind: Option<String>,
    pub why: Option<String>,
    /// Where the label stands in its file.
    line: u64,
}

/// A label as it is written. What else stands there is the labeller's own.
#[derive(Deserialize)]
struct Written {
    session_id: String,
    #[serde(rename = "loop")]
    looping: bool,
    first_loop_event: Option<u32>,
    kind: Option<String>,
    why: Option<String>,
}

/// Why a line is not a label.
#[derive(Debug, Error)]
enum Fault {
    #[error(transparent)]
    Unreadable(#[from] line::Fault),
    #[error("expected an object with session_id and loop")]
    NotAnObject,
    #[error("session_id: {0}")]
    Id(#[from] IdError),
    #[error("the session is labelled otherwise in line {0}")]
    Contradicts(u64),
}

/// Reads all labels. One that cannot be read would quietly change every figure,
/// so the first ends it.
pub(super) fn read(path: &Path) -> Result<Labels, Failure> {
    let file = File::open(path).map_err(|error| trace::unreadable(path, &error))?;
    parse(path, file)
}

fn parse(path: &Path, file: impl Read) -> Result<Labels, Failure> {
    let mut labels = Labels::new();
    let mut lines = Lines::new(BufReader::new(file));
    let unreadable = |error| trace::unreadable(path, &error);
    while let Some((number, line)) = lines.next().map_err(unreadable)? {
        let label = line
            .map_err(Fault::from)
            .and_then(|line| Label::parse(line, number));
        label
            .and_then(|(id, label)| add(&mut labels, id, label))
            .map_err(|fault| Failure::usage(trace::complaint(path, number, &fault)))?;
    }
    Ok(labels)
}

/// The same label twice is one: files of labels are put together.
fn add(labels: &mut Labels, id: SessionId, label: Label) -> Result<(), Fault> {
    match labels.entry(id) {
        Entry::Vacant(place) => {
            place.insert(label);
            Ok(())
        }
        Entry::Occupied(first) if first.get().agrees(&label) => Ok(()),
        Entry::Occupied(first) => Err(Fault::Contradicts(first.get().line)),
    }
}

impl Label {
    fn parse(json: &[u8], line: u64) -> Result<(SessionId, Self), Fault> {
        // serde takes a list for a struct as well, by position.
        if !json.starts_with(b"{") {
            return Err(Fault::NotAnObject);
        }
        let Written {
            session_id,
            looping,
            first_loop_event,
            kind,
            why,
        } = serde_json::from_slice(json).map_err(line::Fault::from)?;
        let label = Self {
            looping,
            first_loop_event,
            kind,
            why,
            line,
        };
        Ok((SessionId::parse(&session_id)?, label))
    }

    fn agrees(&self, other: &Self) -> bool {
        (self.looping, self.first_loop_event) == (other.looping, other.first_loop_event)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(file: &str, expected: &str) {
        let told = match parse(Path::new("l"), file.as_bytes()) {
            Ok(labels) => labels
                .iter()
                .map(|(id, label)| format!("{id} {} {:?};", label.looping, label.first_loop_event))
                .collect(),
            Err(failure) => failure.to_string(),
        };
        assert_eq!(told, expected);
    }

    #[test]
    fn a_label_needs_a_session_and_a_word() {
        check("", "");
        check(r#"{"session_id":"s","loop":false}"#, "s false None;");
        check(
            r#"{"session_id":"s","loop":true,"first_loop_event":3,"mine":[1]}"#,
            "s true Some(3);",
        );
        check(
            r#"{"session_id":"s","loop":true,"first_loop_event":null,"why":null}"#,
            "s true None;",
        );
        check(
            r#"{"loop":true}"#,
            "l:1: missing field `session_id` (column 13)",
        );
        check(
            "[\"s\",true]",
            "l:1: expected an object with session_id and loop",
        );
        check(
            "\n{\"session_id\":\"a b\",\"loop\":true}",
            "l:2: session_id: must be printable and without white space",
        );
    }

    #[test]
    fn an_event_is_counted_from_nought() {
        check(
            r#"{"session_id":"s","loop":true,"first_loop_event":-1}"#,
            "l:1: invalid value: integer `-1`, expected u32 (column 51)",
        );
    }

    #[test]
    fn a_session_is_labelled_once() {
        let label = "{\"session_id\":\"s\",\"loop\":true}\n";
        check(&label.repeat(2), "s true None;");
        check(
            &(label.to_owned() + &label.replace("true", "false")),
            "l:2: the session is labelled otherwise in line 1",
        );
    }
}
