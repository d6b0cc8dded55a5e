//! The one thread that writes.

use std::{io, sync::Arc, time::Duration};

use super::{
    frame::Entry,
    hub::{Hub, Progress},
    intake::Intake,
    log::{Log, Unwritten},
    record,
};
use crate::domain::{Effect, Issued, VerdictId};

pub(super) struct Writer {
    pub intake: Arc<Intake>,
    pub hub: Arc<Hub>,
    /// `None`: in memory only.
    pub log: Option<Log>,
    pub text: bool,
    /// Terminations that were answered and are not on disk, until they are.
    pub backlog: Vec<Issued>,
    pub backlog_max: usize,
    /// Called when a sync failed: the process must end.
    pub fatal: Box<dyn FnOnce(io::Error) + Send>,
}

/// While the disk takes nothing it is tried this often, and with every verdict.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

impl Writer {
    /// Works until there will be no more to write.
    pub fn run(mut self) {
        loop {
            let failing = self.hub.progress().failing;
            let Some(batch) = self.intake.next(failing.then_some(RETRY_INTERVAL)) else {
                break;
            };
            let written = self.write(&batch);
            match written {
                Ok(()) => self.written(batch),
                Err(Unwritten::Refused(error)) => self.refused(batch, &error),
                Err(Unwritten::Unsynced(error)) => {
                    Hub::count(&self.hub.failures);
                    return (self.fatal)(error);
                }
            }
        }
    }

    fn write(&mut self, batch: &[Issued]) -> Result<(), Unwritten> {
        let Some(log) = &mut self.log else {
            return Ok(());
        };
        let all = || self.backlog.iter().chain(batch);
        let mut payload = Vec::new();
        for issued in all() {
            let entry = Entry {
                kind: record::kind(issued.effect),
                id: issued.verdict.id,
                body: &record::fold(issued, self.text),
            };
            entry.append_to(&mut payload);
        }
        let id = |issued: &Issued| issued.verdict.id;
        let ids = all().next().map(id).zip(all().last().map(id));
        // With nothing to write it finds out whether the disk takes it again.
        log.commit(&payload, ids)
    }

    fn written(&mut self, batch: Vec<Issued>) {
        let before = self.hub.progress();
        if before.failing {
            tracing::info!(
                backlog = self.backlog.len(),
                "the store can be written to again"
            );
        }
        let last = last(&batch).max(before.decided);
        let durable = match &self.log {
            Some(_) => {
                Hub::count(&self.hub.commits);
                last
            }
            None => VerdictId(0),
        };
        self.backlog.clear();
        let progress = Progress {
            decided: last,
            durable,
            failing: false,
        };
        self.hub.publish(batch, progress);
    }

    /// Terminations hold and are tried again; an operator's act is refused, so
    /// nobody hears of it; the others are only said.
    fn refused(&mut self, mut batch: Vec<Issued>, error: &io::Error) {
        Hub::count(&self.hub.failures);
        let before = self.hub.progress();
        if !before.failing {
            tracing::error!(%error, "the store cannot be written to; resets are refused");
        }
        let decided = last(&batch).max(before.decided);
        for issued in &batch {
            let has_room = self.backlog.len() < self.backlog_max;
            if issued.effect == Effect::Terminated && has_room {
                self.backlog.push(issued.clone());
            } else {
                self.intake.give_up(issued.verdict.id);
            }
        }
        batch.retain(|issued| matches!(issued.effect, Effect::None | Effect::Terminated));
        let progress = Progress {
            decided,
            failing: true,
            ..before
        };
        self.hub.publish(batch, progress);
    }
}

fn last(batch: &[Issued]) -> VerdictId {
    let last = batch.last();
    last.map(|issued| issued.verdict.id).unwrap_or_default()
}
