//! The last calls of an agent, packed, because there are 32 per agent in up to a
//! million sessions.

use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use super::{
    super::heap,
    History,
    args_ring::ArgsRing,
    call_row::{CallExtra, CallRow, Fingerprints, RareFields, from_nanos, to_nanos},
    text_ring::{CallText, TextRing},
};
use crate::domain::{
    CallFacts, CallKind, Cost, EventPosition, LazyBox, LoopMember, Operation, Outcome, Sig,
    TimelineStep, TimelineStepKind, Waste,
};

/// A ring of calls that grows up to [`History::CALLS_MAX`]. Boolean fields are bits
/// in sets of slots. Fields that few calls have (lines, rounds, contents, costs)
/// are in separate lists.
#[derive(Default, Serialize, Deserialize)]
pub(super) struct CallRing {
    rows: Vec<CallRow>,
    /// By call signature and by target.
    call_fingerprints: Fingerprints,
    target_fingerprints: Fingerprints,
    /// Tool, target and event id of each call, oldest first.
    texts: TextRing,
    args: ArgsRing,
    rare_fields: LazyBox<RareFields>,
    ordinary: SlotSet,
    /// A verdict cites them, or a compaction dropped them.
    consumed: SlotSet,
    succeeded: SlotSet,
    failed: SlotSet,
    unproductive: SlotSet,
    /// They failed or brought nothing.
    fruitless: SlotSet,
    /// They did not fail, and their response says something.
    informative: SlotSet,
    /// The session made progress between them and the previous call.
    after_progress: SlotSet,
    /// The session's progress count at the latest call.
    progress: u32,
    /// The slot of the next call.
    next: u8,
    len: u8,
}

/// A set of slots, one bit each.
type SlotSet = u32;

const _: () = assert!(History::CALLS_MAX == SlotSet::BITS as usize);

/// The fields of a call that are compared with later calls.
#[derive(Clone, Copy)]
pub struct CallEntry {
    pub index: i32,
    /// The session's progress count after the call; `None`: lower than at the latest
    /// call.
    pub progress: Option<u32>,
    /// `None`: the call is a round by itself.
    pub round: Option<Sig>,
    pub call: Option<Sig>,
    pub operation: Operation,
    /// The requested lines; `None`: all.
    pub lines: Option<(u32, u32)>,
    /// The tag of the masked outcome.
    pub masked_outcome: u32,
    /// The tag of the raw outcome.
    pub raw_outcome: u32,
    pub content: Option<Sig>,
    /// A verdict cites the call. It counts only to extend the same unbroken run.
    pub consumed: bool,
}

/// The ring grows by this many calls, because many sessions end after a few.
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

    /// For each of these slots, how many calls ago it was filled; latest first.
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
        let calls_since_progress = self.calls_ago(self.after_progress).0.trailing_zeros();
        Some(CallEntry {
            index: row.index,
            progress: (ago as u32 <= calls_since_progress).then_some(self.progress),
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
        self.rare_fields.get()?.lines(slot)
    }

    fn extra(&self, slot: usize) -> CallExtra {
        self.rare_fields
            .get()
            .and_then(|rare| rare.extras.get(slot))
            .copied()
            .unwrap_or_default()
    }

    /// The ordinary calls, latest first.
    pub fn ordinary(&self) -> impl Iterator<Item = CallEntry> {
        self.calls_ago(self.ordinary)
            .filter_map(|ago| self.entry(ago))
    }

    /// The calls on this target among the last `window` ordinary calls, latest
    /// first.
    pub fn on_target(&self, target: Sig, window: usize) -> impl Iterator<Item = CallEntry> {
        let tag = target.tag();
        let on_target =
            self.filter_slots(self.target_fingerprints.slots_matching(tag.into()), |row| {
                row.target == tag
            }) & self.ordinary;
        let ordinary = if on_target == 0 {
            0
        } else {
            self.calls_ago(self.ordinary).0
        };
        self.calls_ago(on_target)
            .take_while(move |ago| {
                let later_ordinary = (ordinary & ((1 << ago) - 1)).count_ones();
                (later_ordinary as usize) < window
            })
            .filter_map(|ago| self.entry(ago))
    }

    /// The subset of the slots whose rows match.
    fn filter_slots(&self, slots: SlotSet, matches: impl Fn(&CallRow) -> bool) -> SlotSet {
        let mut matching = 0;
        // The fingerprints leave few slots, nearly always none.
        for slot in SetBits(slots & self.occupied_slots()) {
            matching |= SlotSet::from(self.rows.get(slot).is_some_and(&matches)) << slot;
        }
        matching
    }

    /// The slots of the calls with this signature.
    fn slots_of_call(&self, call: Sig) -> SlotSet {
        self.filter_slots(self.call_fingerprints.slots_matching(call.get()), |row| {
            row.call() == Some(call)
        })
    }

    /// The latest ordinary call with this signature.
    pub fn latest_ordinary(&self, call: Sig) -> Option<CallEntry> {
        let slots = self.slots_of_call(call) & self.ordinary;
        self.entry(self.calls_ago(slots).next()?)
    }

    /// The latest call with this signature: its event, the tag of its masked
    /// outcome, and how long ago it was.
    pub fn latest(&self, call: Sig, now: SystemTime) -> Option<(i32, u32, Duration)> {
        let row = self.row(self.calls_ago(self.slots_of_call(call)).next()?)?;
        let nanos = to_nanos(now).saturating_sub(row.time);
        let ago = Duration::from_nanos(u64::try_from(nanos).unwrap_or_default());
        Some((row.index, row.masked_outcome, ago))
    }

    pub fn push(&mut self, at: EventPosition, facts: &CallFacts, cost: Cost, text: &CallText<'_>) {
        let slot = usize::from(self.next);
        let is_full = usize::from(self.len) == History::CALLS_MAX;
        // Replaces the texts and the row of the oldest call.
        if is_full && let Some(oldest) = self.rows.get(slot) {
            self.texts
                .pop(oldest.text_bytes.map(usize::from).iter().sum());
        }
        let texts = text.truncated();
        self.texts.push(texts);
        self.args.push(text.args);
        let row = CallRow::new(at, facts, texts.map(|text| text.len() as u8));
        match self.rows.get_mut(slot) {
            Some(oldest) => *oldest = row,
            None => {
                if self.rows.len() == self.rows.capacity() {
                    self.rows.reserve_exact(ROWS_GROWTH);
                }
                self.rows.push(row);
            }
        }
        // Sets the fingerprints and the bits of the slot.
        self.call_fingerprints
            .set(slot, facts.call.map_or(0, Sig::get));
        self.target_fingerprints.set(slot, row.target.into());
        let is_after_progress = self.len > 0 && self.progress != at.progress;
        set_slot(&mut self.after_progress, slot, is_after_progress);
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
        set_slot(&mut self.fruitless, slot, facts.is_fruitless());
        set_slot(
            &mut self.informative,
            slot,
            facts.response.is_some() && !facts.failed(),
        );
        // Stores the rare fields once any call has had one.
        let extra = CallExtra {
            round: at.round,
            content: facts.content,
            tokens: saturate_u32(cost.tokens()),
            cached_tokens: saturate_u32(cost.cached_input_tokens),
            usd: cost.usd,
        };
        let has_rare_fields = facts.lines.is_some() || extra != CallExtra::default();
        if has_rare_fields || self.rare_fields.get().is_some() {
            let rare = self.rare_fields.get_or_insert_default();
            rare.insert(slot, facts.lines, extra);
        }
        self.next = ((slot + 1) % History::CALLS_MAX) as u8;
        self.len += u8::from(!is_full);
    }

    /// Slot, event and operation of each call, in no particular order.
    fn iter_slots(&self) -> impl Iterator<Item = (usize, i32, Operation)> {
        let occupied = self.rows.iter().take(usize::from(self.len)).enumerate();
        occupied.map(|(slot, row)| (slot, row.index, row.operation))
    }

    /// Marks the matching calls as consumed.
    pub fn consume(&mut self, matches: impl Fn(i32, Operation) -> bool) {
        let mut consumed = self.consumed;
        for (slot, index, operation) in self.iter_slots() {
            consumed |= SlotSet::from(matches(index, operation)) << slot;
        }
        self.consumed = consumed;
    }

    /// Whether all calls from this event on were unproductive.
    pub fn all_unproductive_since(&self, since: i32) -> bool {
        self.iter_slots()
            .all(|(slot, index, _)| self.unproductive & 1 << slot != 0 || index < since)
    }

    /// Whether any call after this event was fruitless.
    pub fn has_fruitless_since(&self, since: i32) -> bool {
        self.iter_slots()
            .any(|(slot, index, _)| index > since && self.fruitless & 1 << slot != 0)
    }

    /// Whether any command after this event failed.
    pub fn has_failed_run_since(&self, since: i32) -> bool {
        self.iter_slots().any(|(slot, index, operation)| {
            index > since && operation == Operation::Execute && self.failed & 1 << slot != 0
        })
    }

    /// Whether any informative call after this event has a masked outcome that no
    /// earlier call had.
    pub fn has_new_result_since(&self, since: i32) -> bool {
        let outcome_of = |slot: usize| self.rows.get(slot).map(|row| row.masked_outcome);
        let mut informative_calls = self
            .iter_slots()
            .filter(|(slot, index, _)| *index > since && self.informative & 1 << slot != 0);
        informative_calls.any(|(slot, index, _)| {
            let mut earlier = self.iter_slots().filter(|(_, earlier, _)| *earlier < index);
            !earlier.any(|(earlier, ..)| outcome_of(earlier) == outcome_of(slot))
        })
    }

    /// The event and the cost of each call.
    pub fn costs(&self) -> impl Iterator<Item = (i32, Waste)> {
        self.iter_slots().map(|(slot, index, _)| {
            let extra = self.extra(slot);
            let waste = Waste {
                events: 1,
                tokens: extra.tokens.into(),
                cached_tokens: extra.cached_tokens.into(),
                usd: extra.usd,
            };
            (index, waste)
        })
    }

    /// The names, the operation and the arguments of the latest call with this
    /// signature.
    pub fn find_member(&self, call: Sig) -> Option<(LoopMember, Operation, String)> {
        let ago = self.calls_ago(self.slots_of_call(call)).next()?;
        let operation = self.row(ago)?.operation;
        let [tool, target, event_id] = self.texts_of(ago)?;
        let member = LoopMember {
            tool,
            target,
            event_id,
            call_key: None,
            args: String::new(),
        };
        Some((member, operation, self.args.get(ago)))
    }

    /// The stored calls for a person, oldest first.
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

    /// Blocked calls are never stored.
    fn outcome(&self, slot: usize) -> Option<Outcome> {
        let bit = 1 << slot;
        if self.failed & bit != 0 {
            Some(Outcome::Error)
        } else {
            (self.succeeded & bit != 0).then_some(Outcome::Ok)
        }
    }

    /// Tool, target and event id of a call.
    fn texts_of(&self, ago: usize) -> Option<[String; 3]> {
        // From the end of the ring on, because a verdict is about the latest calls.
        let lengths = |ago: usize| Some(self.row(ago)?.text_bytes.map(usize::from));
        let from_call_on = (0..=ago).filter_map(lengths).flatten().sum();
        let mut begin = self.texts.len().checked_sub(from_call_on)?;
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
            &mut self.fruitless,
            &mut self.informative,
            &mut self.after_progress,
        ] {
            *slots = 0;
        }
        self.texts.clear();
        self.args.clear();
        if let Some(rare) = self.rare_fields.get_mut() {
            rare.lines.clear();
            rare.extras.clear();
        }
    }

    pub fn heap_bytes(&self) -> usize {
        let rare_fields = self
            .rare_fields
            .heap_bytes(|rare| heap::vec_bytes(&rare.lines) + heap::vec_bytes(&rare.extras));
        heap::vec_bytes(&self.rows) + self.texts.heap_bytes() + self.args.heap_bytes() + rare_fields
    }
}

/// Iterates over the set bits, lowest first.
struct SetBits(u32);

impl Iterator for SetBits {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        let lowest = (self.0 != 0).then(|| self.0.trailing_zeros() as usize);
        self.0 &= self.0.wrapping_sub(1);
        lowest
    }
}

fn saturate_u32(count: i64) -> u32 {
    u32::try_from(count.max(0)).unwrap_or(u32::MAX)
}

fn set_slot(slots: &mut SlotSet, slot: usize, value: bool) {
    *slots = *slots & !(1 << slot) | SlotSet::from(value) << slot;
}
