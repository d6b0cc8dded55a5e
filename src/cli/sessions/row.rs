//! A row of the session table.

use std::cmp::{Ordering, Reverse};

use jiff::Timestamp;

use crate::{
    cli::{
        grid::{Cell, Column},
        style::{self, BOLD, DIM, PLAIN, RED},
        text_format::{abbreviate_number, format_labels, format_usd, sparkline},
        time_format,
        verdict::action_name,
    },
    pb::{Action, Session, SessionStatus, Verdict, Wasted},
};

pub(in crate::cli) const COLUMNS: [Column; 12] = [
    Column::left("STATUS"),
    Column::left("SESSION").shrink_to(16),
    Column::left("LABELS").shrink_to(16).drop_priority(5),
    Column::left("DETECTOR").shrink_to(12),
    Column::left("ACTION"),
    Column::left("TREND").shrink_to_end(8).drop_priority(1),
    Column::right("EVENTS").drop_priority(4),
    Column::right("WASTED"),
    Column::right("TOKENS").drop_priority(6),
    Column::right("COST").drop_priority(2),
    Column::right("AGE").drop_priority(3),
    Column::right("LAST SEEN"),
];

/// The last column, in a cluster.
pub(in crate::cli) const REPLICA: Column = Column::left("REPLICA").shrink_to(12).drop_priority(7);

/// The fields of a session that the table shows.
pub(in crate::cli) struct SessionTableRow {
    id: String,
    status: SessionStatus,
    labels: String,
    detector: String,
    action: Action,
    trend: Vec<f64>,
    events: i32,
    wasted: Wasted,
    created: Option<pbjson_types::Timestamp>,
    last_event: Option<pbjson_types::Timestamp>,
    snoozed: bool,
    /// Events after its termination.
    disobeyed: i32,
    /// Empty without a cluster.
    replica: String,
}

impl SessionTableRow {
    pub fn new(session: &Session) -> Self {
        let last = session
            .termination
            .as_ref()
            .or(session.last_verdicts.last());
        Self {
            id: session.session_id.clone(),
            status: session.status(),
            labels: render_labels(session),
            detector: last.map(|last| last.detector.clone()).unwrap_or_default(),
            action: last.map(Verdict::action).unwrap_or_default(),
            trend: session.trend_samples.clone(),
            events: session.events,
            wasted: session.wasted.unwrap_or_default(),
            created: session.create_time,
            last_event: session.last_event_time,
            snoozed: session.snoozed_until.is_some(),
            disobeyed: session.disobeyed.unwrap_or_default().events,
            replica: session.replica.clone(),
        }
    }

    /// The replica that has it; empty without a cluster.
    pub fn replica(&self) -> &str {
        &self.replica
    }

    pub fn id(&self) -> &str {
        &self.id
    }

    pub fn status(&self) -> SessionStatus {
        self.status
    }

    /// Whether it sent events after its termination.
    pub fn is_disobedient(&self) -> bool {
        self.disobeyed > 0
    }

    pub fn wasted(&self) -> Wasted {
        self.wasted
    }

    /// Orders looping sessions and those that went on after their termination first, by
    /// action, trend and waste; then active ones; then closed ones.
    pub fn cmp_worst_first(&self, other: &Self) -> Ordering {
        let sort_key = |row: &Self| {
            let status = match row.status {
                SessionStatus::Looping | SessionStatus::Quarantined => 0,
                // It is still running.
                _ if row.disobeyed > 0 => 0,
                SessionStatus::Active => 1,
                SessionStatus::Terminated => 2,
                SessionStatus::Ended | SessionStatus::Unspecified => 3,
            };
            // The last action of an active session is about a loop that is over.
            let action = match row.status {
                SessionStatus::Looping => i32::from(row.action),
                SessionStatus::Terminated if row.disobeyed > 0 => i32::from(Action::Terminate),
                _ => 0,
            };
            let trend = row.trend.last().copied().unwrap_or_default();
            let percent = (trend * 100.0) as i32;
            (status, Reverse((action, percent, row.wasted.events)))
        };
        sort_key(self).cmp(&sort_key(other))
    }

    pub fn cmp_cost_first(&self, other: &Self) -> Ordering {
        let by_cost = other.wasted.cost_usd.total_cmp(&self.wasted.cost_usd);
        by_cost.then_with(|| other.wasted.tokens.cmp(&self.wasted.tokens))
    }

    pub fn cmp_oldest_first(&self, other: &Self) -> Ordering {
        time_key(self.created.as_ref()).cmp(&time_key(other.created.as_ref()))
    }

    pub fn cmp_last_seen_first(&self, other: &Self) -> Ordering {
        time_key(other.last_event.as_ref()).cmp(&time_key(self.last_event.as_ref()))
    }

    pub fn render_cells(&self, now: Timestamp) -> Vec<Cell> {
        // A closed session is dimmed; the verdict stands out only while it applies.
        let is_closed = matches!(
            self.status,
            SessionStatus::Ended | SessionStatus::Unspecified
        );
        let is_stuck = matches!(
            self.status,
            SessionStatus::Looping | SessionStatus::Terminated
        );
        let text_style = if is_closed { DIM } else { PLAIN };
        let verdict_style = if is_stuck { text_style } else { DIM };
        let status = Cell::new(status_name(self.status), style::status_style(self.status));
        // A session without a verdict has no action.
        let action = match &*self.detector {
            "" => Cell::default(),
            _ if is_stuck => Cell::new(action_name(self.action), style::action_style(self.action)),
            _ => Cell::new(action_name(self.action), DIM),
        };
        let id_style = match self.status {
            SessionStatus::Looping => BOLD,
            _ => text_style,
        };
        // The columns, in the order of their titles.
        let (created, last_event) = (&self.created, &self.last_event);
        let age = time_format::format_age(created.as_ref(), now);
        let last_event_age = time_format::format_age(last_event.as_ref(), now);
        vec![
            match self.snoozed {
                _ if self.disobeyed > 0 => status.with_literal(" !", RED),
                true => status.with_literal(" z", DIM),
                false => status,
            },
            Cell::new(&self.id, id_style),
            Cell::new(&self.labels, DIM),
            Cell::new(&self.detector, verdict_style),
            action,
            Cell::new(
                sparkline(self.trend.iter().copied()),
                style::status_style(self.status),
            ),
            Cell::new(abbreviate_number(self.events), text_style),
            Cell::new(format_nonzero(self.wasted.events), text_style),
            Cell::new(format_nonzero(self.wasted.tokens), text_style),
            Cell::new(self.format_cost(), text_style),
            Cell::new(age, DIM),
            Cell::new(last_event_age, DIM),
        ]
    }

    fn format_cost(&self) -> String {
        match self.wasted.cost_usd {
            usd if usd > 0.0 => format_usd(usd),
            _ => String::new(),
        }
    }
}

/// Orders times; a session without events is the oldest.
fn time_key(time: Option<&pbjson_types::Timestamp>) -> (i64, i32) {
    time.map_or((0, 0), |time| (time.seconds, time.nanos))
}

/// Empty for zero, so that other numbers stand out.
fn format_nonzero(number: i32) -> String {
    match number {
        ..=0 => String::new(),
        number => abbreviate_number(number),
    }
}

/// The labels, and the number of agents if there are several.
fn render_labels(session: &Session) -> String {
    let mut labels = format_labels(&session.labels);
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
