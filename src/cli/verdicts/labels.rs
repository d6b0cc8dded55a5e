//! `unstuck verdicts --labels`: the ratings of operators as labels of sessions, in the form
//! that `unstuck eval` reads.

use std::{
    collections::BTreeMap,
    fs,
    io::{self, Write},
    path::Path,
};

use serde::Serialize;

use crate::{
    cli::{
        CliError,
        output::{map_write_error, to_json_line},
        text_format::pluralize,
        verdict::describe_verdict,
    },
    pb::{Rating, Verdict},
};

/// A line of the file.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct SessionLabel {
    session_id: String,
    #[serde(rename = "loop")]
    looping: bool,
    /// The event at which the loop starts.
    #[serde(skip_serializing_if = "Option::is_none")]
    first_loop_event: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    kind: Option<String>,
    why: String,
    labelled_by: String,
}

/// The rated verdicts by session.
#[derive(Default)]
pub(super) struct RatedSessions {
    sessions: BTreeMap<String, Vec<Verdict>>,
    verdicts: u64,
}

impl RatedSessions {
    /// Adds a verdict. One that is not rated is ignored.
    pub fn add(&mut self, verdict: Verdict) {
        if verdict.feedback.is_none() {
            return;
        }
        self.verdicts += 1;
        let session = self.sessions.entry(verdict.session_id.clone());
        session.or_default().push(verdict);
    }

    /// Writes one label per session to a file, or to standard output for `-`.
    pub fn write(&self, file: &Path) -> Result<(), CliError> {
        let mut text = String::new();
        for (session, verdicts) in &self.sessions {
            let label = SessionLabel::new(session, verdicts);
            text += &to_json_line(&label).map_err(CliError::failed)?;
            text += "\n";
        }
        if file == Path::new("-") {
            return map_write_error(io::stdout().lock().write_all(text.as_bytes()));
        }
        let cannot_write = |error| CliError::failed(format!("cannot write {file:?}: {error}"));
        fs::write(file, text).map_err(cannot_write)?;
        let sessions = u64::try_from(self.sessions.len()).unwrap_or(u64::MAX);
        anstream::eprintln!(
            "unstuck: {} from {} in {}",
            pluralize(sessions, "label"),
            pluralize(self.verdicts, "rated verdict"),
            file.display()
        );
        Ok(())
    }
}

impl SessionLabel {
    /// One right verdict makes a session a loop, from the first event of the earliest right
    /// one, whatever false alarms there were beside it.
    fn new(session: &str, verdicts: &[Verdict]) -> Self {
        let has_rating = |verdict: &&Verdict, rating| {
            let feedback = verdict.feedback.as_ref();
            feedback.is_some_and(|feedback| feedback.rating() == rating)
        };
        let right = || verdicts.iter().filter(|it| has_rating(it, Rating::Right));
        // Ids sort by time.
        let earliest = right().min_by(|a, b| a.verdict_id.cmp(&b.verdict_id));
        let described = earliest.or(verdicts.first());
        let why = described.map(|verdict| {
            let reason = verdict.feedback.as_ref().map(|feedback| &feedback.reason);
            match reason {
                Some(reason) if !reason.is_empty() => reason.clone(),
                _ => describe_verdict(verdict),
            }
        });
        let operators = verdicts.iter().filter_map(|verdict| {
            let feedback = verdict.feedback.as_ref()?;
            Some(feedback.operator.as_str())
        });
        let operators: std::collections::BTreeSet<&str> = operators.collect();
        Self {
            session_id: session.to_owned(),
            looping: earliest.is_some(),
            first_loop_event: right().filter_map(first_event).min(),
            kind: earliest.map(|verdict| verdict.detector.clone()),
            why: why.unwrap_or_default(),
            labelled_by: operators.into_iter().collect::<Vec<_>>().join(", "),
        }
    }
}

/// The first event that a verdict cites, or on which it was issued.
fn first_event(verdict: &Verdict) -> Option<i32> {
    let evidence = verdict.evidence.as_ref();
    let cited = evidence.and_then(|evidence| evidence.event_indexes.first().copied());
    let index = cited.unwrap_or(verdict.event_index);
    (index >= 0).then_some(index)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pb::{Evidence, Feedback};

    fn rated(id: &str, rating: Rating, first: i32) -> Verdict {
        Verdict {
            verdict_id: id.to_owned(),
            session_id: "s".to_owned(),
            detector: format!("detector-{id}"),
            pattern: format!("pattern {id}"),
            event_index: first + 2,
            evidence: Some(Evidence {
                event_indexes: vec![first, first + 1],
                ..Default::default()
            }),
            feedback: Some(Feedback {
                rating: rating.into(),
                operator: "kim".to_owned(),
                ..Default::default()
            }),
            ..Default::default()
        }
    }

    #[test]
    fn one_right_verdict_makes_a_loop_from_its_first_event() {
        let verdicts = [
            rated("1", Rating::FalseAlarm, 0),
            rated("2", Rating::Right, 7),
            rated("3", Rating::Right, 9),
        ];
        let label = SessionLabel::new("s", &verdicts);
        assert!(label.looping);
        assert_eq!(label.first_loop_event, Some(7));
        assert_eq!(label.kind.as_deref(), Some("detector-2"));
        assert_eq!((&*label.why, &*label.labelled_by), ("pattern 2", "kim"));
    }

    #[test]
    fn false_alarms_alone_make_a_session_without_a_loop() {
        let label = SessionLabel::new("s", &[rated("1", Rating::FalseAlarm, 3)]);
        assert!(!label.looping);
        assert_eq!((label.first_loop_event, label.kind), (None, None));
    }
}
