//! Requests of a scope, while they are in flight and after.

use super::lent::LentMemory;
use super::slots::Slots;
use super::{ScopeRules, WaitFailure};
use crate::completion::{Completion, FailureCause, PollError, WaitError, Work};
use crate::inflight::{Operation, PostedMemory, WorkId};
use crate::seal::KEY;
use std::cell::RefCell;
use std::marker::PhantomData;
use std::{fmt, mem};

/// A request that was posted in a scope, with memory `M`. [`Scope::wait`](super::Scope::wait) gives the memory back
/// with the result.
///
/// A ticket shows that the request was posted. Dropping it drops the result, not the request. Forgetting it
/// (`mem::forget`) leaves one slot for results occupied until the scope ends.
#[must_use = "dropping it drops the result of the request; wait for it, or say so with `drop`"]
pub struct Ticket<'scope, B, M> {
    slots: &'scope RefCell<Slots<B>>,
    slot: u32,
    id: WorkId,
    memory: PhantomData<fn() -> M>,
    rules: ScopeRules<'scope>,
}

/// A request of a scope that succeeded.
#[derive(Debug)]
#[non_exhaustive]
pub struct Done<M> {
    /// The memory of the request. After a receive, a read or an atomic, the filled part is what arrived (for an atomic
    /// the old value, in native byte order).
    pub memory: M,
    /// The immediate that came with a receive, host byte order.
    pub immediate: Option<u32>,
    /// If a write with immediate took the receive: how many bytes the peer wrote to its target. The memory of the
    /// receive then has no filled part.
    pub written_bytes: Option<u32>,
}

impl<'scope, B, M: LentMemory<'scope, B>> Ticket<'scope, B, M> {
    pub(super) fn new(slots: &'scope RefCell<Slots<B>>, slot: u32, id: WorkId) -> Self {
        Self { slots, slot, id, memory: PhantomData, rules: PhantomData }
    }

    /// The result. Returns the ticket if there is no result yet.
    pub(super) fn redeem(self) -> Result<Result<Done<M>, WaitFailure<'scope, B, M>>, Self> {
        let completion = self.slots.borrow_mut().take(self.slot);
        let Some(completion) = completion else { return Err(self) };
        Ok(match result(completion) {
            (Some(memory), Ok((immediate, written_bytes))) => {
                mem::forget(self);
                Ok(Done { memory, immediate, written_bytes })
            }
            (Some(memory), Err(cause)) => {
                mem::forget(self);
                Err(WaitFailure::Failed { cause, memory })
            }
            // Unreachable: a completion gives back memory of the type that was posted, so the memory is always an `M`.
            (None, _) => Err(WaitFailure::Unfinished { ticket: self, source: WaitError::Poll(PollError::Failed) }),
        })
    }
}

impl<B, M> Ticket<'_, B, M> {
    /// The id that the post returned.
    pub fn id(&self) -> WorkId {
        self.id
    }

    /// Whether the request has completed, so that [`wait`](super::Scope::wait) does not wait.
    pub fn is_done(&self) -> bool {
        self.slots.borrow().is_done(self.slot)
    }
}

/// Splits a completion: into the memory with immediate and written bytes, or into the memory with the cause of the
/// failure.
#[allow(clippy::type_complexity, reason = "taken apart at once by the only caller")]
fn result<'scope, B, M: LentMemory<'scope, B>>(
    completion: Completion<B>,
) -> (Option<M>, Result<(Option<u32>, Option<u32>), FailureCause>) {
    match completion.check() {
        Ok(success) if success.operation() == Operation::Receive => match success.into_work() {
            Work::Received(received) => {
                let memory = PostedMemory::Unique(received.buffer);
                (M::from_posted(memory, KEY), Ok((received.immediate, None)))
            }
            Work::WrittenWithImmediate(written) => {
                let memory = PostedMemory::Unique(written.buffer);
                (M::from_posted(memory, KEY), Ok((Some(written.immediate), Some(written.written_bytes))))
            }
            _ => (None, Ok((None, None))),
        },
        Ok(success) => (M::from_posted(success.into_memory(), KEY), Ok((None, None))),
        Err(failure) => {
            let cause = failure.cause();
            (M::from_posted(failure.memory, KEY), Err(cause))
        }
    }
}

impl<B, M> Drop for Ticket<'_, B, M> {
    fn drop(&mut self) {
        // Only code of the program drops tickets, and no such code runs while the library has borrowed the slots. So
        // `try_borrow_mut` succeeds.
        if let Ok(mut slots) = self.slots.try_borrow_mut() {
            slots.abandon(self.slot);
        }
    }
}

impl<B, M> fmt::Debug for Ticket<'_, B, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ticket").field("id", &self.id).finish_non_exhaustive()
    }
}
