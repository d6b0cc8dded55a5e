//! What counts as progress, and the counter of it in a session: a write that changed
//! something, whatever made it; a move to another state of the world; a changed
//! `state_hash`; a user's message. docs/progress.md describes the notion for users. Cost: a
//! linear search over the written paths per write, bounded by the capacity given by the
//! engine.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::figure_trend::FigureTrend;
use crate::domain::{CallFacts, Capacity, Sig};

/// Counts a session's progress: a successful write that changed something, a move to
/// another state of the world or a changed one, a figure in an error that moves one way,
/// a user's message. A write whose answer says that it changed nothing is none, nor is a
/// new plan. Two calls with the same count have no progress between them.
///
/// One per session, not per agent: a write by one agent is progress for all.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct ProgressCounter {
    count: u32,
    /// How many of `count` were changes of state.
    state_changes: u32,
    /// How many of `count` were moves to another state of the world.
    world_moves: u32,
    /// Calls since the last user message or the start of a run.
    calls: u32,
    /// Calls of any of several agents that returned something new.
    new_results: u16,
    state: Option<Sig>,
    /// The latest content of each path, or the call that wrote it if no content was sent;
    /// oldest path first.
    contents: VecDeque<(Sig, Sig)>,
    /// The figures of the calls that failed last; oldest call first.
    figures: VecDeque<FailedCallFigures>,
}

#[derive(Debug, Serialize, Deserialize)]
struct FailedCallFigures {
    call: Sig,
    error: Option<Sig>,
    /// [`ProgressCounter::calls`] at its latest failure.
    at_call: u32,
    trend: FigureTrend,
}

impl ProgressCounter {
    pub fn count(&self) -> u32 {
        self.count
    }

    pub fn state_changes(&self) -> u32 {
        self.state_changes
    }

    pub fn world_moves(&self) -> u32 {
        self.world_moves
    }

    pub fn calls(&self) -> u32 {
        self.calls
    }

    /// Counts a call of any agent.
    pub fn record_call(&mut self) {
        self.calls = self.calls.saturating_add(1);
    }

    pub fn new_results(&self) -> u16 {
        self.new_results
    }

    /// Counts a call whose agent had not seen its result before.
    pub fn record_new_result(&mut self) {
        self.new_results = self.new_results.wrapping_add(1);
    }

    /// A user message or the start of a run: what follows is new work.
    pub fn start_new_work(&mut self) {
        self.calls = 0;
        self.advance();
    }

    /// Counts one step of progress.
    pub fn advance(&mut self) {
        self.count = self.count.wrapping_add(1);
    }

    /// Records what a call wrote and returns the progress count. If there is no room, the
    /// oldest path is evicted: its next write counts as a change, which can only suppress
    /// a finding.
    pub fn record_write(&mut self, call: &CallFacts, paths: &Capacity) -> u32 {
        let writes = (call.wrote() || (call.also_writes && !call.failed()))
            && !call.changed_nothing
            && call.plan_steps_done.is_none();
        if call.moves_world && !call.failed() && !call.changed_nothing {
            self.world_moves = self.world_moves.wrapping_add(1);
            self.advance();
        } else if writes && self.update_content(call, paths) {
            self.advance();
        }
        self.count
    }

    /// Records the figures of a failed call. One that has moved on since the same call
    /// failed with the same error, after other work, is progress. Without other work it
    /// only counts the failures: "2 attempts left".
    pub fn record_figures(&mut self, call: &mut CallFacts) {
        /// An agent works on few failing calls at once.
        const CALLS_MAX: usize = 4;
        let Some(signature) = call.call else { return };
        let known = self
            .figures
            .iter()
            .position(|figures| figures.call == signature);
        if !call.failed() || call.figures.is_empty() {
            // A pass ends the series.
            known.map(|at| self.figures.remove(at));
            return;
        }
        let mut figures = known
            .and_then(|at| self.figures.remove(at))
            .filter(|figures| figures.error == call.error)
            .unwrap_or_else(|| FailedCallFigures {
                call: signature,
                error: call.error,
                at_call: 0,
                trend: FigureTrend::default(),
            });
        let has_moved = figures.trend.push(&call.figures);
        let has_worked = self.calls != figures.at_call.wrapping_add(1);
        if has_moved && has_worked {
            call.has_moved_figure = true;
            self.advance();
        }
        figures.at_call = self.calls;
        if self.figures.len() == CALLS_MAX {
            self.figures.pop_front();
        }
        self.figures.push_back(figures);
    }

    /// Records the state of the world after an event, if known. The first state is no
    /// change.
    pub fn record_state(&mut self, state: Option<Sig>) {
        let Some(new) = state else { return };
        if self.state.replace(new).is_some_and(|old| old != new) {
            self.state_changes = self.state_changes.wrapping_add(1);
            self.advance();
        }
    }

    /// Returns whether a write changed something: the same content or the same write again
    /// does not.
    fn update_content(&mut self, call: &CallFacts, paths: &Capacity) -> bool {
        let Some(content) = call.content.or(call.call) else {
            return true;
        };
        // A tool without a target is its own path. An action that is no write of a file is
        // a change the first time: alternating between two of them is none.
        let path = if call.is_change() {
            call.target.unwrap_or(call.tool)
        } else {
            content
        };
        if let Some(known) = self
            .contents
            .iter_mut()
            .find(|(known_path, _)| *known_path == path)
        {
            return std::mem::replace(&mut known.1, content) != content;
        }
        paths.evict_to_fit(&mut self.contents, VecDeque::len, |contents| {
            contents.pop_front();
        });
        self.contents.push_back((path, content));
        true
    }

    pub fn heap_bytes(&self) -> usize {
        let trends = self
            .figures
            .iter()
            .map(|figures| figures.trend.heap_bytes());
        self.contents.capacity() * size_of::<(Sig, Sig)>()
            + self.figures.capacity() * size_of::<FailedCallFigures>()
            + trends.sum::<usize>()
    }
}
