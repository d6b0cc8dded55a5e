//! Spans of the service, sent to an OpenTelemetry collector.

use std::time::Duration;

use opentelemetry::{
    KeyValue,
    propagation::{Extractor, TextMapPropagator},
    trace::TracerProvider,
};
use opentelemetry_otlp::{ExporterBuildError, SpanExporter, WithExportConfig};
use opentelemetry_sdk::{Resource, propagation::TraceContextPropagator, trace::SdkTracerProvider};
use serde::Deserialize;
use thiserror::Error;
use tonic::codegen::http::{HeaderMap, Request, Uri};
use tracing::{Metadata, Span, debug_span, field};
use tracing_opentelemetry::OpenTelemetrySpanExt;
use tracing_subscriber::{Layer, Registry, filter::filter_fn};

use super::metrics::StreamRpc;

/// How long the last spans may take to be sent at shutdown. An unreachable collector
/// must not delay the exit.
const FLUSH_DEADLINE: Duration = Duration::from_secs(2);

/// The longest path that becomes a span's name: twice the longest of our API.
const PATH_BYTES_MAX: usize = 128;

/// `[telemetry]`
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Settings {
    pub otlp: String,
}

impl Settings {
    pub fn is_on(&self) -> bool {
        !self.otlp.is_empty()
    }

    /// Returns why the address cannot be used.
    pub fn validate(&self) -> Result<(), &'static str> {
        const EXPECTED: &str = "must be empty or like http://127.0.0.1:4317, without TLS: send to a \
                              collector on the same host";
        if !self.is_on() {
            return Ok(());
        }
        let address: Uri = self.otlp.parse().map_err(|_| EXPECTED)?;
        let is_plain_http = address.scheme_str() == Some("http") && address.host().is_some();
        is_plain_http.then_some(()).ok_or(EXPECTED)
    }
}

#[derive(Debug, Error)]
#[error("cannot send traces to telemetry.otlp: {0}")]
pub struct TracesError(#[from] ExporterBuildError);

/// Sends spans to a collector; does nothing if no collector is configured.
pub struct Traces(Option<SdkTracerProvider>);

impl Traces {
    /// Must be called within a runtime, because the connection is a task of it.
    pub fn new(settings: &Settings) -> Result<Self, TracesError> {
        if !settings.is_on() {
            return Ok(Self(None));
        }
        let exporter = SpanExporter::builder()
            .with_tonic()
            .with_endpoint(&settings.otlp)
            .build()?;
        let version = KeyValue::new("service.version", env!("CARGO_PKG_VERSION"));
        let resource = Resource::builder()
            .with_service_name("unstuck")
            .with_attribute(version)
            .build();
        Ok(Self(Some(
            SdkTracerProvider::builder()
                .with_batch_exporter(exporter)
                .with_resource(resource)
                .build(),
        )))
    }

    pub(super) fn layer(&self) -> Option<impl Layer<Registry> + Send + Sync + 'static> {
        let tracer = self.0.as_ref()?.tracer("unstuck");
        let layer = tracing_opentelemetry::layer().with_tracer(tracer);
        Some(layer.with_filter(filter_fn(is_own_span)))
    }

    /// Sends the remaining spans.
    pub fn shutdown(self) {
        let Some(provider) = self.0 else {
            return;
        };
        if let Err(error) = provider.shutdown_with_timeout(FLUSH_DEADLINE) {
            tracing::warn!(%error, "cannot send the last traces");
        }
    }
}

/// Only spans and log lines of this crate, which contain no agent text. Those of the
/// transport, one per frame, cost more than they are worth.
fn is_own_span(metadata: &Metadata<'_>) -> bool {
    metadata.target().starts_with("unstuck") && *metadata.level() <= tracing::Level::DEBUG
}

/// The span of a call. The span of a stream lasts as long as the stream. It continues
/// the caller's trace if the request's headers name one.
pub fn call_span(request: &Request<()>) -> Span {
    let (service, method) = split_rpc_path(request.uri().path());
    let span = debug_span!(
        "call",
        otel.name = format!("{service}/{method}"),
        otel.kind = "server",
        rpc.system = "grpc",
        rpc.service = service,
        rpc.method = method,
    );
    let parent = TraceContextPropagator::new().extract(&HeaderExtractor(request.headers()));
    // Fails if the span is not recorded, which needs no parent.
    let _ = span.set_parent(parent);
    span
}

/// The span of one message on a stream. It starts a new trace, because a stream may
/// last for days, and links to the stream's span.
pub fn message_span(rpc: StreamRpc) -> Span {
    let span = debug_span!(
        parent: None,
        "message",
        otel.name = field::Empty,
        rpc.method = rpc.name()
    );
    if !span.is_disabled() {
        span.record("otel.name", format!("{} message", rpc.name()));
        span.follows_from(Span::current());
    }
    span
}

/// Splits a path into service and method. The caller chooses the path, so only what
/// looks like a gRPC path is used.
fn split_rpc_path(path: &str) -> (&str, &str) {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || "._/".contains(c);
    path.strip_prefix('/')
        .filter(|path| path.len() <= PATH_BYTES_MAX && path.chars().all(is_allowed))
        .and_then(|path| path.split_once('/'))
        .unwrap_or(("unknown", "unknown"))
}

struct HeaderExtractor<'a>(&'a HeaderMap);

impl Extractor for HeaderExtractor<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key)?.to_str().ok()
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(|key| key.as_str()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(otlp: &str, is_valid: bool) {
        let settings = Settings {
            otlp: otlp.to_owned(),
        };
        assert_eq!(settings.validate().is_ok(), is_valid, "{otlp:?}");
    }

    #[test]
    fn the_collector_address_is_empty_or_plain_http() {
        check("", true);
        check("http://127.0.0.1:4317", true);
        check("http://collector.observability:4317/", true);
        check("https://collector:4317", false);
        check("127.0.0.1:4317", false);
        check("not an address", false);
    }

    #[test]
    fn a_path_that_is_not_a_grpc_path_becomes_unknown() {
        let record = "/unstuck.v1.DetectionService/RecordEvent";
        assert_eq!(
            split_rpc_path(record),
            ("unstuck.v1.DetectionService", "RecordEvent")
        );
        for path in [
            "",
            "/",
            "/no-method",
            "/a b/c",
            "/a/\u{202e}",
            &format!("/a/{}", "b".repeat(200)),
        ] {
            assert_eq!(split_rpc_path(path), ("unknown", "unknown"), "{path:?}");
        }
    }

    #[test]
    fn without_a_collector_there_is_no_layer() {
        let traces = Traces::new(&Settings::default()).unwrap();
        assert!(traces.layer().is_none());
    }
}
