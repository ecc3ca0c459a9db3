//! A completion queue, and the room on it that work queues lease.
//!
//! ASSUMPTION: a queue has at least the room that was asked for, and a pair makes at most one completion for each
//! request that it can hold.
//!
//! Every attached work queue has a *place*: a slot number with a generation, which its work ids carry, and a lease of
//! room for its full depth. Both are given back only when, after the queue pair was destroyed, the completion queue was
//! seen empty: until then old completions of the pair may be in it.
#![allow(unsafe_code, reason = "owns the raw queue")]

use super::Poller;
use super::channel::ChannelInner;
use super::departing::Departing;
use super::desk::Desk;
use super::extended::{self, Polling, Served};
use super::options::{CompletionQueueError, CompletionQueueOptions};
use super::retired::Retired;
use super::shares::{Member, SharedLeases};
use super::turns::turn;
use super::waker::Waker;
use crate::device::CompletionQueueId;
use crate::device::objects::Object;
use crate::domain::brand::Branded;
use crate::domain::{Brand, DomainInner, ProtectionDomain};
use crate::error::{VerbError, note_leak};
use crate::inflight::ledger::Retirer;
use crate::inflight::{Entry, MAX_SLOTS, Mailbox, PairStatus, QueueKey, QueueKind, SharedLedger, WorkId};
use crate::provider::reviewed::Teardown;
use crate::sys::{
    self,
    inline::{PollCq, RequestNotify},
};
use libc::c_int;
use std::collections::VecDeque;
use std::marker::PhantomData;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use std::{fmt, mem, ptr::NonNull};

/// How soon a sleeper looks again while queue pairs are on their way out.
const LOOK_AFTER: Duration = Duration::from_millis(10);
/// How soon a sleeper looks again on devices that flush without telling.
const LOOK_ANYWAY: Duration = Duration::from_millis(50);

/// A completion queue of domain `B`: what queue pairs are made with. A handle; clones name the same queue.
///
/// Its [`Poller`] came with it.
#[doc(alias = "ibv_cq")]
#[doc(alias = "ibv_destroy_cq")]
pub struct CompletionQueue<B> {
    pub(crate) inner: Arc<CqInner>,
    brand: Branded<B>,
}

impl<B> CompletionQueue<B> {
    /// Its name, for telling queues apart in events.
    pub fn id(&self) -> CompletionQueueId {
        self.inner.id
    }

    /// Room for this many completions. [`Poller::resize`] changes it.
    pub fn capacity(&self) -> u32 {
        self.inner.control().capacity
    }

    /// How much of the capacity no queue pair has leased.
    pub fn room(&self) -> u32 {
        let control = self.inner.control();
        control.capacity - control.leased
    }

    /// The poller again, if the one there was has been dropped.
    pub fn take_poller(&self) -> Option<Poller<B>> {
        let desk = self.inner.control().parked.take()?;
        Some(Poller::new(Arc::clone(&self.inner), desk))
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

/// How a domain makes completion queues.
impl<B: Brand> ProtectionDomain<B> {
    /// A completion queue for `entries` completions, and the one poller of it.
    ///
    /// `ibv_create_cq(3)`. Each queue pair leases room for the full depth of its work queues
    /// ([`Limits::completions`](crate::Limits::completions)), so it never overflows.
    ///
    /// # Errors
    ///
    /// `EINVAL`: none, or more than the device has
    /// ([`max_completion_entries`](crate::DeviceAttributes::max_completion_entries)).
    #[doc(alias = "ibv_create_cq")]
    pub fn completion_queue(&self, entries: u32) -> Result<(CompletionQueue<B>, Poller<B>), VerbError> {
        self.completion_queue_with(entries, &CompletionQueueOptions::default()).map_err(CompletionQueueError::into_verb)
    }

    /// The same with its events on a completion vector, or polled in another way.
    ///
    /// `ibv_create_cq(3)`, or `ibv_create_cq_ex(3)` with [`Polling::Extended`](crate::Polling::Extended).
    ///
    /// # Errors
    ///
    /// As [`completion_queue`](Self::completion_queue); `EINVAL` also where the device has no such vector.
    /// [`CompletionQueueError::NotExtended`]: it has no extended completion queues.
    #[doc(alias = "ibv_create_cq_ex")]
    pub fn completion_queue_with(
        &self,
        entries: u32,
        options: &CompletionQueueOptions,
    ) -> Result<(CompletionQueue<B>, Poller<B>), CompletionQueueError> {
        create(&self.inner, entries, options)
    }
}

/// A completion queue has no room for the full depth of a queue pair's work queues.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "the completion queue has room for {free} more completions, {needed} are needed (a queue pair leases the depth of \
     its queues until it is destroyed and the completion queue was polled empty)"
)]
pub struct NoRoom {
    /// What the queue pair asked for.
    pub needed: u32,
    /// What is free.
    pub free: u32,
}

/// A work queue as its poller sees it.
pub(crate) struct Attached {
    pub(crate) retirer: Retirer<Entry>,
    pub(crate) status: Arc<PairStatus>,
}

/// What the control path tells the poller.
pub(super) enum Message {
    /// A work queue has come.
    Attach(Attached),
    /// What is attached there receives from a shared receive queue.
    Join(Member),
    /// The device is done with a work queue: its pair was destroyed, or reset.
    Orphan(Orphan),
    /// A pair is to be destroyed once nothing of it is in flight.
    Depart(Box<dyn Departing>),
}

pub(crate) struct Orphan {
    pub(crate) place: Place,
    /// A pair that was reset keeps its lease, and counts here until its old completions have been seen.
    pub(crate) keeps_lease: Option<Arc<AtomicU32>>,
}

/// The place of a work queue on a completion queue. Not `Copy`: it is given back once.
#[derive(Debug)]
pub(crate) struct Place {
    /// The id that its next request gets: its first, until it is given back.
    pub(crate) next: WorkId,
    pub(super) depth: u32,
    /// Of a pair that receives from a shared receive queue: what is in flight there. Such pairs have one lease together.
    pub(crate) shared: Option<SharedLedger>,
}

impl Place {
    pub(crate) fn slot(&self) -> usize {
        self.next.key().slot()
    }
}

pub(super) struct Control {
    /// At least `leased`.
    pub(super) capacity: u32,
    pub(super) leased: u32,
    shared: SharedLeases,
    /// The numbers of the pairs whose completions of shared receives may be in the queue; once for each life.
    numbers: Vec<u32>,
    /// Slots that were used before, with where their next user goes on to count. The one that was free for longest comes first.
    free: VecDeque<(u32, u64)>,
    /// The lowest slot that was never used.
    fresh: u32,
    /// The desk of a poller that was dropped.
    parked: Option<Box<Desk>>,
}

pub(crate) struct CqInner {
    /// # Invariants
    ///
    /// 0. Came from the context's provider and is alive until this is dropped; it uses the channel.
    pub(crate) raw: NonNull<sys::ibv_cq>,
    pub(super) channel: Arc<ChannelInner>,
    pub(crate) id: CompletionQueueId,
    /// The function table's own, looked up once; or that of extended queues.
    ///
    /// 1. If it is the latter, the queue is one that is complete, and its context is `served`.
    pub(crate) poll: PollCq,
    served: Arc<Served>,
    pub(crate) request_notify: RequestNotify,
    pub(super) mailbox: Mailbox<Message>,
    pub(super) waker: Arc<Waker>,
    control: Mutex<Control>,
    /// The domain that the queue bears the brand of: its name is taken for as long as this is around.
    pub(crate) domain: Arc<DomainInner>,
}

// SAFETY: control verbs may be called from any thread; polling and arming are the poller's alone, of which there is one.
unsafe impl Send for CqInner {}
// SAFETY: as above.
unsafe impl Sync for CqInner {}

impl CqInner {
    pub(super) fn control(&self) -> MutexGuard<'_, Control> {
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn capacity(&self) -> u32 {
        self.control().capacity
    }

    /// A work queue has come.
    pub(crate) fn attach(&self, attached: Attached) {
        self.served.attach(&attached);
        self.mailbox.send(Message::Attach(attached));
    }

    /// A pair that was attached receives from a shared receive queue.
    pub(crate) fn join(&self, member: Member) {
        self.control().numbers.push(member.qpn);
        self.mailbox.send(Message::Join(member));
    }

    /// How long a sleeper waits before it polls without an event; `None` is for ever. `has_guests`: pairs are on their way out, and no
    /// event tells when it is time to destroy them.
    pub(super) fn next_look(&self, has_guests: bool) -> Option<Duration> {
        let leaving = has_guests.then_some(LOOK_AFTER);
        let quiet = self.domain.context.promises().quirks.completes_quietly.then_some(LOOK_ANYWAY);
        [self.domain.context.next_timer(), leaving, quiet].into_iter().flatten().min()
    }

    /// Whether there may be completions of shared receives by a pair of that number.
    pub(crate) fn has_number(&self, qpn: u32) -> bool {
        self.control().numbers.contains(&qpn)
    }

    /// All completions of a pair of that number were seen.
    pub(super) fn forget_number(&self, qpn: u32) {
        let numbers = &mut self.control().numbers;
        if let Some(at) = numbers.iter().position(|&number| number == qpn) {
            numbers.swap_remove(at);
        }
    }

    /// The device is done with a work queue; its poller, asleep perhaps, gives out what is left.
    pub(crate) fn orphan(&self, orphan: Orphan) {
        self.mailbox.send(Message::Orphan(orphan));
        self.waker.wake();
        self.channel.tell(self.raw);
    }

    /// A pair that this queue's poller destroys.
    pub(crate) fn depart(&self, pair: Box<dyn Departing>) {
        self.mailbox.send(Message::Depart(pair));
        self.waker.wake();
        self.channel.tell(self.raw);
    }

    /// Leases room for `depth` completions, and takes a slot.
    pub(crate) fn lease(&self, kind: QueueKind, depth: u32) -> Result<Place, NoRoom> {
        let mut control = self.control();
        let free = control.capacity - control.leased;
        if depth > free {
            return Err(NoRoom { needed: depth, free });
        }
        let place = control.place(kind, depth).ok_or(NoRoom { needed: depth, free: 0 })?;
        control.leased += depth;
        Ok(place)
    }

    /// Takes a slot for a pair that receives from a shared receive queue. The first such pair leases room for all of that
    /// queue's receives.
    pub(crate) fn lease_shared(&self, ledger: &SharedLedger) -> Result<Place, NoRoom> {
        let mut control = self.control();
        let free = control.capacity - control.leased;
        let needed = control.shared.needed(ledger);
        if needed > free {
            return Err(NoRoom { needed, free });
        }
        let place = control.place(QueueKind::Receive, 0).ok_or(NoRoom { needed, free: 0 })?;
        control.leased += needed;
        control.shared.begin(ledger);
        Ok(Place { shared: Some(SharedLedger::clone(ledger)), ..place })
    }

    /// How much room a further pair that receives from that shared queue leases for its receives.
    pub(crate) fn needed_by(&self, ledger: &SharedLedger) -> u32 {
        self.control().shared.needed(ledger)
    }

    /// A further place on the lease of `old`, whose completions may still be in the queue.
    pub(crate) fn renew(&self, kind: QueueKind, old: &Place) -> Option<Place> {
        let place = self.control().place(kind, old.depth)?;
        Some(Place { shared: old.shared.clone(), ..place })
    }

    /// Gives a place back, with its lease or without.
    pub(crate) fn release(&self, place: Place, ends_lease: bool) {
        let mut control = self.control();
        control.free.push_back((place.next.key().slot() as u32, place.next.count()));
        if ends_lease {
            control.leased -= place.depth;
            if let Some(ledger) = &place.shared {
                control.leased -= control.shared.end(ledger);
            }
        }
    }

    /// Keeps the desk of a dropped poller for the next one, or for the end of the queue.
    pub(crate) fn park(&self, desk: Box<Desk>) {
        self.control().parked = Some(desk);
    }
}

impl Control {
    fn place(&mut self, kind: QueueKind, depth: u32) -> Option<Place> {
        let (slot, count) = match self.free.pop_front() {
            Some(used) => used,
            None if self.fresh < MAX_SLOTS => {
                self.fresh += 1;
                // Not from 0 on: that is what an entry says that its device has not written.
                (self.fresh - 1, 1)
            }
            None => return None,
        };
        Some(Place { next: QueueKey::new(kind, slot).first(count), depth, shared: None })
    }
}

impl CqInner {
    /// Ends what only the poller could: takes out what the queue still has, and destroys the pairs that wait for it. False if
    /// there is one that could not be destroyed: the device may go on to use it, with all that is in flight.
    fn settle(&self, desk: &mut Desk) -> bool {
        desk.read_mail(self);
        // Each completion, the flag of each message, and as many again: a device that lies does not keep us here.
        let mut looks = self.capacity().saturating_mul(2).saturating_add(64);
        while looks > 0
            && desk.owes()
            && let Ok(Some(run)) = desk.next_run(self, true)
        {
            drop(Retired::<()>::new(run));
            looks -= 1;
        }
        desk.end_guests()
    }
}

impl Drop for CqInner {
    fn drop(&mut self) {
        let parked = self.control().parked.take();
        let mut desk = parked.unwrap_or_else(|| Box::new(Desk::new()));
        // Also if it has to stay: nobody is told of it any more.
        self.channel.leave(self.raw);
        if !self.settle(&mut desk) {
            mem::forget(desk);
            mem::forget(Arc::clone(&self.channel));
            mem::forget(Arc::clone(&self.domain));
            return;
        }
        let context = &self.domain.context;
        // SAFETY: alive (0); no queue pair uses it, since each holds a reference to this.
        let gone = context.objects.end(self.raw, || unsafe { context.provider.destroy_cq(self.raw) });
        if let Err(error) = gone {
            mem::forget(Arc::clone(&self.channel));
            mem::forget(Arc::clone(&self.domain));
            note_leak("a completion queue", error);
        }
        // Every pair that was attached has been destroyed: one that could not be keeps this alive, or was seen above. So the
        // device is done with whatever the ledgers still hold.
        desk.drop_rest();
    }
}

/// `ibv_poll_cq` of a provider that leaves fields as they were, or adds bits to them.
///
/// # Safety
///
/// As `ibv_poll_cq`, of a context whose function table has one.
unsafe extern "C" fn poll_afresh(cq: *mut sys::ibv_cq, count: c_int, polled: *mut sys::ibv_wc) -> c_int {
    // SAFETY: room for so many (caller); zero is a value of each.
    unsafe { polled.write_bytes(0, count.try_into().unwrap_or(0)) };
    // SAFETY: alive, and so is its context (caller).
    let context = unsafe { (*cq).context };
    // SAFETY: as above.
    match unsafe { (*context).ops.poll_cq } {
        // SAFETY: the caller's promise.
        Some(poll) => unsafe { poll(cq, count, polled) },
        None => -1,
    }
}

/// [`poll_afresh`], while no pair of that completion queue is reset.
///
/// # Safety
///
/// As `ibv_poll_cq`, of a context whose function table has one.
unsafe extern "C" fn poll_in_turn(cq: *mut sys::ibv_cq, count: c_int, polled: *mut sys::ibv_wc) -> c_int {
    let _turn = turn(cq);
    // SAFETY: the caller's promise.
    unsafe { poll_afresh(cq, count, polled) }
}

/// Makes a completion queue, which has a channel for itself, and its poller.
pub(crate) fn create<B>(
    domain: &Arc<DomainInner>,
    entries: u32,
    options: &CompletionQueueOptions,
) -> Result<(CompletionQueue<B>, Poller<B>), CompletionQueueError> {
    create_on(domain, &ChannelInner::new(domain)?, entries, options)
}

/// Makes a completion queue on a channel of the domain, and its poller.
pub(super) fn create_on<B>(
    domain: &Arc<DomainInner>,
    channel: &Arc<ChannelInner>,
    entries: u32,
    options: &CompletionQueueOptions,
) -> Result<(CompletionQueue<B>, Poller<B>), CompletionQueueError> {
    if entries == 0 {
        return Err(VerbError::new("ibv_create_cq", libc::EINVAL).into());
    }
    let context = &domain.context;
    // SAFETY: an open context has its function table filled.
    let operations = unsafe { (*context.raw.as_ptr()).ops };
    let (Some(poll), Some(request_notify)) = (operations.poll_cq, operations.req_notify_cq) else {
        return Err(VerbError::new("ibv_poll_cq", libc::EOPNOTSUPP).into());
    };
    let waker = Arc::new(Waker::new()?);
    let served = Arc::<Served>::default();
    let (raw, poll, extended) = match options.polling {
        Polling::Array => {
            // SAFETY: the context is open as long as we hold it, and so is the channel.
            let raw = unsafe { context.provider.create_cq(context.raw, entries, channel.raw(), options.vector) }?;
            let promises = context.promises();
            let poll = if promises.teardown == Teardown::Polled {
                poll_in_turn
            } else if promises.polls_fresh {
                poll
            } else {
                poll_afresh
            };
            (raw, poll, None)
        }
        Polling::Extended => {
            let poll = extended::poll_of(context.promises().walk)?;
            let mut attributes = extended::attributes(entries, channel.raw(), options.vector, &served);
            // SAFETY: as above.
            let created = unsafe { context.provider.create_cq_ex(context.raw, &mut attributes) };
            let extended = created.map_err(extended::explain)?;
            // `ibv_cq_ex_to_cq`: the one begins as the other.
            (extended.cast(), poll, Some(extended))
        }
    };
    let id = CompletionQueueId::fresh();
    context.objects.note(raw, Object::CompletionQueue(id));
    channel.join(raw, id, &waker);
    // SAFETY: created just now.
    let granted = unsafe { (*raw.as_ptr()).cqe };
    let control = Control {
        capacity: entries,
        leased: 0,
        shared: SharedLeases::default(),
        numbers: Vec::new(),
        free: VecDeque::new(),
        fresh: 0,
        parked: None,
    };
    let inner = Arc::new(CqInner {
        raw,
        channel: Arc::clone(channel),
        id,
        poll,
        served,
        request_notify,
        mailbox: Mailbox::new(),
        waker,
        control: Mutex::new(control),
        domain: Arc::clone(domain),
    });
    // SAFETY: created just now.
    if extended.is_some_and(|extended| !unsafe { extended::is_complete(extended, &inner.served) }) {
        // A provider that made something else. Dropping the queue destroys it.
        return Err(extended::none());
    }
    if u32::try_from(granted).unwrap_or(0) < entries {
        // The same.
        return Err(VerbError::new("ibv_create_cq", libc::ENOMEM).into());
    }
    let poller = Poller::new(Arc::clone(&inner), Box::new(Desk::new()));
    Ok((CompletionQueue { inner, brand: PhantomData }, poller))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::Context;

    /// A device that writes no id into an entry names nothing.
    #[test]
    fn no_request_has_the_id_zero() {
        crate::domain! { struct Test; }
        let domain = Context::open("soft0").unwrap().named_domain(Test).unwrap();
        let (queue, _poller) = domain.completion_queue(8).unwrap();
        let place = queue.inner.control().place(QueueKind::Send, 4).unwrap();
        assert_ne!(place.next.raw(), 0);
    }

    #[test]
    fn a_slot_never_names_a_request_as_it_named_one_of_an_earlier_life() {
        crate::domain! { struct Test; }
        let domain = Context::open("soft0").unwrap().named_domain(Test).unwrap();
        let (queue, _poller) = domain.completion_queue(1).unwrap();
        let mut last = None;
        // More lives than a life had room to count in, when lives had a count of their own.
        for _ in 0..if cfg!(miri) { 100 } else { (1 << 18) + 2 } {
            let place = queue.inner.lease(QueueKind::Send, 1).unwrap();
            assert!(last.is_none_or(|last: WorkId| last.count() < place.next.count()));
            last = Some(place.next);
            let next = place.next.after(1);
            queue.inner.release(Place { next, ..place }, true);
        }
    }

    #[test]
    fn slots_are_used_in_turn() {
        crate::domain! { struct Test; }
        let domain = Context::open("soft0").unwrap().named_domain(Test).unwrap();
        let (queue, _poller) = domain.completion_queue(3).unwrap();
        let places = [(); 3].map(|()| queue.inner.lease(QueueKind::Send, 1).unwrap());
        let slots = places.each_ref().map(Place::slot);
        places.into_iter().for_each(|place| queue.inner.release(place, true));
        let again = [(); 3].map(|()| queue.inner.lease(QueueKind::Receive, 1).unwrap().slot());
        assert_eq!(slots, again);
    }
}
