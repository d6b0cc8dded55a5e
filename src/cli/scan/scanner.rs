//! Plays transcripts, several at a time, a session at a time each.

use std::{
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
    thread,
    time::SystemTime,
};

use parking_lot::Mutex;

use super::{
    prices::PriceList,
    session_report::{SessionCollector, SessionReport},
};
use crate::{
    api,
    cli::{
        CliError,
        trace::{line::TraceLine, player::TracePlayer, reader::progress_bar},
    },
    config::Config,
    domain::{Action, SessionId},
    ingest::transcripts::{ReadProblem, SessionEnd, Transcript, TranscriptEvent, TranscriptItem},
};

/// Plays transcripts.
pub(super) struct TranscriptScanner<'a> {
    pub profile: Option<&'a str>,
    pub prices: &'a PriceList,
    pub filter: ScanFilter<'a>,
    /// Whether the events around loops are kept.
    pub wants_timelines: bool,
}

/// The sessions to report.
pub(super) struct ScanFilter<'a> {
    pub since: Option<SystemTime>,
    pub project: Option<&'a str>,
    /// The start of an id.
    pub show: Option<&'a str>,
}

/// The reports of the sessions, oldest first.
#[derive(Default)]
pub(super) struct ScanResult {
    pub sessions: Vec<SessionReport>,
    pub files: u64,
    pub bytes: u64,
    /// Sessions that the filter leaves out.
    pub other_sessions: u64,
    /// Files that were last written before the period, and were not read.
    pub older_files: u64,
    /// The first of them.
    pub problems: Vec<ReadProblem>,
    pub problem_count: u64,
}

/// Problems that are kept for the report.
const PROBLEMS_KEPT_MAX: usize = 1_000;

impl ScanResult {
    pub fn strongest_action(&self) -> Option<Action> {
        let actions = self.sessions.iter();
        actions.filter_map(SessionReport::strongest_action).max()
    }

    fn add(&mut self, more: Self) {
        self.sessions.extend(more.sessions);
        self.files += more.files;
        self.bytes += more.bytes;
        self.other_sessions += more.other_sessions;
        self.older_files += more.older_files;
        self.problem_count += more.problem_count;
        let room = PROBLEMS_KEPT_MAX.saturating_sub(self.problems.len());
        self.problems.extend(more.problems.into_iter().take(room));
    }
}

impl ScanFilter<'_> {
    /// Whether a file may hold a session of the period: it was written in it or later.
    fn accepts_file(&self, transcript: &Transcript) -> bool {
        match (self.since, transcript.modified) {
            (Some(since), Some(modified)) => modified >= since,
            _ => true,
        }
    }

    fn accepts(&self, report: &SessionReport) -> bool {
        let is_recent = match (self.since, report.end.last_event) {
            (Some(since), Some(last)) => last >= since,
            _ => true,
        };
        let id = &report.start.session_id;
        is_recent
            && self.project.is_none_or(|name| report.start.project == name)
            && self.show.is_none_or(|prefix| id.starts_with(prefix))
    }
}

impl TranscriptScanner<'_> {
    pub fn run(
        &self,
        transcripts: &[Transcript],
        load_config: impl Fn() -> Result<Config, CliError>,
    ) -> Result<ScanResult, CliError> {
        let mut wanted: Vec<&Transcript> = transcripts
            .iter()
            .filter(|transcript| self.filter.accepts_file(transcript))
            .collect();
        // The longest first, so that the threads end at about the same time.
        wanted.sort_by_key(|transcript| std::cmp::Reverse(transcript.bytes));
        let progress = progress_bar(wanted.iter().map(|transcript| transcript.bytes).sum());
        let threads = thread::available_parallelism().map_or(1, usize::from);
        let players = (0..threads.min(wanted.len()).max(1))
            .map(|_| TracePlayer::new(load_config()?, self.profile))
            .collect::<Result<Vec<_>, _>>()?;
        let (next, total) = (AtomicUsize::new(0), Mutex::new(ScanResult::default()));
        thread::scope(|scope| {
            for mut player in players {
                let (wanted, next, total, progress) = (&wanted, &next, &total, &progress);
                scope.spawn(move || {
                    while let Some(transcript) = wanted.get(next.fetch_add(1, Relaxed)) {
                        let found = self.scan(transcript, &mut player);
                        total.lock().add(found);
                        progress.inc(transcript.bytes);
                    }
                });
            }
        });
        progress.finish_and_clear();
        let mut result = total.into_inner();
        result.older_files = (transcripts.len() - wanted.len()) as u64;
        let order = |report: &SessionReport| {
            (
                report.time(),
                report.start.path.clone(),
                report.start.session_id.clone(),
            )
        };
        result.sessions.sort_by_cached_key(order);
        let place = |problem: &ReadProblem| (problem.path.clone(), problem.line);
        result.problems.sort_by_cached_key(place);
        Ok(result)
    }

    /// Reads a transcript and plays its sessions.
    fn scan(&self, transcript: &Transcript, player: &mut TracePlayer) -> ScanResult {
        let mut found = ScanResult {
            files: transcript.paths.len() as u64,
            bytes: transcript.bytes,
            ..ScanResult::default()
        };
        let mut open: Option<SessionCollector> = None;
        transcript.read(&mut |item| match item {
            TranscriptItem::Start(start) => open = Some(SessionCollector::new(start)),
            TranscriptItem::Event(event) => {
                if let Some(collector) = &mut open
                    && let Err(problem) = self.play(event, collector, player)
                {
                    found.push_problem(problem);
                }
            }
            TranscriptItem::End(end) => {
                let report = open
                    .take()
                    .map(|collector| self.finish(collector, end, player));
                match report {
                    Some(report) if self.filter.accepts(&report) => found.sessions.push(report),
                    Some(_) => found.other_sessions += 1,
                    None => {}
                }
            }
            TranscriptItem::Problem(problem) => found.push_problem(problem),
        });
        found
    }

    fn play(
        &self,
        event: TranscriptEvent,
        collector: &mut SessionCollector,
        player: &mut TracePlayer,
    ) -> Result<(), ReadProblem> {
        let event = collector.observe(event, self.prices);
        let id = event.session.clone();
        let played = player.play(&TraceLine::Event(event));
        let played = played.map_err(|error| ReadProblem {
            path: collector.start().path.clone(),
            line: 0,
            what: error.to_string(),
        })?;
        let verdict = played.map(|played| played.verdict);
        let is_terminated = verdict.as_ref().is_some_and(|verdict| verdict.terminates());
        if let Some(verdict) = verdict {
            collector.push_verdict(verdict);
        } else if collector.is_timeline_due() {
            self.keep_timeline(collector, &id, player);
        }
        // The recorded agent continued, because nothing stopped it.
        if is_terminated {
            self.keep_timeline(collector, &id, player);
            if let Some(view) = player.reset_session(&id) {
                collector.end_part(&view);
            }
        }
        Ok(())
    }

    fn keep_timeline(
        &self,
        collector: &mut SessionCollector,
        id: &SessionId,
        player: &TracePlayer,
    ) {
        if self.wants_timelines && collector.is_timeline_missing() {
            let entries = player.timeline(id);
            let entries = entries.iter().map(api::present_timeline_entry);
            collector.set_timeline(entries.collect());
        }
    }

    fn finish(
        &self,
        mut collector: SessionCollector,
        end: SessionEnd,
        player: &mut TracePlayer,
    ) -> SessionReport {
        if let Ok(id) = SessionId::parse(&collector.start().session_id) {
            self.keep_timeline(&mut collector, &id, player);
            if let Some(view) = player.end_session(&id) {
                collector.end_part(&view);
            }
        }
        let mut report = collector.finish(end, self.prices);
        let main_verdict = report.main_verdict();
        report.rule = main_verdict.and_then(|verdict| player.explain(verdict));
        report
    }
}

impl ScanResult {
    fn push_problem(&mut self, problem: ReadProblem) {
        self.problem_count += 1;
        if self.problems.len() < PROBLEMS_KEPT_MAX {
            self.problems.push(problem);
        }
    }
}
