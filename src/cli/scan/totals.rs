//! The sums of a scan: by detector, tool, project, agent and week.

use std::{collections::BTreeMap, time::SystemTime};

use jiff::{Timestamp, ToSpan, civil::Date, tz::TimeZone};
use serde::Serialize;

use super::{
    call_notes::CallNotes,
    scanner::ScanResult,
    session_report::{SessionCost, SessionReport},
};
use crate::{
    cli::{
        text_format::sanitize,
        waste::{WasteTotals, serialize_usd},
    },
    domain::Action,
};

/// The sums of a scan, also as JSON.
#[derive(Serialize)]
pub(super) struct ScanSummary {
    pub sessions: u64,
    pub looping_sessions: u64,
    pub terminated_sessions: u64,
    pub events: u64,
    pub calls: u64,
    pub verdicts: u64,
    pub files: u64,
    pub bytes: u64,
    /// Lines and files that could not be read.
    pub bad_lines: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_event: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_event: Option<String>,
    /// The cost of the sessions whose price is known.
    #[serde(serialize_with = "serialize_usd")]
    pub cost_usd: f64,
    pub wasted: WasteTotals,
    pub saved: WasteTotals,
    pub priced: PricedSessions,
    pub prices: &'static str,
    /// Models without a price, with their sessions.
    pub unpriced_models: BTreeMap<String, u64>,
    pub by_agent: BTreeMap<String, ScanGroup>,
    pub by_detector: BTreeMap<String, ScanGroup>,
    pub by_tool: BTreeMap<String, ToolGroup>,
    pub by_project: BTreeMap<String, ScanGroup>,
    /// By the Monday of the week. Sessions without a time are in none.
    pub by_week: BTreeMap<String, ScanGroup>,
    pub failing_calls: u64,
    pub failures: BTreeMap<String, u64>,
    pub rereads: u64,
    pub reread_tokens: u64,
    pub failing_streak: u64,
    pub compactions: u64,
    pub compacted_sessions: u64,
    /// In one session, at most.
    pub compactions_max: u64,
}

/// Sessions by where their cost is from.
#[derive(Default, Serialize)]
pub(super) struct PricedSessions {
    pub exact: u64,
    pub list: u64,
    pub unknown: u64,
}

/// Sessions with something in common.
#[derive(Clone, Copy, Default, Serialize)]
pub(super) struct ScanGroup {
    pub sessions: u64,
    pub looping_sessions: u64,
    #[serde(serialize_with = "serialize_usd")]
    pub cost_usd: f64,
    pub wasted: WasteTotals,
}

impl ScanGroup {
    fn add(&mut self, report: &SessionReport) {
        self.sessions += 1;
        self.cost_usd += report.cost.usd().unwrap_or_default();
        if report.is_looping() {
            self.looping_sessions += 1;
            self.wasted += report.wasted;
        }
    }
}

#[derive(Clone, Copy, Default, Serialize)]
pub(super) struct ToolGroup {
    pub calls: u64,
    pub failing: u64,
    pub looping_sessions: u64,
    pub wasted: WasteTotals,
}

/// The project of a session whose directory is not known.
const UNKNOWN: &str = "unknown";
/// The most weeks that a report shows.
const WEEKS_MAX: usize = 26;

impl ScanSummary {
    pub fn new(result: &ScanResult, prices: &'static str) -> Self {
        // The notes of all sessions.
        let mut notes = CallNotes::default();
        for report in &result.sessions {
            notes.add(&report.notes);
        }
        let times = || result.sessions.iter();
        // The sums begin with 0.
        let mut summary = Self {
            sessions: result.sessions.len() as u64,
            looping_sessions: 0,
            terminated_sessions: 0,
            events: 0,
            calls: notes.calls(),
            verdicts: 0,
            files: result.files,
            bytes: result.bytes,
            bad_lines: result.problem_count,
            first_event: times()
                .filter_map(|report| report.end.first_event)
                .min()
                .and_then(format_time),
            last_event: times()
                .filter_map(|report| report.end.last_event)
                .max()
                .and_then(format_time),
            cost_usd: 0.0,
            wasted: WasteTotals::default(),
            saved: WasteTotals::default(),
            priced: PricedSessions::default(),
            prices,
            unpriced_models: BTreeMap::new(),
            // The groups.
            by_agent: BTreeMap::new(),
            by_detector: BTreeMap::new(),
            by_tool: BTreeMap::new(),
            by_project: BTreeMap::new(),
            by_week: BTreeMap::new(),
            failing_calls: notes.failing(),
            failures: BTreeMap::new(),
            rereads: notes.rereads,
            reread_tokens: notes.reread_tokens,
            failing_streak: notes.failing_streak,
            compactions: 0,
            compacted_sessions: 0,
            compactions_max: 0,
        };
        // The calls of all sessions, then each session.
        for (tool, counts) in &notes.tools {
            let group = summary.by_tool.entry(tool.clone()).or_default();
            (group.calls, group.failing) = (counts.calls, counts.failing);
        }
        summary.failures = notes.failures;
        for report in &result.sessions {
            summary.add(report);
        }
        summary
    }

    /// The last weeks, oldest first. A week without sessions is one too.
    pub fn weeks(&self) -> Vec<(String, ScanGroup)> {
        let known = self
            .by_week
            .first_key_value()
            .zip(self.by_week.last_key_value());
        let Some(((first, _), (last, _))) = known else {
            return Vec::new();
        };
        let mut weeks = Vec::new();
        let mut monday: Option<Date> = last.parse().ok();
        while let Some(date) = monday
            && weeks.len() < WEEKS_MAX
        {
            let week = date.to_string();
            if week < *first {
                break;
            }
            let group = self.by_week.get(&week).copied().unwrap_or_default();
            weeks.push((week, group));
            monday = date.checked_sub(7.days()).ok();
        }
        weeks.reverse();
        weeks
    }

    fn add(&mut self, report: &SessionReport) {
        // The sums of all sessions.
        self.events += report.end.events;
        self.verdicts += report.verdicts.len() as u64;
        self.terminated_sessions += u64::from(report.strongest_action() == Some(Action::Terminate));
        self.compactions += report.end.compactions;
        self.compacted_sessions += u64::from(report.end.compactions > 0);
        self.compactions_max = self.compactions_max.max(report.end.compactions);
        if let Some(model) = &report.unpriced_model {
            *self.unpriced_models.entry(sanitize(model)).or_default() += 1;
        }
        self.cost_usd += report.cost.usd().unwrap_or_default();
        *match report.cost {
            SessionCost::Recorded(_) => &mut self.priced.exact,
            SessionCost::Listed(_) => &mut self.priced.list,
            SessionCost::Unknown => &mut self.priced.unknown,
        } += 1;
        // The groups that every session is part of.
        let project = match report.start.project.as_str() {
            "" => UNKNOWN,
            project => project,
        };
        for (groups, name) in [
            (&mut self.by_agent, report.start.agent),
            (&mut self.by_project, project),
        ] {
            groups.entry(name.to_owned()).or_default().add(report);
        }
        if let Some(week) = report.time().and_then(week_of) {
            self.by_week.entry(week).or_default().add(report);
        }
        // Count the loop, if the session has one.
        let Some(verdict) = report.main_verdict() else {
            return;
        };
        self.looping_sessions += 1;
        self.wasted += report.wasted;
        self.saved += report.saved;
        let detector = verdict.detector.to_string();
        self.by_detector.entry(detector).or_default().add(report);
        if let Some(member) = verdict.members.first() {
            let tool = self.by_tool.entry(member.tool.clone()).or_default();
            tool.looping_sessions += 1;
            tool.wasted += report.wasted;
        }
    }
}

/// The largest first.
pub(super) fn ranked<T: Copy>(
    groups: &BTreeMap<String, T>,
    key: impl Fn(&T) -> (f64, u64),
) -> Vec<(&str, T)> {
    let mut ranked: Vec<_> = groups
        .iter()
        .map(|(name, group)| (&**name, *group))
        .collect();
    ranked.sort_by(|(_, a), (_, b)| {
        let ((a_usd, a_count), (b_usd, b_count)) = (key(a), key(b));
        b_usd.total_cmp(&a_usd).then(b_count.cmp(&a_count))
    });
    ranked
}

pub(super) fn format_time(time: SystemTime) -> Option<String> {
    let time = Timestamp::try_from(time).ok()?;
    Some(time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string())
}

/// The Monday of the week, in UTC.
fn week_of(time: SystemTime) -> Option<String> {
    let date = Timestamp::try_from(time)
        .ok()?
        .to_zoned(TimeZone::UTC)
        .date();
    let days = i64::from(date.weekday().to_monday_zero_offset());
    Some(date.checked_sub(days.days()).ok()?.to_string())
}
