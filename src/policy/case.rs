use std::time::{Duration, SystemTime};

use super::{
    memory::{Loop, Memory, loop_id},
    ruling::Ruling,
    settings::Settings,
    trail::Sample,
    trend::Trends,
};
use crate::domain::{
    Action, AgentId, Bar, DetectorId, Evidence, Finding, LoopId, Moment, Room, Sig, Trend, Waste,
};

/// What the detectors have found in one agent of one session.
#[derive(Default)]
pub(super) struct Case {
    trends: Trends,
    memory: Memory,
    /// By rank: the index of the event after which its alerts pass again. Empty
    /// until there was one.
    quiet_until: Vec<i32>,
    /// The latest alert that was held back.
    held: Option<Box<Ruling>>,
}

/// What the detectors made of an event.
pub struct Sight<'a> {
    pub agent: &'a AgentId,
    pub at: Moment,
    /// The detectors that looked, found or not, as bits.
    pub looked: u64,
    pub findings: &'a [(DetectorId, Finding)],
    /// What the session has cost, this event included.
    pub totals: Waste,
    /// For the loops that are remembered.
    pub room: &'a Room,
}

/// What came of it.
pub struct Judgement {
    /// At most one an event.
    pub ruling: Option<Ruling>,
    /// What the loop cost with this event that was not counted before.
    pub wasted: Waste,
    /// That part of it which came after a verdict: acting would have saved it.
    pub avoidable: Waste,
    /// The detector that describes the loop.
    pub describes: DetectorId,
}

/// What is asked for, by one of the detectors.
struct Choice {
    action: Action,
    cause: Cause,
    of_session: bool,
}

/// Why a finding is worth an action.
enum Cause {
    First,
    WentOn,
    /// The detector says itself that it has become worse.
    Grew,
    /// A share of what the session may use is used, or all of it.
    Used(Bar),
    CameBack,
    Holds(i32),
}

impl Case {
    /// `last` is when the event before was made, and `began` tells what the
    /// session had cost before an event.
    pub fn judge(
        &mut self,
        sight: &Sight<'_>,
        last: Option<SystemTime>,
        settings: &Settings,
        began: impl FnOnce(i32) -> Waste,
    ) -> Option<Judgement> {
        let found = bits(sight.findings);
        let at = (sight.at, last);
        self.trends.update(at, sight.looked, found, settings);
        let Some((describes, finding)) = describing(sight.findings, settings) else {
            self.memory.end(sight.looked & !found, None);
            let ruling = self.overdue(sight.at.index, settings)?;
            return Some(Judgement {
                describes: ruling.detector,
                ruling: Some(ruling),
                wasted: Waste::default(),
                avoidable: Waste::default(),
            });
        };
        let id = loop_id(sight.agent, &finding.name);
        let cited = |sig: &Sig| {
            let mut findings = sight.findings.iter();
            findings.any(|(_, finding)| finding.cites().any(|cited| cited == *sig))
        };
        let extending = extending(sight.findings);
        let known = self.memory.find(id, extending, cited);
        let position = known.unwrap_or_else(|| self.memory.add(id, sight.room));
        let cites = sight
            .findings
            .iter()
            .flat_map(|(_, finding)| finding.cites());
        self.memory.cite(position, cites);
        self.memory.end(sight.looked & !found, Some(position));
        let of_loop = self.memory.get_mut(position)?;

        let begins = known.is_none() || (!of_loop.standing && !finding.extends);
        let came_back = begins && of_loop.said.is_some();
        if begins {
            // A text that is being written has cost nothing yet.
            let first = finding.events.first();
            of_loop.begin_run(first.map_or(sight.totals, |first| began(*first)));
        }
        of_loop.take(finding);
        of_loop.detectors |= found;
        let wasted = of_loop.wasted(sight.totals);
        let fresh = wasted.since(of_loop.counted);
        of_loop.counted = wasted;
        let avoidable = of_loop.said.map_or(Waste::default(), |_| fresh);

        let choice = choose(&self.trends, sight.findings, of_loop, came_back, settings);
        let mut ruling = choice.and_then(|choice| {
            let alert = matches!(choice.cause, Cause::First) && choice.action == Action::Alert;
            let held_back =
                alert && self.quiet_until.get(describes.index()) > Some(&sight.at.index);
            let trends = &self.trends;
            let ruling = rule(
                of_loop, sight, describes, finding, &choice, trends, settings,
            );
            if held_back {
                self.held = Some(Box::new(ruling));
                return None;
            }
            of_loop.say(choice.action);
            Some(ruling)
        });
        match &ruling {
            Some(_) => self.cool_down(describes, sight.at.index, settings),
            None => ruling = self.overdue(sight.at.index, settings),
        }
        Some(Judgement {
            ruling,
            wasted: fresh,
            avoidable,
            describes,
        })
    }

    /// The alert that was held back, once its time has come and if its loop
    /// still stands.
    fn overdue(&mut self, index: i32, settings: &Settings) -> Option<Ruling> {
        let held = self.held.as_ref()?;
        let (detector, action) = (held.detector, held.action);
        let unsaid = self.memory.standing(held.loop_id);
        let Some(of_loop) = unsaid.filter(|of_loop| of_loop.said.is_none()) else {
            self.held = None;
            return None;
        };
        if self.quiet_until.get(detector.index()) > Some(&index) {
            return None;
        }
        of_loop.say(action);
        self.cool_down(detector, index, settings);
        self.held.take().map(|ruling| *ruling)
    }

    /// Holds a detector's alerts back for a while, longer when it is chronic.
    fn cool_down(&mut self, detector: DetectorId, index: i32, settings: &Settings) {
        let events = f64::from(settings.trend.cooldown);
        let events = match self.trends.of(detector) {
            Some(trend) if self.trends.is_chronic(detector) => {
                (events * 4f64.powf(trend.ema)).ceil()
            }
            _ => events,
        };
        self.quiet_until.resize(settings.ladders.len(), i32::MIN);
        if let Some(quiet_until) = self.quiet_until.get_mut(detector.index()) {
            *quiet_until = index.saturating_add(events as i32);
        }
    }

    /// Another text begins: a loop of this name stood in an earlier one, and
    /// comes back in this.
    pub fn end_run(&mut self, name: Sig) {
        self.memory.end_citing(name);
    }

    /// The events of reported loops that have ended since the last question: they
    /// count for no detector again.
    pub fn take_spent(&mut self) -> Vec<i32> {
        self.memory.take_spent()
    }

    /// Counts start anew: no loop stands. What was said is remembered.
    pub fn reset(&mut self) {
        self.memory.end_all();
    }

    /// Terminations that were only reported may be said again, and meant.
    pub fn unsay_terminations(&mut self) {
        self.memory.unsay_terminations();
    }

    /// A loop that was reported stands.
    pub fn is_looping(&self) -> bool {
        self.memory.is_looping()
    }

    pub fn trend(&self, detector: DetectorId) -> Option<Trend> {
        self.trends.of(detector)
    }

    /// The trends after an event, while they are remembered.
    pub fn samples(&self, index: i32) -> impl Iterator<Item = &Sample> {
        self.trends.samples(index)
    }

    /// Raises `levels`, one for each event from `first` on, to the strongest
    /// trend after it.
    pub fn raise(&self, first: i32, levels: &mut [f64]) {
        self.trends.raise(first, levels);
    }

    /// The latest loop that cites the event.
    pub fn loop_of(&self, index: i32) -> Option<LoopId> {
        self.memory.loop_of(index)
    }

    pub fn bytes(&self) -> usize {
        size_of::<Self>()
            + self.trends.heap_bytes()
            + self.memory.heap_bytes()
            + self.quiet_until.capacity() * size_of::<i32>()
            + self.held.as_deref().map_or(0, Ruling::bytes)
    }
}

/// The detectors that found something.
fn bits(findings: &[(DetectorId, Finding)]) -> u64 {
    let detectors = findings.iter().map(|(detector, _)| detector);
    detectors.fold(0, |bits, detector| bits | 1 << detector.0)
}

/// The detectors whose latest run goes on, unbroken.
fn extending(findings: &[(DetectorId, Finding)]) -> u64 {
    let go_on = findings.iter().filter(|(_, finding)| finding.extends);
    go_on.fold(0, |bits, (detector, _)| bits | 1 << detector.0)
}

/// The finding that cites most distinct calls, else the one of lowest rank.
fn describing<'a>(
    findings: &'a [(DetectorId, Finding)],
    settings: &Settings,
) -> Option<(DetectorId, &'a Finding)> {
    let rank = |detector: DetectorId| {
        let ladder = settings.ladders.get(detector.index());
        std::cmp::Reverse((ladder.map(|ladder| ladder.precedence.rank), detector))
    };
    findings
        .iter()
        .max_by_key(|(detector, finding)| (finding.calls.len(), rank(*detector)))
        .map(|(detector, finding)| (*detector, finding))
}

/// The strongest action that any of the detectors asks for, where it is more
/// than was said already, or the loop has come back.
fn choose(
    trends: &Trends,
    findings: &[(DetectorId, Finding)],
    of_loop: &Loop,
    came_back: bool,
    settings: &Settings,
) -> Option<Choice> {
    let wish = |detector: DetectorId, bar: Option<Bar>| {
        let ladder = settings.ladders.get(detector.index())?;
        let limit = i32::try_from(ladder.terminate_after).unwrap_or(i32::MAX);
        // Runs and laps add up, but only for who was told so hard before.
        let held = if of_loop.said >= Some(ladder.hard) {
            of_loop.held()
        } else {
            of_loop.count()
        };
        let (action, cause) = if limit > 0 && held >= limit {
            (Action::Terminate, Cause::Holds(held))
        } else if came_back && of_loop.throttles(ladder.soft) {
            (ladder.soft, Cause::CameBack)
        } else if came_back {
            let passed = bar.map_or(ladder.hard, |bar| {
                ladder.at(bar).max(ladder.above(of_loop.said))
            });
            (passed, Cause::CameBack)
        } else if let Some(bar) = bar {
            let cause = match of_loop.said {
                _ if ladder.precedence.of_session => Cause::Used(bar),
                Some(_) => Cause::Grew,
                None => Cause::First,
            };
            (ladder.at(bar), cause)
        } else if of_loop.said.is_some() && trends.is_chronic(detector) {
            (ladder.hard, Cause::WentOn)
        } else {
            (ladder.soft, Cause::First)
        };
        Some(Choice {
            action,
            cause,
            of_session: ladder.precedence.of_session,
        })
    };
    let wishes = findings
        .iter()
        .filter_map(|(detector, finding)| wish(*detector, finding.bar));
    let told_each_time = wishes.clone().any(|wish| wish.of_session);
    // Of two that ask for the same, the one that is of the whole session.
    let choice = wishes.max_by_key(|wish| (wish.action, wish.of_session))?;
    let is_news = Some(choice.action) > of_loop.said
        || matches!(choice.cause, Cause::CameBack)
        || told_each_time;
    is_news.then_some(choice)
}

fn rule(
    of_loop: &Loop,
    sight: &Sight<'_>,
    detector: DetectorId,
    finding: &Finding,
    choice: &Choice,
    trends: &Trends,
    settings: &Settings,
) -> Ruling {
    let others = sight.findings.iter().map(|(other, _)| *other);
    Ruling {
        detector,
        also: others.filter(|other| *other != detector).collect(),
        action: choice.action,
        of_session: choice.of_session,
        reason: reason(&choice.cause),
        confidence: finding.confidence,
        loop_id: of_loop.id,
        calls: finding.calls.clone(),
        trend: trends.of(detector),
        evidence: Evidence {
            count: finding.count,
            period: finding.period,
            similarity: finding.similarity,
            event_indexes: of_loop.events.iter().copied().collect(),
            excerpt: String::new(),
        },
        wasted: of_loop.counted,
        retry_after: (choice.action == Action::Throttle)
            .then(|| throttle(of_loop.verdicts, settings)),
    }
}

fn reason(cause: &Cause) -> String {
    match cause {
        Cause::First => "first time this loop is seen".to_owned(),
        Cause::WentOn => "it went on after it was reported, until the trend was chronic".to_owned(),
        Cause::Grew => "it went on after it was reported, past its next bar".to_owned(),
        Cause::Used(Bar::Soft) => "the share of its budget at which to warn is used".to_owned(),
        Cause::Used(Bar::Hard | Bar::Last) => "its budget is used up".to_owned(),
        Cause::CameBack => "it had been reported, ended, and came back".to_owned(),
        Cause::Holds(events) => format!("it holds {events} events, as many as end it"),
    }
}

/// The wait grows with every verdict that was given on the loop before.
fn throttle(verdicts: u32, settings: &Settings) -> Duration {
    let doublings = verdicts.min(16);
    let secs = u64::from(settings.trend.throttle_secs) << doublings;
    Duration::from_secs(secs.min(u64::from(settings.trend.throttle_secs_max)))
}
