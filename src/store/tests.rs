use std::{
    fs,
    os::unix::fs::{FileExt, PermissionsExt},
    sync::mpsc,
    time::{Duration, UNIX_EPOCH},
};

use proptest::prelude::*;
use rusqlite::Connection;
use tempfile::TempDir;

use super::{
    testing::{looping, reset, terminated},
    *,
};
use crate::domain::{Action, Effect, EncodedRecord, Labels, Rating, SessionId, Tenant, Waste};

fn settings(dir: &Path) -> Settings {
    Settings {
        dir: dir.to_owned(),
        verdicts_days_max: 30,
        bytes_max: 1 << 30,
        queue_max: 1_000,
        sync_secs_max: 2,
        key_file: PathBuf::new(),
    }
}

fn options(settings: &Settings) -> StoreOptions<'_> {
    StoreOptions {
        settings,
        audit: AuditSettings { text: false },
        tombstone_age_max: Duration::from_secs(1_000_000),
        tombstones_max: 1_000_000,
        now: UNIX_EPOCH,
        on_fatal: Box::new(|error| panic!("{error}")),
    }
}

fn open(dir: &TempDir) -> (Store, RecoveredState) {
    Store::open(options(&settings(dir.path()))).unwrap()
}

fn put(store: &Store, issued: impl IntoIterator<Item = VerdictRecord>) {
    issued.into_iter().for_each(store.verdict_sink());
}

/// A store that was written to and closed.
fn written(issued: impl IntoIterator<Item = VerdictRecord>) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    put(&open(&dir).0, issued);
    dir
}

/// The names of the terminated sessions.
fn names(state: &RecoveredState) -> Vec<&str> {
    let mut names: Vec<&str> = state.sessions.iter().map(|(id, _)| id.as_str()).collect();
    names.sort_unstable();
    names
}

fn ids(page: &VerdictPage) -> Vec<u128> {
    page.verdicts
        .iter()
        .map(|issued| issued.verdict.id.0)
        .collect()
}

fn all() -> VerdictFilter {
    VerdictFilter::default()
}

fn database_path(dir: &TempDir) -> PathBuf {
    dir.path().join("unstuck.db")
}

fn sql(dir: &TempDir, sql: &str) {
    let connection = Connection::open(database_path(dir)).unwrap();
    connection.execute_batch(sql).unwrap();
}

/// A verdict issued at this second.
fn at(second: u128, issued: VerdictRecord) -> VerdictRecord {
    let mut verdict = (*issued.verdict).clone();
    verdict.id = nth(second);
    VerdictRecord {
        verdict: Arc::new(verdict),
        ..issued
    }
}

fn nth(second: u128) -> VerdictId {
    VerdictId((second * 1_000) << 80)
}

#[tokio::test]
async fn terminations_survive_a_restart_and_a_reset_lifts_one() {
    let dir = tempfile::tempdir().unwrap();
    {
        let (store, state) = open(&dir);
        assert!(state.sessions.is_empty());
        put(
            &store,
            [terminated(1, "a"), terminated(2, "b"), reset(3, "a")],
        );
        assert!(store.wait_until_settled_or_timeout(VerdictId(3)).await);
        assert_eq!(verify(dir.path()).unwrap().records, 3);
    }
    let (store, state) = open(&dir);
    assert_eq!(
        (names(&state), state.last_verdict),
        (vec!["b"], VerdictId(3))
    );
    let back = state.sessions[0].1.decode().unwrap();
    assert_eq!(
        (back.verdict.id, back.verdict.durable),
        (VerdictId(2), true)
    );
    assert!(store.is_durable(VerdictId(2)));
    let page = store.read_audit_log(None, 10, &all()).unwrap();
    assert_eq!(ids(&page), [1, 2, 3]);
    let position = page.verdicts[2].position;
    assert_eq!(position, store.chain_head());
}

#[test]
fn terminated_agents_and_snoozes_are_recovered() {
    let of_agent = |id, agent: &str| {
        let mut issued = terminated(id, "s");
        let mut verdict = (*issued.verdict).clone();
        verdict.agent = crate::domain::AgentId::new(agent);
        issued.verdict = Arc::new(verdict);
        issued
    };
    let snooze = |id, until| VerdictRecord {
        effect: Effect::Snoozed(UNIX_EPOCH + Duration::from_secs(until)),
        ..reset(id, "t")
    };
    let dir = written([
        of_agent(1, "x"),
        of_agent(2, "y"),
        of_agent(3, "y"),
        snooze(4, 100),
        snooze(5, 50),
    ]);
    let (_, state) = open(&dir);
    let mut agents: Vec<(&str, u128)> = state
        .agents
        .iter()
        .map(|(_, agent, record)| (agent.as_str(), record.id.0))
        .collect();
    agents.sort_unstable();
    assert_eq!(agents, [("x", 1), ("y", 3)]);
    let until = UNIX_EPOCH + Duration::from_secs(50);
    assert_eq!(state.snoozes, [(SessionId::parse("t").unwrap(), until)]);
}

/// A copy of the files as a killed process leaves them: the write-ahead log has not been
/// copied into the database.
fn killed(issued: impl IntoIterator<Item = VerdictRecord>) -> TempDir {
    let (running, copy) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (store, _) = open(&running);
    for issued in issued {
        let id = issued.verdict.id;
        put(&store, [issued]);
        while store.publisher.watermarks().settled < id {
            std::thread::yield_now();
        }
    }
    for name in ["unstuck.db", "unstuck.db-wal", "head"] {
        fs::copy(running.path().join(name), copy.path().join(name)).unwrap();
    }
    copy
}

/// Opens a damaged store. It must be refused, or have all terminations.
#[track_caller]
fn check_damage(dir: &TempDir, context: &str) -> bool {
    match Store::open(options(&settings(dir.path()))) {
        Ok((store, state)) => {
            assert_eq!(names(&state), ["a", "b"], "{context}");
            drop(store);
            false
        }
        Err(error @ (StoreError::Damaged { .. } | StoreError::NewerSchema { .. })) => {
            let text = error.to_string();
            assert!(text.contains("unstuck.db"), "{text}");
            true
        }
        Err(error) => panic!("{context}: {error}"),
    }
}

#[test]
fn no_flipped_bit_lifts_a_termination() {
    let intact = killed([terminated(1, "a"), terminated(2, "b")]);
    let mut refused = 0;
    for name in ["unstuck.db-wal", "unstuck.db"] {
        let bytes = fs::read(intact.path().join(name)).unwrap();
        // Every part of each page, and every byte near the end.
        let near_end = bytes.len().saturating_sub(300)..bytes.len();
        let offsets = (0..bytes.len()).step_by(331).chain(near_end.step_by(29));
        for offset in offsets {
            let dir = tempfile::tempdir().unwrap();
            for file in ["unstuck.db", "unstuck.db-wal", "head"] {
                fs::copy(intact.path().join(file), dir.path().join(file)).unwrap();
            }
            let file = fs::File::options()
                .write(true)
                .open(dir.path().join(name))
                .unwrap();
            file.write_all_at(&[bytes[offset] ^ 0x10], offset as u64)
                .unwrap();
            let context = format!("byte {offset} of {name}");
            refused += usize::from(check_damage(&dir, &context));
        }
    }
    assert!(refused > 10, "{refused}");
}

#[test]
fn a_missing_end_is_noticed() {
    let cut = |change: &dyn Fn(&TempDir)| {
        let dir = killed([terminated(1, "a"), terminated(2, "b")]);
        change(&dir);
        let opened = Store::open(options(&settings(dir.path()))).err();
        let verified = verify(dir.path()).err();
        for error in [opened, verified] {
            let text = error.expect("it is refused").to_string();
            assert!(text.contains("unstuck.db is damaged"), "{text}");
            assert!(text.contains("missing"), "{text}");
        }
    };
    let wal = |dir: &TempDir| dir.path().join("unstuck.db-wal");
    cut(&|dir| fs::remove_file(wal(dir)).unwrap());
    cut(&|dir| {
        // The last commit, at the edge of a frame.
        let file = fs::File::options().write(true).open(wal(dir)).unwrap();
        let bytes = file.metadata().unwrap().len();
        file.set_len(bytes - (24 + 4_096)).unwrap();
    });
    cut(&|dir| fs::remove_file(database_path(dir)).unwrap());
}

#[test]
fn a_refused_database_is_left_as_it_was() {
    let files = ["unstuck.db", "unstuck.db-wal", "head"];
    // The header of the write-ahead log, a page of the first commit, one of the last.
    for offset in [17, 200, 4_000] {
        let dir = killed([terminated(1, "a"), terminated(2, "b")]);
        let wal = fs::File::options()
            .write(true)
            .open(dir.path().join("unstuck.db-wal"))
            .unwrap();
        wal.write_all_at(&[0x5a; 7], offset).unwrap();
        let before = files.map(|name| fs::read(dir.path().join(name)).unwrap());
        assert!(check_damage(&dir, &offset.to_string()));
        assert!(check_damage(&dir, &offset.to_string()));
        let after = files.map(|name| fs::read(dir.path().join(name)).unwrap());
        assert!(before == after, "changed at {offset}");
    }
}

#[test]
fn changed_records_are_found_by_verification() {
    let issued = || {
        [
            terminated(1, "a"),
            looping(2, "b", Action::Warn),
            reset(3, "a"),
        ]
    };
    let expectations = [
        ("DELETE FROM records WHERE record = 2", "does not follow"),
        (
            "UPDATE records SET body = x'00' WHERE record = 1",
            "record 1 does not follow",
        ),
        (
            "UPDATE records SET session = 'c' WHERE record = 2",
            "columns of record 2 differ",
        ),
        (
            "UPDATE records SET operator = 'bob' WHERE record = 3",
            "columns of record 3 differ",
        ),
        ("DELETE FROM record_labels", "record_labels has 0 rows"),
        (
            "UPDATE records SET withdrawn = 1 WHERE record = 3",
            "marked withdrawn",
        ),
        (
            "DELETE FROM record_labels WHERE verdict_id =
                 (SELECT verdict_id FROM records WHERE record = 3);
             DELETE FROM records WHERE record = 3",
            "end is missing",
        ),
        (
            "UPDATE tombstones SET lifted_by = NULL",
            "terminations are not those",
        ),
    ];
    for (change, expected) in expectations {
        let dir = written(issued());
        assert_eq!(verify(dir.path()).unwrap().records, 3);
        sql(&dir, change);
        let text = verify(dir.path()).unwrap_err().to_string();
        assert!(text.contains(expected), "{change}: {text}");
    }
}

#[test]
fn a_newer_schema_is_refused_by_name() {
    let dir = written([terminated(1, "a")]);
    sql(&dir, "PRAGMA user_version = 99");
    for refused in [
        Store::open(options(&settings(dir.path()))).err(),
        verify(dir.path()).err(),
    ] {
        let text = refused.unwrap().to_string();
        assert!(text.contains("schema version 99"), "{text}");
        assert!(text.contains("unstuck.db"), "{text}");
    }
}

#[test]
fn another_file_in_its_place_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(database_path(&dir), "not a database, however long it is").unwrap();
    let error = Store::open(options(&settings(dir.path()))).err().unwrap();
    assert!(matches!(error, StoreError::Damaged { .. }), "{error}");
}

#[test]
fn a_start_that_was_cut_off_is_repeated() {
    let dir = tempfile::tempdir().unwrap();
    fs::File::create(database_path(&dir)).unwrap();
    put(&open(&dir).0, [terminated(1, "a")]);
    assert_eq!(names(&open(&dir).1), ["a"]);
}

#[test]
fn a_new_directory_is_readable_by_its_owner_only() {
    let dir = tempfile::tempdir().unwrap();
    let inner = dir.path().join("data");
    let _store = Store::open(options(&settings(&inner))).unwrap();
    let mode = fs::metadata(inner).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
}

#[test]
fn a_second_store_in_the_same_directory_is_refused_even_if_the_files_are_gone() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(&dir);
    put(&store, [terminated(1, "a")]);
    for entry in fs::read_dir(dir.path()).unwrap() {
        fs::remove_file(entry.unwrap().path()).unwrap();
    }
    let second = Store::open(options(&settings(dir.path()))).err();
    assert!(
        matches!(second, Some(StoreError::InUse { .. })),
        "{second:?}"
    );
}

#[tokio::test]
async fn without_its_files_nothing_is_called_durable() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(&dir);
    put(&store, [terminated(1, "a")]);
    assert!(store.wait_until_settled_or_timeout(VerdictId(1)).await);
    let away = dir.path().join("away");
    fs::rename(database_path(&dir), &away).unwrap();
    put(&store, [terminated(2, "b"), reset(3, "a")]);
    assert!(!store.wait_until_settled_or_timeout(VerdictId(2)).await);
    assert!(!store.settle_or_withdraw(VerdictId(3)).await);
    assert!(matches!(store.health(), StoreHealth::WriteFailing(_)));
    // The reset was refused, so watchers do not see it; the termination is in force.
    let page = store.read_after(VerdictId(0), 10, &all()).unwrap();
    assert_eq!(ids(&page), [1, 2]);
    // The disk is back.
    fs::rename(away, database_path(&dir)).unwrap();
    put(&store, [terminated(4, "c")]);
    assert!(store.wait_until_settled_or_timeout(VerdictId(4)).await);
    assert!(store.is_durable(VerdictId(2)) && !store.is_durable(VerdictId(3)));
    assert_eq!(store.health(), StoreHealth::Healthy);
    drop(store);
    assert_eq!(names(&open(&dir).1), ["a", "b", "c"]);
    assert_eq!(verify(dir.path()).unwrap().records, 3);
}

/// A store whose writer waits before each commit until it is let through.
fn gated(dir: &TempDir, sync_secs_max: u64) -> (Store, mpsc::Sender<()>) {
    let (pass, gate) = mpsc::channel();
    let settings = Settings {
        sync_secs_max,
        ..settings(dir.path())
    };
    // Without a sender every commit passes.
    let hook = Box::new(move || _ = gate.recv());
    let (store, _) = Store::open_with_hook(options(&settings), Some(hook)).unwrap();
    (store, pass)
}

#[tokio::test]
async fn a_disk_that_hangs_delays_no_answer_for_long_and_refused_actions_are_undone() {
    let dir = written([terminated(1, "a")]);
    let (store, pass) = gated(&dir, 1);
    put(&store, [reset(2, "a"), terminated(3, "b")]);
    assert!(!store.settle_or_withdraw(VerdictId(2)).await);
    assert!(!store.wait_until_settled_or_timeout(VerdictId(3)).await);
    assert!(matches!(store.health(), StoreHealth::Stalled(_)));
    assert!(store.stats().oldest_unsynced >= Duration::from_secs(1));
    drop(pass);
    store.publisher.wait_until_settled(VerdictId(3)).await;
    assert!(store.is_durable(VerdictId(3)) && !store.is_durable(VerdictId(2)));
    assert_eq!(store.health(), StoreHealth::Healthy);
    let page = store.read_audit_log(None, 10, &all()).unwrap();
    assert_eq!(ids(&page), [1, 3]);
    drop(store);
    assert_eq!(names(&open(&dir).1), ["a", "b"]);
    // The reset, the termination and the withdrawal are in the chain.
    assert_eq!(verify(dir.path()).unwrap().records, 4);
}

#[tokio::test]
async fn while_the_disk_hangs_verdicts_are_published_once_and_in_order() {
    let dir = written([terminated(1, "a")]);
    let (store, pass) = gated(&dir, 0);
    let (mut verdicts, mut pushes) = (store.subscribe_verdicts(), store.subscribe_terminations());
    // The writer takes the first batch, and the second waits.
    put(&store, [looping(2, "b", Action::Warn)]);
    while store.queue.len() > 0 {
        tokio::task::yield_now().await;
    }
    put(&store, [reset(3, "a"), terminated(4, "b")]);
    store.publish_stalled();
    put(&store, [terminated(5, "c")]);
    store.publish_stalled();
    store.publish_stalled();
    drop(pass);
    put(&store, [terminated(6, "d")]);
    store.publisher.wait_until_settled(VerdictId(6)).await;
    // The reset can no longer happen: it would be published too late.
    assert!(!store.settle_or_withdraw(VerdictId(3)).await);
    let seen: Vec<u128> = std::iter::from_fn(|| verdicts.try_recv().ok())
        .map(|issued| issued.verdict.id.0)
        .collect();
    assert_eq!(seen, [2, 4, 5, 6]);
    let pushed = std::iter::from_fn(|| pushes.try_recv().ok());
    assert_eq!(
        pushed.map(|verdict| verdict.id.0).collect::<Vec<_>>(),
        [4, 5, 6]
    );
    drop(store);
    assert_eq!(names(&open(&dir).1), ["a", "b", "c", "d"]);
}

/// A watcher shows `durable` when it gets the verdict.
#[test]
fn a_published_verdict_is_durable_before_its_subscribers_get_it() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(&dir);
    let mut verdicts = store.subscribe_verdicts();
    for id in 1..=200 {
        put(&store, [terminated(id, &format!("s{id}"))]);
        let issued = verdicts.blocking_recv().unwrap();
        assert!(store.is_durable(issued.verdict.id), "{id}");
    }
}

#[test]
fn a_refused_action_is_undone_at_the_next_start() {
    let dir = written([terminated(1, "a"), reset(2, "a")]);
    StoreDir(dir.path().to_owned())
        .note_withdrawn(VerdictId(2))
        .unwrap();
    assert_eq!(names(&open(&dir).1), ["a"]);
    assert_eq!(names(&open(&dir).1), ["a"]);
    assert_eq!(verify(dir.path()).unwrap().records, 3);
}

#[tokio::test]
async fn terminations_beyond_the_queue_are_written_when_the_disk_is_back() {
    let dir = tempfile::tempdir().unwrap();
    let small = Settings {
        queue_max: 4,
        ..settings(dir.path())
    };
    let (store, _) = Store::open(options(&small)).unwrap();
    put(&store, [terminated(1, "s1")]);
    assert!(store.wait_until_settled_or_timeout(VerdictId(1)).await);
    let away = dir.path().join("away");
    fs::rename(database_path(&dir), &away).unwrap();
    put(&store, (2..=500).map(|n| terminated(n, &format!("s{n}"))));
    assert!(!store.wait_until_settled_or_timeout(VerdictId(500)).await);
    fs::rename(away, database_path(&dir)).unwrap();
    put(&store, [terminated(501, "last")]);
    assert!(store.wait_until_settled_or_timeout(VerdictId(501)).await);
    drop(store);
    assert_eq!(verify(dir.path()).unwrap().records, 501);
    assert_eq!(open(&dir).1.sessions.len(), 501);
}

#[tokio::test]
async fn a_lost_termination_is_written_once_and_not_after_its_reset() {
    let dir = tempfile::tempdir().unwrap();
    {
        let (store, _) = open(&dir);
        // The queue had no room for 2 to 4, which only the engine has.
        (2..=4).for_each(|id| store.queue.mark_lost(VerdictId(id)));
        put(&store, [terminated(1, "a"), reset(5, "c")]);
        assert!(store.wait_until_settled_or_timeout(VerdictId(5)).await);
        assert!(!store.is_durable(VerdictId(2)));
        let mut pushed = store.subscribe_terminations();
        let lost = [(4, "d"), (2, "b"), (3, "c"), (1, "a")];
        let in_force = |since: VerdictId| {
            assert_eq!(since, VerdictId(2));
            lost.map(|(id, name)| terminated(id, name)).to_vec()
        };
        store.rewrite_lost(in_force).unwrap();
        assert!(store.is_durable(VerdictId(2)) && store.is_durable(VerdictId(4)));
        let first = [(); 2].map(|()| pushed.try_recv().unwrap().id.0);
        assert_eq!(first, [1, 2]);
        // Nothing is left to be written.
        store.rewrite_lost(|_| panic!("nothing is lost")).unwrap();
    }
    assert_eq!(verify(dir.path()).unwrap().records, 4);
    assert_eq!(names(&open(&dir).1), ["a", "b", "d"]);
}

#[test]
fn old_verdicts_are_removed_by_age_and_terminations_stay() {
    let dir = tempfile::tempdir().unwrap();
    let mut short = settings(dir.path());
    short.verdicts_days_max = 1;
    let (store, _) = Store::open(options(&short)).unwrap();
    let day = 24 * 60 * 60;
    put(
        &store,
        [
            at(1, terminated(1, "kept")),
            at(2, terminated(1, "lifted")),
            at(3, reset(1, "lifted")),
            at(4, looping(1, "s", Action::Warn)),
            at(day, looping(1, "s", Action::Warn)),
        ],
    );
    while store.publisher.watermarks().settled < nth(day) {
        std::thread::yield_now();
    }
    let head = store.chain_head();
    store.enforce_retention(nth(day + 10).time()).unwrap();
    assert_eq!(store.retained_after(), nth(4));
    let removed = store.readers_page(nth(1));
    assert!(
        matches!(removed, Err(ReadError::NotRetained)),
        "{removed:?}"
    );
    let page = store.read_audit_log(None, 10, &all()).unwrap();
    assert_eq!(ids(&page), [nth(day).0]);
    drop(store);
    let verified = verify(dir.path()).unwrap();
    assert_eq!((verified.records, verified.removed), (1, 4));
    assert_eq!(Some(verified.head), head);
    assert_eq!(names(&open(&dir).1), ["kept"]);
}

impl Store {
    /// A page from the disk.
    fn readers_page(&self, after: VerdictId) -> Result<VerdictPage, ReadError> {
        self.read_audit_log(Some(after), 10, &all())
    }
}

#[test]
fn the_files_stay_within_bytes_max_and_the_oldest_go_first() {
    let dir = tempfile::tempdir().unwrap();
    let limit = Settings::BYTES_MIN;
    let small = Settings {
        bytes_max: limit,
        queue_max: 100_000,
        ..settings(dir.path())
    };
    let (store, _) = Store::open(options(&small)).unwrap();
    put(&store, [at(1, terminated(1, "kept"))]);
    // Some have as much text as a verdict may have.
    let large = |n: u128| {
        let mut issued = at(n, looping(n, "s", Action::Escalate));
        let reason = "x".repeat(if n.is_multiple_of(20) { 12 * 1024 } else { 20 });
        let verdict = (*issued.verdict).clone();
        issued.verdict = Arc::new(Verdict { reason, ..verdict });
        issued
    };
    put(&store, (2..=20_000).map(large));
    // The writer enforces it by itself.
    let dir_bytes = || StoreDir(dir.path().to_owned()).bytes();
    let mut most = 0;
    while store.publisher.watermarks().settled < nth(20_000) {
        most = most.max(dir_bytes());
        std::thread::yield_now();
    }
    assert!(most <= limit, "{most} bytes while it was written");
    let begin = std::time::Instant::now();
    while dir_bytes() > limit {
        assert!(begin.elapsed() < Duration::from_secs(60), "{}", dir_bytes());
        std::thread::yield_now();
    }
    store.enforce_retention(nth(20_001).time()).unwrap();
    assert!(dir_bytes() <= limit, "{}", dir_bytes());
    let page = store.read_audit_log_reverse(None, 1, &all()).unwrap();
    assert_eq!(ids(&page), [nth(20_000).0]);
    drop(store);
    assert!(verify(dir.path()).unwrap().removed > 1_000);
    assert_eq!(names(&open(&dir).1), ["kept"]);
}

#[test]
fn terminations_that_do_not_fit_are_counted_and_no_tenant_displaces_anothers() {
    let dir = tempfile::tempdir().unwrap();
    let small = Settings {
        bytes_max: Settings::BYTES_MIN,
        ..settings(dir.path())
    };
    let of_tenant = |tenant: &str, id: u128| {
        let tenant = Tenant::parse(tenant).unwrap();
        let mut issued = terminated(id, "s");
        let name = format!("{id:0>256}");
        let verdict = Verdict {
            session: SessionId::parse_for_tenant(&tenant, &name).unwrap(),
            ..(*issued.verdict).clone()
        };
        issued.verdict = Arc::new(verdict);
        issued
    };
    {
        let (store, _) = Store::open(options(&small)).unwrap();
        put(&store, (1..=10).map(|id| of_tenant("quiet", id)));
        put(&store, (11..=15_000).map(|id| of_tenant("loud", id)));
        while store.publisher.watermarks().settled < VerdictId(15_000) {
            std::thread::yield_now();
        }
        store.enforce_retention(UNIX_EPOCH).unwrap();
        assert!(store.removed_terminations() >= 1_000);
        assert_eq!(
            store.stats().removed_terminations,
            store.removed_terminations()
        );
        // One that a restart lifts is no longer called durable; it is the oldest of its tenant.
        let is_durable = |id| store.is_durable(VerdictId(id));
        assert!(!is_durable(11) && is_durable(1) && is_durable(15_000));
    }
    let state = open(&dir).1;
    let quiet = Tenant::parse("quiet").unwrap();
    let left = state.sessions.iter();
    assert_eq!(left.filter(|(id, _)| id.belongs_to(&quiet)).count(), 10);
    let newest = state.sessions.iter().any(|(_, body)| body.id.0 == 15_000);
    assert!(newest && state.sessions.len() > 5_000);
}

#[test]
fn surplus_tombstones_are_removed_oldest_first() {
    let dir = tempfile::tempdir().unwrap();
    {
        let settings = settings(dir.path());
        let three = StoreOptions {
            tombstones_max: 3,
            ..options(&settings)
        };
        let (store, _) = Store::open(three).unwrap();
        put(&store, (1..=9).map(|n| terminated(n, &format!("s{n}"))));
        while store.publisher.watermarks().settled < VerdictId(9) {
            std::thread::yield_now();
        }
        store.enforce_retention(UNIX_EPOCH).unwrap();
    }
    assert_eq!(names(&open(&dir).1), ["s7", "s8", "s9"]);
}

#[test]
fn a_backup_of_a_running_store_can_be_restored() {
    let (dir, target) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (store, _) = open(&dir);
    put(&store, [terminated(1, "a"), looping(2, "b", Action::Warn)]);
    while store.publisher.watermarks().settled < VerdictId(2) {
        std::thread::yield_now();
    }
    let file = target.path().join("copy.db");
    assert_eq!(back_up(dir.path(), &file).unwrap().records, 2);
    let mode = fs::metadata(&file).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    // A copy is not overwritten.
    assert!(back_up(dir.path(), &file).is_err());
    let in_use = plan_restore(dir.path(), &file).unwrap_err();
    assert!(matches!(in_use, StoreError::InUse { .. }), "{in_use}");
    put(&store, [terminated(3, "later"), reset(4, "a")]);
    drop(store);
    let plan = plan_restore(dir.path(), &file).unwrap();
    assert!(plan.replaces);
    let changes = RestoreChanges {
        lifted: vec!["later".to_owned()],
        terminated: vec!["a".to_owned()],
    };
    assert_eq!(plan.changes, Some(changes));
    plan.run().unwrap();
    assert_eq!(names(&open(&dir).1), ["a"]);
    let former = dir.path().join("replaced.db");
    assert!(former.exists());
    // Without its database a directory is not an empty one.
    fs::remove_file(database_path(&dir)).unwrap();
    let plan = plan_restore(dir.path(), &file).unwrap();
    assert!(plan.replaces && plan.changes.is_none());
    plan.run().unwrap();
    assert_eq!(verify(dir.path()).unwrap().records, 2);
    let empty = target.path().join("new");
    let plan = plan_restore(&empty, &file).unwrap();
    assert!(!plan.replaces && plan.changes == Some(RestoreChanges::default()));
    plan.run().unwrap();
    assert_eq!(verify(&empty).unwrap().records, 2);
    // A damaged copy is refused.
    let copy = Connection::open(&file).unwrap();
    copy.execute_batch("DELETE FROM records WHERE record = 1")
        .unwrap();
    assert!(plan_restore(&empty, &file).is_err());
}

#[test]
fn in_memory_only_is_reported() {
    let (store, _) = Store::open(options(&settings(Path::new("")))).unwrap();
    assert_eq!(store.health(), StoreHealth::InMemory);
    assert_eq!((store.dir(), store.chain_head()), (None, None));
}

#[tokio::test]
async fn verdicts_are_published_in_order_once() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(&dir);
    let mut verdicts = store.subscribe_verdicts();
    put(&store, (1..=300).map(|n| looping(n, "s", Action::Warn)));
    for n in 1..=300 {
        let record = verdicts.recv().await.unwrap();
        assert_eq!(record.verdict.id, VerdictId(n));
        assert_eq!(record.position.unwrap().record, n as u64);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// A page that SQL selects is the page that a filter over all verdicts selects.
    #[test]
    fn queries_agree_with_the_filter(
        verdicts in proptest::collection::vec((0u8..3, 0u8..3, 0u8..4, 0u8..3, 0u64..50), 1..60),
        query in (0u8..4, 0u8..4, 0u8..4, 0u8..4, 0u64..60, 0u64..60),
        most in 1usize..8,
        newest_first: bool,
    ) {
        let dir = tempfile::tempdir().unwrap();
        let (store, _) = open(&dir);
        let issued: Vec<VerdictRecord> = verdicts
            .iter()
            .zip(1..)
            .map(|(fields, id)| varied(id, *fields))
            .collect();
        put(&store, issued.iter().cloned());
        while store.publisher.watermarks().settled < store.last_verdict_id() {
            std::thread::yield_now();
        }
        let filter = varied_filter(query);
        let mut expected: Vec<u128> = issued
            .iter()
            .filter(|record| filter.matches(record))
            .map(|record| record.verdict.id.0)
            .collect();
        if newest_first {
            expected.reverse();
        }
        let (mut found, mut cursor) = (Vec::new(), None);
        loop {
            let page = if newest_first {
                store.read_audit_log_reverse(cursor, most, &filter).unwrap()
            } else {
                store.read_audit_log(cursor, most, &filter).unwrap()
            };
            found.extend(ids(&page));
            cursor = Some(page.cursor);
            if page.at_end {
                break;
            }
        }
        prop_assert_eq!(found, expected);
    }
}

/// A page of a wide range of times costs no more rows than a page may examine.
#[test]
fn a_page_of_a_wide_range_of_times_is_bounded() {
    let dir = written((1..=100).map(|n| {
        let mut issued = looping(n, "s", Action::Warn);
        let mut verdict = (*issued.verdict).clone();
        // The last 50 happened first.
        verdict.time = UNIX_EPOCH + Duration::from_secs(if n > 50 { 1 } else { 9 });
        issued.verdict = Arc::new(verdict);
        issued
    }));
    let (store, _) = open(&dir);
    let early = VerdictFilter {
        tenant: Some(Tenant::default()),
        end: Some(UNIX_EPOCH + Duration::from_secs(5)),
        ..all()
    };
    let (mut found, mut cursor, mut pages) = (Vec::new(), None, 0);
    loop {
        let page = store.read_audit_log(cursor, 10, &early).unwrap();
        let before = cursor.map_or(0, |cursor: VerdictId| cursor.0);
        assert!(page.cursor.0 - before <= 16, "{page:?}");
        found.extend(ids(&page));
        (cursor, pages) = (Some(page.cursor), pages + 1);
        if page.at_end {
            break;
        }
    }
    assert_eq!(found, (51..=100).collect::<Vec<u128>>());
    assert!(pages >= 6, "{pages}");
}

/// Of 100 verdicts only the last matches each of these filters.
#[test]
fn a_page_of_combined_filters_is_bounded() {
    let labels = || Labels::from([("team".to_owned(), "blue".to_owned())]);
    let dir = written((1..=100).map(|n| {
        let is_last = n == 100;
        let action = if is_last {
            Action::Escalate
        } else {
            Action::Warn
        };
        let mut issued = looping(n, "s", action);
        let mut verdict = (*issued.verdict).clone();
        verdict.time = UNIX_EPOCH + Duration::from_secs(if is_last { 9 } else { 1 });
        issued.verdict = Arc::new(verdict);
        issued.labels = Arc::new(labels());
        issued
    }));
    let (store, _) = open(&dir);
    let filter = || VerdictFilter {
        tenant: Some(Tenant::default()),
        ..all()
    };
    let detector = looping(1, "s", Action::Warn).verdict.detector.to_string();
    let start = Some(UNIX_EPOCH + Duration::from_secs(5));
    let min_action = Some(Action::Escalate);
    let filters = [
        VerdictFilter {
            min_action,
            ..filter()
        },
        VerdictFilter {
            detector: detector.clone(),
            start,
            ..filter()
        },
        VerdictFilter {
            labels: labels(),
            start,
            ..filter()
        },
        VerdictFilter {
            labels: labels(),
            detector,
            min_action,
            ..filter()
        },
    ];
    for filter in filters {
        let (mut found, mut cursor, mut pages) = (Vec::new(), VerdictId(0), 0);
        loop {
            let page = store.read_audit_log(Some(cursor), 10, &filter).unwrap();
            assert!(page.cursor.0 - cursor.0 <= 16, "{filter:?}: {page:?}");
            found.extend(ids(&page));
            (cursor, pages) = (page.cursor, pages + 1);
            if page.at_end {
                break;
            }
        }
        assert_eq!((found, pages), (vec![100], 7), "{filter:?}");
    }
}

const TENANTS: [&str; 3] = ["default", "blue", "red"];
const DETECTORS: [&str; 4] = ["read_loop", "cycle", "operator", "budget"];

/// A verdict of one of a few tenants, sessions, detectors, labels and times.
fn varied(
    id: u128,
    (tenant, session, detector, label, second): (u8, u8, u8, u8, u64),
) -> VerdictRecord {
    let action = Action::ALL[usize::from(detector) * 2];
    let mut issued = looping(id, "s", action);
    let tenant = Tenant::parse(TENANTS[usize::from(tenant)]).unwrap();
    let mut verdict = (*issued.verdict).clone();
    verdict.session = SessionId::parse_for_tenant(&tenant, &format!("s{session}")).unwrap();
    verdict.detector = DETECTORS[usize::from(detector)].into();
    verdict.time = UNIX_EPOCH + Duration::from_micros(second * 700);
    issued.verdict = Arc::new(verdict);
    issued.effect = Effect::None;
    issued.labels = Arc::new(varied_labels(label));
    issued
}

fn varied_labels(label: u8) -> Labels {
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    match label {
        0 => Labels::new(),
        1 => Labels::from([pair("team", "blue")]),
        _ => Labels::from([pair("env", "test"), pair("team", "red")]),
    }
}

/// A filter over what `varied` makes; the highest number means any.
fn varied_filter(
    (tenant, session, detector, label, start, end): (u8, u8, u8, u8, u64, u64),
) -> VerdictFilter {
    let tenant = TENANTS.get(usize::from(tenant)).copied();
    let tenant = tenant.map(|name| Tenant::parse(name).unwrap());
    let of = tenant.clone().unwrap_or_default();
    let time = |second| UNIX_EPOCH + Duration::from_micros(second * 700);
    VerdictFilter {
        session: (session < 3 && tenant.is_some())
            .then(|| SessionId::parse_for_tenant(&of, &format!("s{session}")).unwrap()),
        labels: varied_labels(if label == 3 { 0 } else { label }),
        detector: match detector {
            3 => String::new(),
            _ => DETECTORS[usize::from(detector)].to_owned(),
        },
        min_action: (label == 2).then_some(Action::Throttle),
        start: (start < 40).then(|| time(start)),
        end: (end < 50).then(|| time(end)),
        rated_only: false,
        tenant,
    }
}

/// The records of `tests/it/store/schema-1.db`.
fn fixture_records() -> Vec<VerdictRecord> {
    let mut of_agent = terminated(4, "c");
    let mut verdict = (*of_agent.verdict).clone();
    verdict.agent = crate::domain::AgentId::new("helper");
    of_agent.verdict = Arc::new(verdict);
    let snooze = VerdictRecord {
        effect: Effect::Snoozed(UNIX_EPOCH + Duration::from_secs(4_000_000_000)),
        ..reset(6, "d")
    };
    vec![
        looping(1, "s", Action::Warn),
        terminated(2, "a"),
        terminated(3, "b"),
        of_agent,
        reset(5, "b"),
        snooze,
    ]
}

#[test]
fn a_database_of_schema_1_is_read_by_this_version() {
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/store/schema-1.db");
    if std::env::var_os("UNSTUCK_REWRITE").is_some() && schema::SCHEMA_VERSION == 1 {
        let _ = fs::remove_file(&fixture);
        back_up(written(fixture_records()).path(), &fixture).unwrap();
    }
    let dir = tempfile::tempdir().unwrap();
    fs::copy(fixture, database_path(&dir)).unwrap();
    let (store, state) = open(&dir);
    assert_eq!(names(&state), ["a"]);
    let (_, agent, _) = &state.agents[0];
    assert_eq!((state.agents.len(), agent.as_str()), (1, "helper"));
    assert_eq!(state.snoozes[0].0.as_str(), "d");
    let page = store.read_audit_log(None, 10, &all()).unwrap();
    assert_eq!(ids(&page), [1, 2, 3, 4, 5, 6]);
    put(&store, [terminated(7, "e")]);
    drop(store);
    assert_eq!(verify(dir.path()).unwrap().records, 7);
    assert_eq!(names(&open(&dir).1), ["a", "e"]);
}

/// A database of an older schema on a disk that cannot be written stays as it is.
#[test]
fn a_database_without_ratings_lists_no_rated_verdicts() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(&dir);
    put(&store, [terminated(1, "a")]);
    let database = rusqlite::Connection::open(database_path(&dir)).unwrap();
    database.execute("DROP TABLE ratings", []).unwrap();
    let rated = VerdictFilter {
        rated_only: true,
        tenant: Some(Tenant::default()),
        ..all()
    };
    for page in [
        store.read_audit_log(None, 10, &rated).unwrap(),
        store.read_audit_log_reverse(None, 10, &rated).unwrap(),
    ] {
        assert_eq!((ids(&page).len(), page.at_end), (0, true));
    }
    let starts = [UNIX_EPOCH];
    let counts = store.rating_counts_by_span(&Tenant::default(), &starts);
    assert!(counts.unwrap().is_empty());
}

#[test]
fn the_queries_of_the_documentation_run() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/store.md");
    let docs = fs::read_to_string(docs).unwrap();
    let queries: Vec<&str> = docs
        .split("```sql\n")
        .skip(1)
        .map(|rest| rest.split("```").next().unwrap())
        .collect();
    assert_eq!(queries.len(), 6);
    let rated = VerdictRecord {
        effect: Effect::Rated {
            verdict: VerdictId(1),
            rating: Rating::Right,
        },
        ..reset(7, "s")
    };
    let dir = written(fixture_records().into_iter().chain([rated]));
    let connection = Connection::open(database_path(&dir)).unwrap();
    for query in queries {
        let mut statement = connection.prepare(query).unwrap();
        let mut rows = statement.query([]).unwrap();
        assert!(rows.next().unwrap().is_some(), "nothing found by {query}");
    }
    // The proof that the log still has a record that was noted outside of it.
    let proof = docs
        .lines()
        .find_map(|line| line.strip_prefix("    SELECT "));
    let head = crate::store::read_chain_head(dir.path()).unwrap();
    let proof = format!("SELECT {}", proof.unwrap()).replace("1204", &head.record.to_string());
    let found = connection.query_row(&proof, [], |row| Ok((row.get(0)?, row.get(1)?)));
    let (record, hash): (i64, String) = found.unwrap();
    let found = (u64::try_from(record).unwrap(), hash);
    assert_eq!(found, (head.record, head.hash.to_string()));
}

#[test]
fn a_committed_batch_whose_files_were_moved_away_is_not_written_twice() {
    let dir = tempfile::tempdir().unwrap();
    let store_dir = StoreDir(dir.path().to_owned());
    let mut database = Database::open(&store_dir, UNIX_EPOCH).unwrap();
    let batch = [terminated(1, "a"), terminated(2, "b")];
    let first = database.append(&batch, false).unwrap();
    assert!(database.append(&batch, false).is_err());
    let refused = batch.map(|issued| EncodedRecord {
        id: issued.verdict.id,
        bytes: record::encode(&issued, false).body.into(),
        decode: record::decode,
    });
    let retried = database.append_refused(&refused.each_ref(), true).unwrap();
    assert_eq!(retried, first);
    drop(database);
    assert_eq!(verify(dir.path()).unwrap().records, 2);
}

#[test]
fn a_refused_rating_leaves_the_earlier_one() {
    let dir = tempfile::tempdir().unwrap();
    let store_dir = StoreDir(dir.path().to_owned());
    let mut database = Database::open(&store_dir, UNIX_EPOCH).unwrap();
    let rated = |id, rating| VerdictRecord {
        effect: Effect::Rated {
            verdict: VerdictId(1),
            rating,
        },
        ..reset(id, "s")
    };
    let batch = [
        looping(1, "s", Action::Warn),
        rated(2, Rating::Right),
        rated(3, Rating::FalseAlarm),
    ];
    database.append(&batch, false).unwrap();
    database.withdraw(&[VerdictId(3)]).unwrap();
    drop(database);
    let connection = Connection::open(database_path(&dir)).unwrap();
    let sql = "SELECT rating FROM rated_verdicts";
    let found: String = connection.query_row(sql, [], |row| row.get(0)).unwrap();
    assert_eq!(found, "right");
    let sql = "SELECT count(*) FROM ratings";
    let found: i64 = connection.query_row(sql, [], |row| row.get(0)).unwrap();
    assert_eq!(found, 1);
    let sql = "SELECT group_concat(action) FROM operator_actions";
    let found: String = connection.query_row(sql, [], |row| row.get(0)).unwrap();
    assert_eq!(found, "rate,rate,withdrawn");
    assert_eq!(verify(dir.path()).unwrap().records, 4);
}

#[test]
fn the_newest_ratings_of_a_tenant_are_kept() {
    let rated = (1..=60).map(|id| VerdictRecord {
        effect: Effect::Rated {
            // Each of 50 verdicts, and the last of them 10 times more.
            verdict: VerdictId(u128::min(id, 50)),
            rating: Rating::Right,
        },
        ..reset(100 + id, "s")
    });
    let dir = written(rated);
    let connection = Connection::open(database_path(&dir)).unwrap();
    let count = |sql: &str| -> i64 { connection.query_row(sql, [], |row| row.get(0)).unwrap() };
    assert_eq!(count("SELECT count(*) FROM ratings"), 32);
    assert_eq!(count("SELECT count(*) FROM rated_verdicts"), 25);
    let of_last = "SELECT count(*) FROM ratings GROUP BY verdict_id ORDER BY 1 DESC LIMIT 1";
    assert_eq!(count(of_last), 8);
}

#[test]
fn what_was_sent_after_a_termination_is_read_with_it() {
    let disobeyed = |id, session: &str, events| {
        let issued = terminated(id, session);
        let mut verdict = (*issued.verdict).clone();
        verdict.wasted = Waste {
            events,
            tokens: 10 * events,
            cached_tokens: 0,
            usd: 0.5,
        };
        VerdictRecord {
            verdict: Arc::new(verdict),
            effect: Effect::Disobeyed,
            ..issued
        }
    };
    let dir = written(vec![
        terminated(1, "a"),
        terminated(2, "b"),
        disobeyed(3, "a", 1),
        disobeyed(4, "b", 1),
        disobeyed(5, "a", 10),
        reset(6, "b"),
    ]);
    let (_, state) = open(&dir);
    assert_eq!(names(&state), ["a"]);
    let [(session, agent, VerdictId(1), waste)] = &*state.disobeyed else {
        panic!("{:?}", state.disobeyed);
    };
    assert_eq!((session.as_str(), agent.is_main()), ("a", true));
    assert_eq!((waste.events, waste.tokens, waste.usd), (10, 100, 0.5));
    assert!(state.data_since.is_some());
}
