//! How many verdicts of which kind were given in each of the last minutes.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use axum::{
    extract::State,
    http::{HeaderMap, StatusCode},
};
use serde::Serialize;

use super::{
    Console,
    calls::path,
    http_error::{HttpError, Json, JsonResult},
};
use crate::{
    domain::{Action, Tenant, VerdictId, VerdictRecord, clock},
    server::blocking,
    store::{ReadError, Store},
};

/// A shift: what the policy has done in it is what the next one wants to know.
pub(super) const HOURS_MAX: u64 = 12;
const MINUTES_RETAINED: u64 = HOURS_MAX * 60;
/// What a small plot shows.
const MINUTES_PLOTTED: u64 = 60;

/// What is counted together. All of it are names from the configuration, and
/// tenants.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct VerdictKind {
    pub tenant: Tenant,
    pub profile: Arc<str>,
    pub detector: Arc<str>,
    pub action: Option<Action>,
    pub shadow: bool,
}

/// Counted when it is asked for: nobody who asks nothing costs anything.
#[derive(Debug, Default)]
pub(super) struct VerdictCounts {
    /// By the minute since 1970, on the service's own clock.
    minutes: BTreeMap<u64, BTreeMap<VerdictKind, u32>>,
    /// All up to this one are counted.
    counted_up_to: VerdictId,
}

impl VerdictCounts {
    /// Counts what was given since it was last asked for. Reads the disk where
    /// that is long ago. On an error it begins anew.
    fn catch_up(&mut self, store: &Store, now: SystemTime) -> Result<(), ReadError> {
        let Self {
            mut minutes,
            counted_up_to: position,
        } = std::mem::take(self);
        let first = now - Duration::from_secs(MINUTES_RETAINED * 60);
        minutes = minutes.split_off(&minute_of(first));
        let mut position = position
            .max(VerdictId::lower_bound_at(first))
            .max(store.retained_after())
            .min(store.last_verdict_id());
        loop {
            let page = store.read_after(position, usize::MAX, |issued| {
                count_verdict(&mut minutes, issued);
                false
            })?;
            position = page.cursor;
            if page.at_end {
                *self = Self {
                    minutes,
                    counted_up_to: position,
                };
                return Ok(());
            }
        }
    }

    /// How often each kind came in the last hours, of those that are kept.
    pub fn counts_by_kind(
        &self,
        tenant: &Tenant,
        hours: u64,
        now: SystemTime,
    ) -> BTreeMap<&VerdictKind, u32> {
        let first = (minute_of(now) + 1).saturating_sub(hours * 60);
        let mut kinds = BTreeMap::new();
        let minutes = self.minutes.range(first..);
        for (kind, times) in minutes.flat_map(|(_, kinds)| kinds) {
            if kind.tenant == *tenant {
                *kinds.entry(kind).or_default() += times;
            }
        }
        kinds
    }

    /// By detector, of each of the last minutes, the present one last.
    fn minutes_by_detector(&self, tenant: &Tenant, now: SystemTime) -> BTreeMap<&str, Vec<u32>> {
        let first = (minute_of(now) + 1).saturating_sub(MINUTES_PLOTTED);
        let mut detectors: BTreeMap<&str, Vec<u32>> = BTreeMap::new();
        for (minute, kinds) in self.minutes.range(first..) {
            let own = kinds.iter().filter(|(kind, _)| kind.tenant == *tenant);
            for (kind, times) in own {
                let plot = detectors
                    .entry(&kind.detector)
                    .or_insert_with(|| vec![0; MINUTES_PLOTTED as usize]);
                if let Some(bar) = plot.get_mut((minute - first) as usize) {
                    *bar += times;
                }
            }
        }
        detectors
    }
}

fn minute_of(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs()
        / 60
}

fn count_verdict(minutes: &mut BTreeMap<u64, BTreeMap<VerdictKind, u32>>, issued: &VerdictRecord) {
    let verdict = &issued.verdict;
    let kind = VerdictKind {
        tenant: verdict.session.tenant(),
        profile: issued.profile.clone(),
        detector: verdict.detector.clone(),
        action: verdict.action,
        shadow: verdict.shadow,
    };
    let minute = minutes.entry(minute_of(verdict.id.time())).or_default();
    *minute.entry(kind).or_default() += 1;
}

impl Console {
    /// What `look` makes of the tally, brought up to date.
    pub(super) async fn with_verdict_counts<T>(
        &self,
        query: impl FnOnce(&VerdictCounts, SystemTime) -> T,
    ) -> Result<T, HttpError> {
        // Who asks and goes away leaves it counted for the next.
        let mut counts = self.verdict_counts.clone().lock_owned().await;
        let (store, now) = (self.store.clone(), clock::now());
        let catch_up = move || counts.catch_up(&store, now).map(|()| counts);
        let counted = blocking::read_log(catch_up).await;
        let draining =
            |_| HttpError::new(StatusCode::SERVICE_UNAVAILABLE, "DRAINING", "shutting down");
        let counts = counted.map_err(draining)?.map_err(tonic::Status::from)?;
        Ok(query(&counts, now))
    }
}

#[derive(Debug, Serialize)]
pub(super) struct VerdictsPerMinute {
    /// Verdicts a minute by detector, the present minute last.
    detectors: BTreeMap<String, Vec<u32>>,
}

pub(super) async fn verdicts_per_minute(
    State(console): State<Console>,
    headers: HeaderMap,
) -> JsonResult<VerdictsPerMinute> {
    let tenant = console.admit(&headers, &path("ListVerdicts"))?.tenant;
    let owned = |(name, plot): (&str, Vec<u32>)| (name.to_owned(), plot);
    let query = |counts: &VerdictCounts, now| {
        let plots = counts.minutes_by_detector(&tenant, now).into_iter();
        plots.map(owned).collect()
    };
    let detectors = console.with_verdict_counts(query).await?;
    Ok(Json(VerdictsPerMinute { detectors }))
}
