//! What a detector returns.

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use super::{Action, Sig};

/// The index of a detector in the registry; the ids of rules follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct DetectorId(pub u8);

impl DetectorId {
    /// Sets of detectors are bits of a `u64`.
    pub const COUNT_MAX: usize = 64;

    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// The precedence of a detector among the others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Precedence {
    /// Among findings that cite equally many calls, the lowest rank describes the
    /// loop.
    pub rank: u8,
    /// The findings concern the session, not the agent that sent the event: each
    /// one is reported, and a termination ends all agents.
    pub session_wide: bool,
}

/// The result of running a detector on an observation.
#[derive(Clone, Debug, PartialEq)]
pub enum DetectorOutcome {
    /// The detector does not consider this kind of observation. The trend only decays.
    NotApplicable,
    /// The detector needs this field, which was not sent.
    MissingField(&'static str),
    /// The observation does not complete the pattern: a check that lowers the trend.
    NoMatch,
    /// A pattern found before is still active, and the observation neither extends
    /// nor ends it: a call between two rounds of a loop. The trend only decays.
    Unchanged,
    /// The observation completes or extends the pattern. Boxed, because it is large
    /// and rare.
    Match(Box<Finding>),
}

/// The stored name of a field that a detector or a rule may miss; `None`: unknown.
pub fn missing_field_name(name: &str) -> Option<&'static str> {
    const NAMES: [&str; 8] = [
        "tool_call.args",
        "tool_call.content_hash",
        "tool_call.error",
        "tool_call.result",
        "tool_call.target",
        "when",
        "key",
        "reset_when",
    ];
    NAMES.into_iter().find(|known| *known == name)
}

impl DetectorOutcome {
    pub fn from_finding(finding: Finding) -> Self {
        Self::Match(Box::new(finding))
    }
}

/// A pattern that the latest event completes or extends.
#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    /// The number of occurrences of the pattern.
    pub count: i32,
    /// Calls per lap; 1 for a plain repeat, 0 if the pattern is not periodic.
    pub period: i32,
    /// The similarity of the occurrences, 0 to 1.
    pub similarity: f64,
    /// 1 if the occurrences are equal, .9 if they are equal after masking, else the
    /// similarity.
    pub confidence: f64,
    /// `Some`: the detector sets the level of its ladder itself. `None`: the trend of
    /// the loop does.
    pub level: Option<EscalationLevel>,
    /// The strongest action that this evidence allows; `None`: any.
    pub action_max: Option<Action>,
    /// Only consecutive events count towards `terminate_after`: after a gap the count
    /// starts at zero, also if the same loop comes back.
    pub consecutive: bool,
    /// The event extends the unbroken run that this detector found last.
    pub extends: bool,
    /// The events that are new in the pattern, oldest first: all of them when it is
    /// completed, the latest when it is extended.
    pub events: SmallVec<[i32; 8]>,
    /// Identifies the loop: the signatures of its distinct calls, or, if these keep
    /// changing, of its path, error, round or text.
    pub loop_key: SmallVec<[Sig; 4]>,
    /// The distinct calls, as far as they are known.
    pub calls: SmallVec<[Sig; 4]>,
}

/// The severity of a loop, for a detector that measures it itself, such as an amount
/// of text or a share of a budget. Each value is a level of the escalation ladder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum EscalationLevel {
    Soft,
    Hard,
    Final,
}

impl Finding {
    /// A finding of equal events without a period. Detectors override the fields
    /// that differ with struct update syntax. A count beyond `i32` saturates.
    pub fn new(
        count: impl TryInto<i32>,
        events: SmallVec<[i32; 8]>,
        loop_key: SmallVec<[Sig; 4]>,
    ) -> Self {
        Self {
            count: count.try_into().unwrap_or(i32::MAX),
            period: 0,
            similarity: 1.0,
            confidence: 1.0,
            level: None,
            action_max: None,
            consecutive: false,
            extends: false,
            events,
            loop_key,
            calls: SmallVec::new(),
        }
    }

    /// All cited signatures. Two findings with a common signature are about the same
    /// loop.
    pub fn cited_signatures(&self) -> impl Iterator<Item = Sig> + '_ {
        self.loop_key.iter().chain(&self.calls).copied()
    }
}
