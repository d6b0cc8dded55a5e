//! A box that is allocated on first use.

use std::ops::{Deref, DerefMut};

/// State that most sessions never need: one pointer until it is first changed.
///
/// Read it with [`get`](Self::get), or through `Deref` if its type has a constant
/// empty value.
pub struct LazyBox<T>(Option<Box<T>>);

/// A type with a constant empty value, which a [`LazyBox`] that is not allocated
/// refers to.
pub trait Empty: Default + 'static {
    const EMPTY: &'static Self;
}

impl<T> Default for LazyBox<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T> LazyBox<T> {
    #[inline]
    pub fn get(&self) -> Option<&T> {
        self.0.as_deref()
    }

    #[inline]
    pub fn get_mut(&mut self) -> Option<&mut T> {
        self.0.as_deref_mut()
    }

    pub fn into_inner(self) -> Option<T> {
        self.0.map(|value| *value)
    }

    /// `make` boxes the value itself, so that a large one is not first on the stack.
    #[inline]
    pub fn get_or_insert_with(&mut self, make: impl FnOnce() -> Box<T>) -> &mut T {
        self.0.get_or_insert_with(make)
    }

    /// Drops the value.
    pub fn clear(&mut self) {
        self.0 = None;
    }

    /// Memory of the value, if there is one; `heap_bytes` measures what it owns.
    #[inline]
    pub fn heap_bytes(&self, heap_bytes: impl FnOnce(&T) -> usize) -> usize {
        self.get()
            .map_or(0, |value| size_of::<T>() + heap_bytes(value))
    }
}

impl<T: Default> LazyBox<T> {
    #[inline]
    pub fn get_or_insert_default(&mut self) -> &mut T {
        self.0.get_or_insert_default()
    }
}

impl<T: Empty> Deref for LazyBox<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        self.get().unwrap_or(T::EMPTY)
    }
}

/// Allocates the value: read through `Deref` first if there may be nothing to change.
impl<T: Empty> DerefMut for LazyBox<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.get_or_insert_default()
    }
}
