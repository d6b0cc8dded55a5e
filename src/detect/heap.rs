//! What detectors hold on the heap: it counts as session state.

use smallvec::{Array, SmallVec};

pub(super) fn vec_bytes<T>(list: &Vec<T>) -> usize {
    list.capacity() * size_of::<T>()
}

/// Nothing, as long as it is short.
pub(super) fn small_vec_bytes<A: Array>(list: &SmallVec<A>) -> usize {
    match list.spilled() {
        true => list.capacity() * size_of::<A::Item>(),
        false => 0,
    }
}
