//! SQL: which statements change data, and what a database answers to those.

/// What follows `create`, `alter` or `drop`.
#[rustfmt::skip]
const OBJECT_KINDS: &[&str] = &[
    "table", "index", "view", "database", "schema", "sequence", "role", "user", "type", "function",
    "trigger", "extension", "temp", "temporary", "unique", "materialized", "or",
];

/// Whether a statement begins like one that changes data.
pub fn is_mutation(statement: &str) -> bool {
    let mut words = statement.split_whitespace();
    let (Some(verb), Some(next)) = (words.next(), words.next()) else {
        return false;
    };
    if is_any_of(verb, &["insert", "replace", "merge"]) {
        is_any_of(next, &["into", "or", "ignore"])
    } else if is_any_of(verb, &["delete"]) {
        is_any_of(next, &["from"])
    } else if is_any_of(verb, &["update"]) {
        // "update the docs" is a sentence.
        words.any(|word| word.eq_ignore_ascii_case("set"))
    } else {
        is_any_of(verb, &["create", "alter", "drop", "truncate"]) && is_any_of(next, OBJECT_KINDS)
    }
}

/// Whether a statement begins like one that only reads.
pub fn is_query(statement: &str) -> bool {
    let first = statement.split_whitespace().next().unwrap_or_default();
    is_any_of(
        first.trim_start_matches('('),
        &["select", "with", "show", "explain", "describe", "pragma"],
    )
}

fn is_any_of(word: &str, known: &[&str]) -> bool {
    known.iter().any(|known| known.eq_ignore_ascii_case(word))
}

/// Whether a text in lower case is a database's answer to such a statement: "insert 0 1",
/// "query ok, 1 row affected (0.01 sec)", "create table".
pub fn is_sql_receipt(text: &str) -> bool {
    const CHANGE_WORDS: &[&str] = &["affected", "inserted", "updated", "deleted", "changed"];
    let counts_rows = text.split_once(" row").is_some_and(|(before, after)| {
        let verb = after.trim_start_matches(['s', '(', ')', ' ']);
        before.ends_with(|c: char| c.is_ascii_digit())
            && CHANGE_WORDS.iter().any(|word| verb.starts_with(word))
    });
    let (verb, rest) = text.split_once(' ').unwrap_or((text, ""));
    let is_number = |word: &str| word.bytes().all(|byte| byte.is_ascii_digit());
    counts_rows
        || match verb {
            "insert" | "update" | "delete" | "merge" | "copy" => {
                !rest.is_empty() && rest.split(' ').all(is_number)
            }
            "begin" | "commit" | "rollback" => rest.is_empty(),
            "create" | "alter" | "drop" | "truncate" => OBJECT_KINDS.contains(&rest),
            _ => false,
        }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mutations_are_distinguished_from_queries_and_sentences() {
        for statement in [
            "INSERT INTO t VALUES (1)",
            "update t set a = 1",
            "DELETE FROM t",
            "create table t (a int)",
        ] {
            assert!(is_mutation(statement), "{statement}");
        }
        for statement in [
            "SELECT * FROM t",
            "update the docs",
            "create a ticket",
            "insert",
        ] {
            assert!(!is_mutation(statement), "{statement}");
        }
    }
}
