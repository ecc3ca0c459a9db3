//! Shared receive queues: one stock of receives for many queue pairs.

use super::error::CreateError;
use super::transport::{ReliableConnection, UnreliableConnection, UnreliableDatagram};
use crate::device::SharedReceiveQueueId;
use crate::domain::brand::Branded;
use crate::domain::{Brand, DomainId, DomainInner, ProtectionDomain};
use crate::inflight::{Entry, HEADER_BYTES, MAX_SHARED, PostError, RequestFlaw, SharedCore, SharedPoster, WorkId};
use crate::memory::Buffer;
use crate::sys::{self, ibv_srq_attr_mask as Mask};
use crate::verb_error::VerbError;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

/// How many receives a shared receive queue may have in flight.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[doc(alias = "ibv_srq_attr")]
pub struct SharedLimits {
    /// The number at creation: from 1 to the smaller of 2^20 and the device's
    /// [`max_shared_receive_depth`](crate::device::DeviceAttributes::max_shared_receive_depth).
    #[doc(alias = "max_wr")]
    pub receives: u32,
    /// The most that [`resize`](SharedReceiveQueue::resize) can set. A number below `receives` means `receives`.
    pub grows_to: u32,
}

impl SharedLimits {
    /// The room that a shared receive queue with these limits leases on each completion queue of its pairs. Pairs on
    /// the same completion queue share that room.
    pub const fn completions(&self) -> u32 {
        if self.grows_to > self.receives { self.grows_to } else { self.receives }
    }
}

impl Default for SharedLimits {
    /// Sixteen receives, without growing.
    fn default() -> Self {
        Self { receives: 16, grows_to: 0 }
    }
}

/// How a domain makes shared receive queues.
impl<B: Brand> ProtectionDomain<B> {
    /// A shared receive queue: one stock of receives for many queue pairs.
    ///
    /// `ibv_create_srq(3)`. Its methods make the pairs that receive from it.
    ///
    /// # Errors
    ///
    /// [`CreateError`]: limits that the device does not have; [`NoSharedReceives`](CreateError::NoSharedReceives) if
    /// [`shared_receive_queues`](crate::device::Promises::shared_receive_queues) is false.
    #[doc(alias = "ibv_create_srq")]
    pub fn shared_receive_queue(&self, limits: &SharedLimits) -> Result<SharedReceiveQueue<B>, CreateError> {
        SharedReceiveQueue::create(&self.inner, limits)
    }

    /// A shared receive queue for datagrams: each of its receives has room for the datagram's header of 40 bytes.
    ///
    /// `ibv_create_srq(3)`.
    ///
    /// # Errors
    ///
    /// [`CreateError`]: limits that the device does not have.
    ///
    /// # Examples
    ///
    /// Two queue pairs with one stock of receives:
    ///
    /// ```
    /// use interlock::{Context, Limits, Work};
    /// use interlock::number::Qkey;
    /// use interlock::shared::SharedLimits;
    /// use std::time::Duration;
    /// interlock::domain! { struct Docs; }
    ///
    /// let domain = Context::open("soft0")?.named_domain(Docs)?;
    /// let port = domain.context().active_port()?;
    /// let (queue, mut poller) = domain.completion_queue(64)?;
    /// let mut shared = domain.shared_datagram_queue(&SharedLimits::default())?;
    /// for buffer in domain.buffers(8, 40 + 64)? {
    ///     shared.post_receive(buffer)?;
    /// }
    /// let one = shared.datagram(&queue, &Limits::default())?.into_init(&port)?.open()?;
    /// let mut other = shared.datagram(&queue, &Limits::default())?.into_init(&port)?.open()?;
    /// let to_one = domain.recipient(&port, &one.endpoint(), Qkey::USUAL)?;
    /// let mut greeting = domain.buffer(64)?;
    /// greeting.write(b"hello")?;
    /// other.post_send_to(greeting, &to_one)?;
    /// loop {
    ///     let success = poller.wait(Duration::from_secs(1))?.check()?;
    ///     let taken_by = success.queue_pair();
    ///     if let Work::Datagram(datagram) = success.into_work() {
    ///         assert_eq!((datagram.message(), datagram.sender, taken_by), (&b"hello"[..], other.number(), one.number()));
    ///         shared.post_receive(datagram.into_buffer())?;
    ///         break;
    ///     }
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "ibv_create_srq")]
    pub fn shared_datagram_queue(
        &self,
        limits: &SharedLimits,
    ) -> Result<SharedReceiveQueue<B, Datagrams>, CreateError> {
        SharedReceiveQueue::create(&self.inner, limits)
    }
}

mod sealed {
    #[allow(unnameable_types, reason = "seals `Arrivals`")]
    pub trait Sealed {
        /// How many bytes at the start of each receive hold the header, not the message.
        const HEADER_BYTES: usize;
    }
    #[allow(unnameable_types, reason = "seals `Serves`")]
    pub trait Serves<T> {}
}

/// The kind of data that a [`SharedReceiveQueue`] receives: [`Messages`] or [`Datagrams`]. Sealed.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is nothing that comes to a shared receive queue",
    note = "what comes are `Messages` or `Datagrams`"
)]
pub trait Arrivals: sealed::Sealed + 'static {}

/// Messages of connections, reliable and unreliable ones.
#[derive(Debug)]
pub enum Messages {}
impl Arrivals for Messages {}
impl sealed::Sealed for Messages {
    const HEADER_BYTES: usize = 0;
}

/// Datagrams. Each comes with a header of 40 bytes, so each receive must have room for the header.
#[derive(Debug)]
pub enum Datagrams {}
impl Arrivals for Datagrams {}
impl sealed::Sealed for Datagrams {
    const HEADER_BYTES: usize = HEADER_BYTES;
}

/// Receives that queue pairs of transport `T` can take. Sealed.
#[diagnostic::on_unimplemented(
    message = "receives of `{Self}` do not serve queue pairs of transport `{T}`",
    label = "not on this shared receive queue",
    note = "connections receive from what `ProtectionDomain::shared_receive_queue` makes, datagrams from what \
            `ProtectionDomain::shared_datagram_queue` makes: its receives have room for a header"
)]
pub trait Serves<T>: Arrivals + sealed::Serves<T> {}
impl Serves<ReliableConnection> for Messages {}
impl sealed::Serves<ReliableConnection> for Messages {}
impl Serves<UnreliableConnection> for Messages {}
impl sealed::Serves<UnreliableConnection> for Messages {}
impl Serves<UnreliableDatagram> for Datagrams {}
impl sealed::Serves<UnreliableDatagram> for Datagrams {}

/// A shared receive queue of domain `B`: one stock of receives for many queue pairs. One word.
///
/// `A` says what it receives: [`Messages`] of connections, or [`Datagrams`], whose receives have room for a header.
/// Pairs that receive from it are made by [`reliable`](Self::reliable), [`unreliable`](Self::unreliable) and
/// [`datagram`](Self::datagram). They have no receive queue of their own: their transport is
/// [`OnShared`](crate::transport::OnShared), and [`QueuePair::post_receive`](crate::QueuePair::post_receive) does not
/// compile for them. Each receive completes on the completion queue of the pair that took it, which
/// [`Success::queue_pair`](crate::Success::queue_pair) names. A failed receive breaks that pair, not this queue.
///
/// Each pair keeps the queue alive: after a drop, the queue is destroyed, `ibv_destroy_srq(3)`, together with the last
/// of its pairs. Messages that arrived before still come out of the pollers. The buffers of the other receives are
/// dropped; [`destroy`](Self::destroy) gives them back.
///
/// When a pair fails, or an unreliable connection loses the end of a message, the receives in progress may never
/// complete. They count as in flight until the queue is destroyed, which gives them back.
///
/// # Rules
///
/// The compiler enforces each rule; programs that break them are in `ui-tests/queue`.
///
/// - H1: a pair on a shared receive queue has no receives of its own.
/// - H2: a shared receive queue, its memory, its pairs and their completion queues are of one domain.
/// - H3: one thread posts to a shared receive queue at a time.
/// - H4: datagrams come to receives that have room for their header.
///
/// # Examples
///
/// Two connections, and one stock of receives for both:
///
/// ```
/// use interlock::{Context, Limits};
/// use interlock::shared::SharedLimits;
/// use std::time::Duration;
/// interlock::domain! { struct Docs; }
///
/// let context = Context::open("soft0")?;
/// let port = context.active_port()?;
/// let domain = context.named_domain(Docs)?;
/// let (queue, mut poller) = domain.completion_queue(64)?;
///
/// let mut shared = domain.shared_receive_queue(&SharedLimits { receives: 8, ..SharedLimits::default() })?;
/// for buffer in domain.buffers(8, 64)? {
///     shared.post_receive(buffer)?;
/// }
/// let mut servers = Vec::new();
/// for greeting in [b"one", b"two"] {
///     let server = shared.reliable(&queue, &Limits::default())?.into_init(&port)?;
///     let client = domain.reliable(&queue, &Limits::default())?.into_init(&port)?;
///     let (to_server, to_client) = (server.endpoint(), client.endpoint());
///     servers.push(server.connect(&to_client)?);
///     let mut client = client.connect(&to_server)?;
///     let mut message = domain.buffer(64)?;
///     message.write(greeting)?;
///     client.post_send(message)?;
///     let received = loop {
///         let success = poller.wait(Duration::from_secs(1))?.check()?;
///         let queue_pair = success.queue_pair();
///         if let Ok(buffer) = success.into_received() {
///             assert_eq!(queue_pair, servers[servers.len() - 1].number());
///             break buffer;
///         }
///     };
///     assert_eq!(&received[..], greeting);
///     shared.post_receive(received)?;
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(alias = "ibv_srq")]
#[doc(alias = "SRQ")]
pub struct SharedReceiveQueue<B, A = Messages> {
    inner: Box<SharedPoster>,
    brand: Branded<B>,
    arrivals: PhantomData<fn() -> A>,
}
static_assertions::assert_impl_all!(SharedReceiveQueue<()>: Send, Sync);
static_assertions::assert_not_impl_any!(SharedReceiveQueue<()>: Clone, Copy);

/// The attributes of a shared receive queue that the device reports.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
#[doc(alias = "ibv_srq_attr")]
pub struct SharedAttributes {
    /// How many receives the queue holds: at least as many as requested.
    #[doc(alias = "max_wr")]
    pub receives: u32,
    /// The limit that is armed; 0 if none is armed, or it was reached.
    #[doc(alias = "srq_limit")]
    pub limit: u32,
}

/// A shared receive queue that was not destroyed. The error gives it back.
///
/// Some providers may leave such a queue half-destroyed. The program can then do nothing with the queue, which stays
/// allocated for the life of the process, together with the memory of its receives in flight.
#[derive(thiserror::Error)]
#[error(
    "the shared receive queue was not destroyed{} (see docs/failures.md#not-destroyed)",
    if source.errno() == libc::EBUSY { ": drop its queue pairs, and poll their completion queues until these are empty" } else { "" }
)]
pub struct DestroySharedError<B, A = Messages> {
    /// The queue.
    pub shared: SharedReceiveQueue<B, A>,
    /// Why: `EBUSY` while the queue has pairs, or completions that must be polled first; or what the device answered.
    pub source: VerbError,
}

impl<B, A> DestroySharedError<B, A> {
    /// The error without the queue, which is dropped. The result has no brand, so it can leave the closure of
    /// [`Context::with_domain`](crate::Context::with_domain).
    pub fn into_cause(self) -> VerbError {
        self.source
    }
}

impl<B, A> fmt::Debug for DestroySharedError<B, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DestroySharedError").field("source", &self.source).finish_non_exhaustive()
    }
}

impl<B: Brand, A: Arrivals> SharedReceiveQueue<B, A> {
    pub(crate) fn create(domain: &Arc<DomainInner>, limits: &SharedLimits) -> Result<Self, CreateError> {
        let (receives, slots) = (limits.receives, limits.completions());
        for asked in [receives, slots] {
            if asked == 0 || asked > MAX_SHARED {
                return Err(CreateError::Depth { asked, most: MAX_SHARED });
            }
        }
        CreateError::check_shared(domain.context.promises())?;
        let inner = Box::new(SharedPoster::create(domain, receives, slots)?);
        Ok(Self { inner, brand: PhantomData, arrivals: PhantomData })
    }

    pub(crate) fn domain(&self) -> DomainId {
        self.inner.core().domain.id()
    }

    /// The number of the queue in its domain, which the ids of its receives carry.
    pub(crate) fn number(&self) -> u32 {
        self.inner.core().ledger.number()
    }

    /// Posts a receive: `buffer` takes the next message that comes to a pair of this queue, up to its whole capacity.
    ///
    /// `ibv_post_srq_recv(3)`. The device owns the buffer until its completion.
    ///
    /// # Errors
    ///
    /// [`PostError`] gives the buffer back, except [`PostError::Uncertain`], after which the queue takes no more posts.
    /// [`RequestFlaw::NoRoomForHeader`]: a receive of [`Datagrams`] has at least 40 bytes.
    #[doc(alias = "ibv_post_srq_recv")]
    #[inline]
    pub fn post_receive(&mut self, buffer: Buffer<B>) -> Result<WorkId, PostError<Buffer<B>>> {
        let this = &mut *self.inner;
        if B::CHECKED && !buffer.descriptor().is_of(this.core().domain.id()) {
            return Err(PostError::Flawed { request: buffer, flaw: RequestFlaw::OtherDomain });
        }
        if A::HEADER_BYTES != 0 && buffer.capacity() < A::HEADER_BYTES {
            let flaw = RequestFlaw::NoRoomForHeader { len_bytes: buffer.capacity() as u64 };
            return Err(PostError::Flawed { request: buffer, flaw });
        }
        this.post(buffer)
    }

    /// Asks for one event, `IBV_EVENT_SRQ_LIMIT_REACHED`, when fewer than `receives` receives are left for messages.
    ///
    /// `ibv_modify_srq(3)`. The limit is at most what the queue holds; 0 disarms it. If fewer receives are posted
    /// already, the event comes at once or with the next message.
    ///
    /// # Errors
    ///
    /// `EINVAL`: more than the queue holds. Or what the device answered.
    #[doc(alias = "ibv_modify_srq")]
    #[doc(alias = "IBV_SRQ_LIMIT")]
    pub fn arm_limit(&self, receives: u32) -> Result<(), VerbError> {
        if receives > self.inner.poster.depth() {
            return Err(VerbError::new("ibv_modify_srq", libc::EINVAL));
        }
        let attributes = sys::ibv_srq_attr { srq_limit: receives, ..Default::default() };
        self.inner.core().modify(attributes, Mask::IBV_SRQ_LIMIT)
    }

    /// Changes how many receives may be in flight, up to the [limits](Self::limits) of the queue.
    ///
    /// `ibv_modify_srq(3)`. Not every device can.
    ///
    /// # Errors
    ///
    /// `EINVAL`: 0 receives, more than the limits or the device allow, fewer than are in flight, or fewer than the
    /// [limit](Self::arm_limit) that is armed. `EOPNOTSUPP`, `ENOSYS`: the device cannot resize. Then nothing changes.
    ///
    /// On any other error the resize failed halfway: later posts are refused as [`PostError::Broken`], and receives in
    /// flight complete. (Some providers free the old room before they have the new room.)
    #[doc(alias = "ibv_modify_srq")]
    #[doc(alias = "IBV_SRQ_MAX_WR")]
    pub fn resize(&mut self, receives: u32) -> Result<(), VerbError> {
        let refused = |errno| Err(VerbError::new("ibv_modify_srq", errno));
        let this = &mut *self.inner;
        // Make these checks before the verb is called. Some providers return `EINVAL` both when they refuse a size and
        // when a resize has failed halfway. So after the verb, the two cases look the same.
        let is_too_many = receives > this.poster.slab.slots();
        if this.is_broken() || receives == 0 || is_too_many || !fits(this.core(), receives)? {
            return refused(libc::EINVAL);
        }
        let before = this.poster.depth();
        if !this.poster.shrink(receives) {
            return refused(libc::EINVAL);
        }
        let attributes = sys::ibv_srq_attr { max_wr: receives, ..Default::default() };
        let changed = this.core().modify(attributes, Mask::IBV_SRQ_MAX_WR);
        this.poster.grow(if changed.is_ok() { receives } else { before });
        if changed.as_ref().is_err_and(|error| is_lost_after(this.core(), error)) {
            this.break_down();
        }
        changed
    }

    /// The attributes that the device reports.
    ///
    /// `ibv_query_srq(3)`.
    ///
    /// # Errors
    ///
    /// The device is gone.
    #[doc(alias = "ibv_query_srq")]
    pub fn query(&self) -> Result<SharedAttributes, VerbError> {
        let sys::ibv_srq_attr { max_wr, srq_limit, .. } = self.inner.core().query()?;
        Ok(SharedAttributes { receives: max_wr, limit: srq_limit })
    }

    /// Destroys the queue, and returns the buffers of all receives that did not complete.
    ///
    /// `ibv_destroy_srq(3)`. Poll before: a message that was not polled yet loses its completion, and its buffer is one
    /// of those that come back. (If the provider may write to memory during polls, this is refused until the completion
    /// queues were seen empty.)
    ///
    /// # Errors
    ///
    /// `EBUSY` while a queue pair receives from the queue, or while a poller has still to destroy a dropped pair. Or
    /// the device refused. The queue comes back.
    #[doc(alias = "ibv_destroy_srq")]
    pub fn destroy(mut self) -> Result<Vec<Buffer<B>>, DestroySharedError<B, A>> {
        match self.inner.destroy() {
            Ok(()) => Ok(self.inner.core().ledger.take_all().filter_map(Entry::into_buffer).collect()),
            Err(source) => Err(DestroySharedError { shared: self, source }),
        }
    }
}

impl<B, A> SharedReceiveQueue<B, A> {
    /// The part of the queue that its pairs keep alive.
    pub(super) fn core(&self) -> &Arc<SharedCore> {
        self.inner.core()
    }

    /// The id that asynchronous events of this queue carry.
    pub fn id(&self) -> SharedReceiveQueueId {
        self.inner.core().id
    }

    /// How many receives the queue holds now, and how many a [`resize`](Self::resize) can set.
    pub fn limits(&self) -> SharedLimits {
        let poster = &self.inner.poster;
        SharedLimits { receives: poster.depth(), grows_to: poster.slab.slots() }
    }

    /// How many receives are in flight: posted, and not yet out of a poller. The call takes longer for a larger queue.
    pub fn in_flight(&self) -> u32 {
        self.inner.core().ledger.in_flight()
    }
}

/// Whether the device allows `receives` receives, and the armed limit is at most that number.
fn fits(core: &SharedCore, receives: u32) -> Result<bool, VerbError> {
    core.alive("ibv_query_srq")?;
    let most = core.domain.context.limits().max_srq_wr;
    Ok(i64::from(receives) <= i64::from(most) && core.query()?.srq_limit <= receives)
}

/// Whether a resize that failed with this error may have lost the queue's room. Some providers answer `EINVAL` when
/// they cannot resize at all; soft-RoCE answers it also after a failure halfway.
fn is_lost_after(core: &SharedCore, error: &VerbError) -> bool {
    match error.errno() {
        libc::EOPNOTSUPP | libc::ENOSYS => false,
        libc::EINVAL => core.domain.context.promises().quirks.shared_resize_loses,
        _ => true,
    }
}

impl<B, A> fmt::Debug for SharedReceiveQueue<B, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedReceiveQueue")
            .field("id", &self.id())
            .field("limits", &self.limits())
            .finish_non_exhaustive()
    }
}

#[cfg(all(test, feature = "soft", not(loom)))]
mod tests {
    use super::*;
    use crate::Context;
    use crate::soft::Fabric;

    #[test]
    fn a_queue_that_has_ended_takes_no_more_posts() {
        let domain = Context::open_on(&Fabric::new(), "soft0").unwrap().checked_domain().unwrap();
        let mut shared = domain.shared_receive_queue(&SharedLimits::default()).unwrap();
        shared.post_receive(domain.buffer(8).unwrap()).unwrap();
        shared.inner.destroy().unwrap();
        let refused = shared.post_receive(domain.buffer(8).unwrap()).unwrap_err();
        assert!(matches!(refused, PostError::Broken { .. }), "{refused:?}");
        // The first receive comes back. The refused receive took no slot.
        let left = shared.inner.core().ledger.take_all().filter_map(Entry::into_buffer::<crate::Checked>).count();
        assert_eq!((left, shared.in_flight()), (1, 0));
    }
}
