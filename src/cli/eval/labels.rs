//! Reads the labels of sessions.

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
        CliError,
        trace::{self, line},
    },
    domain::{IdError, SessionId},
    ingest::NdjsonReader,
};

/// The labels by session.
pub(super) type GroundTruth = BTreeMap<SessionId, Label>;

/// A person's judgement of a session.
#[derive(Debug)]
pub(super) struct Label {
    pub looping: bool,
    /// The index of the event at which the loop starts.
    pub first_loop_event: Option<u32>,
    pub kind: Option<String>,
    pub why: Option<String>,
    /// The line number of the label.
    line: u64,
}

/// A label in the file. Other fields are ignored.
#[derive(Deserialize)]
struct LabelRecord {
    session_id: String,
    #[serde(rename = "loop")]
    looping: bool,
    first_loop_event: Option<u32>,
    kind: Option<String>,
    why: Option<String>,
}

/// Why a line is not a valid label.
#[derive(Debug, Error)]
enum LabelLineError {
    #[error(transparent)]
    Unreadable(#[from] line::TraceLineError),
    #[error("expected an object with session_id and loop")]
    NotAnObject,
    #[error("session_id: {0}")]
    Id(#[from] IdError),
    #[error("the session has a different label in line {0}")]
    Conflict(u64),
}

/// Reads all labels. Fails at the first invalid line, because skipping it would
/// silently change every metric.
pub(super) fn read_labels(path: &Path) -> Result<GroundTruth, CliError> {
    let file = File::open(path).map_err(|error| trace::read_error(path, &error))?;
    parse_labels(path, file)
}

fn parse_labels(path: &Path, file: impl Read) -> Result<GroundTruth, CliError> {
    let mut labels = GroundTruth::new();
    let mut lines = NdjsonReader::new(BufReader::new(file));
    while let Some((number, line)) = lines
        .next_line()
        .map_err(|error| trace::read_error(path, &error))?
    {
        line.map_err(|error| LabelLineError::from(line::TraceLineError::from(error)))
            .and_then(|line| Label::parse(line, number))
            .and_then(|(id, label)| insert_label(&mut labels, id, label))
            .map_err(|error| CliError::usage(trace::format_line_error(path, number, &error)))?;
    }
    Ok(labels)
}

/// Accepts the same label twice, because label files are concatenated.
fn insert_label(
    labels: &mut GroundTruth,
    id: SessionId,
    label: Label,
) -> Result<(), LabelLineError> {
    match labels.entry(id) {
        Entry::Vacant(vacant) => {
            vacant.insert(label);
            Ok(())
        }
        Entry::Occupied(existing) if existing.get().agrees_with(&label) => Ok(()),
        Entry::Occupied(existing) => Err(LabelLineError::Conflict(existing.get().line)),
    }
}

impl Label {
    fn parse(json: &[u8], line: u64) -> Result<(SessionId, Self), LabelLineError> {
        // serde also accepts a list for a struct, by position.
        if !json.starts_with(b"{") {
            return Err(LabelLineError::NotAnObject);
        }
        let LabelRecord {
            session_id,
            looping,
            first_loop_event,
            kind,
            why,
        } = serde_json::from_slice(json).map_err(line::TraceLineError::from)?;
        let label = Self {
            looping,
            first_loop_event,
            kind,
            why,
            line,
        };
        Ok((SessionId::parse(&session_id)?, label))
    }

    fn agrees_with(&self, other: &Self) -> bool {
        (self.looping, self.first_loop_event) == (other.looping, other.first_loop_event)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(file: &str, expected: &str) {
        let result = match parse_labels(Path::new("l"), file.as_bytes()) {
            Ok(labels) => labels
                .iter()
                .map(|(id, label)| format!("{id} {} {:?};", label.looping, label.first_loop_event))
                .collect(),
            Err(failure) => failure.to_string(),
        };
        assert_eq!(result, expected);
    }

    #[test]
    fn a_label_needs_a_session_and_a_loop_flag() {
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
    fn an_event_index_is_not_negative() {
        check(
            r#"{"session_id":"s","loop":true,"first_loop_event":-1}"#,
            "l:1: invalid value: integer `-1`, expected u32 (column 51)",
        );
    }

    #[test]
    fn a_session_with_two_different_labels_is_rejected() {
        let label = "{\"session_id\":\"s\",\"loop\":true}\n";
        check(&label.repeat(2), "s true None;");
        check(
            &(label.to_owned() + &label.replace("true", "false")),
            "l:2: the session has a different label in line 1",
        );
    }
}
