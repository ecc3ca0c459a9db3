//! Queue pairs that their program has let go of, and that their poller destroys.
//!
//! Some providers free a pair while another thread polls its completion queue, read it in a later poll, or drop what was not
//! polled before. There a pair is moved to Error when the program drops it, and goes to the poller of its receives.
//! The poller gives out what is flushed. Once the pair has nothing in flight that must come out first, and the queue was seen empty, it
//! destroys the pair. A completion queue that ends before destroys it then: nobody polls any more. A pair that could not be destroyed is
//! leaked, and with it what is in flight on its completion queue.

use super::queue::Place;
use crate::error::VerbError;
use std::time::{Duration, Instant};

/// A pair on its way out.
pub(crate) trait Departing: Send {
    /// The slots of its work queues on this completion queue that must have nothing in flight first. Of shared receives nobody
    /// knows; they have [`SHARED_GRACE`].
    fn slots(&self) -> [Option<usize>; 2];
    /// Whether it receives from a shared receive queue.
    fn is_on_shared(&self) -> bool;
    /// Moves it to Error again: some devices flush only when they are told to.
    fn flush_again(&self);
    /// Destroys it. Nobody polls its completion queue meanwhile.
    fn destroy(&mut self) -> Result<(), VerbError>;
    /// Its places here, after it was destroyed. Another completion queue is told of its place there.
    fn into_places(self: Box<Self>) -> [Option<Place>; 2];
    /// Leaks it, with all that the device may still use.
    fn leak(self: Box<Self>, error: VerbError);
}

/// How often a device is told again to flush.
const AGAIN: Duration = Duration::from_millis(20);
/// How long a device has for receives that it had begun on a shared queue: they cannot be counted.
const SHARED_GRACE: Duration = Duration::from_millis(20);

/// A pair that a poller is to destroy.
pub(super) struct Guest {
    pub(super) pair: Box<dyn Departing>,
    came: Instant,
    told: Instant,
}

impl Guest {
    pub(super) fn new(pair: Box<dyn Departing>) -> Self {
        let now = Instant::now();
        Self { pair, came: now, told: now }
    }

    /// Whether the device had the time for what nobody knows of.
    pub(super) fn had_its_time(&self) -> bool {
        !self.pair.is_on_shared() || self.came.elapsed() >= SHARED_GRACE
    }

    /// Tells the device again to flush, now and then.
    pub(super) fn urge(&mut self) {
        if self.told.elapsed() >= AGAIN {
            self.told = Instant::now();
            self.pair.flush_again();
        }
    }
}
