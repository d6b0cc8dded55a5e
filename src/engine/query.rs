use std::{collections::BTreeSet, sync::Arc};

use super::{Engine, slot::Slot};
use crate::domain::{Labels, SessionId, SessionView, Status, Verdict, has_labels};

/// Which sessions somebody asks for.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    pub status: Option<Status>,
    /// All of these; none: any.
    pub labels: Labels,
}

impl Filter {
    fn fits(&self, id: &SessionId, slot: &Slot) -> bool {
        self.status.is_none_or(|wanted| wanted == slot.status())
            && (self.labels.is_empty() || has_labels(&slot.labels(id), &self.labels))
    }
}

impl Engine {
    pub fn get(&self, id: &SessionId) -> Option<SessionView> {
        self.sessions.view(id.as_str(), |id, slot| slot.view(id))
    }

    /// The verdicts that ended the session or agents of it.
    pub fn terminations_of(&self, id: &SessionId) -> Vec<Arc<Verdict>> {
        let terminations = |id: &SessionId, slot: &Slot| slot.terminations(id);
        let found = self.sessions.view(id.as_str(), terminations);
        found.unwrap_or_default()
    }

    /// Whether it is live or remembered.
    pub fn knows(&self, id: &SessionId) -> bool {
        self.sessions.contains_key(id.as_str())
    }

    /// Up to `most` sessions in the order of their ids, from the one after
    /// `after` on, and the last of them where there are more. A shard is locked while it is
    /// walked over, and only ids are copied then.
    pub fn list(
        &self,
        filter: &Filter,
        after: Option<&str>,
        most: usize,
    ) -> (Vec<SessionView>, Option<SessionId>) {
        let mut ids = BTreeSet::new();
        for slot in &self.sessions {
            let id = slot.key();
            let follows = after.is_none_or(|after| id.as_str() > after);
            let fits_page = ids.len() <= most || ids.last().is_some_and(|last| id < last);
            if follows && fits_page && filter.fits(id, &slot) {
                ids.insert(id.clone());
                if ids.len() > most + 1 {
                    ids.pop_last();
                }
            }
        }
        // The last id of the page, also where its session has gone meanwhile.
        let last = ids
            .iter()
            .take(most)
            .next_back()
            .filter(|_| ids.len() > most);
        let page = ids.iter().take(most).filter_map(|id| self.get(id));
        (page.collect(), last.cloned())
    }
}
