use std::{process::ExitCode, time::Duration};

use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};

use super::{
    ConfigArgs, Failure,
    client::{self, TlsArgs},
    reachable, words,
};
use crate::server;

/// Long enough for a busy machine, short enough for a container's probe.
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
    fn server(&self) -> Result<String, Failure> {
        if let Some(server) = &self.server {
            return Ok(server.clone());
        }
        let layers = self.config.layers()?;
        let server::Settings { grpc, .. } = layers.section("server").map_err(Failure::usage)?;
        if grpc.port() == 0 {
            let why = "server.grpc picks a free port; say with --server which it is";
            return Err(Failure::usage(why));
        }
        Ok(reachable(grpc).to_string())
    }
}

pub(super) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let server = args.server()?;
    let endpoint = client::endpoint(&server, &args.tls, DEADLINE)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(Failure::failed)?;
    let status = runtime.block_on(async {
        let channel = endpoint
            .connect()
            .await
            .map_err(|_| Failure::failed(format!("nobody answers at {server:?}")))?;
        let answer = HealthClient::new(channel)
            .check(HealthCheckRequest::default())
            .await
            .map_err(|status| Failure::failed(words::shown(status.message())))?;
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
