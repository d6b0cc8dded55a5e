//! One endpoint: builds, signs, sends and retries requests.

use std::{
    error::Error,
    net::IpAddr,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use minijinja::Environment;
use reqwest::{
    Client, Method, Request, StatusCode, Url,
    header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER},
    redirect,
};
use serde_json::Value;
use standardwebhooks::{HEADER_WEBHOOK_ID, HEADER_WEBHOOK_SIGNATURE, HEADER_WEBHOOK_TIMESTAMP};
use thiserror::Error;

use super::{
    address::{PrivateAddressError, PublicResolver, is_public},
    message::{Notification, template_environment},
    settings::{Format, SecretError, Settings},
    signing::{Signer, SigningKeys},
};
use crate::{domain::VerdictRecord, feed::VerdictFilter};

/// A validated endpoint.
pub(super) struct Endpoint {
    pub name: String,
    client: Client,
    method: Method,
    headers: HeaderMap,
    format: Format,
    signer: Signer,
    templates: Environment<'static>,
    /// Scheme, host and port. A template must not change it.
    origin: String,
    /// The number of path segments. A template must not change it.
    path_segments: usize,
    has_body_template: bool,
    settings: Settings,
}

/// An invalid setting of an entry of `[[notify]]`.
#[derive(Debug, Error)]
#[error("{key}: {why}")]
pub struct EndpointError {
    pub key: &'static str,
    why: String,
}

/// The outcome of a notification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeliveryOutcome {
    /// A shadow verdict, for an endpoint without `shadow = true`.
    Skipped,
    Delivered,
    /// The endpoint rejected it with a permanent error.
    Refused,
    /// It was not delivered in time.
    Expired,
}

/// An event that is counted in the metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeliveryEvent {
    /// An attempt failed and will be repeated.
    Retried,
    Finished(DeliveryOutcome),
}

/// The outcome of one attempt.
pub(super) enum AttemptOutcome {
    Finished(DeliveryOutcome),
    /// Another attempt may succeed.
    Failed(AttemptError),
}

/// Why an attempt failed. The texts of the endpoint and of network errors are not
/// logged, because they may contain the URL and so a secret.
#[derive(Debug, Error)]
pub(super) enum AttemptError {
    #[error("the endpoint returned status {0}")]
    Status(StatusCode, Option<Duration>),
    #[error("the endpoint is not reachable")]
    Unreachable,
    #[error("the endpoint's address is private")]
    PrivateAddress,
    #[error("the request cannot be built")]
    InvalidRequest,
}

const URL: &str = "url";
const BODY: &str = "body";

impl Endpoint {
    pub fn new(settings: Settings) -> Result<Self, EndpointError> {
        let invalid = |key, why: &dyn ToString| EndpointError {
            key,
            why: why.to_string(),
        };
        let mut templates = template_environment();
        let url = settings.url.read().map_err(|error| invalid(URL, &error))?;
        // The template's error is not shown: it may quote the URL, which may hold a
        // token.
        templates
            .add_template_owned(URL, url.clone())
            .map_err(|_| invalid(URL, &"it is not a valid template"))?;
        templates
            .add_template_owned(BODY, settings.body.clone())
            .map_err(|error| invalid(BODY, &error))?;
        // Method and signer.
        let method = Method::from_bytes(settings.method.as_bytes())
            .map_err(|error| invalid("method", &error))?;
        let keys = Self::read_signing_keys(&settings)?;
        let mut endpoint = Self {
            name: settings.name.clone(),
            client: build_client(&settings).map_err(|error| invalid(URL, &error.without_url()))?,
            method,
            headers: parse_headers(&settings)?,
            format: settings.format,
            signer: Signer::new(keys),
            templates,
            origin: parse_origin(&url, &settings).map_err(|why| invalid(URL, &why))?,
            path_segments: 0,
            has_body_template: !settings.body.is_empty(),
            settings,
        };
        endpoint.check_templates()?;
        endpoint.path_segments = endpoint
            .render_url(&Notification::sample())
            .map_or(0, |url| count_path_segments(&url));
        Ok(endpoint)
    }

    pub fn read_signing_keys(settings: &Settings) -> Result<SigningKeys, EndpointError> {
        SigningKeys::read(settings.secret.as_ref())
            .map_err(|why| EndpointError { key: "secret", why })
    }

    pub fn replace_signing_keys(&self, keys: SigningKeys) {
        self.signer.replace_keys(keys);
    }

    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Renders the templates once, so that an invalid one fails at startup.
    fn check_templates(&self) -> Result<(), EndpointError> {
        let sample = Notification::sample();
        self.render_url(&sample).map_err(|_| EndpointError {
            key: URL,
            why: "the template changes the scheme, host or port".to_owned(),
        })?;
        let rendered = self
            .templates
            .get_template(BODY)
            .and_then(|body| body.render(sample.template_context()));
        rendered.map(drop).map_err(|error| EndpointError {
            key: BODY,
            why: error.to_string(),
        })
    }

    /// The verdicts that are sent to this endpoint.
    pub fn verdict_filter(&self) -> VerdictFilter {
        VerdictFilter {
            tenant: self.settings.tenant.clone(),
            labels: self.settings.labels.clone(),
            min_action: Some(self.settings.min_action),
            ..VerdictFilter::default()
        }
    }

    /// A shadow verdict is sent only to endpoints with `shadow = true`.
    pub fn skips(&self, record: &VerdictRecord) -> bool {
        record.verdict.shadow && !self.settings.shadow
    }

    /// How long a notification is retried.
    pub fn expiry(&self) -> Duration {
        Duration::from_secs(self.settings.expiry_secs_max)
    }

    /// The waits between the attempts of one notification.
    pub fn backoff(&self) -> ExponentialBackoff {
        ExponentialBuilder::new()
            .with_min_delay(Duration::from_millis(self.settings.retry_millis_min))
            .with_max_delay(Duration::from_millis(self.settings.retry_millis_max))
            .with_jitter()
            .without_max_times()
            .build()
    }

    /// Sends the notification once. `wall_now` is for the signature, which the endpoint compares with
    /// its own clock.
    pub async fn attempt(
        &self,
        record: &VerdictRecord,
        verdict_json: Value,
        console_url: &str,
        wall_now: fn() -> SystemTime,
    ) -> AttemptOutcome {
        let notification = Notification::new(record, verdict_json, console_url);
        match self.send(&notification, wall_now()).await {
            Ok(()) => AttemptOutcome::Finished(DeliveryOutcome::Delivered),
            Err(failure) if failure.is_retryable() => AttemptOutcome::Failed(failure),
            Err(failure) => {
                tracing::warn!(endpoint = self.name, verdict = notification.id, %failure, "notification refused");
                AttemptOutcome::Finished(DeliveryOutcome::Refused)
            }
        }
    }

    async fn send(&self, notification: &Notification, now: SystemTime) -> Result<(), AttemptError> {
        let request = self.build_request(notification, now)?;
        let response = self.client.execute(request).await.map_err(|error| {
            if is_private_address_error(&error) {
                AttemptError::PrivateAddress
            } else {
                AttemptError::Unreachable
            }
        })?;
        let status = response.status();
        if status.is_success() {
            return Ok(());
        }
        let retry_after = response
            .headers()
            .get(RETRY_AFTER)
            .and_then(|secs| secs.to_str().ok()?.parse().ok())
            .map(Duration::from_secs);
        Err(AttemptError::Status(status, retry_after))
    }

    fn build_request(
        &self,
        notification: &Notification,
        now: SystemTime,
    ) -> Result<Request, AttemptError> {
        let body = if self.has_body_template {
            self.templates
                .get_template(BODY)
                .and_then(|template| template.render(notification.template_context()))
                .map_err(|_| AttemptError::InvalidRequest)?
        } else {
            notification.render_body(self.format)
        };
        let mut request = Request::new(self.method.clone(), self.request_url(notification)?);
        let headers = request.headers_mut();
        let content_type = if self.has_body_template {
            "application/json"
        } else {
            self.format.content_type()
        };
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
        headers.extend(self.headers.clone());
        let signature = self.signature_headers(&notification.id, &body, now);
        headers.extend(signature.ok_or(AttemptError::InvalidRequest)?);
        *request.body_mut() = Some(body.into());
        Ok(request)
    }

    /// The headers of Standard Webhooks. The id is sent even without a signature, so
    /// that endpoints can detect duplicates. `None`: a value cannot be sent in a header.
    fn signature_headers(&self, id: &str, body: &str, now: SystemTime) -> Option<HeaderMap> {
        let mut headers = HeaderMap::new();
        let now = now.duration_since(UNIX_EPOCH).ok()?.as_secs();
        headers.insert(HEADER_WEBHOOK_ID, id.parse().ok()?);
        headers.insert(HEADER_WEBHOOK_TIMESTAMP, now.into());
        let signature = self.signer.sign(id, i64::try_from(now).ok()?, body).ok()?;
        if !signature.is_empty() {
            headers.insert(HEADER_WEBHOOK_SIGNATURE, signature.parse().ok()?);
        }
        Some(headers)
    }

    /// Agent text in a URL must change neither the host nor the path: a session may
    /// be called `..`.
    fn request_url(&self, notification: &Notification) -> Result<Url, AttemptError> {
        let url = self.render_url(notification)?;
        let is_same_path = count_path_segments(&url) == self.path_segments;
        if is_same_path {
            Ok(url)
        } else {
            Err(AttemptError::InvalidRequest)
        }
    }

    fn render_url(&self, notification: &Notification) -> Result<Url, AttemptError> {
        let rendered = self
            .templates
            .get_template(URL)
            .and_then(|template| template.render(notification.template_context()))
            .map_err(|_| AttemptError::InvalidRequest)?;
        let url = Url::parse(&rendered).map_err(|_| AttemptError::InvalidRequest)?;
        let is_same_origin = url.origin().ascii_serialization() == self.origin;
        if is_same_origin {
            Ok(url)
        } else {
            Err(AttemptError::InvalidRequest)
        }
    }
}

impl AttemptError {
    /// Whether another attempt may succeed. A name that resolves to a private
    /// address may soon resolve to another one.
    fn is_retryable(&self) -> bool {
        match self {
            Self::Unreachable | Self::PrivateAddress => true,
            Self::InvalidRequest => false,
            Self::Status(status, _) => {
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

    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Status(_, wait) => *wait,
            _ => None,
        }
    }

    /// Whether every notification would fail: the endpoint is not reachable, or asks
    /// for a pause.
    pub fn concerns_endpoint(&self) -> bool {
        match self {
            Self::Unreachable | Self::PrivateAddress => true,
            Self::Status(status, retry_after) => {
                *status == StatusCode::TOO_MANY_REQUESTS || retry_after.is_some()
            }
            Self::InvalidRequest => false,
        }
    }
}

fn build_client(settings: &Settings) -> reqwest::Result<Client> {
    let timeout = Duration::from_secs(settings.timeout_secs_max);
    let client = Client::builder()
        .redirect(redirect::Policy::none())
        .https_only(!settings.allow_http)
        .timeout(timeout)
        .user_agent(concat!("unstuck/", env!("CARGO_PKG_VERSION")));
    if settings.allow_private {
        client.build()
    } else {
        client.dns_resolver(PublicResolver).build()
    }
}

fn parse_headers(settings: &Settings) -> Result<HeaderMap, EndpointError> {
    let invalid = |name: &str, why: &dyn ToString| EndpointError {
        key: "headers",
        why: format!("{name}: {}", why.to_string()),
    };
    let mut headers = HeaderMap::new();
    for (name, text) in &settings.headers {
        let value = text
            .read()
            .map_err(|error: SecretError| invalid(name, &error))?;
        let mut value = HeaderValue::from_str(&value)
            .map_err(|_| invalid(name, &"it has characters that are invalid in a header"))?;
        value.set_sensitive(true);
        let name = HeaderName::try_from(name).map_err(|error| invalid(name, &error))?;
        headers.insert(name, value);
    }
    Ok(headers)
}

/// Scheme, host and port of the URL. They must not be part of a template.
fn parse_origin(url: &str, settings: &Settings) -> Result<String, String> {
    let fixed_part = url.split("{{").next().unwrap_or_default();
    let fixed = Url::parse(fixed_part).map_err(|_| "it is not a URL with a scheme and a host")?;
    let is_allowed_http = fixed.scheme() == "http" && settings.allow_http;
    if fixed.scheme() != "https" && !is_allowed_http {
        return Err("it must start with https://; allow_http = true permits http://".to_owned());
    }
    let host = fixed.host_str().ok_or("it has no host")?;
    let literal = host.trim_matches(['[', ']']).parse::<IpAddr>();
    if literal.is_ok_and(|address| !is_public(address)) && !settings.allow_private {
        return Err(PrivateAddressError.to_string());
    }
    Ok(fixed.origin().ascii_serialization())
}

fn count_path_segments(url: &Url) -> usize {
    url.path_segments().map_or(0, Iterator::count)
}

fn is_private_address_error(error: &reqwest::Error) -> bool {
    let mut cause: Option<&(dyn Error + 'static)> = error.source();
    while let Some(error) = cause {
        if error.is::<PrivateAddressError>() {
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
        super::super::install_crypto_provider();
        let entry = format!("name = 'a'\n{entry}");
        Endpoint::new(toml::from_str(&entry).unwrap())
    }

    #[track_caller]
    fn refused(entry: &str, expected: &str) {
        let error = endpoint(entry).err().map(|error| error.to_string());
        assert_eq!(error.as_deref(), Some(expected), "{entry}");
    }

    #[test]
    fn a_url_must_be_public_and_https_unless_allowed() {
        let http = "url: it must start with https://; allow_http = true permits http://";
        let private = "url: the address is private; set allow_private = true to permit it";
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
    fn invalid_templates_and_settings_are_rejected() {
        refused(
            "url = 'https://example.com/{{ nothing }}'",
            "url: the template changes the scheme, host or port",
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
    fn agent_text_cannot_change_the_host() {
        let other = "url: the template changes the scheme, host or port";
        refused("url = 'https://example.com{{ session_id }}'", other);
        refused("url = 'https://example.com:4{{ session_id }}/x'", other);
    }

    #[test]
    fn agent_text_cannot_change_the_path() {
        let endpoint = endpoint("url = 'https://example.com/kill/{{ session_id }}'").unwrap();
        for hostile in ["..", "%2e%2e", "../admin", "a/b", "a/../../b"] {
            let notification = Notification {
                session_id: hostile.to_owned(),
                ..Notification::sample()
            };
            assert!(endpoint.request_url(&notification).is_err(), "{hostile}");
        }
    }

    #[test]
    fn a_url_template_may_contain_the_session() {
        let url = "url = 'https://example.com/kill/{{ session_id | urlencode }}?by={{ type }}'";
        let notification = Notification {
            session_id: "a/b".to_owned(),
            kind: "session.terminated".to_owned(),
            ..Notification::sample()
        };
        assert_eq!(
            endpoint(url)
                .unwrap()
                .request_url(&notification)
                .unwrap()
                .as_str(),
            "https://example.com/kill/a%2Fb?by=session.terminated"
        );
    }

    #[test]
    fn only_temporary_errors_are_retried() {
        let is_retryable = |status: u16| {
            AttemptError::Status(StatusCode::from_u16(status).unwrap(), None).is_retryable()
        };
        assert!([500, 502, 503, 429, 408, 425].into_iter().all(is_retryable));
        assert!(![301, 302, 400, 401, 404, 410].into_iter().any(is_retryable));
    }
}
