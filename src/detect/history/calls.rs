//! The last calls of an agent, packed: there are 32 of them a session, and a
//! million sessions.

use std::{
    collections::VecDeque,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use super::{History, Words};
use crate::domain::{
    CallFacts, CallKind, Cost, Member, Moment, Operation, Outcome, Sig, Step, StepKind, Waste, text,
};

/// A ring of calls. What every call has is one record; what few have (lines,
/// rounds, contents, costs) has a column that is there once it is needed.
#[derive(Default)]
pub(super) struct Calls {
    /// The slot that the next call takes.
    next: usize,
    /// What each call is, apart from the rest: it is sought on every event.
    calls: Vec<Option<Sig>>,
    records: Vec<Record>,
    lines: Vec<Lines>,
    extras: Vec<Extra>,
    /// Tool, target and event id of each call, oldest first, one after the other.
    words: VecDeque<u8>,
}

/// The lines that a call asked for, first and last; `None`: all.
type Lines = Option<(u32, u32)>;

#[derive(Clone, Copy)]
struct Record {
    masked: Sig,
    raw: Sig,
    target: Option<Sig>,
    /// Nanoseconds since 1970: until 2262.
    time: i64,
    index: i32,
    progress: u32,
    tool_bytes: u8,
    target_bytes: u8,
    id_bytes: u16,
    kind: CallKind,
    operation: Operation,
    outcome: Option<Outcome>,
    flags: u8,
}

/// A verdict has cited it.
const SPENT: u8 = 1;
/// It came to nothing.
const IN_VAIN: u8 = 2;
/// It went well and said something.
const TELLS: u8 = 4;

// Half of what a session holds: think twice before it grows.
const _: () = assert!(size_of::<Record>() == 48);

/// What a call had besides.
#[derive(Clone, Copy, Default, PartialEq)]
struct Extra {
    round: Option<Sig>,
    content: Option<Sig>,
    tokens: i64,
    usd: f64,
}

/// A call that was made: what of it is compared with later ones.
#[derive(Clone, Copy)]
pub struct Entry {
    pub index: i32,
    /// How often the session had made progress when the call was over.
    pub progress: u32,
    /// The round it belongs to; `None`: a round of its own.
    pub round: Option<Sig>,
    pub call: Option<Sig>,
    pub operation: Operation,
    pub target: Option<Sig>,
    pub lines: Lines,
    pub masked: Sig,
    pub raw: Sig,
    pub content: Option<Sig>,
    /// A verdict has cited it: it counts for no detector again, save to extend
    /// the same unbroken run.
    pub spent: bool,
}

impl Calls {
    /// Of a tool's name so many bytes are kept.
    const TOOL_BYTES_MAX: usize = u8::MAX as usize;
    /// Room for words grows by so much: four calls or so.
    const WORDS_BYTES_MORE: usize = 256;

    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// The slots, that of the latest call first.
    fn slots(&self) -> impl DoubleEndedIterator<Item = usize> + Clone + use<> {
        let last = self.next + History::CALLS_MAX - 1;
        (0..self.records.len()).map(move |back| (last - back) % History::CALLS_MAX)
    }

    fn entry(&self, slot: usize) -> Option<Entry> {
        let record = self.records.get(slot)?;
        let extra = self.extra(slot);
        Some(Entry {
            index: record.index,
            progress: record.progress,
            round: extra.round,
            call: self.calls.get(slot).copied().flatten(),
            operation: record.operation,
            target: record.target,
            lines: self.lines.get(slot).copied().flatten(),
            masked: record.masked,
            raw: record.raw,
            content: extra.content,
            spent: record.flags & SPENT != 0,
        })
    }

    fn extra(&self, slot: usize) -> Extra {
        self.extras.get(slot).copied().unwrap_or_default()
    }

    /// The ordinary ones, latest first.
    pub fn ordinary(&self) -> impl Iterator<Item = Entry> {
        let ordinary = |slot: &usize| matches!(self.records.get(*slot), Some(r) if r.kind == CallKind::Ordinary);
        let slots = self.slots().filter(ordinary);
        slots.filter_map(|slot| self.entry(slot))
    }

    /// The slots of the calls that equal this one, latest first.
    fn equal(&self, call: Sig) -> impl Iterator<Item = usize> {
        let wanted = Some(call);
        // Nearly always there is none, which a look along the column tells.
        let any = self
            .calls
            .iter()
            .fold(false, |any, known| any | (*known == wanted));
        let slots = any.then(|| self.slots()).into_iter().flatten();
        slots.filter(move |slot| self.calls.get(*slot) == Some(&wanted))
    }

    /// The latest ordinary call that equals this one.
    pub fn latest_ordinary(&self, call: Sig) -> Option<Entry> {
        let ordinary = |slot: &usize| {
            let record = self.records.get(*slot);
            record.is_some_and(|record| record.kind == CallKind::Ordinary)
        };
        let slot = self.equal(call).find(ordinary)?;
        self.entry(slot)
    }

    /// The latest call that equals this one: its event, what came of it, and how
    /// long ago it was.
    pub fn latest(&self, call: Sig, now: SystemTime) -> Option<(i32, Sig, Duration)> {
        let slot = self.equal(call).next()?;
        let record = self.records.get(slot)?;
        let ago = nanos(now).saturating_sub(record.time);
        let ago = Duration::from_nanos(u64::try_from(ago).unwrap_or_default());
        Some((record.index, record.masked, ago))
    }

    pub fn push(&mut self, at: Moment, facts: &CallFacts, cost: Cost, words: &Words<'_>) {
        let slot = self.next;
        if let Some(old) = self.records.get(slot) {
            let words = self.words.drain(..old.words_bytes());
            drop(words);
        }
        let tool = text::prefix(words.tool, Self::TOOL_BYTES_MAX);
        let target = text::prefix(words.target, History::TARGET_BYTES_MAX);
        let id = text::prefix(words.event_id, usize::from(u16::MAX));
        // Little more than is needed: a deque of its own accord doubles.
        let (held, needed) = (self.words.len(), tool.len() + target.len() + id.len());
        if held + needed > self.words.capacity() {
            self.words.reserve_exact(needed.max(Self::WORDS_BYTES_MORE));
        }
        for word in [tool, target, id] {
            self.words.extend(word.as_bytes());
        }
        let record = Record {
            masked: facts.masked,
            raw: facts.raw,
            target: facts.target,
            time: nanos(at.time),
            index: at.index,
            progress: at.progress,
            tool_bytes: tool.len() as u8,
            target_bytes: target.len() as u8,
            id_bytes: id.len() as u16,
            kind: facts.kind,
            operation: facts.operation,
            outcome: facts.outcome,
            flags: flags(facts),
        };
        let extra = Extra {
            round: at.round,
            content: facts.content,
            tokens: cost.tokens(),
            usd: cost.usd,
        };
        set(&mut self.records, slot, record);
        set(&mut self.calls, slot, facts.call);
        set_seldom(&mut self.lines, slot, facts.lines);
        set_seldom(&mut self.extras, slot, extra);
        self.next = (slot + 1) % History::CALLS_MAX;
    }

    /// Marks calls so that they count no more.
    pub fn spend(&mut self, is: impl Fn(i32, Operation) -> bool) {
        for record in &mut self.records {
            if is(record.index, record.operation) {
                record.flags |= SPENT;
            }
        }
    }

    /// Whether all calls from this event on came to nothing.
    pub fn all_in_vain(&self, since: i32) -> bool {
        let mut records = self.records.iter();
        records.all(|record| record.flags & IN_VAIN != 0 || record.index < since)
    }

    /// Whether any call after this event said what none before had said.
    pub fn any_news(&self, since: i32) -> bool {
        let later = self.records.iter().filter(|record| record.index > since);
        let mut telling = later.filter(|record| record.flags & TELLS != 0);
        telling.any(|record| {
            let mut earlier = self.records.iter().filter(|r| r.index < record.index);
            !earlier.any(|r| r.masked == record.masked)
        })
    }

    /// What each has cost, with its event.
    pub fn costs(&self) -> impl Iterator<Item = (i32, Waste)> {
        self.records.iter().enumerate().map(|(slot, record)| {
            let Extra { tokens, usd, .. } = self.extra(slot);
            let waste = Waste {
                events: 1,
                tokens,
                usd,
            };
            (record.index, waste)
        })
    }

    /// The latest call that equals this one, in words, and what it did.
    pub fn member(&self, call: Sig) -> Option<(Member, Operation)> {
        let slot = self.equal(call).next()?;
        let record = self.records.get(slot)?;
        let [tool, target, event_id] = self.words_of(slot)?;
        let member = Member {
            tool,
            target,
            event_id,
        };
        Some((member, record.operation))
    }

    /// What is kept, for a person, oldest first.
    pub fn steps(&self) -> impl Iterator<Item = (Option<Sig>, Step)> {
        self.slots().rev().filter_map(|slot| {
            let record = self.records.get(slot)?;
            let [tool, target, _] = self.words_of(slot)?;
            let step = Step {
                index: record.index,
                time: time(record.time),
                kind: StepKind::Call {
                    tool,
                    target,
                    operation: record.operation,
                    outcome: record.outcome,
                },
            };
            Some((self.calls.get(slot).copied().flatten(), step))
        })
    }

    /// Tool, target and event id of a call.
    fn words_of(&self, slot: usize) -> Option<[String; 3]> {
        let earlier = self.slots().rev().take_while(|other| *other != slot);
        let records = earlier.filter_map(|slot| self.records.get(slot));
        let mut begin: usize = records.map(Record::words_bytes).sum();
        let record = self.records.get(slot)?;
        Some(record.lengths().map(|len| {
            let bytes = self.words.range(begin..begin + len).copied().collect();
            begin += len;
            String::from_utf8(bytes).unwrap_or_default()
        }))
    }

    pub fn clear(&mut self) {
        self.next = 0;
        self.calls.clear();
        self.records.clear();
        self.lines.clear();
        self.extras.clear();
        self.words.clear();
    }

    pub fn heap_bytes(&self) -> usize {
        self.calls.capacity() * size_of::<Option<Sig>>()
            + self.records.capacity() * size_of::<Record>()
            + self.lines.capacity() * size_of::<Lines>()
            + self.extras.capacity() * size_of::<Extra>()
            + self.words.capacity()
    }
}

impl Record {
    fn lengths(&self) -> [usize; 3] {
        [
            self.tool_bytes.into(),
            self.target_bytes.into(),
            self.id_bytes.into(),
        ]
    }

    fn words_bytes(&self) -> usize {
        self.lengths().iter().sum()
    }
}

fn flags(facts: &CallFacts) -> u8 {
    let in_vain = if facts.in_vain { IN_VAIN } else { 0 };
    let tells = facts.said.is_some() && !facts.failed();
    in_vain | if tells { TELLS } else { 0 }
}

/// Puts something in its slot: that of the oldest, or one more.
fn set<T>(column: &mut Vec<T>, slot: usize, value: T) {
    match column.get_mut(slot) {
        Some(old) => *old = value,
        None => column.push(value),
    }
}

/// The same in a column that is as long as it has to be.
fn set_seldom<T: Default + PartialEq>(column: &mut Vec<T>, slot: usize, value: T) {
    if column.len() <= slot && value != T::default() {
        column.resize_with(slot, T::default);
    }
    if column.len() >= slot && (column.len() > slot || value != T::default()) {
        set(column, slot, value);
    }
}

/// Times that no clock shows are taken for the nearest that fits.
fn nanos(time: SystemTime) -> i64 {
    let fits = |span: Duration| i64::try_from(span.as_nanos()).unwrap_or(i64::MAX);
    match time.duration_since(UNIX_EPOCH) {
        Ok(since) => fits(since),
        Err(before) => -fits(before.duration()),
    }
}

fn time(nanos: i64) -> SystemTime {
    let span = Duration::from_nanos(nanos.unsigned_abs());
    if nanos < 0 {
        UNIX_EPOCH - span
    } else {
        UNIX_EPOCH + span
    }
}
