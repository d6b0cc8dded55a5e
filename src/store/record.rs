//! The encoding of a verdict on disk: protobuf, so that later versions can add fields
//! and still read old records, and columns that repeat what people filter by.

mod description;

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use prost::Message;

use description::{describe, generic_correction};

use crate::domain::{
    Action, AgentId, CallKey, Effect, Evidence, Level, LoopId, LoopMember, OPERATOR, Rating,
    SessionId, Tenant, Trend, Verdict, VerdictId, VerdictRecord, Waste,
};

/// The kinds of records, by their effect on the recovered state.
pub(super) const VERDICT: u8 = 0;
pub(super) const TERMINATION: u8 = 1;
pub(super) const RESET: u8 = 2;
pub(super) const SNOOZE: u8 = 3;
/// An operator action was refused although its commit succeeded later.
pub(super) const WITHDRAWAL: u8 = 4;
pub(super) const DISOBEDIENCE: u8 = 5;
pub(super) const RATING: u8 = 6;

pub(super) fn kind(effect: Effect) -> u8 {
    match effect {
        Effect::None => VERDICT,
        Effect::Terminated => TERMINATION,
        Effect::Reset => RESET,
        Effect::Snoozed(_) => SNOOZE,
        Effect::Disobeyed => DISOBEDIENCE,
        Effect::Rated { .. } => RATING,
    }
}

/// A record as it is written.
pub(super) struct RecordRow {
    pub body: Vec<u8>,
    pub columns: RecordColumns,
}

/// The fields of a record that the database has as columns too.
#[derive(Debug, PartialEq)]
pub(super) struct RecordColumns {
    pub tenant: String,
    pub session: String,
    pub agent: String,
    pub time_ms: i64,
    pub detector: String,
    pub action: u32,
    pub shadow: bool,
    pub operator: String,
    pub reason: String,
    pub profile: String,
    pub wasted_events: i64,
    pub wasted_tokens: i64,
    pub wasted_usd: f64,
    pub labels: BTreeMap<String, String>,
    pub labels_json: String,
    pub snoozed_until_ms: i64,
    /// The verdict that an operator rated.
    pub rated: Option<RatedVerdict>,
}

/// A rating, and what it is about.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct RatedVerdict {
    pub id: VerdictId,
    pub detector: String,
    pub rating: Rating,
}

/// The subject of a record: all that recovery needs of a termination.
#[derive(Clone, PartialEq, Message)]
struct Subject {
    #[prost(string, tag = "1")]
    session: String,
    #[prost(string, tag = "2")]
    agent: String,
    /// Empty: the default tenant.
    #[prost(string, tag = "30")]
    tenant: String,
}

/// The bytes of a verdict with all of its texts, for another replica.
pub fn encode_record(issued: &VerdictRecord) -> Vec<u8> {
    encode(issued, true).body
}

/// The session and agent of a record. `None`: this version cannot read it.
pub(super) fn subject(body: &[u8]) -> Option<(SessionId, AgentId)> {
    let subject = Subject::decode(body).ok()?;
    let session = session_id(&subject.tenant, &subject.session)?;
    Some((session, AgentId::new(&subject.agent)))
}

#[derive(Clone, PartialEq, Message)]
struct Record {
    #[prost(string, tag = "1")]
    session: String,
    #[prost(string, tag = "2")]
    agent: String,
    #[prost(int64, tag = "3")]
    time_millis: i64,
    #[prost(int32, optional, tag = "4")]
    event_index: Option<i32>,
    /// 0: none; else the index in `Action::ALL` plus 1.
    #[prost(uint32, tag = "5")]
    action: u32,
    #[prost(string, tag = "6")]
    detector: String,
    #[prost(string, repeated, tag = "7")]
    also: Vec<String>,
    /// Text: stored only with `[audit] text`, or if an operator wrote it.
    #[prost(string, tag = "8")]
    pattern: String,
    #[prost(string, tag = "9")]
    reason: String,
    #[prost(double, tag = "10")]
    confidence: f64,
    /// Stored like `pattern`.
    #[prost(string, tag = "11")]
    correction: String,
    #[prost(fixed64, optional, tag = "12")]
    loop_id: Option<u64>,
    #[prost(message, repeated, tag = "13")]
    members: Vec<MemberRecord>,
    #[prost(double, optional, tag = "14")]
    ema: Option<f64>,
    /// The index in `Level::ALL`.
    #[prost(uint32, tag = "15")]
    level: u32,
    #[prost(int32, tag = "16")]
    count: i32,
    #[prost(int32, tag = "17")]
    period: i32,
    #[prost(double, tag = "18")]
    similarity: f64,
    #[prost(int32, repeated, tag = "19")]
    event_indexes: Vec<i32>,
    /// Stored like `pattern`.
    #[prost(string, tag = "20")]
    excerpt: String,
    #[prost(message, optional, tag = "21")]
    wasted: Option<WasteRecord>,
    #[prost(uint64, optional, tag = "22")]
    retry_after_millis: Option<u64>,
    #[prost(bool, tag = "23")]
    shadow: bool,
    #[prost(string, tag = "24")]
    operator: String,
    #[prost(int64, tag = "25")]
    snoozed_until_millis: i64,
    #[prost(btree_map = "string, string", tag = "26")]
    labels: BTreeMap<String, String>,
    #[prost(string, tag = "27")]
    profile: String,
    #[prost(uint32, tag = "28")]
    kind: u32,
    /// The nanoseconds below the millisecond.
    #[prost(uint32, tag = "29")]
    time_nanos: u32,
    /// Written like that of `Subject`.
    #[prost(string, tag = "30")]
    tenant: String,
    /// Empty, or the 16 bytes of the id of the verdict that was rated.
    #[prost(bytes = "vec", tag = "31")]
    rated_verdict: Vec<u8>,
    /// 0: none; else the index in `Rating::ALL` plus 1.
    #[prost(uint32, tag = "32")]
    rating: u32,
}

#[derive(Clone, PartialEq, Message)]
struct MemberRecord {
    #[prost(string, tag = "1")]
    tool: String,
    /// Stored like `pattern`.
    #[prost(string, tag = "2")]
    target: String,
    #[prost(string, tag = "3")]
    event_id: String,
    /// Stored like `pattern`. Empty, or the bytes of the key.
    #[prost(bytes = "vec", tag = "4")]
    call_key: Vec<u8>,
    /// Stored like `pattern`.
    #[prost(string, tag = "5")]
    args: String,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct WasteRecord {
    #[prost(int64, tag = "1")]
    events: i64,
    #[prost(int64, tag = "2")]
    tokens: i64,
    #[prost(double, tag = "3")]
    usd: f64,
    #[prost(int64, tag = "4")]
    cached_tokens: i64,
}

/// Encodes a verdict. Without `text` it contains no agent text: no target, pattern,
/// excerpt or correction. Text of an operator is kept.
pub(super) fn encode(issued: &VerdictRecord, text: bool) -> RecordRow {
    let verdict = &*issued.verdict;
    let is_own_text = &*verdict.detector == OPERATOR || issued.effect == Effect::Disobeyed;
    let text = text || is_own_text;
    let quoted = |words: &String| agent_text(words, text);
    let (time_millis, time_nanos) = millis(verdict.time);
    let snoozed_until = match issued.effect {
        Effect::Snoozed(until) => millis(until).0,
        _ => 0,
    };
    let (rated_verdict, rating) = match issued.effect {
        Effect::Rated { verdict, rating } => (verdict.0.to_be_bytes().to_vec(), rating as u32 + 1),
        _ => (Vec::new(), 0),
    };
    let tenant = verdict.session.tenant();
    let record = Record {
        tenant: if tenant.is_default() {
            String::new()
        } else {
            tenant.name().to_owned()
        },
        session: verdict.session.to_string(),
        agent: verdict.agent.as_str().to_owned(),
        time_millis,
        time_nanos,
        event_index: verdict.event_index,
        action: verdict.action.map_or(0, |action| action as u32 + 1),
        // The finding, and the texts.
        detector: verdict.detector.to_string(),
        also: verdict
            .other_detectors
            .iter()
            .map(ToString::to_string)
            .collect(),
        pattern: quoted(&verdict.pattern),
        reason: verdict.reason.clone(),
        confidence: verdict.confidence,
        correction: quoted(&verdict.correction),
        loop_id: verdict.loop_id.map(|id| id.0),
        members: verdict
            .members
            .iter()
            .map(|member| encode_member(member, text))
            .collect(),
        // Trend, evidence and cost.
        ema: verdict.trend.map(|trend| trend.ema),
        level: verdict.trend.map_or(0, |trend| trend.level as u32),
        count: verdict.evidence.count,
        period: verdict.evidence.period,
        similarity: verdict.evidence.similarity,
        event_indexes: verdict.evidence.event_indexes.clone(),
        excerpt: quoted(&verdict.evidence.excerpt),
        wasted: Some(WasteRecord {
            events: verdict.wasted.events,
            tokens: verdict.wasted.tokens,
            usd: verdict.wasted.usd,
            cached_tokens: verdict.wasted.cached_tokens,
        }),
        retry_after_millis: verdict
            .retry_after
            .map(|wait| u64::try_from(wait.as_millis()).unwrap_or(u64::MAX)),
        shadow: verdict.shadow,
        operator: verdict.operator.clone(),
        snoozed_until_millis: snoozed_until,
        labels: (*issued.labels).clone(),
        profile: issued.profile.to_string(),
        kind: kind(issued.effect).into(),
        rated_verdict,
        rating,
    };
    record.into_encoded()
}

fn agent_text(words: &str, is_stored: bool) -> String {
    let stored = if is_stored { words } else { "" };
    stored.to_owned()
}

fn encode_member(member: &LoopMember, text: bool) -> MemberRecord {
    let quoted = |words: &String| agent_text(words, text);
    MemberRecord {
        tool: member.tool.clone(),
        target: quoted(&member.target),
        event_id: member.event_id.clone(),
        call_key: match member.call_key {
            Some(key) if text => key.0.to_vec(),
            _ => Vec::new(),
        },
        args: quoted(&member.args),
    }
}

/// The id of the record that withdraws an operator action, and the reverse. No verdict
/// has it: the variant bits of the UUID are inverted.
pub(super) fn withdrawal_id(id: VerdictId) -> VerdictId {
    VerdictId(id.0 ^ (0b11 << 62))
}

/// The record that withdraws an operator action with this body.
pub(super) fn withdrawal(body: &[u8]) -> Option<RecordRow> {
    let action = Record::decode(body).ok()?;
    let record = Record {
        kind: WITHDRAWAL.into(),
        reason: "withdrawn: it was not on disk in time, and was refused".to_owned(),
        ..action
    };
    Some(record.into_encoded())
}

/// The columns of a record with this body.
pub(super) fn columns(body: &[u8]) -> Option<RecordColumns> {
    Some(encoded(body)?.columns)
}

/// A record with this body.
pub(super) fn encoded(body: &[u8]) -> Option<RecordRow> {
    Some(Record::decode(body).ok()?.into_encoded())
}

impl Record {
    fn rated(&self) -> Option<RatedVerdict> {
        let id = self.rated_verdict.as_slice().try_into().ok()?;
        let rating = (self.rating as usize).checked_sub(1)?;
        Some(RatedVerdict {
            id: VerdictId(u128::from_be_bytes(id)),
            detector: self.also.first().cloned().unwrap_or_default(),
            rating: *Rating::ALL.get(rating)?,
        })
    }

    fn into_encoded(self) -> RecordRow {
        let body = self.encode_to_vec();
        let rated = self.rated();
        let wasted = self.wasted.unwrap_or_default();
        let tenant = match &*self.tenant {
            "" => Tenant::default().name().to_owned(),
            _ => self.tenant,
        };
        let columns = RecordColumns {
            tenant,
            session: self.session,
            agent: self.agent,
            time_ms: self.time_millis,
            detector: self.detector,
            action: self.action,
            shadow: self.shadow,
            operator: self.operator,
            reason: self.reason,
            profile: self.profile,
            wasted_events: wasted.events,
            wasted_tokens: wasted.tokens,
            wasted_usd: wasted.usd,
            labels_json: serde_json::json!(self.labels).to_string(),
            labels: self.labels,
            snoozed_until_ms: self.snoozed_until_millis,
            rated,
        };
        RecordRow { body, columns }
    }
}

/// Decodes the body of a record. `None`: this version cannot read it.
pub fn decode(id: VerdictId, body: &[u8]) -> Option<VerdictRecord> {
    let mut record = Record::decode(body).ok()?;
    let effect = match u8::try_from(record.kind).ok()? {
        VERDICT => Effect::None,
        TERMINATION => Effect::Terminated,
        RESET => Effect::Reset,
        SNOOZE => Effect::Snoozed(time(record.snoozed_until_millis, 0)),
        DISOBEDIENCE => Effect::Disobeyed,
        RATING => {
            let rated = record.rated()?;
            Effect::Rated {
                verdict: rated.id,
                rating: rated.rating,
            }
        }
        _ => return None,
    };
    let labels = Arc::new(std::mem::take(&mut record.labels));
    let profile = std::mem::take(&mut record.profile).into();
    Some(VerdictRecord {
        verdict: Arc::new(verdict(id, record)?),
        labels,
        profile,
        effect,
        position: None,
    })
}

pub(super) fn session_id(tenant: &str, id: &str) -> Option<SessionId> {
    let tenant = match tenant {
        "" => Tenant::default(),
        name => Tenant::parse(name).ok()?,
    };
    SessionId::parse_for_tenant(&tenant, id).ok()
}

fn verdict(id: VerdictId, record: Record) -> Option<Verdict> {
    let action = (record.action as usize).checked_sub(1);
    let level = Level::ALL.get(record.level as usize).copied()?;
    let WasteRecord {
        events,
        tokens,
        usd,
        cached_tokens,
    } = record.wasted.unwrap_or_default();
    // Replace texts that were not stored.
    let (pattern, correction) = if record.pattern.is_empty() {
        let correction = generic_correction(action, &record.detector);
        (describe(&record), correction)
    } else {
        (record.pattern, record.correction)
    };
    let members = record.members.into_iter().map(|call| LoopMember {
        tool: call.tool,
        target: call.target,
        event_id: call.event_id,
        call_key: call.call_key.try_into().ok().map(CallKey),
        args: call.args,
    });
    Some(Verdict {
        id,
        session: session_id(&record.tenant, &record.session)?,
        agent: AgentId::new(&record.agent),
        time: time(record.time_millis, record.time_nanos),
        event_index: record.event_index,
        action: match action {
            Some(index) => Some(*Action::ALL.get(index)?),
            None => None,
        },
        // The finding, and the texts.
        detector: record.detector.into(),
        other_detectors: record.also.into_iter().map(Into::into).collect(),
        pattern,
        reason: record.reason,
        confidence: record.confidence,
        correction,
        loop_id: record.loop_id.map(LoopId),
        members: members.collect(),
        // Trend, evidence and cost.
        trend: record.ema.map(|ema| Trend { ema, level }),
        evidence: Evidence {
            count: record.count,
            period: record.period,
            similarity: record.similarity,
            event_indexes: record.event_indexes,
            excerpt: record.excerpt,
        },
        wasted: Waste {
            events,
            tokens,
            cached_tokens,
            usd,
        },
        retry_after: record.retry_after_millis.map(Duration::from_millis),
        durable: true,
        is_foreign: false,
        shadow: record.shadow,
        operator: record.operator,
    })
}

/// Milliseconds since 1970, negative before it, and the remaining nanoseconds.
pub(super) fn millis(time: SystemTime) -> (i64, u32) {
    let nanos = match time.duration_since(UNIX_EPOCH) {
        Ok(since) => i128::try_from(since.as_nanos()).unwrap_or(i128::MAX),
        Err(before) => -i128::try_from(before.duration().as_nanos()).unwrap_or(i128::MAX),
    };
    let millis = i64::try_from(nanos.div_euclid(1_000_000)).unwrap_or(i64::MAX);
    (
        millis,
        u32::try_from(nanos.rem_euclid(1_000_000)).unwrap_or(0),
    )
}

pub(super) fn time(millis: i64, nanos: u32) -> SystemTime {
    let whole = Duration::from_millis(millis.unsigned_abs());
    let time = if millis < 0 {
        UNIX_EPOCH.checked_sub(whole)
    } else {
        UNIX_EPOCH.checked_add(whole)
    };
    let time = time.and_then(|time| time.checked_add(Duration::from_nanos(nanos.into())));
    time.unwrap_or(UNIX_EPOCH)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::testing::looping;

    #[test]
    fn a_verdict_with_text_comes_back_whole() {
        let issued = looping(7, "s", Action::Warn);
        let back = decode(VerdictId(7), &encode(&issued, true).body).unwrap();
        let durable = Verdict {
            durable: true,
            ..(*issued.verdict).clone()
        };
        assert_eq!(format!("{:?}", back.verdict), format!("{durable:?}"));
        assert_eq!(back.labels, issued.labels);
        assert_eq!((back.effect, &*back.profile), (Effect::None, "default"));
    }

    #[test]
    fn without_text_the_facts_still_tell_what_happened() {
        let issued = looping(7, "s", Action::Warn);
        let body = encode(&issued, false).body;
        let written = String::from_utf8_lossy(&body);
        for quoted in ["src/main.rs", "nothing changed", "another way", "fn main"] {
            assert!(format!("{issued:?}").contains(quoted));
            assert!(!written.contains(quoted), "{quoted} is in {written}");
        }
        let back = decode(VerdictId(7), &body).unwrap().verdict;
        assert_eq!(
            back.pattern,
            "read_loop: count 3, tools read_file, events 4, 6, 8"
        );
        assert_eq!(back.reason, issued.verdict.reason);
        assert_eq!(back.members[0].event_id, "e8");
    }

    #[test]
    fn times_before_1970_come_back() {
        for nanos in [0, 1, 999_999, 1_000_000, 1_500_000_000] {
            for time in [
                UNIX_EPOCH + Duration::from_nanos(nanos),
                UNIX_EPOCH - Duration::from_nanos(nanos),
            ] {
                let (millis, nanos) = millis(time);
                assert_eq!(super::time(millis, nanos), time);
            }
        }
    }
}
