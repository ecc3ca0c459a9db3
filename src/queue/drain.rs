//! Draining: waiting until every request of a pair in Error has come out of the poller.

use super::attributes::Modify;
use super::error::{DrainFailure, Undrained};
use super::pair::{PAUSE, QueuePair};
use super::request_kinds::Inline;
use super::state::{Errored, State};
use super::transport::{Transport, code};
use crate::completion::{Completion, FLUSH_INTERVAL, HOPELESS_FLUSHES, Poller};
use crate::domain::Brand;
use crate::inflight::{WorkId, WorkRequest};
use crate::sys::{ibv_qp_state as raw_state, ibv_qp_type};
use crate::verb_error::VerbError;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// In Error: the device flushes all requests. The exits are [`destroy`](QueuePair::destroy) and, where
/// [`pairs_can_be_reset`](crate::device::Promises::pairs_can_be_reset) is true,
/// [`into_reset`](QueuePair::into_reset); best after [`drain`](QueuePair::drain).
impl<B: Brand, T: Transport> QueuePair<B, Errored, T> {
    /// Polls until every request of this pair has come out. Each polled completion goes to `sink`, including those of
    /// other pairs.
    ///
    /// Moves the pair to Error again now and then, since some devices flush only on such a call. If sends and receives
    /// complete on different queues, use [`drain_on`](Self::drain_on). A pair on a shared receive queue waits only for
    /// its sends.
    ///
    /// A successful unsignalled send is not flushed: it comes out together with a later request. If no later request is
    /// left, this posts an empty one, whose flush brings the sends back; `sink` does not see the empty request. After a
    /// timeout, the empty request may come out of the poller or go to another `sink`: it has no memory, and an id that
    /// no post has returned. On datagram pairs (a request needs a recipient) and after an uncertain post, nothing is
    /// posted: only reset and destroy bring such requests back.
    ///
    /// # Errors
    ///
    /// [`Undrained`]: the deadline passed, or [something failed](DrainFailure). The pair is still in Error.
    pub fn drain(
        &mut self,
        poller: &mut Poller<B>,
        timeout: Duration,
        sink: impl FnMut(Completion<B>),
    ) -> Result<(), Undrained> {
        self.drain_by([poller], timeout, sink)
    }

    /// As [`drain`](Self::drain), for a pair whose sends and receives complete on different queues.
    ///
    /// # Errors
    ///
    /// As [`drain`](Self::drain).
    pub fn drain_on(
        &mut self,
        sends: &mut Poller<B>,
        receives: &mut Poller<B>,
        timeout: Duration,
        sink: impl FnMut(Completion<B>),
    ) -> Result<(), Undrained> {
        self.drain_by([sends, receives], timeout, sink)
    }

    fn drain_by<const POLLERS: usize>(
        &mut self,
        mut pollers: [&mut Poller<B>; POLLERS],
        timeout: Duration,
        mut sink: impl FnMut(Completion<B>),
    ) -> Result<(), Undrained> {
        let domain = self.inner.core.domain.id();
        let mixes = B::CHECKED && pollers.iter().any(|poller| poller.queue().domain.id() != domain);
        let ours = [&self.inner.core.send_queue, &self.inner.core.receive_queue].map(Arc::as_ptr);
        let strays = pollers.iter().any(|poller| !ours.contains(&Arc::as_ptr(poller.queue())));
        let deadline = Instant::now().checked_add(timeout);
        // The first kick (see `Kicks`) comes in the first round.
        let (mut next_kick, mut kicks) = (Instant::now(), Kicks::default());
        let source = loop {
            if mixes {
                break Some(DrainFailure::OtherDomain);
            }
            if strays {
                break Some(DrainFailure::OtherQueue);
            }
            // Each round begins with another poller, so that a poller with many completions cannot keep the others from
            // being polled.
            pollers.rotate_left(1);
            let idle = match pollers.iter_mut().find_map(|poller| poller.poll().transpose()).transpose() {
                Ok(Some(completion)) => {
                    if kicks.marker() != Some(completion.id()) {
                        sink(completion);
                    }
                    false
                }
                Ok(None) => true,
                Err(error) => break Some(error.into()),
            };
            if self.sends_in_flight() == 0 && self.inner.receive.outstanding() == 0 {
                return Ok(());
            }
            // Check the deadline also after a completion: perhaps other pairs on the completion queues complete
            // requests for ever.
            let now = Instant::now();
            if deadline.is_some_and(|deadline| now >= deadline) {
                break None;
            }
            if now >= next_kick {
                next_kick = now + FLUSH_INTERVAL;
                if let Err(error) = kicks.kick(self) {
                    break Some(error.into());
                }
            } else if idle {
                thread::sleep(PAUSE);
            }
        };
        Err(Undrained { sends: self.sends_in_flight(), receives: self.inner.receive.outstanding(), timeout, source })
    }
}

/// The kicks of one drain. A kick moves the pair to Error once more, since some devices flush only on such a call.
#[derive(Default)]
pub(crate) struct Kicks {
    count: u32,
    /// The empty request whose flush brings unsignalled sends back, once it is posted.
    marker: Option<WorkId>,
    /// How many sends and receives were in flight at the last kick.
    in_flight: (u32, u32),
    /// How many kicks in a row have found these same numbers.
    without_progress: u32,
}

impl Kicks {
    /// Kicks the pair, whatever state its type names. From the third kick on, may also post an empty request, the
    /// marker. Returns its id if this kick has posted it.
    pub(crate) fn kick<B: Brand, S: State, T: Transport>(
        &mut self,
        pair: &mut QueuePair<B, S, T>,
    ) -> Result<Option<WorkId>, VerbError> {
        self.count = self.count.saturating_add(1);
        pair.inner.core.modify(Modify::to(raw_state::IBV_QPS_ERR))?;
        let before = std::mem::replace(&mut self.in_flight, pair.in_flight());
        self.without_progress = if self.in_flight == before { self.without_progress.saturating_add(1) } else { 0 };
        // By the third kick the device has had time to flush all signalled requests. Sends that are left are probably
        // unsignalled, and the flush of the marker brings them back. If the device refuses the marker, the next kick
        // tries again.
        if self.count < 3 || self.in_flight.0 == 0 || self.marker.is_some() || !pair.takes_marker() {
            return Ok(None);
        }
        self.marker = pair.inner.send.post_marker::<B, _, _>(WorkRequest::send(Inline(&[])));
        Ok(self.marker)
    }

    /// The id of the marker, if it was posted. Its completion is not for the program.
    pub(crate) fn marker(&self) -> Option<WorkId> {
        self.marker
    }

    /// Whether to give up: some requests may come out only when the pair is destroyed or reset, and many kicks in a row
    /// have brought nothing out.
    pub(crate) fn are_hopeless<B: Brand, S: State, T: Transport>(&self, pair: &QueuePair<B, S, T>) -> bool {
        self.without_progress >= HOPELESS_FLUSHES && pair.may_keep_requests()
    }
}

impl<B: Brand, S: State, T: Transport> QueuePair<B, S, T> {
    /// Whether sends that succeeded may stay in flight in Error, because they were unsignalled.
    fn may_keep_sends(&self) -> bool {
        self.inner.core.domain.context.promises().sends_may_be_unsignalled()
    }

    /// Whether a marker may be posted, to bring unsignalled sends back. Not on a datagram pair, because each of its
    /// requests needs a recipient. Not after an uncertain post: the marker's completion would report that request as a
    /// success.
    fn takes_marker(&self) -> bool {
        self.may_keep_sends() && code::<T>() != ibv_qp_type::IBV_QPT_UD && !self.inner.core.is_poisoned()
    }

    /// Whether requests may stay in flight that neither a flush nor a marker brings back: sends of a datagram pair, or
    /// [those of any pair](super::untyped::PairCore::may_keep_requests).
    fn may_keep_requests(&self) -> bool {
        let is_datagram = code::<T>() == ibv_qp_type::IBV_QPT_UD;
        self.inner.core.may_keep_requests() || is_datagram && self.may_keep_sends() && self.sends_in_flight() != 0
    }
}
