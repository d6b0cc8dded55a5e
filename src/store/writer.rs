//! The one thread that writes.

use std::{
    io,
    panic::{self, AssertUnwindSafe},
    sync::Arc,
    time::Duration,
};

use super::{
    frame::Entry,
    hub::{Hub, Progress},
    intake::{BATCH_MAX, Batch, Intake},
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
    /// Called when a sync failed, or this thread: the process must end.
    pub fatal: Box<dyn Fn(io::Error) + Send>,
}

/// While the disk takes nothing it is tried this often, and with every verdict.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

impl Writer {
    /// Works until there will be no more to write.
    pub fn run(mut self) {
        // Without a writer every termination would wait for ever.
        let work = panic::catch_unwind(AssertUnwindSafe(|| self.work()));
        match work {
            Ok(Ok(())) => {}
            Ok(Err(error)) => (self.fatal)(error),
            Err(_) => (self.fatal)(io::Error::other("the writer of the store panicked")),
        }
    }

    fn work(&mut self) -> io::Result<()> {
        loop {
            let failing = self.hub.progress().failing;
            let Some(batch) = self.intake.next(failing.then_some(RETRY_INTERVAL)) else {
                break;
            };
            self.commit(batch)?;
        }
        if !self.backlog.is_empty() {
            self.commit(Batch::default())?;
        }
        Ok(())
    }

    fn commit(&mut self, batch: Batch) -> io::Result<()> {
        match self.catch_up().and_then(|()| self.write(&batch.issued)) {
            Ok(()) => self.written(batch),
            Err(Unwritten::Refused(error)) => self.refused(batch, &error),
            Err(Unwritten::Unsynced(error)) => {
                Hub::count(&self.hub.failures);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Writes what the disk would not take before, no more of it at once than of
    /// anything else: while the disk takes nothing, every try costs the same.
    fn catch_up(&mut self) -> Result<(), Unwritten> {
        while !self.backlog.is_empty() {
            let some: Vec<Issued> = self.backlog.iter().take(BATCH_MAX).cloned().collect();
            self.write(&some)?;
            self.backlog.drain(..some.len());
            let before = self.hub.progress();
            let durable = last(&some).max(before.durable);
            self.hub.publish(Vec::new(), Progress { durable, ..before });
        }
        Ok(())
    }

    /// With nothing to write it finds out whether the disk takes it again.
    fn write(&mut self, batch: &[Issued]) -> Result<(), Unwritten> {
        let Some(log) = &mut self.log else {
            return Ok(());
        };
        let mut payload = Vec::new();
        for issued in batch {
            let entry = Entry {
                kind: record::kind(issued.effect),
                id: issued.verdict.id,
                body: &record::fold(issued, self.text),
            };
            entry.append_to(&mut payload);
        }
        let id = |issued: &Issued| issued.verdict.id;
        let ids = batch.first().map(id).zip(batch.last().map(id));
        log.commit(&payload, ids)?;
        Hub::count(&self.hub.commits);
        Ok(())
    }

    fn written(&mut self, Batch { issued, through }: Batch) {
        let before = self.hub.progress();
        if before.failing {
            tracing::info!("the store can be written to again");
        }
        let decided = through.max(before.decided);
        let durable = match &self.log {
            Some(_) => decided,
            None => VerdictId(0),
        };
        let progress = Progress {
            decided,
            durable,
            failing: false,
        };
        self.hub.publish(issued, progress);
    }

    /// Terminations hold and are tried again; an operator's act is refused, so
    /// nobody hears of it; the others are only said.
    fn refused(&mut self, batch: Batch, error: &io::Error) {
        Hub::count(&self.hub.failures);
        let before = self.hub.progress();
        if !before.failing {
            tracing::error!(%error, "the store cannot be written to; resets are refused");
        }
        let decided = batch.through.max(before.decided);
        let mut batch = batch.issued;
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
