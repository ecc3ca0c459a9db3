//! Owned completion queues.
//!
//! ASSUMPTION: a queue has at least the room that was asked for.
#![forbid(unsafe_code)]

use super::polling::{self, ExtendedContext, PollEnd, PollFunctions};
use super::raw_channel::RawChannel;
use crate::device::CompletionQueueId;
use crate::device::objects::Object;
use crate::domain::DomainInner;
use crate::provider::handles;
use crate::verb_error::{VerbError, note_leak};
use std::{mem, sync::Arc};

/// An owned completion queue. Dropping this destroys the queue.
pub(crate) struct RawCompletionQueue {
    /// The device's queue. The handles of queue pairs hold it too, but a pair drops its handle before its reference to
    /// this.
    ///
    /// # Invariants
    ///
    /// 0. There is at most one [`PollEnd`] of this queue, and only that end polls, arms and resizes the queue.
    handle: Arc<handles::CompletionQueue>,
    id: CompletionQueueId,
    /// 1. The `cq_context` of an extended queue.
    extended: Option<Arc<ExtendedContext>>,
    /// The channel on which the device reports the events of the queue.
    channel: Arc<RawChannel>,
    domain: Arc<DomainInner>,
}

impl RawCompletionQueue {
    /// `ibv_create_cq` for at least `entries` completions. Its events come on this channel and completion vector.
    pub(crate) fn create(channel: &Arc<RawChannel>, entries: u32, vector: u32) -> Result<PollEnd, VerbError> {
        let functions = PollFunctions::of(channel.domain())?;
        let (handle, room) = handles::CompletionQueue::create(channel.handle(), entries, vector)?;
        PollEnd::of(Self::own(handle, channel, None), functions, room >= entries)
    }

    /// As [`create`](Self::create), but with `ibv_create_cq_ex`, for a queue that is polled through `ibv_start_poll`.
    /// `EOPNOTSUPP`: the device has no such queues, or its provider was not reviewed for them.
    pub(crate) fn create_extended(channel: &Arc<RawChannel>, entries: u32, vector: u32) -> Result<PollEnd, VerbError> {
        let functions = PollFunctions::of_extended(channel.domain())?;
        let unsupported = VerbError::new("ibv_create_cq_ex", libc::EOPNOTSUPP);
        let functions = functions.ok_or(unsupported)?;
        let extended = Arc::<ExtendedContext>::default();
        let (handle, room, is_complete) = handles::CompletionQueue::create_extended(
            channel.handle(),
            entries,
            vector,
            u64::from(polling::FIELDS),
            Arc::as_ptr(&extended).cast_mut().cast(),
            |cq| polling::is_complete(cq, &extended),
        )?;
        let queue = Self::own(handle, channel, Some(extended));
        if !is_complete {
            // The provider did not store the `cq_context` that it was given, or it left out a function that polls the
            // queue or reads a completion. This return drops `queue`, and that destroys the completion queue.
            return Err(unsupported);
        }
        PollEnd::of(queue, functions, room >= entries)
    }

    /// Takes over a queue that was just created.
    fn own(
        handle: handles::CompletionQueue,
        channel: &Arc<RawChannel>,
        extended: Option<Arc<ExtendedContext>>,
    ) -> Arc<Self> {
        let (id, domain) = (CompletionQueueId::fresh(), Arc::clone(channel.domain()));
        domain.context.objects.note(handle.address(), Object::CompletionQueue(id));
        Arc::new(Self { handle: Arc::new(handle), id, extended, channel: Arc::clone(channel), domain })
    }

    /// Whether the queue is polled through `ibv_start_poll`.
    pub(super) fn is_extended(&self) -> bool {
        self.extended.is_some()
    }

    pub(crate) fn id(&self) -> CompletionQueueId {
        self.id
    }

    pub(crate) fn domain(&self) -> &Arc<DomainInner> {
        &self.domain
    }

    /// The handle, which the pairs that complete here hold.
    pub(super) fn handle(&self) -> &Arc<handles::CompletionQueue> {
        &self.handle
    }

    /// The address by which events name this queue.
    pub(crate) fn address(&self) -> usize {
        self.handle.address()
    }

    /// Records that a queue pair for datagrams completes here. From now on polls read the senders of receives.
    pub(crate) fn expect_datagrams(&self) {
        if let Some(extended) = &self.extended {
            extended.expect_datagrams();
        }
    }
}

impl Drop for RawCompletionQueue {
    fn drop(&mut self) {
        let (address, handle) = (self.address(), &mut self.handle);
        // Each queue pair that uses the queue keeps this `RawCompletionQueue` alive, so no such pair is left. (A pair
        // that was leaked during its creation keeps only the handle. Then `end_shared` fails.)
        let destroy = || handles::CompletionQueue::end_shared(handle, "ibv_destroy_cq");
        if let Err(error) = self.domain.context.objects.end(address, destroy) {
            mem::forget(Arc::clone(&self.channel));
            mem::forget(Arc::clone(&self.domain));
            mem::forget(self.extended.take());
            note_leak("a completion queue", error);
        }
    }
}
