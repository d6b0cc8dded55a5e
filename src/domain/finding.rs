use smallvec::SmallVec;

use super::Sig;

/// A detector's place in the registry, or a rule's after them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DetectorId(pub u8);

impl DetectorId {
    /// Sets of detectors are bits of a `u64`.
    pub const COUNT_MAX: usize = 64;

    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// How a detector stands among the others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Precedence {
    /// Of findings that cite equally many calls the lowest describes the loop.
    pub rank: u8,
    /// What it finds is of the session, not of the agent that happened to send
    /// the event: it is told each time, and where it ends anything, it ends all.
    pub session_wide: bool,
}

/// What a detector makes of an observation.
#[derive(Clone, Debug, PartialEq)]
pub enum DetectorOutcome {
    /// The observation is not of its kind.
    NotApplicable,
    /// It would have looked, but this field was not sent.
    MissingField(&'static str),
    /// It looked and found nothing.
    NoMatch,
    /// What it found before still stands, and the observation is neither for nor
    /// against it: a call between two rounds of a loop.
    Unchanged,
    /// The observation completes or extends its pattern.
    /// In a box, since it is large and seldom.
    Match(Box<Finding>),
}

impl DetectorOutcome {
    pub fn from_finding(finding: Finding) -> Self {
        Self::Match(Box::new(finding))
    }
}

/// A pattern that the latest event completes or extends.
#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    /// How often the pattern stands.
    pub count: i32,
    /// Calls in a lap; 1 for a plain repeat, 0 where it is not periodic.
    pub period: i32,
    /// How alike the occurrences are, 0 to 1.
    pub similarity: f64,
    /// 1 where they are exactly equal, .9 where equal once masked, else the
    /// similarity.
    pub confidence: f64,
    /// `Some`: the detector itself says which rung of its ladder is due. `None`:
    /// the loop's trend decides.
    pub rung: Option<LadderRung>,
    /// The event goes on with the run that this detector found last, unbroken.
    pub extends: bool,
    /// The events that are new in the pattern, oldest first: all of them when
    /// it is completed, the latest when it is extended.
    pub events: SmallVec<[i32; 8]>,
    /// What the loop is named by: the signatures of its distinct calls, or
    /// where these keep changing its path, error, round or text.
    pub loop_key: SmallVec<[Sig; 4]>,
    /// Its distinct calls, as far as they are known.
    pub calls: SmallVec<[Sig; 4]>,
}

/// How bad a loop is, for a detector that measures it: so much text, so much of
/// a budget. The rungs are the ladder's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LadderRung {
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
            rung: None,
            extends: false,
            events,
            loop_key,
            calls: SmallVec::new(),
        }
    }

    /// All that it cites: another finding that cites any of it sees the same
    /// loop.
    pub fn cited_signatures(&self) -> impl Iterator<Item = Sig> + '_ {
        self.loop_key.iter().chain(&self.calls).copied()
    }
}
