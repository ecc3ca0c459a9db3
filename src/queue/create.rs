//! How queue pairs are made.
#![allow(unsafe_code, reason = "owns the raw queue pair")]

use super::attr::Limits;
use super::core::{Body, Core, Inner, Ledgers, Local, Places, turn_for};
use super::error::CreateError;
use super::pair::QueuePair;
use super::post::{ReceiveQueue, SendQueue, Terms};
use super::session::{self, Extended, Posting};
use super::shared::SharedCore;
use super::state::Reset;
use super::transport::{ReliableConnection, Transport, UnreliableConnection, UnreliableDatagram, code};
use crate::completion::{CompletionQueue, CqInner, NoRoom};
use crate::device::objects::Object;
use crate::domain::{Brand, DomainInner, ProtectionDomain};
use crate::error::{VerbError, note_leak};
use crate::inflight::ledger::{MAX_DEPTH, Origin};
use crate::inflight::{PairStatus, Peers, QueueKind};
use crate::provider::reviewed::Teardown;
use crate::sys;
use crate::types::{Psn, Qpn};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::{ptr, ptr::NonNull};

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
}

impl Inner {
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
        // SAFETY: an open context has its function table filled.
        let operations = unsafe { (*domain.context.raw.as_ptr()).ops };
        let (Some(post_send), Some(post_receive)) = (operations.post_send, operations.post_recv) else {
            return Err(VerbError::new("ibv_post_send", libc::EOPNOTSUPP).into());
        };
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
        let attributes = sys::ibv_qp_init_attr {
            send_cq: sends.raw.as_ptr(),
            recv_cq: receives.raw.as_ptr(),
            srq: shared.map_or(ptr::null_mut(), |shared| shared.raw()),
            cap: sys::ibv_qp_cap {
                max_send_wr: limits.sends,
                max_recv_wr: limits.receives,
                max_send_sge: limits.elements.max(1),
                max_recv_sge: if shared.is_none() { limits.elements.max(1) } else { 0 },
                max_inline_data: limits.inline_bytes,
            },
            qp_type: code::<T>(),
            // Where a completion ends its own request alone, each request needs one.
            sq_sig_all: i32::from(!row.sends_may_be_unsignalled()),
            ..Default::default()
        };
        let DomainInner { context, raw: pd, .. } = &**domain;
        let make = || match limits.posting {
            Posting::List => {
                let mut attributes = attributes;
                // SAFETY: domain and queues are alive, the shared one too; they belong to the same device, since they are
                // of the same domain: they bear its brand, and where that does not tell, it was looked at above.
                let raw = unsafe { context.provider.create_qp(*pd, &mut attributes) }?;
                Ok(Made { raw, extended: None, granted: attributes.cap })
            }
            posting => {
                let mut attributes = session::extended(&attributes, *pd, posting);
                // SAFETY: as in the other case.
                let made = unsafe { context.provider.create_qp_ex(context.raw, &mut attributes) };
                let (raw, extended) = made.map_err(|error| session::explain(error, posting))?;
                Ok(Made { raw, extended, granted: attributes.cap })
            }
        };
        let is_taken = |qpn| shared.is_some() && receives.has_number(qpn);
        let Made { raw, extended, granted } = match make_unlike(domain, make, is_taken) {
            Ok(made) => made,
            Err(error) => {
                sends.release(places.send, true);
                receives.release(places.receive, true);
                return Err(error);
            }
        };
        // Some providers grant less than was asked for.
        let limits = &Limits { inline_bytes: limits.inline_bytes.min(granted.max_inline_data), ..*limits };
        // SAFETY: created just now.
        let qpn = unsafe { (*raw.as_ptr()).qp_num };
        let is_number = Qpn::new(qpn).is_ok();
        let origin = Origin::new(qpn, code::<T>() == sys::ibv_qp_type::IBV_QPT_UD);
        let peers = origin.datagrams().then(|| Peers::new(limits.sends));
        let ledgers = Ledgers::new(&domain.ledgers, &places, limits, origin, row.sends_may_be_unsignalled());
        let status = PairStatus::new(row, qpn, code::<T>(), domain.id(), ledgers.detours(), peers);
        domain.context.objects.note(raw, Object::QueuePair(Qpn::from_device(status.qpn)));
        let (send_poster, receive_poster) = ledgers.attach(sends, receives, &status);
        let core = Core {
            body: Body { raw, rare: None },
            places: Some(places),
            status: Arc::clone(&status),
            unsettled: Arc::new(AtomicU32::new(0)),
            limits: *limits,
            local: Local { psn: Psn::random(), ..Local::UNKNOWN },
            send_queue: Arc::clone(sends),
            receive_queue: Arc::clone(receives),
            shared: shared.cloned(),
            domain: Arc::clone(domain),
        };
        if limits.posting.is_in_sessions() {
            let ours = extended.filter(|extended| extended.cast() == raw);
            // SAFETY: made just now.
            if !ours.is_some_and(|extended| unsafe { Extended::is_there(extended, code::<T>(), limits.posting) }) {
                // A provider that made something else. Dropping the core destroys it.
                return Err(session::none());
            }
            status.send_in_sessions();
        }
        let asked = &attributes.cap;
        let fits_sends = granted.max_send_wr >= asked.max_send_wr && granted.max_send_sge >= asked.max_send_sge;
        let fits_receives = granted.max_recv_wr >= asked.max_recv_wr && granted.max_recv_sge >= asked.max_recv_sge;
        if !(is_number && fits_sends && (fits_receives || shared.is_some())) {
            // Dropping the core destroys it.
            return Err(VerbError::new("ibv_create_qp", libc::ENOMEM).into());
        }
        let terms = || Terms::new(limits, row, Arc::clone(&status));
        Ok(Self {
            send: SendQueue::new(send_poster, raw, post_send, terms()),
            core: Arc::new(core),
            receive: ReceiveQueue::new(receive_poster, raw, post_receive, terms()),
        })
    }
}

/// A pair that a provider has made.
struct Made {
    raw: NonNull<sys::ibv_qp>,
    extended: Option<NonNull<sys::ibv_qp_ex>>,
    granted: sys::ibv_qp_cap,
}

/// How many pairs are made to find one with a number of its own.
const TRIES: usize = 64;

/// Makes a pair whose number is not taken: completions of shared receives name the pair by nothing else, and those of an
/// earlier pair of that number may not be polled yet. Devices may give a number out again at once, but not while there
/// is a pair that has it.
fn make_unlike(
    domain: &DomainInner,
    make: impl Fn() -> Result<Made, CreateError>,
    is_taken: impl Fn(u32) -> bool,
) -> Result<Made, CreateError> {
    let mut others = Vec::new();
    let found = loop {
        let made = match make() {
            Ok(made) => made,
            Err(error) => break Err(error),
        };
        // SAFETY: made just now.
        if !is_taken(unsafe { (*made.raw.as_ptr()).qp_num }) {
            break Ok(made);
        }
        others.push(made.raw);
        if others.len() == TRIES {
            break Err(VerbError::new("ibv_create_qp", libc::EAGAIN).into());
        }
    };
    for raw in others {
        // SAFETY: made here.
        let _turn = unsafe { turn_for(domain, raw) };
        // SAFETY: made here, in Reset, and nobody else knows it.
        if let Err(error) = unsafe { domain.context.provider.destroy_qp(raw) } {
            note_leak("a queue pair", error);
        }
    }
    found
}

/// Leases a place on each queue; both or none.
fn lease(
    sends: &CqInner,
    receives: &CqInner,
    limits: &Limits,
    shared: Option<&Arc<SharedCore>>,
) -> Result<Places, NoRoom> {
    // Where both complete on one queue, an error says what the pair needs and what the queue has, not what half of it lacks.
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
