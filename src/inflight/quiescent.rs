//! The proof that the device is done with a work queue.
#![allow(unsafe_code, reason = "whoever makes the proof vouches for it")]

/// Shows that the device is done with every request of a work queue, completed or not: its queue pair was destroyed or
/// reset, or its shared receive queue was destroyed.
///
/// The ledger releases requests that have not completed only against this proof. The proof is made next to the verb
/// ([`RawPair`](super::RawPair), [`SharedCore`](super::SharedCore)), and travels with the place of the work queue to
/// the poller that empties the ledger.
#[derive(Clone, Debug)]
pub(crate) struct Quiescent(());

impl Quiescent {
    /// # Safety
    ///
    /// The device does not touch the memory of any request that was posted to the work queue so far. The proof is used
    /// for the ledger of that work queue only.
    pub(crate) unsafe fn new() -> Self {
        Self(())
    }

    /// For tests without a device.
    #[cfg(test)]
    pub(crate) fn without_device() -> Self {
        Self(())
    }
}
