//! `unstuck reset`: clears a session's state and lifts its termination.

use std::process::ExitCode;

use super::{CliError, operator_action::SessionActionArgs};
use crate::pb;

pub(super) fn run(args: &SessionActionArgs) -> Result<ExitCode, CliError> {
    let request = pb::ResetSessionRequest {
        session_id: args.id.clone(),
        reason: args.reason.clone(),
    };
    let response = args.call(request, async |mut service, request| {
        service.reset_session(request).await
    })?;
    args.print(
        response.verdict,
        "reset",
        ": its state is cleared and it may continue",
    )
}
