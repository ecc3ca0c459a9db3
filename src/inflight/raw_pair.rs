//! The owned handle of a queue pair, with verbs that are safe to call.
#![allow(unsafe_code, reason = "owns the raw queue pair")]

use super::raw_post::{ReceiveQueue, SendQueue, Terms};
use super::raw_session::has_all_functions;
use super::raw_shared::SharedCore;
use super::{Entry, PairStatus, Posting};
use crate::device::{ContextInner, objects::Object};
use crate::domain::DomainInner;
use crate::inflight::ledger::Poster;
use crate::memory::WindowCore;
use crate::sys::{
    self, ibv_qp_attr_mask as Mask, ibv_qp_create_send_ops_flags as with, ibv_qp_init_attr_mask as InitMask,
    ibv_qp_state as raw_state, ibv_qp_type,
};
use crate::types::{Gid, Qpn};
use crate::verb_error::VerbError;
use std::{mem, ptr, ptr::NonNull, sync::Arc};

/// A queue pair, with what has to end before it. To drop it leaks the pair: only its owner knows what else must stay.
pub(crate) struct RawPair {
    /// # Invariants
    ///
    /// 0. Came from the domain's provider, and is alive while `is_alive`. It is an `ibv_qp_ex` if `is_extended`.
    raw: NonNull<sys::ibv_qp>,
    is_alive: bool,
    is_extended: bool,
    kind: ibv_qp_type,
    /// Boxed, since few pairs have any.
    attachments: Option<Box<Attachments>>,
    domain: Arc<DomainInner>,
}

// SAFETY: control verbs on a pair may be called from any thread.
unsafe impl Send for RawPair {}
// SAFETY: shared access calls control verbs only, which the provider orders; destroying the pair takes `&mut`.
unsafe impl Sync for RawPair {}

/// What has to end before the pair can.
#[derive(Default)]
struct Attachments {
    /// The multicast groups that a pair of datagrams is a member of. A member cannot be destroyed.
    groups: Vec<(Gid, u16)>,
    /// Windows that serve this pair alone. They are freed before it: on some devices, destroying a pair with a bound
    /// window hangs.
    windows: Vec<Arc<WindowCore>>,
}

/// What a pair is created with.
pub(crate) struct PairAttributes<'a> {
    pub(crate) send_cq: *mut sys::ibv_cq,
    pub(crate) recv_cq: *mut sys::ibv_cq,
    pub(crate) shared: Option<&'a SharedCore>,
    pub(crate) cap: sys::ibv_qp_cap,
    pub(crate) kind: ibv_qp_type,
    pub(crate) posting: Posting,
}

/// The operations that a pair is created for: all that the library posts on that transport.
fn operations(kind: ibv_qp_type, posting: Posting) -> with {
    let sends = with::IBV_QP_EX_WITH_SEND | with::IBV_QP_EX_WITH_SEND_WITH_IMM;
    let writes = with::IBV_QP_EX_WITH_RDMA_WRITE | with::IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM;
    let atomics = with::IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP | with::IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;
    let atomic_writes = match posting {
        Posting::AtomicWrites => with::IBV_QP_EX_WITH_ATOMIC_WRITE,
        _ => with(0),
    };
    atomic_writes
        | match kind {
            ibv_qp_type::IBV_QPT_UD => sends,
            ibv_qp_type::IBV_QPT_UC => sends | writes,
            _ => sends | writes | with::IBV_QP_EX_WITH_RDMA_READ | atomics,
        }
}

impl RawPair {
    /// `ibv_create_qp`, or `ibv_create_qp_ex` for sessions. Returns the pair with what the provider granted.
    ///
    /// # Safety
    ///
    /// The completion queues and the shared receive queue are of the domain's device, and outlive the pair.
    pub(crate) unsafe fn create(
        domain: &Arc<DomainInner>,
        asked: &PairAttributes<'_>,
    ) -> Result<(Self, sys::ibv_qp_cap), VerbError> {
        let context = &domain.context;
        let PairAttributes { send_cq, recv_cq, cap, kind: qp_type, posting, .. } = *asked;
        let srq = asked.shared.map_or(ptr::null_mut(), SharedCore::raw);
        // Where a completion ends its own request alone, each request needs one.
        let sq_sig_all = i32::from(!context.promises().sends_may_be_unsignalled());
        let (raw, is_extended, granted) = if posting.is_in_sessions() {
            let mut attributes = sys::ibv_qp_init_attr_ex {
                send_cq,
                recv_cq,
                srq,
                cap,
                qp_type,
                sq_sig_all,
                comp_mask: InitMask::IBV_QP_INIT_ATTR_PD.0 | InitMask::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS.0,
                pd: domain.raw.as_ptr(),
                send_ops_flags: u64::from(operations(qp_type, posting).0),
                ..Default::default()
            };
            // SAFETY: domain and context are alive as long as we hold them; the rest is the caller's promise.
            let (raw, extended) = unsafe { context.provider.create_qp_ex(context.raw, &mut attributes) }?;
            (raw, extended.is_some_and(|extended| extended.cast() == raw), attributes.cap)
        } else {
            let mut attributes =
                sys::ibv_qp_init_attr { send_cq, recv_cq, srq, cap, qp_type, sq_sig_all, ..Default::default() };
            // SAFETY: the domain is alive as long as we hold it; the rest is the caller's promise.
            (unsafe { context.provider.create_qp(domain.raw, &mut attributes) }?, false, attributes.cap)
        };
        let domain = Arc::clone(domain);
        Ok((Self { raw, is_alive: true, is_extended, kind: qp_type, attachments: None, domain }, granted))
    }

    /// The two queues of the pair, to post to them.
    ///
    /// # Safety
    ///
    /// Called once. The pair is alive, and in a state that allows a post, whenever a method of a queue posts. If
    /// `terms.limits.posting` is in sessions, the pair [has them](Self::has_sessions).
    pub(crate) unsafe fn queues(
        &self,
        [send, receive]: [Poster<Entry>; 2],
        terms: &Terms,
    ) -> Result<(SendQueue, ReceiveQueue), VerbError> {
        let operations = functions(&self.domain.context);
        let (Some(post_send), Some(post_receive)) = (operations.post_send, operations.post_recv) else {
            return Err(VerbError::new("ibv_post_send", libc::EOPNOTSUPP));
        };
        // SAFETY: the function of the pair's own provider; the rest is the caller's promise.
        let send = unsafe { SendQueue::new(send, self.raw, post_send, terms.clone()) };
        // SAFETY: the function of the pair's own provider; the rest is the caller's promise.
        let receive = unsafe { ReceiveQueue::new(receive, self.raw, post_receive, terms.clone()) };
        Ok((send, receive))
    }

    /// Whether the provider made a pair with all the functions of `ibv_wr_*` that requests call.
    pub(crate) fn has_sessions(&self, posting: Posting) -> bool {
        if !self.is_extended || !self.is_alive {
            return false;
        }
        // SAFETY: alive, and an `ibv_qp_ex` (0).
        has_all_functions(unsafe { self.raw.cast().as_ref() }, self.kind, posting)
    }

    /// Its number, as the provider wrote it.
    pub(crate) fn number(&self) -> u32 {
        if !self.is_alive {
            return 0;
        }
        // SAFETY: alive (0); providers write the number only when they create the pair.
        unsafe { (*self.raw.as_ptr()).qp_num }
    }

    /// Its completion queue for sends, to compare the address.
    pub(crate) fn send_cq(&self) -> *mut sys::ibv_cq {
        if !self.is_alive {
            return ptr::null_mut();
        }
        // SAFETY: alive (0); providers write this field only when they create the pair.
        unsafe { (*self.raw.as_ptr()).send_cq }
    }

    /// Its address, which names it while it is alive.
    pub(crate) fn raw(&self) -> NonNull<sys::ibv_qp> {
        self.raw
    }

    /// Lets asynchronous events find it.
    pub(crate) fn note(&self) {
        self.domain.context.objects.note(self.raw, Object::QueuePair(Qpn::from_device(self.number())));
    }

    /// Whether verbs may use the pair: not if it was destroyed, or leaked after a destroy that failed.
    fn alive(&self, verb: &'static str) -> Result<(), VerbError> {
        if self.is_alive { Ok(()) } else { Err(VerbError::new(verb, libc::EIO)) }
    }

    /// `ibv_modify_qp`.
    pub(crate) fn modify(&self, attributes: &mut sys::ibv_qp_attr, mask: Mask) -> Result<(), VerbError> {
        self.alive("ibv_modify_qp")?;
        // SAFETY: alive (0).
        unsafe { self.domain.context.provider.modify_qp(self.raw, attributes, mask) }
    }

    /// Moves the pair to Reset, twice.
    ///
    /// In the first call, soft-RoCE (6.12 at least) notes where its send queue begins before it empties the queue. In
    /// its next life the pair would send what it finds from there on, and read memory that has come back to the
    /// program. A request that fails at that moment also takes the pair to Error behind the call. The second call finds
    /// nothing in flight.
    ///
    /// The specification has Reset follow on every state, itself included. If another provider refuses the second call,
    /// the first has succeeded.
    pub(crate) fn reset(&self) -> Result<(), VerbError> {
        let to_reset = || {
            let mut attributes = sys::ibv_qp_attr { qp_state: raw_state::IBV_QPS_RESET, ..Default::default() };
            self.modify(&mut attributes, Mask::IBV_QP_STATE)
        };
        to_reset()?;
        match to_reset() {
            Err(error) if self.domain.context.promises().quirks.reset_twice => Err(error),
            _ => Ok(()),
        }
    }

    /// `ibv_query_qp`, for the fields of `mask`.
    pub(crate) fn query(&self, mask: Mask) -> Result<sys::ibv_qp_attr, VerbError> {
        self.alive("ibv_query_qp")?;
        // SAFETY: alive (0).
        unsafe { self.domain.context.provider.query_qp(self.raw, mask) }
    }

    /// Joins a multicast group.
    pub(crate) fn attach(&mut self, group: Gid, lid: u16) -> Result<(), VerbError> {
        self.alive("ibv_attach_mcast")?;
        // SAFETY: alive (0).
        unsafe { self.domain.context.provider.attach_mcast(self.raw, &sys::ibv_gid { raw: group.0 }, lid) }?;
        self.attachments.get_or_insert_default().groups.push((group, lid));
        Ok(())
    }

    /// Leaves a multicast group.
    pub(crate) fn detach(&mut self, group: Gid, lid: u16) -> Result<(), VerbError> {
        self.alive("ibv_detach_mcast")?;
        // SAFETY: alive (0).
        unsafe { self.domain.context.provider.detach_mcast(self.raw, &sys::ibv_gid { raw: group.0 }, lid) }?;
        self.attachments.iter_mut().for_each(|all| all.groups.retain(|&member| member != (group, lid)));
        Ok(())
    }

    /// Leaves all multicast groups.
    pub(crate) fn detach_all(&mut self) -> Result<(), VerbError> {
        while let Some(&(group, lid)) = self.attachments.as_ref().and_then(|all| all.groups.last()) {
            self.detach(group, lid)?;
        }
        Ok(())
    }

    /// Takes a window that is to be freed before the pair.
    pub(crate) fn add_window(&mut self, window: Arc<WindowCore>) {
        let windows = &mut self.attachments.get_or_insert_default().windows;
        windows.retain(|window| !window.has_ended());
        windows.push(window);
    }

    /// Whether any window is left to be freed before the pair.
    pub(crate) fn has_windows(&mut self) -> bool {
        let Some(all) = &mut self.attachments else { return false };
        all.windows.retain(|window| !window.has_ended());
        !all.windows.is_empty()
    }

    /// Frees the windows of the pair, bound or not. The pair was reset, so no request names one any more.
    pub(crate) fn free_windows(&self) -> Result<(), VerbError> {
        self.attachments.iter().flat_map(|all| &all.windows).try_for_each(|window| window.dealloc())
    }

    /// `ibv_destroy_qp`. Where it fails, the pair stays alive. Then lets go of the address handles in `status`: pollers
    /// may keep that for long.
    pub(crate) fn destroy(&mut self, status: Option<&PairStatus>) -> Result<(), VerbError> {
        self.alive("ibv_destroy_qp")?;
        let context = &self.domain.context;
        // SAFETY: alive (0), and nobody else destroys it (`&mut`).
        context.objects.end(self.raw, || unsafe { context.provider.destroy_qp(self.raw) })?;
        self.is_alive = false;
        if let Some(peers) = status.and_then(|status| status.peers.as_ref()) {
            // SAFETY: destroyed just now, and nobody posts to a pair that is not alive (`queues`).
            unsafe { peers.clear() };
        }
        Ok(())
    }

    /// Moves the pair out. What is left says that it is not alive.
    pub(crate) fn take(&mut self) -> Self {
        let is_alive = mem::take(&mut self.is_alive);
        let (attachments, domain) = (self.attachments.take(), Arc::clone(&self.domain));
        Self { is_alive, attachments, domain, ..*self }
    }
}

/// The provider's functions for the data path.
pub(crate) fn functions(context: &ContextInner) -> sys::ibv_context_ops {
    // SAFETY: open as long as we hold it; providers fill the table when they open the device.
    unsafe { (*context.raw.as_ptr()).ops }
}

/// `ibv_query_device`.
pub(crate) fn device(context: &ContextInner) -> Result<sys::ibv_device_attr, VerbError> {
    // SAFETY: open as long as we hold it.
    unsafe { context.provider.query_device(context.raw) }
}

/// `ibv_query_device_ex`.
pub(crate) fn device_ex(context: &ContextInner) -> Result<sys::ibv_device_attr_ex, VerbError> {
    // SAFETY: open as long as we hold it.
    unsafe { context.provider.query_device_ex(context.raw) }
}
