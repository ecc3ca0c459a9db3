//! Receives that a receiver posts by itself, from a pool.

use super::shared_poller::SharedPoller;
use super::timer::Timer;
use crate::domain::{Brand, DomainId};
use crate::memory::{Buffer, Pool, Take, TooLong};
use crate::queue::transport::{OwnReceives, Transport};
use crate::queue::{BETWEEN_KICKS, ReceiveHalf};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

/// Why a receiver does not post receives by itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RefillError {
    /// The pool belongs to another protection domain than the queue pair. Only with the brand
    /// [`Checked`](crate::Checked); others do not compile.
    #[error("the pool belongs to another protection domain than the queue pair")]
    OtherDomain,
    /// The pool has no class for the length.
    #[error(transparent)]
    TooLong(#[from] TooLong),
}

/// Keeps a receive queue filled from a pool.
pub(super) struct Refill<B, T> {
    pool: Pool<B>,
    len_bytes: usize,
    /// The most receives that are posted, or have completed and were not taken.
    most: u32,
    /// How many of these there are.
    out: u32,
    /// The wait for a buffer, while no receive is posted.
    wait: Option<Take<B>>,
    /// When the wait looks at the pair again. Nothing else wakes it if the pair breaks: no receive comes back.
    next_look: Option<Timer<B>>,
    /// Posts a receive. It is a pointer, because only some transports have receives of their own.
    post: fn(&mut ReceiveHalf<B, T>, Buffer<B>) -> bool,
}

impl<B: Brand, T: OwnReceives> Refill<B, T> {
    /// A refill of a queue of `domain`, on which `out` receives are posted.
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
        let post = |half: &mut ReceiveHalf<B, T>, buffer| half.post_receive(buffer).is_ok();
        Ok(Self { pool: pool.clone(), len_bytes, most, out, wait: None, next_look: None, post })
    }
}

impl<B: Brand, T: Transport> Refill<B, T> {
    /// Posts the receives that are missing, as far as the pool has buffers.
    pub(super) fn run(&mut self, half: &mut ReceiveHalf<B, T>) {
        while self.out < self.most {
            let Ok(buffer) = self.pool.try_take(self.len_bytes) else { return };
            if !self.posts(half, buffer) {
                return;
            }
        }
    }

    /// Waits for a buffer and posts it. False if the queue takes none: the pair is broken, or the provider refuses.
    pub(super) fn poll_one(
        &mut self,
        half: &mut ReceiveHalf<B, T>,
        poller: &SharedPoller<B>,
        context: &mut Context<'_>,
    ) -> Poll<bool> {
        if self.most == 0 {
            return Poll::Ready(false);
        }
        let next_look = self.next_look.get_or_insert_with(|| Timer::after(poller, BETWEEN_KICKS));
        let wait = self.wait.get_or_insert_with(|| self.pool.take(self.len_bytes));
        loop {
            if half.broken_by().is_some() {
                self.end_wait();
                return Poll::Ready(false);
            }
            if let Poll::Ready(taken) = Pin::new(&mut *wait).poll(context) {
                self.end_wait();
                // `TooLong` cannot come: `new` has asked for the length.
                return Poll::Ready(taken.is_ok_and(|buffer| self.posts(half, buffer)));
            }
            ready!(next_look.poll(context));
            next_look.restart(BETWEEN_KICKS);
        }
    }

    /// Whether a buffer is waited for. It may be set aside already.
    pub(super) fn waits(&self) -> bool {
        self.wait.is_some()
    }

    /// Notes a receive that the program has posted.
    pub(super) fn note_posted(&mut self) {
        self.out += 1;
    }

    /// A receive has left the stream.
    pub(super) fn note_taken(&mut self) {
        self.out = self.out.saturating_sub(1);
    }

    fn posts(&mut self, half: &mut ReceiveHalf<B, T>, buffer: Buffer<B>) -> bool {
        let is_posted = (self.post)(half, buffer);
        self.out += u32::from(is_posted);
        is_posted
    }
}

impl<B, T> Refill<B, T> {
    /// Waits for no buffer any more. One that was set aside goes to who waits next.
    pub(super) fn end_wait(&mut self) {
        (self.wait, self.next_look) = (None, None);
    }
}

/// Who asks for the next receive, for as long as that takes.
pub(super) struct Asking<'r, R: Asks> {
    pub(super) who: &'r mut R,
}

/// Somebody who asks for the next receive.
pub(super) trait Asks {
    /// Nobody asks any more.
    fn end_wait(&mut self);
}

impl<R: Asks> Drop for Asking<'_, R> {
    #[inline]
    fn drop(&mut self) {
        self.who.end_wait();
    }
}
