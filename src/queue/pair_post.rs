//! The methods by which a queue pair posts.

use super::batch::{Batch, batch};
use super::datagram::header_bytes;
use super::pair::QueuePair;
use super::request::{self, Atomic, AtomicWrite, FillMemory, Read, RequestMemory, SendMemory, Write};
use super::state::{PostReceive, PostSend, State};
use super::transport::{Carries, OwnReceives, Transport};
use crate::domain::Brand;
use crate::inflight::PostError;
use crate::inflight::{BatchError, PostAllError, WorkId, WorkRequest, post_all};
use crate::memory::{Buffer, PeerMayAtomic, PeerMayRead, PeerMayWrite, RemoteRegion};
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
        T: Carries<request::Send>,
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
        T: Carries<request::Send>,
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
    /// As [`post_send`](Self::post_send).
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
    /// As [`post_send`](Self::post_send).
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
