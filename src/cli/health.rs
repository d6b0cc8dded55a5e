//! `unstuck health`: a gRPC health check, for probes.

use std::{process::ExitCode, time::Duration};

use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};

use super::{
    CliError, ConfigArgs, block_on,
    client::find_transport_error,
    server_args::{AddressArgs, Target, build_endpoint},
    text_format::sanitize,
    tls_errors::find_tls_error,
};

/// Long enough for a busy machine, short enough for a container probe.
const DEADLINE: Duration = Duration::from_secs(3);

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    address: AddressArgs,
    #[command(flatten)]
    config: ConfigArgs,
}

pub(super) fn run(args: &Args) -> Result<ExitCode, CliError> {
    let Target { server, tls, .. } = args.address.resolve(&args.config)?;
    let endpoint = build_endpoint(&server, &tls)?.timeout(DEADLINE);
    let uri = endpoint.uri().clone();
    let status = block_on(async {
        let channel = endpoint.connect().await.map_err(|error| {
            find_tls_error(&server, &error)
                .unwrap_or_else(|| CliError::failed(format!("cannot connect to {server:?}")))
        })?;
        let mut health = HealthClient::new(channel);
        let checked = health.check(HealthCheckRequest::default()).await;
        match checked {
            Ok(response) => Ok(response.into_inner().status()),
            Err(status) => Err(find_transport_error(&server, &uri, &tls, &status)
                .await
                .unwrap_or_else(|| CliError::failed(sanitize(status.message())))),
        }
    })?;
    match status {
        ServingStatus::Serving => {
            anstream::println!("serving");
            Ok(ExitCode::SUCCESS)
        }
        ServingStatus::Unknown | ServingStatus::NotServing | ServingStatus::ServiceUnknown => {
            Err(CliError::failed("not serving"))
        }
    }
}
