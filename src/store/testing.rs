//! Verdicts for tests of the store.

use std::{
    sync::Arc,
    time::{Duration, UNIX_EPOCH},
};

use crate::domain::{
    Action, AgentId, Effect, Evidence, Labels, Level, LoopId, LoopMember, SessionId, Trend,
    Verdict, VerdictId, VerdictRecord, Waste,
};

/// A detector's verdict with every field set.
pub(super) fn looping(id: u128, session: &str, action: Action) -> VerdictRecord {
    let verdict = Verdict {
        id: VerdictId(id),
        session: SessionId::parse(session).unwrap(),
        agent: AgentId::default(),
        time: UNIX_EPOCH + Duration::from_nanos(1_234_567_890),
        event_index: Some(8),
        action: Some(action),
        // The finding, and the texts.
        detector: "read_loop".into(),
        other_detectors: vec!["exact_repeat".into()],
        pattern: "read src/main.rs 3 times, nothing changed".to_owned(),
        reason: "first time this loop is seen".to_owned(),
        confidence: 1.0,
        correction: "You have read src/main.rs; try another way.".to_owned(),
        loop_id: Some(LoopId(5)),
        members: vec![LoopMember {
            tool: "read_file".to_owned(),
            target: "src/main.rs".to_owned(),
            event_id: "e8".to_owned(),
            call_key: None,
            args: String::new(),
        }],
        // How strong the loop is, by what it was found, and its cost.
        trend: Some(Trend {
            ema: 0.3,
            level: Level::Blip,
        }),
        evidence: Evidence {
            count: 3,
            period: 1,
            similarity: 1.0,
            event_indexes: vec![4, 6, 8],
            excerpt: "fn main".to_owned(),
        },
        wasted: Waste {
            events: 3,
            tokens: 20,
            cached_tokens: 15,
            usd: 0.5,
        },
        retry_after: Some(Duration::from_secs(5)),
        durable: false,
        is_foreign: false,
        shadow: false,
        operator: String::new(),
    };
    // The effect that the engine would issue it with.
    let effect = if verdict.terminates() {
        Effect::Terminated
    } else {
        Effect::None
    };
    VerdictRecord {
        verdict: Arc::new(verdict),
        labels: Arc::new(Labels::from([("team".to_owned(), "blue".to_owned())])),
        profile: "default".into(),
        effect,
        position: None,
    }
}

/// A detector's termination of the session.
pub(super) fn terminated(id: u128, session: &str) -> VerdictRecord {
    looping(id, session, Action::Terminate)
}

/// An operator's reset of the session.
pub(super) fn reset(id: u128, session: &str) -> VerdictRecord {
    let mut issued = looping(id, session, Action::Warn);
    let verdict = Verdict {
        action: None,
        detector: crate::domain::OPERATOR.into(),
        operator: "ann".to_owned(),
        ..(*issued.verdict).clone()
    };
    issued.verdict = Arc::new(verdict);
    issued.effect = Effect::Reset;
    issued
}
