//! The queue pair.

use super::attributes::Limits;
use super::error::DestroyError;
use super::halves::{JoinHalvesError, ReceiveHalf, SendHalf};
use super::local_port::LocalPort;
use super::state::{DeviceState, OnPort, ReadyToSend, SendQueueDrain, State};
use super::transport::{Connectionless, OwnReceives, ReliableConnection, Transport};
use super::untyped::{UndestroyedPair, UntypedPair};
use crate::device::CompletionQueueId;
use crate::domain::Brand;
use crate::domain::brand::Branded;
use crate::inflight::Status;
use crate::queue::Endpoint;
use crate::sys::{ibv_qp_attr_mask as Mask, ibv_qp_state as raw_state};
use crate::types::{Gid, Psn, Qpn};
use crate::verb_error::VerbError;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{fmt, thread};

/// A queue pair of domain `B`, in state `S`, of transport `T`. Seven words.
///
/// A transition consumes the pair and returns one of the next type, or an error with the unchanged pair; see [`State`]
/// for the diagram. Posting moves memory into the pair; the poller of its completion queue gives the memory back.
///
/// Dropping a pair destroys it, `ibv_destroy_qp(3)`. Requests in flight come out of the poller as failures with
/// [`Status::Destroyed`], or with [`Status::Flushed`] where the poller destroys the pair: see
/// [`destroy`](Self::destroy). If the device refuses to destroy the pair, everything that the device could still touch
/// stays allocated for the life of the process.
///
/// # Rules
///
/// The compiler enforces each rule; programs that break them are in `ui-tests/queue`.
///
/// - Q1: a queue pair goes from state to state only as the specification has it.
/// - Q2: a transition takes exactly the attributes that it requires.
/// - Q3: a send work request is posted in Ready To Send only.
/// - Q4: a receive is not posted in Reset or Error.
/// - Q5: states and their capabilities are sealed.
/// - Q6: a transition takes the pair; only its result goes on.
/// - Q7: memory in flight is gone until its completion.
/// - Q8: the device writes only to memory that one handle owns.
/// - Q9: an operation needs the right that the peer granted.
/// - Q10: only sends and writes carry an immediate.
/// - Q11: one thread posts to a work queue at a time.
/// - Q12: a lent batch settles on state that its closure cannot reach.
/// - Q13: work ids come from posting.
/// - Q14: which operation exists on which transport is a matter of types.
#[doc(alias = "ibv_qp")]
#[must_use = "dropping it destroys the queue pair"]
pub struct QueuePair<B, S = ReadyToSend, T = ReliableConnection> {
    pub(crate) inner: UntypedPair,
    brand: Branded<B>,
    types: PhantomData<fn() -> (S, T)>,
}
static_assertions::assert_eq_size!(QueuePair<()>, Option<QueuePair<()>>, [usize; 7]);
static_assertions::assert_impl_all!(QueuePair<()>: Send, Sync);
static_assertions::assert_not_impl_any!(QueuePair<()>: Clone, Copy);

impl<B, S, T> QueuePair<B, S, T> {
    /// Gives the pair the type of its state. The caller has just seen a `modify` succeed, or returns the pair in the
    /// state that it had.
    pub(super) fn assume_state(inner: UntypedPair) -> Self {
        Self { inner, brand: PhantomData, types: PhantomData }
    }
}

impl<B: Brand, S: State, T: Transport> QueuePair<B, S, T> {
    /// The number of the pair, unique on its device.
    #[doc(alias = "qp_num")]
    pub fn number(&self) -> Qpn {
        self.inner.core.qpn()
    }

    /// The first packet sequence number that this side sends. It is random; after a reset it lies ahead of all numbers
    /// that were sent before.
    #[doc(alias = "sq_psn")]
    pub fn psn(&self) -> Psn
    where
        S: OnPort,
    {
        self.inner.core.local.psn
    }

    /// The data that a peer needs to connect to this pair: send it the bytes of this record.
    pub fn endpoint(&self) -> Endpoint
    where
        S: OnPort,
    {
        let LocalPort { gid, lid, mtu, psn, .. } = self.inner.core.local;
        Endpoint::new(self.number(), psn, gid.map(|row| row.gid), lid, mtu)
    }

    /// The limits of the pair. If its receives are shared, `receives` does not count.
    pub fn limits(&self) -> Limits {
        self.inner.core.limits
    }

    /// How many sends, writes, reads and atomics are in flight: posted, and not yet out of the poller, or posted after
    /// one that is not.
    pub fn sends_in_flight(&self) -> u32 {
        self.inner.send.outstanding()
    }

    /// How many receives are in flight.
    pub fn receives_in_flight(&self) -> u32
    where
        T: OwnReceives,
    {
        self.inner.receive.outstanding()
    }

    /// Whether posts are refused as [`Broken`](crate::PostError::Broken): the poller has seen a request of the pair
    /// fail, or a post was [uncertain](crate::PostError::Uncertain). After a failure the pair is no longer in the state
    /// that its type names.
    pub fn is_broken(&self) -> bool {
        self.inner.core.is_broken()
    }

    /// The first failure that the poller saw: it broke the pair. `None` if no request failed, or if all failures were
    /// flushes, which do not name the cause.
    pub fn first_failure(&self) -> Option<Status> {
        self.inner.core.first_failure()
    }

    /// The state that the device says the pair is in. The device may enter Error by itself at any time. All attributes,
    /// the state among them, are in [`query`](Self::query).
    ///
    /// # Errors
    ///
    /// The device is gone.
    #[doc(alias = "ibv_query_qp")]
    pub fn query_state(&self) -> Result<DeviceState, VerbError> {
        Ok(DeviceState::from_raw(self.inner.core.query(Mask::IBV_QP_STATE)?.qp_state))
    }

    /// Destroys the pair, as a drop does, but reports a failure.
    ///
    /// `ibv_destroy_qp(3)`. Requests in flight come out of the poller as failures with [`Status::Destroyed`]: poll
    /// until nothing more comes. Not every provider allows a destroy at any time. If
    /// [`pairs_end_at_once`](crate::device::Promises::pairs_end_at_once) is false, `Ok` means that the pair went to
    /// Error and now belongs to its poller: go on polling. The requests in flight come out as flushed, and then the
    /// poller destroys the pair.
    ///
    /// # Errors
    ///
    /// [`DestroyError`]: the device refused. The pair comes back, with its requests still in flight.
    #[doc(alias = "ibv_destroy_qp")]
    pub fn destroy(mut self) -> Result<(), DestroyError<Self>> {
        if self.inner.is_left_to_poller() {
            // The drop of `self` hands the pair to its poller.
            return Ok(());
        }
        match self.inner.destroy_now() {
            Ok(()) => Ok(()),
            Err(UndestroyedPair { source, .. }) => Err(DestroyError { queue_pair: self, source }),
        }
    }
}

/// Multicast groups of datagram pairs, with receives of their own or shared receives.
impl<B: Brand, S: State, T: Transport> QueuePair<B, S, T> {
    /// Joins a multicast group: datagrams to it arrive here too, until the pair leaves it or is destroyed.
    ///
    /// `ibv_attach_mcast(3)`. `lid` is the multicast LID of the group, and 0 on Ethernet. There, the port's network
    /// interface must have joined the group as well.
    ///
    /// # Errors
    ///
    /// The device refused: `EINVAL` if `group` is not a multicast address.
    #[doc(alias = "ibv_attach_mcast")]
    pub fn join_group(&mut self, group: Gid, lid: u16) -> Result<(), VerbError>
    where
        T: Connectionless,
    {
        let busy = VerbError::new("ibv_attach_mcast", libc::EBUSY);
        self.inner.core_mut().ok_or(busy)?.raw.attach(group, lid)
    }

    /// Leaves a multicast group.
    ///
    /// `ibv_detach_mcast(3)`.
    ///
    /// # Errors
    ///
    /// The device refused: `EINVAL` if the pair is not a member.
    #[doc(alias = "ibv_detach_mcast")]
    pub fn leave_group(&mut self, group: Gid, lid: u16) -> Result<(), VerbError>
    where
        T: Connectionless,
    {
        let busy = VerbError::new("ibv_detach_mcast", libc::EBUSY);
        self.inner.core_mut().ok_or(busy)?.raw.detach(group, lid)
    }
}

/// In RTS: receives and sends.
impl<B: Brand, T: Transport> QueuePair<B, ReadyToSend, T> {
    /// Takes the pair apart for two threads, one that sends and one that receives.
    pub fn split(self) -> (SendHalf<B, T>, ReceiveHalf<B, T>)
    where
        T: OwnReceives,
    {
        self.into_halves()
    }

    /// As [`split`](Self::split), but also for a pair on a shared receive queue. The receiving half of such a pair
    /// receives nothing.
    pub(crate) fn into_halves(self) -> (SendHalf<B, T>, ReceiveHalf<B, T>) {
        let UntypedPair { send, receive, core } = self.inner;
        (SendHalf::new(send, Arc::clone(&core)), ReceiveHalf::new(receive, core))
    }
}

impl<B: Brand, T: Transport> SendHalf<B, T> {
    /// Rebuilds the whole pair from its two halves.
    ///
    /// # Errors
    ///
    /// `receive` is of another pair; both come back.
    pub fn join(self, receive: ReceiveHalf<B, T>) -> Result<QueuePair<B, ReadyToSend, T>, JoinHalvesError<B, T>> {
        if !Arc::ptr_eq(&self.half.1, &receive.half.1) {
            return Err(JoinHalvesError { send: self, receive });
        }
        let (send, core) = self.half;
        let (receive, other) = receive.half;
        // `core` and `other` are the two references to the core. After this drop the pair holds the only one.
        drop(other);
        Ok(QueuePair::assume_state(UntypedPair { send, core, receive }))
    }
}

/// In SQD: the send queue is draining; receives go on.
impl<B: Brand, T: Transport> QueuePair<B, SendQueueDrain, T> {
    /// Waits until the device says that the send queue is drained, or until `timeout` has passed. Returns false if the
    /// queue is not drained by then, or if the pair has gone to Error.
    ///
    /// `ibv_query_qp(3)`, `sq_draining`. This gives no buffers back: they come with their completions.
    ///
    /// # Errors
    ///
    /// The device is gone.
    pub fn drained(&self, timeout: Duration) -> Result<bool, VerbError> {
        let deadline = Instant::now().checked_add(timeout);
        let core = &self.inner.core;
        loop {
            let now = core.query(Mask(Mask::IBV_QP_STATE.0 | Mask::IBV_QP_EN_SQD_ASYNC_NOTIFY.0))?;
            if now.qp_state != raw_state::IBV_QPS_SQD || now.sq_draining == 0 {
                return Ok(now.qp_state == raw_state::IBV_QPS_SQD);
            }
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Ok(false);
            }
            thread::sleep(core.domain.context.next_timer().map_or(PAUSE, |timer| timer.min(PAUSE)));
        }
    }
}

/// The pause between two queries or polls.
pub(super) const PAUSE: Duration = Duration::from_millis(1);

/// Facts for closing a pair, whatever state its type names.
impl<B: Brand, S: State, T: Transport> QueuePair<B, S, T> {
    /// The ids of the completion queues of its sends and of its receives.
    pub(crate) fn completes_on(&self) -> (CompletionQueueId, CompletionQueueId) {
        (self.inner.core.send_queue.id, self.inner.core.receive_queue.id)
    }

    /// How many sends and how many receives of its own are in flight.
    pub(crate) fn in_flight(&self) -> (u32, u32) {
        (self.sends_in_flight(), self.inner.receive.outstanding())
    }
}

impl<B, S: State, T> fmt::Debug for QueuePair<B, S, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueuePair")
            .field("number", &self.inner.core.qpn())
            .field("state", &S::NAME)
            .field("first_failure", &self.inner.core.first_failure())
            .finish_non_exhaustive()
    }
}
