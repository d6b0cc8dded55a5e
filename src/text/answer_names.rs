//! What a prose answer names: files, identifiers, numbers. Two answers of a sub-agent in
//! other words that name the same say the same.
//!
//! Names that the task itself contains are left out, and so are ids: a run of letters and
//! digits without a mark between. Cost: linear in both texts, bounded by their limits.

use smallvec::SmallVec;

use super::{
    echo::{hash_token, tokens},
    mixing::{PI_DIGITS, folded_multiply},
};

/// Longer answers name so much that no two name the same.
const ANSWER_BYTES_MAX: usize = 2_048;
const TASK_BYTES_MAX: usize = 4_096;
/// A shorter mix of letters and digits is a name: `v2`, `L031`.
const ID_BYTES_MIN: usize = 6;

/// A hash of the names in an answer to a task; `None`: it has none.
pub fn hash_names(answer: &str, task: &str) -> Option<u64> {
    if answer.len() > ANSWER_BYTES_MAX || task.len() > TASK_BYTES_MAX {
        return None;
    }
    let names_of = |text| -> SmallVec<[u64; 32]> {
        let mut names: SmallVec<_> = tokens(text)
            .filter(|token| is_name(token.text))
            .map(|token| hash_token(token.text))
            .collect();
        names.sort_unstable();
        names.dedup();
        names
    };
    let asked = names_of(task);
    let mut answered = names_of(answer);
    answered.retain(|name| asked.binary_search(name).is_err());
    (!answered.is_empty()).then(|| {
        answered
            .iter()
            .fold(0, |hash, name| folded_multiply(hash ^ name, PI_DIGITS))
    })
}

/// Whether a token names something, rather than being a word or an id.
fn is_name(token: &str) -> bool {
    let has = |test: fn(&u8) -> bool| token.as_bytes().iter().any(&test);
    if has(|byte| matches!(byte, b'/' | b'.')) {
        return true;
    }
    // `agent_7f3a9c` is an id, `test_login` is a name.
    let last = token.rsplit(['_', '-']).next().unwrap_or_default();
    let is_id = last.len() >= ID_BYTES_MIN
        && last.bytes().any(|byte| byte.is_ascii_digit())
        && last.bytes().any(|byte| byte.is_ascii_alphabetic());
    !is_id && has(|byte| byte.is_ascii_digit() || *byte == b'_')
}

#[cfg(test)]
mod tests {
    use super::*;

    const TASK: &str = r#"{"prompt": "Find where webhooks of v2 are signed."}"#;

    #[test]
    fn a_reworded_answer_names_the_same() {
        let names = hash_names("Signing happens in hook/sign.go, line 42.", TASK);
        assert!(names.is_some());
        for reworded in [
            "I found it: line 42 of `hook/sign.go` computes the HMAC.",
            r#"{"agent": "eb44a0f979d7", "message": "See hook/sign.go (42) for v2"}"#,
            r#"{"agent": "agent_7f3a9c1e", "message": "See hook/sign.go (42)."}"#,
        ] {
            assert_eq!(names, hash_names(reworded, TASK), "{reworded}");
        }
    }

    #[test]
    fn an_answer_that_names_something_else_differs() {
        let names = hash_names("Fixed test_login.", TASK);
        assert_ne!(names, hash_names("Fixed test_logout.", TASK));
        assert_ne!(
            hash_names("3 are left.", TASK),
            hash_names("2 are left.", TASK)
        );
    }

    #[test]
    fn words_alone_name_nothing() {
        assert_eq!(hash_names("Handled the mail from Anna.", TASK), None);
        assert_eq!(hash_names("Done with v2", TASK), None);
    }
}
