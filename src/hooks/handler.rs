//! Records the inputs of one payload and decides the reply to the agent.

use std::{
    mem,
    sync::Arc,
    time::{Duration, Instant},
};

use tonic::Status;

use super::{
    EscalateMode, Settings,
    request::HookRequest,
    session_table::{CallFingerprint, HookSessions},
};
use crate::{
    api::Api,
    domain::{
        Action, AgentId, CallCheck, Cost, Event, EventBody, Outcome, Role, ToolCall, Verdict,
    },
    ingest::{
        AskedCall, HookStage, Input, Instruction, Reply, ReplyRequest, ReportedOutcome, Wording,
    },
    server::scheduler::{TIME_SLICE, yield_to_others},
    telemetry::HookReplyKind,
};

/// A payload, and the parts of the service that answer it.
pub(super) struct HookHandler<'a> {
    pub api: Api,
    pub settings: &'a Settings,
    pub sessions: &'a HookSessions,
    pub request: HookRequest,
}

/// The answer to a payload.
pub(super) struct HookAnswer {
    pub reply: Reply,
    pub kind: HookReplyKind,
    /// A termination that is in the reply.
    pub termination: Option<Arc<Verdict>>,
    /// How long the reply is delayed.
    pub hold_time: Option<Duration>,
}

impl HookAnswer {
    pub fn go_on() -> Self {
        Self {
            reply: Reply::none(),
            kind: HookReplyKind::None,
            termination: None,
            hold_time: None,
        }
    }
}

/// The instruction to the agent, and the verdict that it comes from. `None`: the verdict was
/// lost at a restart.
struct HookDecision {
    instruction: Instruction,
    verdict: Option<Arc<Verdict>>,
}

impl HookHandler<'_> {
    /// Works in slices: see `server::scheduler`.
    pub async fn answer(mut self) -> Result<HookAnswer, Status> {
        // Label the session, and refuse a prompt to one that is terminated.
        let is_labelled_now = self.add_labels()?;
        if self.request.event.stage == HookStage::Prompt
            && let Some(decision) = self.check_prompt()?
        {
            return Ok(self.present(decision));
        }
        // Record the inputs in their order.
        let mut cost = self.request.cost;
        let mut decision = None;
        let mut strongest = None;
        let mut slice_began_at = Instant::now();
        for input in mem::take(&mut self.request.inputs) {
            if slice_began_at.elapsed() >= TIME_SLICE {
                yield_to_others().await;
                slice_began_at = Instant::now();
            }
            match input {
                Input::Ask(asked) => decision = self.check_asked_call(asked)?,
                Input::Event(event) => {
                    let found = self.record(event, mem::take(&mut cost), is_labelled_now)?;
                    strongest = stronger(strongest, self.undelivered(found));
                }
                Input::Delta(delta) => {
                    self.sessions
                        .with(&delta.session, |known| known.has_deltas = true);
                    let outcome = self.api.record_text(&delta)?;
                    let found = outcome.and_then(|outcome| outcome.verdict);
                    strongest = stronger(strongest, self.undelivered(found));
                }
                // Kept for the event that it belongs to.
                Input::Outcome { call_id, outcome } => {
                    self.sessions.with(&self.request.session, |known| {
                        known.keep_outcome(call_id, outcome)
                    })
                }
                Input::Cost(spent) => self
                    .sessions
                    .with(&self.request.session, |known| known.cost += spent),
                Input::End => {
                    self.api.end(&self.request.session);
                    self.sessions.remove(&self.request.session);
                    return Ok(HookAnswer::go_on());
                }
            }
        }
        // Decide by the check of a call, or else by the strongest verdict.
        let decision = decision.or_else(|| self.decide_by_verdict(strongest));
        Ok(decision.map_or_else(HookAnswer::go_on, |decision| self.present(decision)))
    }

    /// Adds the labels that the session does not have yet. Returns whether there were any.
    fn add_labels(&self) -> Result<bool, Status> {
        let HookRequest {
            session, labels, ..
        } = &self.request;
        let all = self.sessions.with(session, |known| {
            known.add_labels(labels).then(|| known.labels.clone())
        });
        if let Some(labels) = &all {
            self.api.add_labels(session, labels)?;
        }
        Ok(all.is_some())
    }

    /// Refuses a prompt to a terminated session. It is not recorded, because it is not an act
    /// of the agent.
    fn check_prompt(&self) -> Result<Option<HookDecision>, Status> {
        let call = ToolCall::default();
        let session = &self.request.session;
        let CallCheck {
            action, verdict, ..
        } = self.api.check(session, &AgentId::default(), &call)?;
        Ok((action == Some(Action::Terminate)).then_some(HookDecision {
            instruction: Instruction::Stop,
            verdict,
        }))
    }

    /// Records an event and returns its verdict.
    fn record(
        &self,
        mut event: Event,
        cost: Cost,
        is_labelled_now: bool,
    ) -> Result<Option<Arc<Verdict>>, Status> {
        let announced = match &event.body {
            EventBody::Call(call) if event.round_id.is_empty() => Some(CallFingerprint::new(call)),
            _ => None,
        };
        let is_known_text = self.sessions.with(&event.session, |known| {
            if let EventBody::Call(call) = &mut event.body {
                if let Some(announced) = announced {
                    event.round_id = known.round_of(announced);
                }
                if let Some(outcome) = known.take_outcome(&event.event_id) {
                    outcome.apply_to(call);
                }
            }
            let is_agent_turn =
                matches!(&event.body, EventBody::Turn(turn) if turn.role == Role::Agent);
            if is_agent_turn && known.has_deltas {
                return true;
            }
            event.cost = cost;
            event.cost += mem::take(&mut known.cost);
            false
        });
        if is_known_text {
            return Ok(None);
        }
        let outcome = self.api.record_event(&event)?;
        // The session was evicted since its labels were set.
        if outcome.index == Some(0) && !is_labelled_now {
            let labels = self
                .sessions
                .with(&event.session, |known| known.labels.clone());
            self.api.add_labels(&event.session, &labels)?;
        }
        Ok(outcome.verdict)
    }

    /// Whether the call may be made. A refusal is recorded.
    fn check_asked_call(&self, asked: AskedCall) -> Result<Option<HookDecision>, Status> {
        let fingerprint = CallFingerprint::new(&asked.call);
        self.sessions.with(&self.request.session, |known| {
            known.announce_call(&asked.call_id, fingerprint);
        });
        if self.settings.shadow {
            return Ok(None);
        }
        let HookRequest {
            agent,
            session,
            sub_agent,
            ..
        } = &self.request;
        let CallCheck {
            action,
            verdict,
            standing,
        } = self.api.check(session, sub_agent, &asked.call)?;
        let instruction = match action {
            None | Some(Action::Alert | Action::Warn | Action::Throttle | Action::Checkpoint) => {
                return Ok(None);
            }
            Some(Action::Terminate) => Instruction::Stop,
            // BREAK stops one generation, which has ended.
            Some(Action::Break) => return Ok(None),
            Some(Action::Ask) if agent.capabilities.asks => {
                let id = verdict.as_ref().map(|verdict| verdict.id);
                let id = id.or(standing.map(|standing| standing.verdict));
                let may_ask =
                    id.is_none_or(|id| self.sessions.with(session, |known| known.may_ask(id)));
                if !may_ask {
                    return Ok(None);
                }
                Instruction::Confirm
            }
            Some(Action::Escalate) if self.settings.escalate == EscalateMode::Stop => {
                Instruction::Stop
            }
            Some(Action::Ask | Action::Block | Action::Escalate) => Instruction::Refuse,
        };
        let decision = HookDecision {
            instruction,
            verdict,
        };
        if instruction != Instruction::Refuse {
            return Ok(Some(decision));
        }
        if !agent.capabilities.refuses {
            // Without a person to see it, an agent that ignores advice must be stopped.
            let instruction = match self.settings.escalate {
                EscalateMode::Stop => Instruction::Stop,
                EscalateMode::Tell => Instruction::Advise,
            };
            return Ok(Some(HookDecision {
                instruction,
                ..decision
            }));
        }
        self.record_refusal(asked, decision).map(Some)
    }

    /// Records a refused call, unless the agent reports refusals in an event of its own.
    fn record_refusal(
        &self,
        asked: AskedCall,
        refusal: HookDecision,
    ) -> Result<HookDecision, Status> {
        let AskedCall { call_id, call } = asked;
        let HookRequest {
            agent,
            session,
            sub_agent,
            ..
        } = &self.request;
        if agent.capabilities.reports_refusals {
            let outcome = ReportedOutcome {
                outcome: Outcome::Blocked,
                content_hash: String::new(),
            };
            self.sessions
                .with(session, |known| known.keep_outcome(call_id, outcome));
            return Ok(refusal);
        }
        let event = Event {
            session: session.clone(),
            event_id: call_id,
            time: None,
            agent: sub_agent.clone(),
            round_id: String::new(),
            state_hash: String::new(),
            cost: Cost::default(),
            body: EventBody::Call(ToolCall {
                outcome: Some(Outcome::Blocked),
                ..call
            }),
        };
        let verdict = self.record(event, Cost::default(), false)?;
        // Repeated requests for a refused call may have raised the loop.
        let raised = self.undelivered(verdict).and_then(|verdict| {
            let action = verdict.effective_action()?;
            let ends = action == Action::Terminate
                || action == Action::Escalate && self.settings.escalate == EscalateMode::Stop;
            Some(HookDecision {
                instruction: if ends {
                    Instruction::Stop
                } else {
                    Instruction::Refuse
                },
                verdict: Some(verdict),
            })
        });
        Ok(raised.unwrap_or(refusal))
    }

    /// The verdict if it is to be acted on and was not delivered yet. A termination is in force
    /// until a reset, so it is delivered each time.
    fn undelivered(&self, verdict: Option<Arc<Verdict>>) -> Option<Arc<Verdict>> {
        let verdict = verdict.filter(|verdict| verdict.effective_action().is_some())?;
        let is_delivered = !verdict.terminates()
            && self.sessions.with(&self.request.session, |known| {
                known.is_delivered(verdict.id)
            });
        (!is_delivered).then_some(verdict)
    }

    /// The instruction of this payload's verdict, or of an earlier one that was not delivered.
    fn decide_by_verdict(&self, found: Option<Arc<Verdict>>) -> Option<HookDecision> {
        let HookRequest { session, event, .. } = &self.request;
        if matches!(event.stage, HookStage::Silent | HookStage::BeforeCall) {
            self.sessions.with(session, |known| {
                known.undelivered = stronger(known.undelivered.take(), found);
            });
            return None;
        }
        let earlier = self
            .sessions
            .with(session, |known| known.undelivered.take());
        let verdict = stronger(self.undelivered(earlier), found)?;
        let instruction = match verdict.effective_action()? {
            Action::Alert => Instruction::Notify,
            Action::Break if self.may_rework() => Instruction::Rework,
            Action::Escalate if self.settings.escalate == EscalateMode::Stop => Instruction::Stop,
            Action::Terminate => Instruction::Stop,
            _ => Instruction::Advise,
        };
        Some(HookDecision {
            instruction,
            verdict: Some(verdict),
        })
    }

    /// Whether the agent may be made to continue at the end of its turn: once per prompt, and
    /// not while it already continues for that reason, because it would never end.
    fn may_rework(&self) -> bool {
        let request = &self.request;
        request.event.stage == HookStage::TurnEnd
            && request.agent.capabilities.reworks
            && request.is_first_stop
            && self.sessions.with(&request.session, |known| {
                known.may_rework(request.prompt_id.clone())
            })
    }

    /// Builds the reply. A verdict that this event's reply cannot carry waits for the next one.
    fn present(&self, decision: HookDecision) -> HookAnswer {
        let HookDecision {
            instruction,
            verdict,
        } = decision;
        let request = &self.request;
        if self.settings.shadow {
            return HookAnswer::go_on();
        }
        let wording = Wording {
            prefix: &self.settings.prefix,
            agent: request.agent,
            session: &request.session,
            directory: &request.directory,
        };
        let line = match instruction {
            Instruction::Stop => wording.stop_line(verdict.as_deref()),
            Instruction::Refuse => wording.refusal_line(verdict.as_deref()),
            _ => wording.line(verdict.as_deref()),
        };
        let reply = (request.agent.reply)(&ReplyRequest {
            event: request.event,
            instruction,
            line: &line,
            advice: &wording.advice(verdict.as_deref()),
            unattended: self.settings.escalate == EscalateMode::Stop,
        });
        // Note the verdict as delivered, or keep it for the next reply.
        self.sessions
            .with(&request.session, |known| match (&verdict, &reply) {
                (Some(verdict), Some(_)) => known.mark_delivered(verdict.id),
                (verdict, None) => known.undelivered = verdict.clone(),
                (None, Some(_)) => {}
            });
        let Some(reply) = reply else {
            return HookAnswer::go_on();
        };
        let is_throttled = verdict
            .as_deref()
            .is_some_and(|verdict| verdict.effective_action() == Some(Action::Throttle));
        let retry_after = verdict.as_deref().and_then(|verdict| verdict.retry_after);
        HookAnswer {
            reply,
            kind: match instruction {
                Instruction::Notify | Instruction::Advise | Instruction::Rework => {
                    HookReplyKind::Notified
                }
                Instruction::Confirm => HookReplyKind::Asked,
                Instruction::Refuse => HookReplyKind::Refused,
                Instruction::Stop => HookReplyKind::Stopped,
            },
            hold_time: retry_after.filter(|_| is_throttled && self.settings.hold_throttle),
            termination: verdict.filter(|verdict| verdict.terminates()),
        }
    }
}

/// The verdict with the stronger action, the later of equals.
fn stronger(first: Option<Arc<Verdict>>, second: Option<Arc<Verdict>>) -> Option<Arc<Verdict>> {
    let action = |verdict: &Arc<Verdict>| verdict.effective_action();
    match (first, second) {
        (Some(first), Some(second)) if action(&first) > action(&second) => Some(first),
        (first, second) => second.or(first),
    }
}
