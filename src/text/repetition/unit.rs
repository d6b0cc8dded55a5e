//! The unit of a loop, as it is quoted and as it is named.

use super::content::is_continuation_byte;

/// Of a unit a verdict quotes no more.
const UNIT_BYTES_MAX: usize = 400;

/// The unit as a reader would begin it: where the loop began, if something ends
/// there, else at a line, a sentence or a word.
pub(super) fn format_unit(mut unit: Vec<u8>) -> String {
    let is_whole = unit.last().is_some_and(u8::is_ascii_whitespace);
    let after = |wanted: fn(&[u8]) -> bool| {
        let at = unit.windows(2).position(wanted);
        at.map(|at| at + 1)
    };
    let begin = is_whole
        .then_some(0)
        .or_else(|| after(|pair| pair[0] == b'\n' && pair[1] != b'\n'))
        .or_else(|| after(|pair| matches!(pair[0], b'.' | b'!' | b'?') && pair[1] == b' '))
        .or_else(|| after(|pair| pair[0] == b' '))
        .or_else(|| unit.iter().position(|byte| !is_continuation_byte(*byte)));
    unit.rotate_left(begin.unwrap_or(0));
    unit.truncate(UNIT_BYTES_MAX);
    String::from_utf8_lossy(&unit).trim().to_owned()
}

/// The rotation that sorts first.
pub(super) fn smallest_rotation(mut unit: Vec<u8>) -> Vec<u8> {
    let n = unit.len();
    let (mut a, mut b, mut same) = (0, 1, 0);
    while a < n && b < n && same < n {
        let [x, y] = [unit[(a + same) % n], unit[(b + same) % n]];
        if x == y {
            same += 1;
            continue;
        }
        if x > y {
            a += same + 1;
        } else {
            b += same + 1;
        }
        if a == b {
            b += 1;
        }
        same = 0;
    }
    unit.rotate_left(a.min(b));
    unit
}
