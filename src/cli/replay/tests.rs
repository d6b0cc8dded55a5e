use std::io::BufRead;

use super::{
    input::Lines,
    line::{Fault, Line},
    words::{cost, counted, grouped, money, ranges, wrapped},
};

#[test]
fn numbers_are_grouped_by_thousands() {
    let check = |number, expected: &str| assert_eq!(grouped(number), expected);
    check(0, "0");
    check(999, "999");
    check(1_000, "1,000");
    check(12_300, "12,300");
    check(1_234_567, "1,234,567");
}

#[test]
fn small_amounts_do_not_look_like_nothing() {
    let check = |usd, expected: &str| assert_eq!(money(usd), expected);
    check(0.000_01, "under $0.0001");
    check(0.006_9, "$0.0069");
    check(0.41, "$0.41");
    check(0.999, "$1.00");
    check(1_234.5, "$1,234.50");
    check(1e300, "$1.0e300");
}

#[test]
fn counts_have_their_plural() {
    assert_eq!(counted(0, "event"), "no events");
    assert_eq!(counted(1, "event"), "1 event");
    assert_eq!(counted(1_200, "event"), "1,200 events");
}

#[test]
fn a_cost_leaves_out_what_the_trace_does_not_tell() {
    assert_eq!(cost(5, 0, 0.0), "5 events");
    assert_eq!(cost(5, 12_300, 0.41), "5 events, 12,300 tokens, $0.41");
}

#[test]
fn neighbouring_events_become_a_range() {
    let check = |indexes: &[i32], expected: &str| assert_eq!(ranges(indexes), expected);
    check(&[], "");
    check(&[7], "7");
    check(&[7, 8], "7, 8");
    check(&[10, 11, 12, 13], "10–13");
    check(&[1, 3, 4, 5, 9], "1, 3–5, 9");
    check(&[i32::MAX - 1, i32::MAX], "2147483646, 2147483647");
}

#[test]
fn text_is_wrapped_and_cannot_steer_a_terminal() {
    let check = |text: &str, expected: &[&str]| assert_eq!(wrapped(text, 8), expected);
    check("", &[]);
    check(" \u{200b} ", &[]);
    check("one two three", &["one two", "three"]);
    check("abcdefghijkl m", &["abcdefgh", "ijkl m"]);
    check("a\u{200b} \u{202e} b", &["a b"]);
    check("\x1b[31mred\x07\r\nx", &["[31mred", "x"]);
    check("漢字漢字漢字", &["漢字漢字", "漢字"]);
}

#[track_caller]
fn read(mut reader: impl BufRead, expected: &[(u64, &str)]) {
    let mut lines = Lines::new(&mut reader);
    let mut found = Vec::new();
    while let Some((number, line)) = lines.next().unwrap() {
        let line = line.map_or_else(
            |fault| fault.to_string(),
            |line| String::from_utf8_lossy(line).into_owned(),
        );
        found.push((number, line));
    }
    let found: Vec<_> = found.iter().map(|(n, line)| (*n, line.as_str())).collect();
    assert_eq!(found, expected);
}

#[test]
fn lines_are_numbered_also_the_empty_ones() {
    read(&b""[..], &[]);
    read(&b"\n\n"[..], &[]);
    read(&b"a\n\n \t\nb"[..], &[(1, "a"), (4, "b")]);
    read(&b"\xef\xbb\xbfa\r\n\r\nb\r\n"[..], &[(1, "a"), (3, "b")]);
    read(&b"\xef\xbb\xbf\na"[..], &[(2, "a")]);
}

#[test]
fn a_line_that_is_too_long_is_skipped_to_its_end() {
    const MAX: usize = Lines::<&[u8]>::LINE_BYTES_MAX;
    let mut file = vec![b'x'; MAX + 1];
    file.extend_from_slice(b"\nb\n");
    let too_long = "the line is longer than 16 MiB";
    read(&*file, &[(1, too_long), (2, "b")]);
    file.truncate(MAX + 1);
    read(&*file, &[(1, too_long)]);
}

#[test]
fn a_line_may_be_as_long_as_the_limit() {
    const MAX: usize = Lines::<&[u8]>::LINE_BYTES_MAX;
    let mut file = vec![b'x'; MAX];
    file.push(b'\n');
    let mut lines = Lines::new(&*file);
    let (_, line) = lines.next().unwrap().unwrap();
    assert_eq!(line.unwrap().len(), MAX);
}

#[track_caller]
fn check(json: &str, expected: &str) {
    let told = match Line::parse(json.as_bytes()) {
        Ok(Line::Event(event)) => format!("event of {}", event.session),
        Ok(Line::Delta(delta)) => format!("delta of {}", delta.session),
        Err(Fault::Json(_)) => "not JSON of ours".to_owned(),
        Err(fault) => fault.to_string(),
    };
    assert_eq!(told, expected);
}

#[test]
fn a_line_is_an_event_or_a_delta() {
    let event = r#"{"session_id":"s","turn":{"role":"ROLE_AGENT","text":"x"}}"#;
    check(event, "event of s");
    check(&event.replace("session_id", "sessionId"), "event of s");
    check(r#"{"delta":{"session_id":"s","text":"x"}}"#, "delta of s");
    check(r#"{ "delta" : {"sessionId":"s"}}"#, "delta of s");
    check(r#"{"\u0064elta":{"session_id":"s"}}"#, "delta of s");
    check(r#"{"delta":{},"x":1}"#, "not JSON of ours");
    check(r#"{"delta":{}}"#, "session_id: is required");
    check(r#"{"session_id":"s"}"#, "body: is required");
    check("{}", "session_id: is required");
    check("[]", "not JSON of ours");
    check("x", "not JSON of ours");
}

#[test]
fn a_line_is_text() {
    let fault = Line::parse(b"{\"session_id\":\"\xff\"}").unwrap_err();
    assert!(fault.to_string().starts_with("not UTF-8: "), "{fault}");
}

#[test]
fn a_fault_in_json_names_its_column() {
    let fault = Line::parse(br#"{"session_id":"s","turm":{}}"#).unwrap_err();
    let told = fault.to_string();
    assert!(
        told.starts_with("unknown field `turm`, expected one of"),
        "{told}"
    );
    assert!(told.ends_with(" (column 24)"), "{told}");
}
