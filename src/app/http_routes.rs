//! What the HTTP port serves.

use std::sync::Arc;

use axum::Router;

use crate::{console, domain::clock, hooks, server::ServerContext};

/// The console and the hooks of agents, on one port.
pub(super) fn http_routes(
    dependencies: console::ConsoleDependencies,
    server: Arc<ServerContext>,
    limits: console::Limits,
    hooks: hooks::Settings,
    hosts: console::AllowedHosts,
) -> Router {
    let hook_dependencies = hooks::HookDependencies {
        api: dependencies.api.clone(),
        server,
    };
    let hook_routes = hooks::routes(hook_dependencies, hooks, hosts.clone(), clock::now());
    console::routes(dependencies, limits, hosts).merge(hook_routes)
}
