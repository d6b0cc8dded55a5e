//! The keys of `[hooks]` that `init` sets in the user's own configuration. They are marked, so
//! that `--remove` removes only these.

use toml_edit::{DocumentMut, Item, Table, TableLike, Value};

use super::file_change::{EditResult, EditedState};

/// The comment that marks a key set by `init`.
const MARK: &str = " # by unstuck init";

/// A key of `[hooks]` and its value.
pub(super) type HookKey = (&'static str, &'static str);

/// The keys of `--unattended`.
pub(super) const UNATTENDED_KEYS: &[HookKey] = &[("escalate", "\"stop\""), ("kill", "true")];
/// The keys of `--shadow`.
pub(super) const SHADOW_KEYS: &[HookKey] = &[("shadow", "true")];

/// Sets these keys. The others that `init` has set are removed, or stay if `keeps_others`.
pub(super) fn set_keys(
    state: &EditedState,
    keys: &[HookKey],
    keeps_others: bool,
) -> Result<EditResult, String> {
    let before = state.before.as_deref().unwrap_or_default();
    let old = own_keys(&parse(before)?);
    let had_entries = !old.is_empty();
    let is_wanted = |name: &String| keys.iter().any(|(key, _)| key == name);
    let kept = old
        .iter()
        .filter(|(name, _)| keeps_others && !is_wanted(name));
    let mut wanted: Vec<(String, String)> = kept.cloned().collect();
    wanted.extend(
        keys.iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned())),
    );
    let is_same = old.len() == wanted.len() && old.iter().all(|key| wanted.contains(key));
    let after = if is_same {
        state.before.clone()
    } else {
        let without = remove_keys(state)?.after;
        if wanted.is_empty() {
            without
        } else {
            Some(with_keys(without.as_deref().unwrap_or_default(), wanted)?)
        }
    };
    Ok(EditResult { after, had_entries })
}

/// Removes the keys that `init` has set.
pub(super) fn remove_keys(state: &EditedState) -> Result<EditResult, String> {
    let edited = |after| EditResult {
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
    // Restore the backup exactly if nothing else has changed since.
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
        let set = set_keys(&state(original, None), UNATTENDED_KEYS, false).unwrap();
        let text = set.after.unwrap();
        assert!(text.starts_with("# mine\n[hooks]\n"), "{text}");
        assert!(text.contains("kill = true # by unstuck init\n"), "{text}");
        assert!(
            text.contains("escalate = \"stop\" # by unstuck init\n"),
            "{text}"
        );
        let again = set_keys(&state(&text, Some(original)), UNATTENDED_KEYS, false).unwrap();
        assert_eq!(again.after.as_ref(), Some(&text));
        assert!(again.had_entries && !set.had_entries);
        // To the byte, or what is left.
        let removed = remove_keys(&state(&text, Some(original))).unwrap();
        assert_eq!(removed.after.unwrap(), original);
        let changed = text.replace("\"x \"", "\"y \"");
        let removed = remove_keys(&state(&changed, Some(original))).unwrap();
        assert_eq!(removed.after.unwrap(), "# mine\n[hooks]\nprefix = \"y \"\n");
        // Others of ours stay or go.
        let both = set_keys(&state(&text, Some(original)), SHADOW_KEYS, true).unwrap();
        let both = both.after.unwrap();
        assert!(
            both.contains("kill = true") && both.contains("shadow = true"),
            "{both}"
        );
        let none = set_keys(&state(&both, Some(original)), &[], false).unwrap();
        assert_eq!(none.after.as_deref(), Some(original));
        // A file of ours.
        let set = set_keys(
            &EditedState {
                before: None,
                backup: None,
            },
            SHADOW_KEYS,
            false,
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
