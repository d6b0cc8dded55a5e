//! The files of the page, embedded in the binary.

use axum::{
    Router,
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};

use super::Console;

/// A file of the page.
#[derive(Clone, Copy)]
struct File {
    path: &'static str,
    kind: &'static str,
    text: &'static str,
}

const HTML: &str = "text/html; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";
const IMAGE: &str = "image/svg+xml";

/// A file served under its own name.
macro_rules! file {
    ($name:literal, $kind:expr) => {
        File {
            path: concat!("/", $name),
            kind: $kind,
            text: include_str!(concat!("page/", $name)),
        }
    };
}

const FILES: &[File] = &[
    file!("style.css", STYLE),
    file!("icon.svg", IMAGE),
    file!("actions.js", SCRIPT),
    file!("api.js", SCRIPT),
    file!("app.js", SCRIPT),
    file!("audit.js", SCRIPT),
    file!("dom.js", SCRIPT),
    file!("feed.js", SCRIPT),
    file!("filters.js", SCRIPT),
    file!("fleet.js", SCRIPT),
    file!("format.js", SCRIPT),
    file!("lanes.js", SCRIPT),
    file!("live.js", SCRIPT),
    file!("login.js", SCRIPT),
    file!("plots.js", SCRIPT),
    file!("policy.js", SCRIPT),
    file!("precision.js", SCRIPT),
    file!("rating.js", SCRIPT),
    file!("session.js", SCRIPT),
    file!("theme.js", SCRIPT),
    file!("timeline.js", SCRIPT),
    file!("verdict.js", SCRIPT),
    file!("verdict_page.js", SCRIPT),
];

/// The views of the page. Each has its own URL, so that it can be shared.
const VIEWS: [&str; 6] = ["/", "/session", "/verdict", "/feed", "/audit", "/policy"];
const INDEX: &str = include_str!("page/index.html");

pub(super) fn routes() -> Router<Console> {
    let views = VIEWS.map(|path| File {
        path,
        kind: HTML,
        text: INDEX,
    });
    let all = views.iter().chain(FILES);
    all.fold(Router::new(), |router, file| {
        let File { path, kind, text } = *file;
        let tag = format!("\"{}\"", blake3::hash(text.as_bytes()).to_hex());
        let handler = move |headers: HeaderMap| {
            let known = headers.get(header::IF_NONE_MATCH);
            std::future::ready(respond_with_file(
                text,
                kind,
                &tag,
                known.is_some_and(|it| *it == *tag),
            ))
        };
        router.route(path, get(handler))
    })
}

/// The browser caches the file and revalidates it by its tag.
fn respond_with_file(
    text: &'static str,
    kind: &'static str,
    tag: &str,
    is_cached: bool,
) -> Response {
    let headers = [
        (header::CONTENT_TYPE, kind),
        (header::CACHE_CONTROL, "no-cache"),
        (header::ETAG, tag),
    ];
    if is_cached {
        (StatusCode::NOT_MODIFIED, headers).into_response()
    } else {
        (headers, text).into_response()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Without preloading, each level of imports costs a round trip.
    #[test]
    fn the_page_preloads_all_its_scripts() {
        let scripts = FILES.iter().filter(|file| file.kind == SCRIPT);
        for path in scripts.map(|file| file.path) {
            let preload = format!("<link rel=\"modulepreload\" href=\"{path}\">");
            let main = format!("<script type=\"module\" src=\"{path}\"></script>");
            assert!(INDEX.contains(&preload) || INDEX.contains(&main), "{path}");
        }
    }
}
