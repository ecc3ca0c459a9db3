//! Shared receive queues: the owned handle, and posting to it.
//!
//! ASSUMPTION: `ibv_destroy_srq` that returns 0 has ended every access of the device through the queue's receives,
//! where the provider has `Shared`; and a post that fails and points `bad_wr` at its request has not queued it, where
//! the provider has `refusal_is_sure` (`provider/reviewed.rs`).
#![allow(unsafe_code, reason = "owns the raw queue, calls the provider's post function")]

use super::{Entry, MAX_SLOTS, Operation, PostError, SharedLedger, SlabPoster, WorkId, raw_pair, slab};
use crate::device::SharedReceiveQueueId;
use crate::device::objects::Object;
use crate::domain::DomainInner;
use crate::memory::Buffer;
use crate::sys::{self, ibv_srq_attr_mask as Mask, inline::PostShared};
use crate::verb_error::{VerbError, note_leak};
use std::sync::Arc;
use std::{mem, ptr, ptr::NonNull};

/// A shared receive queue. The handle that posts and all pairs of the queue keep it alive.
pub(crate) struct SharedCore {
    /// # Invariants
    ///
    /// 0. Came from the domain's provider, and is alive while `is_alive`.
    raw: NonNull<sys::ibv_srq>,
    is_alive: bool,
    pub(crate) id: SharedReceiveQueueId,
    pub(crate) ledger: SharedLedger,
    pub(crate) domain: Arc<DomainInner>,
}

// SAFETY: control verbs may be called from any thread; posting takes `&mut` of the one `SharedPoster`.
unsafe impl Send for SharedCore {}
// SAFETY: shared access calls control verbs only.
unsafe impl Sync for SharedCore {}

/// The one handle that posts to a shared receive queue.
pub(crate) struct SharedPoster {
    /// # Invariants
    ///
    /// 0. The poster of the core's ledger, and `post` the function of its provider.
    pub(crate) poster: SlabPoster<Entry>,
    post: PostShared,
    /// A post may have been half done: nothing more is posted.
    pub(crate) broken: bool,
    pub(crate) core: Arc<SharedCore>,
}

impl SharedPoster {
    /// Creates a queue for `receives` in flight, with a ledger of `slots`.
    pub(crate) fn create(domain: &Arc<DomainInner>, receives: u32, slots: u32) -> Result<Self, VerbError> {
        let Some(post) = raw_pair::functions(&domain.context).post_srq_recv else {
            return Err(VerbError::new("ibv_create_srq", libc::EOPNOTSUPP));
        };
        let number = domain.numbers.take(MAX_SLOTS).ok_or(VerbError::new("ibv_create_srq", libc::ENOMEM))?;
        let attr = sys::ibv_srq_attr { max_wr: receives, max_sge: 1, srq_limit: 0 };
        let mut attributes = sys::ibv_srq_init_attr { attr, ..Default::default() };
        // SAFETY: the domain is alive as long as we hold it.
        let raw = unsafe { domain.context.provider.create_srq(domain.raw, &mut attributes) }?;
        let id = SharedReceiveQueueId::fresh();
        domain.context.objects.note(raw, Object::SharedReceiveQueue(id));
        let poster = slab(number, slots, receives);
        let ledger = SharedLedger::clone(&poster.slab);
        let core = Arc::new(SharedCore { raw, is_alive: true, id, ledger, domain: Arc::clone(domain) });
        if attributes.attr.max_wr < receives || attributes.attr.max_sge < 1 {
            // Dropping the core destroys the queue.
            return Err(VerbError::new("ibv_create_srq", libc::ENOMEM));
        }
        Ok(Self { poster, post, broken: false, core })
    }

    /// Posts a receive into all of `buffer`.
    #[inline]
    pub(crate) fn post<B>(&mut self, buffer: Buffer<B>) -> Result<WorkId, PostError<Buffer<B>>> {
        let Some(vacancy) = self.poster.vacancy() else { return Err(PostError::QueueFull(buffer)) };
        let sg_list = buffer.part().whole_element();
        // An element of length 0 means 2^31 bytes to some devices.
        let num_sge = i32::from(buffer.capacity() != 0);
        let id = vacancy.fill(Entry::unique(Operation::Receive, buffer));
        let mut wr = sys::ibv_recv_wr { wr_id: id.raw(), next: ptr::null_mut(), sg_list, num_sge };
        let mut bad = ptr::null_mut();
        // SAFETY: alive (core 0), since only this handle ends the queue. Nobody else posts (`&mut`); the slab owns the
        // buffer.
        let result = unsafe { (self.post)(self.core.raw.as_ptr(), &mut wr, &mut bad) };
        if result == 0 && bad.is_null() {
            return Ok(id);
        }
        let errno = if result == 0 { libc::EINVAL } else { result.wrapping_abs() };
        Err(self.refused(ptr::eq(bad, &wr), id, VerbError::new("ibv_post_srq_recv", errno)))
    }

    /// The answer where the provider refused a request.
    #[cold]
    fn refused<B>(&mut self, is_named: bool, id: WorkId, source: VerbError) -> PostError<Buffer<B>> {
        // Only a provider that names our request has surely not queued it, and only if its refusals are reviewed.
        match if is_named && self.core.domain.context.promises().refusal_is_sure {
            self.poster.slab.take(id).and_then(Entry::into_buffer)
        } else {
            None
        } {
            Some(request) => PostError::Refused { request, source },
            None => {
                self.broken = true;
                PostError::Uncertain { id, source }
            }
        }
    }

    /// Destroys the queue, if no pair receives from it.
    pub(crate) fn destroy(&mut self) -> Result<(), VerbError> {
        // This is the only reference, so there is no pair.
        let ended = match Arc::get_mut(&mut self.core) {
            Some(core) => core.destroy(),
            None => Err(VerbError::new("ibv_destroy_srq", libc::EBUSY)),
        };
        // Nothing is posted to a queue that has ended, or that a failed destroy has left half-dead.
        self.broken |= !self.core.is_alive;
        ended
    }
}

impl SharedCore {
    /// For the attributes of a pair.
    pub(super) fn raw(&self) -> *mut sys::ibv_srq {
        self.raw.as_ptr()
    }

    /// Whether verbs may use the queue.
    pub(crate) fn alive(&self, verb: &'static str) -> Result<(), VerbError> {
        if self.is_alive { Ok(()) } else { Err(VerbError::new(verb, libc::EIO)) }
    }

    pub(crate) fn modify(&self, mut attributes: sys::ibv_srq_attr, mask: Mask) -> Result<(), VerbError> {
        self.alive("ibv_modify_srq")?;
        // SAFETY: alive (0).
        unsafe { self.domain.context.provider.modify_srq(self.raw, &mut attributes, mask) }
    }

    pub(crate) fn query(&self) -> Result<sys::ibv_srq_attr, VerbError> {
        self.alive("ibv_query_srq")?;
        // SAFETY: alive (0).
        unsafe { self.domain.context.provider.query_srq(self.raw) }
    }

    /// Destroys the queue. What is in flight stays in the ledger, which completion queues keep that may have
    /// completions of it. Where the queue may be half-dead after the provider failed, no verb uses it any more.
    fn destroy(&mut self) -> Result<(), VerbError> {
        self.alive("ibv_destroy_srq")?;
        let context = &self.domain.context;
        // SAFETY: alive (0); no pair uses it, since each pair has a reference to this.
        let ended = context.objects.end(self.raw, || unsafe { context.provider.destroy_srq(self.raw) });
        if ended.is_ok() {
            self.ledger.end();
        }
        self.is_alive = ended.is_err() && context.promises().destroy_may_be_retried;
        ended
    }
}

impl Drop for SharedCore {
    fn drop(&mut self) {
        // What is in flight goes with the ledger: completion queues may have completions of it.
        if self.ledger.has_ended() {
            return;
        }
        if let Err(error) = self.destroy() {
            note_leak("a shared receive queue", error);
            // The device may still use what is in flight, so nothing that it needs may end.
            mem::forget(SharedLedger::clone(&self.ledger));
            mem::forget(Arc::clone(&self.domain));
        }
    }
}
