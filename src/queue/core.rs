//! What is behind a queue pair, whatever its state: the raw pair, its places on the completion queues, and its lives.
#![allow(unsafe_code, reason = "owns the raw queue pair")]

use super::attr::{Limits, Modify};
use super::error::{CreateError, TransitionFailure};
use super::ledger::{MAX_DEPTH, ledger};
use super::post::{ReceiveQueue, SendQueue};
use super::state::{Reset, State};
use super::transport::{Transport, code};
use super::work::QueueKind;
use crate::completion::{Attached, CqInner, NoRoom, Orphan, Place, QueueStatus, Status};
use crate::device::{GidEntry, LinkLayer, Port};
use crate::domain::DomainInner;
use crate::error::{VerbError, note_leak};
use crate::sys::{self, ibv_qp_attr_mask as Mask, ibv_qp_state as raw_state};
use crate::types::{Mtu, PortNumber, Psn, Qpn};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::{mem, ptr::NonNull};

/// A queue pair without its types.
pub(super) struct Inner {
    pub(super) send: SendQueue,
    pub(super) receive: ReceiveQueue,
    /// # Invariants
    ///
    /// 0. The only reference: halves are made from these parts, and become them again.
    pub(super) core: Arc<Core>,
}

/// What both halves of a pair need, and what ends with the last of them.
pub(super) struct Core {
    /// # Invariants
    ///
    /// 0. Came from the domain's provider, and is alive while `places` is `Some`.
    raw: NonNull<sys::ibv_qp>,
    places: Option<Places>,
    status: Arc<QueueStatus>,
    /// How many ledgers of an earlier life may still have completions in a queue.
    unsettled: Arc<AtomicU32>,
    pub(super) limits: Limits,
    pub(super) local: Local,
    // Dropped in this order, after the pair is destroyed.
    send_queue: Arc<CqInner>,
    receive_queue: Arc<CqInner>,
    pub(super) domain: Arc<DomainInner>,
}

struct Places {
    send: Place,
    receive: Place,
}

/// How peers reach the pair; set when it enters Init.
#[derive(Clone, Copy)]
pub(super) struct Local {
    pub(super) port: PortNumber,
    pub(super) gid: Option<GidEntry>,
    pub(super) lid: u16,
    pub(super) mtu: Mtu,
    pub(super) link_layer: LinkLayer,
    pub(super) psn: Psn,
}

// SAFETY: control verbs on a pair may be called from any thread.
unsafe impl Send for Core {}
// SAFETY: as above; what changes the pair takes `&mut`.
unsafe impl Sync for Core {}

impl Inner {
    pub(super) fn create<T: Transport>(
        domain: &Arc<DomainInner>,
        sends: &Arc<CqInner>,
        receives: &Arc<CqInner>,
        limits: &Limits,
    ) -> Result<Box<Self>, CreateError> {
        for asked in [limits.sends, limits.receives] {
            if asked == 0 || asked > MAX_DEPTH {
                return Err(CreateError::Depth { asked, most: MAX_DEPTH });
            }
        }
        // SAFETY: an open context has its function table filled.
        let operations = unsafe { (*domain.context.raw.as_ptr()).ops };
        let (Some(post_send), Some(post_receive)) = (operations.post_send, operations.post_recv) else {
            return Err(VerbError::new("ibv_post_send", libc::EOPNOTSUPP).into());
        };
        let places = lease(sends, receives, limits)?;
        let mut attributes = sys::ibv_qp_init_attr {
            send_cq: sends.raw.as_ptr(),
            recv_cq: receives.raw.as_ptr(),
            cap: sys::ibv_qp_cap {
                max_send_wr: limits.sends,
                max_recv_wr: limits.receives,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: limits.inline_bytes,
            },
            qp_type: code::<T>(),
            ..Default::default()
        };
        // SAFETY: domain and queues are alive; the queues belong to the same device, since they bear the same brand.
        let raw = match unsafe { domain.context.provider.create_qp(domain.raw, &mut attributes) } {
            Ok(raw) => raw,
            Err(error) => {
                sends.release(places.send, true);
                receives.release(places.receive, true);
                return Err(error.into());
            }
        };
        // SAFETY: created just now.
        let status = QueueStatus::new(unsafe { (*raw.as_ptr()).qp_num });
        let (send_poster, send_retirer) = ledger(limits.sends);
        let (receive_poster, receive_retirer) = ledger(limits.receives);
        let (send_key, receive_key) = (places.send.key, places.receive.key);
        for (queue, key, retirer) in [(sends, send_key, send_retirer), (receives, receive_key, receive_retirer)] {
            queue.attach(Attached::new(key, retirer, Arc::clone(&status)));
        }
        let core = Core {
            raw,
            places: Some(places),
            status: Arc::clone(&status),
            unsettled: Arc::new(AtomicU32::new(0)),
            limits: *limits,
            local: Local::UNKNOWN,
            send_queue: Arc::clone(sends),
            receive_queue: Arc::clone(receives),
            domain: Arc::clone(domain),
        };
        Ok(Box::new(Self {
            send: SendQueue::new(send_poster, send_key, raw, post_send, Arc::clone(&status), limits.inline_bytes),
            receive: ReceiveQueue::new(receive_poster, receive_key, raw, post_receive, status, 0),
            core: Arc::new(core),
        }))
    }

    /// The core, if no half of the pair is around; there is none whose pair is whole (0).
    pub(super) fn unsplit(&mut self) -> Option<&mut Core> {
        Arc::get_mut(&mut self.core)
    }

    pub(super) fn reset(&mut self) -> Result<(), TransitionFailure> {
        let verb = |source| TransitionFailure::Verb { to: Reset::NAME, source };
        let drained = self.send.outstanding() == 0 && self.receive.outstanding() == 0;
        let Some(core) = Arc::get_mut(&mut self.core) else {
            return Err(verb(VerbError::new("ibv_modify_qp", libc::EBUSY)));
        };
        if drained {
            // Every request has come out, so no completion of this life is left in a queue.
            core.modify(Modify::to(raw_state::IBV_QPS_RESET)).map_err(verb)?;
            core.status.renew();
            return Ok(());
        }
        // A new life has new places, so that no completion of the old one is taken for its own.
        let Some(old) = &core.places else { return Err(TransitionFailure::NoSlot) };
        let Some(send) = core.send_queue.renew(QueueKind::Send, &old.send) else {
            return Err(TransitionFailure::NoSlot);
        };
        let Some(receive) = core.receive_queue.renew(QueueKind::Receive, &old.receive) else {
            core.send_queue.release(send, false);
            return Err(TransitionFailure::NoSlot);
        };
        if let Err(error) = core.modify(Modify::to(raw_state::IBV_QPS_RESET)) {
            core.send_queue.release(send, false);
            core.receive_queue.release(receive, false);
            return Err(verb(error));
        }
        core.status = QueueStatus::new(core.status.qpn);
        let (poster, retirer) = ledger(core.limits.sends);
        let (key, status) = (send.key, Arc::clone(&core.status));
        core.send_queue.attach(Attached::new(key, retirer, Arc::clone(&status)));
        self.send.renew(poster, key, status);
        let (poster, retirer) = ledger(core.limits.receives);
        let (key, status) = (receive.key, Arc::clone(&core.status));
        core.receive_queue.attach(Attached::new(key, retirer, Arc::clone(&status)));
        self.receive.renew(poster, key, status);
        core.unsettled.fetch_add(2, Ordering::Relaxed);
        if let Some(old) = core.places.replace(Places { send, receive }) {
            core.orphan(old.send, old.receive, Some(&core.unsettled));
        }
        Ok(())
    }
}

impl Core {
    pub(super) fn modify(&self, mut modify: Modify) -> Result<(), VerbError> {
        // SAFETY: alive (0).
        unsafe { self.domain.context.provider.modify_qp(self.raw, &mut modify.attributes, modify.mask) }
    }

    pub(super) fn query(&self, mask: Mask) -> Result<sys::ibv_qp_attr, VerbError> {
        // SAFETY: alive (0).
        unsafe { self.domain.context.provider.query_qp(self.raw, mask) }
    }

    pub(super) fn destroy(&mut self) -> Result<(), VerbError> {
        if self.places.is_none() {
            return Ok(());
        }
        // SAFETY: alive (0).
        unsafe { self.domain.context.provider.destroy_qp(self.raw) }?;
        if let Some(Places { send, receive }) = self.places.take() {
            self.orphan(send, receive, None);
        }
        Ok(())
    }

    /// Tells the pollers that the device is done with what these places have in flight.
    fn orphan(&self, send: Place, receive: Place, keeps_lease: Option<&Arc<AtomicU32>>) {
        for (queue, place) in [(&self.send_queue, send), (&self.receive_queue, receive)] {
            queue.orphan(Orphan { place, keeps_lease: keeps_lease.cloned() });
        }
    }

    /// How many handles of `queue` there are besides the pair's own two and that of its poller; `None` if the pair completes
    /// elsewhere. Where there are none, none can come: handles are made from handles.
    pub(super) fn others_on(&self, queue: &Arc<CqInner>) -> Option<usize> {
        let is_ours = Arc::ptr_eq(&self.send_queue, queue) && Arc::ptr_eq(&self.receive_queue, queue);
        is_ours.then(|| Arc::strong_count(queue).saturating_sub(3))
    }

    /// Whether all completions of earlier lives have been seen.
    pub(super) fn is_settled(&self) -> bool {
        self.unsettled.load(Ordering::Acquire) == 0
    }

    /// What the device can do.
    pub(super) fn device(&self) -> Result<sys::ibv_device_attr, VerbError> {
        let context = &self.domain.context;
        // SAFETY: open as long as we hold it.
        unsafe { context.provider.query_device(context.raw) }
    }

    pub(super) fn qpn(&self) -> Qpn {
        Qpn::from_device(self.status.qpn)
    }

    /// Whether posts are refused: a request failed, or may have been half posted.
    pub(super) fn is_broken(&self) -> bool {
        self.status.broken.load(Ordering::Relaxed)
    }

    pub(super) fn first_failure(&self) -> Option<Status> {
        self.status.first_failure()
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        if let Err(error) = self.destroy() {
            note_leak("a queue pair", error);
            // The device may go on with what is in flight: nothing that it needs may end.
            mem::forget(Arc::clone(&self.send_queue));
            mem::forget(Arc::clone(&self.receive_queue));
            mem::forget(Arc::clone(&self.domain));
        }
    }
}

/// Leases a place on each queue; both or none.
fn lease(sends: &CqInner, receives: &CqInner, limits: &Limits) -> Result<Places, NoRoom> {
    let send = sends.lease(QueueKind::Send, limits.sends)?;
    match receives.lease(QueueKind::Receive, limits.receives) {
        Ok(receive) => Ok(Places { send, receive }),
        Err(error) => {
            sends.release(send, true);
            Err(error)
        }
    }
}

impl Local {
    /// Before Init, when nobody asks.
    const UNKNOWN: Self = Self {
        port: match PortNumber::new(1) {
            Ok(port) => port,
            Err(_) => panic!("1 is a port"),
        },
        gid: None,
        lid: 0,
        mtu: Mtu::Bytes256,
        link_layer: LinkLayer::Unspecified,
        psn: match Psn::new(0) {
            Ok(psn) => psn,
            Err(_) => panic!("0 is a PSN"),
        },
    };

    pub(super) fn of(port: &Port) -> Self {
        Self {
            port: port.number(),
            gid: port.gid(),
            lid: port.lid(),
            mtu: port.active_mtu(),
            link_layer: port.link_layer(),
            psn: Psn::random(),
        }
    }
}
