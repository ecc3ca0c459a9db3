//! How queue pairs are made.

use super::attributes::Limits;
use super::error::CreateError;
use super::local_port::LocalPort;
use super::pair::QueuePair;
use super::pair_end::turn_for;
use super::places::{PairLedgers, lease};
use super::session;
use super::shared::{Arrivals, Serves, SharedReceiveQueue};
use super::state::Reset;
use super::transport::{
    OnShared, OwnReceives, ReliableConnection, Transport, UnreliableConnection, UnreliableDatagram, code,
};
use super::untyped::{PairCore, UntypedPair};
use crate::completion::{CompletionQueue, CqInner};
use crate::device::iwarp::NotOnIwarp;
use crate::domain::{Brand, DomainInner, ProtectionDomain};
use crate::inflight::ledger::{MAX_DEPTH, Origin};
use crate::inflight::{PairAttributes, PairStatus, PostLimits, RawPair, SharedCore, Terms};
use crate::provider::reviewed::{Promises, Teardown};
use crate::sys;
use crate::trace;
use crate::types::{Psn, Qpn};
use crate::verb_error::{VerbError, note_leak};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

/// How a domain makes queue pairs.
impl<B: Brand> ProtectionDomain<B> {
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

    /// As [`reliable`](Self::reliable), with one completion queue for sends and another for receives.
    ///
    /// # Errors
    ///
    /// As [`reliable`](Self::reliable); [`CreateError::TwoQueues`] if
    /// [`pairs_may_have_two_queues`](crate::device::Promises::pairs_may_have_two_queues) is false.
    pub fn reliable_on(
        &self,
        sends: &CompletionQueue<B>,
        receives: &CompletionQueue<B>,
        limits: &Limits,
    ) -> Result<QueuePair<B, Reset, ReliableConnection>, CreateError> {
        QueuePair::create(&self.inner, &sends.inner, &receives.inner, limits)
    }

    /// A queue pair for unreliable connections: as [`reliable`](Self::reliable).
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

    /// As [`unreliable`](Self::unreliable), with one completion queue for sends and another for receives.
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

    /// A queue pair for unreliable datagrams: as [`reliable`](Self::reliable).
    ///
    /// # Errors
    ///
    /// As [`reliable`](Self::reliable).
    ///
    /// # Examples
    ///
    /// ```
    /// use interlock::{Context, Limits, Work};
    /// use interlock::number::Qkey;
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
    ///     if let Work::Datagram(datagram) = success.into_work() {
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

    /// As [`datagram`](Self::datagram), with one completion queue for sends and another for receives.
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
}

/// How a shared receive queue makes the queue pairs that receive from it.
impl<B: Brand, A: Arrivals> SharedReceiveQueue<B, A> {
    /// A queue pair for reliable connections that receives from this queue, and whose sends and receives complete on
    /// `queue`.
    ///
    /// `ibv_create_qp(3)`. As [`ProtectionDomain::reliable`](crate::ProtectionDomain::reliable), but `limits.receives`
    /// is ignored. The first pair on a completion queue leases room there for all receives of this queue
    /// ([`SharedLimits::completions`](crate::shared::SharedLimits::completions)).
    ///
    /// # Errors
    ///
    /// [`CreateError`]: limits that the device does not have, or no room left on the completion queue.
    #[doc(alias = "ibv_create_qp")]
    pub fn reliable(
        &self,
        queue: &CompletionQueue<B>,
        limits: &Limits,
    ) -> Result<QueuePair<B, Reset, OnShared<ReliableConnection>>, CreateError>
    where
        A: Serves<ReliableConnection>,
    {
        self.reliable_on(queue, queue, limits)
    }

    /// As [`reliable`](Self::reliable), with one completion queue for sends and another for receives.
    ///
    /// # Errors
    ///
    /// As [`reliable`](Self::reliable); [`CreateError::TwoQueues`] if
    /// [`pairs_may_have_two_queues`](crate::device::Promises::pairs_may_have_two_queues) is false.
    pub fn reliable_on(
        &self,
        sends: &CompletionQueue<B>,
        receives: &CompletionQueue<B>,
        limits: &Limits,
    ) -> Result<QueuePair<B, Reset, OnShared<ReliableConnection>>, CreateError>
    where
        A: Serves<ReliableConnection>,
    {
        QueuePair::create_on_shared(self.core(), &sends.inner, &receives.inner, limits)
    }

    /// A queue pair for unreliable connections: as [`reliable`](Self::reliable).
    ///
    /// # Errors
    ///
    /// As [`reliable`](Self::reliable).
    #[doc(alias = "ibv_create_qp")]
    pub fn unreliable(
        &self,
        queue: &CompletionQueue<B>,
        limits: &Limits,
    ) -> Result<QueuePair<B, Reset, OnShared<UnreliableConnection>>, CreateError>
    where
        A: Serves<UnreliableConnection>,
    {
        self.unreliable_on(queue, queue, limits)
    }

    /// As [`unreliable`](Self::unreliable), with one completion queue for sends and another for receives.
    ///
    /// # Errors
    ///
    /// As [`reliable`](Self::reliable).
    pub fn unreliable_on(
        &self,
        sends: &CompletionQueue<B>,
        receives: &CompletionQueue<B>,
        limits: &Limits,
    ) -> Result<QueuePair<B, Reset, OnShared<UnreliableConnection>>, CreateError>
    where
        A: Serves<UnreliableConnection>,
    {
        QueuePair::create_on_shared(self.core(), &sends.inner, &receives.inner, limits)
    }

    /// A queue pair for datagrams that receives from this queue, and whose sends and receives complete on `queue`: as
    /// [`reliable`](Self::reliable).
    ///
    /// `ibv_create_qp(3)`. Each message is a [`Work::Datagram`](crate::Work::Datagram). If a datagram is longer than
    /// the receive, some devices lose it, and others fail the pair that took the receive.
    ///
    /// # Errors
    ///
    /// As [`reliable`](Self::reliable).
    #[doc(alias = "ibv_create_qp")]
    pub fn datagram(
        &self,
        queue: &CompletionQueue<B>,
        limits: &Limits,
    ) -> Result<QueuePair<B, Reset, OnShared<UnreliableDatagram>>, CreateError>
    where
        A: Serves<UnreliableDatagram>,
    {
        self.datagram_on(queue, queue, limits)
    }

    /// As [`datagram`](Self::datagram), with one completion queue for sends and another for receives.
    ///
    /// # Errors
    ///
    /// As [`reliable`](Self::reliable).
    pub fn datagram_on(
        &self,
        sends: &CompletionQueue<B>,
        receives: &CompletionQueue<B>,
        limits: &Limits,
    ) -> Result<QueuePair<B, Reset, OnShared<UnreliableDatagram>>, CreateError>
    where
        A: Serves<UnreliableDatagram>,
    {
        QueuePair::create_on_shared(self.core(), &sends.inner, &receives.inner, limits)
    }
}

impl<B: Brand, T: Transport> QueuePair<B, Reset, T> {
    pub(crate) fn create(
        domain: &Arc<DomainInner>,
        sends: &Arc<CqInner>,
        receives: &Arc<CqInner>,
        limits: &Limits,
    ) -> Result<Self, CreateError> {
        Ok(Self::assume_state(UntypedPair::create::<B, T>(domain, sends, receives, limits, None)?))
    }
}

impl<B: Brand, T: OwnReceives> QueuePair<B, Reset, OnShared<T>> {
    pub(super) fn create_on_shared(
        shared: &Arc<SharedCore>,
        sends: &Arc<CqInner>,
        receives: &Arc<CqInner>,
        limits: &Limits,
    ) -> Result<Self, CreateError> {
        let limits = Limits { receives: 0, ..*limits };
        Ok(Self::assume_state(UntypedPair::create::<B, T>(&shared.domain, sends, receives, &limits, Some(shared))?))
    }
}

impl UntypedPair {
    pub(super) fn create<B: Brand, T: Transport>(
        domain: &Arc<DomainInner>,
        sends: &Arc<CqInner>,
        receives: &Arc<CqInner>,
        limits: &Limits,
        shared: Option<&Arc<SharedCore>>,
    ) -> Result<Self, CreateError> {
        for queue in [sends, receives] {
            if B::CHECKED && queue.domain.id() != domain.id() {
                return Err(CreateError::OtherDomain { queue: queue.id });
            }
        }
        for (asked, least) in [(limits.sends, 1), (limits.receives, u32::from(shared.is_none()))] {
            if asked < least || asked > MAX_DEPTH {
                return Err(CreateError::Depth { asked, most: MAX_DEPTH });
            }
        }
        if domain.context.is_iwarp() {
            if domain.context.promises().quirks.not_on_iwarp {
                return Err(CreateError::NotOnIwarp(NotOnIwarp::QueuePairs));
            }
            if code::<T>() != code::<ReliableConnection>() {
                return Err(CreateError::NotOnIwarp(NotOnIwarp::OtherTransports));
            }
        }
        let functions = domain.context.functions();
        if functions.post_send.is_none() || functions.post_recv.is_none() {
            return Err(VerbError::new("ibv_post_send", libc::EOPNOTSUPP).into());
        }
        let promises = domain.context.promises();
        if limits.posting.is_in_sessions() {
            session::check_device(&domain.context, limits)?;
        }
        if promises.teardown == Teardown::Polled && !Arc::ptr_eq(sends, receives) {
            return Err(CreateError::TwoQueues { provider: promises.name });
        }
        if let Some(shared) = shared {
            shared.alive("ibv_create_qp")?;
            CreateError::check_shared(promises)?;
        }
        let places = lease(sends, receives, limits, shared)?;
        let asked = PairAttributes {
            sends: &sends.raw,
            receives: &receives.raw,
            shared: shared.map(|shared| &**shared),
            cap: sys::ibv_qp_cap {
                max_send_wr: limits.sends,
                max_recv_wr: limits.receives,
                max_send_sge: limits.elements.max(1),
                max_recv_sge: if shared.is_none() { limits.elements.max(1) } else { 0 },
                max_inline_data: limits.inline_bytes,
            },
            kind: code::<T>(),
            posting: limits.posting,
        };
        let make = || RawPair::create(domain, &asked).map_err(|error| session::explain(error, limits.posting));
        let is_taken = |number| shared.is_some() && receives.has_number(number);
        let (raw, granted) = match make_with_free_number(domain, make, is_taken) {
            Ok(made) => made,
            Err(error) => {
                sends.release(places.send, true);
                receives.release(places.receive, true);
                return Err(error);
            }
        };
        // Some providers grant fewer inline bytes than requested.
        let is_datagram = code::<T>() == sys::ibv_qp_type::IBV_QPT_UD;
        let inline_bytes = promises.inline_bytes(limits.inline_bytes.min(granted.max_inline_data), is_datagram);
        let limits = &Limits { inline_bytes, ..*limits };
        let number = raw.number();
        let is_number = Qpn::new(number).is_ok();
        let origin = Origin::new(number, is_datagram);
        let ledgers = PairLedgers::new(&domain.ledgers, &places, limits, origin, promises.sends_may_be_unsignalled());
        let status = PairStatus::new(promises, number, code::<T>(), domain.id(), ledgers.detours());
        raw.list_for_events();
        let posters = ledgers.attach(sends, receives, &status);
        let mut core = PairCore {
            raw,
            places: Some(places),
            status: Arc::clone(&status),
            unsettled: Arc::new(AtomicU32::new(0)),
            limits: *limits,
            local: LocalPort { psn: Psn::random(), ..LocalPort::UNKNOWN },
            send_queue: Arc::clone(sends),
            receive_queue: Arc::clone(receives),
            shared: shared.cloned(),
            domain: Arc::clone(domain),
        };
        // From here on, an early return drops the core, which destroys the pair or leaves it to its poller.
        if limits.posting.is_in_sessions() {
            if core.raw.posting() != limits.posting {
                // The pair lacks a function of `ibv_wr_*` that its requests would call, so it cannot post in sessions.
                return Err(session::unavailable());
            }
            status.send_in_sessions();
        }
        let asked = &asked.cap;
        let fits_sends = granted.max_send_wr >= asked.max_send_wr && granted.max_send_sge >= asked.max_send_sge;
        let fits_receives = granted.max_recv_wr >= asked.max_recv_wr && granted.max_recv_sge >= asked.max_recv_sge;
        if !(is_number && fits_sends && (fits_receives || shared.is_some())) {
            return Err(VerbError::new("ibv_create_qp", libc::ENOMEM).into());
        }
        let mut limits = post_limits(limits, promises, domain.context.is_iwarp());
        if limits.elements > 1 && domain.context.limits().max_sge_rd == 1 {
            limits.flags |= PostLimits::ONE_PER_READ;
        }
        let terms = Terms { limits, status };
        let (send, receive) = core.raw.queues(posters.into(), &terms)?;
        trace::pair_made(core.qpn().value(), std::any::type_name::<T>());
        Ok(Self { send, core: Arc::new(core), receive })
    }
}

/// The limits against which each post is checked.
pub(super) fn post_limits(limits: &Limits, promises: &Promises, is_iwarp: bool) -> PostLimits {
    let Limits { inline_bytes, elements, posting, .. } = *limits;
    let short = |limit: u32| limit.min(u16::MAX.into()) as u16;
    PostLimits {
        inline_bytes: short(inline_bytes),
        datagram_bytes: 0,
        elements: short(elements.max(1)),
        posting,
        flags: (if promises.windows.are_barriers() { PostLimits::BARRIER } else { 0 })
            | (if is_iwarp { PostLimits::IWARP } else { 0 }),
    }
    .with_reads(true)
}

/// A pair that a provider has made, with what it granted.
type Made = (RawPair, sys::ibv_qp_cap);

/// The most pairs that are created to find one whose number is not taken.
const TRIES: usize = 64;

/// Creates a pair whose number is not taken. Completions of shared receives name their pair only by this number, and
/// completions of an earlier pair with the same number may still be unpolled. A device may reuse a number at once after
/// destroy, but never while a pair has it. So each pair with a taken number is kept until a free number is found.
fn make_with_free_number(
    domain: &DomainInner,
    make: impl Fn() -> Result<Made, CreateError>,
    is_taken: impl Fn(u32) -> bool,
) -> Result<Made, CreateError> {
    let mut others = Vec::new();
    let found = loop {
        let (raw, granted) = match make() {
            Ok(made) => made,
            Err(error) => break Err(error),
        };
        if !is_taken(raw.number()) {
            break Ok((raw, granted));
        }
        others.push(raw);
        if others.len() == TRIES {
            break Err(VerbError::new("ibv_create_qp", libc::EAGAIN).into());
        }
    };
    for mut raw in others {
        let _turn = turn_for(domain, &raw);
        if let Err(error) = raw.destroy(None) {
            note_leak("a queue pair", error);
        }
    }
    found
}
