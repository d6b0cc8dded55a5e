//! The repeated unit of a loop: formatted for a person, and rotated to one canonical
//! form for its signature.

use super::content::is_continuation_byte;
use crate::text::work_budget::steps;

/// A verdict quotes at most this much of a unit.
const UNIT_BYTES_MAX: usize = 400;

/// Rotates the unit to where a reader would begin it: where the loop began if the unit
/// ends with white space, else at a line, a sentence, a word or at least a character.
pub(super) fn format_unit(mut unit: Vec<u8>) -> String {
    let is_whole = unit.last().is_some_and(u8::is_ascii_whitespace);
    let start = is_whole
        .then_some(0)
        .or_else(|| second_of_pair(&unit, |pair| pair[0] == b'\n' && pair[1] != b'\n'))
        .or_else(|| {
            second_of_pair(&unit, |pair| {
                matches!(pair[0], b'.' | b'!' | b'?') && pair[1] == b' '
            })
        })
        .or_else(|| second_of_pair(&unit, |pair| pair[0] == b' '))
        .or_else(|| unit.iter().position(|byte| !is_continuation_byte(*byte)));
    unit.rotate_left(start.unwrap_or(0));
    unit.truncate(UNIT_BYTES_MAX);
    String::from_utf8_lossy(&unit).trim().to_owned()
}

/// The position of the second byte of the first pair that matches.
fn second_of_pair(unit: &[u8], matches: fn(&[u8]) -> bool) -> Option<usize> {
    unit.windows(2).position(matches).map(|first| first + 1)
}

/// The lexicographically smallest rotation, so that a loop has the same signature
/// wherever it began. Two candidates are compared and the loser skips all rotations it
/// rules out, so the cost is linear in the unit.
pub(super) fn smallest_rotation(mut unit: Vec<u8>) -> Vec<u8> {
    let n = unit.len();
    let (mut a, mut b, mut same) = (0, 1, 0);
    // Positions are below 2n: a subtraction is cheaper than a division for each byte.
    let wrap = |at: usize| if at < n { at } else { at - n };
    while a < n && b < n && same < n {
        steps::count(1);
        let [x, y] = [unit[wrap(a + same)], unit[wrap(b + same)]];
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
