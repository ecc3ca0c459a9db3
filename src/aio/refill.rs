//! Receives that a receiver posts by itself, from a pool.

use super::shared_poller::SharedPoller;
use super::timer::Timer;
use crate::completion::FLUSH_INTERVAL;
use crate::domain::{Brand, DomainId};
use crate::inflight::{PostError, WorkId};
use crate::memory::{Buffer, Pool, Take, TooLong};
use crate::queue::ReceiveHalf;
use crate::queue::transport::{OwnReceives, Transport};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

/// Why a receiver does not post receives by itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RefillError {
    /// The pool belongs to another protection domain than the queue pair. This happens only with the brand
    /// [`Checked`](crate::Checked): with other brands it does not compile.
    #[error("the pool belongs to another protection domain: make it from the domain of the queue pair")]
    OtherDomain,
    /// The pool has no class for the length.
    #[error(transparent)]
    TooLong(#[from] TooLong),
}

type Post<B, T> = fn(&mut ReceiveHalf<B, T>, Buffer<B>) -> Result<WorkId, PostError<Buffer<B>>>;

/// Keeps a receive queue filled from a pool.
pub(super) struct Refill<B, T> {
    pool: Pool<B>,
    len_bytes: usize,
    /// The limit of `out`.
    most: u32,
    /// How many receives are posted, or have completed and were not taken.
    out: u32,
    /// The wait for a buffer, while no receive is posted.
    wait: Option<Take<B>>,
    /// When the wait looks at the pair again. If the pair breaks, nothing else wakes the wait: no receive is posted, so
    /// none is flushed.
    next_look: Option<Timer<B>>,
    /// Posts a receive. This is a function pointer, because `post_receive` exists only for some transports, and this
    /// type serves all transports.
    post: Post<B, T>,
}

impl<B: Brand, T: OwnReceives> Refill<B, T> {
    /// A refill for a receive queue of `domain`. `out` counts the receives that are posted or wait to be taken.
    pub(super) fn new(
        pool: &Pool<B>,
        domain: DomainId,
        len_bytes: usize,
        [most, out]: [u32; 2],
    ) -> Result<Self, RefillError> {
        if pool.domain() != domain {
            return Err(RefillError::OtherDomain);
        }
        pool.holds(len_bytes)?;
        let post: Post<B, T> = |half, buffer| half.post_receive(buffer);
        Ok(Self { pool: pool.clone(), len_bytes, most, out, wait: None, next_look: None, post })
    }
}

impl<B: Brand, T: Transport> Refill<B, T> {
    /// Posts receives until there are `most`, or the pool has no buffer, or the queue takes none.
    ///
    /// # Errors
    ///
    /// Why the queue takes no receive.
    pub(super) fn run(&mut self, half: &mut ReceiveHalf<B, T>) -> Result<(), PostError<()>> {
        while self.out < self.most
            && let Ok(buffer) = self.pool.try_take(self.len_bytes)
        {
            self.post(half, buffer)?;
        }
        Ok(())
    }

    /// Waits for a buffer and posts it.
    ///
    /// # Errors
    ///
    /// Why it cannot be posted. `None`: `most` is 0, or the pair is broken.
    pub(super) fn poll_one(
        &mut self,
        half: &mut ReceiveHalf<B, T>,
        poller: &SharedPoller<B>,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), Option<PostError<()>>>> {
        if self.most == 0 {
            return Poll::Ready(Err(None));
        }
        let next_look = self.next_look.get_or_insert_with(|| Timer::after(poller, FLUSH_INTERVAL));
        let wait = self.wait.get_or_insert_with(|| self.pool.take(self.len_bytes));
        loop {
            if half.broken_by().is_some() {
                self.end_wait();
                return Poll::Ready(Err(None));
            }
            if let Poll::Ready(taken) = Pin::new(&mut *wait).poll(context) {
                self.end_wait();
                // `taken` is never an error: the only error is `TooLong`, and `new` has checked the length.
                let Ok(buffer) = taken else { return Poll::Ready(Err(None)) };
                return Poll::Ready(self.post(half, buffer).map_err(Some));
            }
            ready!(next_look.poll(context));
            next_look.restart(FLUSH_INTERVAL);
        }
    }

    /// Whether there is a wait for a buffer. The pool may have set a buffer aside for it already.
    pub(super) fn waits(&self) -> bool {
        self.wait.is_some()
    }

    /// Notes a receive that the program has posted.
    pub(super) fn note_posted(&mut self) {
        self.out += 1;
    }

    /// Notes a receive that the program has taken.
    pub(super) fn note_taken(&mut self) {
        self.out = self.out.saturating_sub(1);
    }

    fn post(&mut self, half: &mut ReceiveHalf<B, T>, buffer: Buffer<B>) -> Result<(), PostError<()>> {
        (self.post)(half, buffer).map_err(PostError::into_cause)?;
        self.out += 1;
        Ok(())
    }
}

impl<B, T> Refill<B, T> {
    /// Ends the wait for a buffer. A buffer that was set aside for it goes to the next task that waits.
    pub(super) fn end_wait(&mut self) {
        (self.wait, self.next_look) = (None, None);
    }
}

/// A guard that lives as long as a task asks `who` for the next receive. Its drop ends the wait for a buffer.
pub(super) struct Asking<'r, R: Asks> {
    pub(super) who: &'r mut R,
}

/// A receiver or a connection, which tasks ask for the next receive.
pub(super) trait Asks {
    /// Called when a task does not ask for the next receive any more.
    fn end_wait(&mut self);
}

impl<R: Asks> Drop for Asking<'_, R> {
    #[inline]
    fn drop(&mut self) {
        self.who.end_wait();
    }
}
