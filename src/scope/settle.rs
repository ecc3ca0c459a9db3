//! The end of a scope: afterwards the device can reach nothing that the scope borrowed.
//!
//! The steps, in this order, until one is enough: wait for the requests; move the pair to Error and poll what is
//! flushed; reset the pair, where its provider allows that; destroy it. Each step proves that the device is done with a
//! request: by the request's own completion, or by a reset or a destroy that the device confirmed. Deregistering memory
//! that a request still names is no proof: the device may give the memory's key to another registration, and a request
//! that is still queued would then reach other memory. So the registrations end last.
//!
//! ASSUMPTION: memory whose registration gives peers no rights is reached only for requests that name its key, and no
//! key is given out while a registration has it.

use super::slots::Slots;
use crate::completion::{Completion, Poller};
use crate::domain::Brand;
use crate::inflight::Status;
use crate::memory::Loan;
use crate::queue::{AnyQueuePair, QueuePair, ReliableConnection, State};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::Write;
use std::time::{Duration, Instant};
use std::{io, mem, process, thread};

/// How long a device may take for each step: to flush the pair, to return its requests, to destroy the pair, and to end
/// the registrations.
pub(super) const GRACE: Duration = Duration::from_secs(1);
/// The pause between two tries, where no event says that the device is ready.
const PAUSE: Duration = Duration::from_millis(1);

/// A pair and its only poller.
pub(super) struct Engine<B> {
    pub(super) pair: AnyQueuePair<B>,
    /// `None` after pair and completion queue had to be dropped.
    pub(super) poller: Option<Poller<B>>,
    /// The registrations of the scope that is open.
    pub(super) loans: Vec<Loan>,
    /// Completions of requests that do not belong to a scope.
    pub(super) kept: VecDeque<Completion<B>>,
}

/// How a scope ended.
pub(super) struct End {
    pub(super) cut_off: u32,
    pub(super) first_failure: Option<Status>,
}

impl<B: Brand> Engine<B> {
    /// The pair, if it is connected and has not failed.
    pub(super) fn ready(&mut self) -> Option<&mut QueuePair<B>> {
        self.pair.ready().filter(|pair| !pair.inner.core.is_broken())
    }

    fn settle(&mut self, slots: &RefCell<Slots<B>>, deadline: Option<Instant>) -> End {
        self.wait_for_rest(slots, deadline);
        let first_failure = self.pair.ready().and_then(|pair| pair.first_failure());
        let cut_off = slots.borrow().in_flight();
        if cut_off != 0 || self.ready().is_none() {
            self.sever(slots);
        }
        slots.borrow_mut().clear();
        self.end_loans();
        End { cut_off, first_failure }
    }

    /// Waits for the remaining requests of the scope, until the deadline or a failure.
    fn wait_for_rest(&mut self, slots: &RefCell<Slots<B>>, deadline: Option<Instant>) {
        while slots.borrow().in_flight() != 0 && self.ready().is_some() {
            let Some(poller) = &mut self.poller else { return };
            match poller.wait(time_left(deadline)) {
                Ok(completion) => self.kept.extend(slots.borrow_mut().route(completion)),
                Err(_) => return,
            }
        }
    }

    /// Breaks the connection, so that the device flushes the requests in flight.
    fn sever(&mut self, slots: &RefCell<Slots<B>>) {
        self.pair = match mem::take(&mut self.pair) {
            AnyQueuePair::ReadyToSend(pair) => match pair.into_error() {
                Ok(pair) => pair.into(),
                Err(error) => error.queue_pair.into(),
            },
            other => other,
        };
        if let (AnyQueuePair::Errored(pair), Some(poller)) = (&mut self.pair, &mut self.poller) {
            let kept = &mut self.kept;
            // If the drain fails or its time is over, requests stay in flight. The steps below end them.
            let _ = pair.drain(poller, GRACE, |completion| kept.extend(slots.borrow_mut().route(completion)));
        }
        if slots.borrow().in_flight() == 0 {
            return;
        }
        let is_reset;
        (self.pair, is_reset) = match mem::take(&mut self.pair) {
            AnyQueuePair::ReadyToSend(pair) => reset(pair),
            AnyQueuePair::Errored(pair) => reset(pair),
            other => (other, false),
        };
        if is_reset && self.take_out(slots) {
            return;
        }
        let gone;
        (self.pair, gone) = match (mem::take(&mut self.pair), &mut self.poller) {
            (AnyQueuePair::ReadyToSend(pair), Some(poller)) => destroy(pair, poller),
            (AnyQueuePair::Errored(pair), Some(poller)) => destroy(pair, poller),
            (AnyQueuePair::Reset(pair), Some(poller)) => destroy(pair, poller),
            (other, _) => (other, None),
        };
        if gone == Some(true) && self.take_out(slots) {
            return;
        }
        if !is_reset && gone.is_none() {
            abort("its requests were neither flushed nor ended by a reset or a destroy of the queue pair");
        }
        // The device is done with the requests, but not all of them came out of the completion queue. Drop the pair and
        // the poller, which hold the last references to that queue. The drop of the queue then frees the requests.
        self.pair = AnyQueuePair::Vacant;
        self.poller = None;
    }

    /// Polls the requests of a pair that is destroyed or reset. Returns whether all of them came out.
    fn take_out(&mut self, slots: &RefCell<Slots<B>>) -> bool {
        let until = Instant::now() + GRACE;
        let Some(poller) = &mut self.poller else { return false };
        while slots.borrow().in_flight() != 0 {
            match poller.poll() {
                Ok(Some(completion)) => self.kept.extend(slots.borrow_mut().route(completion)),
                Ok(None) if Instant::now() < until => thread::sleep(PAUSE),
                Ok(None) | Err(_) => return false,
            }
        }
        true
    }

    /// Ends the registrations. No request names them any more.
    fn end_loans(&mut self) {
        for mut loan in self.loans.drain(..) {
            // Each registration gets its own time. If they shared it, one that never ends would leave none for the
            // next.
            let until = Instant::now() + GRACE;
            while let Err(error) = loan.end() {
                if Instant::now() < until {
                    thread::sleep(PAUSE);
                } else if loan.is_exposed() {
                    abort("peers can still reach it: the device did not end its registration");
                } else {
                    // The memory stays registered, and no other registration gets its key. That does no harm: no peer
                    // has a right to the memory, and no request names the memory.
                    loan.leak(error);
                    break;
                }
            }
        }
    }
}

/// Ends a scope. Returns only once the device is done with all memory that was lent.
pub(super) fn settle<B: Brand>(
    engine: &RefCell<Engine<B>>,
    slots: &RefCell<Slots<B>>,
    deadline: Option<Instant>,
) -> End {
    let bomb = AbortOnUnwind;
    let end = engine.borrow_mut().settle(slots, deadline);
    mem::forget(bomb);
    end
}

/// The time until `deadline`; `Duration::MAX` if there is no deadline.
pub(super) fn time_left(deadline: Option<Instant>) -> Duration {
    deadline.map_or(Duration::MAX, |deadline| deadline.saturating_duration_since(Instant::now()))
}

fn reset<B: Brand, S: State>(pair: QueuePair<B, S, ReliableConnection>) -> (AnyQueuePair<B>, bool) {
    match pair.into_reset() {
        Ok(pair) => (pair.into(), true),
        Err(error) => (error.queue_pair.into(), false),
    }
}

/// Destroys the pair. `poller` is its only poller. If the device refuses and may be asked again, this asks again, for
/// at most [`GRACE`]. The second result is `None` if the pair was not destroyed; otherwise it says whether the
/// completion queue may be polled afterwards.
fn destroy<B: Brand, S: State>(
    mut pair: QueuePair<B, S, ReliableConnection>,
    poller: &mut Poller<B>,
) -> (AnyQueuePair<B>, Option<bool>) {
    let until = Instant::now() + GRACE;
    loop {
        match pair.inner.destroy_with(poller) {
            Ok(may_poll) => return (AnyQueuePair::Vacant, Some(may_poll)),
            Err(error) if error.is_lost => return (AnyQueuePair::Vacant, None),
            Err(_) if Instant::now() < until => thread::sleep(PAUSE),
            Err(_) => return (pair.into(), None),
        }
    }
}

/// The last resort: a return would give the caller memory that the device may still use.
#[cold]
fn abort(why: &str) -> ! {
    let _ = writeln!(io::stderr(), "interlock: the memory of a scope is still in use: {why}; aborting");
    process::abort()
}

/// Aborts the process if a panic unwinds through code that must run to its end.
struct AbortOnUnwind;

impl Drop for AbortOnUnwind {
    fn drop(&mut self) {
        abort("its end panicked");
    }
}
