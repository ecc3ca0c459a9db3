//! Shared receive queues: the owned handle, and posting to it.
//!
//! ASSUMPTION: where the provider has `Shared`, an `ibv_destroy_srq` that returns 0 has ended every access of the
//! device through the queue's receives. Where the provider has `refusal_is_sure`, a post that fails and points `bad_wr`
//! at its request has not queued that request. (`provider/reviewed.rs`)
#![forbid(unsafe_code)]

use super::work_queue::SharedPosts;
use super::{Entry, MAX_SLOTS, PostError, SharedLedger, SlabPoster, WorkId, slab};
use crate::device::SharedReceiveQueueId;
use crate::device::objects::Object;
use crate::domain::DomainInner;
use crate::memory::Buffer;
use crate::provider::handles::{self, PostRight};
use crate::sync::lock;
use crate::sys::{self, ibv_srq_attr_mask as Mask};
use crate::verb_error::{VerbError, note_leak};
use std::mem;
use std::sync::{Arc, Mutex};

/// Held while a shared receive queue is made or destroyed. mlx5 takes a queue out of its table without the lock under
/// which it puts queues in (`mlx5_destroy_srq`), and frees a part of the table that is empty.
static TABLE_TURN: Mutex<()> = Mutex::new(());

/// A shared receive queue. The handle that posts and all pairs of the queue keep this alive.
pub(crate) struct SharedCore {
    /// The device's queue. The handles of queue pairs hold it too, but a pair drops its handle before its reference to
    /// this.
    handle: Arc<handles::SharedQueue>,
    pub(crate) id: SharedReceiveQueueId,
    pub(crate) ledger: SharedLedger,
    pub(crate) domain: Arc<DomainInner>,
}

/// The one handle that posts to a shared receive queue.
pub(crate) struct SharedPoster {
    /// Posts nothing more once the queue is no longer alive, or after a post that may be half done.
    posts: SharedPosts,
    pub(crate) poster: SlabPoster<Entry>,
    /// Its queue ends only after `posts` has given up its right, so this is dropped after `posts`.
    core: Arc<SharedCore>,
}

impl SharedPoster {
    /// Creates a queue for `receives` receives in flight, with a ledger of `slots` slots.
    pub(crate) fn create(domain: &Arc<DomainInner>, receives: u32, slots: u32) -> Result<Self, VerbError> {
        let unsupported = VerbError::new("ibv_create_srq", libc::EOPNOTSUPP);
        if domain.context.functions().post_srq_recv.is_none() {
            return Err(unsupported);
        }
        let number = domain.numbers.take(MAX_SLOTS).ok_or(VerbError::new("ibv_create_srq", libc::ENOMEM))?;
        let asked = sys::ibv_srq_attr { max_wr: receives, max_sge: 1, srq_limit: 0 };
        let turn = lock(&TABLE_TURN);
        let (mut handle, granted) = handles::SharedQueue::create(domain.handle(), asked)?;
        drop(turn);
        let end = handle.post_end().ok_or(unsupported)?;
        let id = SharedReceiveQueueId::fresh();
        domain.context.objects.note(handle.address(), Object::SharedReceiveQueue(id));
        let poster = slab(number, slots, receives);
        let ledger = SharedLedger::clone(&poster.slab);
        let core = Arc::new(SharedCore { handle: Arc::new(handle), id, ledger, domain: Arc::clone(domain) });
        let this = Self { posts: SharedPosts::new(end), poster, core };
        if granted.max_wr < receives || granted.max_sge < 1 {
            // This return drops the right to post, and after that the core. The drop of the core destroys the queue.
            return Err(VerbError::new("ibv_create_srq", libc::ENOMEM));
        }
        Ok(this)
    }

    pub(crate) fn core(&self) -> &Arc<SharedCore> {
        &self.core
    }

    pub(crate) fn is_broken(&self) -> bool {
        !self.posts.may_post()
    }

    /// Refuses all later posts.
    pub(crate) fn break_down(&mut self) {
        drop(self.posts.give_up());
    }

    /// Posts a receive into all of `buffer`, unless the queue is broken.
    #[inline]
    pub(crate) fn post<B>(&mut self, buffer: Buffer<B>) -> Result<WorkId, PostError<Buffer<B>>> {
        if self.is_broken() {
            return Err(PostError::Broken { request: buffer, first_failure: None });
        }
        let Some(vacancy) = self.poster.vacancy() else { return Err(PostError::QueueFull(buffer)) };
        match self.posts.post(vacancy, buffer) {
            (id, Ok(())) => Ok(id),
            (id, Err((source, is_named))) => Err(self.refused(is_named, id, source)),
        }
    }

    /// The error of a post that failed. `is_named`: `bad_wr` points to the request.
    #[cold]
    fn refused<B>(&mut self, is_named: bool, id: WorkId, source: VerbError) -> PostError<Buffer<B>> {
        // The request was certainly not queued if `bad_wr` names it and the provider has `refusal_is_sure`. Otherwise
        // the device perhaps has the request.
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
        let right = self.posts.give_up();
        // Each pair that receives from the queue holds a reference to the core. So if `get_mut` succeeds, there is no
        // such pair.
        let ended = match Arc::get_mut(&mut self.core) {
            Some(core) => core.destroy(right),
            None => Err((VerbError::new("ibv_destroy_srq", libc::EBUSY), right)),
        };
        ended.map_err(|(error, right)| {
            // If the queue is still alive, posts may go on. If the provider may have left the queue half-destroyed,
            // `is_alive` is false: then the right is dropped, and nothing more is posted.
            self.posts.give_back(right.filter(|_| self.core.handle.is_alive()));
            error
        })
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

    /// Destroys the queue. Receives in flight stay in the ledger. A completion queue that may have completions of them
    /// keeps the ledger alive. If the provider failed and may have left the queue half-destroyed, no verb uses it any
    /// more.
    ///
    /// `right` is the right to post; `None` if it was given up. The right comes back if the queue is not destroyed.
    fn destroy(&mut self, right: Option<PostRight>) -> Result<(), (VerbError, Option<PostRight>)> {
        let verb = "ibv_destroy_srq";
        let context = &self.domain.context;
        if let Err(error) = self.alive(verb) {
            return Err((error, right));
        }
        // Only pairs hold other references to the handle. Each such pair also holds a reference to this `SharedCore`,
        // and drops its handle reference first. `&mut self` shows that no pair has a reference to this `SharedCore` any
        // more. So `get_mut` fails only if a pair was leaked during its creation: its handle reference stays for ever.
        let Some(handle) = Arc::get_mut(&mut self.handle) else {
            return Err((VerbError::new(verb, libc::EBUSY), right));
        };
        let ended = context.objects.end(handle.address(), || {
            let _turn = lock(&TABLE_TURN);
            handle.destroy(right)
        });
        ended.map(|quiescent| self.ledger.end(&quiescent)).inspect_err(|_| {
            if !context.promises().destroy_may_be_retried {
                handle.give_up();
            }
        })
    }
}

impl Drop for SharedCore {
    fn drop(&mut self) {
        // The ledger has ended only if an earlier `destroy` succeeded. Then the device's queue is gone, and nothing is
        // left to do.
        if self.ledger.has_ended() {
            return;
        }
        if let Err((error, _)) = self.destroy(None) {
            note_leak("a shared receive queue", error);
            // Perhaps the device still uses the receives in flight. So neither their memory nor the domain is freed.
            mem::forget(SharedLedger::clone(&self.ledger));
            mem::forget(Arc::clone(&self.domain));
        }
    }
}
