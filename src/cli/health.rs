use std::{process::ExitCode, time::Duration};

use tonic::transport::Endpoint;
use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};

use super::Failure;

/// Long enough for a busy machine, short enough for a container's probe.
const DEADLINE: Duration = Duration::from_secs(3);

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The address of the service's gRPC port.
    #[arg(long, env = "UNSTUCK_SERVER", default_value = "127.0.0.1:50551")]
    server: String,
}

pub(super) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let address = match args.server.split_once("://") {
        Some(_) => args.server.clone(),
        None => format!("http://{}", args.server),
    };
    let endpoint = Endpoint::from_shared(address)
        .map_err(|error| Failure::usage(format!("{:?}: {error}", args.server)))?
        .connect_timeout(DEADLINE)
        .timeout(DEADLINE);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(Failure::failed)?;
    let status = runtime.block_on(async {
        let channel = endpoint
            .connect()
            .await
            .map_err(|_| Failure::failed(format!("nobody answers at {:?}", args.server)))?;
        let answer = HealthClient::new(channel)
            .check(HealthCheckRequest::default())
            .await
            .map_err(|status| Failure::failed(status.message()))?;
        Ok::<_, Failure>(answer.into_inner().status())
    })?;
    match status {
        ServingStatus::Serving => {
            anstream::println!("serving");
            Ok(ExitCode::SUCCESS)
        }
        ServingStatus::Unknown | ServingStatus::NotServing | ServingStatus::ServiceUnknown => {
            Err(Failure::failed("not serving"))
        }
    }
}
