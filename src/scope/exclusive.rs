//! A queue pair with its only poller, which scopes borrow.

use super::settle::{End, Engine};
use super::slots::Slots;
use super::{NotExclusive, Scope, ScopeError, SharedQueue};
use crate::completion::{Completion, PollError, Poller, WaitError};
use crate::domain::Brand;
use crate::inflight::WorkId;
use crate::memory::Buffer;
use crate::queue::{AnyQueuePair, PostError, QueuePair, RequestMemory, WorkRequest};
use crate::queue::{Carries, ReliableConnection};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::time::{Duration, Instant};
use std::{fmt, mem};

/// A connected pair and the poller of a completion queue that serves no other pair. [Scopes](Self::scope) borrow it.
/// (Dropped pairs that the poller has still to destroy do not count.)
///
/// It owns both, so nobody else posts, polls or destroys. Between scopes, owned buffers may be posted and polled as
/// usual. If they complete during a scope, their completions are kept for later.
///
/// # Rules
///
/// The compiler enforces each rule; programs that break them are in `ui-tests/scope`.
///
/// - B1: lent memory outlives its scope.
/// - B2: memory lent to be written is out of the caller's reach until the scope ends.
/// - B3: nothing of a scope leaves its closure.
/// - B4: a scope takes only memory that was lent to it.
/// - B5: a scope stays on its thread.
/// - B6: a scope has its pair for itself.
/// - B7: lent memory in flight is gone until its completion.
pub struct Exclusive<B> {
    pub(super) engine: RefCell<Engine<B>>,
    pub(super) slots: RefCell<Slots<B>>,
}
static_assertions::assert_impl_all!(Exclusive<()>: Send);
static_assertions::assert_not_impl_any!(Exclusive<()>: Sync, Clone);

/// The pair and the poller that an [`Exclusive`] was made of, and the completions that it kept.
#[derive(Debug)]
#[non_exhaustive]
pub struct Parts<B> {
    /// The pair, in the state that it reached; [`AnyQueuePair::Vacant`] if it had to be destroyed.
    pub queue_pair: AnyQueuePair<B>,
    /// The poller; `None` if the pair was destroyed and not all its requests came out, so that the completion queue was
    /// dropped with it.
    pub poller: Option<Poller<B>>,
    /// Completions of owned buffers that came during scopes and have not been polled.
    pub completions: Vec<Completion<B>>,
}

impl<B: Brand> Exclusive<B> {
    /// Takes a connected pair and the poller of its completion queue, if that queue serves no other pair.
    ///
    /// This is checked by counting: there must be no other pair on the completion queue, and no
    /// [`CompletionQueue`](crate::CompletionQueue) handle, with which other pairs could be made.
    ///
    /// # Errors
    ///
    /// [`NotExclusive`]; both come back.
    pub fn new(mut queue_pair: QueuePair<B>, poller: Poller<B>) -> Result<Self, NotExclusive<B>> {
        let reason = match queue_pair.inner.core_mut().and_then(|core| core.others_on(poller.queue())) {
            Some(0) => {
                let slots = RefCell::new(Slots::new(&queue_pair.limits()));
                let kept = VecDeque::new();
                let engine = Engine { pair: queue_pair.into(), poller: Some(poller), loans: Vec::new(), kept };
                return Ok(Self { engine: RefCell::new(engine), slots });
            }
            Some(others) => SharedQueue::Shared { others },
            None => SharedQueue::OtherQueue,
        };
        Err(NotExclusive { queue_pair, poller, reason })
    }

    /// Lends `f` a scope, in which borrowed memory is posted. Returns once the device is done with all of that memory.
    ///
    /// `timeout` is for the whole scope. Requests that have not completed by then are cut off when `f` returns, and the
    /// pair is then no longer connected. The [module's page](super) says how a scope ends, and when it aborts the
    /// process.
    ///
    /// # Errors
    ///
    /// [`ScopeError::Broken`], with what `f` returned: requests were cut off, or had failed, and the pair is no longer
    /// connected. [`ScopeError::NotConnected`]: the pair was not connected, so `f` was not called.
    ///
    /// # Panics
    ///
    /// If `f` panics, after the scope has ended.
    pub fn scope<'env, R>(
        &mut self,
        timeout: Duration,
        f: impl for<'scope> FnOnce(&'scope Scope<'scope, 'env, B>) -> R,
    ) -> Result<R, ScopeError<R>> {
        if self.engine.get_mut().ready().is_none() {
            return Err(ScopeError::NotConnected { state: self.engine.get_mut().pair.state() });
        }
        let this = &*self;
        let deadline = Instant::now().checked_add(timeout);
        let settles = SettleOnDrop { this, deadline };
        let scope = Scope::new(this, deadline);
        let result = f(&scope);
        let End { cut_off, first_failure } = settles.now();
        let mut engine = this.engine.borrow_mut();
        if engine.ready().is_some() {
            return Ok(result);
        }
        Err(ScopeError::Broken { result, state: engine.pair.state(), cut_off, first_failure })
    }

    /// Whether a scope can begin: the pair is connected, and no failure of it has been seen.
    pub fn is_connected(&mut self) -> bool {
        self.engine.get_mut().ready().is_some()
    }

    /// Returns the pair and the poller, with the completions that were kept.
    pub fn into_parts(self) -> Parts<B> {
        let Engine { pair, poller, kept, .. } = self.engine.into_inner();
        Parts { queue_pair: pair, poller, completions: kept.into() }
    }

    /// Posts a receive into an owned buffer: [`QueuePair::post_receive`].
    ///
    /// # Errors
    ///
    /// As that method; [`PostError::Broken`] also if a scope has broken the pair.
    pub fn post_receive(&mut self, buffer: Buffer<B>) -> Result<WorkId, PostError<Buffer<B>>> {
        match self.engine.get_mut().pair.ready() {
            Some(pair) => pair.post_receive(buffer),
            None => Err(PostError::Broken { request: buffer, first_failure: None }),
        }
    }

    /// Posts a request with an owned buffer: [`QueuePair::post`].
    ///
    /// # Errors
    ///
    /// As that method; [`PostError::Broken`] also if a scope has broken the pair.
    pub fn post<M: RequestMemory<B, K>, K>(
        &mut self,
        request: WorkRequest<M, K>,
    ) -> Result<WorkId, PostError<WorkRequest<M, K>>>
    where
        ReliableConnection: Carries<K>,
    {
        match self.engine.get_mut().pair.ready() {
            Some(pair) => pair.post(request),
            None => Err(PostError::Broken { request, first_failure: None }),
        }
    }

    /// The next completion of an owned buffer; `None` if there is none now: [`Poller::poll`].
    ///
    /// # Errors
    ///
    /// As that method.
    pub fn poll(&mut self) -> Result<Option<Completion<B>>, PollError> {
        let engine = self.engine.get_mut();
        match (engine.kept.pop_front(), &mut engine.poller) {
            (Some(completion), _) => Ok(Some(completion)),
            (None, Some(poller)) => poller.poll(),
            (None, None) => Err(PollError::Failed),
        }
    }

    /// Waits for the next completion of an owned buffer, at most for `timeout`: [`Poller::wait`].
    ///
    /// # Errors
    ///
    /// As that method.
    pub fn wait(&mut self, timeout: Duration) -> Result<Completion<B>, WaitError> {
        let engine = self.engine.get_mut();
        match (engine.kept.pop_front(), &mut engine.poller) {
            (Some(completion), _) => Ok(completion),
            (None, Some(poller)) => poller.wait(timeout),
            (None, None) => Err(PollError::Failed.into()),
        }
    }
}

impl<B> fmt::Debug for Exclusive<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Exclusive");
        if let Ok(engine) = self.engine.try_borrow() {
            debug.field("queue_pair", &engine.pair).field("completions", &engine.kept.len());
        }
        debug.finish_non_exhaustive()
    }
}

/// Settles the scope when it is dropped, so that a panic of the closure settles it too. The closure cannot reach this
/// value.
struct SettleOnDrop<'x, B: Brand> {
    this: &'x Exclusive<B>,
    deadline: Option<Instant>,
}

impl<B: Brand> SettleOnDrop<'_, B> {
    fn now(self) -> End {
        let this = mem::ManuallyDrop::new(self);
        this.settle()
    }

    fn settle(&self) -> End {
        super::settle::settle(&self.this.engine, &self.this.slots, self.deadline)
    }
}

impl<B: Brand> Drop for SettleOnDrop<'_, B> {
    fn drop(&mut self) {
        self.settle();
    }
}
