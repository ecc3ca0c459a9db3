//! Completion queues: how a domain makes them, each with its poller, and what the poller and the queue pairs share.

use super::control::{Control, NoRoom};
use super::departing::Departing;
use super::event_channel::EventChannel;
use super::message::{Attached, Message, Orphan, Place};
use super::options::{CompletionQueueError, CompletionQueueOptions, Polling};
use super::poller::{InFlight, PollState, Poller};
use super::shared_receivers::SharedReceiver;
use crate::device::CompletionQueueId;
use crate::domain::brand::Branded;
use crate::domain::{Brand, DomainInner, ProtectionDomain};
use crate::inflight::{QueueKind, RawCompletionQueue, SharedLedger, Waker};
use crate::sync::lock;
use crate::verb_error::VerbError;
use std::marker::PhantomData;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use std::{fmt, mem};

/// How soon a sleeping poller polls again while queue pairs wait to be destroyed.
const POLL_FOR_DEPARTING: Duration = Duration::from_millis(10);
/// How soon a sleeping poller polls again on devices that flush without an event.
const POLL_QUIET_DEVICE: Duration = Duration::from_millis(50);

/// A handle of a completion queue of domain `B`, needed to create queue pairs. Clones name the same queue.
///
/// Its [`Poller`] is created together with it.
#[doc(alias = "ibv_cq")]
#[doc(alias = "ibv_destroy_cq")]
pub struct CompletionQueue<B> {
    pub(crate) inner: Arc<CqInner>,
    brand: Branded<B>,
}

/// How a domain makes completion queues.
impl<B: Brand> ProtectionDomain<B> {
    /// A completion queue for `entries` completions, and its one poller.
    ///
    /// `ibv_create_cq(3)`. Each queue pair leases room for the full depth of its work queues
    /// ([`Limits::completions`](crate::Limits::completions)), so the queue never overflows.
    ///
    /// # Errors
    ///
    /// `EINVAL`: no entries, or more than the device has
    /// ([`max_completion_entries`](crate::device::DeviceAttributes::max_completion_entries)). `EPERM`: an environment
    /// variable is set, or was seen before, with which [no device is
    /// opened](crate::error::OpenError::ForbiddenEnvironment).
    #[doc(alias = "ibv_create_cq")]
    pub fn completion_queue(&self, entries: u32) -> Result<(CompletionQueue<B>, Poller<B>), VerbError> {
        self.completion_queue_with(entries, &CompletionQueueOptions::default()).map_err(CompletionQueueError::into_verb)
    }

    /// As [`completion_queue`](Self::completion_queue), with options: the completion vector and the polling interface.
    ///
    /// `ibv_create_cq(3)`, or `ibv_create_cq_ex(3)` with [`Polling::Extended`].
    ///
    /// # Errors
    ///
    /// As [`completion_queue`](Self::completion_queue); `EINVAL` also if the device has no such vector.
    /// [`CompletionQueueError::NotExtended`]: the device has no extended completion queues.
    #[doc(alias = "ibv_create_cq_ex")]
    pub fn completion_queue_with(
        &self,
        entries: u32,
        options: &CompletionQueueOptions,
    ) -> Result<(CompletionQueue<B>, Poller<B>), CompletionQueueError> {
        CompletionQueue::create(&EventChannel::of_one_queue(&self.inner)?, entries, options)
    }
}

impl<B> CompletionQueue<B> {
    /// A completion queue on this channel, with its poller.
    pub(super) fn create(
        channel: &Arc<EventChannel>,
        entries: u32,
        options: &CompletionQueueOptions,
    ) -> Result<(Self, Poller<B>), CompletionQueueError> {
        let (queue, state) = CqInner::create(channel, entries, options)?;
        Ok((Self { inner: Arc::clone(&queue), brand: PhantomData }, Poller::new(queue, state)))
    }

    /// Another poller, if the last one has been dropped.
    pub fn take_poller(&self) -> Option<Poller<B>> {
        Some(Poller::new(Arc::clone(&self.inner), self.inner.unpark()?))
    }

    /// The id of the queue, which events carry.
    pub fn id(&self) -> CompletionQueueId {
        self.inner.id
    }

    /// How many completions the queue has room for. [`Poller::resize`](super::Poller::resize) changes it.
    pub fn capacity(&self) -> u32 {
        self.inner.control.room().capacity()
    }

    /// How much of the capacity is not leased to queue pairs.
    pub fn room(&self) -> u32 {
        self.inner.control.room().free()
    }
}

impl<B> Clone for CompletionQueue<B> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner), brand: PhantomData }
    }
}

impl<B> fmt::Debug for CompletionQueue<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompletionQueue")
            .field("capacity", &self.capacity())
            .field("room", &self.room())
            .finish_non_exhaustive()
    }
}

pub(crate) struct CqInner {
    pub(super) control: Control,
    pub(crate) raw: Arc<RawCompletionQueue>,
    pub(super) channel: Arc<EventChannel>,
    pub(crate) id: CompletionQueueId,
    pub(super) waker: Arc<Waker>,
    /// The state of a poller that was dropped. The next poller takes it; if there is none, the drop of the queue does.
    parked: Mutex<Option<Box<PollState>>>,
    /// The requests that were in flight when the queue was dropped.
    ///
    /// # Invariants
    ///
    /// 0. This field is declared behind `raw`, since fields are dropped in order: `raw` is the last reference to the
    ///    device's queue by then, so the queue is destroyed before this memory is freed.
    /// 1. `Some` only in the drop, after each pair of the queue was destroyed.
    in_flight: Option<InFlight>,
    /// The domain whose brand the queue has. The name of the domain stays taken until this reference is dropped.
    pub(crate) domain: Arc<DomainInner>,
}

impl CqInner {
    /// A completion queue on this channel, with the state for its poller.
    fn create(
        channel: &Arc<EventChannel>,
        entries: u32,
        options: &CompletionQueueOptions,
    ) -> Result<(Arc<Self>, Box<PollState>), CompletionQueueError> {
        if entries == 0 {
            return Err(VerbError::new("ibv_create_cq", libc::EINVAL).into());
        }
        let waker = Arc::new(Waker::new()?);
        let end = match options.polling {
            Polling::Array => RawCompletionQueue::create(channel.raw(), entries, options.vector)?,
            Polling::Extended => RawCompletionQueue::create_extended(channel.raw(), entries, options.vector)
                .map_err(CompletionQueueError::of_extended)?,
        };
        let raw = Arc::clone(end.queue());
        channel.join(raw.address(), raw.id(), &waker);
        let domain = Arc::clone(raw.domain());
        let control = Control::new(entries, &domain.ledgers);
        let (id, channel, parked) = (raw.id(), Arc::clone(channel), Mutex::default());
        let inner = Arc::new(Self { control, raw, channel, id, waker, parked, in_flight: None, domain });
        Ok((inner, Box::new(PollState::new(end))))
    }

    /// Tells the poller of a new work queue.
    pub(crate) fn attach(&self, attached: Attached) {
        if attached.retirer.origin().datagrams() {
            self.raw.expect_datagrams();
        }
        self.control.mailbox.send(Message::Attach(attached));
    }

    /// Tells the poller that an attached pair receives from a shared receive queue.
    pub(crate) fn join(&self, receiver: SharedReceiver) {
        self.control.room().note_number(receiver.qpn);
        self.control.mailbox.send(Message::Join(receiver));
    }

    /// How long a sleeping poller may wait before it polls without an event; `None`: for ever. `has_departing`: queue
    /// pairs wait to be destroyed, and no event says when that is possible.
    pub(super) fn next_poll(&self, has_departing: bool) -> Option<Duration> {
        let context = &self.domain.context;
        let departing = has_departing.then_some(POLL_FOR_DEPARTING);
        let quiet = context.promises().quirks.completes_quietly.then_some(POLL_QUIET_DEVICE);
        [context.next_timer(), departing, quiet].into_iter().flatten().min()
    }

    /// The descriptors of the completion channel and of the waker. One of them is readable when a poll may find
    /// something.
    pub(crate) fn descriptors(&self) -> Result<[BorrowedFd<'_>; 2], VerbError> {
        Ok([self.channel.fd()?, self.waker.fd()])
    }

    /// Whether the queue may hold completions of shared receives that a pair with that number took.
    pub(crate) fn has_number(&self, qpn: u32) -> bool {
        self.control.room().has_number(qpn)
    }

    /// Tells the poller that the device is done with a work queue, and wakes the poller to return the remaining
    /// requests.
    pub(crate) fn orphan(&self, orphan: Orphan) {
        self.send_and_wake(Message::Orphan(orphan));
    }

    /// Asks the poller to destroy this pair, and wakes the poller.
    pub(crate) fn depart(&self, pair: Box<dyn Departing>) {
        self.send_and_wake(Message::Depart(pair));
    }

    /// Tells the poller that a pair was leaked.
    pub(crate) fn note_leaked(&self) {
        self.send_and_wake(Message::Leaked);
    }

    fn send_and_wake(&self, message: Message) {
        self.control.mailbox.send(message);
        self.waker.wake();
        self.channel.tell(self.raw.address());
    }

    /// How many completions the queue has room for.
    #[cfg(feature = "aio")]
    pub(crate) fn capacity(&self) -> u32 {
        self.control.room().capacity()
    }

    /// Leases room for `depth` completions, and takes a slot.
    pub(crate) fn lease(&self, kind: QueueKind, depth: u32) -> Result<Place, NoRoom> {
        self.control.room().lease(kind, depth)
    }

    /// Takes a slot for a pair on a shared receive queue, and leases the room that the pair [needs](Self::needed_by).
    pub(crate) fn lease_shared(&self, ledger: &SharedLedger) -> Result<Place, NoRoom> {
        self.control.room().lease_shared(ledger)
    }

    /// How much room one more pair of that shared receive queue leases for its receives.
    pub(crate) fn needed_by(&self, ledger: &SharedLedger) -> u32 {
        self.control.room().needed_by(ledger)
    }

    /// Takes another slot under the lease of `old`, because completions of the old slot may still be in the queue.
    pub(crate) fn renew(&self, kind: QueueKind, old: &Place) -> Option<Place> {
        self.control.room().renew(kind, old)
    }

    /// Gives a slot back, and also its lease if `ends_lease`.
    pub(crate) fn release(&self, place: Place, ends_lease: bool) {
        let shared = self.control.room().release(place, ends_lease);
        drop(shared);
    }

    /// Keeps the state of a dropped poller.
    pub(super) fn park(&self, state: Box<PollState>) {
        *lock(&self.parked) = Some(state);
    }

    /// Takes the state of a dropped poller.
    fn unpark(&self) -> Option<Box<PollState>> {
        lock(&self.parked).take()
    }
}

impl Drop for CqInner {
    fn drop(&mut self) {
        // The queue leaves its channel even if it cannot be destroyed: nobody waits for its events any more.
        self.channel.leave(self.raw.address());
        // A poller has a reference to this `CqInner`. So the poller was dropped before this drop, and has parked its
        // state: `unpark` finds it.
        let Some(mut state) = self.unpark() else { return };
        if state.settle(&self.control) {
            // Every attached pair has been destroyed: a pair that could not be destroyed would keep this queue alive,
            // or would have made `settle` return false. So the device is done with the requests that the ledgers still
            // hold.
            self.in_flight = Some(state.into_in_flight());
        } else {
            // The leaked state keeps the completion queue alive, and with it the channel and the domain.
            mem::forget(state);
        }
    }
}
