//! A disk that is full, read-only, slow, failing or losing power under the real program.
//! `tests/faults/faults.c` makes it so.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::{Arc, LazyLock},
    time::{Duration, Instant},
};

use tempfile::TempDir;
use tokio::sync::Semaphore;
use tonic::Code;
use unstuck::pb::{self, Action, Rating, SessionStatus, Verdict};

use crate::{
    console,
    harness::*,
    lifecycle::{Running, check_refused, directory, output, text, unstuck},
    notify::{self, Receiver},
};

/// Terminates a session after two equal calls, and waits a second for the disk.
const SHORT_SYNC: &str = "[detect.exact_repeat]\ncount = 2\nterminate_after = 2\n\
                          [store]\nsync_secs_max = 1\n";

/// The preloaded library, built once per run.
static LIBRARY: LazyLock<(TempDir, PathBuf)> = LazyLock::new(|| {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/faults/faults.c");
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let library = dir.path().join("faults.so");
    let built = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-o"])
        .args([&library, &source])
        .arg("-ldl")
        .status();
    assert!(built.expect("a C compiler").success());
    (dir, library)
});

/// A directory for a service, with a disk that can be made to fail.
struct Disk {
    dir: TempDir,
    control: TempDir,
}

impl Disk {
    fn new() -> Self {
        let disk = Self {
            dir: directory(&[("unstuck.toml", SHORT_SYNC)]),
            control: tempfile::tempdir().unwrap(),
        };
        fs::create_dir(disk.synced()).unwrap();
        disk.set("ok");
        disk
    }

    /// Changes how the disk behaves.
    fn set(&self, mode: &str) {
        // A new file replaces the old one, because the library may read it at any time.
        let new = self.control.path().join("new");
        fs::write(&new, mode).unwrap();
        fs::rename(new, self.control.path().join("mode")).unwrap();
    }

    /// Where the library keeps the files as they were synced.
    fn synced(&self) -> PathBuf {
        self.control.path().join("synced")
    }

    fn data(&self) -> PathBuf {
        self.dir.path().join("unstuck-data")
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = unstuck(self.dir.path(), args, &[]);
        command
            .env("LD_PRELOAD", &LIBRARY.1)
            .env("FAULTS_DIR", "unstuck-data")
            .env("FAULTS_CONTROL", self.control.path().join("mode"))
            .env("FAULTS_SYNCED", self.synced());
        command
    }

    async fn serve(&self) -> (Running, Server) {
        let running = Running::start(self.command(&["serve"]));
        let server = running.server().await;
        (running, server)
    }

    /// Kills the service and starts another one on a disk that works.
    async fn restart(&self, running: Running) -> (Running, Server) {
        kill(running);
        self.set("ok");
        self.serve().await
    }
}

fn kill(mut running: Running) {
    running.child.0.kill().unwrap();
    running.child.0.wait().unwrap();
}

async fn check_in_force(server: &Server, verdicts: &[Verdict]) {
    for verdict in verdicts {
        let session = server.get(&verdict.session_id).await.unwrap();
        let found = session.termination.map(|found| found.verdict_id);
        assert_eq!(found.as_ref(), Some(&verdict.verdict_id), "{verdict:?}");
    }
}

#[track_caller]
fn check_intact(disk: &Disk) {
    let check = output(unstuck(disk.dir.path(), &["audit", "verify"], &[]));
    assert!(check.status.success(), "{}", text(&check.stderr));
}

async fn wait_until_healthy(server: &Server) {
    server.health_until(|health| health == "ok\n").await;
}

/// Opens a session. Returns whether its profile is on disk.
async fn open_durably(server: &Server, session: &str) -> bool {
    let request = pb::OpenSessionRequest {
        session_id: session.to_owned(),
        ..Default::default()
    };
    let answer = server.sessions.clone().open_session(request).await;
    answer.unwrap().into_inner().durable
}

#[tokio::test]
async fn a_full_disk_stops_no_detection_and_no_termination_but_refuses_resets() {
    let disk = Disk::new();
    let (running, server) = disk.serve().await;
    let mut ended = vec![server.terminate("before").await];
    assert!(ended[0].durable);
    for mode in ["enospc", "erofs", "eio"] {
        disk.set(mode);
        let failed = server.terminate(mode).await;
        assert!(!failed.durable, "{mode}");
        let answer = server.record(ask("x").of(mode)).await;
        assert_eq!(answer.verdict, Some(failed.clone()));
        let looping = format!("looping-{mode}");
        let results = server.play(&looping, ask("x").times(2)).await;
        assert_eq!(results[1].action(), Action::Terminate);
        assert!(!verdict(&results[1]).durable);
        ended.extend([failed, verdict(&results[1]).clone()]);

        assert!(!open_durably(&server, &format!("opened-{mode}")).await);
        let refused = server.reset("before").await.unwrap_err();
        assert_eq!(refused.code(), Code::Unavailable, "{refused:?}");
        let address = server.grpc.to_string();
        let args = ["reset", "before", "--reason", "x", "--server", &address];
        let typed = unstuck(disk.dir.path(), &args, &[]);
        let typed = tokio::task::spawn_blocking(|| output(typed)).await.unwrap();
        let why = "refused: the store cannot be written to, so nothing was changed";
        assert!(text(&typed.stderr).contains(why), "{}", text(&typed.stderr));
        let session = server.get("before").await.unwrap();
        assert_eq!(session.status(), SessionStatus::Terminated);
        let health = server.health().await;
        assert!(health.contains("cannot be written to"), "{health}");
        assert_eq!(server.metric("unstuck_store_write_failing").await, 1.0);

        disk.set("ok");
        wait_until_healthy(&server).await;
        let answer = server.record(ask("x").of(mode)).await;
        assert!(verdict(&answer).durable, "it was written later");
        assert!(open_durably(&server, "opened").await);
    }
    assert!(server.metric("unstuck_store_write_failures_total").await >= 6.0);
    let (running, server) = disk.restart(running).await;
    check_in_force(&server, &ended).await;
    running.stop().await;
    check_intact(&disk);
}

#[tokio::test]
async fn short_writes_are_completed() {
    let disk = Disk::new();
    disk.set("short");
    let (running, server) = disk.serve().await;
    let mut ended = Vec::new();
    for n in 0..20 {
        ended.push(server.terminate(&format!("s{n}")).await);
    }
    assert!(ended.iter().all(|verdict| verdict.durable));
    server.reset("s0").await.unwrap();
    let (running, server) = disk.restart(running).await;
    check_in_force(&server, &ended[1..]).await;
    running.stop().await;
    check_intact(&disk);
}

#[tokio::test]
async fn on_a_full_or_read_only_disk_it_starts_from_memory_with_its_terminations() {
    let disk = Disk::new();
    let (mut running, server) = disk.serve().await;
    let mut ended = vec![server.terminate("first").await];
    for start in 0..12 {
        // After a kill the write-ahead log has the last records, after a stop none.
        if start % 3 == 0 {
            running.stop().await;
        } else {
            kill(running);
        }
        let mode = ["enospc", "erofs"][start % 2];
        disk.set(mode);
        let server;
        (running, server) = disk.serve().await;
        let health = server.health().await;
        assert!(health.contains("cannot be written to"), "{start}: {health}");
        check_in_force(&server, &ended).await;
        // The audit log is read although nothing can be created beside it.
        let log = server.audit(Default::default()).await.unwrap();
        let listed = |ended: &Verdict| log.iter().any(|other| other.verdict_id == ended.verdict_id);
        assert!(ended.iter().all(listed), "{start}: {log:?}");
        let verdict = server.terminate(&format!("s{start}")).await;
        assert!(!verdict.durable, "{start}");
        let refused = server.reset("first").await.unwrap_err();
        assert_eq!(refused.code(), Code::Unavailable, "{refused:?}");
        if start % 4 == 3 {
            // There is room again.
            disk.set("ok");
            wait_until_healthy(&server).await;
            assert!(server.terminate(&format!("t{start}")).await.durable);
            ended.push(verdict);
        }
    }
    let (running, server) = disk.restart(running).await;
    check_in_force(&server, &ended).await;
    running.stop().await;
    check_intact(&disk);
}

#[tokio::test]
async fn a_full_disk_and_a_new_directory_start_from_memory() {
    let disk = Disk::new();
    fs::create_dir(disk.data()).unwrap();
    disk.set("enospc");
    let (running, server) = disk.serve().await;
    assert!(server.health().await.contains("cannot be written to"));
    assert_eq!(server.audit(Default::default()).await.unwrap(), []);
    let verdict = server.terminate("s").await;
    assert!(!verdict.durable);
    disk.set("ok");
    wait_until_healthy(&server).await;
    let (running, server) = disk.restart(running).await;
    check_in_force(&server, &[verdict]).await;
    running.stop().await;
    check_intact(&disk);
}

#[tokio::test]
async fn while_a_sync_hangs_later_responses_overtake_a_termination() {
    let disk = Disk::new();
    // A termination waits for longer than the test takes on a busy machine.
    let toml = SHORT_SYNC.replace("sync_secs_max = 1", "sync_secs_max = 600");
    fs::write(disk.dir.path().join("unstuck.toml"), toml).unwrap();
    let (running, server) = disk.serve().await;
    let mut stream = server.events().await;
    disk.set("hang");
    stream
        .send(batch(1, ask("x").of("looping").times(2).events()))
        .await;
    for sequence in 2..20 {
        let answer = stream.ask(batch(sequence, [turn("").of("other")])).await;
        assert_eq!(answer.sequence, sequence);
    }
    disk.set("ok");
    let answer = stream.receive().await;
    assert_eq!(answer.sequence, 1);
    assert!(verdict(&answer.results[1]).durable);
    running.stop().await;
    check_intact(&disk);
}

#[tokio::test]
async fn while_a_sync_hangs_a_termination_is_answered_as_not_durable() {
    let disk = Disk::new();
    let (running, server) = disk.serve().await;
    let before = server.terminate("before").await;
    let mut stream = server.events().await;
    disk.set("hang");
    let began = Instant::now();
    stream
        .send(batch(1, ask("x").of("looping").times(2).events()))
        .await;
    let answer = stream.receive().await;
    let waited = began.elapsed();
    assert!(waited >= Duration::from_millis(900), "{waited:?}");
    let late = verdict(&answer.results[1]);
    assert_eq!((answer.sequence, late.durable), (1, false));

    // By now nothing waits for the disk any more.
    let again = server.terminate("again").await;
    assert!(!again.durable);
    let refused = server.reset("before").await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable, "{refused:?}");
    let health = server.health().await;
    assert!(health.contains("has not finished a write"), "{health}");
    let age = || server.metric("unstuck_store_oldest_unsynced_seconds");
    let first = age().await;
    assert!(first >= 1.0, "{first}");
    within(async { while age().await <= first {} }).await;

    disk.set("ok");
    wait_until_healthy(&server).await;
    within(async { while age().await > 0.0 {} }).await;
    let answer = server.record(ask("x").of("looping")).await;
    assert!(verdict(&answer).durable);
    let ended = [before, late.clone(), again];
    let (running, server) = disk.restart(running).await;
    check_in_force(&server, &ended).await;
    running.stop().await;
    check_intact(&disk);
}

#[tokio::test]
async fn while_a_sync_hangs_a_termination_reaches_streams_watchers_and_receivers_once() {
    let mut receiver = Receiver::start(&[]).await;
    let disk = Disk::new();
    let toml = format!("{SHORT_SYNC}{}", notify::entry("a", receiver.address, ""));
    fs::write(disk.dir.path().join("unstuck.toml"), toml).unwrap();
    let (running, server) = disk.serve().await;
    let mut stream = server.events().await;
    stream
        .ask(batch(1, [turn("").of("s"), turn("").of("t")]))
        .await;
    let mut watch = server.watch(Default::default()).await.unwrap();
    disk.set("hang");
    let answered = server.terminate("s").await;
    assert!(!answered.durable);
    for session in ["s", "t"] {
        // The second time the disk works again, and nothing is repeated.
        let push = stream.receive().await;
        let pushed = verdict(&push.results[0]);
        assert_eq!(
            (&*pushed.session_id, pushed.durable),
            (session, session == "t")
        );
        let watched = within(watch.message()).await.unwrap().unwrap().verdict;
        assert_eq!(watched.as_ref(), Some(pushed));
        let notified = receiver.next().await;
        assert_eq!(notified.id(), pushed.verdict_id);
        if session == "s" {
            assert_eq!(pushed.verdict_id, answered.verdict_id);
            disk.set("ok");
            wait_until_healthy(&server).await;
            server.terminate("t").await;
        }
    }
    let (running, server) = disk.restart(running).await;
    check_in_force(&server, &[answered]).await;
    running.stop().await;
    check_intact(&disk);
}

#[tokio::test]
async fn terminations_beyond_the_queue_are_written_when_the_disk_is_back() {
    let disk = Disk::new();
    // Without a breaker, because all sessions loop. Their verdicts are large, so that fewer
    // of them fill the queue.
    let detector = "[detect.exact_repeat]\n";
    let large = format!("{detector}correction = \"{}\"\n", "x".repeat(6_000));
    let toml = SHORT_SYNC.replace(detector, &large) + "[breaker]\nshare_max = 1.0\n";
    fs::write(disk.dir.path().join("unstuck.toml"), toml).unwrap();
    let (running, server) = disk.serve().await;
    let mut stream = server.events().await;
    disk.set("hang");
    // The queue has 64 MiB. Only terminations are issued.
    let (mut ended, mut dropped) = (Vec::new(), 0.0);
    for sequence in 1.. {
        let sessions = (0..128).map(|n| format!("{:0200}", sequence * 128 + n));
        let events = sessions.flat_map(|session| ask(&"x".repeat(200)).of(&session).times(2));
        let answer = stream.ask(batch(sequence, events)).await;
        ended.extend(
            answer
                .results
                .into_iter()
                .filter_map(|result| result.verdict),
        );
        dropped = server.metric("unstuck_store_dropped_total").await;
        if dropped > 500.0 {
            break;
        }
    }
    println!("{} terminations, {dropped} without room", ended.len());
    assert!(ended.iter().all(|verdict| !verdict.durable));
    disk.set("ok");
    wait_until_healthy(&server).await;
    let last = ended.last().unwrap();
    let is_written = async || {
        let answer = server.record(ask("x").of(&last.session_id)).await;
        verdict(&answer).durable
    };
    within(async { while !is_written().await {} }).await;
    let (running, server) = disk.restart(running).await;
    check_in_force(&server, &ended[ended.len() - dropped as usize..]).await;
    check_in_force(&server, &ended[..10]).await;
    running.stop().await;
    check_intact(&disk);
}

#[tokio::test]
async fn while_the_save_of_a_session_hangs_streams_and_terminations_go_on() {
    let disk = Disk::new();
    let (running, server) = disk.serve().await;
    let before = server.terminate("before").await;
    let mut stream = server.events().await;
    disk.set("hang");
    // A session without a verdict: only its save reaches the disk.
    stream.ask(batch(1, [turn("").of("saved")])).await;
    let health = server
        .health_until(|health| health.contains("has not finished a write"))
        .await;
    assert!(health.starts_with("degraded"), "{health}");
    // All of these are answered although the disk still hangs.
    for sequence in 2..20 {
        let answer = stream.ask(batch(sequence, [turn("").of("saved")])).await;
        assert_eq!(answer.sequence, sequence);
    }
    let operators = server.terminate("operators").await;
    let results = server.play("looping", ask("x").times(2)).await;
    let detected = verdict(&results[1]).clone();
    assert!(!operators.durable && !detected.durable);
    let refused = server.reset("before").await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable, "{refused:?}");

    disk.set("ok");
    wait_until_healthy(&server).await;
    let (running, server) = disk.restart(running).await;
    check_in_force(&server, &[before, operators, detected]).await;
    running.stop().await;
    check_intact(&disk);
}

#[tokio::test]
async fn responses_that_wait_for_the_disk_are_bounded() {
    let disk = Disk::new();
    let toml = format!("{SHORT_SYNC}[limits]\nunread_responses_max = 2\n");
    fs::write(disk.dir.path().join("unstuck.toml"), toml).unwrap();
    let (_running, server) = disk.serve().await;
    let mut stream = server.events().await;
    disk.set("hang");
    let began = Instant::now();
    for sequence in 1..=3 {
        let looping = format!("looping-{sequence}");
        stream
            .send(batch(sequence, ask("x").of(&looping).times(2).events()))
            .await;
    }
    stream.send(batch(4, [turn("").of("other")])).await;
    let mut sequences = Vec::new();
    for _ in 0..4 {
        sequences.push(stream.receive().await.sequence);
    }
    // The other session waits until the first two have been answered.
    assert_eq!(&sequences[..2], [1, 2], "{sequences:?}");
    assert!(began.elapsed() >= Duration::from_millis(900));
}

#[tokio::test]
async fn a_reset_refused_by_a_hanging_disk_has_not_happened_after_a_kill_either() {
    for is_killed in [true, false] {
        let disk = Disk::new();
        let (running, server) = disk.serve().await;
        let verdict = server.terminate("s").await;
        disk.set("hang");
        let refused = server.reset("s").await.unwrap_err();
        assert_eq!(refused.code(), Code::Unavailable, "{refused:?}");
        check_in_force(&server, std::slice::from_ref(&verdict)).await;
        if !is_killed {
            disk.set("ok");
            wait_until_healthy(&server).await;
            let log = server.audit(Default::default()).await.unwrap();
            assert_eq!(log.len(), 1, "it has not happened: {log:?}");
        }
        let (running, server) = disk.restart(running).await;
        check_in_force(&server, &[verdict]).await;
        // It can be done now.
        server.reset("s").await.unwrap();
        let (running, server) = disk.restart(running).await;
        assert_eq!(server.get("s").await.unwrap_err().code(), Code::NotFound);
        running.stop().await;
        check_intact(&disk);
    }
}

#[tokio::test]
async fn a_rating_refused_by_a_hanging_disk_leaves_the_earlier_one() {
    let disk = Disk::new();
    let (running, server) = disk.serve().await;
    let results = server.play("s", ask("colour").times(2)).await;
    let verdict_id = &verdict(&results[1]).verdict_id;
    let rate = |server: Server, rating: Rating| {
        let request = unstuck::pb::RateVerdictRequest {
            verdict_id: verdict_id.clone(),
            rating: rating.into(),
            reason: String::new(),
        };
        async move { within(server.sessions.clone().rate_verdict(request)).await }
    };
    let server_again = running.server().await;
    rate(server, Rating::Right).await.unwrap();
    disk.set("hang");
    let refused = rate(server_again, Rating::FalseAlarm).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable, "{refused:?}");
    let (running, server) = disk.restart(running).await;
    let request = unstuck::pb::ListVerdictsRequest {
        rated_only: true,
        ..Default::default()
    };
    let rated = server.audit(request).await.unwrap();
    assert_eq!(rated.len(), 1);
    let feedback = rated[0].feedback.as_ref().unwrap();
    assert_eq!(feedback.rating(), Rating::Right);
    running.stop().await;
    check_intact(&disk);
}

#[tokio::test]
async fn a_failed_sync_ends_the_process_and_a_restart_has_what_was_answered() {
    let disk = Disk::new();
    let (running, server) = disk.serve().await;
    let mut ended = Vec::new();
    for n in 0..5 {
        ended.push(server.terminate(&format!("s{n}")).await);
    }
    disk.set("eio-sync");
    let request = unstuck::pb::ResetSessionRequest {
        session_id: "s0".to_owned(),
        reason: "it is checked".to_owned(),
    };
    let answer = within(server.sessions.clone().reset_session(request)).await;
    assert!(answer.is_err(), "{answer:?}");
    let (status, log) = running.ended().await;
    assert_eq!(status.code(), Some(1), "{log}");
    assert!(log.contains("cannot sync"), "{log}");
    disk.set("ok");
    let (running, server) = disk.serve().await;
    check_in_force(&server, &ended).await;
    running.stop().await;
    check_intact(&disk);
}

/// Pseudo-random numbers, the same in every run: xorshift64.
struct Rng(u64);

impl Rng {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

/// The files as a power failure may leave them: each sector that was changed after the
/// last sync of its file is the old or the new one.
fn lose_power(disk: &Disk, rng: &mut Rng) -> Disk {
    const SECTOR: usize = 512;
    let after = Disk::new();
    fs::create_dir(after.data()).unwrap();
    for name in ["unstuck.db", "unstuck.db-wal", "head"] {
        let synced = fs::read(disk.synced().join(name)).unwrap_or_default();
        let written = fs::read(disk.data().join(name)).unwrap_or_default();
        // Half of the time nothing that was not synced is there.
        let is_lucky = rng.below(2) == 0;
        let is_longer = is_lucky && rng.below(2) == 0;
        let len = if is_longer {
            written.len()
        } else {
            synced.len()
        };
        let mut bytes = synced.clone();
        bytes.resize(len, 0);
        for (index, sector) in bytes.chunks_mut(SECTOR).enumerate() {
            let new = written.get(index * SECTOR..index * SECTOR + sector.len());
            if let Some(new) = new.filter(|_| is_lucky && rng.below(2) == 0) {
                sector.copy_from_slice(new);
            }
        }
        // What is there after the power failure is on the disk.
        for dir in [after.data(), after.synced()] {
            fs::write(dir.join(name), &bytes).unwrap();
        }
    }
    after
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_power_failure_loses_no_answered_termination() {
    let mut rng = Rng(0x1234_5678_9abc_def1);
    let mut disk = Disk::new();
    let mut ended = Vec::new();
    for round in 0..12 {
        let (running, server) = disk.serve().await;
        check_in_force(&server, &ended).await;
        let count = Arc::new(Semaphore::new(0));
        let clients = (0..3).map(|client| {
            let (server, count) = (server.clone(), count.clone());
            tokio::spawn(async move {
                let mut answered = Vec::new();
                for n in 0.. {
                    let request = unstuck::pb::TerminateSessionRequest {
                        session_id: format!("r{round}-c{client}-{n}"),
                        reason: "the power fails".to_owned(),
                    };
                    let answer = server.sessions.clone().terminate_session(request).await;
                    let Ok(answer) = answer else { break };
                    answered.extend(answer.into_inner().verdict);
                    count.add_permits(1);
                }
                answered
            })
        });
        let clients: Vec<_> = clients.collect();
        let answers = 5 + rng.below(100) as u32;
        within(count.acquire_many(answers)).await.unwrap().forget();
        kill(running);
        for client in clients {
            let answered = client.await.unwrap();
            assert!(answered.iter().all(|verdict| verdict.durable));
            ended.extend(answered);
        }
        disk = lose_power(&disk, &mut rng);
    }
    assert!(ended.len() > 50, "{}", ended.len());
    let (running, server) = disk.serve().await;
    check_in_force(&server, &ended).await;
    running.stop().await;
    check_intact(&disk);
}

#[tokio::test]
async fn files_removed_under_a_running_service_are_not_called_durable() {
    for removed in [
        &["unstuck.db"][..],
        &["unstuck.db-wal"],
        &["unstuck.db", "unstuck.db-wal", "unstuck.db-shm", "head"],
    ] {
        let disk = Disk::new();
        let (running, server) = disk.serve().await;
        assert!(server.terminate("a").await.durable);
        for name in removed {
            fs::remove_file(disk.data().join(name)).unwrap();
        }
        assert!(!server.terminate("b").await.durable, "{removed:?}");
        let refused = server.reset("a").await.unwrap_err();
        assert_eq!(refused.code(), Code::Unavailable, "{refused:?}");
        assert!(server.health().await.contains("cannot be written to"));
        check_refused(
            unstuck(disk.dir.path(), &["serve"], &[]),
            &["unstuck-data", "in use by another process"],
        );
        drop(running);
    }
}

#[tokio::test]
async fn a_wall_clock_that_was_set_by_an_hour_is_logged_and_in_the_health() {
    let disk = Disk::new();
    let (running, server) = disk.serve().await;
    assert_eq!(server.health().await, "ok\n");
    disk.set("clock");
    let health = server.health_until(|health| health != "ok\n").await;
    let note = "degraded; the wall clock differs from the service's time by 3";
    assert!(health.starts_with(note), "{health}");
    let logged = "the wall clock differs from the service's time";
    let running = running.wait_for_log(logged).await;
    disk.set("ok");
    wait_until_healthy(&server).await;
    let running = running.wait_for_log("agree again").await;
    running.stop().await;
}

#[tokio::test]
async fn a_start_with_a_clock_ten_years_ahead_expires_nothing() {
    let disk = Disk::new();
    let (running, server) = disk.serve().await;
    let ended = [server.terminate("ended").await];
    server.play("live", turn("").times(3)).await;
    running.stop().await;
    // The second start finds the verdicts of the first, ten years ahead.
    for name in ["first", "second"] {
        disk.set("clock-ten");
        let (running, server) = disk.serve().await;
        let note = "the wall clock was 3650 days ahead of the last run";
        let health = server.health().await;
        assert!(health.contains(note), "{health}");
        check_in_force(&server, &ended).await;
        assert_eq!(server.get("live").await.unwrap().events, 3);
        // It started at the time that its verdicts have, not at that of the last run.
        let fleet = console::post_json(&server, "fleet", serde_json::json!({})).await;
        let started_ms = fleet["data"]["started_ms"].as_u64().unwrap();
        let time = server.terminate(name).await.time.unwrap();
        assert!(
            started_ms.abs_diff(time.seconds as u64 * 1_000) < 600_000,
            "{fleet}"
        );
        let (_, log) = running.stop().await;
        assert!(log.contains("far ahead of the last run"), "{log}");
    }
    disk.set("ok");
    let (running, server) = disk.serve().await;
    assert_eq!(server.health().await, "ok\n");
    check_in_force(&server, &ended).await;
    assert_eq!(server.get("live").await.unwrap().events, 3);
    running.stop().await;
    check_intact(&disk);
}
