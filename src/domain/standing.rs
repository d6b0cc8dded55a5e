//! The action in force for an agent, whether or not anything is new.

use std::{sync::Arc, time::SystemTime};

use super::{Action, CallKey, Verdict, VerdictId};

/// The strongest action in force for an agent of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    pub action: Action,
    /// The verdict that the action comes from.
    pub verdict: VerdictId,
    pub since: SystemTime,
    /// The calls that are refused now.
    pub blocked: Vec<CallKey>,
}

impl Standing {
    /// The standing after a termination; `None` if the verdict does not terminate anything.
    pub fn of_termination(verdict: &Verdict) -> Option<Self> {
        let action = verdict.effective_action()?;
        (action == Action::Terminate).then(|| Self {
            action,
            verdict: verdict.id,
            since: verdict.time,
            blocked: Vec::new(),
        })
    }
}

/// The answer to whether a call would be refused.
#[derive(Clone, Debug, Default)]
pub struct CallCheck {
    /// TERMINATE, BLOCK, ASK, or `None` if the call may be made.
    pub action: Option<Action>,
    /// The verdict that the action comes from; `None`: there is no action, or the verdict
    /// did not survive a restart.
    pub verdict: Option<Arc<Verdict>>,
    pub standing: Option<Standing>,
}

impl CallCheck {
    /// The session or the agent is terminated by this verdict.
    pub fn terminated(verdict: Arc<Verdict>) -> Self {
        Self {
            action: verdict.effective_action(),
            standing: Standing::of_termination(&verdict),
            verdict: Some(verdict),
        }
    }
}
