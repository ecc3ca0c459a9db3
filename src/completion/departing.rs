//! Queue pairs that the program has dropped and that the poller destroys.
//!
//! On some providers, destroying a pair frees memory that a poll on another thread or a later poll reads, or it drops
//! completions that were not polled before. On such a provider, the drop of a pair moves the pair to Error and hands it
//! to the poller of its receives. The poller returns the flushed completions. It destroys the pair once no request of
//! the pair is in flight and the completion queue was seen empty. A pair on a shared receive queue must also have been
//! in Error for some time. If the completion queue is dropped first, that drop destroys the departing pairs, since
//! nobody polls any more. A pair that cannot be destroyed is leaked, with everything that is in flight on its
//! completion queue.

use super::message::Orphan;
use crate::inflight::Quiescent;
use crate::verb_error::VerbError;
use std::time::{Duration, Instant};

/// A queue pair that the program has dropped: `queue::pair_end::DepartingPair`. It is a trait, since `completion` may
/// not use `queue`.
pub(crate) trait Departing: Send + Sync {
    /// The slots, on this completion queue, of the work queues that must have nothing in flight before the destroy.
    /// Shared receives that the pair has taken cannot be counted; [`SHARED_GRACE`] gives the device time for them.
    fn slots(&self) -> [Option<usize>; 2];
    /// Whether the pair receives from a shared receive queue.
    fn is_on_shared(&self) -> bool;
    /// Whether the device may fill another receive for the pair.
    fn may_receive(&self) -> bool;
    /// Whether the pair may have a request that never completes: one that the device never got, or one that was posted
    /// after the device had moved the pair to Error.
    #[cfg(feature = "aio")]
    fn may_keep_requests(&self) -> bool;
    /// Moves the pair to Error again: some devices flush only on such a call.
    fn flush_again(&self) -> Result<(), VerbError>;
    /// Destroys the pair. Nobody may poll its completion queue meanwhile.
    fn destroy(&mut self) -> Result<Quiescent, VerbError>;
    /// What the destroy has left.
    fn into_remains(self: Box<Self>, quiescent: &Quiescent) -> Remains;
    /// Leaks the pair, with everything that the device may still use.
    fn leak(self: Box<Self>, error: VerbError);
}

/// What is left of a pair that was destroyed.
pub(crate) struct Remains {
    /// The work queues on this completion queue that the destroy has ended. A work queue on another completion queue
    /// was sent to that queue's poller instead.
    pub(crate) orphans: [Option<Orphan>; 2],
    /// The other completion queue; `None` if the pair completed on one queue.
    pub(crate) leftover: Option<Leftover>,
}

/// Something that the poller has no more use for: a handle of a completion queue or of a shared receive queue. Its drop
/// may drop memory of the program, which may run code of the program.
pub(crate) type Leftover = Box<dyn Send + Sync>;

/// The time between two calls that ask a device to flush.
pub(crate) const FLUSH_INTERVAL: Duration = Duration::from_millis(20);
/// After so many of these calls in a row that bring nothing out, nobody waits any longer for a pair that may have
/// requests which no flush brings out.
pub(crate) const HOPELESS_FLUSHES: u32 = 10;
/// How long a device gets to finish the shared receives that it has started. The library cannot count them.
const SHARED_GRACE: Duration = Duration::from_millis(20);

/// A [`Departing`] pair that waits for its destroy.
pub(super) struct Departure {
    pub(super) pair: Box<dyn Departing>,
    /// When the poller first knew that the device fills no more receives for the pair.
    quiet_since: Option<Instant>,
    flushed: Instant,
    /// How many flushes were asked for since the last completion of the queue.
    #[cfg_attr(not(feature = "aio"), allow(dead_code))]
    flushes: u32,
    /// Whether the device refused the last of them, as a removed device does.
    #[cfg_attr(not(feature = "aio"), allow(dead_code))]
    is_refused: bool,
}

impl Departure {
    pub(super) fn new(pair: Box<dyn Departing>) -> Self {
        let now = Instant::now();
        Self { quiet_since: (!pair.may_receive()).then_some(now), pair, flushed: now, flushes: 0, is_refused: false }
    }

    /// Whether the device takes no more shared receives for the pair, and has had its time to finish those that it has
    /// taken.
    pub(super) fn is_past_grace(&self) -> bool {
        !self.pair.is_on_shared() || self.quiet_since.is_some_and(|since| since.elapsed() >= SHARED_GRACE)
    }

    /// Whether the pair waits for requests that never come.
    #[cfg(feature = "aio")]
    pub(super) fn is_hopeless(&self) -> bool {
        self.flushes >= HOPELESS_FLUSHES && (self.is_refused || self.pair.may_keep_requests())
    }

    /// Notes that the completion queue had completions, perhaps of this pair.
    pub(super) fn note_progress(&mut self) {
        self.flushes = 0;
    }

    /// Asks the device again to flush, if [`FLUSH_INTERVAL`] has passed since the last time.
    pub(super) fn flush_if_due(&mut self) {
        if self.flushed.elapsed() >= FLUSH_INTERVAL {
            self.flushed = Instant::now();
            self.flushes = self.flushes.saturating_add(1);
            self.is_refused = self.pair.flush_again().is_err();
            if self.quiet_since.is_none() && !self.pair.may_receive() {
                self.quiet_since = Some(self.flushed);
            }
        }
    }
}

#[cfg(all(test, feature = "aio", not(loom)))]
mod tests {
    use super::*;

    /// A pair whose moves to Error have the result `flushes`.
    struct Pair {
        flushes: fn() -> Result<(), VerbError>,
        may_keep_requests: bool,
    }

    impl Departing for Pair {
        fn slots(&self) -> [Option<usize>; 2] {
            [None, None]
        }

        fn is_on_shared(&self) -> bool {
            false
        }

        fn may_receive(&self) -> bool {
            false
        }

        fn may_keep_requests(&self) -> bool {
            self.may_keep_requests
        }

        fn flush_again(&self) -> Result<(), VerbError> {
            (self.flushes)()
        }

        fn destroy(&mut self) -> Result<Quiescent, VerbError> {
            unreachable!("nobody destroys the pair")
        }

        fn into_remains(self: Box<Self>, _: &Quiescent) -> Remains {
            unreachable!("nobody destroys the pair")
        }

        fn leak(self: Box<Self>, _: VerbError) {}
    }

    fn removed() -> Result<(), VerbError> {
        Err(VerbError::new("ibv_modify_qp", libc::EIO))
    }

    fn departure(flushes: fn() -> Result<(), VerbError>, may_keep_requests: bool) -> Departure {
        Departure::new(Box::new(Pair { flushes, may_keep_requests }))
    }

    fn flush(departure: &mut Departure, count: u32) {
        for _ in 0..count {
            // Move the last flush back in time, so that the next flush is due.
            departure.flushed = departure.flushed.checked_sub(FLUSH_INTERVAL).unwrap();
            departure.flush_if_due();
        }
    }

    #[test]
    fn a_pair_is_hopeless_only_if_many_flushes_bring_nothing_out() {
        let mut pair = departure(|| Ok(()), true);
        flush(&mut pair, HOPELESS_FLUSHES - 1);
        assert!(!pair.is_hopeless());
        pair.note_progress();
        flush(&mut pair, HOPELESS_FLUSHES - 1);
        assert!(!pair.is_hopeless(), "a completion came in between");
        flush(&mut pair, 1);
        assert!(pair.is_hopeless());
        pair.note_progress();
        assert!(!pair.is_hopeless());
    }

    #[test]
    fn a_pair_whose_requests_all_come_is_hopeless_only_on_a_removed_device() {
        let (mut alive, mut gone) = (departure(|| Ok(()), false), departure(removed, false));
        [&mut alive, &mut gone].into_iter().for_each(|pair| flush(pair, HOPELESS_FLUSHES));
        assert_eq!([&alive, &gone].map(|pair| pair.is_hopeless()), [false, true]);
    }
}
