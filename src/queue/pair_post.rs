//! The methods by which a queue pair posts.

use super::batch::{Batch, batch};
use super::datagram::Recipient;
use super::pair::QueuePair;
use super::request_kinds::{
    self, Atomic, AtomicWrite, BindWindow, FillMemory, Read, RequestMemory, Revoke, SendInvalidating, SendMemory,
    SendTo, Write,
};
use super::state::{PostReceive, PostSend, State};
use super::transport::{Carries, OwnReceives, Transport, header_bytes};
use crate::domain::Brand;
use crate::inflight::{BatchError, PostAllError, PostError, WorkId, WorkRequest, post_all};
use crate::memory::{
    Bindable, BoundWindow, Buffer, Exposed, PeerMayAtomic, PeerMayRead, PeerMayWrite, RemoteRegion, RemoteWindow,
    Type2, Window, WindowRights, WindowType, window_of_pair,
};
use crate::verb_error::VerbError;
use std::convert::identity;

/// Posting, in the states and on the transports that allow it. Which method to use:
///
/// | method | use it |
/// |---|---|
/// | `post_send`, `post_write`, `post_read`, ... | for one request of the usual form: an error gives the memory back |
/// | [`post`](Self::post) | for a [`WorkRequest`] with options (unsignalled, fenced, solicited), or made elsewhere |
/// | [`batch`](Self::batch) | for several requests with one doorbell |
/// | [`post_all`](Self::post_all) | for all of a vector, as fast as possible |
impl<B: Brand, S: State, T: Transport> QueuePair<B, S, T> {
    /// Posts a receive: the next message goes into the whole capacity of a [`Buffer`] or a
    /// [`BufferList`](crate::memory::BufferList).
    ///
    /// `ibv_post_recv(3)`. The device owns the buffer until the receive completes.
    ///
    /// # Errors
    ///
    /// [`PostError`] gives the buffer back, except [`PostError::Uncertain`].
    #[doc(alias = "ibv_post_recv")]
    #[inline]
    pub fn post_receive<M: FillMemory<B>>(&mut self, memory: M) -> Result<WorkId, PostError<M>>
    where
        S: PostReceive,
        T: OwnReceives,
    {
        self.inner.receive.post(memory, header_bytes::<T>())
    }

    /// Posts a request.
    ///
    /// `ibv_post_send(3)`. The device owns the memory of the request until the request completes.
    ///
    /// # Errors
    ///
    /// [`PostError`] gives the request back, except [`PostError::Uncertain`].
    #[doc(alias = "ibv_post_send")]
    #[inline]
    pub fn post<M: RequestMemory<B, K>, K>(
        &mut self,
        request: WorkRequest<M, K>,
    ) -> Result<WorkId, PostError<WorkRequest<M, K>>>
    where
        S: PostSend,
        T: Carries<K>,
    {
        self.inner.send.post(request, identity)
    }

    /// Sends the filled part of `memory`: [`post`](Self::post) of [`WorkRequest::send`].
    ///
    /// # Errors
    ///
    /// [`PostError`] gives the memory back, except [`PostError::Uncertain`].
    #[doc(alias = "ibv_post_send")]
    #[inline]
    pub fn post_send<M: SendMemory<B>>(&mut self, memory: M) -> Result<WorkId, PostError<M>>
    where
        S: PostSend,
        T: Carries<request_kinds::Send>,
    {
        self.inner.send.post(WorkRequest::send(memory), WorkRequest::into_inner)
    }

    /// Writes the filled part of `memory` to the peer: [`post`](Self::post) of [`WorkRequest::write`].
    ///
    /// # Errors
    ///
    /// As [`post_send`](Self::post_send).
    #[doc(alias = "IBV_WR_RDMA_WRITE")]
    #[inline]
    pub fn post_write<M: SendMemory<B>, A: PeerMayWrite>(
        &mut self,
        memory: M,
        target: &RemoteRegion<A>,
    ) -> Result<WorkId, PostError<M>>
    where
        S: PostSend,
        T: Carries<Write>,
    {
        self.inner.send.post(WorkRequest::write(memory, target), WorkRequest::into_inner)
    }

    /// Sends the filled part of `memory` to `recipient`, as one datagram: [`post`](Self::post) of
    /// [`WorkRequest::send_to`].
    ///
    /// `ibv_post_send(3)`. A datagram has at most as many bytes as the port's MTU.
    ///
    /// # Errors
    ///
    /// [`PostError`] gives the memory back, except [`PostError::Uncertain`].
    #[doc(alias = "ibv_post_send")]
    pub fn post_send_to<M: SendMemory<B>>(
        &mut self,
        memory: M,
        recipient: &Recipient<B>,
    ) -> Result<WorkId, PostError<M>>
    where
        S: PostSend,
        T: Carries<SendTo>,
    {
        let request: WorkRequest<_, SendTo> = WorkRequest::send_to(memory, recipient);
        self.post(request).map_err(|error| error.map(|request| request.into_memory().memory))
    }

    /// Sends the filled part of `memory`, with 4 more bytes in host byte order.
    ///
    /// # Errors
    ///
    /// As [`post_send`](Self::post_send).
    #[doc(alias = "IBV_WR_SEND_WITH_IMM")]
    #[inline]
    pub fn post_send_with_immediate<M: SendMemory<B>>(
        &mut self,
        memory: M,
        immediate: u32,
    ) -> Result<WorkId, PostError<M>>
    where
        S: PostSend,
        T: Carries<request_kinds::Send>,
    {
        let request = WorkRequest::send(memory).with_immediate(immediate);
        self.inner.send.post(request, WorkRequest::into_inner)
    }

    /// Writes the filled part of `memory` to the peer, and notifies the peer: the write takes one of the peer's
    /// receives and carries 4 more bytes.
    ///
    /// # Errors
    ///
    /// As [`post_send`](Self::post_send).
    #[doc(alias = "IBV_WR_RDMA_WRITE_WITH_IMM")]
    #[inline]
    pub fn post_write_with_immediate<M: SendMemory<B>, A: PeerMayWrite>(
        &mut self,
        memory: M,
        target: &RemoteRegion<A>,
        immediate: u32,
    ) -> Result<WorkId, PostError<M>>
    where
        S: PostSend,
        T: Carries<Write>,
    {
        let request = WorkRequest::write(memory, target).with_immediate(immediate);
        self.inner.send.post(request, WorkRequest::into_inner)
    }

    /// Reads all of `source` into `buffer`: [`post`](Self::post) of [`WorkRequest::read`].
    ///
    /// # Errors
    ///
    /// As [`post_send`](Self::post_send).
    #[doc(alias = "IBV_WR_RDMA_READ")]
    #[inline]
    pub fn post_read<A: PeerMayRead>(
        &mut self,
        buffer: Buffer<B>,
        source: &RemoteRegion<A>,
    ) -> Result<WorkId, PostError<Buffer<B>>>
    where
        S: PostSend,
        T: Carries<Read>,
    {
        self.post_and_unwrap(WorkRequest::read(buffer, source))
    }

    /// Compares and swaps a word of the peer: [`post`](Self::post) of [`WorkRequest::compare_and_swap`].
    ///
    /// It is atomic with respect to other atomics of that device, but not to plain writes: a write at the same time may
    /// be lost, as on soft-RoCE of Linux 6.1. So if atomics change a word, let nothing else change that word.
    ///
    /// # Errors
    ///
    /// As [`post_send`](Self::post_send). `result` must be 8 bytes long, at a multiple of 8.
    #[doc(alias = "IBV_WR_ATOMIC_CMP_AND_SWP")]
    #[inline]
    pub fn post_compare_and_swap<A: PeerMayAtomic>(
        &mut self,
        result: Buffer<B>,
        target: &impl AsRef<RemoteRegion<A>>,
        compare: u64,
        swap: u64,
    ) -> Result<WorkId, PostError<Buffer<B>>>
    where
        S: PostSend,
        T: Carries<Atomic>,
    {
        self.post_and_unwrap(WorkRequest::compare_and_swap(result, target, compare, swap))
    }

    /// Adds to a word of the peer: [`post`](Self::post) of [`WorkRequest::fetch_and_add`].
    ///
    /// # Errors
    ///
    /// As [`post_send`](Self::post_send). `result` must be 8 bytes long, at a multiple of 8.
    #[doc(alias = "IBV_WR_ATOMIC_FETCH_AND_ADD")]
    #[inline]
    pub fn post_fetch_and_add<A: PeerMayAtomic>(
        &mut self,
        result: Buffer<B>,
        target: &impl AsRef<RemoteRegion<A>>,
        addend: u64,
    ) -> Result<WorkId, PostError<Buffer<B>>>
    where
        S: PostSend,
        T: Carries<Atomic>,
    {
        self.post_and_unwrap(WorkRequest::fetch_and_add(result, target, addend))
    }

    #[inline(always)]
    fn post_and_unwrap<K>(&mut self, request: WorkRequest<Buffer<B>, K>) -> Result<WorkId, PostError<Buffer<B>>> {
        self.inner.send.post(request, WorkRequest::into_inner)
    }

    /// Writes a word of the peer atomically: [`post`](Self::post) of [`WorkRequest::atomic_write`].
    ///
    /// # Errors
    ///
    /// As [`post_send`](Self::post_send); [`RequestFlaw::NoAtomicWrites`](crate::error::RequestFlaw::NoAtomicWrites).
    #[doc(alias = "ibv_wr_atomic_write")]
    pub fn post_atomic_write<A: PeerMayWrite>(
        &mut self,
        target: &impl AsRef<RemoteRegion<A>>,
        value: u64,
    ) -> Result<WorkId, PostError<u64>>
    where
        S: PostSend,
        T: Carries<AtomicWrite>,
    {
        self.inner.send.post::<B, _, _, _>(WorkRequest::atomic_write(target, value), |_| value)
    }

    /// Lends `f` a batch. The device gets the requests of the batch together, with one doorbell for each 32.
    ///
    /// When `f` returns, whatever it returns, the device gets the remaining requests. When `f` panics, the remaining
    /// requests are taken back and dropped.
    ///
    /// # Errors
    ///
    /// [`BatchError`]: the provider refused a request. The error gives back the memory that the device certainly does
    /// not have, and what `f` returned.
    ///
    /// # Examples
    ///
    /// Sends all of `buffers`, polling for room where the queue is full:
    ///
    /// ```no_run
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # interlock::domain! { struct Docs; }
    /// # let (mut pair, mut poller): (interlock::QueuePair<Docs>, interlock::Poller<Docs>) = todo!();
    /// # let mut buffers: Vec<interlock::Buffer<Docs>> = todo!();
    /// use interlock::{PostError, WorkRequest};
    /// pair.batch(|batch| {
    ///     let mut next = buffers.pop().map(WorkRequest::send);
    ///     while let Some(request) = next.take() {
    ///         match batch.post(request.unsignalled()) {
    ///             Ok(_) => next = buffers.pop().map(WorkRequest::send),
    ///             Err(PostError::QueueFull(request)) => {
    ///                 next = Some(request);
    ///                 poller.poll_each(|completion| drop(completion.check()))?;
    ///             }
    ///             Err(error) => return Err(error.into()),
    ///         }
    ///     }
    ///     Ok::<_, Box<dyn std::error::Error>>(())
    /// })??;
    /// # Ok(()) }
    /// ```
    #[inline]
    pub fn batch<'env, R>(
        &mut self,
        f: impl for<'batch> FnOnce(&mut Batch<'batch, 'env, B, T>) -> R,
    ) -> Result<R, BatchError<B, R>>
    where
        S: PostSend,
    {
        batch(&mut self.inner.send, f)
    }

    /// Calls `make` on each of `items` and posts the request, while the queue has room, and returns how many were
    /// posted. Items that do not fit stay in `items`. This is the fastest way to post many requests, with one doorbell
    /// for each 32.
    ///
    /// Only the last request makes a completion, whatever the requests ask for; that completion
    /// [retires](crate::Poller::poll_retired) them all. (One more completion comes if a request took the last slot and
    /// polling then made room for more.)
    ///
    /// When `make` panics, requests that the device does not have yet are taken back and dropped, as by
    /// [`batch`](Self::batch). The items that were not reached are still in `items`.
    ///
    /// # Errors
    ///
    /// [`PostAllError`] gives back the request that cannot be posted, and the requests that the provider refused.
    ///
    /// # Examples
    ///
    /// Sends all of `buffers`, however many, and takes them back:
    ///
    /// ```no_run
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # interlock::domain! { struct Docs; }
    /// # let (mut pair, mut poller): (interlock::QueuePair<Docs>, interlock::Poller<Docs>) = todo!();
    /// # let mut buffers: Vec<interlock::Buffer<Docs>> = todo!();
    /// use interlock::WorkRequest;
    /// let (all, mut done) = (buffers.len(), Vec::with_capacity(buffers.len()));
    /// while done.len() < all {
    ///     pair.post_all(&mut buffers, WorkRequest::send)?;
    ///     poller.poll_retired(|retired| {
    ///         if let Err(failure) = retired.into_buffers(&mut done) {
    ///             eprintln!("{failure}");
    ///             done.extend(failure.into_buffer());
    ///         }
    ///     })?;
    /// }
    /// # Ok(()) }
    /// ```
    #[inline]
    pub fn post_all<'env, X, M: RequestMemory<B, K> + 'env, K>(
        &mut self,
        items: &mut Vec<X>,
        make: impl FnMut(X) -> WorkRequest<M, K>,
    ) -> Result<usize, PostAllError<B, WorkRequest<M, K>>>
    where
        S: PostSend,
        T: Carries<K>,
    {
        post_all(&mut self.inner.send, items, make)
    }
}

/// Memory windows, on the transports that have them.
impl<B: Brand, S: State, T: Transport> QueuePair<B, S, T> {
    /// A window that only this pair can bind.
    ///
    /// `ibv_alloc_mw(3)`, of type 2. It is freed before the pair is destroyed.
    ///
    /// # Errors
    ///
    /// `EOPNOTSUPP`: the device has no windows. `ENOMEM`: it has no more of them.
    #[doc(alias = "ibv_alloc_mw")]
    pub fn window(&mut self) -> Result<Window<B, Type2>, VerbError>
    where
        T: Carries<BindWindow>,
    {
        let Some(core) = self.inner.core_mut() else {
            return Err(VerbError::new("ibv_alloc_mw", libc::EBUSY));
        };
        let (window, of_pair) = window_of_pair(&core.domain, core.raw.raw())?;
        core.raw.add_window(of_pair);
        Ok(window)
    }

    /// Binds `window` over all of `memory`, so that peers reach it with the rights `W`:
    /// `pair.post_bind::<RemoteWrite, _>(window, memory)`.
    ///
    /// `ibv_post_send(3)` with `IBV_WR_BIND_MW`, for a window of type 1 `ibv_bind_mw(3)`. The window and the memory are
    /// in flight until the completion. Its [`Work::Bound`](crate::Work::Bound) (or
    /// [`BoundType1`](crate::Work::BoundType1)) holds the bound window, and with it the record for the peer. Each bind
    /// has a key of its own.
    ///
    /// # Errors
    ///
    /// [`PostError`] gives both back, except [`PostError::Uncertain`], which every failure of `ibv_bind_mw` is.
    /// [`RequestFlaw::WindowOverPart`](crate::error::RequestFlaw::WindowOverPart): the device does not keep peers
    /// within a window, so a window must cover a whole region.
    #[doc(alias = "IBV_WR_BIND_MW")]
    #[doc(alias = "ibv_bind_mw")]
    #[allow(clippy::type_complexity, reason = "a window and its memory")]
    pub fn post_bind<W: WindowRights, K: WindowType>(
        &mut self,
        window: Window<B, K>,
        memory: Bindable<B>,
    ) -> Result<WorkId, PostError<(Window<B, K>, Bindable<B>)>>
    where
        S: PostSend,
        T: Carries<BindWindow>,
    {
        self.inner.send.post_bind::<W, B, K>(window, memory)
    }

    /// Ends `window`: invalidates one of type 2, unbinds one of type 1.
    ///
    /// `ibv_post_send(3)` with `IBV_WR_LOCAL_INV`, or `ibv_bind_mw(3)` over no bytes. The completion's
    /// [`Work::Revoked`](crate::Work::Revoked) (or [`RevokedType1`](crate::Work::RevokedType1)) holds the window, which
    /// can be bound again, and the memory, which no peer reaches any more. If the peer has already ended the window,
    /// the request fails and breaks the pair.
    ///
    /// # Errors
    ///
    /// As [`post_bind`](Self::post_bind). [`RequestFlaw::NoBarrier`](crate::error::RequestFlaw::NoBarrier): on this
    /// device, ending a window does not keep peers from the memory, or does harm; [`dealloc`](BoundWindow::dealloc) the
    /// window instead.
    #[doc(alias = "IBV_WR_LOCAL_INV")]
    #[doc(alias = "ibv_bind_mw")]
    pub fn post_revoke<K: WindowType>(
        &mut self,
        window: BoundWindow<B, K>,
    ) -> Result<WorkId, PostError<BoundWindow<B, K>>>
    where
        S: PostSend,
        T: Carries<Revoke<K>>,
    {
        self.inner.send.post_revoke(window)
    }

    /// Sends the filled part of `memory`, and ends a window of the peer with the same message.
    ///
    /// `ibv_post_send(3)` with `IBV_WR_SEND_WITH_INV`, fenced: it starts after all earlier reads and atomics of the
    /// queue. The peer's receive reports the invalidation:
    /// [`Received::invalidated`](crate::completion::Received::invalidated).
    ///
    /// # Errors
    ///
    /// As [`post_send`](Self::post_send). [`RequestFlaw::NoBarrier`](crate::error::RequestFlaw::NoBarrier): the
    /// provider of the local device was not reviewed for this operation.
    #[doc(alias = "IBV_WR_SEND_WITH_INV")]
    pub fn post_send_invalidating<M: SendMemory<B>, A: Exposed>(
        &mut self,
        memory: M,
        window: &RemoteWindow<A>,
    ) -> Result<WorkId, PostError<M>>
    where
        S: PostSend,
        T: Carries<SendInvalidating>,
    {
        self.inner.send.post_send_invalidating(memory, window)
    }
}
