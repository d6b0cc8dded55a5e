use std::{
    fs,
    io::ErrorKind,
    os::unix::fs::PermissionsExt,
    sync::{
        atomic::{AtomicBool, AtomicU8, AtomicUsize},
        mpsc,
    },
    time::{Duration, UNIX_EPOCH},
};

use tempfile::TempDir;

use super::{
    frame::LogEntry,
    record::encode,
    testing::{looping, reset, terminated},
    *,
};
use crate::domain::Action;

fn settings(dir: &Path) -> Settings {
    Settings {
        dir: dir.to_owned(),
        verdicts_days_max: 30,
        bytes_max: 1 << 30,
        queue_max: 1_000,
    }
}

fn opening(settings: &Settings) -> StoreOptions<'_> {
    StoreOptions {
        settings,
        audit: AuditSettings { text: false },
        tombstone_age_max: Duration::from_secs(1_000_000),
        tombstones_max: 1_000_000,
        now: UNIX_EPOCH,
        on_fatal: Box::new(|error| panic!("{error}")),
    }
}

/// Segments of some 250 verdicts.
const SMALL: LogFileFactory = LogFileFactory {
    segment_bytes: 64 * 1024,
    ..LogFileFactory::FILES
};

fn open(dir: &TempDir) -> (Store, RecoveredState) {
    Store::open_with_files(opening(&settings(dir.path())), SMALL).unwrap()
}

fn put(store: &Store, issued: impl IntoIterator<Item = VerdictRecord>) {
    let outlet = store.verdict_sink();
    issued.into_iter().for_each(outlet);
}

/// The names of the sessions that stand terminated.
fn names(standing: &RecoveredState) -> Vec<&str> {
    let mut names: Vec<&str> = standing
        .sessions
        .iter()
        .map(|(id, _)| id.as_str())
        .collect();
    names.sort_unstable();
    names
}

fn ids(page: &VerdictPage) -> Vec<u128> {
    page.verdicts
        .iter()
        .map(|issued| issued.verdict.id.0)
        .collect()
}

/// A store that was written to and closed.
fn written(issued: impl IntoIterator<Item = VerdictRecord>) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    put(&open(&dir).0, issued);
    dir
}

fn segment(dir: &TempDir, number: u32) -> PathBuf {
    StoreDir(dir.path().to_owned()).segment(number)
}

fn change(path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = fs::read(path).unwrap();
    change(&mut bytes);
    fs::write(path, bytes).unwrap();
}

#[tokio::test]
async fn what_was_settled_stands_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    {
        let (store, standing) = open(&dir);
        assert!(standing.sessions.is_empty());
        put(
            &store,
            [terminated(1, "a"), terminated(2, "b"), reset(3, "a")],
        );
        assert!(store.wait_until_settled(VerdictId(3)).await);
        assert_eq!(verify(dir.path()).unwrap().records, 3);
    }
    let (store, standing) = open(&dir);
    assert_eq!(
        (names(&standing), standing.last_verdict),
        (vec!["b"], VerdictId(3))
    );
    let back = standing.sessions[0].1.decode().unwrap();
    assert_eq!(
        (back.verdict.id, back.verdict.durable),
        (VerdictId(2), true)
    );
    assert!(store.is_durable(VerdictId(2)));
    assert_eq!(
        ids(&store.read_audit_log(None, 10, |_| true).unwrap()),
        [1, 2, 3]
    );
}

#[test]
fn a_damaged_tail_is_set_aside_and_the_rest_stands() {
    for cut in [1, 50, 100] {
        let dir = written([terminated(1, "a")]);
        put(&open(&dir).0, [terminated(2, "b")]);
        let path = segment(&dir, 1);
        change(&path, |bytes| bytes.truncate(bytes.len() - cut));
        assert!(!verify(dir.path()).unwrap().is_intact());
        let (store, standing) = open(&dir);
        assert_eq!(names(&standing), ["a"]);
        let StoreHealth::DamagedTail(aside) = store.health() else {
            panic!("{:?}", store.health())
        };
        let (_, tail) = store.damaged_tail().unwrap();
        assert_eq!(fs::read(aside).unwrap().len() as u64, tail.bytes);
        put(&store, [terminated(3, "c")]);
        drop(store);
        assert!(verify(dir.path()).unwrap().is_intact());
        assert_eq!(names(&open(&dir).1), ["a", "c"]);
    }
}

#[test]
fn damage_in_the_middle_is_refused_and_the_file_named() {
    let dir = written([terminated(1, "a")]);
    put(&open(&dir).0, [terminated(2, "b")]);
    change(&segment(&dir, 1), |bytes| bytes[80] ^= 1);
    for refused in [
        Store::open(opening(&settings(dir.path()))).err(),
        verify(dir.path()).err(),
    ] {
        let why = refused.unwrap().to_string();
        assert!(
            why.contains("audit-00000001.log is damaged at byte 0"),
            "{why}"
        );
    }
}

#[test]
fn records_in_another_order_are_damage() {
    let dir = written([terminated(1, "a")]);
    let first = fs::metadata(segment(&dir, 1)).unwrap().len() as usize;
    put(&open(&dir).0, [terminated(2, "b")]);
    change(&segment(&dir, 1), |bytes| bytes.rotate_left(first));
    let why = verify(dir.path()).unwrap_err().to_string();
    assert!(why.contains("does not follow"), "{why}");
}

#[test]
fn a_record_taken_out_of_the_middle_is_damage() {
    let dir = written([terminated(1, "a")]);
    let bytes = || fs::metadata(segment(&dir, 1)).unwrap().len() as usize;
    let first = bytes();
    put(&open(&dir).0, [terminated(2, "b")]);
    let second = bytes();
    put(&open(&dir).0, [terminated(3, "c")]);
    change(&segment(&dir, 1), |bytes| drop(bytes.drain(first..second)));
    let why = verify(dir.path()).unwrap_err().to_string();
    assert!(why.contains("does not follow"), "{why}");
}

#[test]
fn a_missing_part_is_refused_and_named() {
    let dir = tempfile::tempdir().unwrap();
    write_all(&dir, many(1..=1_000));
    fs::remove_file(segment(&dir, 1)).unwrap();
    let why = verify(dir.path()).unwrap_err().to_string();
    assert!(why.contains("audit-00000001.log is missing"), "{why}");
    fs::remove_file(dir.path().join("anchor")).unwrap();
    let why = verify(dir.path()).unwrap_err().to_string();
    assert!(why.contains("anchor is missing"), "{why}");
}

#[test]
fn a_start_that_was_cut_off_is_begun_again() {
    let dir = tempfile::tempdir().unwrap();
    File::create(segment(&dir, 1)).unwrap();
    put(&open(&dir).0, [terminated(1, "a")]);
    assert_eq!(names(&open(&dir).1), ["a"]);
}

#[test]
fn a_new_store_is_its_owners_alone() {
    let dir = tempfile::tempdir().unwrap();
    let inner = dir.path().join("data");
    let _store = Store::open(opening(&settings(&inner))).unwrap();
    let mode = fs::metadata(inner).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
}

#[test]
fn a_second_store_in_the_same_directory_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let _first = open(&dir);
    let second = Store::open(opening(&settings(dir.path()))).err();
    assert!(
        matches!(second, Some(StoreError::InUse { .. })),
        "{second:?}"
    );
}

/// Verdicts that fill some 250 bytes each.
fn many(ids: std::ops::RangeInclusive<u128>) -> impl Iterator<Item = VerdictRecord> {
    // A second apart, so that they have an age.
    ids.map(|id| looping((id * 1_000) << 80, "s", Action::Escalate))
}

fn nth(n: u128) -> VerdictId {
    VerdictId((n * 1_000) << 80)
}

/// Writes them in the order in which a store would, without its queue.
fn write_all(dir: &TempDir, issued: impl Iterator<Item = VerdictRecord>) {
    let (store, _) = open(dir);
    let mut log = {
        let disk = store.disk.as_ref().unwrap();
        let (folder, segments) = (disk.folder.clone(), disk.segments.clone());
        Log::new(
            folder,
            segments,
            store_dir::Segment::new(1),
            frame::GENESIS,
            SMALL,
        )
        .unwrap()
    };
    let all: Vec<VerdictRecord> = issued.collect();
    for batch in all.chunks(100) {
        let mut payload = Vec::new();
        for issued in batch {
            let body = encode(issued, false);
            let (kind, id) = (record::kind(issued.effect), issued.verdict.id);
            let body = &body;
            LogEntry { kind, id, body }.append_to(&mut payload);
        }
        let (first, last) = (&batch[0], &batch[batch.len() - 1]);
        log.commit(&payload, Some((first.verdict.id, last.verdict.id)))
            .unwrap();
    }
}

#[test]
fn what_is_let_go_of_leaves_its_terminations_and_a_sound_chain() {
    let dir = tempfile::tempdir().unwrap();
    let ended = [
        terminated(5, "kept"),
        terminated(6, "free"),
        reset(7, "free"),
    ];
    write_all(&dir, ended.into_iter().chain(many(1..=2_000)));
    let all = verify(dir.path()).unwrap();
    assert!(all.segments > 2 && all.records == 2_003);
    {
        let small = Settings {
            bytes_max: SMALL.segment_bytes,
            ..settings(dir.path())
        };
        let (store, _) = Store::open_with_files(opening(&small), SMALL).unwrap();
        assert!(store.read_after(VerdictId(5), 1, |_| true).is_ok());
        store.enforce_retention(nth(2_000).time()).unwrap();
        assert!(store.stats().bytes <= 2 * SMALL.segment_bytes);
        let gone = store.read_after(VerdictId(5), 1, |_| true);
        assert!(matches!(gone, Err(ReadError::NotRetained)), "{gone:?}");
        let first = store
            .retained_after()
            .time()
            .duration_since(UNIX_EPOCH)
            .unwrap();
        let first = u128::from(first.as_secs()) + 1;
        let page = store.read_audit_log(None, 2, |_| true).unwrap();
        assert_eq!(ids(&page), [nth(first).0, nth(first + 1).0]);
    }
    let rest = verify(dir.path()).unwrap();
    assert!(rest.records < 2_000 && rest.begins_at_segment > 1);
    assert_eq!(rest.head, all.head);
    assert_eq!(names(&open(&dir).1), ["kept"]);
}

#[test]
fn no_more_terminations_are_carried_on_or_stand_than_there_may_be_tombstones() {
    let dir = tempfile::tempdir().unwrap();
    let ended = (1..=9).map(|n| terminated(n, &format!("s{n}")));
    write_all(&dir, ended.chain(many(1..=2_000)));
    let small = Settings {
        bytes_max: SMALL.segment_bytes,
        ..settings(dir.path())
    };
    let three = StoreOptions {
        tombstones_max: 3,
        ..opening(&small)
    };
    let (store, standing) = Store::open_with_files(three, SMALL).unwrap();
    assert_eq!(names(&standing), ["s7", "s8", "s9"]);
    let disk = store.disk.as_ref().unwrap();
    let retention = Retention {
        terminations_max: 5,
        ..disk.retention
    };
    disk.segments
        .enforce_retention(&retention, nth(2_000).time())
        .unwrap();
    drop(store);
    let (_, carried_on) = open(&dir);
    assert_eq!(names(&carried_on), ["s5", "s6", "s7", "s8", "s9"]);
}

/// The log may be large, and this happens while the service runs.
#[test]
fn to_let_go_of_the_oldest_nothing_else_is_read() {
    let dir = tempfile::tempdir().unwrap();
    write_all(
        &dir,
        [terminated(5, "kept")].into_iter().chain(many(1..=2_000)),
    );
    let last = verify(dir.path()).unwrap().segments as u32;
    let half = Settings {
        bytes_max: 4 * SMALL.segment_bytes,
        ..settings(dir.path())
    };
    let (store, _) = Store::open_with_files(opening(&half), SMALL).unwrap();
    // Whoever reads it will find that it is damaged.
    let damaged = segment(&dir, last - 1);
    change(&damaged, |bytes| bytes[200] ^= 1);
    store.enforce_retention(nth(2_000).time()).unwrap();
    assert!(verify(dir.path()).is_err());
    change(&damaged, |bytes| bytes[200] ^= 1);
    assert!(verify(dir.path()).unwrap().begins_at_segment > 1);
    drop(store);
    assert_eq!(names(&open(&dir).1), ["kept"]);
}

#[test]
fn a_termination_that_was_let_go_of_is_still_lifted_by_a_later_reset() {
    let dir = tempfile::tempdir().unwrap();
    let lifted = reset(nth(2_001).0, "free");
    let ended = [terminated(5, "kept"), terminated(6, "free")];
    write_all(
        &dir,
        ended.into_iter().chain(many(1..=2_000)).chain([lifted]),
    );
    let small = Settings {
        bytes_max: SMALL.segment_bytes,
        ..settings(dir.path())
    };
    let (store, standing) = Store::open_with_files(opening(&small), SMALL).unwrap();
    assert_eq!(names(&standing), ["kept"]);
    store.enforce_retention(nth(2_000).time()).unwrap();
    drop(store);
    assert!(verify(dir.path()).unwrap().begins_at_segment > 1);
    assert_eq!(names(&open(&dir).1), ["kept"]);
}

#[test]
fn what_is_damaged_is_not_let_go_of() {
    let dir = tempfile::tempdir().unwrap();
    write_all(&dir, many(1..=2_000));
    let small = Settings {
        bytes_max: SMALL.segment_bytes,
        ..settings(dir.path())
    };
    let (store, _) = Store::open_with_files(opening(&small), SMALL).unwrap();
    let first = segment(&dir, 1);
    change(&first, |bytes| bytes.truncate(bytes.len() - 1));
    let why = store
        .enforce_retention(nth(2_000).time())
        .unwrap_err()
        .to_string();
    assert!(why.contains("audit-00000001.log is damaged"), "{why}");
    assert!(first.exists());
}

#[test]
fn verdicts_are_let_go_of_by_age() {
    let dir = tempfile::tempdir().unwrap();
    write_all(&dir, many(1..=2_000));
    let (store, _) = open(&dir);
    let day = Duration::from_secs(24 * 60 * 60);
    store
        .enforce_retention(nth(2_000).time() + 29 * day)
        .unwrap();
    let kept = verify(dir.path()).unwrap();
    store
        .enforce_retention(nth(2_000).time() + 31 * day)
        .unwrap();
    let left = verify(dir.path()).unwrap();
    assert!(left.records < kept.records, "{left:?} {kept:?}");
    assert_eq!(left.segments, 1);
}

#[test]
fn a_page_goes_on_where_the_last_one_ended() {
    let dir = tempfile::tempdir().unwrap();
    write_all(&dir, many(1..=2_000));
    let (store, _) = open(&dir);
    let (mut after, mut seen) = (None, Vec::new());
    loop {
        let page = store
            .read_audit_log(after, 50, |v| v.verdict.id.0 % 7 == 0)
            .unwrap();
        seen.extend(ids(&page));
        after = Some(page.cursor);
        if page.at_end {
            break;
        }
    }
    let expected: Vec<u128> = (1..=2_000)
        .map(|n| nth(n).0)
        .filter(|n| n % 7 == 0)
        .collect();
    assert_eq!(seen, expected);
}

#[test]
fn in_memory_only_the_last_are_kept() {
    let (store, _) = Store::open(opening(&settings(Path::new("")))).unwrap();
    assert_eq!(store.health(), StoreHealth::InMemory);
    for id in 1..=5_000 {
        put(&store, [terminated(id, "s")]);
    }
    store.close();
    assert!(!store.is_durable(VerdictId(5_000)));
    let page = store.read_after(VerdictId(4_990), 3, |_| true).unwrap();
    assert_eq!(
        (ids(&page), page.at_end),
        (vec![4_991, 4_992, 4_993], false)
    );
    let gone = store.read_after(VerdictId(1), 3, |_| true);
    assert!(matches!(gone, Err(ReadError::NotRetained)), "{gone:?}");
}

// A disk that fails

/// What the disk of the one test that uses it does now.
static FAULT: AtomicU8 = AtomicU8::new(FINE);
const FINE: u8 = 0;
const FULL: u8 = 1;
const READ_ONLY: u8 = 2;

struct Faulty(File);

impl LogFile for Faulty {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        match FAULT.load(Relaxed) {
            FINE => self.0.append(bytes),
            READ_ONLY => Err(ErrorKind::ReadOnlyFilesystem.into()),
            _ => {
                // A full disk takes what fits.
                self.0.append(&bytes[..bytes.len() / 2])?;
                Err(ErrorKind::StorageFull.into())
            }
        }
    }

    fn sync(&mut self) -> io::Result<()> {
        self.0.sync()
    }

    fn truncate(&mut self, bytes: u64) -> io::Result<()> {
        match FAULT.load(Relaxed) {
            READ_ONLY => Err(ErrorKind::ReadOnlyFilesystem.into()),
            _ => self.0.truncate(bytes),
        }
    }
}

const FAULTY: LogFileFactory = LogFileFactory {
    open: |path| {
        let file = File::options().create(true).append(true).open(path)?;
        Ok(Box::new(Faulty(file)))
    },
    ..LogFileFactory::FILES
};

#[tokio::test]
async fn a_disk_that_is_full_or_read_only_loses_no_termination_and_refuses_acts() {
    let dir = tempfile::tempdir().unwrap();
    let settings = settings(dir.path());
    let (store, _) = Store::open_with_files(opening(&settings), FAULTY).unwrap();
    let mut watch = store.subscribe_verdicts();
    put(&store, [terminated(1, "a")]);
    assert!(store.wait_until_settled(VerdictId(1)).await);
    for (fault, id) in [(FULL, 2), (READ_ONLY, 12)] {
        FAULT.store(fault, Relaxed);
        let name = format!("b{id}");
        put(&store, [terminated(id, &name)]);
        assert!(!store.wait_until_settled(VerdictId(id)).await);
        assert_eq!(store.health(), StoreHealth::WriteFailing);
        put(
            &store,
            [reset(id + 1, &name), looping(id + 2, "w", Action::Warn)],
        );
        assert!(!store.wait_until_settled(VerdictId(id + 2)).await);
        let failures = store.stats().write_failures;
        assert!(failures >= 2 && store.stats().write_failing, "{failures}");

        FAULT.store(FINE, Relaxed);
        put(&store, [terminated(id + 3, "c")]);
        assert!(store.wait_until_settled(VerdictId(id + 3)).await);
        assert!(store.is_durable(VerdictId(id)), "it was tried again");
        assert!(!store.is_durable(VerdictId(id + 1)) && !store.is_durable(VerdictId(id + 2)));
        assert_eq!(store.health(), StoreHealth::Healthy);
    }
    let mut seen = Vec::new();
    while let Ok(issued) = watch.try_recv() {
        seen.push(issued.verdict.id.0);
    }
    assert_eq!(
        seen,
        [1, 2, 4, 5, 12, 14, 15],
        "acts that were refused are unheard of"
    );
    assert_eq!(store.stats().dropped, 4);
    drop(store);
    assert!(verify(dir.path()).unwrap().is_intact());
    assert_eq!(names(&open(&dir).1), ["a", "b12", "b2", "c"]);
}

/// The largest write to the disk of the one test that uses it, which takes none.
static LARGEST: AtomicUsize = AtomicUsize::new(0);
static TAKES: AtomicBool = AtomicBool::new(false);

struct Closed(File);

impl LogFile for Closed {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        LARGEST.fetch_max(bytes.len(), Relaxed);
        match TAKES.load(Relaxed) {
            true => self.0.append(bytes),
            false => Err(ErrorKind::StorageFull.into()),
        }
    }

    fn sync(&mut self) -> io::Result<()> {
        self.0.sync()
    }

    fn truncate(&mut self, bytes: u64) -> io::Result<()> {
        self.0.truncate(bytes)
    }
}

const CLOSED: LogFileFactory = LogFileFactory {
    open: |path| {
        let file = File::options().create(true).append(true).open(path)?;
        Ok(Box::new(Closed(file)))
    },
    ..LogFileFactory::FILES
};

/// Else each termination would wait for all that were not written before it.
#[tokio::test]
async fn however_much_waits_for_a_full_disk_a_try_costs_no_more_than_a_batch() {
    const ENDED: u128 = 5_000;
    let dir = tempfile::tempdir().unwrap();
    let settings = Settings {
        queue_max: 10_000,
        ..settings(dir.path())
    };
    let (store, _) = Store::open_with_files(opening(&settings), CLOSED).unwrap();
    for id in 1..=ENDED {
        put(&store, [terminated(id, &format!("s{id}"))]);
    }
    assert!(!store.wait_until_settled(VerdictId(ENDED)).await);
    let one = encode(&terminated(ENDED, "s5000"), false).len() + 64;
    let largest = LARGEST.load(Relaxed);
    assert!(largest <= queue::BATCH_MAX * one, "{largest} bytes");
    TAKES.store(true, Relaxed);
    put(&store, [terminated(ENDED + 1, "last")]);
    assert!(store.wait_until_settled(VerdictId(ENDED + 1)).await);
    assert!((1..=ENDED).all(|id| store.is_durable(VerdictId(id))));
    drop(store);
    assert_eq!(open(&dir).1.sessions.len() as u128, ENDED + 1);
}

struct Unsynced;

impl LogFile for Unsynced {
    fn append(&mut self, _: &[u8]) -> io::Result<()> {
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        Err(io::Error::other("the cable came off"))
    }

    fn truncate(&mut self, _: u64) -> io::Result<()> {
        Ok(())
    }
}

const UNSYNCED: LogFileFactory = LogFileFactory {
    open: |_| Ok(Box::new(Unsynced)),
    ..LogFileFactory::FILES
};

#[test]
fn a_sync_that_fails_ends_the_process_and_settles_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let settings = settings(dir.path());
    let (failed, told) = mpsc::channel();
    let opening = StoreOptions {
        on_fatal: Box::new(move |error| failed.send(error.to_string()).unwrap()),
        ..opening(&settings)
    };
    let (store, _) = Store::open_with_files(opening, UNSYNCED).unwrap();
    put(&store, [terminated(1, "a")]);
    let told = told.recv_timeout(Duration::from_secs(60));
    assert_eq!(told.as_deref(), Ok("the cable came off"));
    store.close();
    assert!(store.publisher.watermarks().settled < VerdictId(1));
    assert!(!store.is_durable(VerdictId(1)));
}
