//! Contexts: services by name, for all commands.

use std::{fs, os::unix::fs::PermissionsExt, path::Path, process::Output};

use crate::{
    fake::FakeService,
    harness::{Server, ask},
    lifecycle::{directory, output, text, unstuck},
};

/// Runs a command with its contexts in `home`. The configuration has no known port.
fn run_in(home: &Path, args: &[&str], variables: &[(&str, &str)]) -> Output {
    output(unstuck(home, args, variables))
}

async fn start(session: &str) -> (Server, String) {
    let server = Server::start().await;
    server.play(session, ask("x")).await;
    let address = server.grpc.to_string();
    (server, address)
}

/// The sessions that a command lists.
async fn listed(home: &Path, args: &[&str], variables: &[(&str, &str)]) -> String {
    let args = [&["sessions", "--output", "json"], args].concat();
    let mut command = unstuck(home, &args, variables);
    let ran = tokio::task::spawn_blocking(move || command.output().unwrap());
    let ran = ran.await.unwrap();
    assert_eq!(ran.status.code(), Some(0), "{ran:?}");
    let lines = text(&ran.stdout).lines();
    let ids = lines.map(|line| {
        let session: serde_json::Value = serde_json::from_str(line).unwrap();
        session["session_id"].as_str().unwrap().to_owned()
    });
    ids.collect::<Vec<_>>().join(" ")
}

#[tokio::test]
async fn commands_use_the_context_that_is_named_or_current() {
    let home = directory(&[]);
    let home = home.path();
    let (_one, one) = start("of-one").await;
    let (_two, two) = start("of-two").await;
    let add = |name: &str, server: &str| {
        let added = run_in(home, &["context", "add", name, "--server", server], &[]);
        text(&added.stdout).to_owned()
    };
    assert_eq!(add("one", &one), "added one, the current context\n");
    assert_eq!(add("two", &two), "added two\n");
    assert_eq!(listed(home, &[], &[]).await, "of-one");
    assert_eq!(listed(home, &["--context", "two"], &[]).await, "of-two");
    let in_two = [("UNSTUCK_CONTEXT", "two")];
    assert_eq!(listed(home, &[], &in_two).await, "of-two");
    // What is nearer to the command wins.
    let at_two = [("UNSTUCK_SERVER", two.as_str())];
    assert_eq!(listed(home, &[], &at_two).await, "of-two");
    assert_eq!(listed(home, &["--context", "one"], &at_two).await, "of-one");
    assert_eq!(listed(home, &["--server", &one], &in_two).await, "of-one");
    let used = run_in(home, &["context", "use", "two"], &[]);
    assert_eq!(text(&used.stdout), format!("using two: {two}\n"));
    assert_eq!(listed(home, &[], &[]).await, "of-two");
    let healthy = tokio::task::spawn_blocking({
        let mut command = unstuck(home, &["health"], &[]);
        move || command.output().unwrap()
    });
    assert_eq!(text(&healthy.await.unwrap().stdout), "serving\n");
    // Without a context the configuration decides, as for the service itself.
    run_in(home, &["context", "remove", "two"], &[]);
    let configured = [("UNSTUCK__SERVER__GRPC", one.as_str())];
    assert_eq!(listed(home, &[], &configured).await, "of-one");
}

#[tokio::test]
async fn what_a_context_holds_is_sent_to_its_own_server_only() {
    let home = directory(&[("token", "a-secret")]);
    let (own, other) = (FakeService::default(), FakeService::default());
    let [own_address, other_address] = [own.start().await, other.start().await];
    let [own_address, other_address] = [own_address, other_address].map(|it| it.to_string());
    let named = ["context", "add", "prod", "--server", &own_address];
    let more = ["--operator", "kim-of-prod", "--token-file", "token"];
    run_in(home.path(), &[&named[..], &more].concat(), &[]);
    let reset = ["reset", "s", "--reason", "x"];
    let elsewhere = [&reset[..], &["--server", &other_address]].concat();
    for args in [&reset[..], &elsewhere] {
        let mut command = unstuck(home.path(), args, &[("USER", "kim")]);
        let ran = tokio::task::spawn_blocking(move || command.output().unwrap());
        let ran = ran.await.unwrap();
        assert_eq!(ran.status.code(), Some(0), "{ran:?}");
    }
    assert!(own.requests()[0].starts_with("reset by kim-of-prod with Bearer a-secret: "));
    assert!(other.requests()[0].starts_with("reset by kim: "));
}

#[test]
fn contexts_are_listed_replaced_and_removed() {
    let home = directory(&[("token", "t"), ("ca.pem", "")]);
    let home = home.path();
    let run = |args: &[&str]| {
        let ran = run_in(home, &[&["context"], args].concat(), &[]);
        let (out, err) = (text(&ran.stdout).to_owned(), text(&ran.stderr).to_owned());
        (ran.status.code().unwrap(), out, err)
    };
    let (code, out, _) = run(&["list"]);
    assert_eq!(code, 0);
    assert!(out.starts_with("No contexts."), "{out}");
    let prod = ["add", "prod", "--server", "https://u.example:50551"];
    let more = ["--token-file", "token", "--operator", "kim"];
    run(&[&prod[..], &more].concat());
    let (code, _, err) = run(&prod);
    assert_eq!(code, 2);
    assert!(err.contains("pass --replace"), "{err}");
    run(&["add", "dev", "--server", "127.0.0.1:1"]);
    let (_, out, _) = run(&["list"]);
    let rows: Vec<Vec<&str>> = out
        .lines()
        .map(|row| row.split_whitespace().collect())
        .collect();
    assert_eq!(rows[1], ["dev", "127.0.0.1:1"]);
    assert_eq!(
        rows[2][..4],
        ["*", "prod", "https://u.example:50551", "kim"]
    );
    let (_, out, _) = run(&["list", "--output", "json"]);
    let prod: serde_json::Value = serde_json::from_str(out.lines().nth(1).unwrap()).unwrap();
    assert_eq!(prod["current"], true);
    // Commands run in any directory.
    assert_eq!(prod["token_file"], home.join("token").to_str().unwrap());
    let (_, out, _) = run(&["remove", "prod"]);
    assert_eq!(out, "removed prod; there is no current context now\n");
    for args in [["use", "prod"], ["remove", "prod"]] {
        let (code, _, err) = run(&args);
        assert_eq!(
            (code, &*err),
            (3, "unstuck: there is no context \"prod\"\n")
        );
    }
    for wrong in [
        &["add", "a b", "--server", "x"][..],
        &["add", "a", "--server", "http://x", "--ca", "ca.pem"],
        &["add", "a", "--server", "no address"],
        &["add", "a", "--server", "x", "--cert", "ca.pem"],
    ] {
        assert_eq!(run(wrong).0, 2, "{wrong:?}");
    }
}

#[test]
fn only_the_owner_may_read_the_contexts_and_there_is_no_token_in_them() {
    let home = directory(&[("token", "a-secret")]);
    let add = [
        "context",
        "add",
        "a",
        "--server",
        "x",
        "--token-file",
        "token",
    ];
    let variables = [
        ("UNSTUCK_TOKEN", "another-secret"),
        ("UNSTUCK_CA", "/nowhere"),
    ];
    let added = run_in(home.path(), &add, &variables);
    assert_eq!(added.status.code(), Some(0), "{added:?}");
    let file = home.path().join(".config/unstuck/contexts.toml");
    let mode = fs::metadata(&file).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let stored = fs::read_to_string(&file).unwrap();
    assert!(
        !stored.contains("secret") && !stored.contains("nowhere"),
        "{stored}"
    );
    // A file that cannot be used is named, and a command that needs none works.
    fs::write(&file, "curent = 'a'").unwrap();
    let broken = run_in(home.path(), &["sessions"], &[]);
    assert_eq!(broken.status.code(), Some(2));
    let message = text(&broken.stderr);
    assert!(
        message.contains("contexts.toml") && message.contains("curent"),
        "{message}"
    );
    let elsewhere = run_in(home.path(), &["sessions", "--server", "127.0.0.1:1"], &[]);
    assert_eq!(elsewhere.status.code(), Some(1), "{elsewhere:?}");
}
