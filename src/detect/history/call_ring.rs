//! The last calls of an agent, packed: there are 32 of them a session, and a
//! million sessions.

use std::time::{Duration, SystemTime};

use super::{
    History,
    call_row::{CallExtra, CallRow, Fingerprints, RareFields, from_nanos, to_nanos},
    text_ring::{CallText, TextRing},
};
use crate::domain::{
    CallFacts, CallKind, Cost, EventPosition, LoopMember, Operation, Outcome, Sig, TimelineStep,
    TimelineStepKind, Waste,
};

/// A ring of calls, as long as it has to be. What is true or false of a call is a
/// bit in a set of slots; what few have (lines, rounds, contents, costs) has
/// lists of its own.
#[derive(Default)]
pub(super) struct CallRing {
    rows: Vec<CallRow>,
    /// What was called, and on what.
    call_fingerprints: Fingerprints,
    target_fingerprints: Fingerprints,
    /// Tool, target and event id of each call, oldest first.
    texts: TextRing,
    rare_fields: Option<Box<RareFields>>,
    ordinary: SlotSet,
    /// A verdict has cited them.
    consumed: SlotSet,
    /// They are known to have gone well, or to have failed.
    succeeded: SlotSet,
    failed: SlotSet,
    /// They came to nothing.
    unproductive: SlotSet,
    /// They went well and said something.
    informative: SlotSet,
    /// There was progress between them and the call before.
    after_progress: SlotSet,
    /// How often the session had made progress at the latest call.
    progress: u32,
    /// The slot that the next call takes.
    next: u8,
    len: u8,
}

/// A set of slots.
type SlotSet = u32;

const _: () = assert!(History::CALLS_MAX == SlotSet::BITS as usize);

/// A call that was made: what of it is compared with later ones.
#[derive(Clone, Copy)]
pub struct CallEntry {
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
    pub masked_outcome: u32,
    pub raw_outcome: u32,
    pub content: Option<Sig>,
    /// A verdict has cited it: it counts for no detector again, save to extend
    /// the same unbroken run.
    pub consumed: bool,
}

/// Room for so many more calls at a time: many sessions are over after a few.
const ROWS_GROWTH: usize = 8;

impl CallRing {
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn occupied_slots(&self) -> SlotSet {
        SlotSet::MAX
            .checked_shr(SlotSet::BITS - u32::from(self.len))
            .unwrap_or(0)
    }

    /// How many calls ago each of these was made, latest first.
    fn calls_ago(&self, slots: SlotSet) -> SetBits {
        let next = u32::from(self.next);
        SetBits(slots.reverse_bits().rotate_right(SlotSet::BITS - next))
    }

    fn slot(&self, ago: usize) -> usize {
        (usize::from(self.next) + 2 * History::CALLS_MAX - 1 - ago) % History::CALLS_MAX
    }

    fn row(&self, ago: usize) -> Option<&CallRow> {
        self.rows.get(self.slot(ago))
    }

    fn entry(&self, ago: usize) -> Option<CallEntry> {
        let slot = self.slot(ago);
        let row = self.rows.get(slot)?;
        let extra = self.extra(slot);
        let moved = self.calls_ago(self.after_progress).0.trailing_zeros();
        Some(CallEntry {
            index: row.index,
            progress: (ago as u32 <= moved).then_some(self.progress),
            round: extra.round,
            call: row.call(),
            operation: row.operation,
            lines: self.lines(slot),
            masked_outcome: row.masked_outcome,
            raw_outcome: row.raw_outcome,
            content: extra.content,
            consumed: self.consumed & 1 << slot != 0,
        })
    }

    fn lines(&self, slot: usize) -> Option<(u32, u32)> {
        self.rare_fields.as_ref()?.lines(slot)
    }

    fn extra(&self, slot: usize) -> CallExtra {
        let rare = self.rare_fields.as_ref();
        let extra = rare.and_then(|rare| rare.extras.get(slot));
        extra.copied().unwrap_or_default()
    }

    /// The ordinary ones, latest first.
    pub fn ordinary(&self) -> impl Iterator<Item = CallEntry> {
        self.calls_ago(self.ordinary)
            .filter_map(|ago| self.entry(ago))
    }

    /// Those of the last `window` ordinary ones that acted on this target, latest
    /// first.
    pub fn on_target(&self, target: Sig, window: usize) -> impl Iterator<Item = CallEntry> {
        let tag = target.tag();
        let on = self.filter_slots(self.target_fingerprints.slots_matching(tag.into()), |row| {
            row.target == tag
        }) & self.ordinary;
        let ordinary = if on == 0 {
            0
        } else {
            self.calls_ago(self.ordinary).0
        };
        let later = move |ago: &usize| (ordinary & ((1 << ago) - 1)).count_ones() as usize;
        self.calls_ago(on)
            .take_while(move |ago| later(ago) < window)
            .filter_map(|ago| self.entry(ago))
    }

    /// Those of some slots whose calls are so.
    fn filter_slots(&self, slots: SlotSet, is: impl Fn(&CallRow) -> bool) -> SlotSet {
        let mut those = 0;
        // Few, and nearly always none.
        for slot in SetBits(slots & self.occupied_slots()) {
            those |= SlotSet::from(self.rows.get(slot).is_some_and(&is)) << slot;
        }
        those
    }

    /// The slots of the calls that equal this one.
    fn slots_of_call(&self, call: Sig) -> SlotSet {
        self.filter_slots(self.call_fingerprints.slots_matching(call.get()), |row| {
            row.call() == Some(call)
        })
    }

    /// The latest ordinary call that equals this one.
    pub fn latest_ordinary(&self, call: Sig) -> Option<CallEntry> {
        let slots = self.slots_of_call(call) & self.ordinary;
        self.entry(self.calls_ago(slots).next()?)
    }

    /// The latest call that equals this one: its event, the tag of what came of
    /// it, and how long ago it was.
    pub fn latest(&self, call: Sig, now: SystemTime) -> Option<(i32, u32, Duration)> {
        let row = self.row(self.calls_ago(self.slots_of_call(call)).next()?)?;
        let ago = to_nanos(now).saturating_sub(row.time);
        let ago = Duration::from_nanos(u64::try_from(ago).unwrap_or_default());
        Some((row.index, row.masked_outcome, ago))
    }

    pub fn push(&mut self, at: EventPosition, facts: &CallFacts, cost: Cost, words: &CallText<'_>) {
        let slot = usize::from(self.next);
        let is_full = usize::from(self.len) == History::CALLS_MAX;
        if is_full && let Some(oldest) = self.rows.get(slot) {
            let words = oldest.text_bytes.map(usize::from).iter().sum();
            self.texts.pop(words);
        }
        let kept = words.truncated();
        self.texts.push(kept);
        let row = CallRow::new(at, facts, kept.map(|word| word.len() as u8));
        match self.rows.get_mut(slot) {
            Some(oldest) => *oldest = row,
            None => {
                if self.rows.len() == self.rows.capacity() {
                    self.rows.reserve_exact(ROWS_GROWTH);
                }
                self.rows.push(row);
            }
        }
        self.call_fingerprints
            .set(slot, facts.call.map_or(0, Sig::get));
        self.target_fingerprints.set(slot, row.target.into());
        let moved = self.len > 0 && self.progress != at.progress;
        set_slot(&mut self.after_progress, slot, moved);
        self.progress = at.progress;
        set_slot(&mut self.ordinary, slot, facts.kind == CallKind::Ordinary);
        set_slot(&mut self.consumed, slot, false);
        set_slot(
            &mut self.succeeded,
            slot,
            facts.outcome == Some(Outcome::Ok),
        );
        set_slot(&mut self.failed, slot, facts.failed());
        set_slot(&mut self.unproductive, slot, facts.unproductive);
        set_slot(
            &mut self.informative,
            slot,
            facts.response.is_some() && !facts.failed(),
        );
        let extra = CallExtra {
            round: at.round,
            content: facts.content,
            tokens: cost.tokens(),
            usd: cost.usd,
        };
        let has_more = facts.lines.is_some() || extra != CallExtra::default();
        if has_more || self.rare_fields.is_some() {
            let rare = self.rare_fields.get_or_insert_default();
            rare.insert(slot, facts.lines, extra);
        }
        self.next = ((slot + 1) % History::CALLS_MAX) as u8;
        self.len += u8::from(!is_full);
    }

    /// All that are kept: slot, event and operation.
    fn iter_slots(&self) -> impl Iterator<Item = (usize, i32, Operation)> {
        let occupied = self.rows.iter().take(usize::from(self.len)).enumerate();
        occupied.map(|(slot, row)| (slot, row.index, row.operation))
    }

    /// Marks calls so that they count no more.
    pub fn consume(&mut self, is: impl Fn(i32, Operation) -> bool) {
        let mut spent = self.consumed;
        for (slot, index, operation) in self.iter_slots() {
            spent |= SlotSet::from(is(index, operation)) << slot;
        }
        self.consumed = spent;
    }

    /// Whether all calls from this event on came to nothing.
    pub fn all_unproductive_since(&self, since: i32) -> bool {
        self.iter_slots()
            .all(|(slot, index, _)| self.unproductive & 1 << slot != 0 || index < since)
    }

    /// Whether any call after this event said what none before had said.
    pub fn has_new_result_since(&self, since: i32) -> bool {
        let masked = |slot: usize| self.rows.get(slot).map(|row| row.masked_outcome);
        let mut informative_calls = self
            .iter_slots()
            .filter(|(slot, index, _)| *index > since && self.informative & 1 << slot != 0);
        informative_calls.any(|(slot, index, _)| {
            let mut earlier = self.iter_slots().filter(|(_, earlier, _)| *earlier < index);
            !earlier.any(|(earlier, ..)| masked(earlier) == masked(slot))
        })
    }

    /// What each has cost, with its event.
    pub fn costs(&self) -> impl Iterator<Item = (i32, Waste)> {
        self.iter_slots().map(|(slot, index, _)| {
            let CallExtra { tokens, usd, .. } = self.extra(slot);
            let waste = Waste {
                events: 1,
                tokens,
                usd,
            };
            (index, waste)
        })
    }

    /// The latest call that equals this one, in words, and what it did.
    pub fn find_member(&self, call: Sig) -> Option<(LoopMember, Operation)> {
        let ago = self.calls_ago(self.slots_of_call(call)).next()?;
        let operation = self.row(ago)?.operation;
        let [tool, target, event_id] = self.texts_of(ago)?;
        let member = LoopMember {
            tool,
            target,
            event_id,
        };
        Some((member, operation))
    }

    /// What is kept, for a person, oldest first.
    pub fn timeline_steps(&self) -> impl Iterator<Item = (Option<Sig>, TimelineStep)> {
        (0..usize::from(self.len)).rev().filter_map(|ago| {
            let row = self.row(ago)?;
            let [tool, target, _] = self.texts_of(ago)?;
            let step = TimelineStep {
                index: row.index,
                time: from_nanos(row.time),
                kind: TimelineStepKind::Call {
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
        let is = |slots: SlotSet| slots & 1 << slot != 0;
        let failed = is(self.failed).then_some(Outcome::Error);
        failed.or(is(self.succeeded).then_some(Outcome::Ok))
    }

    /// Tool, target and event id of a call.
    fn texts_of(&self, ago: usize) -> Option<[String; 3]> {
        let lengths = |ago: usize| Some(self.row(ago)?.text_bytes.map(usize::from));
        let earlier = (ago + 1..usize::from(self.len)).filter_map(lengths);
        let mut begin: usize = earlier.flatten().sum();
        Some(lengths(ago)?.map(|len| {
            begin += len;
            self.texts.get(begin - len..begin)
        }))
    }

    pub fn clear(&mut self) {
        (self.next, self.len) = (0, 0);
        for slots in [
            &mut self.ordinary,
            &mut self.consumed,
            &mut self.succeeded,
            &mut self.failed,
            &mut self.unproductive,
            &mut self.informative,
            &mut self.after_progress,
        ] {
            *slots = 0;
        }
        self.texts.clear();
        if let Some(rare) = &mut self.rare_fields {
            rare.lines.clear();
            rare.extras.clear();
        }
    }

    pub fn heap_bytes(&self) -> usize {
        let rare_bytes = |rare: &RareFields| {
            size_of::<RareFields>()
                + rare.lines.capacity() * size_of::<(u8, u32, u32)>()
                + rare.extras.capacity() * size_of::<CallExtra>()
        };
        self.rows.capacity() * size_of::<CallRow>()
            + self.texts.heap_bytes()
            + self.rare_fields.as_deref().map_or(0, rare_bytes)
    }
}

/// The bits of a set, lowest first: slots, or how many calls ago.
struct SetBits(u32);

impl Iterator for SetBits {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        let lowest = (self.0 != 0).then(|| self.0.trailing_zeros() as usize);
        self.0 &= self.0.wrapping_sub(1);
        lowest
    }
}

fn set_slot(slots: &mut SlotSet, slot: usize, is: bool) {
    *slots = *slots & !(1 << slot) | SlotSet::from(is) << slot;
}
