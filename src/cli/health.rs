//! `unstuck health`: a gRPC health check, for probes.

use std::{process::ExitCode, time::Duration};

use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};

use super::{
    CliError, ConfigArgs, block_on,
    client::{self, TlsArgs},
    text_format, to_local_address,
};
use crate::server;

/// Long enough for a busy machine, short enough for a container probe.
const DEADLINE: Duration = Duration::from_secs(3);

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The address of the service's gRPC port, instead of the configured one.
    #[arg(long, env = "UNSTUCK_SERVER", value_name = "ADDRESS")]
    server: Option<String>,
    #[command(flatten)]
    tls: TlsArgs,
    #[command(flatten)]
    config: ConfigArgs,
}

impl Args {
    fn server_address(&self) -> Result<String, CliError> {
        if let Some(server) = &self.server {
            return Ok(server.clone());
        }
        let layers = self.config.load_layers()?;
        let server::Settings { grpc, .. } = layers.section("server").map_err(CliError::usage)?;
        if grpc.port() == 0 {
            let why = "server.grpc has port 0, so the port is not known: pass --server";
            return Err(CliError::usage(why));
        }
        Ok(to_local_address(grpc).to_string())
    }
}

pub(super) fn run(args: &Args) -> Result<ExitCode, CliError> {
    let server = args.server_address()?;
    let endpoint = client::build_endpoint(&server, &args.tls, DEADLINE)?;
    let status = block_on(async {
        let channel = endpoint
            .connect()
            .await
            .map_err(|_| CliError::failed(format!("cannot connect to {server:?}")))?;
        let response = HealthClient::new(channel)
            .check(HealthCheckRequest::default())
            .await
            .map_err(|status| CliError::failed(text_format::sanitize(status.message())))?;
        Ok(response.into_inner().status())
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
