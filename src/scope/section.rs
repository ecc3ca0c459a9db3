//! The scope that the closure gets: lending, posting, waiting.
#![allow(unsafe_code, reason = "vouches for the borrow of lent memory")]

use super::lent::{Granted, Lent, LentMemory, LentMut};
use super::settle::time_left;
use super::{Done, Exclusive, ScopeRules, Ticket, WaitFailure};
use crate::completion::{PollError, WaitError};
use crate::domain::Brand;
use crate::inflight::WorkId;
use crate::memory::{Exposed, Lending, PeerMayAtomic, PeerMayRead, PeerMayWrite, Plain, RegisterFailure, RemoteRegion};
use crate::queue::{PostError, QueuePair, RequestFlaw};
use crate::seal::KEY;
use crate::verb_error::VerbError;
use std::fmt;
use std::marker::PhantomData;
use std::time::{Duration, Instant};

/// The scope in which borrowed memory is posted. Lent by [`Exclusive::scope`].
///
/// `'scope` is a new lifetime for each scope. Everything that a scope hands out bears it, so nothing leaves the closure
/// or enters another scope. Lent memory is borrowed for `'env`: for the whole call of [`Exclusive::scope`], which
/// returns after the device is done.
///
/// A method that fails gives its handle back. In a closure that returns `Result<_,
/// `[`InScopeError`](super::InScopeError)`>`, `?` drops the handle, so that the error can leave the scope.
pub struct Scope<'scope, 'env: 'scope, B> {
    exclusive: &'scope Exclusive<B>,
    deadline: Option<Instant>,
    rules: ScopeRules<'scope>,
    env: PhantomData<&'env mut &'env ()>,
}

/// The result of lending.
type LentResult<T> = Result<T, RegisterFailure>;

/// The result of posting.
type Posting<'scope, B, M> = Result<Ticket<'scope, B, M>, PostError<M>>;

impl<'scope, 'env, B: Brand> Scope<'scope, 'env, B> {
    pub(super) fn new(exclusive: &'scope Exclusive<B>, deadline: Option<Instant>) -> Self {
        Self { exclusive, deadline, rules: PhantomData, env: PhantomData }
    }

    /// Registers `memory` for sends and writes, which only read it, until the scope ends.
    ///
    /// `ibv_reg_mr(3)`; the [module's page](super) has the cost. The same bytes may be lent twice and read meanwhile.
    /// Empty memory is not registered.
    ///
    /// # Errors
    ///
    /// [`RegisterFailure`]: often the locked-memory limit.
    #[doc(alias = "ibv_reg_mr")]
    pub fn lend<T: Plain>(&'scope self, memory: &'env [T]) -> LentResult<Lent<'scope, B>> {
        self.keep(Lending::shared(memory)).map(Lent::new)
    }

    /// Registers `memory` for receives and reads, which fill it, and for sends and writes, until the scope ends.
    ///
    /// `ibv_reg_mr(3)`; the [module's page](super) has the cost. All of the memory counts as filled. Empty memory is
    /// not registered.
    ///
    /// # Errors
    ///
    /// [`RegisterFailure`]: often the locked-memory limit.
    #[doc(alias = "ibv_reg_mr")]
    pub fn lend_mut<T: Plain>(&'scope self, memory: &'env mut [T]) -> LentResult<LentMut<'scope, B>> {
        self.keep(Lending::unique(memory)).map(LentMut::new)
    }

    /// Registers `memory` for peers with the rights `A`, until the scope ends; afterwards their requests fail.
    ///
    /// `ibv_reg_mr(3)`. As with a [`MemoryRegion`](crate::MemoryRegion) that peers reach, the memory is never a slice
    /// while peers may write it: the handle copies bytes and loads words. When the scope returns, the caller has the
    /// memory again, since its registration has ended; otherwise the process is aborted.
    ///
    /// # Errors
    ///
    /// [`RegisterFailure`]: the memory is empty, or the locked-memory limit was reached. On soft iWARP, memory that
    /// peers may read is not granted, since it would not come back.
    #[doc(alias = "ibv_reg_mr")]
    pub fn grant<A: Exposed>(&'scope self, memory: &'env mut [u64]) -> LentResult<Granted<'scope, B, A>> {
        self.keep(Lending::granted(memory)).map(Granted::new)
    }

    /// Registers memory, and keeps the registration, to end it with the scope.
    fn keep<H>(&'scope self, lending: Lending<'env, H>) -> LentResult<H> {
        let mut engine = self.exclusive.engine.borrow_mut();
        let engine = &mut *engine;
        let Some(pair) = engine.pair.ready() else {
            // Unreachable: a scope begins only with a pair in Ready To Send, and the pair leaves this state only at the
            // end of the scope.
            return Err(RegisterFailure::Verb(VerbError::new("ibv_reg_mr", libc::EINVAL)));
        };
        // SAFETY: the memory is borrowed for `'env`, which does not end before `Exclusive::scope` returns. Before that
        // return, `settle` makes sure that no request names the memory and that no peer reaches it, or aborts the
        // process. The handle lives at most for `'scope`, so nobody uses it afterwards.
        let (loan, handle) = unsafe { lending.start(&pair.inner.core.domain) }?;
        engine.loans.push(loan);
        Ok(handle)
    }

    /// Posts a receive: `memory` takes the next message, up to its whole capacity.
    ///
    /// `ibv_post_recv(3)`. If no message arrives before the scope ends, the receive is cut off, and the connection with
    /// it.
    ///
    /// # Errors
    ///
    /// [`PostError`] gives the memory back, except [`PostError::Uncertain`]. [`PostError::QueueFull`] also if too many
    /// results have not been taken. [`RequestFlaw::EmptyReceive`].
    #[doc(alias = "ibv_post_recv")]
    pub fn post_receive(&'scope self, memory: LentMut<'scope, B>) -> Posting<'scope, B, LentMut<'scope, B>> {
        if memory.capacity() == 0 {
            return Err(PostError::Flawed { request: memory, flaw: RequestFlaw::EmptyReceive });
        }
        self.post(memory, |pair, buffer| pair.post_receive(buffer))
    }

    /// Sends the filled part of `memory`.
    ///
    /// `ibv_post_send(3)`.
    ///
    /// # Errors
    ///
    /// [`PostError`] gives the memory back, except [`PostError::Uncertain`]. [`PostError::QueueFull`] also if too many
    /// results have not been taken.
    #[doc(alias = "ibv_post_send")]
    pub fn post_send<M: LentMemory<'scope, B>>(&'scope self, memory: M) -> Posting<'scope, B, M> {
        self.post(memory, |pair, memory| pair.post_send(memory))
    }

    /// Sends the filled part of `memory`, with 4 more bytes in host byte order.
    ///
    /// # Errors
    ///
    /// As [`post_send`](Self::post_send).
    #[doc(alias = "IBV_WR_SEND_WITH_IMM")]
    pub fn post_send_with_immediate<M: LentMemory<'scope, B>>(
        &'scope self,
        memory: M,
        immediate: u32,
    ) -> Posting<'scope, B, M> {
        self.post(memory, |pair, memory| pair.post_send_with_immediate(memory, immediate))
    }

    /// Writes the filled part of `memory` to the peer.
    ///
    /// # Errors
    ///
    /// As [`post_send`](Self::post_send).
    #[doc(alias = "IBV_WR_RDMA_WRITE")]
    pub fn post_write<M: LentMemory<'scope, B>, A: PeerMayWrite>(
        &'scope self,
        memory: M,
        target: &RemoteRegion<A>,
    ) -> Posting<'scope, B, M> {
        self.post(memory, |pair, memory| pair.post_write(memory, target))
    }

    /// Writes the filled part of `memory` to the peer, and notifies the peer: the write takes one of the peer's
    /// receives and carries 4 more bytes.
    ///
    /// # Errors
    ///
    /// As [`post_send`](Self::post_send).
    #[doc(alias = "IBV_WR_RDMA_WRITE_WITH_IMM")]
    pub fn post_write_with_immediate<M: LentMemory<'scope, B>, A: PeerMayWrite>(
        &'scope self,
        memory: M,
        target: &RemoteRegion<A>,
        immediate: u32,
    ) -> Posting<'scope, B, M> {
        self.post(memory, |pair, memory| pair.post_write_with_immediate(memory, target, immediate))
    }

    /// Reads all of `source` into `memory`.
    ///
    /// # Errors
    ///
    /// As [`post_send`](Self::post_send).
    #[doc(alias = "IBV_WR_RDMA_READ")]
    pub fn post_read<A: PeerMayRead>(
        &'scope self,
        memory: LentMut<'scope, B>,
        source: &RemoteRegion<A>,
    ) -> Posting<'scope, B, LentMut<'scope, B>> {
        self.post(memory, |pair, buffer| pair.post_read(buffer, source))
    }

    /// Replaces the word at the start of `target` by `swap` if it equals `compare`. The old value is written to
    /// `result`, which must be 8 bytes at a multiple of 8.
    ///
    /// # Errors
    ///
    /// As [`post_send`](Self::post_send).
    #[doc(alias = "IBV_WR_ATOMIC_CMP_AND_SWP")]
    pub fn post_compare_and_swap<A: PeerMayAtomic>(
        &'scope self,
        result: LentMut<'scope, B>,
        target: &impl AsRef<RemoteRegion<A>>,
        compare: u64,
        swap: u64,
    ) -> Posting<'scope, B, LentMut<'scope, B>> {
        // Perhaps `as_ref` is the program's own code and uses the scope. So call it before `post` borrows the engine of
        // the scope.
        let target = target.as_ref();
        self.post(result, |pair, buffer| pair.post_compare_and_swap(buffer, target, compare, swap))
    }

    /// Adds `addend` to the word at the start of `target`, wrapping. The old value is written to `result`, which must
    /// be 8 bytes at a multiple of 8.
    ///
    /// # Errors
    ///
    /// As [`post_send`](Self::post_send).
    #[doc(alias = "IBV_WR_ATOMIC_FETCH_AND_ADD")]
    pub fn post_fetch_and_add<A: PeerMayAtomic>(
        &'scope self,
        result: LentMut<'scope, B>,
        target: &impl AsRef<RemoteRegion<A>>,
        addend: u64,
    ) -> Posting<'scope, B, LentMut<'scope, B>> {
        let target = target.as_ref();
        self.post(result, |pair, buffer| pair.post_fetch_and_add(buffer, target, addend))
    }

    /// Posts with `post`, and reserves a slot for the result.
    fn post<M: LentMemory<'scope, B>>(
        &'scope self,
        memory: M,
        post: impl FnOnce(&mut QueuePair<B>, M::Inner) -> Result<WorkId, PostError<M::Inner>>,
    ) -> Posting<'scope, B, M> {
        let slots = &self.exclusive.slots;
        let mut engine = self.exclusive.engine.borrow_mut();
        let Some(pair) = engine.pair.ready() else {
            return Err(PostError::Broken { request: memory, first_failure: None });
        };
        let Some(slot) = slots.borrow_mut().reserve() else { return Err(PostError::QueueFull(memory)) };
        match post(pair, memory.into_inner(KEY)) {
            Ok(id) => {
                slots.borrow_mut().posted(slot, id, false);
                Ok(Ticket::new(slots, slot, id))
            }
            Err(error) => {
                match error {
                    // Perhaps the device has the request, so its slot counts as in flight. The slot is marked as
                    // abandoned, since the program gets no ticket. The ledger keeps the memory.
                    PostError::Uncertain { id, .. } => slots.borrow_mut().posted(slot, id, true),
                    _ => slots.borrow_mut().release(slot),
                }
                Err(error.map(|inner| M::from_inner(inner, KEY)))
            }
        }
    }

    /// Waits for a request, at most until the deadline of the scope.
    ///
    /// # Errors
    ///
    /// [`WaitFailure::Failed`] gives the memory back, [`WaitFailure::Unfinished`] the ticket.
    pub fn wait<M: LentMemory<'scope, B>>(
        &'scope self,
        ticket: Ticket<'scope, B, M>,
    ) -> Result<Done<M>, WaitFailure<'scope, B, M>> {
        self.wait_until(ticket, self.deadline)
    }

    /// Waits for a request, at most for `timeout`, and not beyond the deadline of the scope. With a timeout of 0 it
    /// only polls.
    ///
    /// # Errors
    ///
    /// As [`wait`](Self::wait).
    pub fn wait_for<M: LentMemory<'scope, B>>(
        &'scope self,
        ticket: Ticket<'scope, B, M>,
        timeout: Duration,
    ) -> Result<Done<M>, WaitFailure<'scope, B, M>> {
        let own = Instant::now().checked_add(timeout);
        let deadline = [own, self.deadline].into_iter().flatten().min();
        self.wait_until(ticket, deadline)
    }

    /// Waits until any request has completed, whether of the scope or with an owned buffer, at most for `timeout` and
    /// not beyond the deadline of the scope. Each completion makes room in a full queue, and may make a
    /// [`Ticket::is_done`] true. With a timeout of 0 it only polls.
    ///
    /// On some devices, requests complete in any order. There, a request makes room only once all requests before it
    /// have completed, too.
    ///
    /// # Errors
    ///
    /// [`WaitError`].
    pub fn wait_any(&'scope self, timeout: Duration) -> Result<(), WaitError> {
        let own = Instant::now().checked_add(timeout);
        self.wait_for_one([own, self.deadline].into_iter().flatten().min())
    }

    /// Waits for one completion. Keeps it for its ticket; the completion of an owned buffer is kept until the scope has
    /// ended.
    fn wait_for_one(&self, deadline: Option<Instant>) -> Result<(), WaitError> {
        let mut engine = self.exclusive.engine.borrow_mut();
        let Some(poller) = &mut engine.poller else { return Err(PollError::Failed.into()) };
        let completion = poller.wait(time_left(deadline))?;
        let others = self.exclusive.slots.borrow_mut().route(completion);
        engine.kept.extend(others);
        Ok(())
    }

    fn wait_until<M: LentMemory<'scope, B>>(
        &'scope self,
        mut ticket: Ticket<'scope, B, M>,
        deadline: Option<Instant>,
    ) -> Result<Done<M>, WaitFailure<'scope, B, M>> {
        loop {
            ticket = match ticket.redeem() {
                Ok(result) => return result,
                Err(ticket) => ticket,
            };
            if let Err(source) = self.wait_for_one(deadline) {
                return Err(WaitFailure::Unfinished { ticket, source });
            }
        }
    }
}

impl<B> fmt::Debug for Scope<'_, '_, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scope").field("in_flight", &self.exclusive.slots.borrow().in_flight()).finish_non_exhaustive()
    }
}
