//! The work that a start does when many terminations are on disk, counted rather than
//! timed. `cargo bench --bench start` measures the time.

use std::{fs, path::Path, time::SystemTime};

use unstuck::{
    domain::SessionId,
    engine::RunMode,
    pb::SessionStatus,
    store::{Store, verify},
};

use crate::{
    harness::*,
    lifecycle::{Running, directory, unstuck},
    setup,
};

/// The service reads the clock too: it would drop terminations older than a week.
#[expect(
    clippy::disallowed_methods,
    reason = "replaces the clock of the service"
)]
fn now() -> SystemTime {
    SystemTime::now()
}

/// Terminates sessions as an operator, without the network. Returns the size of the
/// log.
fn end_sessions(dir: &Path, sessions: u32) -> u64 {
    let dir = dir.join("unstuck-data");
    let config = config(&format!("[store]\ndir = {dir:?}\n"));
    let (store, _) = Store::open(setup::store_options(&config, now())).unwrap();
    let (engine, _) = setup::engine(config, RunMode::Live, store.verdict_sink());
    for n in 0..sessions {
        let session = SessionId::parse(&format!("s{n}")).unwrap();
        engine.terminate_session(&session, &OPERATOR_REQUEST, now());
    }
    store.close();
    let log = verify(&dir).unwrap();
    assert_eq!(log.records, u64::from(sessions));
    log.bytes
}

/// The bytes of the table with the terminations in force.
fn tombstone_bytes(dir: &Path) -> u64 {
    let database = dir.join("unstuck-data/unstuck.db");
    let connection = rusqlite::Connection::open(database).unwrap();
    let sql = "SELECT sum(pgsize) FROM dbstat WHERE name = 'tombstones'";
    let bytes: i64 = connection.query_row(sql, [], |row| row.get(0)).unwrap();
    u64::try_from(bytes).unwrap()
}

/// The bytes that a process has read until now, from files and elsewhere.
fn bytes_read(running: &Running) -> u64 {
    let path = format!("/proc/{}/io", running.child.0.id());
    let figures = fs::read_to_string(path).unwrap();
    let read = figures
        .lines()
        .find_map(|line| line.strip_prefix("rchar: "));
    read.unwrap().parse().unwrap()
}

#[tokio::test]
async fn a_start_reads_the_terminations_in_force_once_and_not_the_log() {
    const SESSIONS: u32 = 30_000;
    let (none, many) = (directory(&[]), directory(&[]));
    let all_bytes = end_sessions(many.path(), SESSIONS);
    let bytes = tombstone_bytes(many.path());
    let [without, with] = [none, many].map(|dir| {
        // Far less than the terminations need: they use no room of sessions.
        let small = [("UNSTUCK__LIMITS__STATE_BYTES_MAX", "1000000")];
        let running = Running::start(unstuck(dir.path(), &["serve"], &small));
        (bytes_read(&running), running, dir)
    });
    let read = with.0 - without.0;
    // Besides them the process reads a few pages: the schema and the end of the log.
    assert!(
        (bytes..bytes + bytes / 20 + 200_000).contains(&read),
        "{read} for terminations of {bytes}"
    );
    assert!(all_bytes > 3 * bytes, "{all_bytes} for a log with {bytes}");
    let server = with.1.server().await;
    let ended = "unstuck_sessions{status=\"terminated\"}";
    assert_eq!(server.metric(ended).await, f64::from(SESSIONS));
    for session in ["s0", "s29999"] {
        let status = server.get(session).await.unwrap().status();
        assert_eq!(status, SessionStatus::Terminated);
    }
    assert_eq!(server.record(ask("x").of("new")).await.event_index, 0);
}
