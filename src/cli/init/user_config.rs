//! The keys of `[hooks]` that `init` sets in the user's own configuration. They are marked, so
//! that `--remove` takes out only these.

use toml_edit::{DocumentMut, Item, Table, TableLike, Value};

use super::file_change::{Edited, EditedState};

/// At the end of each line of ours.
const MARK: &str = " # by unstuck init";

/// A key of `[hooks]` and its value.
pub(super) type HookKey = (&'static str, &'static str);

/// With these nobody is at the terminal.
pub(super) const UNATTENDED_KEYS: &[HookKey] = &[("escalate", "\"stop\""), ("kill", "true")];
/// With these nothing changes for the agents.
pub(super) const SHADOW_KEYS: &[HookKey] = &[("shadow", "true")];

/// Sets these keys beside those that are set.
pub(super) fn set_keys(state: &EditedState, keys: &[HookKey]) -> Result<Edited, String> {
    let before = state.before.as_deref().unwrap_or_default();
    let document = parse(before)?;
    let old = own_keys(&document);
    let had_entries = !old.is_empty();
    let is_set = keys
        .iter()
        .all(|(key, value)| old.iter().any(|(name, text)| name == key && text == value));
    let after = if is_set {
        state.before.clone()
    } else {
        let keys = keys
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        Some(with_keys(before, keys)?)
    };
    Ok(Edited { after, had_entries })
}

/// Removes the keys that `init` has set.
pub(super) fn remove_keys(state: &EditedState) -> Result<Edited, String> {
    let edited = |after| Edited {
        after,
        had_entries: true,
    };
    let Some(before) = &state.before else {
        return Ok(edited(None));
    };
    let mut document = parse(before)?;
    let own = own_keys(&document);
    if own.is_empty() {
        return Ok(edited(Some(before.clone())));
    }
    // To the byte, if nothing else has been changed since.
    let original = state.backup.as_deref().unwrap_or_default();
    if with_keys(original, own.clone()).as_ref() == Ok(before) {
        return Ok(edited(state.backup.clone()));
    }
    if let Some(hooks) = document.get_mut("hooks").and_then(Item::as_table_like_mut) {
        for (key, _) in &own {
            hooks.remove(key);
        }
    }
    Ok(edited(Some(document.to_string())))
}

fn parse(text: &str) -> Result<DocumentMut, String> {
    text.parse()
        .map_err(|error: toml_edit::TomlError| error.message().to_owned())
}

fn own_keys(document: &DocumentMut) -> Vec<(String, String)> {
    let hooks = document.get("hooks").and_then(Item::as_table_like);
    let values = hooks.into_iter().flat_map(TableLike::iter);
    let own = values.filter_map(|(key, item)| {
        let value = item.as_value()?;
        let suffix = value.decor().suffix()?.as_str()?;
        (suffix == MARK).then(|| (key.to_owned(), plain(value)))
    });
    own.collect()
}

fn plain(value: &Value) -> String {
    let mut value = value.clone();
    value.decor_mut().clear();
    value.to_string()
}

fn with_keys(
    text: &str,
    keys: impl IntoIterator<Item = (String, String)>,
) -> Result<String, String> {
    let mut document = parse(text)?;
    let hooks = document.entry("hooks").or_insert(Item::Table(Table::new()));
    let hooks = hooks.as_table_like_mut().ok_or("`hooks` is not a table")?;
    for (key, value) in keys {
        let mut value: Value = value.parse().map_err(|_| "invalid value")?;
        value.decor_mut().set_suffix(MARK);
        hooks.insert(&key, Item::Value(value));
    }
    Ok(document.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(before: &str, backup: Option<&str>) -> EditedState {
        EditedState {
            before: Some(before.to_owned()),
            backup: backup.map(str::to_owned),
        }
    }

    #[test]
    fn keys_are_set_beside_others_and_only_they_are_removed() {
        let original = "# mine\n[hooks]\nkill = false # never\nprefix = \"x \"\n";
        let set = set_keys(&state(original, None), UNATTENDED_KEYS).unwrap();
        let text = set.after.unwrap();
        assert!(text.starts_with("# mine\n[hooks]\n"), "{text}");
        assert!(text.contains("kill = true # by unstuck init\n"), "{text}");
        assert!(
            text.contains("escalate = \"stop\" # by unstuck init\n"),
            "{text}"
        );
        let again = set_keys(&state(&text, Some(original)), UNATTENDED_KEYS).unwrap();
        assert_eq!(again.after.as_ref(), Some(&text));
        assert!(again.had_entries && !set.had_entries);
        // To the byte, or what is left.
        let removed = remove_keys(&state(&text, Some(original))).unwrap();
        assert_eq!(removed.after.unwrap(), original);
        let changed = text.replace("\"x \"", "\"y \"");
        let removed = remove_keys(&state(&changed, Some(original))).unwrap();
        assert_eq!(removed.after.unwrap(), "# mine\n[hooks]\nprefix = \"y \"\n");
        // A file of ours.
        let set = set_keys(
            &EditedState {
                before: None,
                backup: None,
            },
            SHADOW_KEYS,
        )
        .unwrap();
        let text = set.after.unwrap();
        assert_eq!(text, "[hooks]\nshadow = true # by unstuck init\n");
        assert_eq!(remove_keys(&state(&text, None)).unwrap().after, None);
        // What a person wrote stays.
        let own = "[hooks]\nkill = true\n";
        assert_eq!(remove_keys(&state(own, None)).unwrap().after.unwrap(), own);
    }
}
