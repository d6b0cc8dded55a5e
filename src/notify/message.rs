//! What is said, in the words of each receiver.

use minijinja::{Environment, UndefinedBehavior};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Serialize;
use serde_json::{Value, json};

use super::settings::Format;
use crate::domain::{Action, OPERATOR, Verdict, VerdictRecord, sanitize};

/// A notice about a verdict: what the built-in formats say and templates name.
#[derive(Serialize)]
pub(super) struct Notification {
    /// The verdict's id: the same however often it is sent.
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
    /// The whole verdict, as the API has it.
    pub verdict: Value,
    /// One line for a person.
    pub summary: String,
}

/// Where events come from, as CloudEvents asks.
const CLOUD_EVENT_SOURCE: &str = "/unstuck";
/// Discord refuses more than 2,000 characters, of which every one may need a
/// backslash, Slack more than 3,000 in a block, where `&` becomes five.
const SUMMARY_CHARS_MAX: usize = 590;
const QUOTE_CHARS_MAX: usize = 300;

impl Notification {
    /// `shown` is the verdict as the API has it.
    pub fn new(issued: &VerdictRecord, verdict_json: Value) -> Self {
        let verdict = &issued.verdict;
        Self {
            id: verdict.id.to_string(),
            kind: event_type(verdict),
            session_id: verdict.session.to_string(),
            action: verdict
                .action
                .map(Action::name)
                .unwrap_or_default()
                .to_owned(),
            detector: verdict.detector.to_string(),
            pattern: verdict.pattern.clone(),
            reason: verdict.reason.clone(),
            labels: json!(*issued.labels),
            time: verdict_json.get("time").cloned().unwrap_or_default(),
            summary: render_summary(verdict),
            verdict: verdict_json,
        }
    }

    /// For the check of templates.
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
            summary: placeholder(),
        }
    }

    /// What a template may name.
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
                "data": { "verdict": self.verdict, "labels": self.labels },
            }),
            Format::Slack => {
                let text = escape_slack(&self.summary);
                json!({
                    "text": text,
                    "blocks": [{ "type": "section", "text": { "type": "mrkdwn", "text": text } }],
                })
            }
            // No agent can ping anybody.
            Format::Discord => json!({
                "content": escape_discord(&self.summary),
                "allowed_mentions": { "parse": [] },
            }),
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

/// What has happened to the session, as the type of a CloudEvent.
fn event_type(verdict: &Verdict) -> String {
    let happened = match verdict.action {
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

fn render_summary(verdict: &Verdict) -> String {
    let action = verdict.action.map(Action::name).unwrap_or("changed");
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
        line += &format!(
            ". Wasted: {} events, {} tokens, ${:.2}",
            wasted.events, wasted.tokens, wasted.usd
        );
    }
    sanitize::quote(&line, SUMMARY_CHARS_MAX)
}

/// Slack reads `<…>` as links and mentions, and asks for these three escapes.
fn escape_slack(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

/// Discord reads Markdown, in which a backslash takes a sign for itself.
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

/// All but what RFC 3986 calls unreserved.
const URL_ESCAPED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

/// Templates for URLs and bodies.
pub(super) fn template_environment() -> Environment<'static> {
    /// A runaway template stops here.
    const FUEL: u64 = 50_000;
    let mut templates = Environment::new();
    templates.set_undefined_behavior(UndefinedBehavior::Strict);
    templates.set_fuel(Some(FUEL));
    // Jinja's own leaves `/` as it is, with which a session's name would choose
    // another path.
    templates.add_filter("urlencode", |text: &str| {
        utf8_percent_encode(text, URL_ESCAPED).to_string()
    });
    templates
}

#[cfg(test)]
mod tests {
    use super::*;

    fn notice(summary: &str) -> Notification {
        Notification {
            summary: summary.to_owned(),
            kind: "session.terminated".to_owned(),
            session_id: "s".to_owned(),
            ..Notification::sample()
        }
    }

    fn body(format: Format, summary: &str) -> Value {
        serde_json::from_str(&notice(summary).render_body(format)).unwrap()
    }

    #[test]
    fn a_cloud_event_has_what_the_specification_requires() {
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
    fn agent_text_can_neither_mention_nor_link() {
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
    fn a_message_stays_within_the_receivers_limits() {
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
