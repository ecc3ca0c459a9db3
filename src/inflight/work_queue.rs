//! A work queue of a queue pair: one end of a ledger, and the right to post to the pair.
//!
//! This file says what a queue is, and how it ends. [Posting](post) is a child module, and so is the [stage] of
//! batches: no other file reads the address of the pair here, or writes the requests that the provider reads. (Sessions
//! and binds of windows get the address from these files.)

mod post;
mod stage;

use super::ledger::Poster;
use super::pair_status::ENDED;
use super::peers::{Parked, Peers, To};
use super::request::{Bounds, PostLimits};
use super::{Entry, PairStatus, PostError, Posting, WorkId, is_broken};
use crate::domain::DomainId;
use crate::provider::handles::{ObjectPtr, PostEnd, PostRight};
use crate::sys;
use crate::sys::inline::{PostReceive as PostReceiveVerb, PostSend as PostSendVerb};
use crate::types::ReadDepth;
use crate::verb_error::VerbError;
pub(super) use post::{AboutWindow, PostFailure, SharedPosts, Unqueued};
pub(super) use stage::{Chain, STAGED, Slot, Slots, with_stage};
use std::{ptr::NonNull, sync::Arc};

/// A work queue of a queue pair. `V` is the provider's function that posts to it. Only the holder of `&mut` posts.
///
/// It is a few words: the rest of what a post needs is in the header of the ledger. The processor fetches that cache
/// line and the provider's data of the pair at the same time, since neither address depends on the other.
pub(crate) struct WorkQueue<V> {
    pub(super) poster: Poster<Entry, QueueData>,
    /// # Invariants
    ///
    /// 0. Until the queue has [ended](Self::end), it has the [right](ColdData::right) to post, and nobody else has it.
    ///    So the pair is alive whenever there is room for a request. The types of the pair let posts through only in
    ///    states that allow them.
    raw: ObjectPtr<sys::ibv_qp>,
    /// 1. The function posts to `raw`, and may be called while (0) holds.
    verb: V,
}

pub(crate) type SendQueue = WorkQueue<PostSendVerb>;
pub(crate) type ReceiveQueue = WorkQueue<PostReceiveVerb>;

/// The limits that posts are checked against, and the status that posts share with the poller.
#[derive(Clone)]
pub(crate) struct Terms {
    pub(crate) limits: PostLimits,
    pub(crate) status: Arc<PairStatus>,
}

/// The data that a queue keeps in the header of its ledger: two words, since there is no more room.
pub(super) struct QueueData {
    limits: PostLimits,
    cold: Box<ColdData>,
}

/// Data that few posts need.
struct ColdData {
    /// The domain of `status`, copied here so that a post can compare domains without reading `status`.
    domain: DomainId,
    status: Arc<PairStatus>,
    /// `None` once the queue has [ended](WorkQueue::end).
    right: Option<PostRight>,
    /// For datagrams: the address handles of the requests in flight.
    peers: Option<Peers>,
}

// Any thread is allowed to use the raw pair, and one thread is allowed to post sends while another posts receives: the
// provider takes the locks that it needs. (No queue pair is created while an environment variable turns these locks
// off: see `provider/environment.rs`.)
static_assertions::assert_impl_all!(SendQueue: Send, Sync);
static_assertions::assert_impl_all!(ReceiveQueue: Send, Sync);

impl<V> WorkQueue<V> {
    /// The queue that posts through `end`. It posts in sessions only if the pair has all functions for them.
    pub(crate) fn new(poster: Poster<Entry>, end: PostEnd<sys::ibv_qp, V>, terms: Terms) -> Self {
        let Terms { mut limits, status } = terms;
        let (raw, verb, right, has_sessions) = end.into_parts();
        if !has_sessions {
            limits.posting = Posting::List;
        }
        let cold = Box::new(ColdData { domain: status.domain, status, right: Some(right), peers: None });
        Self { poster: poster.with(QueueData { limits, cold }), raw, verb }
    }

    /// Continues with a new ledger after a reset of the pair. A queue that has ended stays ended.
    pub(crate) fn renew(&mut self, poster: Poster<Entry>, status: Arc<PairStatus>) {
        let QueueData { limits, cold } = self.poster.user_data_mut();
        let mut peers = cold.peers.take();
        if let Some(peers) = &mut peers {
            peers.make_room(poster.free());
        }
        let cold = Box::new(ColdData { domain: status.domain, status, right: None, peers });
        let data = QueueData { limits: *limits, cold };
        poster.detour_of().set(self.poster.detour() & ENDED);
        let mut poster = poster.with(data);
        poster.user_data_mut().cold.right = self.poster.user_data_mut().cold.right.take();
        self.poster = poster;
    }

    /// Refuses all later posts: the pair is destroyed.
    fn end(&mut self) {
        self.poster.detour_of().set(ENDED);
    }

    /// Takes the right to post out of the queue.
    fn lend_right(&mut self) -> Option<(PostRight, LentRight<'_, V>)> {
        let right = self.poster.user_data_mut().cold.right.take()?;
        Some((right, LentRight(self)))
    }

    #[inline(always)]
    pub(crate) fn limits(&self) -> PostLimits {
        self.poster.user_data().limits
    }

    #[inline(always)]
    fn status(&self) -> &PairStatus {
        &self.poster.user_data().cold.status
    }

    /// The domain to which the memory of requests must belong.
    #[inline(always)]
    pub(crate) fn domain(&self) -> DomainId {
        self.poster.user_data().cold.domain
    }

    /// How many requests are in flight.
    pub(crate) fn outstanding(&self) -> u32 {
        self.poster.outstanding()
    }

    /// How many more requests fit; 0 if the queue is broken.
    #[inline(always)]
    pub(crate) fn room(&self) -> u32 {
        if self.is_broken() { 0 } else { self.poster.free() }
    }

    #[inline(always)]
    pub(super) fn is_broken(&self) -> bool {
        is_broken(self.poster.detour())
    }

    /// The error of a `request` that does not go: the queue is broken, or it is full.
    #[cold]
    #[inline(never)]
    pub(super) fn refusal<R>(&self, request: R) -> PostError<R> {
        if self.is_broken() {
            return PostError::Broken { request, first_failure: self.status().first_failure() };
        }
        PostError::QueueFull(request)
    }

    /// The id of the next request.
    #[inline(always)]
    pub(crate) fn id(&self) -> WorkId {
        WorkId::from_raw(self.poster.next_id())
    }

    /// The bounds that requests are checked against.
    #[inline(always)]
    pub(super) fn bounds(&self) -> Bounds {
        Bounds { domain: self.domain(), limits: self.limits() }
    }

    /// Refuses all later posts: the device may have a request that the provider did not account for.
    pub(crate) fn poison(&self) {
        self.status().poison();
    }
}

impl SendQueue {
    /// Makes this the queue of a datagram pair, which keeps the address handles of its requests with that pair.
    pub(super) fn for_datagrams(mut self, pair: &Parked) -> Self {
        let depth = self.poster.free() + self.poster.outstanding();
        self.poster.user_data_mut().cold.peers = Some(Peers::new(depth, pair));
        self
    }

    /// Sets whether the pair may have reads and atomics outstanding: with a depth of 0 the queue refuses them.
    pub(crate) fn set_initiator_depth(&mut self, depth: ReadDepth) {
        let limits = &mut self.poster.user_data_mut().limits;
        *limits = limits.with_reads(depth.value() != 0);
    }

    /// Sets how many bytes a datagram may have.
    pub(crate) fn set_datagram_bytes(&mut self, bytes: u16) {
        self.poster.user_data_mut().limits.datagram_bytes = bytes;
    }

    /// The address of the pair, for comparisons only.
    pub(super) fn raw(&self) -> NonNull<sys::ibv_qp> {
        self.raw.0
    }

    /// Keeps the address handle of the recipient for as long as the request `id` may be in flight. The slot of this id
    /// is free, and the caller posts the request next.
    #[inline]
    pub(super) fn keep(&mut self, id: WorkId, to: To<'_>) {
        if let Some(peers) = &mut self.poster.user_data_mut().cold.peers {
            peers.keep(id, to.handle);
        }
    }
}

/// A queue whose right to post is lent. This borrows the queue, so nobody posts meanwhile. If the right has not come
/// back when this is dropped, the queue ends.
struct LentRight<'q, V>(&'q mut WorkQueue<V>);

impl<V> LentRight<'_, V> {
    fn give_back(self, right: PostRight) {
        self.0.poster.user_data_mut().cold.right = Some(right);
    }
}

impl<V> Drop for LentRight<'_, V> {
    fn drop(&mut self) {
        if self.0.poster.user_data().cold.right.is_none() {
            self.0.end();
        }
    }
}

/// Calls `destroy` with the rights to post of a pair's two queues. If `destroy` fails and returns the rights, the
/// queues get them back; otherwise the queues end, and refuse every post. `EBUSY`: a queue had ended before.
pub(super) fn with_rights<R>(
    send: &mut SendQueue,
    receive: &mut ReceiveQueue,
    destroy: impl FnOnce([PostRight; 2]) -> Result<R, (VerbError, Option<[PostRight; 2]>)>,
) -> Result<R, VerbError> {
    let busy = VerbError::new("ibv_destroy_qp", libc::EBUSY);
    let (send_right, send) = send.lend_right().ok_or(busy)?;
    let Some((receive_right, receive)) = receive.lend_right() else {
        send.give_back(send_right);
        return Err(busy);
    };
    destroy([send_right, receive_right]).map_err(|(error, rights)| {
        if let Some([send_right, receive_right]) = rights {
            send.give_back(send_right);
            receive.give_back(receive_right);
        }
        error
    })
}
