//! Protects the console from other web pages in the same browser: only known host
//! names (DNS-rebinding protection) and only same-origin requests are accepted.

use std::{net::IpAddr, sync::Arc};

use axum::{
    extract::{Request, State},
    http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header, uri::Authority},
    middleware::Next,
    response::{IntoResponse, Response},
};

/// Host names of the console besides `localhost` and IP addresses, from
/// `[server] console_hosts`. DNS-rebinding protection: an attacker can point
/// another name at this service, and the browser would treat the attacker's page
/// as same-origin.
#[derive(Clone, Debug, Default)]
pub struct AllowedHosts(pub Vec<String>);

impl AllowedHosts {
    fn allows(&self, host: &str) -> bool {
        let Ok(authority) = host.parse::<Authority>() else {
            return false;
        };
        let name = authority.host();
        let address = name.trim_start_matches('[').trim_end_matches(']');
        // An IP address cannot be rebound.
        address.parse::<IpAddr>().is_ok()
            || name.eq_ignore_ascii_case("localhost")
            || self.0.iter().any(|known| known.eq_ignore_ascii_case(name))
    }
}

pub async fn require_allowed_host(
    State(hosts): State<Arc<AllowedHosts>>,
    request: Request,
    next: Next,
) -> Response {
    let host = header_text(request.headers(), header::HOST);
    if host.is_some_and(|host| hosts.allows(host)) {
        return next.run(request).await;
    }
    let message = "unknown host name (DNS-rebinding protection); to allow it, add it to \
                   `console_hosts` in [server]\n";
    (StatusCode::MISDIRECTED_REQUEST, message).into_response()
}

/// Rejects requests from pages of another origin. Browsers send the origin;
/// programs do not, and are accepted.
pub async fn require_same_origin(request: Request, next: Next) -> Response {
    if is_same_origin(request.headers()) {
        return next.run(request).await;
    }
    let message = "cross-origin requests are not allowed\n";
    (StatusCode::FORBIDDEN, message).into_response()
}

fn is_same_origin(headers: &HeaderMap) -> bool {
    let site = header_text(headers, HeaderName::from_static("sec-fetch-site"));
    let host = header_text(headers, header::HOST).unwrap_or_default();
    let origin_host = headers.get(header::ORIGIN).map(|origin| {
        let url = origin.to_str().unwrap_or_default();
        url.strip_prefix("http://")
            .or_else(|| url.strip_prefix("https://"))
    });
    site.is_none_or(|site| site == "same-origin")
        && origin_host.is_none_or(|origin| origin == Some(host))
}

fn header_text(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    headers.get(name)?.to_str().ok()
}

/// The browser loads only what this service serves, and never turns text into
/// markup.
const SECURITY_HEADERS: [(HeaderName, &str); 6] = [
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
         img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
         require-trusted-types-for 'script'; trusted-types 'none'",
    ),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    (
        HeaderName::from_static("cross-origin-opener-policy"),
        "same-origin",
    ),
    (
        HeaderName::from_static("cross-origin-resource-policy"),
        "same-origin",
    ),
    (
        HeaderName::from_static("permissions-policy"),
        "camera=(), geolocation=(), microphone=()",
    ),
];

pub(super) async fn add_security_headers(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    let headers = response.headers_mut();
    for (name, value) in SECURITY_HEADERS {
        headers.insert(name, HeaderValue::from_static(value));
    }
    // Files set their own policy; other responses must not be cached.
    let no_store = HeaderValue::from_static("no-store");
    headers.entry(header::CACHE_CONTROL).or_insert(no_store);
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_host_names_are_rejected() {
        let hosts = AllowedHosts(vec!["unstuck.example.com".to_owned()]);
        for host in [
            "localhost:50552",
            "127.0.0.1:50552",
            "[::1]:50552",
            "10.1.2.3",
            "Unstuck.Example.com",
            "unstuck.example.com:443",
        ] {
            assert!(hosts.allows(host), "{host}");
        }
        for host in [
            "",
            "evil.example",
            "localhost.evil.example",
            "127.0.0.1.evil.example:50552",
            "unstuck.example.com.evil.example",
            "a b",
        ] {
            assert!(!hosts.allows(host), "{host}");
        }
    }

    #[track_caller]
    fn check(headers: &[(&'static str, &'static str)], expected: bool) {
        let map = headers.iter().map(|(name, value)| {
            (
                HeaderName::from_static(name),
                HeaderValue::from_static(value),
            )
        });
        assert_eq!(is_same_origin(&map.collect()), expected);
    }

    #[test]
    fn only_same_origin_requests_are_accepted() {
        const HOST: (&str, &str) = ("host", "127.0.0.1:50552");
        check(&[HOST], true);
        check(&[HOST, ("sec-fetch-site", "same-origin")], true);
        check(&[HOST, ("origin", "http://127.0.0.1:50552")], true);
        check(&[HOST, ("origin", "https://127.0.0.1:50552")], true);
        check(&[HOST, ("sec-fetch-site", "same-site")], false);
        check(&[HOST, ("sec-fetch-site", "cross-site")], false);
        check(&[HOST, ("origin", "http://127.0.0.1:8080")], false);
        check(&[HOST, ("origin", "http://evil.example")], false);
        check(&[HOST, ("origin", "null")], false);
    }
}
