//! `unstuck backup`, `restore` and `audit head` against a running service.

use std::path::Path;

use tonic::Code;

use crate::{
    lifecycle::{Running, check_refused, directory, output, text, unstuck},
    notify::{Receiver, entry},
};

/// Runs a command to its end: its exit code, and what it printed.
async fn run(dir: &Path, args: &[&str]) -> (Option<i32>, String, String) {
    let command = unstuck(dir, args, &[]);
    let ended = tokio::task::spawn_blocking(|| output(command))
        .await
        .unwrap();
    let (out, err) = (text(&ended.stdout), text(&ended.stderr));
    (ended.status.code(), out.to_owned(), err.to_owned())
}

#[tokio::test]
async fn a_backup_of_a_running_service_is_restored_after_a_stop() {
    let dir = directory(&[]);
    let running = Running::start(unstuck(dir.path(), &["serve"], &[]));
    let server = running.server().await;
    server.terminate("a").await;
    let (code, head, _) = run(dir.path(), &["audit", "head"]).await;
    assert_eq!(code, Some(0));
    let (code, line, error) = run(dir.path(), &["backup", "copy.db"]).await;
    assert_eq!(code, Some(0), "{error}");
    assert!(
        line.contains("intact: 1 records, 1 terminations in force"),
        "{line}"
    );
    let (_, hash) = head.trim_end().rsplit_once(' ').unwrap();
    assert!(
        head.starts_with("record 1 ") && line.contains(hash),
        "{head}{line}"
    );
    let (_, json, _) = run(dir.path(), &["audit", "head", "--output", "json"]).await;
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&json["record"], &json["hash"]), (&1.into(), &hash.into()));
    let (code, _, error) = run(dir.path(), &["backup", "copy.db"]).await;
    assert_eq!(code, Some(1), "a copy is not overwritten: {error}");

    server.terminate("later").await;
    let (code, _, error) = run(dir.path(), &["restore", "copy.db", "--force"]).await;
    assert_eq!(code, Some(1));
    assert!(error.contains("in use by another process"), "{error}");
    let (_, log) = running.stop().await;
    assert!(log.contains("end of the audit log"), "{log}");

    let (code, _, error) = run(dir.path(), &["restore", "copy.db"]).await;
    assert_eq!(code, Some(1));
    assert!(
        error.contains("later") && error.contains("--force"),
        "{error}"
    );
    let (code, line, error) = run(dir.path(), &["restore", "copy.db", "--force"]).await;
    assert_eq!(code, Some(0), "{error}");
    assert!(line.contains(hash), "{line}");
    let running = Running::start(unstuck(dir.path(), &["serve"], &[]));
    let server = running.server().await;
    assert!(server.get("a").await.unwrap().termination.is_some());
    let gone = server.get("later").await.unwrap_err();
    assert_eq!(gone.code(), Code::NotFound);
    running.stop().await;
    let (code, ..) = run(dir.path(), &["audit", "verify"]).await;
    assert_eq!(code, Some(0));
}

/// Each place where the end of the log is noted outside of the database has the same.
#[tokio::test]
async fn notifications_log_and_metric_have_the_head_that_the_database_has() {
    let mut receiver = Receiver::start(&[]).await;
    let dir = directory(&[("unstuck.toml", &entry("a", receiver.address, ""))]);
    let running = Running::start(unstuck(dir.path(), &["serve"], &[]));
    let server = running.server().await;
    let mut noted = Vec::new();
    for session in ["a", "b"] {
        server.terminate(session).await;
        noted.push(receiver.next().await.json()["data"]["audit"].clone());
        let (_, head, _) = run(dir.path(), &["audit", "head", "--output", "json"]).await;
        let head: serde_json::Value = serde_json::from_str(&head).unwrap();
        let audit = noted.last().unwrap();
        assert_eq!(audit["record"], noted.len());
        for key in ["record", "hash"] {
            assert_eq!(audit[key], head[key], "{audit} {head}");
        }
        let records = server.metric("unstuck_audit_records").await;
        assert_eq!(Some(records), head["record"].as_f64());
    }
    assert_ne!(noted[0]["hash"], noted[1]["hash"]);
    // The log has it at a stop and at a start.
    let hash = noted[1]["hash"].as_str().unwrap();
    let check = |log: &str, message: &str| {
        let line = log.lines().find(|line| line.contains(message));
        let line = line.unwrap_or_else(|| panic!("{message}: {log}"));
        assert!(line.contains(&format!("hash={hash}")), "{hash}: {line}");
    };
    let (_, log) = running.stop().await;
    check(&log, "end of the audit log");
    let again = Running::start(unstuck(dir.path(), &["serve"], &[]));
    let (_, log) = again.stop().await;
    check(&log, "the store is open");
}

#[tokio::test]
async fn a_copy_goes_into_an_empty_directory_and_a_damaged_one_nowhere() {
    let dir = directory(&[]);
    let running = Running::start(unstuck(dir.path(), &["serve"], &[]));
    running.server().await.terminate("a").await;
    running.stop().await;
    let (code, _, error) = run(dir.path(), &["backup", "copy.db"]).await;
    assert_eq!(code, Some(0), "{error}");
    let args = ["restore", "copy.db", "--dir", "elsewhere"];
    assert_eq!(run(dir.path(), &args).await.0, Some(0));
    let args = ["audit", "verify", "--dir", "elsewhere"];
    assert_eq!(run(dir.path(), &args).await.0, Some(0));

    let copy = rusqlite::Connection::open(dir.path().join("copy.db")).unwrap();
    copy.execute_batch("DELETE FROM tombstones").unwrap();
    let args = ["restore", "copy.db", "--dir", "third"];
    let (code, _, error) = run(dir.path(), &args).await;
    assert_eq!(code, Some(1));
    assert!(error.contains("copy.db is damaged"), "{error}");
    copy.execute_batch("PRAGMA user_version = 9").unwrap();
    check_refused(unstuck(dir.path(), &args, &[]), &["schema version 9"]);
    for command in ["backup", "restore"] {
        let args = [command, "none.db", "--dir", "nothing"];
        let (code, _, error) = run(dir.path(), &args).await;
        assert!(code != Some(0) && !error.is_empty(), "{command}");
    }
}

#[tokio::test]
async fn a_restore_over_a_damaged_database_says_that_lifted_terminations_are_unknown() {
    let unknown = "it is unknown which terminations the copy does not have";
    for is_readable in [true, false] {
        let dir = directory(&[]);
        let running = Running::start(unstuck(dir.path(), &["serve"], &[]));
        let server = running.server().await;
        server.terminate("a").await;
        let (code, _, error) = run(dir.path(), &["backup", "copy.db"]).await;
        assert_eq!(code, Some(0), "{error}");
        server.terminate("later").await;
        running.stop().await;
        let database = dir.path().join("unstuck-data/unstuck.db");
        if is_readable {
            let connection = rusqlite::Connection::open(database).unwrap();
            connection.execute_batch("DELETE FROM tombstones").unwrap();
        } else {
            std::fs::write(database, "not a database, however long it is").unwrap();
        }
        let (code, _, error) = run(dir.path(), &["restore", "copy.db"]).await;
        assert!(code == Some(1) && error.contains(unknown), "{error}");
        let (code, _, error) = run(dir.path(), &["restore", "copy.db", "--force"]).await;
        assert!(code == Some(0) && error.contains(unknown), "{error}");
    }
}
