//! Counts the verdicts of the last hours, by minute and kind.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, SystemTime},
};

use axum::{extract::State, http::HeaderMap};
use serde::Serialize;

use super::{
    Console,
    calls::path,
    http_error::{HttpError, Json, JsonResult},
};
use crate::{
    domain::{Action, Effect, Tenant, VerdictId, VerdictRecord, clock},
    server::{blocking, status},
    store::{ReadError, Store, VerdictFilter},
};

/// The length of an on-call shift, which the next one reviews.
pub(super) const HOURS_MAX: u64 = 12;
const MINUTES_RETAINED: u64 = HOURS_MAX * 60;
/// The most verdicts that are read from the store at a time.
const PAGE_VERDICTS_MAX: usize = 4_096;
/// The width of the plot on the page.
const MINUTES_PLOTTED: u64 = 60;

/// Verdicts of one kind are counted together. The kinds are bounded: their fields
/// are tenants and names from the configuration.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct VerdictKind {
    pub tenant: Tenant,
    pub profile: Arc<str>,
    pub detector: Arc<str>,
    pub action: Option<Action>,
    pub shadow: bool,
}

/// The counts, brought up to date by each query. Without queries nothing is
/// counted.
#[derive(Debug, Default)]
pub(super) struct VerdictCounts {
    /// By the minute since 1970, on the service's clock.
    minutes: BTreeMap<u64, BTreeMap<VerdictKind, u32>>,
    /// The last verdict counted.
    counted_up_to: VerdictId,
}

impl VerdictCounts {
    /// Counts the verdicts since the last query. Reads the disk if that is long
    /// ago. An error clears the counts.
    fn catch_up(&mut self, store: &Store, now: SystemTime) -> Result<(), ReadError> {
        let Self {
            mut minutes,
            counted_up_to,
        } = std::mem::take(self);
        let first = now - Duration::from_secs(MINUTES_RETAINED * 60);
        minutes = minutes.split_off(&minute_of(first));
        let mut cursor = counted_up_to
            .max(VerdictId::lower_bound_at(first))
            .max(store.retained_after())
            .min(store.last_verdict_id());
        loop {
            let page = store.read_after(cursor, PAGE_VERDICTS_MAX, &VerdictFilter::default())?;
            for record in &page.verdicts {
                count_verdict(&mut minutes, record);
            }
            cursor = page.cursor;
            if page.at_end {
                *self = Self {
                    minutes,
                    counted_up_to: cursor,
                };
                return Ok(());
            }
        }
    }

    /// A tenant's verdicts of the last `hours` by kind.
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

    /// A tenant's verdicts by detector for each of the last minutes, the current
    /// one last.
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
    clock::millis(time) / 60_000
}

fn count_verdict(minutes: &mut BTreeMap<u64, BTreeMap<VerdictKind, u32>>, record: &VerdictRecord) {
    // It repeats a termination that was counted.
    if record.effect == Effect::Disobeyed {
        return;
    }
    let verdict = &record.verdict;
    let kind = VerdictKind {
        tenant: verdict.session.tenant(),
        profile: record.profile.clone(),
        detector: verdict.detector.clone(),
        action: verdict.action,
        shadow: verdict.shadow,
    };
    let minute = minutes.entry(minute_of(verdict.id.time())).or_default();
    *minute.entry(kind).or_default() += 1;
}

impl Console {
    /// Brings the counts up to date and runs `query` on them.
    pub(super) async fn with_verdict_counts<T>(
        &self,
        query: impl FnOnce(&VerdictCounts, SystemTime) -> T,
    ) -> Result<T, HttpError> {
        // The blocking task owns the lock guard, so the counting completes even if
        // the caller disconnects.
        let mut guard = self.verdict_counts.clone().lock_owned().await;
        let (store, now) = (self.deps.store.clone(), clock::now());
        let counts = blocking::read_log(move || guard.catch_up(&store, now).map(|()| guard))
            .await
            .map_err(|_| status::draining())?
            .map_err(tonic::Status::from)?;
        Ok(query(&counts, now))
    }
}

#[derive(Debug, Serialize)]
pub(super) struct VerdictsPerMinute {
    /// Verdicts per minute by detector, the current minute last.
    detectors: BTreeMap<String, Vec<u32>>,
}

pub(super) async fn verdicts_per_minute(
    State(console): State<Console>,
    headers: HeaderMap,
) -> JsonResult<VerdictsPerMinute> {
    let tenant = console.admit(&headers, &path("ListVerdicts"))?.tenant;
    let detectors = console
        .with_verdict_counts(|counts, now| {
            counts
                .minutes_by_detector(&tenant, now)
                .into_iter()
                .map(|(name, plot)| (name.to_owned(), plot))
                .collect()
        })
        .await?;
    Ok(Json(VerdictsPerMinute { detectors }))
}
