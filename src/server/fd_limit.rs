//! Fits the connection limits to the process's limit on open files: each connection
//! is one.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Files that the process opens besides client connections: listeners and wakers, the
/// audit log, webhooks, a trace collector.
const RESERVED_FILES: usize = 64;

/// The most connections of each listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionLimits {
    pub grpc: usize,
    /// Above `grpc`, for operators and probes.
    pub reserve: usize,
    pub http: usize,
}

impl ConnectionLimits {
    /// Raises the limit on open files if necessary. Returns the same limits, or those
    /// that fit if it cannot be raised far enough.
    pub fn fit_to_file_limit(self) -> Self {
        let wanted = self.total().saturating_add(RESERVED_FILES);
        let files_max = raise_file_limit(wanted);
        let clamped = self.clamp_to(files_max);
        if clamped != self {
            tracing::warn!(
                files_max,
                grpc = clamped.grpc,
                reserve = clamped.reserve,
                http = clamped.http,
                "the limit on open files allows fewer connections than [limits] does"
            );
        }
        clamped
    }

    fn total(self) -> usize {
        self.grpc
            .saturating_add(self.reserve)
            .saturating_add(self.http)
    }

    fn clamp_to(self, files_max: usize) -> Self {
        let available = files_max.saturating_sub(RESERVED_FILES);
        if self.total() <= available {
            return self;
        }
        // Operators, probes and scrapes need few connections; brokers get the rest.
        let http = self.http.min(available / 4).max(1);
        let reserve = self.reserve.min(available / 4).max(1);
        let rest = available.saturating_sub(http).saturating_sub(reserve);
        Self {
            grpc: self.grpc.min(rest).max(1),
            reserve,
            http,
        }
    }
}

/// Raises the limit on open files towards `wanted` and returns it.
fn raise_file_limit(wanted: usize) -> usize {
    let limit = getrlimit(Resource::Nofile);
    let current = to_usize(limit.current);
    if current >= wanted {
        return current;
    }
    let target = wanted.min(to_usize(limit.maximum));
    let new_limit = Rlimit {
        current: Some(target as u64),
        ..limit
    };
    match setrlimit(Resource::Nofile, new_limit) {
        Ok(()) => target,
        Err(error) => {
            tracing::warn!(%error, "cannot raise the limit on open files");
            current
        }
    }
}

/// `None` is no limit.
fn to_usize(limit: Option<u64>) -> usize {
    limit
        .and_then(|files| usize::try_from(files).ok())
        .unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(files_max: usize, expected: (usize, usize, usize)) {
        let wanted = ConnectionLimits {
            grpc: 128,
            reserve: 32,
            http: 64,
        };
        let clamped = wanted.clamp_to(files_max);
        assert_eq!((clamped.grpc, clamped.reserve, clamped.http), expected);
    }

    #[test]
    fn connections_stay_below_the_limit_on_open_files() {
        check(1_024, (128, 32, 64));
        check(288, (128, 32, 64));
        check(287, (128, 32, 55));
        check(104, (20, 10, 10));
        check(64, (1, 1, 1));
        check(0, (1, 1, 1));
    }
}
