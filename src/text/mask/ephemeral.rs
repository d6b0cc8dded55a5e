//! Recognises locations that differ on every run: paths of temporary files, and
//! addresses with a port assigned by the system.
//!
//! Each function returns the end of the part to mask. Cost: one pass over the path.

use super::cursor::Cursor;

const TEMP_ROOTS: [&[u8]; 7] = [
    b"/tmp/",
    b"/var/tmp/",
    b"/var/folders/",
    b"/private/tmp/",
    b"/private/var/tmp/",
    b"/private/var/folders/",
    b"/dev/shm/",
];

/// Matches `127.0.0.1:54321`. An address without a port is kept as a result.
pub fn ip_port_end(mut c: Cursor) -> Option<usize> {
    for i in 0..4 {
        if i > 0 && !c.eat(b'.') {
            return None;
        }
        c.eat_number(1, 3, 0..=255)?;
    }
    (c.eat(b':') && c.eat_number(1, 5, 0..=65535).is_some() && c.is_word_end()).then_some(c.at)
}

/// The digits of a port that the system assigns.
pub const PORT_DIGITS: usize = 5;

/// Whether the number at the cursor is a port that the system assigned, behind the name of a
/// host: `localhost:53711`, `db-1.internal:49822`. A number behind another word is a result.
pub fn is_port(mut c: Cursor) -> bool {
    /// Linux assigns ports from here on.
    const ASSIGNED_MIN: u32 = 32_768;
    const HOST_BYTES_MAX: usize = 64;
    let is_host_byte = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-');
    if c.peek_back(1) != b':' {
        return false;
    }
    let mut length = 0;
    let mut has_dot = false;
    while length < HOST_BYTES_MAX && is_host_byte(c.peek_back(length + 2)) {
        length += 1;
        has_dot |= c.peek_back(length + 1) == b'.';
    }
    let host = c.with_offset(c.at - 1).slice_from(c.at - 1 - length);
    (has_dot || host == b"localhost")
        && c.eat_number(PORT_DIGITS, PORT_DIGITS, ASSIGNED_MIN..=65_535)
            .is_some()
        && c.is_word_end()
        && c.peek(0) != b':'
}

/// A path below a temporary directory. Returns the end of the path, or the start of its
/// file name if that name is meaningful. In `/tmp/build/src/main.rs` the name `main.rs`
/// is kept, because it distinguishes two matches of a search. A name that may be
/// generated is masked.
pub fn temp_path_end(mut c: Cursor) -> Option<usize> {
    let start = c.at;
    // Most paths are below other directories.
    if !matches!(c.peek(1), b't' | b'v' | b'p' | b'd') {
        return None;
    }
    let begins = !is_path_byte(c.peek_back(1))
        || (c.peek_back(1) == b'/' && c.peek_back(2) == b'/' && c.peek_back(3) == b':');
    if !begins || !TEMP_ROOTS.iter().any(|root| c.eat_bytes(root)) {
        return None;
    }
    c.skip_while(is_path_byte);
    Some(masked_path_end(start, c))
}

/// The same for `C:\Users\me\AppData\Local\Temp\…`, with single or doubled backslashes.
pub fn windows_temp_path_end(mut c: Cursor) -> Option<usize> {
    let start = c.at;
    c.at += 1;
    if !c.eat(b':') || !matches!(c.peek(0), b'\\' | b'/') {
        return None;
    }
    c.skip_while(|b| is_path_byte(b) || b == b'\\');
    let path = c.slice_from(start);
    let mut names = path.split(|b| matches!(b, b'\\' | b'/'));
    names
        .by_ref()
        .find(|name| name.eq_ignore_ascii_case(b"temp") || name.eq_ignore_ascii_case(b"tmp"))?;
    names
        .any(|name| !name.is_empty())
        .then(|| masked_path_end(start, c))
}

fn is_path_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte >= 0x80 || b"/._-+~@%#$={}".contains(&byte)
}

/// The end of the part to mask in the path from `start` to `c`. A full stop at the end
/// belongs to the sentence.
fn masked_path_end(start: usize, c: Cursor) -> usize {
    let mut path = c.slice_from(start);
    while let [shorter @ .., b'.'] = path {
        path = shorter;
    }
    let is_slash = |b: &u8| matches!(b, b'/' | b'\\');
    let depth = path.iter().filter(|b| is_slash(b)).count();
    let name = path.iter().rposition(is_slash).map_or(0, |i| i + 1);
    if depth >= 3 && is_meaningful_name(path.get(name..).unwrap_or_default()) {
        start + name - 1
    } else {
        start + path.len()
    }
}

/// Whether a person chose the name: it has an extension, consists of letters, `_`, `-`
/// and `.`, and does not begin with `tmp`.
fn is_meaningful_name(name: &[u8]) -> bool {
    let plain = |b: &u8| b.is_ascii_alphabetic() || matches!(b, b'_' | b'-' | b'.');
    let dot = name.iter().position(|b| *b == b'.');
    dot.is_some_and(|i| i > 0 && i + 1 < name.len())
        && name.iter().all(plain)
        && !name
            .get(..3)
            .is_some_and(|n| n.eq_ignore_ascii_case(b"tmp"))
}
