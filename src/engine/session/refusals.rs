//! Calls that a guard refused.

use std::sync::Arc;

use super::{Session, verdicts::ObservationContext};
use crate::{
    detect::{History, RefusedCall},
    domain::{Sig, Verdict, Waste},
    engine::EngineContext,
    facts::RefusedCallFacts,
    policy::Refusal,
};

/// Records a call that a guard refused. No detector sees it, but refused calls of a
/// loop that was reported raise it.
pub(super) fn record_refusal(
    session: &mut Session,
    refused: RefusedCallFacts,
    obs: ObservationContext<'_>,
    ctx: &EngineContext,
) -> Option<Arc<Verdict>> {
    // Add the call to the history.
    let agent = session.agents.get_mut(obs.agent_position)?;
    let cost = Waste::new(1, obs.cost);
    let mut totals = agent.totals;
    totals += cost;
    agent.history.push_refused(RefusedCall {
        index: obs.index,
        time: obs.time,
        call: refused.call,
        tool: obs.words.tool.to_owned(),
        target: refused.target.to_string(),
        operation: refused.operation,
        cost: obs.cost,
    });
    // Count it for the loop that it belongs to.
    let outcome = refused.call.and_then(|call| {
        let standing = agent.standing.get();
        let named_by = standing.and_then(|standing| standing.find_loop(call));
        let equal_call = agent.history.latest_call(call);
        let contained_in = equal_call.and_then(|equal| {
            let policy = &agent.policy;
            policy.find_loop_with_event(equal.index)
        });
        // A write to a file whose reads are a loop does not belong to it.
        let is_known = |path: &Sig| {
            let mut earlier = agent.history.calls_on_target(*path, History::CALLS_MAX);
            earlier.any(|entry| entry.operation == refused.operation)
        };
        let refusal = Refusal {
            call,
            known_loop: named_by.or(contained_in),
            path: refused.path.filter(is_known),
            index: obs.index,
            progress: session.progress.count(),
            cost,
            totals,
        };
        let policy = &session.profile.policy;
        agent.policy.record_refusal(&refusal, policy)
    });
    // The budget and the rules add the cost themselves.
    let has_decision = outcome
        .as_ref()
        .is_some_and(|outcome| outcome.decision.is_some());
    if has_decision || !session.profile.has_budget_or_rules() {
        agent.totals = totals;
    }
    if let Some(outcome) = outcome {
        session.add_waste(&outcome, ctx.metrics);
        // The budget and the rules look at the next event.
        if let Some(decision) = outcome.decision {
            let used = session.update_usage(obs.now);
            return session.issue_verdict(decision, &obs, used, ctx);
        }
    }
    session.run_budget_and_rules(obs, ctx)
}
