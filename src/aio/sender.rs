//! The half of a queue pair that sends, for tasks.

use super::desk::{Desk, State};
use super::lane::Parked;
use super::lane_handle::LaneHandle;
use super::outcome::Counters;
use super::pairs::WatchKey;
use super::posted::{Answers, Fetched, Posted, Returned};
use super::posted_all::PostedAll;
use super::sender_mode::{Borrowed, Deferred, Owned, SenderMode, Waking};
use super::shared_poller::SharedPoller;
use crate::completion::{Completion, PollError, Work};
use crate::domain::Brand;
use crate::inflight::{PostAllError, PostError, Status, WorkId, WorkRequest};
use crate::memory::{
    Bindable, BoundWindow, Buffer, Exposed, PeerMayAtomic, PeerMayRead, PeerMayWrite, RemoteRegion, RemoteWindow,
    Window, WindowRights, WindowType,
};
use crate::queue::datagram::Recipient;
use crate::queue::request_kinds::{self, Atomic, BindWindow, Read, Revoke, SendInvalidating, SendTo, Write};
use crate::queue::transport::{Carries, ReliableConnection, Transport};
use crate::queue::{RequestMemory, SendHalf, SendMemory};
use crate::seal::KEY;
use crate::types::Qpn;
use crate::verb_error::VerbError;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::task::{Context, Poll};

/// The half of a queue pair that sends. A call posts at once, and returns a future for the completion.
///
/// Requests are posted in the order of the calls, and a request is executed even if nobody awaits it. A call that
/// cannot post gives the memory back in its error. If the queue is full, [`room`](Self::room) waits for room.
///
/// [`SharedPoller::split`] makes a sender, and a [`Connection`](super::Connection) has one. A sender is for one task;
/// [`into_shared`](Self::into_shared) makes a sender for many tasks, which lends a [`LentSender`] for the length of a
/// call. The mode `M` tells the two apart.
///
/// # Examples
///
/// ```
/// # use interlock::{Context, Limits};
/// # use interlock::aio::{SharedPoller, block_on};
/// # interlock::domain! { struct Docs; }
/// # let domain = Context::open("soft0")?.named_domain(Docs)?;
/// # let port = domain.context().active_port()?;
/// # let (queue, poller) = domain.completion_queue(16)?;
/// # let pair = domain.reliable(&queue, &Limits::default())?.into_init(&port)?;
/// # let own = pair.endpoint();
/// # let pair = pair.connect(&own)?; // the pair is its own peer
/// let (mut sender, mut receiver) = SharedPoller::new(poller).split(pair)?;
/// receiver.post_receive(domain.buffer(8)?)?;
/// let sent = sender.send(domain.buffer(8)?)?; // posted now
/// let buffer = block_on(sent)?; // its memory, when the request has completed
/// # drop(buffer);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Rules
///
/// The compiler enforces each of them; programs that break them are in `ui-tests/aio`.
///
/// - A7: a sender that is lent does not wait.
/// - A8: a sender that is lent is not exchanged for another one.
pub struct Sender<B, T = ReliableConnection, M = Owned<B, T>> {
    mode: M,
    types: PhantomData<fn() -> (B, T)>,
}
/// A sender that a [`SharedSender`](super::SharedSender) lends for the length of a call. It posts, and does not wait.
pub type LentSender<'s, B, T = ReliableConnection> = Sender<B, T, Borrowed<'s, B, T>>;

static_assertions::assert_impl_all!(Sender<()>: Send);
static_assertions::assert_not_impl_any!(Sender<()>: Clone);

/// Where a task waits for room in a sender.
pub(super) struct Place<B> {
    pub(super) desk: Arc<Desk<B>>,
    /// The slot of the lane at this desk.
    pub(super) slot: usize,
    /// The desk of the pair's receives, if it is another desk. And the place at that desk for a task that waits for the
    /// end of the pair.
    pub(super) other: Option<(Arc<Desk<B>>, WatchKey)>,
}

impl<B, T, M: SenderMode<B, T>> Sender<B, T, M> {
    #[inline(always)]
    fn of_mode(mode: M) -> Self {
        Self { mode, types: PhantomData }
    }

    #[inline(always)]
    fn half(&self) -> &SendHalf<B, T> {
        &self.mode.owned(KEY).half
    }

    #[inline(always)]
    fn half_mut(&mut self) -> &mut SendHalf<B, T> {
        &mut self.mode.owned_mut(KEY).half
    }

    #[inline(always)]
    fn lane(&self) -> &LaneHandle<B> {
        &self.mode.owned(KEY).lane
    }

    #[inline(always)]
    pub(super) fn lane_mut(&mut self) -> &mut LaneHandle<B> {
        &mut self.mode.owned_mut(KEY).lane
    }
}

impl<B: Brand, T: Transport> Sender<B, T> {
    pub(super) fn new(half: SendHalf<B, T>, poller: SharedPoller<B>, depth: u32) -> Self {
        let lane = LaneHandle::new(poller, || half.ids(), depth);
        Self::of_half(half, lane)
    }

    pub(super) fn of_half(half: SendHalf<B, T>, lane: LaneHandle<B>) -> Self {
        Self::of_mode(Owned { half, lane })
    }

    pub(super) fn into_half(self) -> (SendHalf<B, T>, LaneHandle<B>) {
        (self.mode.half, self.mode.lane)
    }

    /// Lends the sender. Its posts leave room for `kept` requests. What wakes tasks goes to `deferred`, which the
    /// caller drops when it has released its lock.
    #[inline(always)]
    pub(super) fn lend<'s>(&'s mut self, kept: u32, deferred: &'s mut Deferred<B>) -> LentSender<'s, B, T> {
        Sender::of_mode(Borrowed::new(&mut self.mode, kept, deferred))
    }

    pub(super) fn poller(&self) -> &SharedPoller<B> {
        self.lane().poller()
    }

    /// The id of the next request.
    pub(super) fn next_id(&self) -> WorkId {
        self.half().next_id()
    }

    /// Waits until the pair breaks.
    pub(super) fn poll_failure(&mut self, context: &mut Context<'_>) -> Poll<Result<Status, PollError>> {
        let Owned { half, lane } = &mut self.mode;
        lane.poll_failure(context, || half.broken_by())
    }

    /// Where a task waits for room.
    pub(super) fn place(&self) -> Place<B> {
        let other = self.lane().other().map(|(desk, watch)| (Arc::clone(desk), watch));
        Place { desk: Arc::clone(self.lane().desk()), slot: self.lane().slot(), other }
    }

    /// Waits until the queue has room for one more request. If the pair is broken, this is ready too, and the next post
    /// says why.
    ///
    /// Dropping the future loses nothing.
    ///
    /// # Errors
    ///
    /// The completion queue failed.
    pub async fn room(&mut self) -> Result<(), PollError> {
        /// Its drop ends the wait at the poller of the receives, if that is another one.
        struct Waiting<'s, B, T>(&'s mut Sender<B, T>);
        impl<B, T> Drop for Waiting<'_, B, T> {
            fn drop(&mut self) {
                self.0.lane().stop_watching_other();
            }
        }
        let waiting = Waiting(self);
        std::future::poll_fn(|context| waiting.0.poll_room(context)).await
    }

    /// As [`room`](Self::room), for a future written by hand.
    ///
    /// # Errors
    ///
    /// As [`room`](Self::room).
    pub fn poll_room(&mut self, context: &mut Context<'_>) -> Poll<Result<(), PollError>> {
        let Owned { half, lane } = &mut self.mode;
        let slot = lane.slot();
        if half.room() > 0 {
            return Poll::Ready(Ok(()));
        }
        let is_over = || half.room() > 0 || half.broken_by().is_some();
        let mut polled = lane.desk().poll_for(
            context,
            |_| is_over().then_some(()),
            |state, waker, mine, after| {
                state
                    .lanes
                    .with(slot, |lane, tally| lane.park_for_room(waker, mine, tally, after))
                    .unwrap_or(Parked::Yes)
            },
        );
        if polled.is_pending() {
            lane.watch_other(context)?;
            // Perhaps the other poller saw the end of the pair before this task left its waker there, and so did not
            // wake this task. So check once more.
            if is_over() {
                polled = Poll::Ready(Ok(()));
            }
        }
        if polled.is_ready() {
            lane.stop_watching_other();
        }
        polled
    }
}

impl<B: Brand, T: Transport, M: SenderMode<B, T>> Sender<B, T, M> {
    /// Whether the pair takes no more posts.
    pub(super) fn is_broken(&self) -> bool {
        self.half().broken_by().is_some()
    }

    /// Moves the pair to Error: its requests come out, and nothing more can be posted. The receiver and the futures
    /// give the memory back. A program calls this when it does not close the pair at once, for example after the peer
    /// has gone. (A few requests come out only when the pair is closed: see [`Closing`](super::Closing).)
    ///
    /// # Errors
    ///
    /// The device refused.
    pub fn abort(&mut self) -> Result<(), VerbError> {
        self.half().end_traffic()?;
        self.end_of_pair(None);
        Ok(())
    }

    /// Wakes all tasks that wait for room or for the end of the pair: if no request is in flight, no completion wakes
    /// them. Also abandons the requests of `posted`, if any.
    #[cold]
    #[inline(never)]
    fn end_of_pair(&mut self, posted: Option<PostedAll<B>>) {
        let broken = Some(self.lane().broken());
        self.mode.wake(Waking { posted, broken }, KEY);
    }

    /// Whether all room that is left is kept for other tasks. False if the pair is broken: then the post fails and says
    /// why.
    #[inline(always)]
    fn is_held_back(&self) -> bool {
        let kept = self.mode.kept(KEY);
        kept > 0 && self.half().room() <= kept && !self.is_broken()
    }

    /// Posts a request. An error holds what `back` makes of the request.
    #[inline(always)]
    fn post_as<R: RequestMemory<B, K>, K, V, E>(
        &mut self,
        request: WorkRequest<R, K>,
        back: impl FnOnce(WorkRequest<R, K>) -> E,
    ) -> Result<Posted<B, V>, PostError<E>>
    where
        T: Carries<K>,
    {
        if self.is_held_back() {
            return Err(PostError::QueueFull(back(request)));
        }
        let result = self.half_mut().post(request).map_err(|error| error.map(back));
        self.posted(result)
    }

    #[inline(always)]
    fn posted<V, E>(&mut self, result: Result<WorkId, PostError<E>>) -> Result<Posted<B, V>, PostError<E>> {
        let Owned { half, lane } = self.mode.owned_mut(KEY);
        let next = half.next_id();
        lane.note_next(next);
        match result {
            Ok(id) => Ok(Posted::new(lane.desk(), id)),
            Err(error) => {
                if let PostError::Uncertain { id, .. } = error {
                    // The pair is broken now, and perhaps no completion says so to the tasks that wait. Nobody gets a
                    // future for the request, so it is abandoned: its memory becomes a stray.
                    let posted = PostedAll::new(lane.desk(), id, next);
                    self.end_of_pair(Some(posted));
                }
                Err(error)
            }
        }
    }

    /// Posts a request: see [`QueuePair::post`](crate::QueuePair::post).
    ///
    /// An unsignalled request is answered when a later signalled request of this sender completes.
    ///
    /// # Errors
    ///
    /// As [`QueuePair::post`](crate::QueuePair::post).
    #[inline]
    #[allow(clippy::type_complexity, reason = "a future of what the kind and the memory answer")]
    pub fn post<R: RequestMemory<B, K>, K: Answers<B, R>>(
        &mut self,
        request: WorkRequest<R, K>,
    ) -> Result<Posted<B, K::Answer>, PostError<WorkRequest<R, K>>>
    where
        T: Carries<K>,
    {
        self.post_as(request, std::convert::identity)
    }

    /// Sends the filled part of `memory`: see [`QueuePair::post_send`](crate::QueuePair::post_send).
    ///
    /// # Errors
    ///
    /// As [`QueuePair::post_send`](crate::QueuePair::post_send).
    #[doc(alias = "IBV_WR_SEND")]
    #[inline]
    pub fn send<R: SendMemory<B> + Returned<B>>(&mut self, memory: R) -> Result<Posted<B, R::Back>, PostError<R>>
    where
        T: Carries<request_kinds::Send>,
    {
        self.post_as(WorkRequest::send(memory), WorkRequest::into_inner)
    }

    /// Writes the filled part of `memory` to the peer: see [`QueuePair::post_write`](crate::QueuePair::post_write).
    ///
    /// # Errors
    ///
    /// As [`send`](Self::send).
    #[doc(alias = "IBV_WR_RDMA_WRITE")]
    #[inline]
    pub fn write<R: SendMemory<B> + Returned<B>, A: PeerMayWrite>(
        &mut self,
        memory: R,
        target: &RemoteRegion<A>,
    ) -> Result<Posted<B, R::Back>, PostError<R>>
    where
        T: Carries<Write>,
    {
        self.post_as(WorkRequest::write(memory, target), WorkRequest::into_inner)
    }

    /// Reads all of `source` into `buffer`: see [`QueuePair::post_read`](crate::QueuePair::post_read).
    ///
    /// # Errors
    ///
    /// As [`send`](Self::send).
    #[doc(alias = "IBV_WR_RDMA_READ")]
    #[inline]
    pub fn read<A: PeerMayRead>(
        &mut self,
        buffer: Buffer<B>,
        source: &RemoteRegion<A>,
    ) -> Result<Posted<B, Buffer<B>>, PostError<Buffer<B>>>
    where
        T: Carries<Read>,
    {
        self.post_as(WorkRequest::read(buffer, source), WorkRequest::into_inner)
    }

    /// Compares and swaps a word of the peer: see
    /// [`QueuePair::post_compare_and_swap`](crate::QueuePair::post_compare_and_swap).
    ///
    /// # Errors
    ///
    /// As [`send`](Self::send).
    #[doc(alias = "IBV_WR_ATOMIC_CMP_AND_SWP")]
    pub fn compare_and_swap<A: PeerMayAtomic>(
        &mut self,
        result: Buffer<B>,
        target: &impl AsRef<RemoteRegion<A>>,
        compare: u64,
        swap: u64,
    ) -> Result<Posted<B, Fetched<B>>, PostError<Buffer<B>>>
    where
        T: Carries<Atomic>,
    {
        let request = WorkRequest::compare_and_swap(result, target, compare, swap);
        self.post_as(request, WorkRequest::into_inner)
    }

    /// Adds to a word of the peer: see [`QueuePair::post_fetch_and_add`](crate::QueuePair::post_fetch_and_add).
    ///
    /// # Errors
    ///
    /// As [`send`](Self::send).
    #[doc(alias = "IBV_WR_ATOMIC_FETCH_AND_ADD")]
    pub fn fetch_and_add<A: PeerMayAtomic>(
        &mut self,
        result: Buffer<B>,
        target: &impl AsRef<RemoteRegion<A>>,
        addend: u64,
    ) -> Result<Posted<B, Fetched<B>>, PostError<Buffer<B>>>
    where
        T: Carries<Atomic>,
    {
        let request = WorkRequest::fetch_and_add(result, target, addend);
        self.post_as(request, WorkRequest::into_inner)
    }

    /// Sends the filled part of `memory` to `recipient`, as one datagram.
    ///
    /// # Errors
    ///
    /// As [`QueuePair::post_send_to`](crate::QueuePair::post_send_to).
    pub fn send_to<R: SendMemory<B> + Returned<B>>(
        &mut self,
        memory: R,
        recipient: &Recipient<B>,
    ) -> Result<Posted<B, R::Back>, PostError<R>>
    where
        T: Carries<SendTo>,
    {
        let request: WorkRequest<_, SendTo> = WorkRequest::send_to(memory, recipient);
        self.post_as(request, |request| request.into_memory().memory)
    }

    /// Binds a window: see [`QueuePair::post_bind`](crate::QueuePair::post_bind). The answer is
    /// [`Work::Bound`] or [`Work::BoundType1`].
    ///
    /// # Errors
    ///
    /// As [`QueuePair::post_bind`](crate::QueuePair::post_bind).
    #[allow(clippy::type_complexity, reason = "a window and its memory")]
    pub fn bind<W: WindowRights, K: WindowType>(
        &mut self,
        window: Window<B, K>,
        memory: Bindable<B>,
    ) -> Result<Posted<B, Work<B>>, PostError<(Window<B, K>, Bindable<B>)>>
    where
        T: Carries<BindWindow>,
    {
        if self.is_held_back() {
            return Err(PostError::QueueFull((window, memory)));
        }
        let result = self.half_mut().post_bind::<W, K>(window, memory);
        self.posted(result)
    }

    /// Ends a window: see [`QueuePair::post_revoke`](crate::QueuePair::post_revoke). The answer is [`Work::Revoked`] or
    /// [`Work::RevokedType1`].
    ///
    /// # Errors
    ///
    /// As [`QueuePair::post_revoke`](crate::QueuePair::post_revoke).
    #[allow(clippy::type_complexity, reason = "a future of a window")]
    pub fn revoke<K: WindowType>(
        &mut self,
        window: BoundWindow<B, K>,
    ) -> Result<Posted<B, Work<B>>, PostError<BoundWindow<B, K>>>
    where
        T: Carries<Revoke<K>>,
    {
        if self.is_held_back() {
            return Err(PostError::QueueFull(window));
        }
        let result = self.half_mut().post_revoke(window);
        self.posted(result)
    }

    /// Sends, and ends a window of the peer: see
    /// [`QueuePair::post_send_invalidating`](crate::QueuePair::post_send_invalidating).
    ///
    /// # Errors
    ///
    /// As [`QueuePair::post_send_invalidating`](crate::QueuePair::post_send_invalidating).
    pub fn send_invalidating<R: SendMemory<B> + Returned<B>, A: Exposed>(
        &mut self,
        memory: R,
        window: &RemoteWindow<A>,
    ) -> Result<Posted<B, R::Back>, PostError<R>>
    where
        T: Carries<SendInvalidating>,
    {
        if self.is_held_back() {
            return Err(PostError::QueueFull(memory));
        }
        let result = self.half_mut().post_send_invalidating(memory, window);
        self.posted(result)
    }

    /// Posts requests for the items of a vector: see [`QueuePair::post_all`](crate::QueuePair::post_all). Returns one
    /// future for all posted requests. Items that do not fit stay in `items`.
    ///
    /// # Errors
    ///
    /// As [`QueuePair::post_all`](crate::QueuePair::post_all). The requests before the one that was refused are posted.
    /// Their memory comes out of [`take_stray`](Self::take_stray), or goes home to its pool.
    #[inline]
    pub fn post_all<'env, X, R: RequestMemory<B, K> + 'env, K>(
        &mut self,
        items: &mut Vec<X>,
        make: impl FnMut(X) -> WorkRequest<R, K>,
    ) -> Result<PostedAll<B>, PostAllError<B, WorkRequest<R, K>>>
    where
        T: Carries<K>,
    {
        let first = self.half().next_id();
        // The half's `post_all` stops when the queue is full, but does not know that room is kept for other tasks. So
        // if room is kept, only the first `most` items are allowed to be posted now: move the others from `items` to
        // `rest` first. If the pair is broken, move none: the half's `post_all` then fails and says why.
        let most = self.free() as usize;
        let leaves_some = self.mode.kept(KEY) > 0 && most < items.len() && !self.is_broken();
        let rest = if leaves_some { items.split_off(most) } else { Vec::new() };
        let posting = Posting { sender: self, items, rest, first, is_done: false };
        match posting.sender.half_mut().post_all(posting.items, make) {
            Ok(_) => Ok(posting.done()),
            Err(error) => {
                // The drop of `posting` wakes tasks, and a waker can panic. If that happens here, `error` is dropped,
                // too. At the end of the function `error` is already being returned, and a panic would leak `error`.
                drop(posting);
                Err(error)
            }
        }
    }

    /// How many more requests fit; 0 if the pair is broken. Room that is kept for other tasks does not count.
    pub fn free(&self) -> u32 {
        self.half().room().saturating_sub(self.mode.kept(KEY))
    }

    /// How many requests are in flight.
    pub fn in_flight(&self) -> u32 {
        self.half().in_flight()
    }

    /// The completion of a request whose future was dropped, or whose post was
    /// [uncertain](crate::PostError::Uncertain), the oldest first. `None` if no such request has completed.
    /// Memory of a [`Pool`](crate::memory::Pool) is not here: it went home. At most as many completions are kept as the
    /// queue is deep. Then the oldest is dropped, with its memory.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn all<B: interlock::Brand>(sender: &mut interlock::aio::Sender<B>, free: &mut Vec<interlock::Buffer<B>>) {
    /// while let Some(stray) = sender.take_stray() {
    ///     free.extend(match stray.check() {
    ///         Ok(success) => success.into_buffer(),
    ///         Err(failure) => failure.into_buffer(),
    ///     });
    /// }
    /// # }
    /// ```
    pub fn take_stray(&mut self) -> Option<Completion<B>> {
        self.lane_state(|state, slot| state.lanes.get(slot)?.take_stray())
    }

    /// The counts of what became of the requests.
    pub fn counters(&self) -> Counters {
        self.lane().counters(self.half().next_id(), self.half().in_flight())
    }

    fn lane_state<R>(&self, f: impl FnOnce(&mut State<B>, usize) -> R) -> R {
        self.lane().desk().with(|state| f(state, self.lane().slot()))
    }

    /// The number of the pair.
    pub fn number(&self) -> Qpn {
        self.half().number()
    }

    /// The first failure of the pair that the poller saw. `None` if there was none, or only flushed requests.
    pub fn first_failure(&self) -> Option<Status> {
        self.half().first_failure()
    }
}

/// A [`Sender::post_all`] that has begun.
struct Posting<'s, B: Brand, T: Transport, M: SenderMode<B, T>, X> {
    sender: &'s mut Sender<B, T, M>,
    items: &'s mut Vec<X>,
    /// The items that do not fit, because room is kept for other tasks.
    rest: Vec<X>,
    /// The id of the first request.
    first: WorkId,
    is_done: bool,
}

impl<B: Brand, T: Transport, M: SenderMode<B, T>, X> Posting<'_, B, T, M, X> {
    /// The requests that were posted.
    #[inline(always)]
    fn done(mut self) -> PostedAll<B> {
        self.end()
    }

    #[inline(always)]
    fn end(&mut self) -> PostedAll<B> {
        self.is_done = true;
        self.items.append(&mut self.rest);
        let Owned { half, lane } = self.sender.mode.owned_mut(KEY);
        let next = half.next_id();
        lane.note_next(next);
        PostedAll::new(lane.desk(), self.first, next)
    }
}

impl<B: Brand, T: Transport, M: SenderMode<B, T>, X> Drop for Posting<'_, B, T, M, X> {
    /// If a post failed or code of the program has panicked, nobody gets a future for the requests that were posted:
    /// they are abandoned.
    #[inline(always)]
    fn drop(&mut self) {
        if !self.is_done {
            let posted = Some(self.end());
            // If the pair is broken now, also wake the tasks that wait for the end of the pair.
            let broken = self.sender.is_broken().then(|| self.sender.lane().broken());
            self.sender.mode.wake(Waking { posted, broken }, KEY);
        }
    }
}

impl<B, T, M: SenderMode<B, T>> fmt::Debug for Sender<B, T, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender").field("half", self.half()).finish_non_exhaustive()
    }
}
