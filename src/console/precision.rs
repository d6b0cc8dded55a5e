//! How often the verdicts of each detector were right, by week, from the ratings of
//! operators.

use std::{collections::BTreeMap, time::Duration};

use axum::{extract::State, http::HeaderMap};
use serde::Serialize;

use super::{
    Console,
    calls::path,
    http_error::{Json, JsonResult},
};
use crate::{
    domain::{Rating, clock},
    server::{blocking, status},
};

/// Ratings of older verdicts say little about the detectors of today.
const WEEKS: u32 = 8;
const WEEK: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// The ratings of one detector in one week.
#[derive(Clone, Default, Serialize)]
struct WeekRatings {
    right: u64,
    all: u64,
}

#[derive(Serialize)]
pub(super) struct PrecisionReport {
    /// By detector: a list of all weeks, the current one last.
    detectors: BTreeMap<String, Vec<WeekRatings>>,
}

pub(super) async fn get_precision(
    State(console): State<Console>,
    headers: HeaderMap,
) -> JsonResult<PrecisionReport> {
    let caller = console.admit(&headers, &path("ListVerdicts"))?;
    let now = clock::wall_now();
    let starts: Vec<_> = (1..=WEEKS).rev().map(|weeks| now - WEEK * weeks).collect();
    let store = console.deps.store.clone();
    let counts = blocking::read_log(move || store.rating_counts_by_span(&caller.tenant, &starts))
        .await
        .map_err(|_| status::draining())?
        .map_err(tonic::Status::from)?;
    let mut detectors = BTreeMap::<String, Vec<WeekRatings>>::new();
    for ((detector, week, rating), count) in counts {
        let weeks = detectors.entry(detector).or_default();
        weeks.resize(WEEKS as usize, WeekRatings::default());
        if let Some(ratings) = weeks.get_mut(week) {
            ratings.all += count;
            if rating == Rating::Right {
                ratings.right += count;
            }
        }
    }
    Ok(Json(PrecisionReport { detectors }))
}
