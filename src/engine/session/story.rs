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
pub(super) struct Story {
    /// Its verdicts, oldest first: the last few, and all that a duplicate may
    /// ask for.
    pub verdicts: VecDeque<Arc<Verdict>>,
    pub verdicts_bytes: usize,
    /// How many there were, beside the last few, when it was last looked whether
    /// somebody may still ask for them.
    pub tidied: usize,
    pub wasted: Waste,
    pub avoidable: Waste,
    /// By rank: the level its trend stands at in the metrics.
    pub levels: Vec<Option<Level>>,
    pub termination: Option<Arc<Verdict>>,
    /// Its verdicts are `shadow` until then.
    pub snoozed_until: Option<SystemTime>,
    /// It would have been ended, had the breaker not been open.
    pub is_spared: bool,
    /// A panic struck in it: it is not watched.
    pub quarantine: Option<Uuid>,
    /// It stands in the queue of those that were told something.
    pub stands_with_told: bool,
}

impl Story {
    const NONE: Self = Self {
        verdicts: VecDeque::new(),
        verdicts_bytes: 0,
        tidied: 0,
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
        levels: Vec::new(),
        termination: None,
        snoozed_until: None,
        is_spared: false,
        quarantine: None,
        stands_with_told: false,
    };
}

/// Takes room once there is something to tell: to change it is to begin it.
#[derive(Default)]
pub(super) struct Untold {
    story: Option<Box<Story>>,
}

static NONE: Story = Story::NONE;

impl Deref for Untold {
    type Target = Story;

    #[inline]
    fn deref(&self) -> &Story {
        self.story.as_deref().unwrap_or(&NONE)
    }
}

impl DerefMut for Untold {
    fn deref_mut(&mut self) -> &mut Story {
        self.story.get_or_insert_with(|| Box::new(Story::NONE))
    }
}

impl Untold {
    pub fn heap_bytes(&self) -> usize {
        let story = |story: &Story| {
            size_of::<Story>()
                + story.verdicts_bytes
                + story.verdicts.capacity() * size_of::<Arc<Verdict>>()
                + story.levels.capacity() * size_of::<Option<Level>>()
        };
        self.story.as_deref().map_or(0, story)
    }
}
