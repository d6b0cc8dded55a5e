//! Our entries in a settings file of an agent: JSON with comments. Everything else in the file
//! stays unchanged.

use jsonc_parser::{
    ParseOptions,
    cst::{CstArray, CstInputValue, CstObject, CstRootNode},
};
use serde_json::Value;

use super::hook_command::HookCommand;

/// The name of our hooks, for agents whose hooks have names.
const HOOK_NAME: &str = "unstuck";

/// The unit of an agent's timeouts.
#[derive(Clone, Copy)]
pub(in crate::cli) enum TimeUnit {
    Seconds,
    Millis,
}

impl TimeUnit {
    pub fn of_secs(self, secs: u64) -> u64 {
        match self {
            Self::Seconds => secs,
            Self::Millis => secs * 1_000,
        }
    }
}

/// Our hook for an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::cli) struct HookEntry {
    pub event: String,
    pub matcher: Option<String>,
    pub form: HookForm,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::cli) enum HookForm {
    Command {
        command: String,
        timeout: u64,
        has_name: bool,
    },
    Http {
        url: String,
        token_env: Option<String>,
        timeout: u64,
    },
}

impl HookForm {
    /// Whether the hook has a name, as those of Gemini have.
    pub fn has_name(&self) -> bool {
        matches!(self, Self::Command { has_name: true, .. })
    }

    fn to_input(&self) -> CstInputValue {
        let number = |value: &u64| CstInputValue::Number(value.to_string());
        let members: Vec<(&str, CstInputValue)> = match self {
            Self::Command {
                command,
                timeout,
                has_name,
            } => {
                let name = has_name.then(|| ("name", HOOK_NAME.into()));
                let rest = [
                    ("type", "command".into()),
                    ("command", command.as_str().into()),
                    ("timeout", number(timeout)),
                ];
                name.into_iter().chain(rest).collect()
            }
            Self::Http {
                url,
                token_env,
                timeout,
            } => {
                let mut members = vec![
                    ("type", "http".into()),
                    ("url", url.as_str().into()),
                    ("timeout", number(timeout)),
                ];
                if let Some(name) = token_env {
                    let value = format!("Bearer ${name}");
                    members.push(("headers", object([("Authorization", value.into())])));
                    let names = vec![name.as_str().into()];
                    members.push(("allowedEnvVars", CstInputValue::Array(names)));
                }
                members
            }
        };
        object(members)
    }

    /// Reads a hook. `None`: it is not ours.
    fn from_value(value: &Value, agent: &str) -> Option<Self> {
        let text = |name: &str| value.get(name).and_then(Value::as_str);
        let timeout = value.get("timeout").and_then(Value::as_u64);
        let timeout = timeout.unwrap_or_default();
        if let Some(command) = text("command").filter(|it| HookCommand::parse(it, agent).is_some())
        {
            return Some(Self::Command {
                command: command.to_owned(),
                timeout,
                has_name: text("name") == Some(HOOK_NAME),
            });
        }
        let is_own = |url: &&str| {
            let (route, _labels) = url.split_once('?').unwrap_or((url, ""));
            route.ends_with(&format!("/v1/hooks/{agent}"))
        };
        let url = text("url").filter(is_own)?;
        let token = value.pointer("/headers/Authorization");
        let token = token.and_then(Value::as_str);
        let token_env = token.and_then(|it| it.strip_prefix("Bearer $"));
        Some(Self::Http {
            url: url.to_owned(),
            token_env: token_env.map(str::to_owned),
            timeout,
        })
    }
}

fn object<'a>(members: impl IntoIterator<Item = (&'a str, CstInputValue)>) -> CstInputValue {
    let owned = members
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value));
    CstInputValue::Object(owned.collect())
}

/// A settings file of an agent.
pub(in crate::cli) struct SettingsFile {
    root: CstRootNode,
    agent: String,
}

impl SettingsFile {
    /// Parses the file. The error is the reason why it cannot be changed.
    pub fn parse(text: &str, agent: &str) -> Result<Self, String> {
        // Accept only what the agents accept.
        let options = ParseOptions {
            allow_comments: true,
            allow_trailing_commas: true,
            allow_loose_object_property_names: false,
            allow_missing_commas: false,
            allow_single_quoted_strings: false,
            allow_hexadecimal_numbers: false,
            allow_unary_plus_numbers: false,
            allow_bare_decimal_point_numbers: false,
            allow_non_finite_numbers: false,
            allow_extended_string_escapes: false,
        };
        let text = if text.trim().is_empty() { "{}\n" } else { text };
        let root = CstRootNode::parse(text, &options).map_err(|error| error.to_string())?;
        if root.object_value().is_none() {
            return Err("it is not an object".to_owned());
        }
        Ok(Self {
            root,
            agent: agent.to_owned(),
        })
    }

    pub fn text(&self) -> String {
        self.root.to_string()
    }

    /// Our hooks, in the order of the file.
    pub fn entries(&self) -> Vec<HookEntry> {
        let placed = self.placed_entries().into_iter();
        placed.map(|(entry, _)| entry).collect()
    }

    /// Our hooks with their positions: the group of their event, and the hook in it.
    pub fn placed_entries(&self) -> Vec<(HookEntry, (usize, usize))> {
        let root = self.root.to_serde_value().unwrap_or_default();
        let Some(events) = root.get("hooks").and_then(Value::as_object) else {
            return Vec::new();
        };
        // Events in the order of the file, which a map does not keep.
        let hooks = self
            .root
            .object_value()
            .and_then(|it| it.object_value("hooks"));
        let names = hooks.map(|it| it.properties()).unwrap_or_default();
        let names = names.iter().filter_map(|property| property.decoded_name());
        let mut entries = Vec::new();
        for event in names {
            let groups = events.get(&event).and_then(Value::as_array);
            for (group_at, group) in groups.into_iter().flatten().enumerate() {
                let matcher = group.get("matcher").and_then(Value::as_str);
                let hooks = group.get("hooks").and_then(Value::as_array);
                for (hook_at, hook) in hooks.into_iter().flatten().enumerate() {
                    if let Some(form) = HookForm::from_value(hook, &self.agent) {
                        let entry = HookEntry {
                            event: event.clone(),
                            matcher: matcher.map(str::to_owned),
                            form,
                        };
                        entries.push((entry, (group_at, hook_at)));
                    }
                }
            }
        }
        entries
    }

    /// Adds entries after those of others. `Err`: a member has another type.
    pub fn add(&self, entries: &[HookEntry], has_switch: bool) -> Result<(), String> {
        let wrong = |name: &str| format!("`{name}` has another type than expected");
        let root = self.root.object_value().ok_or_else(|| wrong("the file"))?;
        if has_switch {
            let config = root.object_value_or_create("hooksConfig");
            let config = config.ok_or_else(|| wrong("hooksConfig"))?;
            if config.get("enabled").is_none() {
                config.append("enabled", true.into());
            }
        }
        let hooks = root.object_value_or_create("hooks");
        let hooks = hooks.ok_or_else(|| wrong("hooks"))?;
        for entry in entries {
            let groups = hooks.array_value_or_create(&entry.event);
            let groups = groups.ok_or_else(|| wrong(&format!("hooks.{}", entry.event)))?;
            let matcher = entry.matcher.as_deref();
            let matcher = matcher.map(|matcher| ("matcher", matcher.into()));
            let form = CstInputValue::Array(vec![entry.form.to_input()]);
            groups.append(object(matcher.into_iter().chain([("hooks", form)])));
            groups.ensure_multiline();
        }
        Ok(())
    }

    /// Removes our hooks, and groups that are empty without them.
    pub fn remove(&self) {
        let Some(root) = self.root.object_value() else {
            return;
        };
        let Some(hooks) = root.object_value("hooks") else {
            return;
        };
        let mut is_changed = false;
        for property in hooks.properties() {
            let Some(groups) = property.array_value() else {
                continue;
            };
            if self.remove_from_groups(&groups) {
                is_changed = true;
                if groups.elements().is_empty() {
                    property.remove();
                }
            }
        }
        if is_changed {
            remove_if_empty(&root, "hooks");
        }
    }

    fn remove_from_groups(&self, groups: &CstArray) -> bool {
        let mut is_changed = false;
        for group in groups.elements() {
            let hooks = group.as_object().and_then(|it| it.array_value("hooks"));
            let Some(hooks) = hooks else { continue };
            let mut is_own = false;
            for hook in hooks.elements() {
                let value = hook.to_serde_value().unwrap_or_default();
                if HookForm::from_value(&value, &self.agent).is_some() {
                    hook.remove();
                    is_own = true;
                }
            }
            if is_own && hooks.elements().is_empty() {
                group.remove();
            }
            is_changed |= is_own;
        }
        is_changed
    }

    /// The setting that disables the agent's hooks, if it is set.
    pub fn disabling_switch(&self) -> Option<&'static str> {
        let root = self.root.to_serde_value().unwrap_or_default();
        let is = |pointer: &str, value: bool| root.pointer(pointer) == Some(&Value::Bool(value));
        if is("/disableAllHooks", true) {
            return Some("disableAllHooks");
        }
        is("/hooksConfig/enabled", false).then_some("hooksConfig.enabled")
    }

    pub fn is_empty(&self) -> bool {
        let root = self.root.object_value();
        root.is_none_or(|root| root.properties().is_empty())
    }
}

fn remove_if_empty(object: &CstObject, name: &str) {
    let property = object.get(name);
    let value = property.as_ref().and_then(|it| it.object_value());
    if value.is_some_and(|value| value.properties().is_empty())
        && let Some(property) = property
    {
        property.remove();
    }
}
