//! Heap sizes of the detectors' collections, for the session's memory use.

use smallvec::{Array, SmallVec};

pub(super) fn vec_bytes<T>(list: &Vec<T>) -> usize {
    list.capacity() * size_of::<T>()
}

/// 0 while the elements are stored inline.
pub(super) fn small_vec_bytes<A: Array>(list: &SmallVec<A>) -> usize {
    if list.spilled() {
        list.capacity() * size_of::<A::Item>()
    } else {
        0
    }
}
