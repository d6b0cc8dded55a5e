use std::{
    collections::VecDeque,
    sync::{Mutex, PoisonError},
    time::SystemTime,
};

use crate::domain::SessionId;

/// Sessions by when they are due to be looked at again. Nobody walks the map:
/// each session stands here once, and is put back with a later deadline when it
/// turns out to be alive.
#[derive(Default)]
pub(super) struct Queue {
    due: Mutex<VecDeque<Due>>,
}

struct Due {
    deadline: SystemTime,
    id: SessionId,
    /// Tells this session from a later one of the same id.
    generation: u64,
}

impl Queue {
    pub fn push(&self, deadline: SystemTime, id: &SessionId, generation: u64) {
        self.lock().push_back(Due {
            deadline,
            id: id.clone(),
            generation,
        });
    }

    pub fn len(&self) -> usize {
        self.lock().len()
    }

    /// Asks `look` about up to `most` that are due; what it gives a new
    /// deadline goes back.
    pub fn expire(
        &self,
        now: SystemTime,
        most: usize,
        look: impl Fn(&SessionId, u64) -> Option<SystemTime>,
    ) {
        for _ in 0..most {
            let Some(due) = self.pop(|due| due.deadline <= now) else {
                return;
            };
            if let Some(deadline) = look(&due.id, due.generation) {
                self.push(deadline, &due.id, due.generation);
            }
        }
    }

    /// Lets go of those that are due, and of the oldest `excess` in any case.
    pub fn expire_at_least(
        &self,
        excess: usize,
        now: SystemTime,
        most: usize,
        forget: impl Fn(&SessionId, u64),
    ) {
        for turn in 0..most {
            let Some(due) = self.pop(|due| turn < excess || due.deadline <= now) else {
                return;
            };
            forget(&due.id, due.generation);
        }
    }

    /// The lock is not held while a session is looked at: whoever holds a shard
    /// may want to push.
    fn pop(&self, is_due: impl Fn(&Due) -> bool) -> Option<Due> {
        let mut due = self.lock();
        if due.front().is_some_and(is_due) {
            due.pop_front()
        } else {
            None
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, VecDeque<Due>> {
        self.due.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
