//! The crate `unstuck-client` against the service.

use std::time::Duration;

use tonic::Code;
use unstuck::pb::{self, Action, check_call_request::Arguments};
use unstuck_client::{Client, Options, call_key};

use crate::{auth::Tokens, harness::*};

const ARGS: &str = r#"{"path": "src/main.rs"}"#;

/// A client that waits as long as a busy machine needs.
fn connect(options: &Options) -> Client {
    let client = Client::connect_lazy(options).unwrap();
    client.with_deadline(Duration::from_secs(60))
}

fn read() -> pb::Event {
    call("read_file", ARGS, "fn main() {}").of("s")
}

#[tokio::test]
async fn a_broker_records_checks_and_names_calls_as_the_service_does() {
    let server = Server::start().await;
    let client = connect(&Options::new(server.grpc.to_string()));
    let opening = pb::OpenSessionRequest {
        session_id: "s".to_owned(),
        ..Default::default()
    };
    client.open_session(opening).await.unwrap();
    let mut last = pb::EventResult::default();
    for _ in 0..4 {
        last = client.record(read()).await.unwrap();
    }
    assert_eq!(last.action(), Action::Block);
    let key = call_key("read_file", ARGS).unwrap().to_string();
    assert_eq!(last.standing.unwrap().blocked, [key]);
    let check = pb::CheckCallRequest {
        session_id: "s".to_owned(),
        tool: "read_file".to_owned(),
        arguments: Some(Arguments::ArgsJson(ARGS.to_owned())),
        ..Default::default()
    };
    assert_eq!(client.check(check).await.unwrap().action(), Action::Block);
}

#[tokio::test]
async fn a_token_is_sent_with_each_call() {
    let tokens = Tokens::new(&["broker"]);
    let server = Server::with(&tokens.config()).await;
    let without = Options::new(server.grpc.to_string());
    let refused = connect(&without).record(read()).await;
    assert_eq!(refused.unwrap_err().code(), Code::Unauthenticated);
    let options = Options {
        token: Some(tokens.of("broker").to_owned()),
        ..without
    };
    let client = connect(&options);
    client.record(read()).await.unwrap();
}
