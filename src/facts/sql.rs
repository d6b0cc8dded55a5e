//! Statements of SQL: which of them change something, and what a database answers.

use super::tools::split_name_words;

/// Whether a tool runs SQL, by the words of its name.
pub(super) fn is_sql_tool(tool: &str) -> bool {
    const SQL_TOOL_WORDS: &[&str] = &[
        "sql", "query", "db", "database", "postgres", "mysql", "sqlite", "execute",
    ];
    let is_name = |word: &str| {
        SQL_TOOL_WORDS
            .iter()
            .any(|name| name.eq_ignore_ascii_case(word))
    };
    split_name_words(tool).any(is_name)
}

/// What is made, altered or dropped.
#[rustfmt::skip]
const OBJECT_KINDS: &[&str] = &[
    "table", "index", "view", "database", "schema", "sequence", "role", "user", "type", "function",
    "trigger", "extension", "temp", "temporary", "unique", "materialized", "or",
];

/// Whether a statement begins as one that changes something.
pub(super) fn is_mutation(statement: &str) -> bool {
    let mut words = statement.split_whitespace();
    let (Some(verb), Some(next)) = (words.next(), words.next()) else {
        return false;
    };
    let next_is = |known: &[&str]| known.iter().any(|known| known.eq_ignore_ascii_case(next));
    let verb_is = |known: &[&str]| known.iter().any(|known| known.eq_ignore_ascii_case(verb));
    if verb_is(&["insert", "replace", "merge"]) {
        next_is(&["into", "or", "ignore"])
    } else if verb_is(&["delete"]) {
        next_is(&["from"])
    } else if verb_is(&["update"]) {
        // "update the docs" is a sentence.
        words.any(|word| word.eq_ignore_ascii_case("set"))
    } else {
        verb_is(&["create", "alter", "drop", "truncate"]) && next_is(OBJECT_KINDS)
    }
}

/// What a database answers to such a statement, in lower case: "insert 0 1",
/// "query ok, 1 row affected (0.01 sec)", "create table".
pub(super) fn is_sql_receipt(text: &str) -> bool {
    const CHANGE_WORDS: &[&str] = &["affected", "inserted", "updated", "deleted", "changed"];
    let counts_rows = text.split_once(" row").is_some_and(|(before, after)| {
        let after = after.trim_start_matches(['s', '(', ')', ' ']);
        before.ends_with(|c: char| c.is_ascii_digit())
            && CHANGE_WORDS
                .iter()
                .any(|changed| after.starts_with(changed))
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
    fn statements_that_change_something_are_told_from_questions_and_sentences() {
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
        assert!(is_sql_tool("execute_sql") && !is_sql_tool("send_email"));
    }
}
