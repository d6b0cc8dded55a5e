//! The HTTP API of the console, as a browser or a program uses it. The page itself is
//! tested in a browser: `tests/console/`.

use reqwest::{RequestBuilder, Response, StatusCode};
use serde_json::{Value, json};
use unstuck::pb::{self, Action};

use crate::{
    auth::Tokens,
    harness::{Build, Server, ask, batch, config, turn, within},
};

pub fn client() -> reqwest::Client {
    unstuck::notify::install_crypto_provider();
    reqwest::Client::new()
}

fn post(server: &Server, method: &str, body: &Value) -> RequestBuilder {
    client()
        .post(format!("http://{}/api/{method}", server.http))
        .header("content-type", "application/json")
        .body(body.to_string())
}

pub async fn send(request: RequestBuilder) -> (StatusCode, Value) {
    let response = within(request.send()).await.unwrap();
    let status = response.status();
    let text = within(response.text()).await.unwrap();
    (status, serde_json::from_str(&text).unwrap_or(json!(text)))
}

pub async fn post_json(server: &Server, method: &str, body: Value) -> Value {
    let (status, answer) = send(post(server, method, &body)).await;
    assert_eq!(status, 200, "{answer}");
    answer
}

/// The status and the machine-readable reason.
async fn refused(server: &Server, method: &str, body: Value) -> (u16, String) {
    let (status, answer) = send(post(server, method, &body)).await;
    let reason = answer["reason"].as_str().unwrap_or_default().to_owned();
    (status.as_u16(), reason)
}

async fn page(server: &Server, path: &str, headers: &[(&str, &str)]) -> Response {
    let mut request = client().get(format!("http://{}{path}", server.http));
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    within(request.send()).await.unwrap()
}

// The page

#[tokio::test]
async fn every_view_has_an_address_and_a_content_security_policy() {
    let server = Server::start().await;
    for path in [
        "/",
        "/session?id=a",
        "/verdict?id=a",
        "/feed",
        "/audit",
        "/policy",
    ] {
        let page = page(&server, path, &[]).await;
        assert_eq!(page.status(), 200, "{path}");
        let header = |name: &str| page.headers()[name].to_str().unwrap().to_owned();
        assert_eq!(header("content-type"), "text/html; charset=utf-8");
        let policy = header("content-security-policy");
        assert!(policy.starts_with("default-src 'none'; script-src 'self';"));
        assert!(!policy.contains("unsafe"), "{policy}");
        assert_eq!(header("x-content-type-options"), "nosniff");
        assert_eq!(header("referrer-policy"), "no-referrer");
        let text = within(page.text()).await.unwrap();
        assert!(text.contains(r#"<script type="module" src="/app.js">"#));
        assert!(!text.contains("style="), "a style that the policy forbids");
    }
    assert_eq!(page(&server, "/app.jsx", &[]).await.status(), 404);
}

#[tokio::test]
async fn every_file_of_the_page_is_served_and_cacheable() {
    let server = Server::start().await;
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/console/page");
    for file in std::fs::read_dir(folder).unwrap() {
        let name = file.unwrap().file_name().into_string().unwrap();
        if name == "index.html" {
            continue;
        }
        let path = format!("/{name}");
        let first = page(&server, &path, &[]).await;
        assert_eq!(
            first.status(),
            200,
            "add {name} to FILES in src/console/files.rs"
        );
        let tag = first.headers()["etag"].to_str().unwrap().to_owned();
        let second = page(&server, &path, &[("if-none-match", &tag)]).await;
        assert_eq!(second.status(), 304);
    }
}

#[tokio::test]
async fn an_unknown_host_name_gets_only_metrics_and_probes() {
    let server = Server::with("[server]\nconsole_hosts = [\"unstuck.example.com\"]").await;
    let evil = [("host", "evil.example")];
    assert_eq!(page(&server, "/", &evil).await.status(), 421);
    assert_eq!(page(&server, "/app.js", &evil).await.status(), 421);
    let call = post(&server, "fleet", &json!({})).header("host", "evil.example");
    assert_eq!(send(call).await.0, 421);
    for path in ["/metrics", "/healthz", "/readyz"] {
        assert_eq!(page(&server, path, &evil).await.status(), 200, "{path}");
    }
    let known = [("host", "unstuck.example.com")];
    assert_eq!(page(&server, "/", &known).await.status(), 200);
}

#[tokio::test]
async fn a_page_of_another_origin_cannot_call() {
    let server = Server::start().await;
    server.play("s", ask("x").times(1)).await;
    let body = json!({"session_id": "s", "reason": "a page of somebody else's"});
    let call = || post(&server, "terminate_session", &body);
    for (name, value) in [
        ("origin", "http://evil.example"),
        ("origin", "null"),
        ("sec-fetch-site", "cross-site"),
        ("sec-fetch-site", "same-site"),
    ] {
        assert_eq!(send(call().header(name, value)).await.0, 403, "{value}");
    }
    // A form can send this without a CORS preflight.
    let form = client().post(format!("http://{}/api/terminate_session", server.http));
    let form = form
        .header("content-type", "text/plain")
        .body(body.to_string());
    assert_eq!(send(form).await.0, 415);
    assert!(server.get("s").await.unwrap().termination.is_none());
}

// The fleet

fn ids(fleet: &Value) -> String {
    let sessions = fleet["sessions"].as_array().unwrap().iter();
    let ids = sessions.map(|session| session["session_id"].as_str().unwrap());
    ids.collect::<Vec<_>>().join(" ")
}

async fn fleet_of_five() -> Server {
    let server = Server::start().await;
    server.open("calm", "", &[("team", "Blue")]).await.unwrap();
    server.play("calm", ask("x").times(1)).await;
    server.play("warned", ask("x").times(3)).await;
    server
        .open("blocked", "", &[("team", "red")])
        .await
        .unwrap();
    server.play("blocked", ask("x").times(4)).await;
    server.play("over", ask("x").times(1)).await;
    server.terminate("over").await;
    server.play("done", ask("x").times(1)).await;
    server.end("done").await.unwrap();
    server
}

#[tokio::test]
async fn the_fleet_is_sorted_by_severity() {
    let server = fleet_of_five().await;
    let fleet = post_json(&server, "fleet", json!({})).await;
    assert_eq!(ids(&fleet), "blocked warned calm over done");
    let counts = json!({"active": 1, "looping": 2, "terminated": 1, "ended": 1, "quarantined": 0});
    assert_eq!(fleet["counts"], counts);
    let worst = &fleet["sessions"][0];
    assert_eq!(worst["status"], "SESSION_STATUS_LOOPING");
    assert_eq!(worst["last_verdicts"][0]["action"], "ACTION_BLOCK");
    assert_eq!(worst["last_verdicts"].as_array().unwrap().len(), 1);
    assert!(worst["trend_samples"].as_array().unwrap().len() == 4);
    // A shadow verdict has a lower severity.
    server.snooze("blocked", 60_000).await.unwrap();
    server.play("blocked", ask("y").times(3)).await;
    let fleet = post_json(&server, "fleet", json!({})).await;
    assert_eq!(ids(&fleet), "warned blocked calm over done");
}

#[tokio::test]
async fn the_fleet_is_filtered_by_the_query() {
    let server = fleet_of_five().await;
    for (question, expected) in [
        (json!({"status": "looping"}), "blocked warned"),
        (json!({"search": "LO"}), "blocked"),
        (json!({"search": "team=blue"}), "calm"),
        (json!({"search": "bl red"}), "blocked"),
        (json!({"search": "bl green"}), ""),
        (json!({"detector": "exact_repeat"}), "blocked warned"),
        (json!({"detector": "cycle"}), ""),
        (json!({"min_action": "block"}), "blocked over"),
        (json!({"limit": 2}), "blocked warned"),
        (json!({"limit": 2, "skip": 2}), "calm over"),
        (json!({"skip": 9}), ""),
    ] {
        let fleet = post_json(&server, "fleet", question.clone()).await;
        assert_eq!(ids(&fleet), expected, "{question}");
    }
    // The counts include all matches, whatever status is selected.
    let fleet = post_json(&server, "fleet", json!({"status": "ended", "search": "o"})).await;
    assert_eq!(ids(&fleet), "done");
    let counts = json!({"active": 0, "looping": 1, "terminated": 1, "ended": 1, "quarantined": 0});
    assert_eq!(fleet["counts"], counts);
}

#[tokio::test]
async fn an_invalid_fleet_query_is_refused() {
    let server = Server::start().await;
    for (question, reason) in [
        (json!({"status": "stuck"}), "FIELD_INVALID"),
        (json!({"min_action": "shout"}), "FIELD_INVALID"),
        (json!({"skip": 20_001}), "FIELD_INVALID"),
        (json!({"search": "x".repeat(513)}), "FIELD_INVALID"),
        (json!({"sort": "id"}), "JSON_INVALID"),
        (json!("looping"), "JSON_INVALID"),
    ] {
        let answer = refused(&server, "fleet", question.clone()).await;
        assert_eq!(answer, (400, reason.to_owned()), "{question}");
    }
    let long = json!({"search": "x".repeat(20_000)});
    assert_eq!(refused(&server, "fleet", long).await.0, 413);
}

// Actions

#[tokio::test]
async fn a_console_action_equals_the_api_call() {
    let server = Server::start().await;
    let mut stream = server.events().await;
    stream.ask(batch(1, [turn("hm").of("s")])).await;
    let body = json!({"session_id": "s", "reason": "it goes in circles"});
    let call = post(&server, "terminate_session", &body).header("unstuck-operator", "mia");
    let (status, answer) = send(call).await;
    assert_eq!(status, 200);
    let verdict = &answer["verdict"];
    assert_eq!(verdict["action"], "ACTION_TERMINATE");
    assert_eq!(verdict["operator"], "mia");
    let push = stream.receive().await;
    assert_eq!(push.sequence, 0);
    assert_eq!(push.results[0].action(), Action::Terminate);
    let session = post_json(&server, "get_session", json!({"session_id": "s"})).await;
    assert_eq!(session["session"]["status"], "SESSION_STATUS_TERMINATED");
    let log = post_json(&server, "list_verdicts", json!({"newest_first": true})).await;
    assert_eq!(log["verdicts"][0]["reason"], "it goes in circles");
}

/// A link, a preview or a prefetch of a browser is a GET.
#[tokio::test]
async fn no_action_is_a_get_request() {
    let server = Server::start().await;
    for method in [
        "rate_verdict",
        "terminate_session",
        "reset_session",
        "snooze_session",
    ] {
        let answer = page(&server, &format!("/api/{method}"), &[]).await;
        assert_eq!(answer.status(), 405, "{method}");
    }
}

#[tokio::test]
async fn a_refused_action_names_the_reason() {
    let server = Server::start().await;
    server.play("s", ask("x").times(1)).await;
    server.terminate("s").await;
    let snooze = |id: &str| json!({"session_id": id, "reason": "busy", "duration": "60s"});
    for (method, body, expected) in [
        ("snooze_session", snooze("s"), (409, "SESSION_TERMINATED")),
        ("snooze_session", snooze("t"), (404, "SESSION_NOT_FOUND")),
        (
            "reset_session",
            json!({"session_id": "s"}),
            (400, "FIELD_REQUIRED"),
        ),
        (
            "get_session",
            json!({"session_id": "a b"}),
            (400, "SESSION_ID_INVALID"),
        ),
    ] {
        let (status, reason) = refused(&server, method, body).await;
        assert_eq!((status, &*reason), expected, "{method}");
    }
}

// Live

/// Reads server-sent events one by one.
struct Events {
    response: Response,
    rest: String,
}

impl Events {
    async fn watch(server: &Server, body: Value, last: Option<&str>) -> Self {
        let mut request = post(server, "watch_verdicts", &body);
        if let Some(last) = last {
            request = request.header("last-event-id", last);
        }
        let response = within(request.send()).await.unwrap();
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        let rest = String::new();
        Self { response, rest }
    }

    /// The event's name and id.
    async fn next(&mut self) -> (String, String) {
        let (event, rest) = loop {
            if let Some((event, rest)) = self.rest.split_once("\n\n") {
                break (event.to_owned(), rest.to_owned());
            }
            let chunk = within(self.response.chunk()).await.unwrap().unwrap();
            self.rest.push_str(std::str::from_utf8(&chunk).unwrap());
        };
        self.rest = rest;
        let field = |name: &str| {
            let mut lines = event.lines();
            let value = lines.find_map(|line| line.strip_prefix(name));
            value.unwrap_or_default().trim().to_owned()
        };
        (field("event:"), field("id:"))
    }
}

fn live() -> (String, String) {
    ("live".to_owned(), String::new())
}

#[tokio::test]
async fn a_watcher_gets_past_then_live_verdicts_and_resumes_after_the_last_id() {
    let server = Server::start().await;
    server.play("s", ask("x").times(4)).await;
    let mut events = Events::watch(&server, json!({}), None).await;
    let (first, second) = (events.next().await, events.next().await);
    assert_eq!((&*first.0, &*second.0), ("verdict", "verdict"));
    assert!(first.1 < second.1, "ids sort by time");
    assert_eq!(events.next().await, live());
    let ended = server.terminate("s").await;
    let third = ("verdict".to_owned(), ended.verdict_id);
    assert_eq!(events.next().await, third);

    let mut resumed = Events::watch(&server, json!({}), Some(&first.1)).await;
    assert_eq!(resumed.next().await, second);
    assert_eq!(resumed.next().await, third);
    assert_eq!(resumed.next().await, live());

    let operators = json!({"detector": "operator"});
    let mut filtered = Events::watch(&server, operators, None).await;
    assert_eq!(filtered.next().await, third);
    assert_eq!(filtered.next().await, live());
}

#[tokio::test]
async fn a_watcher_that_resumes_too_late_gets_an_error() {
    let server = Server::start().await;
    let old = json!({"after_verdict_id": "00000000-0000-7000-8000-000000000000"});
    let answer = refused(&server, "watch_verdicts", old).await;
    assert_eq!(answer, (400, "VERDICT_NOT_RETAINED".to_owned()));
    let none = json!({"after_verdict_id": "x"});
    let answer = refused(&server, "watch_verdicts", none).await;
    assert_eq!(answer, (400, "FIELD_INVALID".to_owned()));
}

#[tokio::test]
async fn watching_pages_are_limited() {
    let server = Server::with("[limits]\nconsole_watchers_max = 1").await;
    let mut first = Events::watch(&server, json!({}), None).await;
    assert_eq!(first.next().await, live());
    let answer = refused(&server, "watch_verdicts", json!({})).await;
    assert_eq!(answer, (503, "CONSOLE_WATCHERS_MAX".to_owned()));
    let series = "unstuck_rejected_total{reason=\"console_watchers_max\"}";
    assert_eq!(server.metric(series).await, 1.0);
    // A closed page releases its permit.
    drop(first);
    let again = async || {
        let request = post(&server, "watch_verdicts", &json!({}));
        within(request.send()).await.unwrap().status()
    };
    within(async { while again().await == 503 {} }).await;
}

// Policy

#[tokio::test]
async fn the_policy_view_shows_actions_beside_shadow_actions() {
    let server = Server::with("[profiles.trial]\nmode = \"shadow\"").await;
    server.play("s", ask("x").times(4)).await;
    server.open("t", "trial", &[]).await.unwrap();
    server.play("t", ask("x").times(3)).await;
    let policy = post_json(&server, "policy", json!({})).await;
    let profile = |name: &str| {
        let mut all = policy["profiles"].as_array().unwrap().iter();
        let found = all.find(|profile| profile["name"] == name);
        found.unwrap().clone()
    };
    let detector = |profile: &Value| {
        let mut all = profile["detectors"].as_array().unwrap().iter();
        let found = all.find(|detector| detector["name"] == "exact_repeat");
        found.unwrap().clone()
    };
    let (enforced, trial) = (profile("default"), profile("trial"));
    assert_eq!(
        (&enforced["shadow"], &trial["shadow"]),
        (&json!(false), &json!(true))
    );
    assert_eq!(
        detector(&enforced)["verdicts"],
        json!({"warn": 1, "block": 1})
    );
    assert_eq!(detector(&enforced)["shadow_verdicts"], json!({}));
    assert_eq!(detector(&trial)["verdicts"], json!({}));
    assert_eq!(detector(&trial)["shadow_verdicts"], json!({"warn": 1}));
    assert_eq!(detector(&trial)["soft"], "warn");
    assert!(detector(&trial)["rule"].as_str().unwrap().len() > 10);
    let names = config("").profiles.detector_names().count();
    assert_eq!(enforced["detectors"].as_array().unwrap().len(), names);
    let mut last_hour = post_json(&server, "policy", json!({"hours": 1})).await;
    assert_eq!(last_hour["hours"].take(), 1);
    assert_eq!(last_hour["profiles"], policy["profiles"]);
    let invalid = (400, "FIELD_INVALID".to_owned());
    for hours in [0, 13] {
        let answer = refused(&server, "policy", json!({"hours": hours})).await;
        assert_eq!(answer, invalid);
    }
}

#[tokio::test]
async fn verdicts_per_minute_count_each_verdict_once() {
    let server = Server::start().await;
    let verdict_count = async || {
        let response = post_json(&server, "verdicts_per_minute", json!({})).await;
        let plot = response["detectors"]["exact_repeat"].as_array().cloned();
        let plot = plot.unwrap_or_default();
        plot.iter().filter_map(Value::as_u64).sum::<u64>()
    };
    assert_eq!(verdict_count().await, 0);
    server.play("s", ask("x").times(4)).await;
    within(async { while verdict_count().await < 2 {} }).await;
    server.play("t", ask("x").times(3)).await;
    within(async { while verdict_count().await < 3 {} }).await;
    assert_eq!(verdict_count().await, 3);
}

// Roles

fn with_token(request: RequestBuilder, tokens: &Tokens, name: &str) -> RequestBuilder {
    request.bearer_auth(tokens.of(name))
}

#[tokio::test]
async fn the_page_and_the_service_both_check_the_role() {
    let tokens = Tokens::new(&["broker", "viewer", "operator", "admin"]);
    let server = Server::with(&tokens.config()).await;
    // The page itself needs no token; its data does.
    assert_eq!(page(&server, "/", &[]).await.status(), 200);
    for call in [
        "me",
        "fleet",
        "verdicts_per_minute",
        "policy",
        "precision",
        "watch_verdicts",
    ] {
        let (status, reason) = refused(&server, call, json!({})).await;
        assert_eq!((status, &*reason), (401, "TOKEN_REQUIRED"), "{call}");
        let request = with_token(post(&server, call, &json!({})), &tokens, "broker");
        assert_eq!(send(request).await.0, 403, "{call}");
    }
    for (name, may) in [
        ("viewer", json!([])),
        ("operator", json!(["terminate", "snooze", "reset", "rate"])),
        ("admin", json!(["terminate", "snooze", "reset", "rate"])),
    ] {
        let request = with_token(post(&server, "me", &json!({})), &tokens, name);
        let (_, mut me) = send(request).await;
        let resume = me
            .as_object_mut()
            .unwrap()
            .remove("resume_commands")
            .unwrap();
        assert_eq!(resume["claude-code"], "claude --resume {}");
        let expected = json!({"name": name, "role": name, "tenant": "default", "permissions": may});
        assert_eq!(me, expected);
    }
    let body = json!({"session_id": "s", "reason": "enough"});
    let acts = ["terminate_session", "reset_session", "snooze_session"];
    for call in acts {
        let request = with_token(post(&server, call, &body), &tokens, "viewer");
        let (status, answer) = send(request).await;
        assert_eq!(status, 403, "{call}");
        assert_eq!(answer["message"], "the role viewer may not do this");
    }
    let request = post(&server, "terminate_session", &body).header("unstuck-operator", "mia");
    let (_, answer) = send(with_token(request, &tokens, "operator")).await;
    assert_eq!(
        answer["verdict"]["operator"], "operator",
        "the token's name"
    );
}

#[tokio::test]
async fn a_verdict_is_found_by_its_id_within_its_tenant() {
    let tokens = Tokens::new(&["admin@blue", "viewer@blue", "viewer@red"]);
    let server = Server::with(&tokens.config()).await;
    let mut detection = server.detection.clone();
    let mut id = String::new();
    for _ in 0..3 {
        let event = Some(ask("x").of("s"));
        let request = tokens.request("admin@blue", pb::RecordEventRequest { event });
        let answer = within(detection.record_event(request)).await.unwrap();
        let result = answer.into_inner().result.unwrap();
        id = result.verdict.unwrap_or_default().verdict_id;
    }
    let call = async |name: &str, call: &str, body: Value| {
        send(with_token(post(&server, call, &body), &tokens, name)).await
    };
    let query = || json!({"verdict_id": id});
    let (_, found) = call("viewer@blue", "verdict", query()).await;
    assert_eq!(found["verdict"]["detector"], "exact_repeat");
    assert_eq!(found["verdict"]["feedback"], Value::Null);
    assert_ne!(found["verdict"]["pattern"], "");
    let (status, _) = call("viewer@red", "verdict", query()).await;
    assert_eq!(status, 404);
    let (status, _) = call("viewer@blue", "verdict", json!({"verdict_id": "x"})).await;
    assert_eq!(status, 404);
    // Who may look may not rate.
    let rating = || json!({"verdict_id": id, "rating": "RATING_RIGHT"});
    let (status, _) = call("viewer@blue", "rate_verdict", rating()).await;
    assert_eq!(status, 403);
    let (status, rated) = call("admin@blue", "rate_verdict", rating()).await;
    assert_eq!(status, 200, "{rated}");
    let (_, found) = call("viewer@blue", "verdict", query()).await;
    assert_eq!(found["verdict"]["feedback"]["rating"], "RATING_RIGHT");
}

#[tokio::test]
async fn nothing_of_another_tenant_is_shown() {
    let tokens = Tokens::new(&["admin@blue", "viewer@blue", "viewer@red"]);
    let server = Server::with(&tokens.config()).await;
    let mut detection = server.detection.clone();
    for _ in 0..3 {
        let event = Some(ask("x").of("s"));
        let request = tokens.request("admin@blue", pb::RecordEventRequest { event });
        within(detection.record_event(request)).await.unwrap();
    }
    let shown = async |name: &str, call: &str| {
        let (status, answer) =
            send(with_token(post(&server, call, &json!({})), &tokens, name)).await;
        assert_eq!(status, 200, "{call}");
        answer
    };
    let verdicts = async |name: &str| {
        let policy = shown(name, "policy").await;
        policy["profiles"][0]["detectors"]
            .to_string()
            .contains("\"warn\":1")
    };
    assert_eq!(ids(&shown("viewer@blue", "fleet").await), "s");
    within(async { while !verdicts("viewer@blue").await {} }).await;
    assert!(
        shown("viewer@blue", "verdicts_per_minute").await["detectors"]["exact_repeat"].is_array()
    );
    assert_eq!(ids(&shown("viewer@red", "fleet").await), "");
    assert_eq!(shown("viewer@red", "fleet").await["counts"]["looping"], 0);
    assert!(!verdicts("viewer@red").await);
    assert_eq!(
        shown("viewer@red", "verdicts_per_minute").await["detectors"],
        json!({})
    );
    let request = post(&server, "watch_verdicts", &json!({}));
    let response = with_token(request, &tokens, "viewer@red").send();
    let mut events = Events {
        response: within(response).await.unwrap(),
        rest: String::new(),
    };
    assert_eq!(events.next().await, live(), "nothing was missed by red");
}

#[tokio::test]
async fn a_page_whose_token_is_revoked_receives_no_more_verdicts() {
    let mut tokens = Tokens::new(&["viewer", "admin"]);
    let server = Server::with(&tokens.config()).await;
    let request = post(&server, "watch_verdicts", &json!({}));
    let response = with_token(request, &tokens, "viewer").send();
    let mut events = Events {
        response: within(response).await.unwrap(),
        rest: String::new(),
    };
    assert_eq!(events.next().await, live());
    tokens.remove("viewer");
    assert_eq!(events.next().await.0, "end");
}
