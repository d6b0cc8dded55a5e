use std::{io::Write, path::PathBuf};

use super::{tokens::parse_bearer, *};
use crate::server::rpc;

/// A file with a token for each of these, and the headers to send.
fn file(of: &[(&str, TokenRole, &str)]) -> (tempfile::TempPath, Vec<String>) {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    let mut headers = Vec::new();
    for (name, role, tenant) in of {
        let secret = TokenSecret::new().unwrap();
        let entry = TokenLine::new(name, *role, &of_tenant(tenant), &secret).unwrap();
        writeln!(file, "{entry}").unwrap();
        headers.push(format!("Bearer {}", secret.reveal()));
    }
    (file.into_temp_path(), headers)
}

fn of_tenant(name: &str) -> Tenant {
    Tenant::parse(name).unwrap()
}

fn auth(tokens: PathBuf) -> Auth {
    Auth::new(&Settings { tokens }).unwrap()
}

const LIST: Access = Access::Roles(&[TokenRole::Viewer, TokenRole::Operator, TokenRole::Admin]);
const RECORD: Access = Access::Roles(&[TokenRole::Broker, TokenRole::Admin]);

#[test]
fn a_token_says_who_calls_and_for_whom() {
    let (path, headers) = file(&[
        ("ci", TokenRole::Broker, "acme"),
        ("alice@example.com", TokenRole::Operator, "default"),
    ]);
    let auth = auth(path.to_path_buf());
    assert_eq!(auth.len(), 2);
    let ci = auth.authorize(Some(headers[0].as_bytes()), RECORD).unwrap();
    assert_eq!(
        (&*ci.name, ci.role, ci.tenant.name()),
        ("ci", TokenRole::Broker, "acme")
    );
    let alice = auth.authorize(Some(headers[1].as_bytes()), LIST).unwrap();
    assert_eq!(
        (&*alice.name, alice.tenant.name()),
        ("alice@example.com", "default")
    );
    let denied = |header: Option<&[u8]>, access| auth.authorize(header, access).unwrap_err();
    assert_eq!(
        denied(Some(headers[0].as_bytes()), LIST),
        AuthError::InsufficientRole(TokenRole::Broker)
    );
    assert_eq!(denied(None, LIST), AuthError::NoToken);
    assert_eq!(denied(Some(b"Basic YTpi"), LIST), AuthError::NoToken);
    assert_eq!(
        denied(Some(b"Bearer unstuck_x"), LIST),
        AuthError::UnknownToken
    );
    let cut = &headers[1].as_bytes()[..headers[1].len() - 1];
    assert_eq!(denied(Some(cut), LIST), AuthError::UnknownToken);
}

#[test]
fn without_a_file_everybody_may_do_all() {
    let auth = auth(PathBuf::new());
    assert!(!auth.is_on());
    for access in [Access::Public, LIST, RECORD] {
        assert_eq!(auth.authorize(None, access), Ok(Caller::anonymous()));
    }
}

#[test]
fn what_nobody_has_decided_nobody_may_do() {
    let (path, headers) = file(&[("root", TokenRole::Admin, "default")]);
    let auth = auth(path.to_path_buf());
    let access = rpc::facts("/unstuck.v1.SessionService/DeleteEverything").access;
    let admitted = auth.authorize(Some(headers[0].as_bytes()), access);
    assert_eq!(admitted, Err(AuthError::InsufficientRole(TokenRole::Admin)));
}

#[test]
fn an_admin_may_do_all_and_nobody_sends_and_looks() {
    for row in rpc::TABLE {
        assert!(row.access.allows(TokenRole::Admin), "{}", row.path);
    }
    let access = |path| rpc::facts(path).access;
    assert_eq!(access("/unstuck.v1.DetectionService/RecordEvent"), RECORD);
    assert_eq!(access("/unstuck.v1.SessionService/ListSessions"), LIST);
    assert!(RECORD.allows(TokenRole::Broker) && !RECORD.allows(TokenRole::Operator));
    assert!(LIST.allows(TokenRole::Viewer) && !LIST.allows(TokenRole::Broker));
}

#[test]
fn a_changed_file_is_read_and_a_bad_one_is_not() {
    let (path, headers) = file(&[("a", TokenRole::Viewer, "x")]);
    let auth = auth(path.to_path_buf());
    assert!(auth.reload_if_changed().is_none());
    let (other, others) = file(&[("b", TokenRole::Viewer, "x"), ("c", TokenRole::Viewer, "x")]);
    // Whoever writes it anew begins with nothing.
    fs::write(&path, "").unwrap();
    assert!(auth.reload_if_changed().is_none());
    assert_eq!(auth.len(), 1);
    fs::copy(&other, &path).unwrap();
    assert!(auth.reload_if_changed().is_none());
    assert!(auth.reload_if_changed().unwrap().is_ok());
    assert!(auth.authorize(Some(headers[0].as_bytes()), LIST).is_err());
    assert!(auth.authorize(Some(others[1].as_bytes()), LIST).is_ok());
    fs::write(&path, "b = { role = 'king' }").unwrap();
    assert!(auth.reload_if_changed().is_none());
    let error = auth.reload_if_changed().unwrap().unwrap_err().to_string();
    assert!(error.contains(":1:") && error.contains("king"), "{error}");
    // Said once, until it changes again.
    assert!(auth.reload_if_changed().is_none());
    assert!(auth.authorize(Some(others[1].as_bytes()), LIST).is_ok());
}

#[test]
fn what_was_read_and_not_adopted_is_looked_at_again() {
    let (path, _) = file(&[("a", TokenRole::Viewer, "x")]);
    let auth = auth(path.to_path_buf());
    assert!(auth.reload_if_changed().is_none());
    fs::write(&path, "").unwrap();
    // A reload of the configuration that fails for another reason.
    auth.read_tokens().unwrap();
    assert!(auth.reload_if_changed().is_none());
    assert!(auth.reload_if_changed().unwrap().is_ok());
    assert!(auth.is_empty());
}

#[tokio::test]
async fn who_loses_a_token_hears_of_it() {
    let (path, headers) = file(&[("a", TokenRole::Viewer, "x"), ("b", TokenRole::Viewer, "x")]);
    let auth = auth(path.to_path_buf());
    let of = |n: usize| auth.authorize(Some(headers[n].as_bytes()), LIST).unwrap();
    let (a, b) = (of(0), of(1));
    let text = fs::read_to_string(&path).unwrap();
    let of_b = text.lines().find(|line| line.contains("\"b\"")).unwrap();
    fs::write(&path, of_b).unwrap();
    auth.reload().unwrap();
    auth.wait_until_revoked(&a).await;
    let still = tokio::time::timeout(std::time::Duration::ZERO, auth.wait_until_revoked(&b)).await;
    assert!(still.is_err());
}

#[track_caller]
fn refused(toml: &str, why: &str) {
    let error = tokens::Tokens::parse(toml).err().unwrap();
    assert!(error.1.contains(why), "{error:?}");
}

#[test]
fn a_file_that_makes_no_sense_is_refused_with_the_reason() {
    let hash = format!("blake3:{}", "0".repeat(64));
    refused("a = 7", "expected struct");
    refused("a = { role = 'viewer' }", "hash");
    refused("a = { role = 'viewer', hash = 'md5:0' }", "64 hexadecimal");
    refused(
        &format!("a = {{ role = 'viewer', hash = '{hash}', x = 1 }}"),
        "x",
    );
    refused(
        &format!("a = {{ role = 'viewer', tenant = 'a b', hash = '{hash}' }}"),
        "must be printable",
    );
    refused(
        &format!("'' = {{ role = 'viewer', hash = '{hash}' }}"),
        "a name is",
    );
    let twice = |name| format!("{name} = {{ role = 'viewer', hash = '{hash}' }}\n");
    refused(&format!("{}{}", twice("a"), twice("b")), "are one token");
    refused(&format!("{}{}", twice("a"), twice("a")), "duplicate key");
    let many = (0..1_025).map(|n| {
        let hash = blake3::hash(&[n as u8, (n >> 8) as u8]).to_hex();
        format!("t{n} = {{ role = 'viewer', hash = 'blake3:{hash}' }}\n")
    });
    refused(&many.collect::<String>(), "at most 1024");
}

#[test]
fn a_token_is_256_bits_and_is_not_shown_by_chance() {
    let (one, other) = (TokenSecret::new().unwrap(), TokenSecret::new().unwrap());
    assert_eq!(one.reveal().len(), "unstuck_".len() + 43);
    assert_ne!(one.reveal(), other.reveal());
    assert!(!format!("{one:?}").contains(one.reveal()));
    let entry = TokenLine::new("a \"b\"", TokenRole::Viewer, &of_tenant("x"), &one);
    assert!(entry.unwrap_err().contains("a name is"));
    let entry = TokenLine::new("ci", TokenRole::Viewer, &of_tenant("x"), &one).unwrap();
    assert!(!entry.to_string().contains(one.reveal()));
}

#[test]
fn the_scheme_is_read_in_any_case_and_a_huge_token_not_at_all() {
    assert_eq!(parse_bearer(b"bEARER  x "), Some(&b"x"[..]));
    assert_eq!(parse_bearer(b"Bearer "), None);
    assert_eq!(parse_bearer(b"Bear"), None);
    assert_eq!(
        parse_bearer(format!("Bearer {}", "x".repeat(257)).as_bytes()),
        None
    );
}
