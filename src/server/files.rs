//! Connections are files: how many there may be below the process's limit.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// What the process opens besides connections of clients: its listeners and
/// wakers, the log and what is read of it, webhooks, a collector.
const FILES_OWN: usize = 64;

/// How many connections each side may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Places {
    pub grpc: usize,
    pub http: usize,
}

impl Places {
    /// As many as are wanted, where the limit on open files can be raised so
    /// far; else as many as fit below it.
    pub fn within_limit(self) -> Self {
        let wanted = self
            .grpc
            .saturating_add(self.http)
            .saturating_add(FILES_OWN);
        let files_max = raised(wanted);
        let places = self.below(files_max);
        if places != self {
            tracing::warn!(
                files_max,
                grpc = places.grpc,
                http = places.http,
                "the limit on open files allows fewer connections than [limits] does"
            );
        }
        places
    }

    fn below(self, files_max: usize) -> Self {
        let room = files_max.saturating_sub(FILES_OWN);
        if self.grpc.saturating_add(self.http) <= room {
            return self;
        }
        // Probes and scrapes need few, brokers the rest.
        let http = self.http.min(room / 4).max(1);
        let grpc = self.grpc.min(room.saturating_sub(http)).max(1);
        Self { grpc, http }
    }
}

/// The limit on open files, raised to what is wanted as far as it may be.
fn raised(wanted: usize) -> usize {
    let limit = getrlimit(Resource::Nofile);
    let files = |limit: Option<u64>| {
        limit.map_or(usize::MAX, |files| {
            usize::try_from(files).unwrap_or(usize::MAX)
        })
    };
    let now = files(limit.current);
    if now >= wanted {
        return now;
    }
    let most = wanted.min(files(limit.maximum));
    let raised = Rlimit {
        current: Some(most as u64),
        ..limit
    };
    match setrlimit(Resource::Nofile, raised) {
        Ok(()) => most,
        Err(error) => {
            tracing::warn!(%error, "cannot raise the limit on open files");
            now
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(files_max: usize, expected: (usize, usize)) {
        let wanted = Places {
            grpc: 128,
            http: 64,
        };
        let Places { grpc, http } = wanted.below(files_max);
        assert_eq!((grpc, http), expected);
    }

    #[test]
    fn connections_stay_below_the_limit_on_open_files() {
        check(1_024, (128, 64));
        check(256, (128, 64));
        check(255, (128, 47));
        check(104, (30, 10));
        check(64, (1, 1));
        check(0, (1, 1));
    }
}
