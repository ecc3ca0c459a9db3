//! The flags at a ledger that keep posts off the fast path.
#![forbid(unsafe_code)]

use super::{BLOCKED, Ledger, LedgerRef, Poster};
use crate::inflight::ledger::STEP;
use crate::sync::Ordering;

/// Flags that keep posts to a ledger off the fast path; 0 if none is set. They are in the header of the ledger, which
/// each post writes to anyway.
pub(crate) struct Detour<T>(LedgerRef<T>);

impl<T> Detour<T> {
    pub(crate) fn bits(&self) -> u32 {
        self.0.0.detour()
    }

    /// Sets the flags `bits`. Only bits below [`STEP`] are flags; the bits above hold the depth. Whoever
    /// [clears](Self::clear) the flags sees what was done before they were set.
    pub(crate) fn set(&self, bits: u32) {
        let bits = u64::from(bits) & (STEP - 1);
        if bits != 0 {
            self.0.0.limit.fetch_or(bits | BLOCKED, Ordering::Release);
        }
    }

    pub(crate) fn clear(&self, bits: u32) {
        let bits = u64::from(bits) & (STEP - 1);
        let without = |limit: u64| {
            let left = limit & !bits;
            Some(if left & (STEP - 1) == 0 { left & !BLOCKED } else { left })
        };
        // `fetch_update` never fails: `without` always returns a value.
        let _ = self.0.0.limit.fetch_update(Ordering::Acquire, Ordering::Relaxed, without);
    }
}

impl<T, P> Poster<T, P> {
    /// The flags that keep posts off the fast path: see [`Detour`].
    #[inline(always)]
    pub(crate) fn detour(&self) -> u32 {
        self.ledger().detour()
    }

    /// The handle that sets and clears the flags of [`detour`](Self::detour).
    pub(crate) fn detour_of(&self) -> Detour<T> {
        Detour(self.held.clone())
    }
}

impl<T> Ledger<T> {
    /// The bits of the [`Detour`].
    #[inline(always)]
    fn detour(&self) -> u32 {
        (self.limit.load(Ordering::Relaxed) & (STEP - 1)) as u32
    }
}
