use std::{
    future::{Future, poll_fn},
    sync::mpsc,
    task::{Context, Poll, Waker},
};

use futures_util::FutureExt;
use serde_json::json;
use tokio::task::yield_now;
use tokio_util::sync::CancellationToken;
use tonic::codegen::Service;

use super::*;
use crate::{
    auth::Auth,
    domain::{SessionId, Tenant},
    engine::{Engine, RunMode},
    server::scheduler::FairScheduler,
    telemetry::Metrics,
    testing,
};

/// The route's state, with one slot for all work.
fn hooks() -> (Arc<Hooks>, Arc<Engine>) {
    let config = testing::config(&[]);
    let (settings, limits) = (config.hooks.clone(), config.limits.clone());
    let auth = Arc::new(Auth::new(&config.auth).unwrap());
    let store = Arc::new(testing::store(&config));
    let engine = Arc::new(testing::engine(config, RunMode::Live, store.verdict_sink()));
    let metrics = Arc::new(Metrics::new([]).unwrap());
    let mut server = ServerContext::new(auth, metrics, limits, CancellationToken::new());
    server.scheduler = FairScheduler::new(1);
    let server = Arc::new(server);
    let deps = HookDependencies {
        api: Api::new(engine.clone(), store, server.clone()),
        server,
    };
    let hooks = Hooks::new(deps, settings, SystemTime::UNIX_EPOCH);
    (Arc::new(hooks), engine)
}

/// A batch of calls with large results in the session `s`.
fn batch(call_count: usize) -> Value {
    let calls = (0..call_count).map(|n| {
        json!({
            "tool_name": "Read",
            "tool_input": {"file_path": format!("/w/{n}.rs")},
            "tool_use_id": format!("t{n}"),
            "tool_response": format!("{n} of the lines\n").repeat(1_000),
        })
    });
    json!({
        "hook_event_name": "PostToolBatch",
        "session_id": "s",
        "tool_calls": calls.collect::<Vec<_>>(),
    })
}

#[tokio::test]
async fn a_hook_is_read_and_recorded_with_a_slot_of_the_scheduler() {
    let (hooks, engine) = hooks();
    // Another thread holds the only slot.
    let (held, is_held) = mpsc::channel();
    let (release, released) = mpsc::channel::<()>();
    let mut handle = hooks.deps.server.scheduler.handle(Tenant::default());
    let holder = std::thread::spawn(move || {
        let mut cx = Context::from_waker(Waker::noop());
        let _ = handle.poll(&mut cx, false, |_| {
            held.send(()).unwrap();
            Poll::Ready(released.recv())
        });
    });
    is_held.recv().unwrap();
    let mut router = Router::new()
        .route("/v1/hooks/{agent}", post(answer_hook))
        .with_state(hooks);
    let mut request = axum::extract::Request::post("/v1/hooks/claude-code")
        .header(header::CONTENT_TYPE, "application/json")
        .body(Body::from(batch(1).to_string()))
        .unwrap();
    request.extensions_mut().insert(None::<PeerAddress>);
    let mut answer = Box::pin(router.call(request));
    for _ in 0..100 {
        assert!((&mut answer).now_or_never().is_none());
        yield_now().await;
    }
    let session = SessionId::parse("s").unwrap();
    assert!(engine.get(&session).is_none(), "recorded without a slot");
    release.send(()).unwrap();
    assert_eq!(answer.await.unwrap().status(), StatusCode::OK);
    assert!(engine.get(&session).is_some());
    holder.join().unwrap();
}

#[tokio::test]
async fn the_events_of_a_hook_are_recorded_in_slices() {
    let (hooks, engine) = hooks();
    let scheduler = hooks.deps.server.scheduler.clone();
    let caller = Caller::anonymous();
    let hook = ReceivedHook {
        _permit: hooks.take_permit(&caller).unwrap(),
        body: HookBody {
            bytes: batch(100).to_string().into_bytes(),
            unread: UnreadBytes::new(hooks.unread.clone(), caller.tenant.clone()),
        },
        agent: ingest::find_agent("claude-code"),
        query: HookQuery::default(),
        caller,
        hooks,
    };
    let mut answering = Box::pin(scheduler.schedule(Tenant::default(), hook.answer()));
    let mut polls = 0;
    let answer = poll_fn(|cx| {
        polls += 1;
        answering.as_mut().poll(cx)
    });
    assert!(answer.await.is_ok());
    // One to read the payload. 100 calls take longer than one slice on any machine.
    assert!(polls > 2, "{polls} polls");
    let session = engine.get(&SessionId::parse("s").unwrap()).unwrap();
    assert_eq!(session.events, 100);
}

#[test]
fn a_query_has_the_event_the_session_and_labels() {
    let query = parse_query("event=preToolUse&session=a%2Fb&label.team=pay+ments&x=1&&=");
    assert_eq!((&*query.event, &*query.session), ("preToolUse", "a/b"));
    assert_eq!(query.labels.len(), 1);
    assert_eq!(query.labels["team"], "pay ments");
}

#[test]
fn a_reply_is_delayed_by_its_wait_but_not_for_the_command_nor_for_long() {
    let mut headers = HeaderMap::new();
    let delay = |headers: &HeaderMap, secs| reply_delay(headers, Some(Duration::from_secs(secs)));
    assert_eq!(reply_delay(&headers, None), Duration::ZERO);
    assert_eq!(delay(&headers, 1), Duration::from_secs(1));
    assert_eq!(delay(&headers, 60), HOLD_TIME_MAX);
    headers.insert(COMMAND, HeaderValue::from_static("1"));
    assert_eq!(delay(&headers, 1), Duration::ZERO);
}

#[test]
fn only_json_is_accepted() {
    let check = |kind: &'static str| {
        let headers = [(header::CONTENT_TYPE, HeaderValue::from_static(kind))];
        require_json(&headers.into_iter().collect()).is_ok()
    };
    assert!(check("application/json"));
    assert!(check("Application/JSON; charset=utf-8"));
    for kind in [
        "",
        "text/plain",
        "application/x-www-form-urlencoded",
        "application/jsonp",
    ] {
        assert!(!check(kind), "{kind}");
    }
}
