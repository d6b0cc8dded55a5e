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
    refusal::{Answer, Json, Refusal},
};
use crate::{
    domain::{Action, Issued, Tenant, VerdictId, clock},
    server::aside,
    store::{ReadError, Store},
};

/// A shift: what the policy has done in it is what the next one wants to know.
pub(super) const HOURS: u64 = 12;
const MINUTES_KEPT: u64 = HOURS * 60;
/// What a small plot shows.
const MINUTES_SHOWN: u64 = 60;

/// What is counted together. All of it are names from the configuration, and
/// tenants.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Kind {
    pub tenant: Tenant,
    pub profile: Arc<str>,
    pub detector: Arc<str>,
    pub action: Option<Action>,
    pub shadow: bool,
}

/// Counted when it is asked for: nobody who asks nothing costs anything.
#[derive(Debug, Default)]
pub(super) struct Tally {
    /// By the minute since 1970, on the service's own clock.
    minutes: BTreeMap<u64, BTreeMap<Kind, u32>>,
    /// All up to this one are counted.
    position: VerdictId,
}

impl Tally {
    /// Counts what was given since it was last asked for. Reads the disk where
    /// that is long ago. On an error it begins anew.
    fn catch_up(&mut self, store: &Store, now: SystemTime) -> Result<(), ReadError> {
        let Self {
            mut minutes,
            position,
        } = std::mem::take(self);
        let first = now - Duration::from_secs(MINUTES_KEPT * 60);
        minutes = minutes.split_off(&minute(first));
        let mut position = position
            .max(VerdictId::at(first))
            .max(store.horizon())
            .min(store.last());
        loop {
            let page = store.resume(position, usize::MAX, |issued| {
                count(&mut minutes, issued);
                false
            })?;
            position = page.last;
            if page.end {
                *self = Self { minutes, position };
                return Ok(());
            }
        }
    }

    /// How often each kind came in the last hours, of those that are kept.
    pub fn kinds(&self, tenant: &Tenant, hours: u64, now: SystemTime) -> BTreeMap<&Kind, u32> {
        let first = (minute(now) + 1).saturating_sub(hours * 60);
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
    fn by_detector(&self, tenant: &Tenant, now: SystemTime) -> BTreeMap<&str, Vec<u32>> {
        let first = (minute(now) + 1).saturating_sub(MINUTES_SHOWN);
        let mut detectors: BTreeMap<&str, Vec<u32>> = BTreeMap::new();
        for (minute, kinds) in self.minutes.range(first..) {
            let own = kinds.iter().filter(|(kind, _)| kind.tenant == *tenant);
            for (kind, times) in own {
                let plot = detectors
                    .entry(&kind.detector)
                    .or_insert_with(|| vec![0; MINUTES_SHOWN as usize]);
                if let Some(bar) = plot.get_mut((minute - first) as usize) {
                    *bar += times;
                }
            }
        }
        detectors
    }
}

fn minute(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs()
        / 60
}

fn count(minutes: &mut BTreeMap<u64, BTreeMap<Kind, u32>>, issued: &Issued) {
    let verdict = &issued.verdict;
    let kind = Kind {
        tenant: verdict.session.tenant(),
        profile: issued.profile.clone(),
        detector: verdict.detector.clone(),
        action: verdict.action,
        shadow: verdict.shadow,
    };
    let minute = minutes.entry(minute(verdict.id.time())).or_default();
    *minute.entry(kind).or_default() += 1;
}

impl Console {
    /// What `look` makes of the tally, brought up to date.
    pub(super) async fn tallied<T>(
        &self,
        look: impl FnOnce(&Tally, SystemTime) -> T,
    ) -> Result<T, Refusal> {
        // Who asks and goes away leaves it counted for the next.
        let mut tally = self.tally.clone().lock_owned().await;
        let (store, now) = (self.store.clone(), clock::now());
        let count = move || tally.catch_up(&store, now).map(|()| tally);
        let counted = aside::read(count).await;
        let draining =
            |_| Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "DRAINING", "shutting down");
        let tally = counted.map_err(draining)?.map_err(tonic::Status::from)?;
        Ok(look(&tally, now))
    }
}

#[derive(Debug, Serialize)]
pub(super) struct Pulse {
    /// Verdicts a minute by detector, the present minute last.
    detectors: BTreeMap<String, Vec<u32>>,
}

pub(super) async fn pulse(State(console): State<Console>, headers: HeaderMap) -> Answer<Pulse> {
    let tenant = console.admit(&headers, &path("ListVerdicts"))?.tenant;
    let owned = |(name, plot): (&str, Vec<u32>)| (name.to_owned(), plot);
    let look = |tally: &Tally, now| {
        let plots = tally.by_detector(&tenant, now).into_iter();
        plots.map(owned).collect()
    };
    let detectors = console.tallied(look).await?;
    Ok(Json(Pulse { detectors }))
}
