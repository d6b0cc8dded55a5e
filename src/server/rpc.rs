//! One table of facts about each rpc and HTTP route: who may call it, whether it
//! may be refused under load, and which permit its response needs.

use crate::{
    auth::{Access, TokenRole},
    telemetry::StreamRpc,
};

/// What admission must know of a path before the handler runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RpcSpec {
    pub path: &'static str,
    pub access: Access,
    pub load: LoadClass,
    pub response: ResponseKind,
}

/// How a call is treated while the service is busy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadClass {
    /// Runs at once and is never rejected: operator actions and probes must get
    /// through. Streams are limited by the permit of their response instead.
    Exempt,
    /// Counts against `limits.calls_max` and is queued by tenant under contention.
    Limited,
}

/// Which permit a call needs until its response has been sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseKind {
    /// A few kilobytes: no permit.
    Small,
    /// A page of up to 1 MiB. Only the client decides when it is read, so their
    /// number is bounded.
    Page,
    /// A stream of ours, one of `limits.open_streams_max`.
    Stream(StreamRpc),
    /// A stream of tonic's health service. Its clients need no token, so it has a
    /// separate quota.
    HealthStream,
    /// A stream of tonic's reflection service.
    ReflectionStream,
}

impl RpcSpec {
    /// Brokers may call it. Operators and probes call the others.
    pub fn is_for_brokers(&self) -> bool {
        matches!(self.access, Access::Roles(roles) if roles.contains(&TokenRole::Broker))
    }
}

const SEND: Access = Access::Roles(&[TokenRole::Broker, TokenRole::Admin]);
const READ: Access = Access::Roles(&[TokenRole::Viewer, TokenRole::Operator, TokenRole::Admin]);
const OPERATE: Access = Access::Roles(&[TokenRole::Operator, TokenRole::Admin]);
const ANY_TOKEN: Access = Access::Roles(&TokenRole::ALL);

/// Every rpc by its path, and every HTTP route that is no rpc.
#[rustfmt::skip]
pub const TABLE: &[RpcSpec] = &[
    row("/unstuck.v1.DetectionService/RecordEvent", SEND, LoadClass::Limited, ResponseKind::Small),
    row("/unstuck.v1.DetectionService/CheckCall", SEND, LoadClass::Limited, ResponseKind::Small),
    row("/unstuck.v1.DetectionService/StreamEvents", SEND, LoadClass::Exempt, ResponseKind::Stream(StreamRpc::StreamEvents)),
    row("/unstuck.v1.DetectionService/StreamDeltas", SEND, LoadClass::Exempt, ResponseKind::Stream(StreamRpc::StreamDeltas)),
    row("/unstuck.v1.SessionService/OpenSession", SEND, LoadClass::Limited, ResponseKind::Small),
    row("/unstuck.v1.SessionService/EndSession", SEND, LoadClass::Limited, ResponseKind::Small),
    row("/unstuck.v1.SessionService/ResetSession", OPERATE, LoadClass::Exempt, ResponseKind::Small),
    row("/unstuck.v1.SessionService/TerminateSession", OPERATE, LoadClass::Exempt, ResponseKind::Small),
    row("/unstuck.v1.SessionService/SnoozeSession", OPERATE, LoadClass::Exempt, ResponseKind::Small),
    row("/unstuck.v1.SessionService/RateVerdict", OPERATE, LoadClass::Exempt, ResponseKind::Small),
    row("/unstuck.v1.SessionService/GetSession", READ, LoadClass::Limited, ResponseKind::Page),
    row("/unstuck.v1.SessionService/ListSessions", READ, LoadClass::Limited, ResponseKind::Page),
    // Until its one request has arrived a watch is a unary call.
    row("/unstuck.v1.SessionService/WatchVerdicts", READ, LoadClass::Limited, ResponseKind::Stream(StreamRpc::WatchVerdicts)),
    row("/unstuck.v1.SessionService/ListVerdicts", READ, LoadClass::Limited, ResponseKind::Page),
    // Probes have no token, and the answer is one bit.
    row("/grpc.health.v1.Health/Check", Access::Public, LoadClass::Exempt, ResponseKind::Small),
    row("/grpc.health.v1.Health/Watch", Access::Public, LoadClass::Exempt, ResponseKind::HealthStream),
    row("/grpc.health.v1.Health/List", Access::Public, LoadClass::Exempt, ResponseKind::Small),
    row("/healthz", Access::Public, LoadClass::Exempt, ResponseKind::Small),
    row("/readyz", Access::Public, LoadClass::Exempt, ResponseKind::Small),
    // Reflection requires any valid token.
    row("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", ANY_TOKEN, LoadClass::Exempt, ResponseKind::ReflectionStream),
    row("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", ANY_TOKEN, LoadClass::Exempt, ResponseKind::ReflectionStream),
    // Sums over all tenants; no label names a session, a tenant or a text.
    row("/metrics", READ, LoadClass::Exempt, ResponseKind::Small),
];

const fn row(
    path: &'static str,
    access: Access,
    load: LoadClass,
    response: ResponseKind,
) -> RpcSpec {
    RpcSpec {
        path,
        access,
        load,
        response,
    }
}

/// A path that is not in the table: no role may call it.
const UNKNOWN: RpcSpec = row(
    "",
    Access::Roles(&[]),
    LoadClass::Limited,
    ResponseKind::Small,
);

/// The row of a path.
pub fn find(path: &str) -> &'static RpcSpec {
    TABLE
        .iter()
        .find(|row| row.path == path)
        .unwrap_or(&UNKNOWN)
}
