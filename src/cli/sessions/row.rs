use std::cmp::Reverse;

use jiff::Timestamp;

use crate::{
    cli::{
        clock,
        grid::{Cell, Column},
        style::{self, BOLD, DIM, PLAIN},
        verdict::action_name,
        words::{money, short, spark},
    },
    pb::{Action, Session, SessionStatus, Verdict, Wasted},
};

pub(in crate::cli) const COLUMNS: [Column; 12] = [
    Column::left("STATUS"),
    Column::left("SESSION").cut_to(16),
    Column::left("LABELS").cut_to(16).goes(5),
    Column::left("DETECTOR").cut_to(12),
    Column::left("ACTION"),
    Column::left("TREND").cut_to_last(8).goes(1),
    Column::right("EVENTS").goes(4),
    Column::right("WASTED"),
    Column::right("TOKENS").goes(6),
    Column::right("COST").goes(2),
    Column::right("AGE").goes(3),
    Column::right("HEARD"),
];

/// A session in the table: what of it is shown, and no more.
pub(in crate::cli) struct Row {
    id: String,
    status: SessionStatus,
    who: String,
    detector: String,
    action: Action,
    trend: Vec<f64>,
    events: i32,
    wasted: Wasted,
    created: Option<pbjson_types::Timestamp>,
    heard: Option<pbjson_types::Timestamp>,
    snoozed: bool,
}

impl Row {
    pub fn new(session: &Session) -> Self {
        let last = session.last_verdicts.last();
        let last = session.termination.as_ref().or(last);
        Self {
            id: session.session_id.clone(),
            status: session.status(),
            who: who(session),
            detector: last.map(|last| last.detector.clone()).unwrap_or_default(),
            action: last.map(Verdict::action).unwrap_or_default(),
            trend: session.trend_samples.clone(),
            events: session.events,
            wasted: session.wasted.unwrap_or_default(),
            created: session.create_time,
            heard: session.last_event_time,
            snoozed: session.snoozed_until.is_some(),
        }
    }

    pub fn status(&self) -> SessionStatus {
        self.status
    }

    pub fn wasted(&self) -> Wasted {
        self.wasted
    }

    /// Those that loop, by what was asked for, how chronic it is and what it
    /// has cost; then those that may loop next; then what is over.
    pub fn worst_first(&self, other: &Self) -> std::cmp::Ordering {
        let badness = |row: &Self| {
            let status = match row.status {
                SessionStatus::Looping | SessionStatus::Quarantined => 0,
                SessionStatus::Active => 1,
                SessionStatus::Terminated => 2,
                SessionStatus::Ended | SessionStatus::Unspecified => 3,
            };
            // Of an active session the action is a matter of the past.
            let action = match row.status {
                SessionStatus::Looping => i32::from(row.action),
                _ => 0,
            };
            let trend = row.trend.last().copied().unwrap_or_default();
            let percent = (trend * 100.0) as i32;
            (status, Reverse((action, percent, row.wasted.events)))
        };
        let ids = || self.id.cmp(&other.id);
        badness(self).cmp(&badness(other)).then_with(ids)
    }

    pub fn cells(&self, now: Timestamp) -> Vec<Cell> {
        let over = matches!(
            self.status,
            SessionStatus::Ended | SessionStatus::Unspecified
        );
        let stuck = matches!(
            self.status,
            SessionStatus::Looping | SessionStatus::Terminated
        );
        let text = if over { DIM } else { PLAIN };
        let told = if stuck { text } else { DIM };
        let status = Cell::new(status_name(self.status), style::of_status(self.status));
        let action = match &*self.detector {
            "" => Cell::default(),
            _ if stuck => Cell::new(action_name(self.action), style::of_action(self.action)),
            _ => Cell::new(action_name(self.action), DIM),
        };
        let id = match self.status {
            SessionStatus::Looping => BOLD,
            _ => text,
        };
        let (age, heard) = (&self.created, &self.heard);
        let age = clock::age(age.as_ref(), now);
        let heard = clock::age(heard.as_ref(), now);
        vec![
            if self.snoozed {
                status.and(" z", DIM)
            } else {
                status
            },
            Cell::new(&self.id, id),
            Cell::new(&self.who, DIM),
            Cell::new(&self.detector, told),
            action,
            Cell::new(
                spark(self.trend.iter().copied()),
                style::of_status(self.status),
            ),
            Cell::new(short(self.events), text),
            Cell::new(number(self.wasted.events), text),
            Cell::new(number(self.wasted.tokens), text),
            Cell::new(self.cost(), text),
            Cell::new(age, DIM),
            Cell::new(heard, DIM),
        ]
    }

    fn cost(&self) -> String {
        match self.wasted.cost_usd {
            usd if usd > 0.0 => money(usd),
            _ => String::new(),
        }
    }
}

/// Nothing is shown as nothing: the eye finds what is there.
fn number(number: i32) -> String {
    match number {
        ..=0 => String::new(),
        number => short(number),
    }
}

/// Its labels, and how many agents act in it where there are several.
fn who(session: &Session) -> String {
    let mut labels: Vec<String> = session
        .labels
        .iter()
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    labels.sort_unstable();
    if session.agents > 1 {
        labels.push(format!("{} agents", session.agents));
    }
    labels.join(" ")
}

pub(in crate::cli) fn status_name(status: SessionStatus) -> &'static str {
    match status {
        SessionStatus::Unspecified => "unknown",
        SessionStatus::Active => "active",
        SessionStatus::Looping => "looping",
        SessionStatus::Terminated => "terminated",
        SessionStatus::Ended => "ended",
        SessionStatus::Quarantined => "quarantined",
    }
}
