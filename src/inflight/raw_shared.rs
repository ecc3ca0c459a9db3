//! Shared receive queues: the owned handle, and posting to it.
//!
//! ASSUMPTION: where the provider has `Shared`, an `ibv_destroy_srq` that returns 0 has ended every access of the
//! device through the queue's receives. Where the provider has `refusal_is_sure`, a post that fails and points `bad_wr`
//! at its request has not queued that request. (`provider/reviewed.rs`)
#![allow(unsafe_code, reason = "calls the provider's post function")]

use super::{Entry, MAX_SLOTS, Operation, PostError, Quiescent, SharedLedger, SlabPoster, WorkId, slab};
use crate::device::SharedReceiveQueueId;
use crate::device::objects::Object;
use crate::domain::DomainInner;
use crate::memory::Buffer;
use crate::provider::handles::{self, ObjectPtr};
use crate::sys::{self, ibv_srq_attr_mask as Mask, inline::PostShared};
use crate::verb_error::{VerbError, note_leak};
use std::sync::Arc;
use std::{mem, ptr};

/// A shared receive queue. The handle that posts and all pairs of the queue keep this alive.
pub(crate) struct SharedCore {
    /// The device's queue. The handles of queue pairs hold it too, but each of them ends before its pair's reference to
    /// this.
    handle: Arc<handles::SharedQueue>,
    pub(crate) id: SharedReceiveQueueId,
    pub(crate) ledger: SharedLedger,
    pub(crate) domain: Arc<DomainInner>,
}

/// The one handle that posts to a shared receive queue.
pub(crate) struct SharedPoster {
    /// # Invariants
    ///
    /// 0. The pointer of the core's queue, copied so that a post touches no other cache line.
    raw: ObjectPtr<sys::ibv_srq>,
    verb: PostShared,
    pub(crate) poster: SlabPoster<Entry>,
    /// 1. Set once the queue is no longer alive, or after a post that may be half done. Then nothing more is posted.
    broken: bool,
    core: Arc<SharedCore>,
}

impl SharedPoster {
    /// Creates a queue for `receives` receives in flight, with a ledger of `slots` slots.
    pub(crate) fn create(domain: &Arc<DomainInner>, receives: u32, slots: u32) -> Result<Self, VerbError> {
        let verb = domain.context.functions().post_srq_recv;
        let verb = verb.ok_or(VerbError::new("ibv_create_srq", libc::EOPNOTSUPP))?;
        let number = domain.numbers.take(MAX_SLOTS).ok_or(VerbError::new("ibv_create_srq", libc::ENOMEM))?;
        let asked = sys::ibv_srq_attr { max_wr: receives, max_sge: 1, srq_limit: 0 };
        let (handle, granted) = handles::SharedQueue::create(domain.handle(), asked)?;
        let (raw, id) = (ObjectPtr(handle.raw()), SharedReceiveQueueId::fresh());
        domain.context.objects.note(handle.address(), Object::SharedReceiveQueue(id));
        let poster = slab(number, slots, receives);
        let ledger = SharedLedger::clone(&poster.slab);
        let core = Arc::new(SharedCore { handle: Arc::new(handle), id, ledger, domain: Arc::clone(domain) });
        if granted.max_wr < receives || granted.max_sge < 1 {
            // This return drops the core, which destroys the queue.
            return Err(VerbError::new("ibv_create_srq", libc::ENOMEM));
        }
        Ok(Self { raw, verb, poster, broken: false, core })
    }

    pub(crate) fn core(&self) -> &Arc<SharedCore> {
        &self.core
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.broken
    }

    /// Refuses all later posts.
    pub(crate) fn break_down(&mut self) {
        self.broken = true;
    }

    /// Posts a receive into all of `buffer`, unless the queue is broken.
    #[inline]
    pub(crate) fn post<B>(&mut self, buffer: Buffer<B>) -> Result<WorkId, PostError<Buffer<B>>> {
        if self.broken {
            return Err(PostError::Broken { request: buffer, first_failure: None });
        }
        let Some(vacancy) = self.poster.vacancy() else { return Err(PostError::QueueFull(buffer)) };
        let sg_list = buffer.part().whole_element();
        // An element of length 0 means 2^31 bytes to some devices.
        let num_sge = i32::from(buffer.capacity() != 0);
        let id = vacancy.fill(Entry::unique(Operation::Receive, buffer));
        let mut wr = sys::ibv_recv_wr { wr_id: id.raw(), next: ptr::null_mut(), sg_list, num_sge };
        let mut bad = ptr::null_mut();
        // SAFETY: the queue is alive, since it is not broken (1). Nobody else posts (`&mut`), and the slab owns the
        // buffer.
        let result = unsafe { (self.verb)(self.raw.0.as_ptr(), &mut wr, &mut bad) };
        if result == 0 && bad.is_null() {
            return Ok(id);
        }
        let errno = if result == 0 { libc::EINVAL } else { result.wrapping_abs() };
        Err(self.refused(ptr::eq(bad, &wr), id, VerbError::new("ibv_post_srq_recv", errno)))
    }

    /// The error of a post that failed. `is_named`: `bad_wr` points to the request.
    #[cold]
    fn refused<B>(&mut self, is_named: bool, id: WorkId, source: VerbError) -> PostError<Buffer<B>> {
        // A request is certainly not queued only if the provider names it, and only if the provider's refusals were
        // reviewed.
        match if is_named && self.core.domain.context.promises().refusal_is_sure {
            self.poster.slab.take(id).and_then(Entry::into_buffer)
        } else {
            None
        } {
            Some(request) => PostError::Refused { request, source },
            None => {
                self.break_down();
                PostError::Uncertain { id, source }
            }
        }
    }

    /// Destroys the queue, if no pair receives from it.
    pub(crate) fn destroy(&mut self) -> Result<(), VerbError> {
        // If this is the only reference, no pair receives from the queue.
        let ended = match Arc::get_mut(&mut self.core) {
            Some(core) => core.destroy(),
            None => Err(VerbError::new("ibv_destroy_srq", libc::EBUSY)),
        };
        // Nothing is posted to a queue that has ended, or that a failed destroy may have left half-destroyed.
        self.broken |= !self.core.handle.is_alive();
        ended
    }
}

impl SharedCore {
    /// The handle, which the pairs of the queue hold.
    pub(super) fn handle(&self) -> &Arc<handles::SharedQueue> {
        &self.handle
    }

    /// Checks that verbs may use the queue. Otherwise returns an error of `verb`.
    pub(crate) fn alive(&self, verb: &'static str) -> Result<(), VerbError> {
        if self.handle.is_alive() { Ok(()) } else { Err(VerbError::new(verb, libc::EIO)) }
    }

    pub(crate) fn modify(&self, mut attributes: sys::ibv_srq_attr, mask: Mask) -> Result<(), VerbError> {
        self.handle.modify(&mut attributes, mask)
    }

    pub(crate) fn query(&self) -> Result<sys::ibv_srq_attr, VerbError> {
        self.handle.query()
    }

    /// Destroys the queue. Receives in flight stay in the ledger, which is kept by completion queues that may have
    /// completions of them. If the provider failed and may have left the queue half-destroyed, no verb uses it any
    /// more.
    fn destroy(&mut self) -> Result<(), VerbError> {
        let verb = "ibv_destroy_srq";
        self.alive(verb)?;
        let context = &self.domain.context;
        // No pair uses the queue: each pair has a reference to this, and the pair's handle ends before that reference.
        let handle = Arc::get_mut(&mut self.handle).ok_or(VerbError::new(verb, libc::EBUSY))?;
        let ended = context.objects.end(handle.address(), || handle.end());
        if ended.is_ok() {
            // SAFETY: the queue of this ledger was destroyed just now; see the assumption at the top of this file.
            self.ledger.end(&unsafe { Quiescent::new() });
        } else if !context.promises().destroy_may_be_retried {
            handle.give_up();
        }
        ended
    }
}

impl Drop for SharedCore {
    fn drop(&mut self) {
        // Receives in flight stay in the ledger, which is kept by completion queues that may have completions of them.
        if self.ledger.has_ended() {
            return;
        }
        if let Err(error) = self.destroy() {
            note_leak("a shared receive queue", error);
            // The device may still use the receives in flight, so nothing that it needs is freed.
            mem::forget(SharedLedger::clone(&self.ledger));
            mem::forget(Arc::clone(&self.domain));
        }
    }
}
