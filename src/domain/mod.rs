//! Protection domains, and the brands that name them.
#![allow(unsafe_code, reason = "owns the raw protection domain")]

pub(crate) mod brand;
mod numbers;

pub use brand::{Brand, Checked, Named, Scoped};
pub(crate) use numbers::{Number, Numbers};

use crate::completion::{CompletionChannel, CompletionQueue, CompletionQueueError, CompletionQueueOptions, Poller};
use crate::device::{Context, ContextInner};
use crate::error::{VerbError, note_leak};
use crate::memory::{Access, Buffer, LocalWrite, Memory, MemoryRegion, Pages, RegisterError, RegisterFailure};
use crate::queue::ledger::Pool;
use crate::queue::{
    CreateError, Datagrams, Limits, QueuePair, ReliableConnection, Reset, SharedLimits, SharedReceiveQueue,
    UnreliableConnection, UnreliableDatagram,
};
use crate::sys;
use brand::{Branded, Claim};
use std::{fmt, marker::PhantomData, mem, ptr, ptr::NonNull, sync::Arc};

/// A protection domain: memory, queue pairs and completion queues that may be used together.
///
/// A handle: clones name the same domain, which goes away with the last object that bears its brand.
#[doc(alias = "ibv_pd")]
#[doc(alias = "ibv_dealloc_pd")]
pub struct ProtectionDomain<B> {
    pub(crate) inner: Arc<DomainInner>,
    brand: Branded<B>,
}

pub(crate) struct DomainInner {
    /// # Invariants
    ///
    /// 0. Came from the context's provider, and is alive until this is dropped.
    pub(crate) raw: NonNull<sys::ibv_pd>,
    /// The name, freed only after the domain is.
    claim: Option<Claim>,
    /// Of its shared receive queues.
    pub(crate) numbers: Arc<Numbers>,
    /// The memory of its ledgers.
    pub(crate) ledgers: Arc<Pool>,
    pub(crate) context: Arc<ContextInner>,
}

// SAFETY: verbs on one protection domain may be called from any thread (see `ContextInner`).
unsafe impl Send for DomainInner {}
// SAFETY: as above.
unsafe impl Sync for DomainInner {}

/// Which domain, for as long as an object of it is around.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(unnameable_types, reason = "in a sealed trait")]
pub struct DomainId(usize);

#[cfg(all(test, loom))]
impl DomainId {
    pub(crate) const NONE: Self = Self(0);
}

impl DomainInner {
    /// What tells it from other domains.
    #[inline(always)]
    pub(crate) fn id(&self) -> DomainId {
        DomainId(ptr::from_ref(self).addr())
    }

    fn new(context: &Arc<ContextInner>, claim: Option<Claim>) -> Result<Arc<Self>, VerbError> {
        // SAFETY: the context is open as long as we hold it.
        let raw = unsafe { context.provider.alloc_pd(context.raw) }?;
        Ok(Arc::new(Self {
            raw,
            claim,
            numbers: Arc::default(),
            ledgers: Arc::default(),
            context: Arc::clone(context),
        }))
    }
}

impl Drop for DomainInner {
    fn drop(&mut self) {
        // SAFETY: alive (0); all that was made in it holds a reference to this, so nothing is left.
        if let Err(error) = unsafe { self.context.provider.dealloc_pd(self.raw) } {
            // The device still knows the domain: its name stays taken and its device open.
            mem::forget(self.claim.take());
            mem::forget(Arc::clone(&self.context));
            note_leak("a protection domain", error);
        }
    }
}

/// Why there is no domain of that name.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NamedDomainError {
    /// Another domain of this process has it, or an object of one: a name stands for one domain at a time.
    #[error("the domain name `{name}` is taken until every object of the domain that has it is dropped")]
    Taken {
        /// The name.
        name: &'static str,
    },
    /// The device answered with an error.
    #[error(transparent)]
    Verb(#[from] VerbError),
}

impl Context {
    /// A protection domain with a name declared by [`domain!`](crate::domain!).
    ///
    /// `ibv_alloc_pd(3)`. The name is free again once the last object of the domain is dropped.
    ///
    /// # Errors
    ///
    /// [`NamedDomainError::Taken`], or what the device answered.
    #[doc(alias = "ibv_alloc_pd")]
    pub fn named_domain<N: Named>(&self, name: N) -> Result<ProtectionDomain<N>, NamedDomainError> {
        let _ = name;
        let claim = Claim::take::<N>().ok_or(NamedDomainError::Taken { name: N::NAME })?;
        Ok(ProtectionDomain { inner: DomainInner::new(&self.0, Some(claim))?, brand: PhantomData })
    }

    /// A protection domain whose objects are compared at run time: see [`Checked`]. There may be any number of them.
    ///
    /// `ibv_alloc_pd(3)`.
    ///
    /// # Errors
    ///
    /// What the device answered.
    #[doc(alias = "ibv_alloc_pd")]
    pub fn checked_domain(&self) -> Result<ProtectionDomain<Checked>, VerbError> {
        Ok(ProtectionDomain { inner: DomainInner::new(&self.0, None)?, brand: PhantomData })
    }

    /// Lends `f` a new domain. Its objects fit with no other domain's, and none of them leaves `f`.
    ///
    /// `ibv_alloc_pd(3)`.
    ///
    /// # Errors
    ///
    /// What the device answered.
    ///
    /// # Examples
    ///
    /// An error that holds an object of the domain cannot leave either: each has a method `into_cause` for what can.
    ///
    /// ```
    /// use interlock::{Context, Limits};
    /// use std::{error::Error, time::Duration};
    ///
    /// let context = Context::open("soft0")?;
    /// let port = context.active_port()?;
    /// context.with_domain(|domain| -> Result<(), Box<dyn Error>> {
    ///     let (queue, mut poller) = domain.completion_queue(Limits::default().completions())?;
    ///     let pair = domain.reliable(&queue, &Limits::default())?.into_init(&port).map_err(|error| error.into_cause())?;
    ///     let myself = pair.endpoint();
    ///     let mut pair = pair.connect(&myself).map_err(|error| error.into_cause())?;
    ///     pair.post_receive(domain.buffer(8)?).map_err(|error| error.into_cause())?;
    ///     pair.post_send(domain.buffer(8)?).map_err(|error| error.into_cause())?;
    ///     for _ in 0..2 {
    ///         poller.wait(Duration::from_secs(1))?.check().map_err(|failure| failure.into_cause())?;
    ///     }
    ///     Ok(())
    /// })??;
    /// # Ok::<(), Box<dyn Error>>(())
    /// ```
    pub fn with_domain<R>(&self, f: impl for<'pd> FnOnce(ProtectionDomain<Scoped<'pd>>) -> R) -> Result<R, VerbError> {
        Ok(f(ProtectionDomain { inner: DomainInner::new(&self.0, None)?, brand: PhantomData }))
    }
}

impl<B: Brand> ProtectionDomain<B> {
    /// The device that it belongs to.
    pub fn context(&self) -> Context {
        Context(Arc::clone(&self.inner.context))
    }

    /// Registers memory with the rights `A`, and owns it until it is deregistered.
    ///
    /// `ibv_reg_mr(3)`. Pins the pages. `memory` is a `Box<[T]>`, a `Vec<T>` (its length, not its capacity), a
    /// `&'static mut [T]` or [`Pages`], where any bytes are a `T` and a `T` has no padding; or a
    /// [`Foreign`](crate::Foreign) owner of another kind. Rights that let a peer in
    /// ask for memory that is 8-byte aligned and a multiple of 8 bytes long, as [`Pages`] and `Box<[u64]>` are.
    /// Memory that is only borrowed is lent in a [`scope`](crate::scope); what others write too goes to
    /// [`register_opaque`](Self::register_opaque).
    ///
    /// # Errors
    ///
    /// [`RegisterError`] gives the memory back, with the reason: empty, not aligned for the rights, or what the
    /// device answered ([`LockedMemoryLimit`](crate::LockedMemoryLimit) where the process may not lock so much).
    ///
    /// # Examples
    ///
    /// ```
    /// use interlock::{Context, LocalWrite, RemoteRead};
    /// interlock::domain! { struct Docs; }
    /// let domain = Context::open("soft0")?.named_domain(Docs)?;
    /// let private = domain.register::<LocalWrite, _>(vec![0_u8; 4096])?;
    /// let readable = domain.register::<RemoteRead, _>(vec![7_u64; 512])?;
    /// let bytes: Vec<u8> = private.deregister()?;
    /// assert_eq!(bytes.len(), 4096);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "ibv_reg_mr")]
    pub fn register<A: Access, M: Memory>(&self, memory: M) -> Result<MemoryRegion<B, A, M>, RegisterError<M>> {
        MemoryRegion::register(&self.inner, memory)
    }

    /// A buffer of zeroed memory of its own, private to this program and its device. All of it counts as filled.
    ///
    /// Takes a registration and at least a page each: for many buffers use [`buffers`](Self::buffers).
    ///
    /// # Errors
    ///
    /// As [`register`](Self::register).
    pub fn buffer(&self, len_bytes: usize) -> Result<Buffer<B>, RegisterFailure> {
        Ok(self.register::<LocalWrite, _>(Pages::new(len_bytes)?)?.split().1)
    }

    /// `count` buffers of `len_bytes` each, zeroed and filled, out of one registration.
    ///
    /// # Errors
    ///
    /// As [`register`](Self::register).
    pub fn buffers(&self, count: usize, len_bytes: usize) -> Result<Vec<Buffer<B>>, RegisterFailure> {
        // A product that overflows is more than there is, which the allocation then says.
        Ok(self.buffer(len_bytes.saturating_mul(count))?.chunks(len_bytes))
    }

    /// A completion queue for `entries` completions, and the one poller of it.
    ///
    /// `ibv_create_cq(3)`. Each queue pair leases room for the full depth of its work queues
    /// ([`Limits::completions`]), so it never overflows.
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
        crate::completion::create(&self.inner, entries, options)
    }

    /// A completion channel, from which completion queues are made that can be waited for together.
    ///
    /// `ibv_create_comp_channel(3)`. Otherwise each queue has one for itself.
    ///
    /// # Errors
    ///
    /// `EMFILE`, `ENFILE`: no more descriptors.
    #[doc(alias = "ibv_create_comp_channel")]
    pub fn completion_channel(&self) -> Result<CompletionChannel<B>, VerbError> {
        crate::completion::create_channel(&self.inner)
    }

    /// A queue pair for reliable connections, whose sends and receives complete on `queue`.
    ///
    /// `ibv_create_qp(3)`. It starts in Reset. `Limits::default()` is 4 sends and 4 receives in flight.
    ///
    /// # Errors
    ///
    /// [`CreateError`]: limits that the device does not have, or no room left on the completion queue.
    #[doc(alias = "ibv_create_qp")]
    #[doc(alias = "IBV_QPT_RC")]
    pub fn reliable(
        &self,
        queue: &CompletionQueue<B>,
        limits: &Limits,
    ) -> Result<QueuePair<B, Reset, ReliableConnection>, CreateError> {
        self.reliable_on(queue, queue, limits)
    }

    /// As [`reliable`](Self::reliable), with sends and receives completing on different queues.
    ///
    /// # Errors
    ///
    /// As [`reliable`](Self::reliable); [`CreateError::TwoQueues`] where not
    /// [`pairs_may_have_two_queues`](crate::Promises::pairs_may_have_two_queues).
    pub fn reliable_on(
        &self,
        sends: &CompletionQueue<B>,
        receives: &CompletionQueue<B>,
        limits: &Limits,
    ) -> Result<QueuePair<B, Reset, ReliableConnection>, CreateError> {
        QueuePair::create(&self.inner, &sends.inner, &receives.inner, limits)
    }

    /// A queue pair for unreliable connections, likewise.
    ///
    /// # Errors
    ///
    /// As [`reliable`](Self::reliable).
    #[doc(alias = "ibv_create_qp")]
    #[doc(alias = "IBV_QPT_UC")]
    pub fn unreliable(
        &self,
        queue: &CompletionQueue<B>,
        limits: &Limits,
    ) -> Result<QueuePair<B, Reset, UnreliableConnection>, CreateError> {
        self.unreliable_on(queue, queue, limits)
    }

    /// As [`unreliable`](Self::unreliable), with sends and receives completing on different queues.
    ///
    /// # Errors
    ///
    /// As [`reliable`](Self::reliable).
    pub fn unreliable_on(
        &self,
        sends: &CompletionQueue<B>,
        receives: &CompletionQueue<B>,
        limits: &Limits,
    ) -> Result<QueuePair<B, Reset, UnreliableConnection>, CreateError> {
        QueuePair::create(&self.inner, &sends.inner, &receives.inner, limits)
    }

    /// A queue pair for unreliable datagrams, likewise.
    ///
    /// # Errors
    ///
    /// As [`reliable`](Self::reliable).
    ///
    /// # Examples
    ///
    /// ```
    /// use interlock::{Context, Limits, Qkey, Work};
    /// use std::time::Duration;
    /// interlock::domain! { struct Docs; }
    ///
    /// let domain = Context::open("soft0")?.named_domain(Docs)?;
    /// let port = domain.context().active_port()?;
    /// let (queue, mut poller) = domain.completion_queue(Limits::default().completions())?;
    /// let mut pair = domain.datagram(&queue, &Limits::default())?.into_init(&port)?.open()?;
    /// // 40 bytes of each receive are for the header.
    /// pair.post_receive(domain.buffer(40 + 64)?)?;
    /// let myself = domain.recipient(&port, &pair.endpoint(), Qkey::USUAL)?;
    /// let mut greeting = domain.buffer(64)?;
    /// greeting.write(b"hello")?;
    /// pair.post_send_to(greeting, &myself)?;
    /// loop {
    ///     let success = poller.wait(Duration::from_secs(1))?.check()?;
    ///     if let Work::Datagram(datagram) = success.work() {
    ///         assert_eq!((datagram.message(), datagram.sender), (&b"hello"[..], pair.number()));
    ///         break;
    ///     }
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "ibv_create_qp")]
    #[doc(alias = "IBV_QPT_UD")]
    pub fn datagram(
        &self,
        queue: &CompletionQueue<B>,
        limits: &Limits,
    ) -> Result<QueuePair<B, Reset, UnreliableDatagram>, CreateError> {
        self.datagram_on(queue, queue, limits)
    }

    /// As [`datagram`](Self::datagram), with sends and receives completing on different queues.
    ///
    /// # Errors
    ///
    /// As [`reliable`](Self::reliable).
    pub fn datagram_on(
        &self,
        sends: &CompletionQueue<B>,
        receives: &CompletionQueue<B>,
        limits: &Limits,
    ) -> Result<QueuePair<B, Reset, UnreliableDatagram>, CreateError> {
        QueuePair::create(&self.inner, &sends.inner, &receives.inner, limits)
    }

    /// A shared receive queue: receives for whichever of many queue pairs a message comes to.
    ///
    /// `ibv_create_srq(3)`. Its own methods make the pairs that receive from it.
    ///
    /// # Errors
    ///
    /// [`CreateError`]: limits that the device does not have; [`NoSharedReceives`](CreateError::NoSharedReceives) where not
    /// [`shared_receive_queues`](crate::Promises::shared_receive_queues).
    #[doc(alias = "ibv_create_srq")]
    pub fn shared_receive_queue(&self, limits: &SharedLimits) -> Result<SharedReceiveQueue<B>, CreateError> {
        SharedReceiveQueue::create(&self.inner, limits)
    }

    /// A shared receive queue for datagrams: each of its receives has room for their header of 40 bytes.
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
    /// use interlock::{Context, Limits, Qkey, SharedLimits, Work};
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
    ///     if let Work::Datagram(datagram) = success.work() {
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

impl<B> Clone for ProtectionDomain<B> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner), brand: PhantomData }
    }
}

impl<B> fmt::Debug for ProtectionDomain<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let brand = std::any::type_name::<B>();
        f.debug_struct("ProtectionDomain").field("brand", &brand).finish_non_exhaustive()
    }
}
