//! Atomics, locks and cells: those of the standard library, or those of loom where its models run.

#[cfg(loom)]
pub(crate) use loom::{
    cell::UnsafeCell,
    sync::{
        Arc, Condvar, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
};

#[cfg(not(loom))]
pub(crate) use std::sync::{
    Arc, Condvar, Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
};

/// `core::cell::UnsafeCell` with the interface of loom's, which checks each access.
#[cfg(not(loom))]
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct UnsafeCell<T>(core::cell::UnsafeCell<T>);

#[cfg(not(loom))]
impl<T> UnsafeCell<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(core::cell::UnsafeCell::new(value))
    }

    #[inline(always)]
    pub(crate) fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
        f(self.0.get())
    }
}

/// Locks the mutex. A mutex that another holder poisoned by a panic is taken all the same: no critical section here
/// leaves its data in a half-done state.
pub(crate) fn lock<L: Lock>(mutex: &L) -> L::Guard<'_> {
    mutex.lock_anyway()
}

/// A mutex of the standard library, or of loom. (With loom, mutexes that the models need not watch are still those of
/// the standard library.)
pub(crate) trait Lock {
    type Guard<'l>
    where
        Self: 'l;
    fn lock_anyway(&self) -> Self::Guard<'_>;
}

impl<T> Lock for std::sync::Mutex<T> {
    type Guard<'l>
        = std::sync::MutexGuard<'l, T>
    where
        Self: 'l;
    fn lock_anyway(&self) -> Self::Guard<'_> {
        self.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

#[cfg(loom)]
impl<T> Lock for Mutex<T> {
    type Guard<'l>
        = MutexGuard<'l, T>
    where
        Self: 'l;
    fn lock_anyway(&self) -> Self::Guard<'_> {
        self.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}
