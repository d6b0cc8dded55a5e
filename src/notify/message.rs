//! The content of a notification, and its formats.

use minijinja::{Environment, UndefinedBehavior};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Serialize;
use serde_json::{Value, json};

use super::settings::Format;
use crate::domain::{Action, Effect, OPERATOR, VerdictRecord, sanitize};

/// A notification of a verdict: the input of the built-in formats and of templates.
#[derive(Serialize)]
pub(super) struct Notification {
    /// The verdict's id, the same in every attempt.
    pub id: String,
    /// `session.terminated`, …
    #[serde(rename = "type")]
    pub kind: String,
    pub session_id: String,
    pub action: String,
    pub detector: String,
    pub pattern: String,
    pub reason: String,
    pub labels: Value,
    pub time: Value,
    /// The whole verdict, as in the API.
    pub verdict: Value,
    /// The verdict's record in the audit log: its number and hash. Null without a disk.
    pub audit: Value,
    /// The verdict on one line.
    pub summary: String,
    /// The verdict's page in the console. Empty: its address is not configured.
    pub url: String,
}

/// The `source` of CloudEvents.
const CLOUD_EVENT_SOURCE: &str = "/unstuck";
/// Discord rejects more than 2,000 characters, and every character may need a
/// backslash. Slack rejects more than 3,000 in a block, and `&` becomes five.
const SUMMARY_CHARS_MAX: usize = 590;
const QUOTE_CHARS_MAX: usize = 300;

impl Notification {
    /// `verdict_json` is the verdict as in the API; `console_url` is empty if it is not known.
    pub fn new(record: &VerdictRecord, verdict_json: Value, console_url: &str) -> Self {
        let verdict = &record.verdict;
        Self {
            id: verdict.id.to_string(),
            kind: event_type(record),
            session_id: verdict.session.to_string(),
            action: verdict
                .action
                .map(Action::name)
                .unwrap_or_default()
                .to_owned(),
            detector: verdict.detector.to_string(),
            pattern: verdict.pattern.clone(),
            reason: verdict.reason.clone(),
            labels: json!(*record.labels),
            time: verdict_json.get("time").cloned().unwrap_or_default(),
            summary: render_summary(record),
            audit: json!(record.position),
            url: verdict_url(console_url, &verdict.id.to_string()),
            verdict: verdict_json,
        }
    }

    /// A notification for the validation of templates.
    pub fn sample() -> Self {
        let placeholder = || "x".to_owned();
        Self {
            id: placeholder(),
            kind: placeholder(),
            session_id: placeholder(),
            action: placeholder(),
            detector: placeholder(),
            pattern: placeholder(),
            reason: placeholder(),
            labels: json!({}),
            time: json!(placeholder()),
            verdict: json!({}),
            audit: json!({ "record": 1, "hash": placeholder() }),
            summary: placeholder(),
            url: verdict_url("https://console.example", "x"),
        }
    }

    /// The variables of a template.
    pub fn template_context(&self) -> minijinja::Value {
        minijinja::Value::from(minijinja::value::Serde(self))
    }

    pub fn render_body(&self, format: Format) -> String {
        let body = match format {
            Format::CloudEvents => json!({
                "specversion": "1.0",
                "id": self.id,
                "source": CLOUD_EVENT_SOURCE,
                "type": self.kind,
                "subject": self.session_id,
                "time": self.time,
                "datacontenttype": "application/json",
                "data": {
                    "verdict": self.verdict,
                    "labels": self.labels,
                    "audit": self.audit,
                    "url": self.url,
                },
            }),
            Format::Slack => {
                let mut text = escape_slack(&self.summary);
                if !self.url.is_empty() {
                    text += &format!(" <{}|Open in the console>", escape_slack(&self.url));
                }
                json!({
                    "text": text,
                    "blocks": [{ "type": "section", "text": { "type": "mrkdwn", "text": text } }],
                })
            }
            // Agent text cannot mention anyone.
            Format::Discord => {
                let mut content = escape_discord(&self.summary);
                if !self.url.is_empty() {
                    // In angle brackets it has no preview.
                    content += &format!(" [Open in the console](<{}>)", self.url);
                }
                json!({ "content": content, "allowed_mentions": { "parse": [] } })
            }
        };
        body.to_string()
    }
}

impl Format {
    pub fn content_type(self) -> &'static str {
        match self {
            Self::CloudEvents => "application/cloudevents+json",
            Self::Slack | Self::Discord => "application/json",
        }
    }
}

/// The type of a CloudEvent, such as `session.terminated`.
fn event_type(record: &VerdictRecord) -> String {
    let happened = match record.verdict.action {
        _ if record.effect == Effect::Disobeyed => "disobeyed",
        Some(Action::Alert) => "alerted",
        Some(Action::Warn) => "warned",
        Some(Action::Throttle) => "throttled",
        Some(Action::Checkpoint) => "checkpointed",
        Some(Action::Ask) => "asked",
        Some(Action::Block) => "blocked",
        Some(Action::Break) => "broken",
        Some(Action::Escalate) => "escalated",
        Some(Action::Terminate) => "terminated",
        None => "changed",
    };
    format!("session.{happened}")
}

fn render_summary(record: &VerdictRecord) -> String {
    let verdict = &*record.verdict;
    let action = match record.effect {
        Effect::Disobeyed => "disobeyed",
        _ => verdict.action.map(Action::name).unwrap_or("changed"),
    };
    let quoted = |words: &str| sanitize::quote(words, QUOTE_CHARS_MAX);
    let mut line = format!(
        "{} session {}",
        action.to_uppercase(),
        quoted(verdict.session.as_str())
    );
    if *verdict.detector != *OPERATOR {
        line += &format!(" ({})", verdict.detector);
    }
    for part in [&verdict.pattern, &verdict.reason] {
        if !part.is_empty() {
            line += &format!(": {}", quoted(part));
        }
    }
    let wasted = &verdict.wasted;
    if wasted.events > 0 {
        let cached = match wasted.cached_tokens {
            0 => String::new(),
            cached => format!(" ({cached} cached)"),
        };
        line += &format!(
            ". Wasted: {} events, {} tokens{cached}, ${:.2}",
            wasted.events, wasted.tokens, wasted.usd
        );
    }
    sanitize::quote(&line, SUMMARY_CHARS_MAX)
}

/// The page of a verdict in the console. To open it changes nothing.
fn verdict_url(console_url: &str, id: &str) -> String {
    if console_url.is_empty() {
        return String::new();
    }
    format!(
        "{console_url}/verdict?id={}",
        utf8_percent_encode(id, URL_ESCAPED)
    )
}

/// Slack interprets `<…>` as links and mentions, and requires these three escapes.
fn escape_slack(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

/// Discord interprets Markdown, in which a backslash escapes a character.
fn escape_discord(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if "\\*_~`|>#[]()-@<:".contains(c) {
            out.push('\\');
        }
        out.push(c);
    }
    out
}

/// All but the unreserved characters of RFC 3986.
const URL_ESCAPED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

/// Templates for URLs and bodies.
pub(super) fn template_environment() -> Environment<'static> {
    /// Stops a runaway template.
    const FUEL: u64 = 50_000;
    let mut templates = Environment::new();
    templates.set_undefined_behavior(UndefinedBehavior::Strict);
    templates.set_fuel(Some(FUEL));
    // Jinja's own filter does not escape `/`, so a session id could change the path.
    templates.add_filter("urlencode", |text: &str| {
        utf8_percent_encode(text, URL_ESCAPED).to_string()
    });
    templates
}

#[cfg(test)]
mod tests {
    use super::*;

    fn notification(summary: &str) -> Notification {
        Notification {
            summary: summary.to_owned(),
            kind: "session.terminated".to_owned(),
            session_id: "s".to_owned(),
            url: String::new(),
            ..Notification::sample()
        }
    }

    fn body(format: Format, summary: &str) -> Value {
        serde_json::from_str(&notification(summary).render_body(format)).unwrap()
    }

    #[test]
    fn a_cloud_event_has_the_required_attributes() {
        let event = body(Format::CloudEvents, "");
        for (key, value) in [
            ("specversion", "1.0"),
            ("type", "session.terminated"),
            ("source", "/unstuck"),
            ("subject", "s"),
            ("id", "x"),
        ] {
            assert_eq!(event[key], value, "{key}");
        }
        assert!(event["data"]["verdict"].is_object());
    }

    #[test]
    fn agent_text_cannot_mention_or_link() {
        let hostile = "<!channel> <https://evil|click> @everyone **x** `y` & [a](b)";
        let slack = body(Format::Slack, hostile);
        let text = slack["text"].as_str().unwrap();
        assert!(!text.contains(['<', '>']) && text.contains("&amp; "));
        assert_eq!(slack["blocks"][0]["text"]["text"], text);
        let discord = body(Format::Discord, hostile);
        assert_eq!(discord["allowed_mentions"]["parse"], json!([]));
        assert!(
            discord["content"]
                .as_str()
                .unwrap()
                .contains("\\*\\*x\\*\\*")
        );
    }

    #[test]
    fn a_message_links_to_its_verdict_if_the_console_is_known() {
        assert_eq!(verdict_url("", "v1"), "");
        let linked = Notification {
            url: verdict_url("https://u.example/console", "a b&c"),
            ..notification("WARN")
        };
        let url = "https://u.example/console/verdict?id=a%20b%26c";
        let body = |format| -> Value { serde_json::from_str(&linked.render_body(format)).unwrap() };
        assert_eq!(body(Format::CloudEvents)["data"]["url"], url);
        let text = format!("WARN <{url}|Open in the console>");
        assert_eq!(body(Format::Slack)["text"], text);
        let text = format!("WARN [Open in the console](<{url}>)");
        assert_eq!(body(Format::Discord)["content"], text);
    }

    #[test]
    fn a_message_respects_the_limits_of_slack_and_discord() {
        let long = sanitize::quote(&"*".repeat(9_000), SUMMARY_CHARS_MAX);
        let discord = body(Format::Discord, &long);
        assert!(discord["content"].as_str().unwrap().chars().count() <= 2_000);
        let long = sanitize::quote(&"&".repeat(9_000), SUMMARY_CHARS_MAX);
        let slack = body(Format::Slack, &long);
        assert!(slack["text"].as_str().unwrap().chars().count() <= 40_000);
        let block = slack["blocks"][0]["text"]["text"].as_str().unwrap();
        assert!(block.chars().count() <= 3_000, "{}", block.chars().count());
    }
}
