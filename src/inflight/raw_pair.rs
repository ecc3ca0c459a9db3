//! An owned queue pair: its handle, and the objects that must end before it. It also makes its two work queues.
//!
//! A work queue does not hold the pair's handle, but the right to post to it (`provider::handles::rights`). The pair
//! can be destroyed in two cases: nobody has that right any more; or the caller hands over both queues, which then end
//! with the pair and refuse every post.
//!
//! `QueuePair` and its halves decide in which states a pair takes posts; this module does not.
//!
//! ASSUMPTION: a request that is posted in a state that takes no requests is refused, or waits in its queue until the
//! pair is reset or destroyed. (Until then the ledger owns its memory.)
#![forbid(unsafe_code)]

use super::peers::Parked;
use super::raw_session::has_all_functions;
use super::raw_shared::SharedCore;
use super::work_queue::{ReceiveQueue, SendQueue, Terms, with_rights};
use super::{Entry, Posting, Quiescent, RawCompletionQueue};
use crate::device::objects::Object;
use crate::domain::DomainInner;
use crate::inflight::ledger::Poster;
use crate::memory::WindowCore;
use crate::provider::handles::{self, PairNeeds};
use crate::sync::{AtomicBool, Ordering};
use crate::sys::{
    self, ibv_qp_attr_mask as Mask, ibv_qp_create_send_ops_flags as SendOps, ibv_qp_state as State, ibv_qp_type,
};
use crate::types::{Gid, Qpn};
use crate::verb_error::VerbError;
use std::{mem, ptr::NonNull, sync::Arc};

/// A queue pair, with the objects that must end before it. Dropping this leaks the pair: only its owner knows what else
/// must stay.
pub(crate) struct RawPair {
    /// The device's pair. The two queues name it by its address.
    handle: handles::Pair,
    /// The number that the device gave it.
    number: u32,
    /// How the pair posts: in sessions only if it was made for sessions, and has all functions that its requests call.
    posting: Posting,
    /// For datagrams: the address handles that are kept until the pair is destroyed.
    parked: Option<Parked>,
    /// In a box, since few pairs have attachments.
    attachments: Option<Box<Attachments>>,
    domain: Arc<DomainInner>,
    /// See [`may_receive`](Self::may_receive).
    may_receive: AtomicBool,
}

/// Objects that must end before the pair can be destroyed.
#[derive(Default)]
struct Attachments {
    /// The multicast groups that a datagram pair is a member of. A pair that is a member cannot be destroyed.
    groups: Vec<(Gid, u16)>,
    /// Windows that serve only this pair. They are freed before it: on some devices, destroying a pair with a bound
    /// window hangs.
    windows: Vec<Arc<WindowCore>>,
}

/// The arguments of [`RawPair::create`].
pub(crate) struct PairAttributes<'a> {
    pub(crate) sends: &'a RawCompletionQueue,
    pub(crate) receives: &'a RawCompletionQueue,
    pub(crate) shared: Option<&'a SharedCore>,
    pub(crate) cap: sys::ibv_qp_cap,
    pub(crate) kind: ibv_qp_type,
    pub(crate) posting: Posting,
}

/// The operations that a pair is created for: all that the library posts on that transport.
fn operations(kind: ibv_qp_type, posting: Posting) -> SendOps {
    let sends = SendOps::IBV_QP_EX_WITH_SEND | SendOps::IBV_QP_EX_WITH_SEND_WITH_IMM;
    let writes = SendOps::IBV_QP_EX_WITH_RDMA_WRITE | SendOps::IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM;
    let atomics = SendOps::IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP | SendOps::IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;
    let atomic_writes = match posting {
        Posting::AtomicWrites => SendOps::IBV_QP_EX_WITH_ATOMIC_WRITE,
        _ => SendOps(0),
    };
    atomic_writes
        | match kind {
            ibv_qp_type::IBV_QPT_UD => sends,
            ibv_qp_type::IBV_QPT_UC => sends | writes,
            _ => sends | writes | SendOps::IBV_QP_EX_WITH_RDMA_READ | atomics,
        }
}

impl RawPair {
    /// `ibv_create_qp`, or `ibv_create_qp_ex` for sessions. Returns the pair with what the provider granted.
    pub(crate) fn create(
        domain: &Arc<DomainInner>,
        asked: &PairAttributes<'_>,
    ) -> Result<(Self, sys::ibv_qp_cap), VerbError> {
        let context = &domain.context;
        let functions = context.functions();
        if functions.post_send.is_none() || functions.post_recv.is_none() {
            return Err(VerbError::new("ibv_post_send", libc::EOPNOTSUPP));
        }
        let PairAttributes { sends, receives, cap, kind: qp_type, posting, .. } = *asked;
        let needs = PairNeeds {
            domain: Arc::clone(domain.handle()),
            send_queue: Arc::clone(sends.handle()),
            receive_queue: Arc::clone(receives.handle()),
            shared: asked.shared.map(|shared| Arc::clone(shared.handle())),
        };
        // On some providers the completion of a signalled request does not also end the unsignalled requests before it.
        // On others a pair is destroyed only after all its requests have completed, and unsignalled requests may never
        // complete. On all of these providers, every request must be signalled.
        let sq_sig_all = i32::from(!context.promises().sends_may_be_unsignalled());
        let attributes = sys::ibv_qp_init_attr { cap, qp_type, sq_sig_all, ..Default::default() };
        let (handle, granted, posting) = if posting.is_in_sessions() {
            let look = |pair: &sys::ibv_qp_ex| has_all_functions(pair, qp_type, posting);
            let sends = operations(qp_type, posting);
            let (handle, granted, is_complete) = handles::Pair::create_extended(needs, attributes, sends, look)?;
            (handle, granted, if is_complete { posting } else { Posting::List })
        } else {
            let (handle, granted) = handles::Pair::create(needs, attributes)?;
            (handle, granted, posting)
        };
        let pair = Self {
            number: handle.number(),
            handle,
            posting,
            parked: (qp_type == ibv_qp_type::IBV_QPT_UD).then(Parked::default),
            attachments: None,
            domain: Arc::clone(domain),
            // On iWARP, rdma_cm moves the pair to Ready To Receive, and this library does not see when.
            may_receive: AtomicBool::new(context.is_iwarp()),
        };
        Ok((pair, granted))
    }

    /// The two queues of the pair, for posting. Fails the second time, and if `terms` ask for another way of posting
    /// than [the pair's](Self::posting).
    pub(crate) fn queues(
        &mut self,
        [send, receive]: [Poster<Entry>; 2],
        terms: &Terms,
    ) -> Result<(SendQueue, ReceiveQueue), VerbError> {
        if terms.limits.posting != self.posting {
            return Err(VerbError::new("ibv_wr_start", libc::EOPNOTSUPP));
        }
        let (send_end, receive_end) = self.handle.post_ends().ok_or(VerbError::new("ibv_post_send", libc::EBUSY))?;
        let send = SendQueue::new(send, send_end, terms.clone());
        let receive = ReceiveQueue::new(receive, receive_end, terms.clone());
        let send = match &self.parked {
            Some(parked) => send.for_datagrams(parked),
            None => send,
        };
        Ok((send, receive))
    }

    /// How the pair posts: in sessions only if the provider made a pair with all functions of `ibv_wr_*` that requests
    /// call.
    pub(crate) fn posting(&self) -> Posting {
        self.posting
    }

    /// The number of the pair, as the provider wrote it.
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// The address of its completion queue for sends. Nobody reads through this pointer.
    pub(crate) fn send_cq(&self) -> *mut sys::ibv_cq {
        self.handle.needs().send_queue.raw().as_ptr()
    }

    /// The address of the pair, which identifies it while it is alive.
    pub(crate) fn raw(&self) -> NonNull<sys::ibv_qp> {
        self.handle.raw()
    }

    /// Whether the pair sends datagrams.
    pub(crate) fn is_of_datagrams(&self) -> bool {
        self.parked.is_some()
    }

    /// Adds the pair to the table in which asynchronous events look up their objects.
    pub(crate) fn list_for_events(&self) {
        let object = Object::QueuePair(Qpn::from_device(self.number));
        self.domain.context.objects.note(self.handle.address(), object);
    }

    /// `ibv_modify_qp`.
    pub(crate) fn modify(&self, attributes: &mut sys::ibv_qp_attr, mask: Mask) -> Result<(), VerbError> {
        let to = (mask.0 & Mask::IBV_QP_STATE.0 != 0).then_some(attributes.qp_state);
        if matches!(to, Some(State::IBV_QPS_RTR | State::IBV_QPS_RTS)) {
            self.may_receive.store(true, Ordering::Relaxed);
        }
        self.handle.modify(attributes, mask)?;
        if to == Some(State::IBV_QPS_ERR) {
            self.may_receive.store(false, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Whether the device may fill another receive for the pair: the pair has left Init (or is on iWARP), and has not
    /// moved to Error or Reset since.
    pub(crate) fn may_receive(&self) -> bool {
        self.may_receive.load(Ordering::Relaxed)
    }

    /// Moves the pair to Reset. Returns the proof that the device is done with the requests of the pair, if pairs
    /// can be reset with this provider.
    pub(crate) fn reset(&self) -> Result<Option<Quiescent>, VerbError> {
        let quiescent = self.handle.reset(self.domain.context.promises())?;
        self.may_receive.store(false, Ordering::Relaxed);
        Ok(quiescent)
    }

    /// `ibv_query_qp`, for the fields of `mask`.
    pub(crate) fn query(&self, mask: Mask) -> Result<sys::ibv_qp_attr, VerbError> {
        self.handle.query(mask)
    }

    /// Joins a multicast group.
    pub(crate) fn attach(&mut self, group: Gid, lid: u16) -> Result<(), VerbError> {
        self.handle.attach(&sys::ibv_gid { raw: group.0 }, lid)?;
        self.attachments.get_or_insert_default().groups.push((group, lid));
        Ok(())
    }

    /// Leaves a multicast group.
    pub(crate) fn detach(&mut self, group: Gid, lid: u16) -> Result<(), VerbError> {
        self.handle.detach(&sys::ibv_gid { raw: group.0 }, lid)?;
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

    /// Adds a window that must be freed before the pair.
    pub(crate) fn add_window(&mut self, window: Arc<WindowCore>) {
        let windows = &mut self.attachments.get_or_insert_default().windows;
        windows.retain(|window| !window.has_ended());
        windows.push(window);
    }

    /// Whether any window is left that must be freed before the pair.
    pub(crate) fn has_windows(&mut self) -> bool {
        let Some(all) = &mut self.attachments else { return false };
        all.windows.retain(|window| !window.has_ended());
        !all.windows.is_empty()
    }

    /// Frees the windows of the pair, bound or not. The pair must have been reset.
    pub(crate) fn free_windows(&self) -> Result<(), VerbError> {
        self.attachments.iter().flat_map(|all| &all.windows).try_for_each(|window| window.dealloc())
    }

    /// `ibv_destroy_qp`. If it fails, the pair stays alive. `queues` are the queues of the pair; `None` if they were
    /// dropped or never made. After the pair is destroyed they refuse every post. `EBUSY`: somebody else can post.
    ///
    /// Also drops the address handles of its requests, since pollers may keep the rest of the pair for long. Returns
    /// the proof that the device is done with the requests of the pair.
    pub(crate) fn destroy(
        &mut self,
        queues: Option<(&mut SendQueue, &mut ReceiveQueue)>,
    ) -> Result<Quiescent, VerbError> {
        let Self { handle, domain, .. } = self;
        let address = handle.address();
        let mut destroy = |rights| domain.context.objects.end(address, || handle.destroy(rights));
        let quiescent = match queues {
            Some((send, receive)) => with_rights(send, receive, |rights| destroy(Some(rights)))?,
            None => destroy(None).map_err(|(error, _)| error)?,
        };
        self.parked = None;
        Ok(quiescent)
    }

    /// Moves the pair out. The value that stays behind counts as not alive.
    pub(crate) fn take(&mut self) -> Self {
        Self {
            handle: self.handle.take(),
            number: self.number,
            posting: self.posting,
            parked: self.parked.take(),
            attachments: self.attachments.take(),
            domain: Arc::clone(&self.domain),
            may_receive: AtomicBool::new(self.may_receive()),
        }
    }
}

impl Drop for RawPair {
    fn drop(&mut self) {
        if self.handle.is_alive() {
            mem::forget(self.parked.take());
            mem::forget(self.attachments.take());
            mem::forget(Arc::clone(&self.domain));
        }
    }
}

#[cfg(all(test, feature = "soft", not(loom)))]
mod tests {
    use super::*;
    use crate::inflight::ledger::{Origin, ledger};
    use crate::inflight::{PairStatus, PostLimits, RawChannel};
    use crate::provider::reviewed::{RXE, UNREVIEWED};
    use crate::soft::{Fabric, Fault, Verb};
    use crate::{Context, Inline, WorkRequest};

    /// The posting ends of two ledgers, and the terms for their queues.
    fn to_post(domain: &Arc<DomainInner>) -> ([Poster<Entry>; 2], Terms) {
        let posters = [(); 2].map(|()| ledger(&domain.ledgers, 4, 0, Origin::default()).0);
        let detours = posters.each_ref().map(Poster::detour_of);
        let status = PairStatus::new(&UNREVIEWED, 1, ibv_qp_type::IBV_QPT_UD, domain.id(), detours);
        let (posting, flags) = (Posting::List, 0);
        let limits = PostLimits { inline_bytes: 8, datagram_bytes: 0, elements: 1, posting, flags }.with_reads(true);
        (posters, Terms { limits, status })
    }

    /// A datagram pair whose completions go to `queue`.
    fn pair(domain: &Arc<DomainInner>, queue: &RawCompletionQueue) -> RawPair {
        let (sends, receives) = (queue, queue);
        let cap = sys::ibv_qp_cap { max_send_wr: 4, max_recv_wr: 4, max_inline_data: 8, ..Default::default() };
        let (kind, posting) = (ibv_qp_type::IBV_QPT_UD, Posting::List);
        let asked = PairAttributes { sends, receives, shared: None, cap, kind, posting };
        RawPair::create(domain, &asked).unwrap().0
    }

    #[test]
    fn a_failed_destroy_leaves_each_queue_the_right_to_post() {
        let fabric = Fabric::new();
        let context = Context::open_on(&fabric, "soft0").unwrap();
        let pass = context.with_domain(|domain| {
            let domain = &domain.inner;
            let end = RawCompletionQueue::create(&RawChannel::create(domain).unwrap(), 16, 0).unwrap();
            let [mut one, mut other] = [(); 2].map(|()| pair(domain, end.queue()));
            let [(mut send, mut receive), (mut other_send, mut other_receive)] = [&mut one, &mut other].map(|pair| {
                let (posters, terms) = to_post(domain);
                pair.queues(posters, &terms).unwrap()
            });
            // `destroy` fails if it gets a queue of another pair. Then it ends no queue: all four queues still have
            // room below.
            for error in [
                one.destroy(Some((&mut other_send, &mut other_receive))).unwrap_err(),
                one.destroy(Some((&mut send, &mut other_receive))).unwrap_err(),
            ] {
                assert_eq!(error.errno(), libc::EBUSY);
            }
            fabric.inject(Fault::VerbFails { verb: Verb::DestroyQp, after: 0, count: 1, errno: libc::EIO });
            assert_eq!(one.destroy(Some((&mut send, &mut receive))).unwrap_err().errno(), libc::EIO);
            assert!(
                [send.room(), receive.room(), other_send.room(), other_receive.room()].iter().all(|&room| room > 0)
            );
            for pair in [&mut one, &mut other] {
                assert_eq!(pair.destroy(None).unwrap_err().errno(), libc::EBUSY, "the queues can still post");
            }
            one.destroy(Some((&mut send, &mut receive))).unwrap();
            assert_eq!((send.room(), receive.room()), (0, 0));
            drop((other_send, other_receive));
            other.destroy(None).unwrap();
        });
        pass.unwrap();
    }

    #[test]
    fn a_pair_has_its_queues_once_and_outlives_their_posts() {
        let context = Context::open_on(&Fabric::new(), "soft0").unwrap();
        let pass = context.with_domain(|domain| {
            let domain = &domain.inner;
            let end = RawCompletionQueue::create(&RawChannel::create(domain).unwrap(), 16, 0).unwrap();
            let mut pair = pair(domain, end.queue());
            let (posters, terms) = to_post(domain);
            let (mut send, mut receive) = pair.queues(posters, &terms).unwrap();
            let (posters, terms) = to_post(domain);
            assert!(pair.queues(posters, &terms).is_err_and(|error| error.errno() == libc::EBUSY));

            // The pair is not destroyed, since its two queues could still post.
            assert_eq!(pair.destroy(None).unwrap_err().errno(), libc::EBUSY);
            pair.destroy(Some((&mut send, &mut receive))).unwrap();
            assert_eq!((send.room(), receive.room()), (0, 0));
            // `destroy` has ended the send queue. A reset of a pair calls `send.renew`, which must not revive an ended
            // queue.
            let ([poster, _], terms) = to_post(domain);
            terms.status.renew();
            send.renew(poster, terms.status);
            assert_eq!(send.room(), 0);
            send.nudge_after_drain(&RXE);
            let request: WorkRequest<_, crate::request::Send> = WorkRequest::send(Inline(&[]));
            assert!(send.post_marker::<crate::Checked, _, _>(request).is_none());
        });
        pass.unwrap();
    }
}
