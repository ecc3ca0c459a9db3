//! Queue pairs that the program has dropped and that the poller destroys.
//!
//! Some providers free a pair while another thread polls its completion queue, or read the pair in a later poll, or
//! drop completions that were not polled before the destroy. On such a provider the drop of a pair moves the pair to
//! Error and hands it to the poller of its receives. The poller gives out the flushed completions. It destroys the pair
//! once nothing of it is in flight and the completion queue was seen empty. A completion queue that goes away first
//! destroys its departing pairs then, since nobody polls any more. A pair that cannot be destroyed is leaked, with
//! everything that is in flight on its completion queue.

use super::message::Place;
use crate::verb_error::VerbError;
use std::time::{Duration, Instant};

/// A queue pair that the program has dropped.
pub(crate) trait Departing: Send + Sync {
    /// The slots, on this completion queue, of the work queues that must have nothing in flight before the destroy. The
    /// pair's shared receives are not counted anywhere; they have [`SHARED_GRACE`].
    fn slots(&self) -> [Option<usize>; 2];
    /// Whether it receives from a shared receive queue.
    fn is_on_shared(&self) -> bool;
    /// Moves it to Error again: some devices flush only when they are told to.
    fn flush_again(&self);
    /// Destroys it. Nobody polls its completion queue meanwhile.
    fn destroy(&mut self) -> Result<(), VerbError>;
    /// The places on this completion queue that it gives back after its destroy. It tells another completion queue by
    /// itself.
    fn into_places(self: Box<Self>) -> [Option<Place>; 2];
    /// Leaks it, with everything that the device may still use.
    fn leak(self: Box<Self>, error: VerbError);
}

/// How often a device is told again to flush.
const FLUSH_INTERVAL: Duration = Duration::from_millis(20);
/// How long a device has to finish the shared receives that it had begun. The library cannot count them.
const SHARED_GRACE: Duration = Duration::from_millis(20);

/// A [`Departing`] pair that waits for its destroy.
pub(super) struct DepartingPair {
    pub(super) pair: Box<dyn Departing>,
    since: Instant,
    flushed: Instant,
}

impl DepartingPair {
    pub(super) fn new(pair: Box<dyn Departing>) -> Self {
        let now = Instant::now();
        Self { pair, since: now, flushed: now }
    }

    /// Whether the device had its time for shared receives.
    pub(super) fn is_past_grace(&self) -> bool {
        !self.pair.is_on_shared() || self.since.elapsed() >= SHARED_GRACE
    }

    /// Tells the device again to flush, if the last time was long ago.
    pub(super) fn flush_if_due(&mut self) {
        if self.flushed.elapsed() >= FLUSH_INTERVAL {
            self.flushed = Instant::now();
            self.pair.flush_again();
        }
    }
}
