//! Who may talk to the console: a browser that was pointed at this service, by a
//! name it knows, and pages of its own. A page of somebody else's must not reach
//! it through the browser of a person on call.

use std::{net::IpAddr, sync::Arc};

use axum::{
    extract::{Request, State},
    http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header, uri::Authority},
    middleware::Next,
    response::{IntoResponse, Response},
};

/// Names under which the console is reached, besides `localhost` and addresses:
/// `[server] console_hosts`. Another name may be one that somebody has pointed
/// at us, to make a browser take their page for ours.
#[derive(Clone, Debug, Default)]
pub struct AllowedHosts(pub Vec<String>);

impl AllowedHosts {
    fn allows(&self, host: &str) -> bool {
        let Ok(authority) = host.parse::<Authority>() else {
            return false;
        };
        let name = authority.host();
        let address = name.trim_start_matches('[').trim_end_matches(']');
        let is = |known: &String| known.eq_ignore_ascii_case(name);
        // An address cannot be pointed elsewhere.
        address.parse::<IpAddr>().is_ok()
            || name.eq_ignore_ascii_case("localhost")
            || self.0.iter().any(is)
    }
}

pub(super) async fn require_allowed_host(
    State(hosts): State<Arc<AllowedHosts>>,
    request: Request,
    next: Next,
) -> Response {
    let host = header_text(request.headers(), header::HOST);
    if host.is_some_and(|host| hosts.allows(host)) {
        return next.run(request).await;
    }
    let message = "the console is not known by this name; where it should be, add the name to \
                `console_hosts` in [server]\n";
    (StatusCode::MISDIRECTED_REQUEST, message).into_response()
}

/// Browsers say where a request comes from; programs say nothing.
pub(super) async fn require_same_origin(request: Request, next: Next) -> Response {
    if is_same_origin(request.headers()) {
        return next.run(request).await;
    }
    let message = "only pages of this service may call it\n";
    (StatusCode::FORBIDDEN, message).into_response()
}

fn is_same_origin(headers: &HeaderMap) -> bool {
    let site = header_text(headers, HeaderName::from_static("sec-fetch-site"));
    let host = header_text(headers, header::HOST).unwrap_or_default();
    let origin = headers.get(header::ORIGIN).map(|origin| {
        let origin = origin.to_str().unwrap_or_default();
        let host_of = |scheme| origin.strip_prefix(scheme);
        host_of("http://").or_else(|| host_of("https://"))
    });
    site.is_none_or(|site| site == "same-origin") && origin.is_none_or(|from| from == Some(host))
}

fn header_text(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    headers.get(name)?.to_str().ok()
}

/// What a browser may do with what it gets: nothing but what this service sent,
/// and no text may become markup.
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
    // A file says itself how long it holds; an answer holds for nobody else.
    let no_store = HeaderValue::from_static("no-store");
    headers.entry(header::CACHE_CONTROL).or_insert(no_store);
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_anybody_could_point_here_is_not_known() {
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
    fn check(said: &[(&'static str, &'static str)], expected: bool) {
        let said = said.iter().map(|(name, value)| {
            (
                HeaderName::from_static(name),
                HeaderValue::from_static(value),
            )
        });
        assert_eq!(is_same_origin(&said.collect()), expected);
    }

    #[test]
    fn only_a_page_of_this_service_may_call_it() {
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
