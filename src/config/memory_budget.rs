//! Derives the memory limits from the memory that the process may use: the smaller of
//! the machine's RAM and the limits of its control groups.
//!
//! The values of `default.toml` are upper bounds. On a machine with less memory than
//! they need, each is a share of what is left after [`UNBUDGETED_BYTES`]. They are a layer between
//! `default.toml` and the user's file, so a value that is set explicitly is taken as
//! it is. `docs/limits.md` has the table.

use std::{
    fmt::Write,
    fs,
    path::{Path, PathBuf},
};

use crate::server::{
    STREAM_WINDOW_BYTES,
    reserve::{RESERVE_CONNECTIONS_MAX, RESERVE_STREAMS_MAX},
};

const MIB: u64 = 1024 * 1024;

/// The least memory that shares are computed from. With less the service starts with
/// these budgets, and the kernel may end it.
const MEMORY_BYTES_MIN: u64 = 64 * MIB;

/// A connection with its part of the calls' windows. An idle one takes 21 KiB, with TLS
/// 29 KiB. Windows are few: a call that is not one of `limits.calls_max`, and a stream
/// that is not one of `limits.open_streams_max`, is refused before its message is read.
const CONNECTION_BYTES: u64 = 64 * 1024;
/// The reserve above `limits.connections_max`: connections and all their windows.
const RESERVE_BYTES: u64 = RESERVE_CONNECTIONS_MAX as u64
    * (CONNECTION_BYTES + RESERVE_STREAMS_MAX as u64 * STREAM_WINDOW_BYTES as u64);
/// `limits.response_bytes_max` of each open stream.
const STREAM_RESPONSE_BYTES: u64 = 256 * 1024;

/// A limit that is a share of memory.
struct MemoryShare {
    key: &'static str,
    /// The limit is the memory divided by this.
    divisor: u64,
    /// The bytes of one unit of the limit.
    unit_bytes: u64,
    /// The value of `default.toml`.
    max: u64,
}

const MEMORY_SHARES: &[MemoryShare] = &[
    bytes("state_bytes_max", 4, 512 * 1024 * 1024),
    bytes("tombstone_bytes_max", 8, 768 * 1024 * 1024),
    // Counted three times below: for requests, for hooks and for pages.
    bytes("unread_bytes_max", 16, 256 * 1024 * 1024),
    MemoryShare {
        key: "connections_max",
        divisor: 8,
        unit_bytes: CONNECTION_BYTES,
        max: 4_096,
    },
    MemoryShare {
        key: "open_streams_max",
        divisor: 16,
        unit_bytes: STREAM_RESPONSE_BYTES,
        max: 4_096,
    },
];

/// Memory that does not depend on the machine, at its most:
/// - 48 MiB: the program, its threads and the caches of the database;
/// - 64 MiB: verdicts that wait for the disk (`store::queue`);
/// - 48 MiB: the latest 4,096 verdicts, of 12 KiB at most (`store::publisher`);
/// - 60 MiB: the sessions that all streams carry (`api::terminations`);
/// - 16 MiB: `limits.post_mortem_bytes_max`;
/// - 28 MiB: what is remembered of sessions between their hooks (`hooks::session_table`).
pub const UNBUDGETED_BYTES: u64 = (48 + 64 + 48 + 60 + 16 + 28) * MIB;

const fn bytes(key: &'static str, divisor: u64, max: u64) -> MemoryShare {
    MemoryShare {
        key,
        divisor,
        unit_bytes: 1,
        max,
    }
}

impl MemoryShare {
    fn value(&self, memory_bytes: u64) -> u64 {
        let shared = memory_bytes.saturating_sub(RESERVE_BYTES + UNBUDGETED_BYTES);
        let share = shared.max(MEMORY_BYTES_MIN) / self.divisor;
        (share / self.unit_bytes).clamp(1, self.max)
    }
}

/// The limits that follow from the memory of this machine or container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryBudget {
    pub memory_bytes: u64,
}

impl MemoryBudget {
    /// `None`: the memory is not known, as on other systems than Linux.
    pub fn detect() -> Option<Self> {
        usable_memory_bytes(Path::new("/")).map(|memory_bytes| Self { memory_bytes })
    }

    /// The limits by key.
    pub fn limits(&self) -> impl Iterator<Item = (&'static str, u64)> {
        MEMORY_SHARES
            .iter()
            .map(|share| (share.key, share.value(self.memory_bytes)))
    }

    /// The bytes that the limits allow in total.
    pub fn total_bytes(&self) -> u64 {
        let bytes = MEMORY_SHARES.iter().map(|share| {
            let uses = if share.key == "unread_bytes_max" {
                3
            } else {
                1
            };
            uses * share.value(self.memory_bytes) * share.unit_bytes
        });
        bytes.sum::<u64>() + RESERVE_BYTES + UNBUDGETED_BYTES
    }

    /// The layer above `default.toml`.
    pub(super) fn to_toml(&self) -> String {
        self.limits()
            .fold("[limits]\n".to_owned(), |mut text, (key, value)| {
                // Writing to a string cannot fail.
                let _ = writeln!(text, "{key} = {value}");
                text
            })
    }
}

/// The smaller of the machine's memory and the limits of the process's control groups
/// and their parents. `root` is `/` outside of tests.
fn usable_memory_bytes(root: &Path) -> Option<u64> {
    let groups = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let limits = groups
        .lines()
        .filter_map(|line| group_limit_bytes(root, line));
    ram_bytes(root).into_iter().chain(limits).min()
}

fn ram_bytes(root: &Path) -> Option<u64> {
    let meminfo = fs::read_to_string(root.join("proc/meminfo")).ok()?;
    let line = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

/// The lowest limit on the way from a group up to its root. A line is
/// `id:controllers:path`; version 2 has the id 0 and no controllers.
fn group_limit_bytes(root: &Path, line: &str) -> Option<u64> {
    let mut parts = line.splitn(3, ':');
    let (id, controllers, group) = (parts.next()?, parts.next()?, parts.next()?);
    let (mount, file) = if id == "0" && controllers.is_empty() {
        ("sys/fs/cgroup", "memory.max")
    } else if controllers.split(',').any(|name| name == "memory") {
        ("sys/fs/cgroup/memory", "memory.limit_in_bytes")
    } else {
        return None;
    };
    let mount = root.join(mount);
    let group: PathBuf = mount.join(group.trim_start_matches('/'));
    // In a container the path may be the host's and not exist below the mount; the
    // container's own limit is then at the mount itself.
    group
        .ancestors()
        .take_while(|directory| directory.starts_with(&mount))
        .filter_map(|directory| fs::read_to_string(directory.join(file)).ok())
        // "max" is no limit in version 2.
        .filter_map(|text| text.trim().parse().ok())
        .min()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(files: &[(&str, &str)]) -> Option<u64> {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        usable_memory_bytes(root.path())
    }

    #[test]
    fn the_smallest_limit_on_the_way_up_counts() {
        let ram = ("proc/meminfo", "MemTotal:  4194304 kB\nMemFree: 1 kB\n");
        let v2 = ("proc/self/cgroup", "0::/pod/container\n");
        assert_eq!(machine(&[]), None);
        assert_eq!(machine(&[ram]), Some(4_096 * MIB));
        assert_eq!(
            machine(&[
                ram,
                v2,
                ("sys/fs/cgroup/pod/container/memory.max", "max\n"),
                ("sys/fs/cgroup/pod/memory.max", "536870912\n"),
                ("sys/fs/cgroup/memory.max", "1073741824\n"),
            ]),
            Some(512 * MIB)
        );
        // The host's path, seen from inside of the container.
        assert_eq!(
            machine(&[ram, v2, ("sys/fs/cgroup/memory.max", "268435456\n")]),
            Some(256 * MIB)
        );
        let v1 = ("proc/self/cgroup", "5:cpu,cpuacct:/\n4:memory:/docker/a\n");
        let unlimited = "9223372036854771712\n";
        assert_eq!(
            machine(&[
                ram,
                v1,
                ("sys/fs/cgroup/memory/memory.limit_in_bytes", unlimited),
                (
                    "sys/fs/cgroup/memory/docker/a/memory.limit_in_bytes",
                    "134217728\n"
                ),
            ]),
            Some(128 * MIB)
        );
    }

    #[test]
    fn limits_fit_into_a_small_container_and_grow_to_the_defaults() {
        for mib in [512, 768, 1_024, 2_048, 4_096, 8_192, 16_384] {
            let memory_bytes = mib * MIB;
            let budget = MemoryBudget { memory_bytes };
            assert!(
                budget.total_bytes() <= memory_bytes,
                "{mib} MiB: {budget:?}"
            );
        }
        let large = MemoryBudget {
            memory_bytes: 17_408 * MIB,
        };
        let layers = crate::config::Layers::load(crate::config::DEFAULTS, &[], None, []).unwrap();
        let defaults: toml::Table = layers.section("limits").unwrap();
        for (key, value) in large.limits() {
            assert_eq!(defaults[key].as_integer(), Some(value as i64), "{key}");
        }
    }
}
