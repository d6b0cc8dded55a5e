//! One receiver: what it is sent, signed, and tried again.

use std::{
    error::Error,
    net::IpAddr,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use backon::{ExponentialBuilder, Retryable};
use minijinja::Environment;
use reqwest::{
    Client, Method, Request, StatusCode, Url,
    header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER},
    redirect,
};
use serde_json::Value;
use standardwebhooks::{
    HEADER_WEBHOOK_ID, HEADER_WEBHOOK_SIGNATURE, HEADER_WEBHOOK_TIMESTAMP, Webhook,
};
use thiserror::Error;

use super::{
    address::{Private, PublicOnly, is_public},
    message::{Notice, templates},
    settings::{Format, SecretError, Settings},
};
use crate::{domain::Issued, feed::Watch};

/// A receiver that was checked and is ready to be called.
pub(super) struct Endpoint {
    pub name: String,
    client: Client,
    method: Method,
    headers: HeaderMap,
    format: Format,
    signer: Option<Webhook>,
    templates: Environment<'static>,
    /// Where it is; a template may name what comes after the host only.
    origin: String,
    /// How many parts its path has, whatever fills them.
    path_parts: usize,
    has_body: bool,
    settings: Settings,
}

/// Why an entry of `[[notify]]` is refused.
#[derive(Debug, Error)]
#[error("{key}: {why}")]
pub struct EndpointError {
    pub key: &'static str,
    why: String,
}

/// What became of a notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// It is of shadow mode, and the receiver has not asked for those.
    Unwanted,
    Delivered,
    /// The receiver does not want it, and would not later.
    Refused,
    /// It could not be delivered in time.
    Expired,
}

/// What is counted of the way to a receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A try failed, and another will be made.
    Retried,
    Ended(Delivery),
}

/// Why a try failed. What the receiver or the network says is not repeated in
/// logs: it may quote the URL.
#[derive(Debug, Error)]
enum Failure {
    #[error("the receiver answered {0}")]
    Answered(StatusCode, Option<Duration>),
    #[error("the receiver could not be reached")]
    Unreachable,
    #[error("the receiver's address is private")]
    Private,
    #[error("the notice could not be made")]
    Unmade,
}

const URL: &str = "url";
const BODY: &str = "body";

impl Endpoint {
    pub fn new(settings: Settings) -> Result<Self, EndpointError> {
        let refused = |key, why: &dyn ToString| EndpointError {
            key,
            why: why.to_string(),
        };
        let mut templates = templates();
        let url = settings.url.read().map_err(|error| refused(URL, &error))?;
        let compile = |templates: &mut Environment<'static>, name: &'static str, text: &str| {
            templates.add_template_owned(name, text.to_owned())
        };
        // A template's fault may quote it, and a URL may hold a token.
        compile(&mut templates, URL, &url)
            .map_err(|_| refused(URL, &"it is not a template that can be read"))?;
        compile(&mut templates, BODY, &settings.body).map_err(|error| refused(BODY, &error))?;
        let method = Method::from_bytes(settings.method.as_bytes())
            .map_err(|error| refused("method", &error))?;
        let signer = settings.secret.as_ref().map(|secret| {
            let secret = secret.read().map_err(|error| refused("secret", &error))?;
            Webhook::new(&secret).map_err(|_| refused("secret", &"it is not base64"))
        });
        let mut endpoint = Self {
            name: settings.name.clone(),
            client: client(&settings).map_err(|error| refused(URL, &error.without_url()))?,
            method,
            headers: headers(&settings)?,
            format: settings.format,
            signer: signer.transpose()?,
            templates,
            origin: origin(&url, &settings).map_err(|why| refused(URL, &why))?,
            path_parts: 0,
            has_body: !settings.body.is_empty(),
            settings,
        };
        endpoint.try_templates()?;
        endpoint.path_parts = endpoint
            .made_url(&Notice::sample())
            .map_or(0, |url| parts(&url));
        Ok(endpoint)
    }

    /// Templates that do not render are refused at start.
    fn try_templates(&self) -> Result<(), EndpointError> {
        let sample = Notice::sample();
        self.made_url(&sample).map_err(|_| EndpointError {
            key: URL,
            why: "it does not make a URL of the same host".to_owned(),
        })?;
        let rendered = self
            .templates
            .get_template(BODY)
            .and_then(|body| body.render(sample.facts()));
        rendered.map(drop).map_err(|error| EndpointError {
            key: BODY,
            why: error.to_string(),
        })
    }

    /// What it is to be told of.
    pub fn watch(&self) -> Watch {
        Watch {
            tenant: self.settings.tenant.clone(),
            labels: self.settings.labels.clone(),
            least_action: Some(self.settings.least_action),
            ..Watch::default()
        }
    }

    /// Delivers, however often it takes, until the notice is too old. `retried`
    /// is called for each try that failed.
    pub async fn deliver(
        &self,
        issued: &Issued,
        shown: Value,
        now: fn() -> SystemTime,
        retried: impl Fn(),
    ) -> Delivery {
        if issued.verdict.shadow && !self.settings.shadow {
            return Delivery::Unwanted;
        }
        let notice = Notice::new(issued, shown);
        let given = issued.verdict.id.time();
        let age = now().duration_since(given).unwrap_or_default();
        let expiry = Duration::from_secs(self.settings.expiry_secs_max);
        let Some(left) = expiry.checked_sub(age) else {
            return Delivery::Expired;
        };
        let backoff = ExponentialBuilder::new()
            .with_min_delay(Duration::from_millis(self.settings.retry_millis_min))
            .with_max_delay(Duration::from_millis(self.settings.retry_millis_max))
            .with_jitter()
            .without_max_times();
        let mut first = true;
        let tries = (|| self.send(&notice, now()))
            .retry(backoff)
            .when(Failure::may_pass)
            .adjust(|failure: &Failure, wait| failure.asked_wait().max(wait))
            .notify(|failure, wait| {
                retried();
                // Few are under way at a time, so that is a few lines while a
                // receiver is down.
                if std::mem::replace(&mut first, false) {
                    tracing::warn!(endpoint = self.name, %failure, "notice will be sent again");
                } else {
                    tracing::debug!(endpoint = self.name, %failure, ?wait, "notice will be sent again");
                }
            });
        let failure = match tokio::time::timeout(left, tries).await {
            Ok(Ok(())) => return Delivery::Delivered,
            Ok(Err(failure)) => failure,
            Err(_) => {
                tracing::warn!(endpoint = self.name, verdict = notice.id, "notice expired");
                return Delivery::Expired;
            }
        };
        tracing::warn!(endpoint = self.name, verdict = notice.id, %failure, "notice refused");
        Delivery::Refused
    }

    async fn send(&self, notice: &Notice, now: SystemTime) -> Result<(), Failure> {
        let request = self.request(notice, now)?;
        let response = self.client.execute(request).await.map_err(|error| {
            if is_private(&error) {
                Failure::Private
            } else {
                Failure::Unreachable
            }
        })?;
        let status = response.status();
        if status.is_success() {
            return Ok(());
        }
        let wait = response.headers().get(RETRY_AFTER);
        let wait = wait.and_then(|wait| wait.to_str().ok()?.parse().ok());
        Err(Failure::Answered(status, wait.map(Duration::from_secs)))
    }

    fn request(&self, notice: &Notice, now: SystemTime) -> Result<Request, Failure> {
        let body = if self.has_body {
            let template = self.templates.get_template(BODY);
            let body = template.and_then(|template| template.render(notice.facts()));
            body.map_err(|_| Failure::Unmade)?
        } else {
            notice.body(self.format)
        };
        let mut request = Request::new(self.method.clone(), self.url(notice)?);
        let headers = request.headers_mut();
        let kind = if self.has_body {
            "application/json"
        } else {
            self.format.content_type()
        };
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
        headers.extend(self.headers.clone());
        self.sign(&notice.id, &body, now, headers)
            .ok_or(Failure::Unmade)?;
        *request.body_mut() = Some(body.into());
        Ok(request)
    }

    /// As Standard Webhooks has it; the id goes along unsigned too, for
    /// receivers that have seen it before.
    fn sign(&self, id: &str, body: &str, now: SystemTime, headers: &mut HeaderMap) -> Option<()> {
        let now = now.duration_since(UNIX_EPOCH).ok()?.as_secs();
        headers.insert(HEADER_WEBHOOK_ID, id.parse().ok()?);
        headers.insert(HEADER_WEBHOOK_TIMESTAMP, now.into());
        if let Some(signer) = &self.signer {
            let now = i64::try_from(now).ok()?;
            let signature = signer.sign(id, now, body.as_bytes()).ok()?;
            headers.insert(HEADER_WEBHOOK_SIGNATURE, signature.parse().ok()?);
        }
        Some(())
    }

    /// Whatever an agent writes, it chooses neither the host nor another path:
    /// a session may be called `..`.
    fn url(&self, notice: &Notice) -> Result<Url, Failure> {
        let url = self.made_url(notice)?;
        let same = parts(&url) == self.path_parts;
        if same { Ok(url) } else { Err(Failure::Unmade) }
    }

    fn made_url(&self, notice: &Notice) -> Result<Url, Failure> {
        let template = self.templates.get_template(URL);
        let url = template.and_then(|template| template.render(notice.facts()));
        let url = Url::parse(&url.map_err(|_| Failure::Unmade)?).map_err(|_| Failure::Unmade)?;
        let same = url.origin().ascii_serialization() == self.origin;
        if same { Ok(url) } else { Err(Failure::Unmade) }
    }
}

impl Failure {
    /// Whether another try may succeed. A name that resolves to a private
    /// address may be on its way to another.
    fn may_pass(&self) -> bool {
        match self {
            Self::Unreachable | Self::Private => true,
            Self::Unmade => false,
            Self::Answered(status, _) => {
                status.is_server_error()
                    || matches!(
                        *status,
                        StatusCode::REQUEST_TIMEOUT
                            | StatusCode::TOO_EARLY
                            | StatusCode::TOO_MANY_REQUESTS
                    )
            }
        }
    }

    fn asked_wait(&self) -> Option<Duration> {
        match self {
            Self::Answered(_, wait) => *wait,
            _ => None,
        }
    }
}

fn client(settings: &Settings) -> reqwest::Result<Client> {
    let timeout = Duration::from_secs(settings.timeout_secs_max);
    let client = Client::builder()
        .redirect(redirect::Policy::none())
        .https_only(!settings.allow_http)
        .timeout(timeout)
        .user_agent(concat!("unstuck/", env!("CARGO_PKG_VERSION")));
    if settings.allow_private {
        client.build()
    } else {
        client.dns_resolver(PublicOnly).build()
    }
}

fn headers(settings: &Settings) -> Result<HeaderMap, EndpointError> {
    let refused = |name: &str, why: &dyn ToString| EndpointError {
        key: "headers",
        why: format!("{name}: {}", why.to_string()),
    };
    let mut headers = HeaderMap::new();
    for (name, text) in &settings.headers {
        let value = text
            .read()
            .map_err(|error: SecretError| refused(name, &error))?;
        let mut value = HeaderValue::from_str(&value)
            .map_err(|_| refused(name, &"it has characters that a header cannot have"))?;
        value.set_sensitive(true);
        let name = HeaderName::try_from(name).map_err(|error| refused(name, &error))?;
        headers.insert(name, value);
    }
    Ok(headers)
}

/// Scheme, host and port of the URL, which must not be a template's doing.
fn origin(url: &str, settings: &Settings) -> Result<String, String> {
    let fixed = url.split("{{").next().unwrap_or_default();
    let fixed = Url::parse(fixed).map_err(|_| "it is not a URL with a scheme and a host")?;
    let http = fixed.scheme() == "http" && settings.allow_http;
    if fixed.scheme() != "https" && !http {
        return Err("it must begin with https://; allow_http = true permits http://".to_owned());
    }
    let host = fixed.host_str().ok_or("it names no host")?;
    let literal = host.trim_matches(['[', ']']).parse::<IpAddr>();
    if literal.is_ok_and(|address| !is_public(address)) && !settings.allow_private {
        return Err(Private.to_string());
    }
    Ok(fixed.origin().ascii_serialization())
}

fn parts(url: &Url) -> usize {
    url.path_segments().map_or(0, Iterator::count)
}

fn is_private(error: &reqwest::Error) -> bool {
    let mut cause: Option<&(dyn Error + 'static)> = error.source();
    while let Some(error) = cause {
        if error.is::<Private>() {
            return true;
        }
        cause = error.source();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(entry: &str) -> Result<Endpoint, EndpointError> {
        super::super::install_tls();
        let entry = format!("name = 'a'\n{entry}");
        Endpoint::new(toml::from_str(&entry).unwrap())
    }

    #[track_caller]
    fn refused(entry: &str, expected: &str) {
        let error = endpoint(entry).err().map(|error| error.to_string());
        assert_eq!(error.as_deref(), Some(expected), "{entry}");
    }

    #[test]
    fn a_receiver_is_public_and_spoken_to_in_private_unless_allowed() {
        let http = "url: it must begin with https://; allow_http = true permits http://";
        let private = "url: it is a private address; allow_private = true permits it";
        refused("url = 'http://example.com/x'", http);
        refused("url = 'ftp://example.com/x'\nallow_http = true", http);
        refused("url = 'https://127.0.0.1/x'", private);
        refused("url = 'https://[::1]/x'", private);
        refused("url = 'https://169.254.169.254/latest'", private);
        assert!(endpoint("url = 'https://example.com/x'").is_ok());
        let allowed = "url = 'http://127.0.0.1/x'\nallow_http = true\nallow_private = true";
        assert!(endpoint(allowed).is_ok());
    }

    #[test]
    fn a_template_that_cannot_be_filled_is_refused() {
        refused(
            "url = 'https://example.com/{{ nothing }}'",
            "url: it does not make a URL of the same host",
        );
        refused(
            "url = 'https://{{ session_id }}/x'",
            "url: it is not a URL with a scheme and a host",
        );
        let error = endpoint("url = 'https://example.com'\nbody = '{{ nothing }}'");
        assert_eq!(error.err().unwrap().key, "body");
        let error = endpoint("url = 'https://example.com'\nheaders = { 'a b' = 'c' }");
        assert_eq!(error.err().unwrap().key, "headers");
        let error = endpoint("url = 'https://example.com'\nmethod = 'A B'");
        assert_eq!(error.err().unwrap().key, "method");
    }

    #[test]
    fn what_an_agent_writes_does_not_choose_the_host() {
        let other = "url: it does not make a URL of the same host";
        refused("url = 'https://example.com{{ session_id }}'", other);
        refused("url = 'https://example.com:4{{ session_id }}/x'", other);
    }

    #[test]
    fn what_an_agent_writes_does_not_choose_the_path() {
        let endpoint = endpoint("url = 'https://example.com/kill/{{ session_id }}'").unwrap();
        for hostile in ["..", "%2e%2e", "../admin", "a/b", "a/../../b"] {
            let notice = Notice {
                session_id: hostile.to_owned(),
                ..Notice::sample()
            };
            assert!(endpoint.url(&notice).is_err(), "{hostile}");
        }
    }

    #[test]
    fn a_url_may_name_the_session() {
        let url = "url = 'https://example.com/kill/{{ session_id | urlencode }}?by={{ type }}'";
        let notice = Notice {
            session_id: "a/b".to_owned(),
            kind: "session.terminated".to_owned(),
            ..Notice::sample()
        };
        assert_eq!(
            endpoint(url).unwrap().url(&notice).unwrap().as_str(),
            "https://example.com/kill/a%2Fb?by=session.terminated"
        );
    }

    #[test]
    fn an_answer_that_will_not_change_is_not_asked_for_again() {
        let again =
            |status: u16| Failure::Answered(StatusCode::from_u16(status).unwrap(), None).may_pass();
        assert!([500, 502, 503, 429, 408, 425].into_iter().all(again));
        assert!(![301, 302, 400, 401, 404, 410].into_iter().any(again));
    }
}
