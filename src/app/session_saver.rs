//! Sessions that survive a restart. While the service runs, the heads of changed sessions
//! are saved at a bounded rate; when it stops, sessions are saved whole; when it starts,
//! they are restored.

use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use tokio::{task, time};
use tokio_util::sync::CancellationToken;

use super::RunError;
use crate::{
    domain::{FrozenSession, SessionId, VerdictId},
    engine::{Engine, RunMode, ThawError, ThawOutcome},
    secret::{Sealer, Secret},
    store::{self, SaveRequest, Store},
};

/// How often changed heads are saved. A kill loses at least the counts since the last save.
const SAVE_INTERVAL: Duration = Duration::from_secs(2);
/// The rate at which heads are written while the service runs.
const HEAD_BYTES_PER_SEC: usize = 1024 * 1024;
/// How often the store is checked for terminations that it dropped while the disk failed.
const REWRITE_INTERVAL: Duration = Duration::from_secs(1);
/// The bytes of one transaction.
const BATCH_BYTES: usize = 256 * 1024;
/// The sessions that are saved at a stop may have half of `store.bytes_max`, as far as
/// that is free, and an eighth of it in any case.
const STOP_BYTES_DIVISOR: u64 = 2;
const STOP_BYTES_MIN_DIVISOR: u64 = 8;
/// The time for saving if open calls have used all of the drain time.
const STOP_TIME_MIN: Duration = Duration::from_millis(500);

/// Saves and restores the sessions of an engine.
#[derive(Clone)]
pub(super) struct SessionSaver {
    engine: Arc<Engine>,
    store: Arc<Store>,
    /// `None`: windows quote agents and are not written.
    sealer: Option<Sealer>,
    store_bytes_max: u64,
}

/// The secret of `[store] key_file`. `None`: there is none, and frozen windows would match
/// nothing after a restart. The service starts without it, because the disk may be full
/// or read-only.
pub(super) fn load_secret(settings: &store::Settings) -> Option<Secret> {
    if settings.dir.as_os_str().is_empty() || settings.key_file.as_os_str().is_empty() {
        return None;
    }
    let secret = Secret::load_or_create(&settings.key_file);
    secret
        .inspect_err(|error| {
            tracing::error!(%error, "cannot use the key ([store] key_file); windows of sessions are not saved");
        })
        .ok()
}

/// The run mode of a service with this secret.
pub(super) fn run_mode(secret: Option<&Secret>) -> RunMode {
    match secret {
        Some(secret) => RunMode::Resumed(secret.signature_seeds()),
        None => RunMode::Live,
    }
}

impl SessionSaver {
    pub fn new(
        engine: Arc<Engine>,
        store: Arc<Store>,
        secret: Option<&Secret>,
        settings: &store::Settings,
    ) -> Self {
        Self {
            engine,
            store,
            sealer: secret.map(Secret::sealer),
            store_bytes_max: settings.bytes_max,
        }
    }

    /// Restores the sessions of the previous process. It may take a second, so it runs on
    /// a blocking thread.
    pub async fn restore(&self) {
        let saver = self.clone();
        // A panic is logged by the panic hook; the service starts without the sessions.
        let _ = task::spawn_blocking(move || saver.restore_sessions()).await;
    }

    fn restore_sessions(&self) {
        let now = self.store.expiry_clock().now();
        let mut restored = RestoredCounts::default();
        let mut missing_verdicts = Vec::new();
        let loaded = self.store.load_sessions(|mut frozen| {
            let sealed = frozen.window.take();
            let is_sealed = sealed.is_some();
            frozen.window =
                sealed.and_then(|sealed| self.sealer.as_ref()?.open(&frozen.id, sealed));
            restored.not_opened += usize::from(is_sealed && frozen.window.is_none());
            let outcome = self.engine.freezer().thaw(&frozen, now);
            restored.count(outcome);
            if let ThawOutcome::HeadOnly(_) = outcome {
                let missing = self.engine.freezer().missing_verdicts(&frozen.id);
                missing_verdicts.extend(missing.into_iter().map(|id| (frozen.id.clone(), id)));
            }
            if matches!(outcome, ThawOutcome::Occupied | ThawOutcome::Expired) {
                self.store.remove_session(frozen.id);
            }
        });
        self.restore_verdicts(missing_verdicts);
        let is_unreadable = loaded.is_err();
        if let Err(error) = loaded {
            tracing::error!(%error, "cannot read the sessions of the previous run");
            self.engine.note_unreadable_sessions(now);
        }
        let lost = restored.profiles + restored.no_room + usize::from(is_unreadable);
        self.engine
            .set_restored_sessions(restored.whole, restored.heads, lost);
        restored.log();
    }

    /// Reads the verdicts of loops with an action in force, without what agents wrote, for
    /// sessions whose windows were not saved. The verdicts of a session lie together.
    fn restore_verdicts(&self, missing: Vec<(SessionId, VerdictId)>) {
        for verdicts in missing.chunk_by(|(one, _), (other, _)| one == other) {
            let Some((session, _)) = verdicts.first() else {
                continue;
            };
            let tenant = session.tenant();
            // A verdict that the retention has removed is shown by its id only.
            let found = verdicts.iter().filter_map(|(_, id)| {
                let record = self.store.find_verdict(&tenant, *id).ok()??;
                Some(record.verdict)
            });
            self.engine.freezer().add_verdicts(session, found.collect());
        }
    }

    /// Saves the heads of changed sessions until the service drains.
    pub async fn save_while_running(self, draining: CancellationToken) -> Result<(), RunError> {
        let requested = self.clone().save_requested(draining.clone());
        let rewritten = self.clone().rewrite_lost(draining.clone());
        tokio::try_join!(self.save_periodically(draining), requested, rewritten).map(drop)
    }

    /// Saves the heads for which callers wait, all that are requested by now in one batch.
    async fn save_requested(self, draining: CancellationToken) -> Result<(), RunError> {
        let next = || draining.run_until_cancelled(self.store.next_save_requests());
        while let Some(requests) = next().await {
            let saver = self.clone();
            task::spawn_blocking(move || saver.save_heads(requests)).await?;
        }
        Ok(())
    }

    fn save_heads(&self, requests: Vec<SaveRequest>) {
        let freezer = self.engine.freezer();
        let heads = requests.iter().filter_map(|request| {
            freezer.mark_changed(&request.session);
            freezer.freeze_changed_head(&request.session)
        });
        // After a failure the periodic save tries again.
        let is_saved = self.save(heads.collect()).is_ok();
        for request in requests {
            // A periodic save may write an older head after this one.
            freezer.mark_changed(&request.session);
            if is_saved {
                request.set_saved();
            }
        }
    }

    /// Writes the terminations that the store dropped while the disk failed, once it works
    /// again. The tombstones in memory have all of them.
    async fn rewrite_lost(self, draining: CancellationToken) -> Result<(), RunError> {
        let mut ticks = time::interval(REWRITE_INTERVAL);
        ticks.set_missed_tick_behavior(time::MissedTickBehavior::Delay);
        while draining.run_until_cancelled(ticks.tick()).await.is_some() {
            let saver = self.clone();
            task::spawn_blocking(move || saver.rewrite_lost_now()).await?;
        }
        Ok(())
    }

    fn rewrite_lost_now(&self) {
        let find = |since| self.engine.terminations_since(since);
        if let Err(error) = self.store.rewrite_lost(find) {
            tracing::warn!(%error, "cannot write terminations that the disk had refused");
        }
    }

    /// Saves the heads of changed sessions every `SAVE_INTERVAL`.
    async fn save_periodically(self, draining: CancellationToken) -> Result<(), RunError> {
        let mut ticks = time::interval(SAVE_INTERVAL);
        ticks.set_missed_tick_behavior(time::MissedTickBehavior::Delay);
        let mut is_failing = false;
        while draining.run_until_cancelled(ticks.tick()).await.is_some() {
            if self.store.dir().is_none() {
                continue;
            }
            let (saver, stop) = (self.clone(), draining.clone());
            let saved = task::spawn_blocking(move || saver.save_changed(&stop)).await?;
            if let Err(error) = &saved
                && !is_failing
            {
                tracing::warn!(%error, "cannot save sessions; a restart would lose their counts");
            }
            is_failing = saved.is_err();
        }
        Ok(())
    }

    /// Saves the heads of all changed sessions, in small transactions and at a bounded
    /// rate.
    fn save_changed(&self, stop: &CancellationToken) -> Result<(), store::StoreError> {
        let mut changed = self.engine.freezer().changed_sessions().into_iter();
        loop {
            let batch_start = Instant::now();
            let heads =
                (&mut changed).filter_map(|id| self.engine.freezer().freeze_changed_head(&id));
            let batch = take_bytes(heads, BATCH_BYTES);
            if batch.is_empty() || stop.is_cancelled() {
                // The last batch is dropped: a drained service saves all sessions whole.
                break;
            }
            let bytes: usize = batch.iter().map(FrozenSession::bytes).sum();
            self.save(batch)?;
            let pause = Duration::from_secs_f64(bytes as f64 / HEAD_BYTES_PER_SEC as f64);
            thread::sleep(pause.saturating_sub(batch_start.elapsed()));
        }
        let now = self.store.expiry_clock().now();
        let idle_since = now.checked_sub(self.engine.idle_max());
        match idle_since {
            Some(time) if !stop.is_cancelled() => self.store.remove_sessions_idle_since(time),
            _ => Ok(()),
        }
    }

    fn save(&self, batch: Vec<FrozenSession>) -> Result<(), store::StoreError> {
        let ids: Vec<SessionId> = batch.iter().map(|frozen| frozen.id.clone()).collect();
        let saved = self.store.save_sessions(batch);
        for id in ids {
            if saved.is_err() {
                self.engine.freezer().mark_changed(&id);
            } else if !self.engine.freezer().is_live(&id) {
                // It was closed while it was saved.
                self.store.remove_session(id);
            }
        }
        saved
    }

    /// Saves all sessions whole, until the deadline or until the bytes are used up: those
    /// with verdicts first, then the most recently active.
    pub async fn save_at_stop(self, deadline: time::Instant) {
        if self.store.dir().is_none() {
            return;
        }
        let deadline = deadline.into_std().max(Instant::now() + STOP_TIME_MIN);
        let saving = task::spawn_blocking(move || self.save_all(deadline));
        // A disk may hang.
        let ended = time::timeout_at(deadline.into(), saving).await;
        if !matches!(ended, Ok(Ok(()))) {
            tracing::warn!("not all sessions were saved before the drain deadline");
        }
    }

    fn save_all(&self, deadline: Instant) {
        self.rewrite_lost_now();
        let ids = self.engine.freezer().sessions_by_importance();
        let live = ids.len();
        let mut whole_sessions = ids.iter().filter_map(|id| self.freeze_sealed(id));
        let bytes_max = self.stop_bytes_max();
        let (mut sessions, mut bytes) = (0, 0);
        while bytes < bytes_max && Instant::now() < deadline {
            let batch = take_bytes(&mut whole_sessions, BATCH_BYTES);
            if batch.is_empty() {
                break;
            }
            sessions += batch.len();
            bytes += batch.iter().map(FrozenSession::bytes).sum::<usize>();
            if let Err(error) = self.store.save_sessions(batch) {
                tracing::warn!(%error, "cannot save sessions; a restart loses their state");
                return;
            }
        }
        tracing::info!(sessions, live, bytes, "sessions are saved");
    }

    fn stop_bytes_max(&self) -> usize {
        let free = self
            .store_bytes_max
            .saturating_sub(self.store.stats().bytes);
        let bytes_max = free.clamp(
            self.store_bytes_max / STOP_BYTES_MIN_DIVISOR,
            self.store_bytes_max / STOP_BYTES_DIVISOR,
        );
        usize::try_from(bytes_max).unwrap_or(usize::MAX)
    }

    /// Freezes a session; its window is sealed, or left out if there is no key.
    fn freeze_sealed(&self, id: &SessionId) -> Option<FrozenSession> {
        let mut frozen = self.engine.freezer().freeze(id)?;
        let window = frozen.window.take();
        frozen.window = window.and_then(|window| self.sealer.as_ref()?.seal(id, &window));
        Some(frozen)
    }
}

/// Takes sessions up to this many bytes, at least one.
fn take_bytes(
    sessions: impl Iterator<Item = FrozenSession>,
    bytes_max: usize,
) -> Vec<FrozenSession> {
    let mut batch = Vec::new();
    let mut bytes = 0;
    for session in sessions {
        bytes += session.bytes();
        batch.push(session);
        if bytes >= bytes_max {
            break;
        }
    }
    batch
}

/// The number of sessions that were restored, by how much of their state.
#[derive(Default)]
struct RestoredCounts {
    whole: usize,
    heads: usize,
    profiles: usize,
    expired: usize,
    no_room: usize,
    other_versions: usize,
    damaged: usize,
    other_keys: usize,
    other_detectors: usize,
    /// Windows that the key does not open.
    not_opened: usize,
}

impl RestoredCounts {
    fn count(&mut self, outcome: ThawOutcome) {
        let (count, error) = match outcome {
            ThawOutcome::Whole => (&mut self.whole, None),
            ThawOutcome::HeadOnly(error) => (&mut self.heads, error),
            ThawOutcome::ProfileOnly(error) => (&mut self.profiles, Some(error)),
            ThawOutcome::Expired => (&mut self.expired, None),
            ThawOutcome::NoRoom => (&mut self.no_room, None),
            // It was terminated since.
            ThawOutcome::Occupied => return,
        };
        *count += 1;
        match error {
            None => {}
            Some(ThawError::Version) => self.other_versions += 1,
            Some(ThawError::Damaged) => self.damaged += 1,
            Some(ThawError::Key) => self.other_keys += 1,
            Some(ThawError::Detectors) => self.other_detectors += 1,
        }
    }

    fn log(&self) {
        let Self {
            whole,
            heads,
            profiles,
            expired,
            no_room,
            other_versions,
            damaged,
            other_keys,
            other_detectors,
            not_opened,
        } = *self;
        if whole + heads + profiles + expired + no_room > 0 {
            tracing::info!(
                whole,
                heads,
                profiles,
                expired,
                no_room,
                "sessions are restored"
            );
        }
        if other_versions + damaged + other_keys + other_detectors + not_opened > 0 {
            tracing::warn!(
                other_versions,
                damaged,
                other_keys,
                other_detectors,
                not_opened,
                "part of the state of sessions cannot be used and was ignored"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        app::App,
        domain::{Labels, clock},
        testing,
    };

    /// A service with this number of live sessions, whose heads have about half a KiB each.
    async fn service_with(sessions: usize) -> (tempfile::TempDir, App) {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("data");
        let config = testing::config(&[("UNSTUCK__STORE__DIR", data.to_str().unwrap())]);
        let app = App::bind(config).await.unwrap();
        for n in 0..sessions {
            let labels = Labels::from([("team".to_owned(), "x".repeat(64))]);
            let id = SessionId::parse(&format!("{n:0250}")).unwrap();
            app.engine
                .open_session(&id, "default", labels, clock::now())
                .unwrap();
        }
        (dir, app)
    }

    #[tokio::test]
    async fn heads_are_saved_at_a_bounded_rate() {
        let (_dir, app) = service_with(2_000).await;
        let freezer = app.engine.freezer();
        let heads = freezer.sessions_by_importance();
        let heads = heads.iter().filter_map(|id| freezer.freeze(id));
        let bytes: usize = heads
            .map(|frozen| frozen.bytes() - frozen.window.map_or(0, |window| window.len()))
            .sum();
        assert!(bytes > 2 * BATCH_BYTES, "{bytes}");
        let begin = Instant::now();
        app.saver.save_changed(&CancellationToken::new()).unwrap();
        let least = Duration::from_secs_f64(bytes as f64 / HEAD_BYTES_PER_SEC as f64);
        assert!(begin.elapsed() >= least, "{least:?}");
        // Nothing has changed since.
        let mut saved = 0;
        app.store.load_sessions(|_| saved += 1).unwrap();
        assert_eq!(
            (saved, app.engine.freezer().changed_sessions().len()),
            (2_000, 0)
        );
    }

    #[tokio::test]
    async fn a_stop_saves_within_its_share_of_the_store() {
        let (_dir, app) = service_with(4_000).await;
        let saver = SessionSaver {
            store_bytes_max: 2 * BATCH_BYTES as u64,
            ..app.saver.clone()
        };
        saver.save_all(Instant::now() + Duration::from_secs(600));
        let mut bytes = 0;
        let count = |frozen: FrozenSession| bytes += frozen.bytes();
        app.store.load_sessions(count).unwrap();
        // One batch and the session that exceeds it.
        assert!(
            (BATCH_BYTES / 2..BATCH_BYTES + 1_024).contains(&bytes),
            "{bytes}"
        );
    }
}
