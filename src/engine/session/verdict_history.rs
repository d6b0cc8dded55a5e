//! What few sessions have: verdicts and what goes with them.

use std::{
    collections::VecDeque,
    ops::{Deref, DerefMut},
    sync::Arc,
    time::SystemTime,
};

use uuid::Uuid;

use crate::domain::{Level, Verdict, Waste};

/// What was said about a session, and done to it.
pub(super) struct VerdictHistory {
    /// Its verdicts, oldest first: the last few, and all that a duplicate may
    /// ask for.
    pub verdicts: VecDeque<Arc<Verdict>>,
    pub verdicts_bytes: usize,
    /// How many there were, beside the last few, when it was last looked whether
    /// somebody may still ask for them.
    pub retained_after_prune: usize,
    pub wasted: Waste,
    pub avoidable: Waste,
    /// By rank: the level its trend stands at in the metrics.
    pub trend_levels: Vec<Option<Level>>,
    pub termination: Option<Arc<Verdict>>,
    /// Its verdicts are `shadow` until then.
    pub snoozed_until: Option<SystemTime>,
    /// It would have been ended, had the breaker not been open.
    pub is_termination_withheld: bool,
    /// A panic struck in it: it is not watched.
    pub quarantine: Option<Uuid>,
    /// It stands in the queue of those that were told something.
    pub is_queued_with_verdicts: bool,
}

impl VerdictHistory {
    const EMPTY: Self = Self {
        verdicts: VecDeque::new(),
        verdicts_bytes: 0,
        retained_after_prune: 0,
        wasted: Waste {
            events: 0,
            tokens: 0,
            usd: 0.0,
        },
        avoidable: Waste {
            events: 0,
            tokens: 0,
            usd: 0.0,
        },
        trend_levels: Vec::new(),
        termination: None,
        snoozed_until: None,
        is_termination_withheld: false,
        quarantine: None,
        is_queued_with_verdicts: false,
    };
}

/// Takes room once there is something to tell: to change it is to begin it.
#[derive(Default)]
pub(super) struct LazyVerdictHistory {
    history: Option<Box<VerdictHistory>>,
}

static EMPTY: VerdictHistory = VerdictHistory::EMPTY;

impl Deref for LazyVerdictHistory {
    type Target = VerdictHistory;

    #[inline]
    fn deref(&self) -> &VerdictHistory {
        self.history.as_deref().unwrap_or(&EMPTY)
    }
}

impl DerefMut for LazyVerdictHistory {
    fn deref_mut(&mut self) -> &mut VerdictHistory {
        self.history
            .get_or_insert_with(|| Box::new(VerdictHistory::EMPTY))
    }
}

impl LazyVerdictHistory {
    pub fn heap_bytes(&self) -> usize {
        let history_bytes = |history: &VerdictHistory| {
            size_of::<VerdictHistory>()
                + history.verdicts_bytes
                + history.verdicts.capacity() * size_of::<Arc<Verdict>>()
                + history.trend_levels.capacity() * size_of::<Option<Level>>()
        };
        self.history.as_deref().map_or(0, history_bytes)
    }
}
