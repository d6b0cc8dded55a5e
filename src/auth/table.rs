//! Who may do what.

use std::{fmt, str::FromStr};

use serde::Deserialize;

/// What a token is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Sends events, and hears what is to be done.
    Broker,
    /// Looks on.
    Viewer,
    /// Looks on, and ends, resets, snoozes sessions.
    Operator,
    /// May do all.
    Admin,
}

impl Role {
    pub const ALL: [Self; 4] = [Self::Broker, Self::Viewer, Self::Operator, Self::Admin];

    pub fn name(self) -> &'static str {
        match self {
            Self::Broker => "broker",
            Self::Viewer => "viewer",
            Self::Operator => "operator",
            Self::Admin => "admin",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Role {
    type Err = &'static str;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let known = Self::ALL.into_iter().find(|role| role.name() == name);
        known.ok_or("a role is broker, viewer, operator or admin")
    }
}

/// What must be shown before something is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Anybody may.
    Nothing,
    /// Whoever has a token of one of these roles.
    Role(&'static [Role]),
}

const SENDING: Need = Need::Role(&[Role::Broker, Role::Admin]);
const LOOKING: Need = Need::Role(&[Role::Viewer, Role::Operator, Role::Admin]);
const ACTING: Need = Need::Role(&[Role::Operator, Role::Admin]);
const ANY_TOKEN: Need = Need::Role(&Role::ALL);

/// Streams of services that are not ours.
pub const HEALTH_WATCH: &str = "/grpc.health.v1.Health/Watch";
pub const REFLECTION: [&str; 2] = [
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
];

/// Every rpc by its path, and every page of the HTTP side that is no rpc. What
/// is not here nobody may do.
pub const TABLE: &[(&str, Need)] = &[
    ("/unstuck.v1.DetectionService/RecordEvent", SENDING),
    ("/unstuck.v1.DetectionService/StreamEvents", SENDING),
    ("/unstuck.v1.DetectionService/StreamDeltas", SENDING),
    ("/unstuck.v1.SessionService/OpenSession", SENDING),
    ("/unstuck.v1.SessionService/EndSession", SENDING),
    ("/unstuck.v1.SessionService/ResetSession", ACTING),
    ("/unstuck.v1.SessionService/TerminateSession", ACTING),
    ("/unstuck.v1.SessionService/SnoozeSession", ACTING),
    ("/unstuck.v1.SessionService/GetSession", LOOKING),
    ("/unstuck.v1.SessionService/ListSessions", LOOKING),
    ("/unstuck.v1.SessionService/WatchVerdicts", LOOKING),
    ("/unstuck.v1.SessionService/ListVerdicts", LOOKING),
    // Probes have no token, and all they hear is one bit.
    ("/grpc.health.v1.Health/Check", Need::Nothing),
    (HEALTH_WATCH, Need::Nothing),
    ("/grpc.health.v1.Health/List", Need::Nothing),
    ("/healthz", Need::Nothing),
    ("/readyz", Need::Nothing),
    // What the API is like concerns only those who may call something of it.
    (REFLECTION[0], ANY_TOKEN),
    (REFLECTION[1], ANY_TOKEN),
    // Sums over all tenants; no session, tenant or text stands in a label.
    ("/metrics", LOOKING),
];

/// What is needed for this.
pub fn need(deed: &str) -> Need {
    let decided = TABLE.iter().find(|(known, _)| *known == deed);
    decided.map_or(Need::Role(&[]), |(_, need)| *need)
}

/// Calls that begin before anything is sent: they have a limit of their own. A
/// watch is not one of them: until its message has come it is a single call.
const STREAMS: [&str; 4] = [
    "/unstuck.v1.DetectionService/StreamEvents",
    "/unstuck.v1.DetectionService/StreamDeltas",
    REFLECTION[0],
    REFLECTION[1],
];

/// Whether this is a single call that may be refused while there are too many.
/// What operators do may not, and neither may probes.
pub fn may_be_refused(deed: &str) -> bool {
    let need = need(deed);
    need != ACTING && need != Need::Nothing && !STREAMS.contains(&deed)
}

/// Whether a role may do this.
pub fn may(role: Role, deed: &str) -> bool {
    match need(deed) {
        Need::Nothing => true,
        Need::Role(roles) => roles.contains(&role),
    }
}
