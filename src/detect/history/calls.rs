//! The last calls of an agent, packed: there are 32 of them a session, and a
//! million sessions.

use std::time::{Duration, SystemTime};

use super::{
    History,
    row::{Extra, Prints, Row, Seldom, nanos, time},
    words::{Texts, Words},
};
use crate::domain::{
    CallFacts, CallKind, Cost, Member, Moment, Operation, Outcome, Sig, Step, StepKind, Waste,
};

/// A ring of calls, as long as it has to be. What is true or false of a call is a
/// bit in a set of slots; what few have (lines, rounds, contents, costs) has
/// lists of its own.
#[derive(Default)]
pub(super) struct Calls {
    rows: Vec<Row>,
    /// What was called, and on what.
    called: Prints,
    on: Prints,
    /// Tool, target and event id of each call, oldest first.
    words: Texts,
    seldom: Option<Box<Seldom>>,
    ordinary: Slots,
    /// A verdict has cited them.
    spent: Slots,
    /// They are known to have gone well, or to have failed.
    succeeded: Slots,
    failed: Slots,
    /// They came to nothing.
    in_vain: Slots,
    /// They went well and said something.
    tell: Slots,
    /// There was progress between them and the call before.
    moved: Slots,
    /// How often the session had made progress at the latest call.
    progress: u32,
    /// The slot that the next call takes.
    next: u8,
    len: u8,
}

/// A set of slots.
type Slots = u32;

const _: () = assert!(History::CALLS_MAX == Slots::BITS as usize);

/// A call that was made: what of it is compared with later ones.
#[derive(Clone, Copy)]
pub struct Entry {
    pub index: i32,
    /// How often the session had made progress when the call was over; `None`:
    /// less often than at a later call.
    pub progress: Option<u32>,
    /// The round it belongs to; `None`: a round of its own.
    pub round: Option<Sig>,
    pub call: Option<Sig>,
    pub operation: Operation,
    /// The lines that it asked for; `None`: all.
    pub lines: Option<(u32, u32)>,
    /// What came of it, as tags: masked and raw.
    pub masked: u32,
    pub raw: u32,
    pub content: Option<Sig>,
    /// A verdict has cited it: it counts for no detector again, save to extend
    /// the same unbroken run.
    pub spent: bool,
}

/// Room for so many more calls at a time: many sessions are over after a few.
const ROWS_MORE: usize = 8;

impl Calls {
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn held(&self) -> Slots {
        Slots::MAX
            .checked_shr(Slots::BITS - u32::from(self.len))
            .unwrap_or(0)
    }

    /// How many calls ago each of these was made, latest first.
    fn ago(&self, slots: Slots) -> Bits {
        let next = u32::from(self.next);
        Bits(slots.reverse_bits().rotate_right(Slots::BITS - next))
    }

    fn slot(&self, ago: usize) -> usize {
        (usize::from(self.next) + 2 * History::CALLS_MAX - 1 - ago) % History::CALLS_MAX
    }

    fn row(&self, ago: usize) -> Option<&Row> {
        self.rows.get(self.slot(ago))
    }

    fn entry(&self, ago: usize) -> Option<Entry> {
        let slot = self.slot(ago);
        let row = self.rows.get(slot)?;
        let extra = self.extra(slot);
        let moved = self.ago(self.moved).0.trailing_zeros();
        Some(Entry {
            index: row.index,
            progress: (ago as u32 <= moved).then_some(self.progress),
            round: extra.round,
            call: row.call(),
            operation: row.operation,
            lines: self.lines(slot),
            masked: row.masked,
            raw: row.raw,
            content: extra.content,
            spent: self.spent & 1 << slot != 0,
        })
    }

    fn lines(&self, slot: usize) -> Option<(u32, u32)> {
        self.seldom.as_ref()?.lines(slot)
    }

    fn extra(&self, slot: usize) -> Extra {
        let seldom = self.seldom.as_ref();
        let extra = seldom.and_then(|seldom| seldom.extras.get(slot));
        extra.copied().unwrap_or_default()
    }

    /// The ordinary ones, latest first.
    pub fn ordinary(&self) -> impl Iterator<Item = Entry> {
        self.ago(self.ordinary).filter_map(|ago| self.entry(ago))
    }

    /// Those of the last `window` ordinary ones that acted on this target, latest
    /// first.
    pub fn on(&self, target: Sig, window: usize) -> impl Iterator<Item = Entry> {
        let tag = target.tag();
        let on = self.those(self.on.of(tag.into()), |row| row.target == tag) & self.ordinary;
        let ordinary = if on == 0 {
            0
        } else {
            self.ago(self.ordinary).0
        };
        let later = move |ago: &usize| (ordinary & ((1 << ago) - 1)).count_ones() as usize;
        self.ago(on)
            .take_while(move |ago| later(ago) < window)
            .filter_map(|ago| self.entry(ago))
    }

    /// Those of some slots whose calls are so.
    fn those(&self, slots: Slots, is: impl Fn(&Row) -> bool) -> Slots {
        let mut those = 0;
        // Few, and nearly always none.
        for slot in Bits(slots & self.held()) {
            those |= Slots::from(self.rows.get(slot).is_some_and(&is)) << slot;
        }
        those
    }

    /// The slots of the calls that equal this one.
    fn equal(&self, call: Sig) -> Slots {
        self.those(self.called.of(call.get()), |row| row.call() == Some(call))
    }

    /// The latest ordinary call that equals this one.
    pub fn latest_ordinary(&self, call: Sig) -> Option<Entry> {
        let slots = self.equal(call) & self.ordinary;
        self.entry(self.ago(slots).next()?)
    }

    /// The latest call that equals this one: its event, the tag of what came of
    /// it, and how long ago it was.
    pub fn latest(&self, call: Sig, now: SystemTime) -> Option<(i32, u32, Duration)> {
        let row = self.row(self.ago(self.equal(call)).next()?)?;
        let ago = nanos(now).saturating_sub(row.time);
        let ago = Duration::from_nanos(u64::try_from(ago).unwrap_or_default());
        Some((row.index, row.masked, ago))
    }

    pub fn push(&mut self, at: Moment, facts: &CallFacts, cost: Cost, words: &Words<'_>) {
        let slot = usize::from(self.next);
        let is_full = usize::from(self.len) == History::CALLS_MAX;
        if is_full && let Some(oldest) = self.rows.get(slot) {
            let words = oldest.words_bytes.map(usize::from).iter().sum();
            self.words.pop(words);
        }
        let kept = words.kept();
        self.words.push(kept);
        let row = Row::new(at, facts, kept.map(|word| word.len() as u8));
        match self.rows.get_mut(slot) {
            Some(oldest) => *oldest = row,
            None => {
                if self.rows.len() == self.rows.capacity() {
                    self.rows.reserve_exact(ROWS_MORE);
                }
                self.rows.push(row);
            }
        }
        self.called.put(slot, facts.call.map_or(0, Sig::get));
        self.on.put(slot, row.target.into());
        let moved = self.len > 0 && self.progress != at.progress;
        set(&mut self.moved, slot, moved);
        self.progress = at.progress;
        set(&mut self.ordinary, slot, facts.kind == CallKind::Ordinary);
        set(&mut self.spent, slot, false);
        set(
            &mut self.succeeded,
            slot,
            facts.outcome == Some(Outcome::Ok),
        );
        set(&mut self.failed, slot, facts.failed());
        set(&mut self.in_vain, slot, facts.in_vain);
        set(
            &mut self.tell,
            slot,
            facts.said.is_some() && !facts.failed(),
        );
        let extra = Extra {
            round: at.round,
            content: facts.content,
            tokens: cost.tokens(),
            usd: cost.usd,
        };
        let has_more = facts.lines.is_some() || extra != Extra::default();
        if has_more || self.seldom.is_some() {
            let seldom = self.seldom.get_or_insert_default();
            seldom.put(slot, facts.lines, extra);
        }
        self.next = ((slot + 1) % History::CALLS_MAX) as u8;
        self.len += u8::from(!is_full);
    }

    /// All that are kept: slot, event and operation.
    fn all(&self) -> impl Iterator<Item = (usize, i32, Operation)> {
        let held = self.rows.iter().take(usize::from(self.len)).enumerate();
        held.map(|(slot, row)| (slot, row.index, row.operation))
    }

    /// Marks calls so that they count no more.
    pub fn spend(&mut self, is: impl Fn(i32, Operation) -> bool) {
        let mut spent = self.spent;
        for (slot, index, operation) in self.all() {
            spent |= Slots::from(is(index, operation)) << slot;
        }
        self.spent = spent;
    }

    /// Whether all calls from this event on came to nothing.
    pub fn all_in_vain(&self, since: i32) -> bool {
        self.all()
            .all(|(slot, index, _)| self.in_vain & 1 << slot != 0 || index < since)
    }

    /// Whether any call after this event said what none before had said.
    pub fn any_news(&self, since: i32) -> bool {
        let masked = |slot: usize| self.rows.get(slot).map(|row| row.masked);
        let mut telling = self
            .all()
            .filter(|(slot, index, _)| *index > since && self.tell & 1 << slot != 0);
        telling.any(|(slot, index, _)| {
            let mut earlier = self.all().filter(|(_, earlier, _)| *earlier < index);
            !earlier.any(|(earlier, ..)| masked(earlier) == masked(slot))
        })
    }

    /// What each has cost, with its event.
    pub fn costs(&self) -> impl Iterator<Item = (i32, Waste)> {
        self.all().map(|(slot, index, _)| {
            let Extra { tokens, usd, .. } = self.extra(slot);
            let waste = Waste {
                events: 1,
                tokens,
                usd,
            };
            (index, waste)
        })
    }

    /// The latest call that equals this one, in words, and what it did.
    pub fn member(&self, call: Sig) -> Option<(Member, Operation)> {
        let ago = self.ago(self.equal(call)).next()?;
        let operation = self.row(ago)?.operation;
        let [tool, target, event_id] = self.words_of(ago)?;
        let member = Member {
            tool,
            target,
            event_id,
        };
        Some((member, operation))
    }

    /// What is kept, for a person, oldest first.
    pub fn steps(&self) -> impl Iterator<Item = (Option<Sig>, Step)> {
        (0..usize::from(self.len)).rev().filter_map(|ago| {
            let row = self.row(ago)?;
            let [tool, target, _] = self.words_of(ago)?;
            let step = Step {
                index: row.index,
                time: time(row.time),
                kind: StepKind::Call {
                    tool,
                    target,
                    operation: row.operation,
                    outcome: self.outcome(self.slot(ago)),
                },
            };
            Some((row.call(), step))
        })
    }

    /// A call that was blocked is not among them.
    fn outcome(&self, slot: usize) -> Option<Outcome> {
        let is = |slots: Slots| slots & 1 << slot != 0;
        let failed = is(self.failed).then_some(Outcome::Error);
        failed.or(is(self.succeeded).then_some(Outcome::Ok))
    }

    /// Tool, target and event id of a call.
    fn words_of(&self, ago: usize) -> Option<[String; 3]> {
        let lengths = |ago: usize| Some(self.row(ago)?.words_bytes.map(usize::from));
        let earlier = (ago + 1..usize::from(self.len)).filter_map(lengths);
        let mut begin: usize = earlier.flatten().sum();
        Some(lengths(ago)?.map(|len| {
            begin += len;
            self.words.get(begin - len..begin)
        }))
    }

    pub fn clear(&mut self) {
        (self.next, self.len) = (0, 0);
        for slots in [
            &mut self.ordinary,
            &mut self.spent,
            &mut self.succeeded,
            &mut self.failed,
            &mut self.in_vain,
            &mut self.tell,
            &mut self.moved,
        ] {
            *slots = 0;
        }
        self.words.clear();
        if let Some(seldom) = &mut self.seldom {
            seldom.lines.clear();
            seldom.extras.clear();
        }
    }

    pub fn heap_bytes(&self) -> usize {
        let seldom = |seldom: &Seldom| {
            size_of::<Seldom>()
                + seldom.lines.capacity() * size_of::<(u8, u32, u32)>()
                + seldom.extras.capacity() * size_of::<Extra>()
        };
        self.rows.capacity() * size_of::<Row>()
            + self.words.heap_bytes()
            + self.seldom.as_deref().map_or(0, seldom)
    }
}

/// The bits of a set, lowest first: slots, or how many calls ago.
struct Bits(u32);

impl Iterator for Bits {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        let lowest = (self.0 != 0).then(|| self.0.trailing_zeros() as usize);
        self.0 &= self.0.wrapping_sub(1);
        lowest
    }
}

fn set(slots: &mut Slots, slot: usize, is: bool) {
    *slots = *slots & !(1 << slot) | Slots::from(is) << slot;
}
