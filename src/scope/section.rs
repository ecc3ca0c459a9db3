//! The scope as its closure sees it: lending, posting, waiting.
#![allow(unsafe_code, reason = "vouches for the borrow of lent memory")]

use super::lent::{Granted, Lent, LentMemory, LentMut};
use super::settle::left;
use super::{Done, Exclusive, ScopeRules, Ticket, WaitFailure};
use crate::completion::{PollError, WaitError};
use crate::domain::{Brand, DomainInner};
use crate::inflight::WorkId;
use crate::memory::{Exposed, Loan, PeerMayAtomic, PeerMayRead, PeerMayWrite, Plain, RegisterFailure, RemoteRegion};
use crate::queue::{PostError, QueuePair, RequestFlaw};
use crate::seal::KEY;
use crate::verb_error::VerbError;
use std::marker::PhantomData;
use std::time::{Duration, Instant};
use std::{fmt, sync::Arc};

/// Where borrowed memory is posted. Lent by [`Exclusive::scope`].
///
/// `'scope` is a new lifetime for each scope. Everything that a scope gives out has it, so nothing leaves the closure
/// or gets into another scope. Lent memory is borrowed for `'env`: for the whole call of [`Exclusive::scope`], which
/// returns after the device is done.
///
/// A method that fails gives back the handle that it was given. In a closure that returns
/// `Result<_, `[`InScopeError`](super::InScopeError)`>`, `?` drops the handle, so that the error can leave the scope.
pub struct Scope<'scope, 'env: 'scope, B> {
    exclusive: &'scope Exclusive<B>,
    deadline: Option<Instant>,
    rules: ScopeRules<'scope>,
    env: PhantomData<&'env mut &'env ()>,
}

/// The result of lending.
type Lending<T> = Result<T, RegisterFailure>;

/// The result of posting.
type Posting<'scope, B, M> = Result<Ticket<'scope, B, M>, PostError<M>>;

impl<'scope, 'env, B: Brand> Scope<'scope, 'env, B> {
    pub(super) fn new(exclusive: &'scope Exclusive<B>, deadline: Option<Instant>) -> Self {
        Self { exclusive, deadline, rules: PhantomData, env: PhantomData }
    }

    /// Registers `memory` to be sent and written from, until the scope ends.
    ///
    /// `ibv_reg_mr(3)`; for the cost see the [module's page](super). The same bytes may be lent and read at the same
    /// time. Empty memory is not registered.
    ///
    /// # Errors
    ///
    /// [`RegisterFailure`]: often the locked-memory limit.
    #[doc(alias = "ibv_reg_mr")]
    pub fn lend<T: Plain>(&'scope self, memory: &'env [T]) -> Lending<Lent<'scope, B>> {
        self.keep(|domain| {
            // SAFETY: borrowed for 'env, so until `Exclusive::scope` returns. That is after `settle`, when no request
            // names the memory. The handle does not outlive 'scope.
            unsafe { Loan::shared(domain, memory) }
        })
        .map(Lent::new)
    }

    /// Registers `memory` to be received and read into, and to be sent and written from, until the scope ends.
    ///
    /// `ibv_reg_mr(3)`; for the cost see the [module's page](super). The handle counts as
    /// filled. Empty memory is not registered.
    ///
    /// # Errors
    ///
    /// [`RegisterFailure`]: often the locked-memory limit.
    #[doc(alias = "ibv_reg_mr")]
    pub fn lend_mut<T: Plain>(&'scope self, memory: &'env mut [T]) -> Lending<LentMut<'scope, B>> {
        self.keep(|domain| {
            // SAFETY: as in `lend`; the borrow is mutable, so nobody else uses the memory.
            unsafe { Loan::unique(domain, memory) }
        })
        .map(LentMut::new)
    }

    /// Registers `memory` for peers with the rights `A`, until the scope ends; afterwards their requests fail.
    ///
    /// `ibv_reg_mr(3)`. As with a [`MemoryRegion`](crate::MemoryRegion) that peers reach, the memory is never a slice
    /// while they may write it: the handle copies and loads words. After the scope the caller has the memory again:
    /// `ibv_dereg_mr(3)` returned 0, or else the process was aborted.
    ///
    /// # Errors
    ///
    /// [`RegisterFailure`]: empty, or often the locked-memory limit.
    #[doc(alias = "ibv_reg_mr")]
    pub fn grant<A: Exposed>(&'scope self, memory: &'env mut [u64]) -> Lending<Granted<'scope, B, A>> {
        self.keep(|domain| {
            // SAFETY: as in `lend_mut`; `settle` ends the registration, or the process. The handle cannot deregister.
            unsafe { Loan::granted(domain, memory) }
        })
        .map(Granted::new)
    }

    /// Keeps the registration that `lend` makes, to end it with the scope.
    fn keep<H>(&'scope self, lend: impl FnOnce(&Arc<DomainInner>) -> Lending<(Loan, H)>) -> Lending<H> {
        let mut engine = self.exclusive.engine.borrow_mut();
        let engine = &mut *engine;
        let Some(pair) = engine.pair.ready() else {
            // Cannot happen: the pair leaves Ready To Send only at the end of a scope.
            return Err(RegisterFailure::Verb(VerbError::new("ibv_reg_mr", libc::EINVAL)));
        };
        let (loan, handle) = lend(&pair.inner.core.domain)?;
        engine.loans.push(loan);
        Ok(handle)
    }

    /// Posts a receive: `memory` takes the next message, up to its whole capacity.
    ///
    /// `ibv_post_recv(3)`. One that gets no message before the scope ends is cut off, and the connection with it.
    ///
    /// # Errors
    ///
    /// [`PostError`] gives the memory back, except [`PostError::Uncertain`]. [`PostError::QueueFull`] also if too many
    /// results were not taken. [`RequestFlaw::EmptyReceive`].
    #[doc(alias = "ibv_post_recv")]
    pub fn post_receive(&'scope self, memory: LentMut<'scope, B>) -> Posting<'scope, B, LentMut<'scope, B>> {
        if memory.capacity() == 0 {
            return Err(PostError::Flawed { request: memory, flaw: RequestFlaw::EmptyReceive });
        }
        self.post(memory, |pair, buffer| pair.post_receive(buffer))
    }

    /// Sends what is filled of `memory`.
    ///
    /// `ibv_post_send(3)`.
    ///
    /// # Errors
    ///
    /// [`PostError`] gives the memory back, except [`PostError::Uncertain`]. [`PostError::QueueFull`] also if too many
    /// results were not taken.
    #[doc(alias = "ibv_post_send")]
    pub fn post_send<M: LentMemory<'scope, B>>(&'scope self, memory: M) -> Posting<'scope, B, M> {
        self.post(memory, |pair, memory| pair.post_send(memory))
    }

    /// Sends what is filled of `memory`, with 4 bytes more in host byte order.
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

    /// Writes what is filled of `memory` to the peer.
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

    /// Writes what is filled of `memory` to the peer, and tells the peer so: the write takes one of its receives and
    /// carries 4 more bytes.
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

    /// Replaces the word at the start of `target` by `swap` if it equals `compare`. The old value comes into `result`,
    /// 8 bytes at a multiple of 8.
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
        self.post(result, |pair, buffer| pair.post_compare_and_swap(buffer, target, compare, swap))
    }

    /// Adds `addend` to the word at the start of `target`, wrapping. The old value comes into `result`, 8 bytes at a
    /// multiple of 8.
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
        self.post(result, |pair, buffer| pair.post_fetch_and_add(buffer, target, addend))
    }

    /// Posts by `post`, and keeps a slot for the result.
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
                    // The device may have it.
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

    /// Waits until any request has completed, of the scope or with an owned buffer, at most for `timeout` and not
    /// beyond the deadline of the scope. That makes room in a full queue, and results for [`Ticket::is_done`]. With a
    /// timeout of 0 it only polls.
    ///
    /// # Errors
    ///
    /// [`WaitError`].
    pub fn wait_any(&'scope self, timeout: Duration) -> Result<(), WaitError> {
        let own = Instant::now().checked_add(timeout);
        self.turn([own, self.deadline].into_iter().flatten().min())
    }

    /// Takes one completion.
    fn turn(&self, deadline: Option<Instant>) -> Result<(), WaitError> {
        let mut engine = self.exclusive.engine.borrow_mut();
        let Some(poller) = &mut engine.poller else { return Err(PollError::Failed.into()) };
        let completion = poller.wait(left(deadline))?;
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
            if let Err(source) = self.turn(deadline) {
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
