use std::io::BufRead;

use super::line::{TraceLine, TraceLineError};
use crate::ingest::NdjsonReader;

#[track_caller]
fn check_lines(mut reader: impl BufRead, expected: &[(u64, &str)]) {
    let mut lines = NdjsonReader::new(&mut reader);
    let mut found = Vec::new();
    while let Some((number, line)) = lines.next_line().unwrap() {
        let text = line.map_or_else(
            |error| error.to_string(),
            |line| String::from_utf8_lossy(line).into_owned(),
        );
        found.push((number, text));
    }
    let borrowed: Vec<_> = found.iter().map(|(n, text)| (*n, text.as_str())).collect();
    assert_eq!(borrowed, expected);
}

#[test]
fn line_numbers_include_empty_lines() {
    check_lines(&b""[..], &[]);
    check_lines(&b"\n\n"[..], &[]);
    check_lines(&b"a\n\n \t\nb"[..], &[(1, "a"), (4, "b")]);
    check_lines(&b"\xef\xbb\xbfa\r\n\r\nb\r\n"[..], &[(1, "a"), (3, "b")]);
    check_lines(&b"\xef\xbb\xbf\na"[..], &[(2, "a")]);
}

#[test]
fn a_line_that_is_too_long_is_skipped_to_its_end() {
    const MAX: usize = NdjsonReader::<&[u8]>::LINE_BYTES_MAX;
    let mut file = vec![b'x'; MAX + 1];
    file.extend_from_slice(b"\nb\n");
    let too_long = "the line is longer than 16 MiB";
    check_lines(&*file, &[(1, too_long), (2, "b")]);
    file.truncate(MAX + 1);
    check_lines(&*file, &[(1, too_long)]);
}

#[test]
fn a_line_may_be_as_long_as_the_limit() {
    const MAX: usize = NdjsonReader::<&[u8]>::LINE_BYTES_MAX;
    let mut file = vec![b'x'; MAX];
    file.push(b'\n');
    let mut lines = NdjsonReader::new(&*file);
    let (_, line) = lines.next_line().unwrap().unwrap();
    assert_eq!(line.unwrap().len(), MAX);
}

#[track_caller]
fn check(json: &str, expected: &str) {
    let parsed = match TraceLine::parse(json.as_bytes()) {
        Ok(TraceLine::Event(event)) => format!("event of {}", event.session),
        Ok(TraceLine::Delta(delta)) => format!("delta of {}", delta.session),
        Err(TraceLineError::Json(_)) => "JSON error".to_owned(),
        Err(error) => error.to_string(),
    };
    assert_eq!(parsed, expected);
}

#[test]
fn a_line_is_an_event_or_a_delta() {
    let event = r#"{"session_id":"s","turn":{"role":"ROLE_AGENT","text":"x"}}"#;
    check(event, "event of s");
    check(&event.replace("session_id", "sessionId"), "event of s");
    check(r#"{"delta":{"session_id":"s","text":"x"}}"#, "delta of s");
    check(r#"{ "delta" : {"sessionId":"s"}}"#, "delta of s");
    check(r#"{"\u0064elta":{"session_id":"s"}}"#, "delta of s");
    check(r#"{"delta":{},"x":1}"#, "JSON error");
    check(r#"{"delta":{}}"#, "session_id: is required");
    check(r#"{"session_id":"s"}"#, "body: is required");
    check("{}", "session_id: is required");
    check("[]", "JSON error");
    check("x", "JSON error");
}

#[test]
fn a_line_must_be_utf8() {
    let error = TraceLine::parse(b"{\"session_id\":\"\xff\"}").unwrap_err();
    assert!(error.to_string().starts_with("not UTF-8: "), "{error}");
}

#[test]
fn a_json_error_names_its_column() {
    let message = TraceLine::parse(br#"{"session_id":"s","turm":{}}"#)
        .unwrap_err()
        .to_string();
    assert!(
        message.starts_with("unknown field `turm`, expected one of"),
        "{message}"
    );
    assert!(message.ends_with(" (column 24)"), "{message}");
}
