//! Authentication over a real socket: what each role may do, tokens that change, and
//! tenants that are isolated from each other.

use std::{
    collections::BTreeSet,
    fs,
    path::Path,
    time::{Duration, Instant},
};

use prost::Message;
use prost_types::FileDescriptorSet;
use tempfile::TempDir;
use tonic::{
    Code, Request, Status, Streaming, client::Grpc, codegen::http::uri::PathAndQuery,
    transport::Channel,
};
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};
use tonic_prost::ProstCodec;
use tonic_types::StatusExt;
use unstuck::{
    auth::{Access, TokenLine, TokenRole, TokenSecret},
    domain::Tenant,
    pb::{
        self, Action, FILE_DESCRIPTOR_SET, Verdict, session_service_client::SessionServiceClient,
    },
    server::rpc::TABLE,
};

use crate::{
    harness::*,
    lifecycle::{Running, directory, output, text, unstuck},
};

/// Tokens in a file, by their names.
pub struct Tokens {
    directory: TempDir,
    all: Vec<(String, String, String)>,
}

impl Tokens {
    /// Names are `role` or `role@tenant`.
    pub fn new(names: &[&str]) -> Self {
        let mut tokens = Self {
            directory: directory(&[]),
            all: Vec::new(),
        };
        for name in names {
            tokens.add(name);
        }
        tokens
    }

    pub fn add(&mut self, name: &str) {
        let (role, tenant) = name.split_once('@').unwrap_or((name, "default"));
        let secret = TokenSecret::new().unwrap();
        let tenant = Tenant::parse(tenant).unwrap();
        let entry = TokenLine::new(name, role.parse().unwrap(), &tenant, &secret).unwrap();
        let token = secret.reveal().to_owned();
        self.all.push((name.to_owned(), token, entry.to_string()));
        self.write();
    }

    pub fn remove(&mut self, name: &str) {
        self.all.retain(|(known, ..)| known != name);
        self.write();
    }

    fn write(&self) {
        let lines: Vec<&str> = self.all.iter().map(|(.., entry)| entry.as_str()).collect();
        // A rename is atomic, so the service never reads half a file.
        let new = self.directory.path().join("new");
        fs::write(&new, lines.join("\n")).unwrap();
        fs::rename(new, self.path()).unwrap();
    }

    pub fn path(&self) -> std::path::PathBuf {
        self.directory.path().join("tokens.toml")
    }

    pub fn config(&self) -> String {
        format!("[auth]\ntokens = {:?}\n", self.path())
    }

    pub fn of(&self, name: &str) -> &str {
        let found = self.all.iter().find(|(known, ..)| known == name);
        &found.expect(name).1
    }

    /// A request with the token of this name.
    pub fn request<T>(&self, name: &str, message: T) -> Request<T> {
        with_token(self.of(name), message)
    }
}

fn with_token<T>(token: &str, message: T) -> Request<T> {
    let mut request = Request::new(message);
    let header = format!("Bearer {token}").parse().unwrap();
    request.metadata_mut().insert("authorization", header);
    request
}

// Roles

/// The paths of the rpcs that the proto files have.
fn rpcs() -> Vec<String> {
    let files = FileDescriptorSet::decode(FILE_DESCRIPTOR_SET).unwrap().file;
    let files = files.iter().filter(|file| file.package() == "unstuck.v1");
    let services = files.flat_map(|file| &file.service);
    let rpcs = services.flat_map(|service| {
        let of = move |rpc: &str| format!("/unstuck.v1.{}/{rpc}", service.name());
        service.method.iter().map(move |rpc| of(rpc.name()))
    });
    rpcs.collect()
}

/// Sends an empty message to any rpc and returns the first status.
async fn call_path(channel: &Channel, path: &str, token: Option<&str>) -> Status {
    let path = PathAndQuery::try_from(path).unwrap();
    let mut client = Grpc::new(channel.clone());
    within(client.ready()).await.unwrap();
    let empty = tokio_stream::once(());
    let request = match token {
        Some(token) => with_token(token, empty),
        None => Request::new(empty),
    };
    let codec = ProstCodec::<(), ()>::default();
    match within(client.streaming(request, path, codec)).await {
        Ok(_) => Status::new(Code::Ok, ""),
        Err(status) => status,
    }
}

/// The rows of the table in docs/security.md: an rpc or route and its roles.
fn documented() -> Vec<(String, BTreeSet<String>)> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/security.md");
    let page = fs::read_to_string(path).unwrap();
    let cells = |line: &str| -> Vec<String> {
        let line = line.trim_matches('|');
        line.split('|').map(|cell| cell.trim().to_owned()).collect()
    };
    let mut lines = page
        .lines()
        .skip_while(|line| !line.starts_with("| | broker"));
    let head = cells(lines.next().expect("the table of roles"));
    let rows = lines.skip(1).take_while(|line| line.starts_with('|'));
    let row = |line: &str| {
        let cells = cells(line);
        let what = cells[0].split('`').nth(1).expect(line).to_owned();
        let who = head.iter().zip(&cells).skip(1);
        let who = who
            .filter(|(_, may)| *may == "yes")
            .map(|(who, _)| who.clone());
        (what, who.collect())
    };
    rows.map(row).collect()
}

#[test]
fn the_access_table_lists_exactly_the_rpcs() {
    let decided = TABLE.iter().map(|row| row.path);
    let ours: BTreeSet<_> = decided
        .filter(|path| path.starts_with("/unstuck"))
        .collect();
    let rpcs = rpcs();
    assert_eq!(
        ours,
        rpcs.iter().map(String::as_str).collect::<BTreeSet<_>>(),
        "who may call a new rpc? say so in src/server/rpc.rs and docs/security.md"
    );
    let rows: BTreeSet<String> = documented().into_iter().map(|(what, _)| what).collect();
    for row in TABLE {
        let path = row.path;
        let name = path.rsplit('/').next().unwrap();
        let is_listed = rows.contains(name) || rows.contains(path);
        assert!(is_listed, "docs/security.md: {path} has no row");
    }
}

#[tokio::test]
async fn every_rpc_answers_the_roles_that_may_and_no_other() {
    let tokens = Tokens::new(&["broker", "viewer", "operator", "admin"]);
    let server = Server::with(&tokens.config()).await;
    let channel = connect(server.grpc, |endpoint| endpoint).await;
    let table = documented();
    for path in rpcs() {
        let name = path.rsplit('/').next().unwrap();
        let (_, who) = table.iter().find(|(what, _)| what == name).expect(name);
        for role in TokenRole::ALL {
            let status = call_path(&channel, &path, Some(tokens.of(role.name()))).await;
            let is_refused = status.code() == Code::PermissionDenied;
            assert_eq!(
                !is_refused,
                who.contains(role.name()),
                "{path} {role}: {status:?}"
            );
            if is_refused {
                let info = status.get_error_details().error_info().cloned().unwrap();
                assert_eq!(
                    (&*info.reason, &*info.domain),
                    ("ROLE_INSUFFICIENT", "unstuck.v1")
                );
            }
            assert_ne!(status.code(), Code::Unauthenticated, "{path} {role}");
        }
        for (token, reason) in [
            (None, "TOKEN_REQUIRED"),
            (Some("unstuck_x"), "TOKEN_UNKNOWN"),
        ] {
            let status = call_path(&channel, &path, token).await;
            assert_eq!(status.code(), Code::Unauthenticated, "{path}");
            let info = status.get_error_details().error_info().cloned().unwrap();
            assert_eq!(info.reason, reason, "{path}");
        }
    }
}

#[tokio::test]
async fn paths_outside_the_rpc_table_have_an_access_decision() {
    let tokens = Tokens::new(&["broker", "viewer", "admin"]);
    let server = Server::with(&tokens.config()).await;
    let channel = connect(server.grpc, |endpoint| endpoint).await;
    let health = HealthClient::new(channel.clone())
        .check(HealthCheckRequest::default())
        .await;
    assert!(health.is_ok());
    for version in ["v1", "v1alpha"] {
        let path = format!("/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo");
        let refused = call_path(&channel, &path, None).await;
        assert_eq!(refused.code(), Code::Unauthenticated);
        assert_eq!(
            call_path(&channel, &path, Some(tokens.of("broker")))
                .await
                .code(),
            Code::Ok
        );
    }
    let unknown = "/unstuck.v1.SessionService/NoSuchThing";
    assert_eq!(
        call_path(&channel, unknown, None).await.code(),
        Code::Unauthenticated
    );
    let refused = call_path(&channel, unknown, Some(tokens.of("admin"))).await;
    assert_eq!(refused.code(), Code::PermissionDenied);

    for (page, token, code) in [
        ("healthz", None, 200),
        ("readyz", None, 200),
        ("metrics", None, 401),
        ("metrics", Some("unstuck_x"), 401),
        ("metrics", Some(tokens.of("broker")), 403),
        ("metrics", Some(tokens.of("viewer")), 200),
    ] {
        let answer = page_of(&server, page, token).await;
        assert_eq!(answer.status(), code, "{page}");
        assert_eq!(
            answer.headers().contains_key("www-authenticate"),
            code == 401
        );
    }
    let page = page_of(&server, "metrics", Some(tokens.of("viewer"))).await;
    let page = page.text().await.unwrap();
    for series in [
        "unstuck_rejected_total{reason=\"unauthenticated\"} 5",
        "unstuck_rejected_total{reason=\"permission_denied\"} 2",
    ] {
        assert!(page.contains(series), "{series} is not in\n{page}");
    }
}

async fn page_of(server: &Server, page: &str, token: Option<&str>) -> reqwest::Response {
    unstuck::notify::install_crypto_provider();
    let url = format!("http://{}/{page}", server.http);
    let mut request = reqwest::Client::new().get(url);
    if let Some(token) = token {
        request = request.bearer_auth(token);
    }
    within(request.send()).await.unwrap()
}

#[tokio::test]
async fn without_auth_no_token_is_required() {
    let server = Server::start().await;
    let channel = connect(server.grpc, |endpoint| endpoint).await;
    for row in TABLE.iter().filter(|row| row.path.starts_with("/unstuck")) {
        let path = row.path;
        assert_ne!(row.access, Access::Public, "{path}");
        let status = call_path(&channel, path, None).await;
        let is_refused = [Code::Unauthenticated, Code::PermissionDenied].contains(&status.code());
        assert!(!is_refused, "{path}: {status:?}");
    }
}

#[tokio::test]
async fn the_actor_of_an_action_is_the_name_of_its_token() {
    let tokens = Tokens::new(&["operator", "viewer"]);
    let server = Server::with(&tokens.config()).await;
    let message = pb::TerminateSessionRequest {
        session_id: "s".to_owned(),
        reason: "enough".to_owned(),
    };
    let mut request = tokens.request("operator", message);
    let somebody = "somebody-else".parse().unwrap();
    request.metadata_mut().insert("unstuck-operator", somebody);
    within(server.sessions.clone().terminate_session(request))
        .await
        .unwrap();
    let verdicts = audit(&server, &tokens, "viewer").await;
    assert_eq!(verdicts.len(), 1);
    assert_eq!(verdicts[0].operator, "operator");
}

// Tokens

#[tokio::test]
async fn a_revoked_token_ends_its_streams_and_a_new_one_works_at_once() {
    let mut tokens = Tokens::new(&["viewer", "viewer@b"]);
    let server = Server::with(&tokens.config()).await;
    let watch = |request| {
        let mut sessions = server.sessions.clone();
        async move { within(sessions.watch_verdicts(request)).await }
    };
    let all = pb::WatchVerdictsRequest::default();
    let lost = watch(tokens.request("viewer", all.clone())).await.unwrap();
    let kept = watch(tokens.request("viewer@b", all.clone()))
        .await
        .unwrap();
    let gone = tokens.of("viewer").to_owned();
    tokens.remove("viewer");
    tokens.add("admin@b");
    let ended = within(lost.into_inner().message()).await.unwrap_err();
    assert_eq!(ended.code(), Code::Unauthenticated);
    let refused = watch(with_token(&gone, all)).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unauthenticated);
    // Streams of a token that was kept continue, and the new token works.
    let message = pb::TerminateSessionRequest {
        session_id: "s".to_owned(),
        reason: "enough".to_owned(),
    };
    let request = tokens.request("admin@b", message);
    within(server.sessions.clone().terminate_session(request))
        .await
        .unwrap();
    let seen = within(kept.into_inner().message()).await.unwrap();
    assert_eq!(seen.unwrap().verdict.unwrap().session_id, "s");
}

#[tokio::test]
async fn an_unknown_token_is_answered_late_and_a_valid_one_at_once() {
    let tokens = Tokens::new(&["viewer"]);
    let server = Server::with(&tokens.config()).await;
    let list = |token: &str| {
        let request = with_token(token, pb::ListSessionsRequest::default());
        let mut sessions = server.sessions.clone();
        async move { within(sessions.list_sessions(request)).await }
    };
    let began = Instant::now();
    for _ in 0..3 {
        let refused = list("unstuck_guess").await.unwrap_err();
        assert_eq!(refused.code(), Code::Unauthenticated);
    }
    // HTTP counts the same address.
    let page = page_of(&server, "metrics", Some("unstuck_guess")).await;
    assert_eq!(page.status().as_u16(), 401);
    assert!(began.elapsed() >= Duration::from_millis(100 + 200 + 400 + 800));
    // A missing token is an error of the client, and no guess.
    let mut sessions = server.sessions.clone();
    let missing = within(sessions.list_sessions(pb::ListSessionsRequest::default()));
    tokio::select! {
        biased;
        late = list("unstuck_guess") => panic!("{late:?}"),
        missing = missing => assert_eq!(missing.unwrap_err().code(), Code::Unauthenticated),
    }
    // A valid token from the same address is not delayed. The next guess takes 3.2 s.
    tokio::select! {
        biased;
        late = list("unstuck_guess") => panic!("{late:?}"),
        answer = list(tokens.of("viewer")) => drop(answer.unwrap()),
    }
}

#[tokio::test]
async fn tokens_hold_after_their_file_is_deleted_and_health_says_so() {
    let mut tokens = Tokens::new(&["viewer"]);
    let server = Server::with(&tokens.config()).await;
    let lists = async |tokens: &Tokens| {
        let request = tokens.request("viewer", pb::ListSessionsRequest::default());
        within(server.sessions.clone().list_sessions(request)).await
    };
    fs::remove_file(tokens.path()).unwrap();
    let health = server
        .health_until(|health| health.contains("the token file"))
        .await;
    let note =
        "the token file is missing or cannot be read: the tokens loaded before stay in force";
    assert!(health.contains(note), "{health}");
    lists(&tokens).await.unwrap();
    tokens.add("viewer@b");
    server
        .health_until(|health| !health.contains("the token file"))
        .await;
    lists(&tokens).await.unwrap();
}

#[test]
fn a_token_is_printed_once_and_its_line_admits_it() {
    let here = directory(&[("unstuck.toml", "[auth]\ntokens = 'tokens.toml'")]);
    let new = |args: &[&str]| {
        let args = [&["token", "new"], args].concat();
        output(unstuck(here.path(), &args, &[]))
    };
    let made = new(&["--name", "alice", "--role", "operator", "--output", "json"]);
    let made: serde_json::Value = serde_json::from_slice(&made.stdout).unwrap();
    let (token, line) = (
        made["token"].as_str().unwrap(),
        made["line"].as_str().unwrap(),
    );
    assert!(!line.contains(token));
    fs::write(here.path().join("tokens.toml"), line).unwrap();
    let running = Running::start(unstuck(here.path(), &["serve"], &[]));
    let server = running.grpc.to_string();
    let ask = |variables: &[(&str, &str)]| {
        let args = ["terminate", "s", "--reason", "enough", "--server", &server];
        output(unstuck(here.path(), &args, variables))
    };
    let refused = ask(&[]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(
        text(&refused.stderr).contains("UNSTUCK_TOKEN"),
        "{refused:?}"
    );
    assert_eq!(ask(&[("UNSTUCK_TOKEN", token)]).status.code(), Some(0));
    fs::write(here.path().join("mine"), format!("{token}\n")).unwrap();
    assert_eq!(
        ask(&[("UNSTUCK_TOKEN_FILE", "mine")]).status.code(),
        Some(0)
    );

    let shown = new(&["--name", "bob", "--role", "viewer"]);
    let shown = text(&shown.stdout);
    assert!(
        shown.contains("\nunstuck_") && shown.contains("role = \"viewer\""),
        "{shown}"
    );
    for (args, why) in [
        (["--name", "a b", "--role", "viewer"], "a name is"),
        (["--name", "ab", "--role", "king"], "a role is"),
    ] {
        let refused = new(&args);
        assert_eq!(refused.status.code(), Some(2));
        assert!(text(&refused.stderr).contains(why), "{refused:?}");
    }
}

#[test]
fn a_service_without_its_tokens_does_not_start() {
    for (file, why) in [("", "cannot read"), ("a = 1", "tokens.toml:1:")] {
        let here = directory(&[("unstuck.toml", "[auth]\ntokens = 'tokens.toml'")]);
        if !file.is_empty() {
            fs::write(here.path().join("tokens.toml"), file).unwrap();
        }
        let refused = output(unstuck(here.path(), &["serve"], &[]));
        assert_eq!(refused.status.code(), Some(2));
        assert!(text(&refused.stderr).contains(why), "{refused:?}");
    }
}

// Tenants

async fn audit(server: &Server, tokens: &Tokens, name: &str) -> Vec<Verdict> {
    let request = tokens.request(name, pb::ListVerdictsRequest::default());
    let answer = within(server.sessions.clone().list_verdicts(request)).await;
    answer.unwrap().into_inner().verdicts
}

/// A tenant's callers.
struct TenantClient<'a> {
    server: &'a Server,
    tokens: &'a Tokens,
    tenant: &'a str,
}

impl TenantClient<'_> {
    fn request<T>(&self, message: T) -> Request<T> {
        self.tokens
            .request(&format!("admin@{}", self.tenant), message)
    }

    fn sessions(&self) -> SessionServiceClient<Channel> {
        self.server.sessions.clone()
    }

    async fn record(&self, event: pb::Event) -> pb::EventResult {
        let event = Some(event);
        let request = self.request(pb::RecordEventRequest { event });
        let answer = within(self.server.detection.clone().record_event(request)).await;
        answer.unwrap().into_inner().result.unwrap()
    }

    async fn get(&self, session: &str) -> Result<pb::Session, Status> {
        let session_id = session.to_owned();
        let request = self.request(pb::GetSessionRequest { session_id });
        let answer = within(self.sessions().get_session(request)).await?;
        Ok(answer.into_inner().session.unwrap())
    }

    async fn list(&self, page_token: &str) -> Vec<String> {
        let page_token = page_token.to_owned();
        let request = self.request(pb::ListSessionsRequest {
            page_token,
            ..Default::default()
        });
        let answer = within(self.sessions().list_sessions(request)).await;
        let sessions = answer.unwrap().into_inner().sessions;
        sessions
            .into_iter()
            .map(|session| session.session_id)
            .collect()
    }

    async fn terminate(&self, session: &str) -> Verdict {
        let request = self.request(pb::TerminateSessionRequest {
            session_id: session.to_owned(),
            reason: self.tenant.to_owned(),
        });
        let answer = within(self.sessions().terminate_session(request)).await;
        answer.unwrap().into_inner().verdict.unwrap()
    }

    async fn reset(&self, session: &str) -> Result<Verdict, Status> {
        let request = self.request(pb::ResetSessionRequest {
            session_id: session.to_owned(),
            reason: self.tenant.to_owned(),
        });
        let answer = within(self.sessions().reset_session(request)).await?;
        Ok(answer.into_inner().verdict.unwrap())
    }

    async fn snooze(&self, session: &str) -> Result<Verdict, Status> {
        let request = self.request(pb::SnoozeSessionRequest {
            session_id: session.to_owned(),
            duration: Some(DEADLINE.into()),
            reason: self.tenant.to_owned(),
        });
        let answer = within(self.sessions().snooze_session(request)).await?;
        Ok(answer.into_inner().verdict.unwrap())
    }

    async fn rate(&self, verdict_id: &str) -> Result<Verdict, Status> {
        let request = self.request(pb::RateVerdictRequest {
            verdict_id: verdict_id.to_owned(),
            rating: pb::Rating::Right.into(),
            reason: String::new(),
        });
        let answer = within(self.sessions().rate_verdict(request)).await?;
        Ok(answer.into_inner().verdict.unwrap())
    }

    async fn end(&self, session: &str) -> Result<pb::Session, Status> {
        let session_id = session.to_owned();
        let request = self.request(pb::EndSessionRequest { session_id });
        let answer = within(self.sessions().end_session(request)).await?;
        Ok(answer.into_inner().session.unwrap())
    }

    async fn audit(&self) -> Vec<Verdict> {
        audit(self.server, self.tokens, &format!("admin@{}", self.tenant)).await
    }

    async fn watch(&self, after: &str) -> Streaming<pb::WatchVerdictsResponse> {
        let request = self.request(pb::WatchVerdictsRequest {
            after_verdict_id: after.to_owned(),
            ..Default::default()
        });
        let answer = within(self.sessions().watch_verdicts(request)).await;
        answer.unwrap().into_inner()
    }
}

async fn next(watch: &mut Streaming<pb::WatchVerdictsResponse>) -> Verdict {
    let response = within(watch.message()).await.unwrap();
    response.unwrap().verdict.unwrap()
}

/// Two tenants of one service.
fn both<'a>(server: &'a Server, tokens: &'a Tokens) -> [TenantClient<'a>; 2] {
    ["a", "b"].map(|tenant| TenantClient {
        server,
        tokens,
        tenant,
    })
}

fn code<T: std::fmt::Debug>(answer: Result<T, Status>) -> Code {
    answer.unwrap_err().code()
}

#[tokio::test]
async fn the_same_id_of_two_tenants_is_two_sessions() {
    let tokens = Tokens::new(&["admin@a", "admin@b"]);
    let server = Server::with(&tokens.config()).await;
    let [a, b] = both(&server, &tokens);
    for _ in 0..2 {
        a.record(ask("colour").of("s")).await;
        b.record(ask("colour").of("s")).await;
    }
    // Three equal calls make a loop; each tenant has had two.
    assert_eq!(b.record(ask("size").of("s")).await.event_index, 2);
    assert_eq!(a.get("s").await.unwrap().events, 2);
    assert_eq!(b.get("s").await.unwrap().events, 3);
    let looping = a.record(ask("colour").of("s")).await;
    assert_eq!(looping.action(), Action::Warn);
    assert!(a.get("s").await.unwrap().last_verdicts.len() == 1);
    assert!(b.get("s").await.unwrap().last_verdicts.is_empty());
    // An event id that one has used is new to the other.
    let event = pb::Event {
        event_id: "e".to_owned(),
        ..ask("weight").of("s")
    };
    assert!(!a.record(event.clone()).await.duplicate);
    assert!(!b.record(event).await.duplicate);
}

#[tokio::test]
async fn no_tenant_can_read_or_change_the_sessions_of_another() {
    let tokens = Tokens::new(&["admin@a", "admin@b"]);
    let server = Server::with(&tokens.config()).await;
    let [a, b] = both(&server, &tokens);
    a.record(ask("colour").of("theirs")).await;
    b.record(ask("colour").of("mine")).await;
    assert_eq!(code(b.get("theirs").await), Code::NotFound);
    assert_eq!(code(b.reset("theirs").await), Code::NotFound);
    assert_eq!(code(b.snooze("theirs").await), Code::NotFound);
    let mut looping = a.record(ask("font").of("zoo")).await;
    for _ in 0..2 {
        looping = a.record(ask("font").of("zoo")).await;
    }
    let verdict_id = looping.verdict.unwrap().verdict_id;
    assert_eq!(code(b.rate(&verdict_id).await), Code::NotFound);
    a.rate(&verdict_id).await.unwrap();
    assert_eq!(code(b.end("theirs").await), Code::NotFound);
    assert_eq!(b.list("").await, ["mine"]);
    // A page token of another tenant only has a position.
    let request = a.request(pb::ListSessionsRequest {
        page_size: 1,
        ..Default::default()
    });
    a.record(ask("colour").of("zebra")).await;
    let page = within(a.sessions().list_sessions(request)).await.unwrap();
    assert!(b.list(&page.into_inner().next_page_token).await.is_empty());
    // Terminating an id that is not live writes a tombstone of the caller's tenant.
    b.terminate("theirs").await;
    assert_eq!(
        a.get("theirs").await.unwrap().status(),
        pb::SessionStatus::Active
    );
    assert_eq!(
        a.record(ask("colour").of("theirs")).await.action(),
        Action::Unspecified
    );
    assert_eq!(
        b.record(ask("colour").of("theirs")).await.action(),
        Action::Terminate
    );
    // The other tenant cannot reset it.
    assert!(a.reset("theirs").await.is_ok());
    assert_eq!(
        b.record(ask("colour").of("theirs")).await.action(),
        Action::Terminate
    );
}

#[tokio::test]
async fn verdicts_reach_only_watchers_of_the_same_tenant() {
    let tokens = Tokens::new(&["admin@a", "admin@b"]);
    let server = Server::with(&tokens.config()).await;
    let [a, b] = both(&server, &tokens);
    let mut watches = [a.watch("").await, b.watch("").await];
    // A stream that has carried the other's session of the same name.
    let (requests, outbound) = tokio::sync::mpsc::channel(4);
    let outbound = tokio_stream::wrappers::ReceiverStream::new(outbound);
    let mut detection = server.detection.clone();
    let stream = within(detection.stream_events(b.request(outbound))).await;
    let stream = stream.unwrap();
    requests
        .send(batch(1, [ask("colour").of("s")]))
        .await
        .unwrap();
    let mut stream = stream.into_inner();
    within(stream.message()).await.unwrap();

    let of_a = a.terminate("s").await;
    let of_b = b.terminate("t").await;
    assert_eq!(next(&mut watches[0]).await.verdict_id, of_a.verdict_id);
    assert_eq!(next(&mut watches[1]).await.verdict_id, of_b.verdict_id);
    let ids = |verdicts: Vec<Verdict>| -> Vec<String> {
        verdicts
            .into_iter()
            .map(|verdict| verdict.verdict_id)
            .collect()
    };
    assert_eq!(ids(a.audit().await), [&*of_a.verdict_id]);
    assert_eq!(ids(b.audit().await), [&*of_b.verdict_id]);
    // Resuming after a verdict of the other tenant shows only the caller's own.
    let mut resumed = b.watch(&of_a.verdict_id).await;
    assert_eq!(next(&mut resumed).await.verdict_id, of_b.verdict_id);
    let mut resumed = a.watch(&of_a.verdict_id).await;
    let later = a.terminate("u").await;
    assert_eq!(next(&mut resumed).await.verdict_id, later.verdict_id);
    // Nothing was pushed to the stream: its next message answers its next event.
    requests
        .send(batch(2, [ask("size").of("s")]))
        .await
        .unwrap();
    let answer = within(stream.message()).await.unwrap().unwrap();
    assert_eq!(
        (answer.sequence, answer.results[0].action()),
        (2, Action::Unspecified)
    );
}

#[tokio::test]
async fn tenants_stay_separate_after_a_crash() {
    let tokens = Tokens::new(&["admin@a", "admin@b"]);
    let here = directory(&[("unstuck.toml", &tokens.config())]);
    let start = || Running::start(unstuck(here.path(), &["serve"], &[]));
    let (ended, theirs) = {
        let mut running = start();
        let server = running.server().await;
        let [a, b] = both(&server, &tokens);
        let ended = a.terminate("s").await;
        b.record(ask("colour").of("t")).await;
        b.snooze("t").await.unwrap();
        let theirs = b.terminate("x").await;
        running.child.0.kill().unwrap();
        running.child.0.wait().unwrap();
        (ended, theirs)
    };
    let running = start();
    let server = running.server().await;
    let [a, b] = both(&server, &tokens);
    let answer = a.record(ask("colour").of("s")).await;
    assert_eq!(answer.verdict.unwrap().verdict_id, ended.verdict_id);
    assert_eq!(
        b.record(ask("colour").of("s")).await.action(),
        Action::Unspecified
    );
    assert_eq!(code(b.reset("never-heard-of").await), Code::NotFound);
    assert_eq!(code(a.get("x").await), Code::NotFound);
    let sessions = |verdicts: Vec<Verdict>| -> Vec<String> {
        verdicts
            .into_iter()
            .map(|verdict| verdict.session_id)
            .collect()
    };
    assert_eq!(sessions(a.audit().await), ["s"]);
    assert_eq!(sessions(b.audit().await), ["t", "x"]);
    let mut resumed = a.watch(&ended.verdict_id).await;
    let later = a.terminate("later").await;
    assert_eq!(next(&mut resumed).await.verdict_id, later.verdict_id);
    // A snooze belongs to the tenant too.
    b.record(ask("colour").of("t")).await;
    assert!(b.get("t").await.unwrap().snoozed_until.is_some());
    a.record(ask("colour").of("t")).await;
    assert!(a.get("t").await.unwrap().snoozed_until.is_none());
    assert_eq!(
        b.get("x").await.unwrap().termination.unwrap().verdict_id,
        theirs.verdict_id
    );
}
