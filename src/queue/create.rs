//! How queue pairs are made.

use super::attributes::Limits;
use super::error::CreateError;
use super::local_port::LocalPort;
use super::pair::QueuePair;
use super::session;
use super::state::Reset;
use super::transport::{ReliableConnection, Transport, UnreliableConnection, UnreliableDatagram, code};
use super::untyped::{PairCore, PairLedgers, Places, UntypedPair, turn_for};
use crate::completion::{CompletionQueue, CqInner, NoRoom};
use crate::device::iwarp::NotOnIwarp;
use crate::domain::{Brand, DomainInner, ProtectionDomain};
use crate::inflight::ledger::{MAX_DEPTH, Origin};
use crate::inflight::{PairAttributes, PairStatus, PostLimits, QueueKind, RawPair, SharedCore, Terms};
use crate::provider::reviewed::{Promises, Teardown};
use crate::sys;
use crate::types::{Psn, Qpn};
use crate::verb_error::{VerbError, note_leak};
use std::ptr;
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
        if domain.context.is_iwarp() && code::<T>() != code::<ReliableConnection>() {
            return Err(CreateError::NotOnIwarp(NotOnIwarp::OtherTransports));
        }
        let functions = domain.context.functions();
        if functions.post_send.is_none() || functions.post_recv.is_none() {
            return Err(VerbError::new("ibv_post_send", libc::EOPNOTSUPP).into());
        }
        let row = domain.context.promises();
        if limits.posting.is_in_sessions() {
            session::check_device(&domain.context, limits)?;
        }
        if row.teardown == Teardown::Polled && !Arc::ptr_eq(sends, receives) {
            return Err(CreateError::TwoQueues { provider: row.name });
        }
        if let Some(shared) = shared {
            shared.alive("ibv_create_qp")?;
            CreateError::check_shared(row)?;
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
        // Some providers grant fewer inline bytes than were asked for.
        let limits = &Limits { inline_bytes: limits.inline_bytes.min(granted.max_inline_data), ..*limits };
        let number = raw.number();
        let is_number = Qpn::new(number).is_ok();
        let origin = Origin::new(number, code::<T>() == sys::ibv_qp_type::IBV_QPT_UD);
        let ledgers = PairLedgers::new(&domain.ledgers, &places, limits, origin, row.sends_may_be_unsignalled());
        let status = PairStatus::new(row, number, code::<T>(), domain.id(), ledgers.detours());
        raw.note();
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
        // From here on, an early return drops the core, which destroys the pair.
        if limits.posting.is_in_sessions() {
            if core.raw.posting() != limits.posting {
                // The provider made a pair that has no `ibv_wr_*` functions.
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
        let terms = Terms { limits: post_limits(limits, row, domain.context.is_iwarp()), status };
        let (send, receive) = core.raw.queues(posters.into(), &terms)?;
        Ok(Self { send, core: Arc::new(core), receive })
    }
}

/// The limits against which each post is checked.
pub(super) fn post_limits(limits: &Limits, row: &Promises, is_iwarp: bool) -> PostLimits {
    let Limits { inline_bytes, elements, posting, .. } = *limits;
    let short = |limit: u32| limit.min(u16::MAX.into()) as u16;
    PostLimits {
        inline_bytes: short(inline_bytes),
        datagram_bytes: 0,
        elements: short(elements.max(1)),
        posting,
        flags: (if row.windows.are_barriers() { PostLimits::BARRIER } else { 0 })
            | (if is_iwarp { PostLimits::IWARP } else { 0 }),
    }
    .with_reads(true)
}

/// A pair that a provider has made, with what it granted.
type Made = (RawPair, sys::ibv_qp_cap);

/// How many pairs are created, at most, to find one whose number is not taken.
const TRIES: usize = 64;

/// Creates a pair whose number is not taken. Completions of shared receives name their pair only by this number, and
/// completions of an earlier pair with the same number may still be unpolled. A device may reuse a number at once after
/// destroy, but never while a pair has it: so this keeps each pair with a taken number until it has found a free
/// number.
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

/// Leases a place on each of the two completion queues. If one has no room, neither keeps a lease.
fn lease(
    sends: &CqInner,
    receives: &CqInner,
    limits: &Limits,
    shared: Option<&Arc<SharedCore>>,
) -> Result<Places, NoRoom> {
    // If both sides complete on one queue, the error names what the whole pair needs and what the queue has free.
    let of_both = |error: NoRoom, other: u32, leased: u32| match ptr::eq(sends, receives) {
        true => NoRoom { needed: error.needed.saturating_add(other), free: error.free.saturating_add(leased) },
        false => error,
    };
    let of_receives = match shared {
        Some(shared) => receives.needed_by(&shared.ledger),
        None => limits.receives,
    };
    let send = sends.lease(QueueKind::Send, limits.sends).map_err(|error| of_both(error, of_receives, 0))?;
    let receive = match shared {
        Some(shared) => receives.lease_shared(&shared.ledger),
        None => receives.lease(QueueKind::Receive, limits.receives),
    };
    match receive {
        Ok(receive) => Ok(Places { send, receive }),
        Err(error) => {
            sends.release(send, true);
            Err(of_both(error, limits.sends, limits.sends))
        }
    }
}
