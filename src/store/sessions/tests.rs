use std::{
    path::{Path, PathBuf},
    time::{Duration, UNIX_EPOCH},
};

use tempfile::TempDir;

use super::*;
use crate::{
    domain::{RecoveredState, Tenant, VerdictId},
    store::{
        AuditSettings, Settings, Store, StoreOptions,
        testing::{reset, terminated},
    },
};

fn open_with(dir: &Path, bytes_max: u64) -> Store {
    open_recovered(dir, bytes_max).0
}

fn open_recovered(dir: &Path, bytes_max: u64) -> (Store, RecoveredState) {
    let settings = Settings {
        dir: dir.to_owned(),
        verdicts_days_max: 30,
        bytes_max,
        queue_max: 1_000,
        sync_secs_max: 2,
        key_file: PathBuf::new(),
    };
    let options = StoreOptions {
        settings: &settings,
        audit: AuditSettings { text: false },
        tombstone_age_max: Duration::from_secs(1_000_000),
        tombstones_max: 1_000_000,
        now: UNIX_EPOCH,
        on_fatal: Box::new(|error| panic!("{error}")),
    };
    Store::open(options).unwrap()
}

fn open(dir: &TempDir) -> Store {
    open_with(dir.path(), 1 << 30)
}

/// A session that was last active at this second.
fn frozen(id: &str, secs: u64) -> FrozenSession {
    FrozenSession {
        id: SessionId::parse(id).unwrap(),
        profile: "strict".into(),
        labels: Arc::new(Labels::from([("team".to_owned(), "payments".to_owned())])),
        last_seen: UNIX_EPOCH + Duration::from_secs(secs),
        head: vec![1, 2, 3],
        window: Some(vec![4; 1_000]),
    }
}

fn load_all(store: &Store) -> Vec<FrozenSession> {
    let mut sessions = Vec::new();
    store
        .load_sessions(|session| sessions.push(session))
        .unwrap();
    sessions
}

fn names(store: &Store) -> Vec<String> {
    let sessions = load_all(store).into_iter();
    sessions
        .map(|session| session.id.as_str().to_owned())
        .collect()
}

#[test]
fn sessions_are_read_back_after_a_restart_the_most_recently_active_first() {
    let dir = tempfile::tempdir().unwrap();
    let tenant = Tenant::parse("acme").unwrap();
    let of_tenant = FrozenSession {
        id: SessionId::parse_for_tenant(&tenant, "a").unwrap(),
        window: None,
        ..frozen("a", 3)
    };
    let saved = [frozen("a", 1), frozen("b", 2), of_tenant.clone()];
    open(&dir).save_sessions(saved.to_vec()).unwrap();
    let store = open(&dir);
    let expected = [of_tenant, frozen("b", 2), frozen("a", 1)];
    assert_eq!(load_all(&store), expected);
    // A later save replaces an earlier one.
    let head_only = FrozenSession {
        window: None,
        ..frozen("b", 4)
    };
    store.save_sessions(vec![head_only.clone()]).unwrap();
    let [head, ..] = <[_; 3]>::try_from(load_all(&store)).unwrap();
    assert_eq!(head, head_only);
}

#[tokio::test]
async fn a_termination_or_a_reset_removes_the_saved_session() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir);
    let saved = ["a", "b", "c"].map(|id| frozen(id, 1));
    store.save_sessions(saved.to_vec()).unwrap();
    [terminated(1, "a"), reset(2, "b")]
        .into_iter()
        .for_each(store.verdict_sink());
    assert!(store.wait_until_settled_or_timeout(VerdictId(2)).await);
    assert_eq!(names(&store), ["c"]);
}

#[test]
fn sessions_that_ended_or_were_idle_for_long_are_removed() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir);
    let saved = [frozen("ended", 9), frozen("idle", 1), frozen("live", 9)];
    store.save_sessions(saved.to_vec()).unwrap();
    store.remove_session(SessionId::parse("ended").unwrap());
    let idle_since = UNIX_EPOCH + Duration::from_secs(5);
    store.remove_sessions_idle_since(idle_since).unwrap();
    assert_eq!(names(&store), ["live"]);
}

#[tokio::test]
async fn a_removal_waits_while_the_disk_refuses_writes() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir);
    let saved = [frozen("ended", 9), frozen("live", 9)];
    store.save_sessions(saved.to_vec()).unwrap();
    let (database, away) = (dir.path().join("unstuck.db"), dir.path().join("away"));
    std::fs::rename(&database, &away).unwrap();
    // First the writer learns of it from the removal, then from a verdict.
    store.remove_session(SessionId::parse("ended").unwrap());
    store.save_sessions(vec![frozen("live", 10)]).unwrap_err();
    [terminated(1, "a")]
        .into_iter()
        .for_each(store.verdict_sink());
    assert!(!store.wait_until_settled_or_timeout(VerdictId(1)).await);
    store.save_sessions(vec![frozen("live", 11)]).unwrap_err();
    std::fs::rename(away, database).unwrap();
    [terminated(2, "b")]
        .into_iter()
        .for_each(store.verdict_sink());
    assert!(store.wait_until_settled_or_timeout(VerdictId(2)).await);
    store.save_sessions(vec![frozen("new", 1)]).unwrap();
    assert_eq!(names(&store), ["live", "new"]);
}

#[test]
fn a_removal_that_waits_when_the_store_is_closed_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir);
    let saved = (0..2_500).map(|n| frozen(&format!("s{n}"), 9));
    store.save_sessions(saved.collect()).unwrap();
    for n in 0..2_499 {
        store.remove_session(SessionId::parse(&format!("s{n}")).unwrap());
    }
    drop(store);
    assert_eq!(names(&open(&dir)), ["s2499"]);
}

#[test]
fn removals_that_wait_are_bounded_and_the_rest_is_counted() {
    let writes = StoreWrites::default();
    let ids = || (0..REMOVALS_MAX + 3).map(|n| SessionId::parse(&format!("s{n}")).unwrap());
    ids().for_each(|id| writes.add_removal(id));
    assert_eq!(writes.dropped_total(), 3);
    // One that the disk refused goes in front of those that wait.
    let refused = PendingWrite::removal(ids().take(1).collect());
    writes.refuse(Some(refused), || StoreError::Empty {
        path: PathBuf::new(),
    });
    assert_eq!(writes.dropped_total(), 4);
}

#[test]
fn a_closed_store_answers_at_once() {
    let writes = StoreWrites::default();
    writes.close();
    let result = writes.add(StoreWrite::SaveSessions(vec![frozen("a", 1)]));
    assert_eq!(
        result.try_recv().err(),
        Some(mpsc::TryRecvError::Disconnected)
    );
}

#[test]
fn saved_sessions_are_removed_after_the_log_and_before_terminations() {
    let dir = tempfile::tempdir().unwrap();
    let store = open_with(dir.path(), Settings::BYTES_MIN);
    [terminated(1, "a")]
        .into_iter()
        .for_each(store.verdict_sink());
    for batch in 0..20 {
        let session = |n| FrozenSession {
            window: Some(vec![7; 8_192]),
            ..frozen(&format!("s{batch}-{n}"), batch)
        };
        store
            .save_sessions((0..100).map(session).collect())
            .unwrap();
    }
    store.enforce_retention(UNIX_EPOCH).unwrap();
    let left = names(&store);
    assert!((1..1_500).contains(&left.len()), "{}", left.len());
    let verified = crate::store::verify(dir.path()).unwrap();
    assert_eq!((verified.records, verified.tombstones), (0, 1));
    // The next start reports it, because it cannot know which sessions they were.
    drop(store);
    let recovered = open_recovered(dir.path(), Settings::BYTES_MIN).1;
    assert_eq!(recovered.sessions_removed, Some(UNIX_EPOCH));
    let untouched = tempfile::tempdir().unwrap();
    assert_eq!(
        open_recovered(untouched.path(), 1 << 30).1.sessions_removed,
        None
    );
}

#[test]
fn without_a_directory_nothing_is_saved() {
    let store = open_with(Path::new(""), 1 << 30);
    store.save_sessions(vec![frozen("a", 1)]).unwrap();
    assert_eq!(load_all(&store), []);
}
