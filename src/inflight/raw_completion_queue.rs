//! Owned completion queues, and the polling end of each.
//!
//! ASSUMPTION: a queue has at least the room that was asked for; the completion of a request comes after the device's
//! last access to its memory; and `ibv_poll_cq` orders the device's writes before later reads.
#![allow(unsafe_code, reason = "polls and arms the completion queue that it owns")]

use super::extended_polling::{self, ExtendedContext};
use super::polling_lock::polling_lock;
use super::raw_channel::RawChannel;
use crate::device::CompletionQueueId;
use crate::device::objects::Object;
use crate::domain::DomainInner;
use crate::provider::handles::{self, ObjectPtr};
use crate::provider::reviewed::Teardown;
use crate::sys::inline::{PollCq, RequestNotify};
use crate::sys::{self, ibv_wc};
use crate::verb_error::{VerbError, note_leak};
use libc::c_int;
use std::{mem, sync::Arc};

/// How many completions are taken from the device at once.
pub(crate) const BATCH: usize = 16;

/// An owned completion queue. Dropping this destroys the queue.
pub(crate) struct RawCompletionQueue {
    /// The device's queue. The handles of queue pairs hold it too, but each of them ends before its pair's reference to
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
    /// `ibv_create_cq` for at least `entries` completions, with its events on a channel and a completion vector.
    pub(crate) fn create(channel: &Arc<RawChannel>, entries: u32, vector: u32) -> Result<PollEnd, VerbError> {
        let context = &channel.domain().context;
        let (poll, request_notify) = functions(channel.domain())?;
        let promises = context.promises();
        let poll = if promises.teardown == Teardown::Polled {
            poll_zeroed_and_locked
        } else if promises.polls_fresh {
            poll
        } else {
            poll_zeroed
        };
        let (handle, room) = handles::CompletionQueue::create(channel.handle(), entries, vector)?;
        PollEnd::of(Self::own(handle, channel, None), poll, request_notify, room >= entries)
    }

    /// `ibv_create_cq_ex`, to be polled through `ibv_start_poll`; otherwise as [`create`](Self::create). `EOPNOTSUPP`:
    /// the device has no such queues, or its provider was not reviewed for them.
    pub(crate) fn create_extended(channel: &Arc<RawChannel>, entries: u32, vector: u32) -> Result<PollEnd, VerbError> {
        let context = &channel.domain().context;
        let (_, request_notify) = functions(channel.domain())?;
        let unsupported = VerbError::new("ibv_create_cq_ex", libc::EOPNOTSUPP);
        let poll = extended_polling::poll_of(context.promises().walk).ok_or(unsupported)?;
        let extended = Arc::<ExtendedContext>::default();
        let (handle, room, is_complete) = handles::CompletionQueue::create_extended(
            channel.handle(),
            entries,
            vector,
            u64::from(extended_polling::FIELDS),
            Arc::as_ptr(&extended).cast_mut().cast(),
            |cq| extended_polling::is_complete(cq, &extended),
        )?;
        let queue = Self::own(handle, channel, Some(extended));
        // The provider may have left out the context or a function. The return drops the queue, which destroys it.
        if !is_complete {
            return Err(unsupported);
        }
        PollEnd::of(queue, poll, request_notify, room >= entries)
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
        // No queue pair uses the queue any more, since each one keeps this alive.
        let destroy = || handles::CompletionQueue::end_shared(handle, "ibv_destroy_cq");
        if let Err(error) = self.domain.context.objects.end(address, destroy) {
            mem::forget(Arc::clone(&self.channel));
            mem::forget(Arc::clone(&self.domain));
            mem::forget(self.extended.take());
            note_leak("a completion queue", error);
        }
    }
}

/// The functions of the device that poll and arm.
fn functions(domain: &DomainInner) -> Result<(PollCq, RequestNotify), VerbError> {
    let operations = domain.context.functions();
    let both = operations.poll_cq.zip(operations.req_notify_cq);
    both.ok_or(VerbError::new("ibv_poll_cq", libc::EOPNOTSUPP))
}

/// The polling end of a completion queue, with the completions that were taken from the device and are not consumed
/// yet.
pub(crate) struct PollEnd {
    queue: Arc<RawCompletionQueue>,
    /// # Invariants
    ///
    /// 0. The pointer of `queue`, copied so that a poll touches no other cache line.
    raw: ObjectPtr<sys::ibv_cq>,
    /// 1. May be called for this queue with room for [`BATCH`] completions, by the only party that polls the queue. The
    ///    same holds for `request_notify`.
    poll: PollCq,
    request_notify: RequestNotify,
    /// 2. `filled` is at most [`BATCH`].
    filled: u32,
    /// The completions from `next` to before `filled` are not consumed yet.
    next: u32,
    polled: [ibv_wc; BATCH],
}

/// `ibv_poll_cq` failed.
#[derive(Debug)]
pub(crate) struct PollFailed;

impl PollEnd {
    /// The polling end of a queue that was just created. `has_room` says whether the queue has as much room as was
    /// asked for.
    fn of(
        queue: Arc<RawCompletionQueue>,
        poll: PollCq,
        request_notify: RequestNotify,
        has_room: bool,
    ) -> Result<Self, VerbError> {
        if !has_room {
            // This return drops the queue, which destroys it.
            return Err(VerbError::new("ibv_create_cq", libc::ENOMEM));
        }
        let raw = ObjectPtr(queue.handle.raw());
        Ok(Self { queue, raw, poll, request_notify, filled: 0, next: 0, polled: [ibv_wc::default(); BATCH] })
    }

    pub(crate) fn queue(&self) -> &Arc<RawCompletionQueue> {
        &self.queue
    }

    /// Whether all completions that were taken from the device are consumed.
    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.next >= self.filled
    }

    /// Takes up to [`BATCH`] completions from the device; `None` if it has none.
    ///
    /// The first of them must be [consumed](Pending::consume) or [kept](Pending::keep): until then this end does not
    /// know which completion is next.
    #[inline(always)]
    pub(crate) fn take(&mut self) -> Result<Option<Pending<'_>>, PollFailed> {
        // SAFETY: the queue is alive, since `queue` is. Only this end polls it, and `polled` has room for `BATCH`
        // completions (1).
        let count = unsafe { (self.poll)(self.raw.0.as_ptr(), BATCH as c_int, self.polled.as_mut_ptr()) } as u32;
        // One compare refuses both 0 and negative numbers, which are large as unsigned ones.
        if count.wrapping_sub(1) >= BATCH as u32 {
            return if count == 0 { Ok(None) } else { Err(PollFailed) };
        }
        self.filled = count;
        let [first, ..] = &self.polled;
        Ok(Some(Pending { wc: first, next: &mut self.next, at: 0 }))
    }

    /// The next completion, of those that were taken from the device.
    #[inline(always)]
    pub(crate) fn pending(&mut self) -> Option<Pending<'_>> {
        let at = self.next;
        if at >= self.filled {
            return None;
        }
        // SAFETY: `at` is less than `filled`, which is at most `BATCH` (2).
        let wc = unsafe { self.polled.get_unchecked(at as usize) };
        Some(Pending { wc, next: &mut self.next, at })
    }

    /// A copy of the next completion.
    pub(crate) fn peek(&self) -> Option<ibv_wc> {
        if self.is_empty() { None } else { self.polled.get(self.next as usize).copied() }
    }

    /// Drops the next completion.
    pub(crate) fn skip(&mut self) {
        self.next += 1;
    }

    /// Drops all completions that were taken from the device.
    pub(crate) fn clear(&mut self) {
        (self.next, self.filled) = (0, 0);
    }

    /// How many completions the last poll that found any returned. A poll that finds none leaves this number unchanged.
    pub(crate) fn found(&self) -> u32 {
        self.filled
    }

    /// `ibv_req_notify_cq`: the next completion raises an event; with `solicited_only`, only a solicited one does.
    pub(crate) fn arm(&mut self, solicited_only: bool) -> Result<(), VerbError> {
        // SAFETY: the queue is alive, since `queue` is, and only this end arms it (1).
        match unsafe { (self.request_notify)(self.raw.0.as_ptr(), c_int::from(solicited_only)) } {
            0 => Ok(()),
            errno => Err(VerbError::new("ibv_req_notify_cq", errno.wrapping_abs())),
        }
    }

    /// `ibv_resize_cq` to at least `entries` completions.
    pub(crate) fn resize(&mut self, entries: u32) -> Result<(), VerbError> {
        // SAFETY: only this end polls or resizes the queue (0 of the queue), and it is borrowed mutably.
        unsafe { self.queue.handle.resize(entries) }
    }
}

/// The next completion, which is not consumed yet.
#[must_use = "a completion that was taken from the device just now is lost unless it is kept or consumed"]
pub(crate) struct Pending<'p> {
    wc: &'p ibv_wc,
    next: &'p mut u32,
    at: u32,
}

impl<'p> Pending<'p> {
    #[inline(always)]
    pub(crate) fn wc(&self) -> &'p ibv_wc {
        self.wc
    }

    /// Consumes the completion: the one behind it is the next.
    #[inline(always)]
    pub(crate) fn consume(self) {
        *self.next = self.at + 1;
    }

    /// Keeps the completion: it stays the next one.
    #[inline(always)]
    pub(crate) fn keep(self) {
        *self.next = self.at;
    }
}

/// The immediate of a receive, or the key that it invalidated, as the device wrote it.
#[inline(always)]
pub(crate) fn immediate_or_key(wc: &ibv_wc) -> u32 {
    // SAFETY: both members of the union are numbers of 4 bytes.
    unsafe { wc.__bindgen_anon_1.imm_data }
}

/// `ibv_poll_cq` of a provider that leaves fields unchanged, or adds bits to them. The fields are zeroed first.
///
/// # Safety
///
/// As for `ibv_poll_cq`. The function table of the queue's context has that function.
unsafe extern "C" fn poll_zeroed(cq: *mut sys::ibv_cq, count: c_int, polled: *mut ibv_wc) -> c_int {
    // SAFETY: `polled` points to `count` completions (caller), and zero is a valid value of each field.
    unsafe { polled.write_bytes(0, count.try_into().unwrap_or(0)) };
    // SAFETY: `cq` is alive (caller).
    let context = unsafe { (*cq).context };
    // SAFETY: the context is open, since its completion queue is alive.
    match unsafe { (*context).ops.poll_cq } {
        // SAFETY: the caller guarantees what `ibv_poll_cq` asks for.
        Some(poll) => unsafe { poll(cq, count, polled) },
        None => -1,
    }
}

/// As [`poll_zeroed`], while no pair of the completion queue is reset.
///
/// # Safety
///
/// As for `ibv_poll_cq`. The function table of the queue's context has that function.
unsafe extern "C" fn poll_zeroed_and_locked(cq: *mut sys::ibv_cq, count: c_int, polled: *mut ibv_wc) -> c_int {
    let _lock = polling_lock(cq);
    // SAFETY: the caller guarantees what `poll_zeroed` asks for.
    unsafe { poll_zeroed(cq, count, polled) }
}
