use super::MaskKind::{Error, Result};
use super::*;
use foldhash::fast::FixedState;
use proptest::prelude::*;
use std::hash::BuildHasher;

fn masked(kind: MaskKind, text: &str) -> String {
    let mut out = Vec::new();
    mask(text, kind, &mut |piece| out.extend_from_slice(piece));
    String::from_utf8_lossy(&out).into_owned()
}

fn hashed(kind: MaskKind, text: &str) -> u64 {
    let mut hasher = FixedState::with_seed(7).build_hasher();
    hash_masked(text, kind, &mut hasher);
    hasher.finish()
}

#[track_caller]
fn same(kind: MaskKind, a: &str, b: &str) {
    assert_eq!(masked(kind, a), masked(kind, b));
    assert_eq!(hashed(kind, a), hashed(kind, b));
}

#[track_caller]
fn differ(kind: MaskKind, a: &str, b: &str) {
    assert_ne!(masked(kind, a), masked(kind, b));
    assert_ne!(hashed(kind, a), hashed(kind, b));
}

#[track_caller]
fn becomes(kind: MaskKind, text: &str, expected: &str) {
    assert_eq!(masked(kind, text), expected);
}

#[test]
fn invisible_characters_and_control_codes_are_not_compared() {
    same(Result, "\x1b[31mred\x1b[0m", "red");
    same(Result, "\x1b[38;5;196mred\x1b[K", "red");
    same(Result, "\u{9b}31mred", "red");
    same(Result, "\x1b]0;a title\x07done", "done");
    same(Result, "\x1b]8;;http://a/b\x1b\\link\x1b]8;;\x1b\\", "link");
    same(Result, "\x1b(Bplain\x1b7", "plain");
    same(Result, "1\x1b[1m2m\x1b[0ms", "7ms");
    same(Result, "a\u{200b}b\u{feff}", "ab");
    same(Result, "a\u{202e}b\0\x07", "ab");
    same(Result, "  a \t\r\n b\u{a0}\n", "a b");
    same(Result, "a\u{2028}b", "a b");
    differ(Result, "a b", "ab");
    differ(Result, "Ok", "ok");
    same(Error, "Not Found", "not found");
    same(Error, "ÄRGER", "ärger");
}

#[test]
fn counts_of_errors_are_kept_even_with_a_word_in_between() {
    let due = |n: u32| format!("error: could not compile `app` (lib) due to {n} previous errors");
    differ(Error, &due(4), &due(3));
    differ(Error, "found 12 type errors", "found 11 type errors");
    same(Error, "at line 12 in tests", "at line 13 in tests");
}

#[test]
fn labelled_ids_clocks_and_rates_in_results_are_masked() {
    same(
        Result,
        "Request ID: req_01P43XETH4PY",
        "Request ID: req_01A05KVMN7EV",
    );
    same(Result, "Chunk ID: 44d4c0 ok", "Chunk ID: 9be21f ok");
    same(Result, "ts=1763371205 none left", "ts=1763371214 none left");
    same(
        Result,
        "[1763371205.123] none left",
        "[1763371214.456] none left",
    );
    same(Result, "copied at 118 MB/s", "copied at 97 MB/s");
    same(Result, "id=4711 queued", "id=4712 queued");
    same(
        Result,
        "trace 01JD4XETH4PYDYHQRC6K4GV653",
        "trace 01JD9KVMN7EVQ87229H7XWRW07",
    );
    differ(Result, "idle 4711", "idle 4712");
    differ(Result, "postgres16alpine", "postgres17alpine");
}

#[test]
fn a_digest_in_an_error_is_masked_whatever_it_begins_with() {
    let got = |digest: &str| format!("digest mismatch: got \"sha256:{digest}\"");
    let [letter, digit] = ["b26e02a44df1986e97dbf04a", "8c6d5eb823592330a714b7fd"].map(got);
    same(Error, &letter, &digit);
}

#[test]
fn numbers_in_results_are_kept() {
    differ(Result, "done=3", "done=4");
    differ(Result, "[ 40%] building", "[ 60%] building");
    differ(Result, "block 7", "block 8");
    differ(Result, "12/12 lines", "12/13 lines");
    differ(Result, "line 40", "line 41");
    differ(Result, "3 failed", "2 failed");
    differ(Result, "1234567", "7654321");
    differ(Result, "1714554000", "1714554001");
    differ(Result, "20260501", "20260502");
    differ(Result, "lines 620..659", "lines 660..699");
    differ(Result, "L50-149", "L10-109");
    differ(Result, "src/main.rs:12:34", "src/main.rs:12:35");
    differ(Result, "src/main.rs:12:34:56", "src/main.rs:12:34:57");
    differ(Result, "total 12", "total 13");
    differ(Result, "v1.2.3", "v1.2.4");
    differ(Result, "10.0.0.4", "10.0.0.5");
    differ(
        Result,
        "Estimated tokens: 168.6k",
        "Estimated tokens: 168.7k",
    );
    differ(Result, "48K\t/workspace/dir1", "52K\t/workspace/dir1");
    differ(Result, "-114.0", "-115.0");
    differ(Result, "1.2345678e10", "1.2345679e10");
    differ(Result, "0.12345678e-05", "0.12345679e-05");
    differ(Result, "[main abc0] p0", "[main abc1] p1");
    differ(Result, "score 3:45", "score 3:46");
    differ(Result, "2.5× faster", "3.5× faster");
    differ(Result, "3x faster", "4x faster");
    differ(Result, "ok, 1 left", "ok, 2 left");
    differ(Result, "valid for 2 years", "valid for 3 years");
}

#[test]
fn dates_and_times_are_masked() {
    same(Result, "2026-05-01T10:00:00Z", "2026-05-01T10:01:00Z");
    same(
        Result,
        "at 2026-05-01 10:00:00,123 INFO",
        "at 2026-05-02 11:00:00,9 INFO",
    );
    same(
        Result,
        "2026-05-01T10:00:00.123456+02:00",
        "2027-12-31T23:59:59-11:00",
    );
    same(Result, "2026/05/01", "2026/05/02");
    same(Result, "1/5/2026", "12/31/2026");
    same(Result, "01.05.2026", "31.12.2026");
    same(Result, "20260501T100000Z", "20260502T110203Z");
    same(Result, "log-20260501-100000.txt", "log-20260502-110203.txt");
    same(Result, "May 26 10:10 file.c", "Jun  1 09:07 file.c");
    same(Result, "Jan  5  2024 a", "Dec 15  2025 a");
    same(Result, "May 5, 2026", "June 15, 2026");
    same(
        Result,
        "Mon May  5 10:00:00 2026 +0200",
        "Tue May  6 11:30:01 2026 +0200",
    );
    same(
        Result,
        "Mon May  5 10:00:00 CEST 2026",
        "Tue May 16 11:30:01 CEST 2026",
    );
    same(
        Result,
        "Date: Tue, 05 May 2026 10:00:00 GMT",
        "Date: Wed, 16 Jun 2026 09:00:00 GMT",
    );
    same(
        Result,
        "[05/May/2026:10:00:00 +0000] GET /",
        "[06/May/2026:11:00:00 +0000] GET /",
    );
    same(Result, "[10:00:00] ok", "[10:00:01.5] ok");
    same(Result, "now 10:10", "now 09:07");
    same(Result, "9:30 PM", "11:45 am");
    same(Result, "in 62.10s (0:01:02)", "in 65.40s (0:01:05)");
    same(Result, "100%|##| [00:12<00:34]", "100%|##| [00:13<00:33]");
    differ(Result, "2026-05-01 a", "2026-05-01 b");
    differ(Result, "in May 3 failed", "in May 4 failed");
    differ(Result, "you may 12 10:10", "you may 13 10:10");
    differ(Result, "2026-13-01", "2026-14-01");
    differ(Result, "1.5.2026", "1.6.2026");
    differ(Result, "10:10:05:ab:cd:01", "10:10:05:ab:cd:02");
}

#[test]
fn durations_are_masked_with_their_unit() {
    same(Result, "1 passed in 0.12s", "1 passed in 1.47s");
    same(Result, "took 12ms", "took 1.5 s");
    same(Result, "12µs", "120ns");
    same(Result, "Finished in 1m30s", "Finished in 59s");
    same(Result, "1 min 5 s", "2 min 10 s");
    same(Result, "Up 3 minutes", "Up 4 minutes");
    same(Result, "2 days ago", "3 days ago");
    same(Result, "5 months ago", "6 months ago");
    same(Result, "ok  \tpkg\t0.005s", "ok  \tpkg\t0.104s");
    same(
        Result,
        "Time:        0.512 s, estimated 1 s",
        "Time:  1.2 s, estimated 2 s",
    );
    same(
        Result,
        "added 5 packages in 2s",
        "added 5 packages in 850ms",
    );
    differ(Result, "added 5 packages in 2s", "added 6 packages in 2s");
    same(Result, "1,234 ms", "999 ms");
    same(Result, "3d4h", "45s");
    differ(Result, "max 12\nmin 3", "max 13\nmin 3");
    differ(Result, "Max: 12\nMin: 3", "Max: 13\nMin: 3");
    differ(Result, "max 12 min 3", "max 13 min 3");
    differ(Result, "max 12 min: 3", "max 13 min: 3");
    differ(Result, "2 passed in 0.12s", "3 passed in 0.12s");
    differ(Result, "3 src files", "4 src files");
    differ(Result, "12 s-expressions", "13 s-expressions");
    differ(Result, "5M", "6M");
    differ(Result, "5 m", "6 m");
}

#[test]
fn generated_names_are_masked() {
    same(
        Result,
        "f81d4fae-7dec-11d0-a765-00a0c91e6bf6",
        "ffffffff-ffff-4fff-bfff-ffffffffffff",
    );
    same(Result, "object at 0x7f3a", "object at 0x7f3bc0");
    same(Result, "commit b40a0f4", "commit c51b1e5");
    same(Result, "lib-04a69e991c8af6cd)", "lib-14b69e991c8af6ce)");
    same(Result, "tmp_a58043fc19a5.py", "tmp_b58043fc19a6.py");
    same(Result, "sha256:9F86D081884C", "sha256:0F86D081884D");
    same(
        Result,
        "listening on 127.0.0.1:54321",
        "listening on 127.0.0.1:40000",
    );
    differ(Result, "defaced", "effaced");
    differ(Result, "abc123", "abc124");
    differ(Result, "got 1048576B", "got 2048576B");
    differ(Result, "1000000e3", "2000000e3");
    same(Result, "at 1234567a8", "at 1234567b9");
    differ(Result, "commit b40a0f4 fix", "commit b40a0f4 feat");
    differ(Result, "aB12345x", "aB12346x");
    differ(Result, "12345678-1234", "12345679-1234");
}

#[test]
fn temporary_paths_are_masked_except_for_the_file_name() {
    becomes(Result, "wrote /tmp/tmpa1b2", "wrote <tmp>");
    same(Result, "wrote /tmp/batch-0.md", "wrote /tmp/batch-3.md");
    same(Result, "/tmp/tmp12/main.rs:3", "/tmp/tmp13/main.rs:3");
    differ(Result, "/tmp/work/a.rs", "/tmp/work/b.rs");
    differ(Result, "/tmp/x1.rs:3: bad", "/tmp/x1.rs:4: bad");
    same(
        Result,
        "'/var/folders/zz/ab1/T/x1'.",
        "'/var/folders/zy/ab2/T/x2'.",
    );
    same(Result, "file:///tmp/x1", "file:///tmp/x2");
    same(
        Result,
        "C:\\Users\\me\\AppData\\Local\\Temp\\x1 ok",
        "C:\\Users\\me\\AppData\\Local\\Temp\\x2 ok",
    );
    same(
        Result,
        "\"c:\\\\users\\\\me\\\\temp\\\\x1\"",
        "\"c:\\\\users\\\\me\\\\temp\\\\x2\"",
    );
    same(Error, "no such file: /tmp/a1/x", "no such file: /tmp/b2/y");
    becomes(Error, "Wrote /tmp/a1/x.", "wrote <tmp>.");
    differ(Result, "src/tmp/a", "src/tmp/b");
    differ(Result, "./tmp/a", "./tmp/b");
    differ(Result, "C:\\work\\a1", "C:\\work\\a2");
    differ(Result, "/home/tmp1", "/home/tmp2");
}

#[test]
fn values_of_noise_keys_are_masked() {
    same(
        Result,
        r#"{"messageId": "om_1", "ok": true, "ts": "1"}"#,
        r#"{"messageId": "om_19", "ok": true, "ts": "7"}"#,
    );
    same(
        Result,
        r#"{"receipt":{"platformMessageID":"p_1"}}"#,
        r#"{"receipt":{"platformMessageID":"p_2"}}"#,
    );
    same(
        Result,
        r#"{"created_at":1714554000}"#,
        r#"{"created_at":1714554999}"#,
    );
    same(Result, r#"{"durationMs": 12.5}"#, r#"{"durationMs": 9}"#);
    same(
        Result,
        r#"{"elapsed_ms":3,"response_time_ms":4}"#,
        r#"{"elapsed_ms":5,"response_time_ms":6}"#,
    );
    same(
        Result,
        r#"{"p99-latency":3,"took":1}"#,
        r#"{"p99-latency":4,"took":2}"#,
    );
    same(Result, r#"{"id":"a \"b\" c"}"#, r#"{"id":"d"}"#);
    same(
        Result,
        r#""{\"id\": \"a1\", \"n\": 1}""#,
        r#""{\"id\": \"b2\", \"n\": 1}""#,
    );
    same(Result, "{'requestId': 'q'}", "{'requestId': 'r'}");
    same(Result, "{\"pid\": 12}", "{\"pid\": 13}");
    differ(
        Result,
        r#""{\"id\": \"a1\", \"n\": 1}""#,
        r#""{\"id\": \"a1\", \"n\": 2}""#,
    );
    differ(
        Result,
        r#"{"id": "a", "done": 3}"#,
        r#"{"id": "a", "done": 4}"#,
    );
    differ(Result, r#"{"format": "a"}"#, r#"{"format": "b"}"#);
    differ(Result, r#"{"valid": 1}"#, r#"{"valid": 2}"#);
    differ(Result, r#"{"timeout_ms": 1}"#, r#"{"timeout_ms": 2}"#);
    differ(Result, r#"{"id_count": 1}"#, r#"{"id_count": 2}"#);
    differ(Result, r#"{"time": true}"#, r#"{"time": false}"#);
    differ(Result, r#"{"ms": 1}"#, r#"{"ms": 2}"#);
    differ(Result, r#"["id", "a"]"#, r#"["id", "b"]"#);
    differ(Result, r#"{"id":"x"} 7"#, r#"{"id":"x"} 8"#);
}

#[test]
fn a_number_of_attempts_is_masked() {
    same(Result, "read 3× this session", "read 40× this session");
    same(Result, "seen ×3", "seen ×4");
    same(Result, "attempt 4", "attempt 5");
    same(Result, "Attempt #4 of 9", "Attempt #12 of 9");
    same(Result, "retry 1/5", "retry 2/5");
    same(Result, "2nd try", "3rd try");
    same(Result, "called 3 times", "called 4 times");
    same(Result, "after 3 attempts", "after 4 attempts");
    same(Result, "[pid=123]", "[pid=4567]");
    same(Result, "PID: 123", "PID: 124");
    differ(Result, "attempt 4 of 9", "attempt 4 of 8");
    differ(Result, "attempt failed 3", "attempt failed 4");
    differ(Result, "rapid 3", "rapid 4");
    differ(Result, "last attempt\n4 files", "last attempt\n5 files");
    differ(Result, "10 time steps", "11 time steps");
    same(Result, "the 2nd time", "the 3rd time");
    differ(Result, "3 timeouts", "4 timeouts");
}

#[test]
fn images_and_audio_are_masked() {
    let png = |seed: u32| base64("iVBORw0KGgo", seed, 300);
    same(Result, &png(1), &png(2));
    same(
        Result,
        &format!("data:image/png;base64,{} end", base64("", 1, 40)),
        &format!("data:image/png;base64,{} end", base64("", 2, 90)),
    );
    same(
        Result,
        r#"{"data": "base64-0", "type": "image"}"#,
        r#"{"data": "base64-1", "type": "image"}"#,
    );
    same(
        Result,
        r#"{"mimeType":"audio/wav","data":"x1"}"#,
        r#"{"mimeType":"audio/wav","data":"x2"}"#,
    );
    same(Result, r#"{"b64_json":"x1"}"#, r#"{"b64_json":"x2"}"#);
    differ(
        Result,
        r#"{"data": "a1", "type": "text"}"#,
        r#"{"data": "a2", "type": "text"}"#,
    );
    differ(
        Result,
        r#"{"data": "a1"}, {"type": "image"}"#,
        r#"{"data": "a2"}, {"type": "image"}"#,
    );
    differ(Result, &base64("", 1, 80), &base64("", 2, 80));
    differ(Result, &"src/Main1/".repeat(40), &"src/Main2/".repeat(40));
    differ(
        Result,
        "data:text/plain;base64,QUJD",
        "data:text/plain;base64,QUJE",
    );
}

#[test]
fn masking_of_media_changes_no_other_text() {
    let plain = |text: &str| {
        let mut out = Vec::new();
        strip_media(text, &mut |piece| out.extend_from_slice(piece));
        String::from_utf8(out).unwrap()
    };
    let image = |data: &str| format!("{{\"data\": \"{data}\", \"type\": \"image\"}} 12ms\n 7é");
    assert_eq!(plain(&image("base64-0")), image("#"));
    assert_eq!(plain(&image(&base64("iVBORw0KGgo", 1, 9000))), image("#"));
    assert_eq!(plain("{\"id\": 7} /tmp/x1  a"), "{\"id\": 7} /tmp/x1  a");
    assert_eq!(
        plain("data:audio/wav;base64,UklGR1= x"),
        "data:audio/wav;base64,# x"
    );
    assert_eq!(plain(""), "");
}

#[test]
fn an_image_longer_than_the_masked_length_is_masked_whole() {
    let screen = |seed, len, text| {
        format!(
            r#"{{"text":"{text}","data":"{}","end":1}}"#,
            base64("iVBORw0KGgo", seed, len)
        )
    };
    same(Result, &screen(1, 9000, "a"), &screen(2, 9500, "a"));
    same(Result, &screen(1, 90_000, "a"), &screen(2, 99_000, "a"));
    differ(Result, &screen(1, 9000, "a"), &screen(1, 9000, "b"));
    let late = |seed| {
        format!(
            "{}{}",
            "a line\n".repeat(2000),
            base64("iVBORw0KGgo", seed, 9000)
        )
    };
    same(Result, &late(1), &late(2));
}

/// Letters and digits that look like base64.
fn base64(begin: &str, seed: u32, len: usize) -> String {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut state = seed.wrapping_mul(2_654_435_761);
    let digits = (0..len).map(|_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        char::from(DIGITS[(state >> 26) as usize])
    });
    begin.chars().chain(digits).collect()
}

#[test]
fn numbers_in_errors_are_masked() {
    same(Error, "1 failed in 0.12s", "1 failed in 1.47s");
    same(Error, "line 12, in <module>", "line 120, in <module>");
    same(Error, "src/main.rs:12:5: bad", "src/main.rs:120:15: bad");
    same(Error, "  3:7  error  no-undef", "  4:9  error  no-undef");
    same(
        Error,
        "command timed out after 30s",
        "command timed out after 2 minutes",
    );
    same(
        Error,
        "total price is 375, but paid 299",
        "total price is 1,375.50, but paid 2",
    );
    same(Error, "worker7 died", "worker12 died");
    same(
        Error,
        "ECONNREFUSED 127.0.0.1:5432",
        "ECONNREFUSED 10.1.2.3:99",
    );
    same(
        Error,
        "req_011CSHoEeqs5C35K2UUqR7Fy failed",
        "req_011CAAoEeqs5B77K2UUqR7Fz failed",
    );
    same(Error, "at 2026-05-01T10:00:00Z", "at 2026-05-02T10:00:00Z");
    same(Error, "object at 0x7f3a", "object at 0x7f3bc0");
    same(Error, "commit deadbee1 missing", "commit 0eadbeef missing");
    same(
        Error,
        "id f81d4fae-7dec-11d0-a765-00a0c91e6bf6",
        "id 00000000-7dec-11d0-a765-00a0c91e6bf6",
    );
    same(Error, "status 500, 12345 bytes", "status 500, 9 bytes");
    becomes(Error, "File \"a.py\", line 3", "file \"a.py\", line #");
    differ(Error, "unknown column 'a'", "unknown column 'b'");
    differ(Error, "base64decoder missing", "sha256digest missing");
    differ(Error, "401 Unauthorized", "403 Forbidden");
    differ(Error, "[1,2,3]", "[1,2]");
}

#[test]
fn significant_numbers_in_errors_are_kept() {
    differ(Error, "1 failed in 0.12s", "2 failed in 0.12s");
    differ(Error, "6 failed, 40 passed", "6 failed, 41 passed");
    differ(Error, "found 3 errors", "found 4 errors");
    differ(Error, "1 test failed", "2 test failed");
    differ(
        Error,
        "FAILED (failures=2, errors=1)",
        "FAILED (failures=2, errors=2)",
    );
    differ(
        Error,
        "Tests run: 5, Failures: 2",
        "Tests run: 5, Failures: 1",
    );
    differ(Error, "exit code 1", "exit code 2");
    differ(Error, "exitcode: 1", "exitcode: 2");
    differ(Error, "exit status: 101", "exit status: 1");
    differ(Error, "status_code=404", "status_code=500");
    differ(Error, "HTTP 404", "HTTP 500");
    differ(Error, "HTTP/1.1 404", "HTTP/1.1 500");
    differ(Error, "HTTPError: 404 x", "HTTPError: 500 x");
    differ(Error, "[Errno 2] x", "[Errno 13] x");
    differ(Error, "killed by signal 9", "killed by signal 15");
    differ(Error, "exit code: -1", "exit code: -2");
    differ(Error, "expected 3, got 4", "expected 3, got 5");
    differ(Error, "expected [1, 2, 3]", "expected [1, 2, 4]");
    differ(Error, "  left: 4\n right: 5", "  left: 4\n right: 6");
    differ(
        Error,
        "Expected: 3\nReceived: 4",
        "Expected: 3\nReceived: 5",
    );
    differ(
        Error,
        "expected:<3> but was:<4>",
        "expected:<3> but was:<5>",
    );
    differ(Error, "assert 3 == 4", "assert 2 == 4");
    differ(Error, "assert 3 == 4", "assert 3 == 5");
    differ(Error, "AssertionError: 3 != 4", "AssertionError: 3 != 5");
    differ(Error, "needs foo>=1.2", "needs foo>=1.3");
    differ(Error, "error[E0502]", "error[E0499]");
    differ(Error, "TS2304: x", "TS2305: x");
    same(Error, "got 3\n12 files", "got 3\n13 files");
}

#[test]
fn hostile_text_is_only_text() {
    for kind in [Result, Error] {
        becomes(kind, "", "");
        becomes(kind, " \n\t ", "");
        becomes(kind, "a\x1b", "a");
        becomes(kind, "a\x1b[", "a");
        becomes(kind, "a\x1b[31", "a");
        becomes(
            kind,
            "a\x1b]0;never ends",
            "a0;never ends"
                .replace('0', if kind == Error { "#" } else { "0" })
                .as_str(),
        );
        becomes(kind, "{\"id", "{\"id");
        becomes(kind, "{\"id\":", "{\"id\":");
        becomes(kind, "{\"id\": \\", "{\"id\": \\");
        becomes(kind, "é12ms日", "é#日");
        becomes(kind, "3\u{d7}", "#×");
        becomes(kind, "0x", if kind == Error { "#x" } else { "0x" });
        becomes(kind, "data:image/png;base64,", "data:image/png;base64,#");
        same(kind, &format!("{}ms", "9".repeat(400)), "1ms");
    }
    differ(Result, &"9".repeat(400), &"9".repeat(401));
    same(Error, &"9".repeat(400), &"9".repeat(401));
    differ(
        Result,
        &format!("{{\"id\": \"{}\"}}", "a".repeat(300)),
        "{\"id\": \"b\"}",
    );
}

#[test]
fn both_ends_of_a_long_text_are_masked_and_its_middle_is_hashed() {
    let log = |head: &str, middle: &str, tail: &str| {
        let lines = "some line of a log\n".repeat(200);
        format!("{head}\n{lines}{middle}\n{lines}{tail}")
    };
    same(
        Result,
        &log("took 9ms", "x", "in 1s"),
        &log("took 10ms", "x", "in 12s"),
    );
    differ(
        Result,
        &log("took 9ms", "x", "in 1s"),
        &log("took 9ms", "y", "in 1s"),
    );
    differ(
        Result,
        &log("took 9ms", "1ms", ""),
        &log("took 9ms", "2ms", ""),
    );
    differ(Result, &log("1 done", "x", ""), &log("2 done", "x", ""));
    differ(Result, &log("", "x", "1 done"), &log("", "x", "2 done"));
    same(
        Result,
        &format!("1ms{}", "日本".repeat(2000)),
        &format!("2ms{}", "日本".repeat(2000)),
    );
}

/// Text composed of what the recognisers match.
fn texts() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        "[ -~]{0,6}",
        "[0-9]{1,9}",
        "[0-9a-f-]{1,40}",
        "\\PC{0,4}",
        prop::sample::select(vec![
            "10:",
            "2026-05-01",
            "T10:00:00",
            "Z",
            " May 5 ",
            "\"id\":",
            "\"data\": \"",
            "\\\"",
            "/tmp/",
            "C:\\Temp\\",
            "ms",
            " min ",
            "attempt ",
            "×",
            "µs",
            "expected ",
            "==",
            " failed",
            "data:image/png;base64,",
            "\n",
            "  ",
            "é",
        ])
        .prop_map(str::to_owned),
    ];
    prop::collection::vec(piece, 0..40).prop_map(|pieces| pieces.concat())
}

fn kinds() -> impl Strategy<Value = MaskKind> {
    prop::sample::select(vec![Result, Error])
}

proptest! {
    #[test]
    fn no_text_panics(text in any::<String>(), known in texts(), times in 1usize..60, kind in kinds()) {
        hashed(kind, &text);
        strip_media(&known, &mut |_| ());
        hashed(kind, &known);
        hashed(kind, &known.repeat(times));
    }

    #[test]
    fn masked_text_is_text_and_not_longer(text in texts(), kind in kinds()) {
        let mut out = Vec::new();
        mask(&text, kind, &mut |piece| out.extend_from_slice(piece));
        prop_assert!(String::from_utf8(out.clone()).is_ok());
        prop_assert!(out.len() <= text.len() + 2);
    }

    #[test]
    fn hashes_are_equal_if_and_only_if_masked_texts_are(a in texts(), b in texts(), kind in kinds()) {
        let shuffled = a.replace("10:", "11:").replace("ms", "s");
        for other in [&b, &shuffled] {
            prop_assert_eq!(masked(kind, &a) == masked(kind, other), hashed(kind, &a) == hashed(kind, other));
        }
    }

    #[test]
    fn the_hash_is_that_of_the_whole_however_the_pieces_fall(text in texts(), times in 1usize..60, kind in kinds()) {
        let text = text.repeat(times);
        let mut hasher = FixedState::with_seed(7).build_hasher();
        let mut chunks = HashChunker { hasher: &mut hasher, chunk: [0; CHUNK_BYTES], filled: 0, total: 0 };
        let mut whole = Vec::new();
        mask(&text, kind, &mut |piece| whole.extend_from_slice(piece));
        chunks.push(&whole);
        chunks.finish();
        prop_assert_eq!(hasher.finish(), hashed(kind, &text));
    }

    #[test]
    fn colours_change_nothing(text in texts(), cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6), kind in kinds()) {
        let text: String = text.chars().take(600).collect();
        let mut coloured = text.clone();
        for cut in cuts {
            let at = coloured.floor_char_boundary(cut.index(coloured.len() + 1));
            if !inside_escape(&coloured, at) {
                coloured.insert_str(at, "\x1b[1;31m");
            }
        }
        prop_assert_eq!(masked(kind, &text), masked(kind, &coloured));
    }
}

/// Whether `at` is within an escape code that an earlier step inserted. An insertion
/// there would change that code.
fn inside_escape(text: &str, at: usize) -> bool {
    let from = at.saturating_sub("\x1b[1;31".len());
    text.as_bytes()[from..at].contains(&0x1b)
}

/// Each number of a sequence must not scan all that follow it, because that takes
/// quadratic time.
#[test]
fn a_long_row_of_numbers_is_read_in_parts() {
    for part in ["1h ", "1 min ", "111,"] {
        let row = part.repeat(600) + "1h-x";
        for kind in [Result, Error] {
            same(kind, &row, &row);
            differ(kind, &row, &format!("{row} more"));
        }
    }
    becomes(Result, "1h 2m 3s", "#");
    becomes(Result, "took 1,234,567 ms", "took #");
}

#[test]
fn assigned_ports_and_nanoids_are_noise() {
    same(
        Result,
        "connected to localhost:53711",
        "connected to localhost:49822",
    );
    same(
        Result,
        "via db-1.internal:40001 ok",
        "via db-1.internal:60110 ok",
    );
    same(
        Result,
        "40 of 40 used (ref: V1StGXR8_Z5jdHi6B-myT)",
        "40 of 40 used (ref: x4Kd-9sPqLm_Zt3RwYc8n)",
    );
    same(Result, "Request ID: a1_b2-c3", "Request ID: z9_y8-x7");
    differ(
        Result,
        "listening on localhost:3000",
        "listening on localhost:3001",
    );
    differ(Result, "users:53711", "users:49822");
    differ(Result, "app.log:40123:7 x", "app.log:40124:7 x");
    differ(Result, "test_parse_row_12_ok_1", "test_parse_row_13_ok_1");
}
