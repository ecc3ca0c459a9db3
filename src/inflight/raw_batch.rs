//! Batches: requests that are handed to the device together, by one doorbell.
//!
//! A batch keeps its requests [pending](PendingPosts) until it rings the doorbell: at its end, and earlier if there is
//! no room for another request. This file decides when a batch rings, and what becomes of its requests if a doorbell
//! fails.

use super::cell::Items;
use super::entry::sealed::Postable;
use super::ledger::between;
use super::pending_posts::PendingPosts;
use super::request::WorkRequest;
use super::work_queue::{PostFailure, SendQueue, with_stage};
use super::{BatchError, PostError, PostedMemory, WorkId, unlikely};
use crate::domain::Brand;
use crate::verb_error::VerbError;
use std::{marker::PhantomData, mem};

/// A batch without the type of its transport.
///
/// Inline bytes of its requests live for `'env`, and the batch rings before `'env` ends.
pub(crate) struct RawBatch<'batch, 'env, B> {
    pending: PendingPosts<'batch>,
    /// The id of the first request.
    start: WorkId,
    /// The failure of a doorbell. After a failure there is no room.
    fault: Option<Box<Fault<B>>>,
    env: PhantomData<fn(&'env ()) -> &'env ()>,
}

/// The failure of a doorbell.
pub(super) struct Fault<B> {
    posted: u32,
    source: VerbError,
    refused: Vec<PostedMemory<B>>,
    uncertain: usize,
}

impl<B> Fault<B> {
    /// The provider failed with the newest `count` requests, and may have queued any of them.
    pub(super) fn uncertain(count: usize, source: VerbError) -> Self {
        Self { posted: 0, source, refused: Vec::new(), uncertain: count }
    }

    /// The failure of a doorbell for the newest `count` requests. Takes back the requests that were not queued.
    #[cold]
    fn of(pending: &mut PendingPosts<'_>, count: usize, (source, unqueued): PostFailure) -> Self {
        let mut fault = Self::uncertain(count, source);
        let Some(mut unqueued) = unqueued else {
            pending.poison();
            return fault;
        };
        let posted = count.saturating_sub(unqueued.count() as usize);
        (fault.posted, fault.uncertain) = (posted as u32, 0);
        for at in (posted..count).rev() {
            let Some(entry) = pending.take_back(&mut unqueued, at) else { break };
            fault.refused.push(entry.into_memory());
        }
        fault.refused.reverse();
        fault
    }

    /// The error for the program, with the result of its closure.
    pub(super) fn into_error<R>(self, result: R) -> BatchError<B, R> {
        let Self { posted, refused, uncertain, source } = self;
        BatchError { posted: posted as usize, refused, uncertain, source, result }
    }
}

/// Lends `f` a batch on `queue`, and rings the doorbell after `f`.
#[inline(always)]
pub(crate) fn batch<'env, B, R>(
    queue: &mut SendQueue,
    f: impl for<'batch> FnOnce(RawBatch<'batch, 'env, B>) -> (RawBatch<'batch, 'env, B>, R),
) -> Result<R, BatchError<B, R>> {
    with_stage(|stage| {
        let (mut batch, result) = f(RawBatch::of(queue.id(), PendingPosts::new(queue, stage)));
        batch.ring_doorbell();
        if batch.fault.is_none() {
            // A drop would do nothing: no request is pending, and no session is open. `forget` saves the checks of the
            // drop.
            mem::forget(batch);
            return Ok(result);
        }
        Err(batch.into_error(result))
    })
}

/// As [`batch`], but the batch stays in its place, which is faster.
#[inline(always)]
pub(super) fn batch_in_place<'env, B, R>(
    queue: &mut SendQueue,
    f: impl FnOnce(&mut RawBatch<'_, 'env, B>) -> R,
) -> Result<R, BatchError<B, R>> {
    with_stage(|stage| run(queue.id(), PendingPosts::new(queue, stage), f))
}

/// Lends `f` a batch that already has the `pending` requests, from the id `start` on. Rings the doorbell after `f`.
#[inline(always)]
pub(super) fn run<'env, B, R>(
    start: WorkId,
    pending: PendingPosts<'_>,
    f: impl FnOnce(&mut RawBatch<'_, 'env, B>) -> R,
) -> Result<R, BatchError<B, R>> {
    let mut batch = RawBatch::of(start, pending);
    let result = f(&mut batch);
    batch.ring_doorbell();
    if batch.fault.is_none() {
        // A drop would do nothing: no request is pending, and no session is open. `forget` saves the checks of the
        // drop.
        mem::forget(batch);
        return Ok(result);
    }
    Err(batch.into_error(result))
}

impl<'batch, B> RawBatch<'batch, '_, B> {
    #[inline(always)]
    fn of(start: WorkId, pending: PendingPosts<'batch>) -> Self {
        RawBatch { pending, start, fault: None, env: PhantomData }
    }
}

impl<'env, B> RawBatch<'_, 'env, B> {
    /// How many requests are pending.
    #[inline(always)]
    pub(crate) fn count(&self) -> u32 {
        self.pending.count()
    }

    #[inline(always)]
    pub(crate) fn post<M: Postable<B> + 'env, K>(
        &mut self,
        request: WorkRequest<M, K>,
    ) -> Result<WorkId, PostError<WorkRequest<M, K>>>
    where
        B: Brand,
    {
        let request = match request.plain(self.pending.bounds()) {
            Ok(request) => match self.pending.stage(request) {
                Ok(id) => return Ok(id),
                Err(request) => request.into_request(),
            },
            Err(request) => request,
        };
        self.post_any(request)
    }

    /// [`post`](Self::post) of any request to any queue: the slow path.
    #[cold]
    #[inline(never)]
    fn post_any<M: Postable<B> + 'env, K>(
        &mut self,
        request: WorkRequest<M, K>,
    ) -> Result<WorkId, PostError<WorkRequest<M, K>>>
    where
        B: Brand,
    {
        let request = match request.check(self.pending.bounds()) {
            Ok(request) => request,
            Err((request, flaw)) => return Err(PostError::Flawed { request, flaw }),
        };
        if self.count() == self.pending.room() && !self.ring_for_room() {
            return Err(self.refusal(request.into_request()));
        }
        self.pending.add(request).map_err(|request| self.refusal(request.into_request()))
    }

    #[inline(always)]
    pub(crate) fn post_each<M: Postable<B> + 'env, K>(
        &mut self,
        requests: impl IntoIterator<Item = WorkRequest<M, K>>,
    ) -> Result<usize, PostError<WorkRequest<M, K>>>
    where
        B: Brand,
    {
        let (before, sessions) = (self.pending.next_id(), self.pending.sessions());
        let mut requests = requests.into_iter();
        loop {
            let other = match sessions {
                None => self.pending.stage_each(&mut requests),
                Some(sessions) => self.pending.add_each(sessions, &mut requests),
            };
            let Some(other) = other else { return Ok(self.added_since(before)) };
            self.post_any(other)?;
        }
    }

    #[inline(always)]
    pub(crate) fn post_all<X, M: Postable<B> + 'env, K>(
        &mut self,
        items: &mut Vec<X>,
        mut make: impl FnMut(X) -> WorkRequest<M, K>,
    ) -> Result<usize, PostError<WorkRequest<M, K>>>
    where
        B: Brand,
    {
        let mut items = Items::new(items);
        let before = self.pending.next_id();
        if self.pending.sessions().is_some() {
            unlikely();
            return self.post_rest(items, make, None, before);
        }
        let other = self.pending.stage_row(&mut items, &mut make);
        if items.left() != 0 || other.is_some() {
            return self.post_rest(items, make, other, before);
        }
        Ok(self.signal_last(before))
    }

    /// The slow path of [`post_all`](Self::post_all), for items that need more than one row of the ledger and for
    /// requests that are not plain. `other` is a request that is not plain; it comes before the `items` that are left.
    /// `before` is the id of the vector's first request.
    #[cold]
    #[inline(never)]
    pub(super) fn post_rest<X, M: Postable<B> + 'env, K>(
        &mut self,
        mut items: Items<'_, X>,
        mut make: impl FnMut(X) -> WorkRequest<M, K>,
        mut other: Option<WorkRequest<M, K>>,
        before: WorkId,
    ) -> Result<usize, PostError<WorkRequest<M, K>>>
    where
        B: Brand,
    {
        let sessions = self.pending.sessions();
        loop {
            if other.is_none() && items.left() != 0 {
                let is_for_row = match sessions {
                    None => self.pending.has_plain_slot(),
                    Some(_) => self.pending.plain_room() != 0 && items.left() != 1,
                };
                if !is_for_row {
                    if self.is_full() {
                        // The queue is full, so the remaining items stay in the vector. `signal_last` is not needed:
                        // the newest request took the queue's last free slot, and such a request is always signalled.
                        return Ok(self.added_since(before));
                    }
                    other = items.next().map(&mut make);
                }
            }
            if let Some(other) = other {
                self.post_any(if items.left() == 0 { other.signalled() } else { other.without_signal() })?;
            }
            if items.left() == 0 {
                return Ok(if sessions.is_none() { self.signal_last(before) } else { self.added_since(before) });
            }
            other = match sessions {
                None => self.pending.stage_row(&mut items, &mut make),
                Some(sessions) => {
                    // The flags of a request cannot be changed after it was added to a session. So the last item is
                    // added separately, as a signalled request.
                    let count = (self.pending.plain_room() as usize).min(items.left() - 1);
                    if count == 0 {
                        None
                    } else {
                        self.pending.session_writer(sessions).add_some(count, &mut items, &mut make)
                    }
                }
            };
        }
    }

    /// Signals the newest request, if any was added from the id `before` on. Returns how many were added.
    #[inline(always)]
    fn signal_last(&mut self, before: WorkId) -> usize {
        let added = self.added_since(before);
        if added != 0 {
            // The newest request is still pending, as `signal_newest` requires. Before the end of a batch, the doorbell
            // rings only to make room for another request. If there is room then, that request is added, and is now the
            // newest one. If there is no room, the callers do not call `signal_last`.
            self.pending.signal_newest();
        }
        added
    }

    /// How many requests were added from the id `before` on.
    #[inline(always)]
    fn added_since(&self, before: WorkId) -> usize {
        between(before.raw(), self.pending.next_id().raw()) as usize
    }

    /// Rings the doorbell. This empties the stage, and lets the pending requests complete, which makes room in the
    /// queue. Returns whether there is room now.
    #[cold]
    #[inline(never)]
    fn ring_for_room(&mut self) -> bool {
        self.ring_doorbell();
        if self.fault.is_none() {
            self.pending.refresh_room();
        }
        self.pending.room() != 0
    }

    /// Whether the queue is full even after a doorbell. False if the doorbell or the queue has failed.
    fn is_full(&mut self) -> bool {
        self.count() == self.pending.room()
            && !self.ring_for_room()
            && self.fault.is_none()
            && !self.pending.is_broken()
    }

    #[cold]
    fn refusal<R>(&self, request: R) -> PostError<R> {
        match self.fault.as_deref() {
            Some(Fault { source, uncertain: 0, .. }) => PostError::Refused { request, source: *source },
            // Without a fault, the queue is full or broken. A fault with uncertain requests has broken the queue.
            // `SendQueue::refusal` tells a full queue from a broken one.
            _ => self.pending.refusal(request),
        }
    }

    /// Hands the pending requests to the device.
    #[inline(always)]
    fn ring_doorbell(&mut self) {
        let before = self.pending.id();
        if let Err(failed) = self.pending.ring_doorbell() {
            self.refused(before, failed);
        }
    }

    /// Handles the failure of a doorbell for the requests from the id `first` on.
    #[cold]
    fn refused(&mut self, first: WorkId, failed: PostFailure) {
        let count = self.added_since(first);
        let mut fault = Fault::of(&mut self.pending, count, failed);
        fault.posted += between(self.start.raw(), first.raw());
        self.fault = Some(Box::new(fault));
    }

    /// The error of a batch with a fault, with the result of its closure.
    #[cold]
    #[inline(never)]
    fn into_error<R>(mut self, result: R) -> BatchError<B, R> {
        let fault = self.fault.take().map(|fault| *fault);
        // `fault` is never `None`: the callers have checked that there is one.
        fault.unwrap_or_else(|| Fault::uncertain(0, VerbError::new("ibv_post_send", 0))).into_error(result)
    }
}
