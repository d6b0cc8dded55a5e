//! The replies that our plug-ins for opencode and pi understand: `deny` refuses the call,
//! `append` adds a text to its result, `abort` ends the run, `notify` is for the person.

use serde_json::json;

use crate::ingest::{HookStage, Instruction, Reply, ReplyRequest};

pub(super) fn reply(request: &ReplyRequest) -> Option<Reply> {
    let ReplyRequest {
        event,
        instruction,
        line,
        advice,
        ..
    } = *request;
    Some(Reply::new(match (event.stage, instruction) {
        (HookStage::Silent, _) => return None,
        (HookStage::BeforeCall, Instruction::Stop) => json!({"deny": line, "abort": line}),
        (HookStage::AfterCall, Instruction::Stop) => json!({"append": line, "abort": line}),
        (_, Instruction::Stop) => json!({"abort": line}),
        (HookStage::BeforeCall, Instruction::Refuse | Instruction::Confirm) => {
            json!({"deny": advice, "notify": line})
        }
        (HookStage::AfterCall, Instruction::Advise) => json!({"append": advice, "notify": line}),
        _ => json!({"notify": line}),
    }))
}
