//! Completion queues.

use super::control::{Control, NoRoom};
use super::departing::Departing;
use super::event_channel::EventChannel;
use super::message::{Attached, Message, Orphan, Place};
use super::options::{CompletionQueueError, CompletionQueueOptions, Polling};
use super::poll_state::{InFlight, PollState};
use super::shared_receivers::SharedReceiver;
use crate::device::CompletionQueueId;
use crate::domain::DomainInner;
use crate::domain::brand::Branded;
use crate::inflight::{QueueKind, RawCompletionQueue, SharedLedger, Waker};
use crate::sync::lock;
use crate::verb_error::VerbError;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use std::{fmt, mem};

/// How soon a sleeper looks again while queue pairs wait to be destroyed.
const LOOK_FOR_DEPARTING: Duration = Duration::from_millis(10);
/// How soon a sleeper looks again on devices that flush without an event.
const LOOK_FOR_QUIET: Duration = Duration::from_millis(50);

/// A completion queue of domain `B`, which queue pairs are created with. A handle: clones name the same queue.
///
/// Its [`Poller`](super::Poller) was made with it.
#[doc(alias = "ibv_cq")]
#[doc(alias = "ibv_destroy_cq")]
pub struct CompletionQueue<B> {
    pub(crate) inner: Arc<CqInner>,
    pub(super) brand: Branded<B>,
}

impl<B> CompletionQueue<B> {
    /// The name of the queue, which tells it from others in events.
    pub fn id(&self) -> CompletionQueueId {
        self.inner.id
    }

    /// How many completions the queue has room for. [`Poller::resize`](super::Poller::resize) changes it.
    pub fn capacity(&self) -> u32 {
        self.inner.control.room().capacity()
    }

    /// How much of the capacity no queue pair has leased.
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
    /// The state of a poller that was dropped, for the next poller or for the end of the queue.
    parked: Mutex<Option<Box<PollState>>>,
    /// What was in flight when the queue was dropped. It stands behind `raw`, so that it is dropped after the queue was
    /// destroyed.
    in_flight: Option<InFlight>,
    /// The domain whose brand the queue has. Its name stays taken as long as this lives.
    pub(crate) domain: Arc<DomainInner>,
}

impl CqInner {
    /// A completion queue on this channel, with the state for its poller.
    pub(super) fn create(
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

    /// A work queue was attached.
    pub(crate) fn attach(&self, attached: Attached) {
        if attached.retirer.origin().datagrams() {
            self.raw.expect_datagrams();
        }
        self.control.mailbox.send(Message::Attach(attached));
    }

    /// A pair that was attached receives from a shared receive queue.
    pub(crate) fn join(&self, receiver: SharedReceiver) {
        self.control.room().note_number(receiver.qpn);
        self.control.mailbox.send(Message::Join(receiver));
    }

    /// How long a sleeper waits before it polls without an event; `None` is for ever. `has_departing`: queue pairs wait
    /// to be destroyed, and no event tells when it is time.
    pub(super) fn next_look(&self, has_departing: bool) -> Option<Duration> {
        let context = &self.domain.context;
        let departing = has_departing.then_some(LOOK_FOR_DEPARTING);
        let quiet = context.promises().quirks.completes_quietly.then_some(LOOK_FOR_QUIET);
        [context.next_timer(), departing, quiet].into_iter().flatten().min()
    }

    /// Whether there may be completions of shared receives by a pair of that number.
    pub(crate) fn has_number(&self, qpn: u32) -> bool {
        self.control.room().has_number(qpn)
    }

    /// The device is done with a work queue. The poller, which may be asleep, shall give out what the queue has left.
    pub(crate) fn orphan(&self, orphan: Orphan) {
        self.send_and_wake(Message::Orphan(orphan));
    }

    /// The poller shall destroy this pair.
    pub(crate) fn depart(&self, pair: Box<dyn Departing>) {
        self.send_and_wake(Message::Depart(pair));
    }

    fn send_and_wake(&self, message: Message) {
        self.control.mailbox.send(message);
        self.waker.wake();
        self.channel.tell(self.raw.address());
    }

    /// Leases room for `depth` completions, and takes a slot.
    pub(crate) fn lease(&self, kind: QueueKind, depth: u32) -> Result<Place, NoRoom> {
        self.control.room().lease(kind, depth)
    }

    /// Takes a slot for a pair that receives from a shared receive queue, and leases the room that it
    /// [needs](Self::needed_by).
    pub(crate) fn lease_shared(&self, ledger: &SharedLedger) -> Result<Place, NoRoom> {
        self.control.room().lease_shared(ledger)
    }

    /// How much room one more pair that receives from that shared queue leases for its receives.
    pub(crate) fn needed_by(&self, ledger: &SharedLedger) -> u32 {
        self.control.room().needed_by(ledger)
    }

    /// Another slot on the lease of `old`, whose completions may still be in the queue.
    pub(crate) fn renew(&self, kind: QueueKind, old: &Place) -> Option<Place> {
        self.control.room().renew(kind, old)
    }

    /// Gives a slot back, and its lease if that ends.
    pub(crate) fn release(&self, place: Place, ends_lease: bool) {
        self.control.room().release(place, ends_lease);
    }

    /// Keeps the state of a poller that is dropped.
    pub(super) fn park(&self, state: Box<PollState>) {
        *lock(&self.parked) = Some(state);
    }

    /// The state of a poller that was dropped.
    pub(super) fn unpark(&self) -> Option<Box<PollState>> {
        lock(&self.parked).take()
    }
}

impl Drop for CqInner {
    fn drop(&mut self) {
        // Also if the queue has to stay: nobody is told of its events any more.
        self.channel.leave(self.raw.address());
        // The poller holds this, so it was dropped before and has parked its state.
        let Some(mut state) = self.unpark() else { return };
        if state.settle(&self.control) {
            // Each pair that was attached has been destroyed: a pair that could not be destroyed keeps this alive, or
            // `settle` has seen it. So the device is done with whatever the ledgers still hold.
            self.in_flight = Some(state.into_in_flight());
        } else {
            // The state keeps the completion queue alive, with its channel and its domain.
            mem::forget(state);
        }
    }
}
