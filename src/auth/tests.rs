use std::{io::Write, path::PathBuf};

use super::{tokens::parse_bearer, *};
use crate::server::rpc;

/// A file with a token for each of these, and the headers to send.
fn token_file(tokens: &[(&str, TokenRole, &str)]) -> (tempfile::TempPath, Vec<String>) {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    let mut headers = Vec::new();
    for (name, role, tenant_name) in tokens {
        let secret = TokenSecret::new().unwrap();
        let entry = TokenLine::new(name, *role, &tenant(tenant_name), &secret).unwrap();
        writeln!(file, "{entry}").unwrap();
        headers.push(format!("Bearer {}", secret.reveal()));
    }
    (file.into_temp_path(), headers)
}

fn tenant(name: &str) -> Tenant {
    Tenant::parse(name).unwrap()
}

fn auth(tokens: PathBuf) -> Auth {
    Auth::new(&Settings { tokens }).unwrap()
}

const LIST: Access = Access::Roles(&[TokenRole::Viewer, TokenRole::Operator, TokenRole::Admin]);
const RECORD: Access = Access::Roles(&[TokenRole::Broker, TokenRole::Admin]);

#[test]
fn a_token_identifies_the_caller_its_role_and_its_tenant() {
    let (path, headers) = token_file(&[
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
    let truncated = &headers[1].as_bytes()[..headers[1].len() - 1];
    let insufficient = AuthError::InsufficientRole(TokenRole::Broker);
    for (header, error) in [
        (Some(headers[0].as_bytes()), insufficient),
        (None, AuthError::NoToken),
        (Some(b"Basic YTpi"), AuthError::NoToken),
        (Some(b"Bearer unstuck_x"), AuthError::UnknownToken),
        (Some(truncated), AuthError::UnknownToken),
    ] {
        assert_eq!(auth.authorize(header, LIST), Err(error));
    }
}

#[test]
fn without_a_token_file_every_caller_has_full_access() {
    let auth = auth(PathBuf::new());
    assert!(!auth.is_on());
    for access in [Access::Public, LIST, RECORD] {
        assert_eq!(auth.authorize(None, access), Ok(Caller::anonymous()));
    }
}

#[test]
fn an_rpc_that_is_not_in_the_table_is_denied_to_every_role() {
    let (path, headers) = token_file(&[("root", TokenRole::Admin, "default")]);
    let auth = auth(path.to_path_buf());
    let access = rpc::find("/unstuck.v1.SessionService/DeleteEverything").access;
    let admitted = auth.authorize(Some(headers[0].as_bytes()), access);
    assert_eq!(admitted, Err(AuthError::InsufficientRole(TokenRole::Admin)));
}

#[test]
fn an_admin_has_full_access_and_no_other_role_both_records_and_lists() {
    for row in rpc::TABLE {
        assert!(row.access.allows(TokenRole::Admin), "{}", row.path);
    }
    let access = |path| rpc::find(path).access;
    assert_eq!(access("/unstuck.v1.DetectionService/RecordEvent"), RECORD);
    assert_eq!(access("/unstuck.v1.SessionService/ListSessions"), LIST);
    assert!(RECORD.allows(TokenRole::Broker) && !RECORD.allows(TokenRole::Operator));
    assert!(LIST.allows(TokenRole::Viewer) && !LIST.allows(TokenRole::Broker));
}

#[test]
fn a_changed_file_is_loaded_and_an_invalid_one_is_not() {
    let (path, headers) = token_file(&[("a", TokenRole::Viewer, "x")]);
    let auth = auth(path.to_path_buf());
    assert!(auth.reload_if_changed().is_none());
    let (other_path, other_headers) =
        token_file(&[("b", TokenRole::Viewer, "x"), ("c", TokenRole::Viewer, "x")]);
    // A program that rewrites the file truncates it first.
    fs::write(&path, "").unwrap();
    assert!(auth.reload_if_changed().is_none());
    assert_eq!(auth.len(), 1);
    fs::copy(&other_path, &path).unwrap();
    assert!(auth.reload_if_changed().is_none());
    assert!(auth.reload_if_changed().unwrap().is_ok());
    assert!(auth.authorize(Some(headers[0].as_bytes()), LIST).is_err());
    assert!(
        auth.authorize(Some(other_headers[1].as_bytes()), LIST)
            .is_ok()
    );
    fs::write(&path, "b = { role = 'king' }").unwrap();
    assert!(auth.reload_if_changed().is_none());
    let error = auth.reload_if_changed().unwrap().unwrap_err().to_string();
    assert!(error.contains(":1:") && error.contains("king"), "{error}");
    // Reported once, until the file changes again.
    assert!(auth.reload_if_changed().is_none());
    assert!(
        auth.authorize(Some(other_headers[1].as_bytes()), LIST)
            .is_ok()
    );
}

#[test]
fn tokens_that_were_read_and_not_applied_are_read_again() {
    let (path, _) = token_file(&[("a", TokenRole::Viewer, "x")]);
    let auth = auth(path.to_path_buf());
    assert!(auth.reload_if_changed().is_none());
    let (two, _) = token_file(&[("b", TokenRole::Viewer, "x"), ("c", TokenRole::Viewer, "x")]);
    fs::copy(&two, &path).unwrap();
    // A configuration reload that fails for another reason.
    auth.read_tokens().unwrap();
    assert!(auth.reload_if_changed().is_none());
    assert!(auth.reload_if_changed().unwrap().is_ok());
    assert_eq!(auth.len(), 2);
}

#[test]
fn tokens_hold_while_their_file_is_missing_or_empty() {
    let (path, headers) = token_file(&[("a", TokenRole::Viewer, "x")]);
    let text = fs::read_to_string(&path).unwrap();
    let auth = auth(path.to_path_buf());
    // The file is checked twice before it counts as changed.
    let reload = || {
        auth.reload_if_changed()
            .or_else(|| auth.reload_if_changed())
    };
    assert!(reload().is_none());
    for (content, problem) in [
        (None, "is missing or cannot be read"),
        (Some(""), "has no tokens"),
        (Some("# all tokens were removed\n"), "has no tokens"),
        (Some("a = 7"), "is invalid"),
    ] {
        match content {
            None => fs::remove_file(&path).unwrap(),
            Some(content) => fs::write(&path, content).unwrap(),
        }
        assert!(reload().unwrap().is_err(), "{problem}");
        assert!(reload().is_none(), "{problem}: reported once");
        assert_eq!(auth.file_problem(), Some(problem));
        assert!(auth.authorize(Some(headers[0].as_bytes()), LIST).is_ok());
        // A configuration reload is refused too, unless the file is fine.
        assert!(auth.read_tokens().is_err(), "{problem}");
    }
    fs::write(&path, text).unwrap();
    assert!(reload().unwrap().is_ok());
    assert_eq!(auth.file_problem(), None);
}

#[tokio::test]
async fn a_caller_whose_token_is_removed_is_notified() {
    let (path, headers) =
        token_file(&[("a", TokenRole::Viewer, "x"), ("b", TokenRole::Viewer, "x")]);
    let auth = auth(path.to_path_buf());
    let [a, b] = [0, 1].map(|n: usize| auth.authorize(Some(headers[n].as_bytes()), LIST).unwrap());
    let text = fs::read_to_string(&path).unwrap();
    let line_of_b = text.lines().find(|line| line.contains("\"b\"")).unwrap();
    fs::write(&path, line_of_b).unwrap();
    auth.reload().unwrap();
    auth.wait_until_revoked(&a).await;
    let revoked =
        tokio::time::timeout(std::time::Duration::ZERO, auth.wait_until_revoked(&b)).await;
    assert!(revoked.is_err(), "b still has its token");
}

#[track_caller]
fn assert_rejected(toml: &str, reason: &str) {
    let error = tokens::Tokens::parse(toml).err().unwrap();
    assert!(error.1.contains(reason), "{error:?}");
}

#[test]
fn an_invalid_token_file_is_rejected_with_the_reason() {
    let hash = format!("blake3:{}", "0".repeat(64));
    assert_rejected("a = 7", "expected struct");
    assert_rejected("a = { role = 'viewer' }", "hash");
    assert_rejected("a = { role = 'viewer', hash = 'md5:0' }", "64 hexadecimal");
    assert_rejected(
        &format!("a = {{ role = 'viewer', hash = '{hash}', x = 1 }}"),
        "x",
    );
    assert_rejected(
        &format!("a = {{ role = 'viewer', tenant = 'a b', hash = '{hash}' }}"),
        "must be printable",
    );
    assert_rejected(
        &format!("'' = {{ role = 'viewer', hash = '{hash}' }}"),
        "a name is",
    );
    let line = |name| format!("{name} = {{ role = 'viewer', hash = '{hash}' }}\n");
    assert_rejected(&format!("{}{}", line("a"), line("b")), "are the same token");
    assert_rejected(&format!("{}{}", line("a"), line("a")), "duplicate key");
    let many = (0..1_025).map(|n| {
        let hash = blake3::hash(&[n as u8, (n >> 8) as u8]).to_hex();
        format!("t{n} = {{ role = 'viewer', hash = 'blake3:{hash}' }}\n")
    });
    assert_rejected(&many.collect::<String>(), "at most 1024");
}

#[test]
fn a_token_has_256_random_bits_and_is_not_printed_by_accident() {
    let (one, other) = (TokenSecret::new().unwrap(), TokenSecret::new().unwrap());
    assert_eq!(one.reveal().len(), "unstuck_".len() + 43);
    assert_ne!(one.reveal(), other.reveal());
    assert!(!format!("{one:?}").contains(one.reveal()));
    let entry = TokenLine::new("a \"b\"", TokenRole::Viewer, &tenant("x"), &one);
    assert!(entry.unwrap_err().contains("a name is"));
    let entry = TokenLine::new("ci", TokenRole::Viewer, &tenant("x"), &one).unwrap();
    assert!(!entry.to_string().contains(one.reveal()));
}

#[test]
fn the_scheme_is_case_insensitive_and_an_oversized_token_is_ignored() {
    assert_eq!(parse_bearer(b"bEARER  x "), Some(&b"x"[..]));
    assert_eq!(parse_bearer(b"Bearer "), None);
    assert_eq!(parse_bearer(b"Bear"), None);
    assert_eq!(
        parse_bearer(format!("Bearer {}", "x".repeat(257)).as_bytes()),
        None
    );
}
