//! Metrics, traces, and notifications to systemd.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::unix::net::UnixDatagram,
    path::Path,
    sync::{Arc, Mutex},
};

use opentelemetry_proto::tonic::{
    collector::trace::v1::{
        ExportTraceServiceRequest, ExportTraceServiceResponse,
        trace_service_server::{TraceService, TraceServiceServer},
    },
    trace::v1::Span,
};
use tonic::{Request, Response, Status, async_trait, transport::server::TcpIncoming};
use unstuck::pb::{self, Action};

use crate::{
    harness::*,
    lifecycle::{Running, directory, send_in_every_field, unstuck},
};

// Metrics

/// So that two scrapes can be compared line by line.
#[tokio::test]
async fn the_series_are_in_the_same_order_in_every_scrape_and_process() {
    let series = async |server: &Server| -> Vec<String> {
        let page = within(get(format!("http://{}/metrics", server.http))).await;
        let page = within(page.unwrap().text()).await.unwrap();
        let values = page.lines().map(|line| line.rsplit_once(' '));
        values
            .map(|line| line.map_or(String::new(), |(series, _)| series.to_owned()))
            .collect()
    };
    let server = Server::start().await;
    let first = series(&server).await;
    server.play("s", ask("x").times(5)).await;
    assert_eq!(series(&server).await, first);
    assert_eq!(series(&Server::start().await).await, first);
}

/// A metric's type and the names of its labels.
type Shapes = BTreeMap<String, (String, BTreeSet<String>)>;

/// What the server exports.
fn exported(page: &str) -> Shapes {
    let mut shapes = Shapes::new();
    for line in page.lines().filter(|line| !line.is_empty()) {
        if let Some(of) = line.strip_prefix("# TYPE ") {
            let (name, kind) = of.split_once(' ').unwrap();
            let before = shapes.insert(name.to_owned(), (kind.to_owned(), BTreeSet::new()));
            assert_eq!(before, None, "{name} is declared twice");
        } else if !line.starts_with('#') {
            let (series, _) = line.rsplit_once(' ').unwrap();
            let (name, labels) = series.split_once('{').unwrap_or((series, ""));
            let suffixes = ["_bucket", "_sum", "_count"].into_iter();
            let name = suffixes
                .filter_map(|suffix| name.strip_suffix(suffix))
                .find(|name| shapes.contains_key(*name))
                .unwrap_or(name);
            let (_, known) = shapes.get_mut(name).expect(series);
            let names = labels.trim_end_matches('}').split(',');
            let names = names.filter_map(|label| label.split_once('='));
            known.extend(
                names
                    .map(|(label, _)| label.to_owned())
                    .filter(|l| l != "le"),
            );
        }
    }
    shapes
}

/// What docs/metrics.md says: a heading with the name, below it a line such as
/// ``counter, by `detector` and `action` ``.
fn documented(page: &str) -> Shapes {
    let sections = page.split("\n### `").skip(1);
    let shape = |section: &str| {
        let mut lines = section.lines();
        let name = lines.next().unwrap().trim_end_matches('`').to_owned();
        let line = lines.find(|line| !line.is_empty()).unwrap();
        let (kind, labels) = line.split_once(", by ").unwrap_or((line, ""));
        let labels = labels.split('`').skip(1).step_by(2);
        assert!(
            section.contains("```promql\n") && section.matches(name.as_str()).count() >= 1,
            "docs/metrics.md: {name} has no query"
        );
        (name, (kind.to_owned(), labels.map(str::to_owned).collect()))
    };
    sections.map(shape).collect()
}

#[tokio::test]
async fn the_page_of_metrics_lists_what_the_server_exports_and_nothing_else() {
    // Series of receivers exist only for configured receivers.
    let notify = "[[notify]]\nname = 'a'\nurl = 'https://example.com/hook'";
    let server = Server::with(notify).await;
    let page = within(get(format!("http://{}/metrics", server.http))).await;
    let exported = exported(&within(page.unwrap().text()).await.unwrap());
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/metrics.md");
    assert_eq!(documented(&fs::read_to_string(path).unwrap()), exported);
}

#[tokio::test]
async fn the_size_of_the_state_is_exported_beside_its_limit() {
    let server = Server::with("[limits]\nsessions_max = 7\nstate_bytes_max = 1_000_000").await;
    assert_eq!(server.metric("unstuck_sessions_max").await, 7.0);
    assert_eq!(server.metric("unstuck_state_bytes_max").await, 1e6);
    server.record(ask("colour").of("s")).await;
    // The metric is updated once a second.
    within(async {
        while server.metric("unstuck_state_bytes").await == 0.0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test]
async fn the_cost_of_a_loop_is_counted_in_fractions_of_a_dollar() {
    let server = Server::start().await;
    let call = ask("colour").costing(100, 10, 0.125).cached(90);
    server.play("s", call.times(3)).await;
    let cached = "unstuck_wasted_cached_tokens_total{detector=\"exact_repeat\"}";
    assert_eq!(server.metric(cached).await, 270.0);
    let wasted = "unstuck_wasted_cost_usd_total{detector=\"exact_repeat\"}";
    assert_eq!(server.metric(wasted).await, 0.375);
}

// Traces

/// A collector that stores the spans it receives.
#[derive(Clone, Default)]
struct Collector(Arc<Mutex<Vec<ExportTraceServiceRequest>>>);

#[async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        self.0.lock().unwrap().push(request.into_inner());
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

impl Collector {
    /// Its address, once it listens.
    async fn start(&self) -> String {
        let incoming = TcpIncoming::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = format!("http://{}", incoming.local_addr().unwrap());
        let service = TraceServiceServer::new(self.clone());
        let server = tonic::transport::Server::builder().add_service(service);
        tokio::spawn(server.serve_with_incoming(incoming));
        address
    }

    fn spans(&self) -> Vec<Span> {
        let received = self.0.lock().unwrap();
        let resources = received.iter().flat_map(|request| &request.resource_spans);
        let scopes = resources.flat_map(|resource| &resource.scope_spans);
        scopes.flat_map(|scope| scope.spans.clone()).collect()
    }
}

#[tokio::test]
async fn a_collector_gets_the_calls_as_spans_in_the_callers_trace() {
    let collector = Collector::default();
    let variables = [("UNSTUCK__TELEMETRY__OTLP", &*collector.start().await)];
    let directory = directory(&[]);
    let running = Running::start(unstuck(directory.path(), &["serve"], &variables));
    let server = running.server().await;
    let mut request = Request::new(pb::RecordEventRequest {
        event: Some(ask("colour").of("s")),
    });
    let parent = "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01";
    let metadata = request.metadata_mut();
    metadata.insert("traceparent", parent.parse().unwrap());
    within(server.detection.clone().record_event(request))
        .await
        .unwrap();
    send_in_every_field(&server, "MARKED-TEXT").await;
    let (status, _) = running.stop().await;
    assert!(status.success());

    let spans = collector.spans();
    let named = |name: &str| {
        let found = spans.iter().find(|span| span.name == name);
        found.unwrap_or_else(|| panic!("{name} is not in {spans:?}"))
    };
    let record = named("unstuck.v1.DetectionService/RecordEvent");
    assert_eq!(
        record.trace_id,
        0x0123456789abcdef0123456789abcdef_u128.to_be_bytes()
    );
    assert_eq!(record.parent_span_id, 0x0123456789abcdef_u64.to_be_bytes());
    let stream = named("unstuck.v1.DetectionService/StreamEvents");
    let message = named("StreamEvents message");
    assert!(message.parent_span_id.is_empty() && message.links[0].trace_id == stream.trace_id);
    let exported = format!("{spans:?}");
    assert!(exported.contains("session is looping") && exported.contains("similar_turns"));
    let received = format!("{:?}", collector.0.lock().unwrap());
    assert!(!received.contains("MARKED-TEXT"), "{received}");
}

#[tokio::test]
async fn an_unreachable_collector_does_no_harm() {
    let nobody_listens = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", nobody_listens.local_addr().unwrap());
    drop(nobody_listens);
    let directory = directory(&[]);
    let variables = [("UNSTUCK__TELEMETRY__OTLP", &*address)];
    let running = Running::start(unstuck(directory.path(), &["serve"], &variables));
    let results = running
        .server()
        .await
        .play("s", ask("colour").times(3))
        .await;
    assert_eq!(results[2].action(), Action::Warn);
    let (status, log) = running.stop().await;
    assert!(status.success(), "{log}");
}

// systemd

#[tokio::test]
async fn systemd_is_notified_of_ready_watchdog_and_stopping() {
    let directory = directory(&[]);
    let path = directory.path().join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(DEADLINE)).unwrap();
    let variables = [
        ("NOTIFY_SOCKET", path.to_str().unwrap()),
        ("WATCHDOG_USEC", "30000000"),
    ];
    let running = Running::start(unstuck(directory.path(), &["serve"], &variables));
    let next = || {
        let mut message = [0; 256];
        let length = socket.recv(&mut message).unwrap();
        String::from_utf8(message[..length].to_vec()).unwrap()
    };
    let mut states = BTreeSet::new();
    while states.len() < 2 {
        states.insert(next());
    }
    assert_eq!(
        states,
        ["READY=1\n", "WATCHDOG=1\n"].map(str::to_owned).into()
    );
    // The readiness probe agrees.
    let answer = get(format!("http://{}/readyz", running.http)).await;
    assert!(answer.unwrap().status().is_success());
    let stopped = running.stop().await;
    while next() != "STOPPING=1\n" {}
    assert!(stopped.0.success());
}
