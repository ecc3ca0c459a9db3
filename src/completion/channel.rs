//! Completion channels: of one queue for itself, or of several.
//!
//! An event in a shared channel is of one queue, and whoever reads the channel may get an event for another. So all events
//! are taken under one lock, and each is passed on: it marks its queue as ready, and wakes the queue's poller, which may sleep on
//! its own.
#![allow(unsafe_code, reason = "owns the raw channel")]

use super::poller::{Poller, WaitError};
use super::waker::Waker;
use super::{Completion, CompletionQueue, CompletionQueueError, CompletionQueueOptions, PollError, WakeFor, wait};
use crate::device::CompletionQueueId;
use crate::domain::brand::Branded;
use crate::domain::{Brand, DomainInner, ProtectionDomain};
use crate::error::{VerbError, note_leak};
use crate::readiness::{Readiness, until_readable};
use crate::sys;
use std::collections::{HashMap, VecDeque};
use std::marker::PhantomData;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use std::{fmt, iter, mem, ptr::NonNull};

/// A completion channel that several completion queues of domain `B` share, so that a program can wait for any of them.
///
/// Each queue that is made from it has a poller of its own, which may poll and wait as ever, on a thread of its own too. The
/// channel says which queues have something: arm the pollers, then wait here.
///
/// Without it, each completion queue has a channel for itself.
///
/// # Examples
///
/// ```
/// # use interlock::{Context, Limits};
/// # use std::time::Duration;
/// # interlock::domain! { struct Docs; }
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let context = Context::open("soft0")?;
/// # let port = context.active_port()?;
/// # let domain = context.named_domain(Docs)?;
/// let mut channel = domain.completion_channel()?;
/// let (sends, sent) = channel.completion_queue(4)?;
/// let (receives, received) = channel.completion_queue(4)?;
/// let pair = domain.reliable_on(&sends, &receives, &Limits::default())?.into_init(&port)?;
/// # let myself = pair.endpoint();
/// # let mut pair = pair.connect(&myself)?;
/// # pair.post_receive(domain.buffer(8)?)?;
/// # pair.post_send(domain.buffer(8)?)?;
/// let mut pollers = [sent, received];
/// for _ in 0..2 {
///     let (which, completion) = channel.wait_any(&mut pollers, Duration::from_secs(1))?.expect("in time");
///     println!("{}: {:?}", pollers[which].id(), completion.check()?);
/// }
/// # Ok(()) }
/// ```
#[doc(alias = "ibv_comp_channel")]
#[doc(alias = "ibv_create_comp_channel")]
#[doc(alias = "ibv_destroy_comp_channel")]
pub struct CompletionChannel<B> {
    inner: Arc<ChannelInner>,
    sharers: Arc<Sharers>,
    /// Which poller [`wait_any`](Self::wait_any) looks at first, so that none starves.
    first: usize,
    brand: Branded<B>,
}

pub(super) struct ChannelInner {
    /// # Invariants
    ///
    /// 0. Came from the context's provider and is alive until this is dropped.
    raw: NonNull<sys::ibv_comp_channel>,
    /// `None` where one queue has it for itself.
    sharers: Option<Arc<Sharers>>,
    domain: Arc<DomainInner>,
}

// SAFETY: verbs on a channel may be called from any thread (see `ContextInner`).
unsafe impl Send for ChannelInner {}
// SAFETY: as above.
unsafe impl Sync for ChannelInner {}

/// The queues of a shared channel.
struct Sharers {
    /// Wakes who waits for any of them.
    waker: Waker,
    members: Mutex<Members>,
}

#[derive(Default)]
struct Members {
    /// By the address of the queue. A queue is here before it is armed for the first time, and not while it is destroyed, so
    /// that an event finds no other queue at its address.
    queues: HashMap<usize, Member>,
    /// Queues that had an event which [`CompletionChannel::next`] has not told, each once.
    ready: VecDeque<usize>,
}

struct Member {
    id: CompletionQueueId,
    waker: Arc<Waker>,
    is_ready: bool,
}

impl Sharers {
    fn lock(&self) -> MutexGuard<'_, Members> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn next_ready(&self) -> Option<CompletionQueueId> {
        let mut members = self.lock();
        loop {
            let address = members.ready.pop_front()?;
            if let Some(member) = members.queues.get_mut(&address).filter(|member| member.is_ready) {
                member.is_ready = false;
                return Some(member.id);
            }
        }
    }
}

impl Members {
    /// Notes that a queue has something.
    fn mark(&mut self, address: usize) {
        if let Some(member) = self.queues.get_mut(&address)
            && !mem::replace(&mut member.is_ready, true)
        {
            self.ready.push_back(address);
        }
    }
}

impl ChannelInner {
    /// A channel for one queue.
    pub(super) fn new(domain: &Arc<DomainInner>) -> Result<Arc<Self>, VerbError> {
        Self::with(domain, None)
    }

    fn with(domain: &Arc<DomainInner>, sharers: Option<Arc<Sharers>>) -> Result<Arc<Self>, VerbError> {
        // SAFETY: the context is open as long as we hold its domain.
        let raw = unsafe { domain.context.provider.create_comp_channel(domain.context.raw) }?;
        Ok(Arc::new(Self { raw, sharers, domain: Arc::clone(domain) }))
    }

    pub(super) fn raw(&self) -> NonNull<sys::ibv_comp_channel> {
        self.raw
    }

    pub(super) fn fd(&self) -> RawFd {
        // SAFETY: alive (0).
        unsafe { (*self.raw.as_ptr()).fd }
    }

    /// A queue was made on this channel.
    pub(super) fn join(&self, cq: NonNull<sys::ibv_cq>, id: CompletionQueueId, waker: &Arc<Waker>) {
        if let Some(sharers) = &self.sharers {
            let mut members = sharers.lock();
            members.queues.insert(cq.as_ptr().addr(), Member { id, waker: Arc::clone(waker), is_ready: false });
            // So that taking events does not allocate. (A queue that left may still be listed.)
            let room = 2 * members.queues.len();
            members.ready.reserve(room);
        }
    }

    /// A queue is about to be destroyed.
    pub(super) fn leave(&self, cq: NonNull<sys::ibv_cq>) {
        if let Some(sharers) = &self.sharers {
            let mut members = sharers.lock();
            members.queues.remove(&cq.as_ptr().addr());
            members.ready.retain(|&address| address != cq.as_ptr().addr());
        }
    }

    /// Something that raises no event happened to a queue: who waits for any of several is told.
    pub(super) fn tell(&self, cq: NonNull<sys::ibv_cq>) {
        if let Some(sharers) = &self.sharers {
            sharers.lock().mark(cq.as_ptr().addr());
            sharers.waker.wake();
        }
    }

    /// Takes and acknowledges all events that are there; how many there were. Those of other queues than `own` are
    /// passed on.
    pub(super) fn take_events(&self, own: Option<CompletionQueueId>) -> Result<usize, VerbError> {
        let provider = self.domain.context.provider;
        let mut count = 0;
        let Some(sharers) = &self.sharers else {
            // SAFETY: alive (0).
            while unsafe { provider.take_cq_event(self.raw) }? {
                count += 1;
            }
            return Ok(count);
        };
        let mut members = sharers.lock();
        // SAFETY: alive (0).
        while let Some(cq) = unsafe { provider.take_cq_event_of(self.raw) }? {
            count += 1;
            let address = cq.as_ptr().addr();
            match members.queues.get(&address) {
                Some(member) if Some(member.id) != own => {
                    member.waker.wake();
                    members.mark(address);
                    if own.is_some() {
                        sharers.waker.wake();
                    }
                }
                _ => {}
            }
        }
        Ok(count)
    }
}

impl Drop for ChannelInner {
    fn drop(&mut self) {
        // SAFETY: alive (0); no queue uses it, since each holds a reference to this until it is destroyed.
        if let Err(error) = unsafe { self.domain.context.provider.destroy_comp_channel(self.raw) } {
            mem::forget(Arc::clone(&self.domain));
            note_leak("a completion channel", error);
        }
    }
}

/// How a domain makes completion channels.
impl<B: Brand> ProtectionDomain<B> {
    /// A completion channel, from which completion queues are made that can be waited for together.
    ///
    /// `ibv_create_comp_channel(3)`. Otherwise each queue has one for itself.
    ///
    /// # Errors
    ///
    /// `EMFILE`, `ENFILE`: no more descriptors.
    #[doc(alias = "ibv_create_comp_channel")]
    pub fn completion_channel(&self) -> Result<CompletionChannel<B>, VerbError> {
        let sharers = Arc::new(Sharers { waker: Waker::new()?, members: Mutex::default() });
        let inner = ChannelInner::with(&self.inner, Some(Arc::clone(&sharers)))?;
        Ok(CompletionChannel { inner, sharers, first: 0, brand: PhantomData })
    }
}

impl<B> CompletionChannel<B> {
    /// A completion queue for `entries` completions on this channel, and the one poller of it. It may outlive this handle.
    ///
    /// `ibv_create_cq(3)`.
    ///
    /// # Errors
    ///
    /// As [`ProtectionDomain::completion_queue`](crate::ProtectionDomain::completion_queue).
    #[doc(alias = "ibv_create_cq")]
    pub fn completion_queue(&self, entries: u32) -> Result<(CompletionQueue<B>, Poller<B>), VerbError> {
        self.completion_queue_with(entries, &CompletionQueueOptions::default()).map_err(CompletionQueueError::into_verb)
    }

    /// The same with its events on a completion vector, or polled in another way.
    ///
    /// # Errors
    ///
    /// As [`ProtectionDomain::completion_queue_with`](crate::ProtectionDomain::completion_queue_with).
    #[doc(alias = "ibv_create_cq_ex")]
    pub fn completion_queue_with(
        &self,
        entries: u32,
        options: &CompletionQueueOptions,
    ) -> Result<(CompletionQueue<B>, Poller<B>), CompletionQueueError> {
        super::queue::create_on(&self.inner.domain, &self.inner, entries, options)
    }

    /// Waits for the next completion of any of `pollers`, at most for `timeout`: which poller it was, and the completion. `None` if
    /// none came.
    ///
    /// Polls and arms all of them, which takes as long as they are many; see [`next`](Self::next) for very many.
    ///
    /// # Errors
    ///
    /// [`WaitError`], but for `TimedOut`.
    pub fn wait_any(
        &mut self,
        pollers: &mut [Poller<B>],
        timeout: Duration,
    ) -> Result<Option<(usize, Completion<B>)>, WaitError> {
        if let Some(index) = pollers.iter().position(|poller| !Arc::ptr_eq(&poller.queue.channel, &self.inner)) {
            return Err(WaitError::OtherChannel { index });
        }
        wait::wait(&mut AnyOf { channel: self, pollers }, Duration::ZERO, timeout)
    }

    /// Waits until a queue of this channel has something, at most for `timeout`: which. `None` if none has.
    ///
    /// Only queues that were [armed](Poller::arm) tell, each once per arming; one whose pair was destroyed tells too. So
    /// arm each poller until it is [empty](super::Armed::Empty), wait here, and then arm the poller of the queue that is
    /// named, until it is empty again. Perhaps it has nothing any more, where its poller waits by itself as well.
    ///
    /// # Errors
    ///
    /// [`WaitError`], but for `TimedOut`.
    #[doc(alias = "ibv_get_cq_event")]
    pub fn next(&mut self, timeout: Duration) -> Result<Option<CompletionQueueId>, WaitError> {
        let deadline = Instant::now().checked_add(timeout);
        loop {
            if let Some(id) = self.poll()? {
                return Ok(Some(id));
            }
            let left = deadline.map_or(timeout, |deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return Ok(None);
            }
            self.sleep(left, iter::empty())?;
        }
    }

    /// As [`next`](Self::next), without waiting: for an event loop of the program's own. Until it gives `None`, then wait until
    /// the [`readiness`](Self::readiness) is readable.
    ///
    /// # Errors
    ///
    /// The channel could not be read: `EIO` where the device is gone.
    pub fn poll(&mut self) -> Result<Option<CompletionQueueId>, WaitError> {
        if let Some(id) = self.sharers.next_ready() {
            return Ok(Some(id));
        }
        self.sharers.waker.clear();
        self.inner.take_events(None)?;
        Ok(self.sharers.next_ready())
    }

    /// For an event loop of the program's own: readable when [`poll`](Self::poll) may have something.
    ///
    /// # Errors
    ///
    /// No more descriptors (`EMFILE`, `ENFILE`).
    pub fn readiness(&self) -> Result<Readiness, VerbError> {
        Readiness::over(&[self.inner.fd(), self.sharers.waker.fd()])
    }

    /// As [`Poller::next_timer`], for what concerns all its queues. Each poller may have a limit of its own.
    pub fn next_timer(&self) -> Option<Duration> {
        self.inner.domain.context.next_timer()
    }

    /// Sleeps until there is an event, for `left`, or until one of these times is over.
    fn sleep(&self, left: Duration, next: impl Iterator<Item = Duration>) -> Result<(), WaitError> {
        let left = next.chain(self.next_timer()).fold(left, Duration::min);
        until_readable([self.inner.fd(), self.sharers.waker.fd()], left)?;
        Ok(())
    }
}

/// Several pollers of one channel.
struct AnyOf<'c, B> {
    channel: &'c mut CompletionChannel<B>,
    pollers: &'c mut [Poller<B>],
}

impl<B> wait::Source for AnyOf<'_, B> {
    type Item = (usize, Completion<B>);

    fn look(&mut self) -> Result<Option<Self::Item>, PollError> {
        let count = self.pollers.len();
        for step in 0..count {
            let which = self.channel.first.wrapping_add(step) % count;
            if let Some(poller) = self.pollers.get_mut(which)
                && let Some(completion) = poller.poll()?
            {
                self.channel.first = which + 1;
                return Ok(Some((which, completion)));
            }
        }
        Ok(None)
    }

    fn arm(&mut self) -> Result<(), VerbError> {
        self.pollers.iter().try_for_each(|poller| poller.request_event(WakeFor::Any))
    }

    fn sleep(&mut self, left: Duration) -> Result<(), WaitError> {
        self.channel.sleep(left, self.pollers.iter().filter_map(Poller::next_timer))
    }

    fn take_events(&mut self) -> Result<bool, WaitError> {
        self.channel.sharers.waker.clear();
        Ok(self.channel.inner.take_events(None)? > 0)
    }
}

impl<B> fmt::Debug for CompletionChannel<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompletionChannel").field("queues", &self.sharers.lock().queues.len()).finish_non_exhaustive()
    }
}
