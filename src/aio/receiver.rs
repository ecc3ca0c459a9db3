//! The half of a queue pair that receives, for tasks.

use super::lane::Parked;
use super::lane_handle::LaneHandle;
use super::outcome::{Counters, RequestError};
use super::refill::{Asking, Asks, Refill, RefillError};
use super::shared_poller::SharedPoller;
use crate::completion::{Completion, PollError, Success};
use crate::domain::Brand;
use crate::inflight::{PostError, Status, WorkId};
use crate::memory::Pool;
use crate::queue::ReceiveHalf;
use crate::queue::request_kinds::FillMemory;
use crate::queue::transport::{OwnReceives, ReliableConnection, Transport};
use crate::types::Qpn;
use futures_core::Stream;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

/// The half of a queue pair that receives: a stream of the receives that complete.
///
/// The future of a wait holds no buffer, so it may be dropped at any time.
pub struct Receiver<B, T = ReliableConnection> {
    // `half` is declared before `lane`, so that it is dropped before `lane`. The drop of the pair's last half sends
    // mail to the poller, and the drop of `lane` can then end the driver. In this order the driver reads the mail
    // before it ends, and can free what the pair had in flight.
    half: ReceiveHalf<B, T>,
    lane: LaneHandle<B>,
    /// The fewest receives that were posted when one was taken; `u32::MAX` before the first.
    fewest: u32,
    refill: Option<Box<Refill<B, T>>>,
    /// A receive that has completed and was not returned, because a waker panicked.
    kept: Option<Completion<B>>,
}

/// What a receiver has besides its half and its lane.
pub(super) struct Rest<B, T> {
    fewest: u32,
    refill: Option<Box<Refill<B, T>>>,
    pub(super) kept: Option<Completion<B>>,
}

static_assertions::assert_impl_all!(Receiver<()>: Send);
static_assertions::assert_not_impl_any!(Receiver<()>: Clone);

impl<B: Brand, T: Transport> Receiver<B, T> {
    pub(super) fn new(half: ReceiveHalf<B, T>, poller: SharedPoller<B>, depth: u32) -> Self {
        let lane = LaneHandle::new(poller, || half.ids(), depth);
        Self { half, lane, fewest: u32::MAX, refill: None, kept: None }
    }

    pub(super) fn of_half(half: ReceiveHalf<B, T>, lane: LaneHandle<B>, rest: Rest<B, T>) -> Self {
        let Rest { fewest, refill, kept } = rest;
        Self { half, lane, fewest, refill, kept }
    }

    pub(super) fn into_half(self) -> (ReceiveHalf<B, T>, LaneHandle<B>, Rest<B, T>) {
        let Self { half, lane, fewest, refill, kept } = self;
        (half, lane, Rest { fewest, refill, kept })
    }

    pub(super) fn lane_mut(&mut self) -> &mut LaneHandle<B> {
        &mut self.lane
    }

    /// Waits until the pair breaks.
    pub(super) fn poll_failure(&mut self, context: &mut Context<'_>) -> Poll<Result<Status, PollError>> {
        let Self { half, lane, .. } = self;
        lane.poll_failure(context, || half.broken_by())
    }

    /// Posts a receive: the next message goes into the whole capacity of `memory`. See
    /// [`QueuePair::post_receive`](crate::QueuePair::post_receive).
    ///
    /// # Errors
    ///
    /// As [`QueuePair::post_receive`](crate::QueuePair::post_receive).
    #[inline]
    pub fn post_receive<M: FillMemory<B>>(&mut self, memory: M) -> Result<WorkId, PostError<M>>
    where
        T: OwnReceives,
    {
        let posted = self.half.post_receive(memory);
        self.lane.note_next(self.half.next_id());
        match &posted {
            Ok(_) => {
                if let Some(refill) = &mut self.refill {
                    refill.note_posted();
                }
            }
            Err(PostError::Uncertain { .. }) => self.wake_all(),
            Err(_) => {}
        }
        posted
    }

    /// Makes the receiver post receives by itself, with buffers of `pool` that hold at least `len_bytes`. It posts now,
    /// and whenever a task asks for the next receive or takes one. `most` limits how many receives are posted or wait
    /// to be taken. The depth of the queue limits it too.
    ///
    /// While the pool has no buffer, nothing is posted. A message that the program keeps also keeps its buffer. If the
    /// peer sends faster than this side drops messages, the receive queue becomes empty, and the peer's sends are
    /// retried or fail. [`Counters::fewest_receives`] tells how near that is.
    ///
    /// # Errors
    ///
    /// [`RefillError`]: the pool has no class for that length, or is of another domain.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use interlock::aio::Connection;
    /// # use interlock::memory::Pool;
    /// # interlock::domain! { struct Docs; }
    /// # async fn serve(mut connection: Connection<Docs>, pool: Pool<Docs>) -> Result<(), Box<dyn std::error::Error>> {
    /// connection.receiver.refill_from(&pool, 4096, 16)?;
    /// while let Some(message) = connection.receiver.next().await {
    ///     let message = message?.into_buffer();
    ///     println!("{} bytes", message.map_or(0, |buffer| buffer.len())); // the buffer goes home here
    /// }
    /// # Ok(()) }
    /// ```
    pub fn refill_from(&mut self, pool: &Pool<B>, len_bytes: usize, most: u32) -> Result<(), RefillError>
    where
        T: OwnReceives,
    {
        // `with` holds the lock of the desk, so nobody else polls, and no receive moves from in flight to the inbox
        // between the two counts.
        let slot = self.lane.slot();
        let out = self.lane.desk().with(|state| {
            let received = state.lanes.get(slot).map_or(0, |lane| lane.received());
            self.half.in_flight().saturating_add(received)
        });
        let refill = Refill::new(pool, self.lane.poller().domain(), len_bytes, [most, out])?;
        self.refill = Some(Box::new(refill));
        if self.run_refill() {
            self.wake_all();
        }
        Ok(())
    }

    /// The next receive that completes.
    ///
    /// The receives come in the order in which the device completes them; the library does not sort them. That is the
    /// order of the messages, except on devices that complete requests in any order. If
    /// [`sends_may_be_unsignalled`](crate::device::Promises::sends_may_be_unsignalled) is false, do not rely on the
    /// order: if it matters, let the peer number its messages.
    ///
    /// `None` if no receive is posted, since then none can complete. That is not the end: post a receive, and call
    /// again. A receiver that [posts by itself](Self::refill_from) then waits for a buffer of the pool instead. It
    /// returns `None` only if its `most` is 0, the pair is broken, or the provider refuses the receive.
    ///
    /// # Errors
    ///
    /// The receive failed or was flushed: the error has its memory. Or the completion queue failed.
    #[inline]
    pub async fn next(&mut self) -> Option<Result<Success<B>, RequestError<B>>> {
        let asking = Asking { who: self };
        std::future::poll_fn(|context| asking.who.poll_next(context)).await
    }

    /// As [`next`](Self::next), for a future written by hand. If a receiver that [posts by itself](Self::refill_from)
    /// waits for a buffer, it stays in the pool's queue of waiters until it is polled again.
    ///
    /// # Errors
    ///
    /// As [`next`](Self::next).
    #[inline]
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Success<B>, RequestError<B>>>> {
        if self.refill.is_none()
            && let Some(completion) = self.lane.desk().take_receive(self.half.next_id())
        {
            self.fewest = self.fewest.min(self.half.in_flight());
            return Poll::Ready(Some(completion.check().map_err(RequestError::Failed)));
        }
        self.poll_slowly(context)
    }

    #[inline(never)]
    fn poll_slowly(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Success<B>, RequestError<B>>>> {
        if self.refill.is_some() { self.poll_refilled(context) } else { self.poll_posted(context) }
    }

    /// The next of the receives that are posted.
    fn poll_posted(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Success<B>, RequestError<B>>>> {
        self.poll_completion(context).map(|found| found.map(checked))
    }

    fn poll_refilled(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Success<B>, RequestError<B>>>> {
        if let Some(kept) = self.kept.take() {
            return Poll::Ready(Some(checked(Ok(kept))));
        }
        // An earlier call may have left a wait for a buffer in `refill`. Perhaps the pool has set a buffer aside for
        // that wait. Post that buffer first. The result is ignored: if the buffer cannot be posted, the loop below
        // finds out why.
        if self.refill.as_ref().is_some_and(|refill| refill.waits()) {
            let _ = self.poll_refill(context);
        }
        loop {
            if self.run_refill() {
                self.wake_all();
            }
            if let Some(found) = ready!(self.poll_completion(context)) {
                if let Some(refill) = &mut self.refill {
                    refill.note_taken();
                }
                let broken = self.run_refill().then(|| self.lane.broken());
                let waits = self.refill.as_ref().is_some_and(|refill| refill.waits());
                if broken.is_none() && !waits {
                    return Poll::Ready(Some(checked(found)));
                }
                let error = found.map(|completion| self.kept = Some(completion)).err();
                // `end_wait` and `drop(broken)` wake tasks, and a waker can panic. If one panics, `self.kept` still has
                // the completion, and the next call returns it.
                self.end_wait();
                drop(broken);
                return Poll::Ready(self.kept.take().map(Ok).or(error.map(Err)).map(checked));
            }
            if !ready!(self.poll_refill(context)) {
                return Poll::Ready(None);
            }
        }
    }

    /// Posts receives, if this receiver posts by itself. True if the outcome of a post is uncertain: then call
    /// [`wake_all`](Self::wake_all).
    fn run_refill(&mut self) -> bool {
        let Some(refill) = &mut self.refill else { return false };
        let posted = refill.run(&mut self.half);
        self.lane.note_next(self.half.next_id());
        matches!(posted, Err(PostError::Uncertain { .. }))
    }

    /// Waits for a buffer of the pool, and posts it. False if no receive can be posted.
    fn poll_refill(&mut self, context: &mut Context<'_>) -> Poll<bool> {
        // If the sends have another poller, perhaps nobody polls it. So poll it here: a failed send breaks the pair,
        // and that ends this wait.
        if let Some((desk, _)) = self.lane.other() {
            desk.settle_up_to(1);
        }
        let Some(refill) = &mut self.refill else { return Poll::Ready(false) };
        let posted = ready!(refill.poll_one(&mut self.half, self.lane.poller(), context));
        self.lane.note_next(self.half.next_id());
        if matches!(posted, Err(Some(PostError::Uncertain { .. }))) {
            self.wake_all();
        }
        Poll::Ready(posted.is_ok())
    }

    /// Wakes all whom the end of the pair concerns, after a post of uncertain outcome. Such a post breaks the pair, and
    /// no completion says so.
    #[cold]
    #[inline(never)]
    fn wake_all(&self) {
        drop(self.lane.broken());
    }

    fn poll_completion(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Completion<B>, PollError>>> {
        let Self { half, lane, fewest, .. } = self;
        let slot = lane.slot();
        let next_id = half.next_id();
        if let Some(completion) = lane.desk().try_receive(next_id) {
            *fewest = half.in_flight().min(*fewest);
            return Poll::Ready(Some(Ok(completion)));
        }
        let found = lane.desk().poll_for(
            context,
            |state| match state.lanes.get(slot).and_then(|lane| lane.next_received()) {
                Some(completion) => Some(Some(completion)),
                None => (half.in_flight() == 0).then_some(None),
            },
            |state, waker, mine, after| {
                state.lanes.with(slot, |lane, tally| lane.park_reader(waker, mine, tally, after)).unwrap_or(Parked::Yes)
            },
        );
        if matches!(found, Poll::Ready(Ok(Some(_)))) {
            *fewest = half.in_flight().min(*fewest);
        }
        found.map(Result::transpose)
    }

    pub(super) fn poller(&self) -> &SharedPoller<B> {
        self.lane.poller()
    }

    /// Whether the pair takes no more receives.
    pub(super) fn has_stopped(&self) -> bool {
        self.half.has_stopped()
    }

    /// Whether a receive may come out only with the end of the pair.
    pub(super) fn may_keep_receives(&self) -> bool {
        self.half.may_keep_requests()
    }

    /// How many receives are posted and have not completed.
    pub fn in_flight(&self) -> u32 {
        self.half.in_flight()
    }

    /// The counts of what became of the receives.
    pub fn counters(&self) -> Counters {
        let fewest_receives = (self.fewest != u32::MAX).then_some(self.fewest);
        Counters { fewest_receives, ..self.lane.counters(self.half.next_id(), self.half.in_flight()) }
    }

    /// The number of the pair.
    pub fn number(&self) -> Qpn {
        self.half.number()
    }
}

/// A receive that has completed, as a program gets it.
fn checked<B>(found: Result<Completion<B>, PollError>) -> Result<Success<B>, RequestError<B>> {
    match found {
        Ok(completion) => completion.check().map_err(RequestError::Failed),
        Err(error) => Err(RequestError::Queue(error)),
    }
}

impl<B, T> Asks for Receiver<B, T> {
    /// Leaves the queue of the pool, so that the next buffer that comes home goes to another task.
    #[inline]
    fn end_wait(&mut self) {
        if let Some(refill) = &mut self.refill {
            refill.end_wait();
        }
    }
}

impl<B: Brand, T: Transport> Stream for Receiver<B, T> {
    type Item = Result<Success<B>, RequestError<B>>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.get_mut().poll_next(context)
    }
}

impl<B, T> fmt::Debug for Receiver<B, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receiver").field("half", &self.half).finish_non_exhaustive()
    }
}
