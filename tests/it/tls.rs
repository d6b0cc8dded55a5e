//! TLS over real sockets, with certificates created for the test.

use std::{
    fs,
    io::Write,
    net::TcpListener,
    path::Path,
    sync::{
        Arc,
        mpsc::{self, Receiver},
    },
    thread,
};

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::{
    ServerConfig, ServerConnection, StreamOwned,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};
use serde_json::json;
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use unstuck::pb::{self, session_service_client::SessionServiceClient};

use crate::{
    auth::Tokens,
    harness::*,
    hook_command::{FakeRequest, Home, ok, read_request, response},
    lifecycle::{Running, directory, output, text, unstuck},
};

/// An authority, in a directory with what it has signed.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    directory: TempDir,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        // Two authorities have different names, as in practice.
        let name = format!("authority {:x?}", &key.public_key_raw()[..8]);
        params.distinguished_name.push(DnType::CommonName, name);
        let directory = directory(&[("ca.pem", &params.self_signed(&key).unwrap().pem())]);
        Self {
            issuer: Issuer::new(params, key),
            directory,
        }
    }

    /// Writes a certificate and its key.
    fn sign(&self, name: &str) {
        let names = ["localhost", "127.0.0.1"].map(str::to_owned);
        let params = CertificateParams::new(names).unwrap();
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        fs::write(self.path(&format!("{name}.pem")), certificate.pem()).unwrap();
        fs::write(self.path(&format!("{name}.key")), key.serialize_pem()).unwrap();
    }

    fn path(&self, file: &str) -> std::path::PathBuf {
        self.directory.path().join(file)
    }

    fn pem(&self, file: &str) -> Vec<u8> {
        fs::read(self.path(file)).unwrap()
    }

    /// `[tls]` of a service.
    fn config(&self, client_ca: &str) -> String {
        let [cert, key] = ["service.pem", "service.key"].map(|file| self.path(file));
        format!("[tls]\ncert = {cert:?}\nkey = {key:?}\nclient_ca = {client_ca:?}\n")
    }

    /// The settings of a client that trusts this authority.
    fn client(&self) -> ClientTlsConfig {
        ClientTlsConfig::new().ca_certificate(Certificate::from_pem(self.pem("ca.pem")))
    }

    fn identity(&self, name: &str) -> Identity {
        let [cert, key] = ["pem", "key"].map(|kind| self.pem(&format!("{name}.{kind}")));
        Identity::from_pem(cert, key)
    }
}

async fn connect_with(address: std::net::SocketAddr, tls: ClientTlsConfig) -> Option<Channel> {
    unstuck::notify::install_crypto_provider();
    let endpoint = Endpoint::from_shared(format!("https://{address}")).unwrap();
    within(endpoint.tls_config(tls).unwrap().connect())
        .await
        .ok()
}

async fn lists(channel: Channel) -> bool {
    let mut sessions = SessionServiceClient::new(channel);
    let answer = within(sessions.list_sessions(pb::ListSessionsRequest::default())).await;
    answer.is_ok()
}

/// The figure of a page of metrics, over TLS.
async fn figure(http: std::net::SocketAddr, ca: &[u8], token: &str, series: &str) -> u32 {
    unstuck::notify::install_crypto_provider();
    let ca = reqwest::Certificate::from_pem(ca).unwrap();
    let client = reqwest::Client::builder()
        .tls_certs_only([ca])
        .build()
        .unwrap();
    let page = within(
        client
            .get(format!("https://{http}/metrics"))
            .bearer_auth(token)
            .send(),
    )
    .await;
    let page = within(page.unwrap().text()).await.unwrap();
    let line = page.lines().find_map(|line| line.strip_prefix(series));
    line.expect(series).trim().parse().unwrap()
}

fn serve(here: &Path) -> Running {
    Running::start(unstuck(here, &["serve"], &[]))
}

#[tokio::test]
async fn both_sides_speak_tls_and_nothing_else() {
    let authority = Authority::new();
    authority.sign("service");
    let here = directory(&[("unstuck.toml", &authority.config(""))]);
    let running = serve(here.path());
    let channel = connect_with(running.grpc, authority.client())
        .await
        .unwrap();
    assert!(lists(channel).await);
    // A client rejects a server whose authority it does not trust.
    assert!(
        connect_with(running.grpc, Authority::new().client())
            .await
            .is_none()
    );
    // Without TLS no call is answered.
    let clear = Endpoint::from_shared(format!("http://{}", running.grpc)).unwrap();
    let clear = within(clear.connect()).await.unwrap();
    assert!(!lists(clear).await);
    assert!(
        within(get(format!("http://{}/healthz", running.http)))
            .await
            .is_err()
    );
    let ca = authority.pem("ca.pem");
    for (reason, count) in [("tls_unknown_ca", 1), ("tls_plain_text", 2)] {
        let series = format!("unstuck_rejected_total{{reason=\"{reason}\"}}");
        let refused = async || figure(running.http, &ca, "", &series).await;
        within(async { while refused().await < count {} }).await;
    }
}

#[tokio::test]
async fn a_client_without_a_required_certificate_is_refused() {
    let (authority, clients) = (Authority::new(), Authority::new());
    authority.sign("service");
    authority.sign("stranger");
    clients.sign("broker");
    let ca = clients.path("ca.pem").to_str().unwrap().to_owned();
    let server = TlsServer::start(&authority.config(&ca)).await;
    for (identity, is_let_in) in [
        (None, false),
        (Some(authority.identity("stranger")), false),
        (Some(clients.identity("broker")), true),
    ] {
        let tls = match identity {
            Some(identity) => authority.client().identity(identity),
            None => authority.client(),
        };
        let answered = match connect_with(server.grpc, tls).await {
            Some(channel) => lists(channel).await,
            None => false,
        };
        assert_eq!(answered, is_let_in);
    }
}

/// A server within the test.
struct TlsServer {
    grpc: std::net::SocketAddr,
}

impl TlsServer {
    async fn start(toml: &str) -> Self {
        let app = unstuck::app::App::bind(config(toml)).await.unwrap();
        let grpc = app.grpc_address().unwrap();
        tokio::spawn(app.run(std::future::pending()));
        Self { grpc }
    }
}

#[test]
fn the_command_line_speaks_tls_with_a_token() {
    let authority = Authority::new();
    authority.sign("service");
    authority.sign("alice");
    let tokens = Tokens::new(&["operator"]);
    let ca = authority.path("ca.pem").to_str().unwrap().to_owned();
    let here = directory(&[("unstuck.toml", &(tokens.config() + &authority.config(&ca)))]);
    let running = serve(here.path());
    let server = running.grpc.to_string();
    let [cert, key] = ["alice.pem", "alice.key"].map(|file| authority.path(file));
    let variables = [
        ("UNSTUCK_CA", ca.as_str()),
        ("UNSTUCK_CERT", cert.to_str().unwrap()),
        ("UNSTUCK_KEY", key.to_str().unwrap()),
        ("UNSTUCK_TOKEN", tokens.of("operator")),
    ];
    let ask = |args: &[&str], variables: &[(&str, &str)]| {
        let args = [args, &["--server", &server]].concat();
        output(unstuck(here.path(), &args, variables))
    };
    let done = ask(&["terminate", "s", "--reason", "enough"], &variables);
    assert_eq!(done.status.code(), Some(0), "{done:?}");
    let healthy = ask(&["health"], &variables[..3]);
    assert_eq!(text(&healthy.stdout), "serving\n");
    let other = Authority::new().path("ca.pem");
    let wary = ask(&["sessions"], &[("UNSTUCK_CA", other.to_str().unwrap())]);
    assert_eq!(wary.status.code(), Some(2), "the file is gone: {wary:?}");
    let other = Authority::new();
    let other_ca = other.path("ca.pem");
    let wary = ask(&["sessions"], &[("UNSTUCK_CA", other_ca.to_str().unwrap())]);
    assert_eq!(wary.status.code(), Some(1));
    assert!(text(&wary.stderr).contains("is not trusted"), "{wary:?}");
}

#[test]
fn the_command_line_says_what_is_wrong_with_a_tls_connection() {
    let (authority, clients) = (Authority::new(), Authority::new());
    authority.sign("service");
    authority.sign("stranger");
    let [ca, other_ca] = [&authority, &clients].map(|it| it.path("ca.pem"));
    let [ca, other_ca] = [&ca, &other_ca].map(|path| path.to_str().unwrap());
    let start = |config: &str| serve(directory(&[("unstuck.toml", config)]).path());
    let tls = start(&authority.config(""));
    let strict = start(&authority.config(other_ca));
    let plain = start("");
    let [cert, key] = ["stranger.pem", "stranger.key"].map(|file| authority.path(file));
    let stranger = [
        "--cert",
        cert.to_str().unwrap(),
        "--key",
        key.to_str().unwrap(),
    ];
    let at = |scheme: &str, running: &Running| format!("{scheme}{}", running.grpc);
    let cases = [
        (
            at("", &tls),
            vec![],
            "{server}: plain text spoken to a TLS port: use https:// (--ca sets the CA to trust)",
        ),
        (
            at("https://", &plain),
            vec![],
            "{server}: plain text is spoken on this port: use http://",
        ),
        (
            at("https://", &tls),
            vec!["--ca", other_ca],
            "the certificate of {server} is not trusted: unknown certificate authority (--ca sets \
             the CA to trust)",
        ),
        (
            at("https://", &strict),
            vec!["--ca", ca],
            "{server} requires a client certificate (--cert and --key)",
        ),
        (
            at("https://", &strict),
            [&["--ca", ca], &stranger[..]].concat(),
            "{server} does not accept the client certificate of --cert: unknown certificate \
             authority",
        ),
    ];
    let here = directory(&[]);
    for (server, args, message) in &cases {
        for command in ["sessions", "health", "watch"] {
            let args = [&[command, "--server", server], &args[..]].concat();
            let refused = output(unstuck(here.path(), &args, &[]));
            assert_eq!(refused.status.code(), Some(1), "{refused:?}");
            let message = message.replace("{server}", server);
            assert_eq!(
                text(&refused.stderr),
                format!("unstuck: {message}\n"),
                "{command}"
            );
        }
    }
}

#[test]
fn a_hook_speaks_tls_with_a_service_whose_authority_is_known() {
    let authority = Authority::new();
    authority.sign("service");
    let here = directory(&[("unstuck.toml", &authority.config(""))]);
    let running = serve(here.path());
    let home = Home::new();
    let url = format!("https://{}", running.http);
    let hook = |n: u32, ca: &Path| {
        let payload = json!({
            "hook_event_name": "PostToolUse", "session_id": "s", "tool_name": "Bash",
            "tool_input": {"command": "make check"}, "tool_response": "Exit code: 2\nfailed",
            "tool_use_id": format!("call_{n}"),
        });
        let args = ["codex", "--http", &url];
        let variables = [("SSL_CERT_FILE", ca.to_str().unwrap())];
        home.hook(&args, payload.to_string().as_bytes(), &variables)
    };
    let known = authority.path("ca.pem");
    let replies = [1, 2, 3].map(|n| hook(n, &known));
    assert_eq!(replies[..2], ["{}\n", "{}\n"]);
    assert!(replies[2].contains("[unstuck]"), "{}", replies[2]);
    assert_eq!(home.journal("codex")["failures"], 0);
    // Nothing is sent to one that another authority has signed.
    let unknown = Authority::new();
    assert_eq!(hook(4, &unknown.path("ca.pem")), "{}\n");
    let noted = home.journal("codex")["failure"].to_string();
    assert!(noted.to_lowercase().contains("certificate"), "{noted}");
}

/// An HTTPS server that answers each request with this text.
fn serve_tls(authority: &Authority, answer: String) -> (String, Receiver<FakeRequest>) {
    unstuck::notify::install_crypto_provider();
    let certificate = CertificateDer::from_pem_slice(&authority.pem("service.pem")).unwrap();
    let key = PrivateKeyDer::from_pem_slice(&authority.pem("service.key")).unwrap();
    let config = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key);
    let config = Arc::new(config.unwrap());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    let (sender, requests) = mpsc::channel();
    thread::spawn(move || {
        for socket in listener.incoming() {
            let connection = ServerConnection::new(config.clone()).unwrap();
            let mut stream = StreamOwned::new(connection, socket.unwrap());
            if let Some(request) = read_request(&mut stream) {
                let _ = sender.send(request);
                let _ = stream.write_all(answer.as_bytes());
            }
        }
    });
    (url, requests)
}

#[test]
fn a_hook_does_not_follow_a_redirect_with_its_payload() {
    let authority = Authority::new();
    authority.sign("service");
    let (elsewhere, redirected) = serve_tls(&authority, ok(r#"{"systemMessage":"elsewhere"}"#));
    let location = format!("location: {elsewhere}/v1/hooks/codex\r\n");
    let redirect = response("307 Temporary Redirect", &location, "{}");
    let (url, requests) = serve_tls(&authority, redirect);
    let ca = authority.path("ca.pem");
    let variables = [("SSL_CERT_FILE", ca.to_str().unwrap())];
    let home = Home::new();
    let reply = home.hook(&["codex", "--http", &url], b"{}", &variables);
    assert_eq!(reply, "{}\n");
    let request = requests.recv_timeout(DEADLINE).unwrap();
    assert!(request.head.starts_with("post /v1/hooks/codex http/1.1"));
    assert_eq!(home.journal("codex")["failure"], "the service answered 307");
    assert!(redirected.try_recv().is_err());
    // The other address would have answered.
    let reply = home.hook(&["codex", "--http", &elsewhere], b"{}", &variables);
    assert_eq!(reply, "{\"systemMessage\":\"elsewhere\"}\n");
}

#[test]
fn an_unusable_certificate_is_named() {
    let authority = Authority::new();
    authority.sign("service");
    fs::write(authority.path("empty.pem"), "").unwrap();
    let tls = |cert: &str, key: &str| {
        let [cert, key] = [cert, key].map(|file| authority.path(file));
        format!("[tls]\ncert = {cert:?}\nkey = {key:?}\n")
    };
    for (config, why) in [
        (tls("none.pem", "service.key"), "none.pem"),
        (
            tls("empty.pem", "service.key"),
            "empty.pem holds no certificate",
        ),
        (tls("service.pem", "ca.pem"), "ca.pem"),
        ("[tls]\ncert = 'a.pem'".to_owned(), "needs `tls.key` too"),
        (
            "[tls]\nclient_ca = 'a.pem'".to_owned(),
            "needs `tls.cert` too",
        ),
    ] {
        let here = directory(&[("unstuck.toml", &config)]);
        let refused = output(unstuck(here.path(), &["serve"], &[]));
        assert_eq!(refused.status.code(), Some(2));
        assert!(text(&refused.stderr).contains(why), "{why}: {refused:?}");
    }
}

#[tokio::test]
async fn a_stalled_handshake_is_closed_and_counted() {
    /// The first bytes of a ClientHello of 512 bytes.
    const HALF_A_HELLO: &[u8] = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03";
    let authority = Authority::new();
    authority.sign("service");
    let config = authority.config("") + "[limits]\nhandshake_secs_max = 5\n";
    let here = directory(&[("unstuck.toml", &config)]);
    let running = serve(here.path());
    let cases = [running.grpc, running.http].map(|side| [(side, &b""[..]), (side, HALF_A_HELLO)]);
    let mut sockets = Vec::new();
    for (side, bytes) in cases.into_iter().flatten() {
        let mut socket = within(TcpStream::connect(side)).await.unwrap();
        within(socket.write_all(bytes)).await.unwrap();
        sockets.push(socket);
    }
    for mut socket in sockets {
        // Closed or reset: both are an end.
        let _ = within(socket.read_to_end(&mut Vec::new())).await;
    }
    let series = "unstuck_rejected_total{reason=\"handshake_secs_max\"}";
    let cut = figure(running.http, &authority.pem("ca.pem"), "", series).await;
    assert_eq!(cut, 4);
}

#[test]
fn with_tls_and_tokens_any_address_may_be_served() {
    let authority = Authority::new();
    authority.sign("service");
    let tokens = Tokens::new(&["admin"]);
    let config = tokens.config() + &authority.config("");
    let here = directory(&[("unstuck.toml", &config)]);
    let open = [
        ("UNSTUCK__SERVER__GRPC", "0.0.0.0:0"),
        ("UNSTUCK__SERVER__HTTP", "0.0.0.0:0"),
    ];
    Running::start(unstuck(here.path(), &["serve"], &open));
}

#[tokio::test]
async fn certificates_and_tokens_are_reloaded_on_sighup() {
    let authority = Authority::new();
    authority.sign("service");
    let mut tokens = Tokens::new(&["viewer"]);
    let config = tokens.config() + &authority.config("");
    let here = directory(&[("unstuck.toml", &config)]);
    let running = serve(here.path());
    let before = connect_with(running.grpc, authority.client())
        .await
        .unwrap();
    // A certificate of another authority in the same files, and another token.
    let other = Authority::new();
    other.sign("service");
    for file in ["service.pem", "service.key"] {
        fs::copy(other.path(file), authority.path(file)).unwrap();
    }
    tokens.remove("viewer");
    tokens.add("viewer@b");
    running.child.signal("HUP");
    let after = within(async {
        loop {
            if let Some(channel) = connect_with(running.grpc, other.client()).await {
                break channel;
            }
        }
    });
    let mut sessions = SessionServiceClient::new(after.await);
    let request = tokens.request("viewer@b", pb::ListSessionsRequest::default());
    assert!(within(sessions.list_sessions(request)).await.is_ok());
    // Existing connections stay open.
    let mut sessions = SessionServiceClient::new(before);
    let request = tokens.request("viewer@b", pb::ListSessionsRequest::default());
    assert!(within(sessions.list_sessions(request)).await.is_ok());
    // A certificate that does not match its key is refused.
    authority.sign("service");
    fs::copy(other.path("service.key"), authority.path("service.key")).unwrap();
    running.child.signal("HUP");
    let (ca, token) = (other.pem("ca.pem"), tokens.of("viewer@b"));
    let series = "unstuck_config_reloads_total{result=\"refused\"}";
    within(async { while figure(running.http, &ca, token, series).await < 1 {} }).await;
    assert!(connect_with(running.grpc, other.client()).await.is_some());
}
