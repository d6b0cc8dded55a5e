use std::{collections::BTreeSet, sync::Arc};

use super::{Engine, Profiles, slot::Slot};
use crate::domain::{
    DetectorExplanation, Labels, SessionDetail, SessionId, SessionStatus, SessionView, Tenant,
    Verdict, has_labels,
};

/// Which sessions somebody asks for.
#[derive(Clone, Debug, Default)]
pub struct SessionFilter {
    /// Whose sessions.
    pub tenant: Tenant,
    pub status: Option<SessionStatus>,
    /// All of these; none: any.
    pub labels: Labels,
}

impl SessionFilter {
    fn matches(&self, id: &SessionId, slot: &Slot) -> bool {
        id.belongs_to(&self.tenant)
            && self.status.is_none_or(|wanted| wanted == slot.status())
            && (self.labels.is_empty() || has_labels(&slot.labels(id), &self.labels))
    }
}

impl Engine {
    /// How sessions are watched.
    pub fn profiles(&self) -> Arc<Profiles> {
        self.config.load().profiles.clone()
    }

    pub fn get(&self, id: &SessionId) -> Option<SessionView> {
        self.sessions.view(id, |id, slot| slot.view(id))
    }

    /// A session with its latest events and why its detectors fire.
    pub fn detail(&self, id: &SessionId) -> Option<SessionDetail> {
        let snapshot =
            |id: &SessionId, slot: &Slot| (slot.view(id), slot.timeline(), slot.generation());
        let (view, timeline, generation) = self.sessions.view(id, snapshot)?;
        let mut detail = SessionDetail {
            view,
            timeline,
            explanations: Vec::new(),
        };
        self.attach_post_mortem(id, generation, &mut detail);
        detail.explanations = self.explanations(&detail.view);
        Some(detail)
    }

    /// Of each detector in the verdicts of a session, once.
    fn explanations(&self, view: &SessionView) -> Vec<(Arc<str>, DetectorExplanation)> {
        let profile = self.config.load().profiles.get_or_default(&view.profile);
        let verdicts = view.verdicts.iter().chain(&view.termination);
        let detectors =
            verdicts.flat_map(|verdict| verdict.other_detectors.iter().chain([&verdict.detector]));
        let detectors: BTreeSet<&Arc<str>> = detectors.collect();
        let explained = |name: &Arc<str>| Some((name.clone(), profile.explain(name)?));
        detectors.into_iter().filter_map(explained).collect()
    }

    /// The verdicts that ended the session or agents of it.
    pub fn terminations_of(&self, id: &SessionId) -> Vec<Arc<Verdict>> {
        let terminations = |id: &SessionId, slot: &Slot| slot.terminations(id);
        let found = self.sessions.view(id, terminations);
        found.unwrap_or_default()
    }

    /// The same id, in memory that all who keep it share.
    pub fn shared_id(&self, id: &SessionId) -> SessionId {
        let stored = self.sessions.view(id, |own, _| own.clone());
        stored.unwrap_or_else(|| id.clone())
    }

    /// Whether it is live or remembered.
    pub fn contains(&self, id: &SessionId) -> bool {
        self.sessions.contains_key(id)
    }

    /// Up to `most` sessions in the order of their ids, from the one after
    /// `after` on, and the last of them where there are more. A shard is locked while it is
    /// walked over, and only ids are copied then.
    pub fn list_sessions(
        &self,
        filter: &SessionFilter,
        after: Option<&str>,
        limit: usize,
    ) -> (Vec<SessionView>, Option<SessionId>) {
        let mut ids = BTreeSet::new();
        for slot in &self.sessions {
            let id = slot.key();
            let follows = after.is_none_or(|after| id.as_str() > after);
            let fits_page = ids.len() <= limit || ids.last().is_some_and(|last| id < last);
            if follows && fits_page && filter.matches(id, &slot) {
                ids.insert(id.clone());
                if ids.len() > limit + 1 {
                    ids.pop_last();
                }
            }
        }
        // The last id of the page, also where its session has gone meanwhile.
        let last = ids
            .iter()
            .take(limit)
            .next_back()
            .filter(|_| ids.len() > limit);
        let page = ids.iter().take(limit).filter_map(|id| self.get(id));
        (page.collect(), last.cloned())
    }
}
