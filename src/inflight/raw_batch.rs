//! Batches: requests that are handed to the device together, by one doorbell.
//!
//! A batch writes its requests [ahead](Ahead) until it rings: at its end, and earlier where there is no room for
//! another request. This file decides when a batch rings, and says what became of its requests where a doorbell fails.

use super::ahead::Ahead;
use super::items::Items;
use super::ledger::between;
use super::raw_post::{PostFailure, SendQueue};
use super::request::{Postable, WorkRequest};
use super::stage::with_stage;
use super::{BatchError, PostError, PostedMemory, WorkId, unlikely};
use crate::domain::Brand;
use crate::verb_error::VerbError;
use std::{marker::PhantomData, mem};

/// A batch without its transport.
///
/// What is inline in its requests lives for `'env`, and the batch rings before that ends.
pub(crate) struct RawBatch<'batch, 'env, B> {
    ahead: Ahead<'batch>,
    /// The id of the first request.
    start: WorkId,
    /// After a fault there is no room.
    fault: Option<Box<Fault<B>>>,
    env: PhantomData<fn(&'env ()) -> &'env ()>,
}

/// What went wrong at a doorbell.
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

    /// The provider refused the newest `count` requests.
    #[cold]
    fn of(ahead: &mut Ahead<'_>, count: usize, (source, unqueued): PostFailure) -> Self {
        let mut fault = Self::uncertain(count, source);
        let Some(mut unqueued) = unqueued else {
            ahead.poison();
            return fault;
        };
        let posted = count.saturating_sub(unqueued.count() as usize);
        (fault.posted, fault.uncertain) = (posted as u32, 0);
        for at in (posted..count).rev() {
            let Some(entry) = ahead.take_back(&mut unqueued, at) else { break };
            fault.refused.push(entry.into_memory());
        }
        fault.refused.reverse();
        fault
    }

    /// The error, with what the program's code returned.
    pub(super) fn into_error<R>(self, result: R) -> BatchError<B, R> {
        let Self { posted, refused, uncertain, source } = self;
        BatchError { posted: posted as usize, refused, uncertain, source, result }
    }
}

/// Lends `f` a batch on `queue`, and rings after it.
#[inline(always)]
pub(crate) fn batch<'env, B, R>(
    queue: &mut SendQueue,
    f: impl for<'batch> FnOnce(RawBatch<'batch, 'env, B>) -> (RawBatch<'batch, 'env, B>, R),
) -> Result<R, BatchError<B, R>> {
    with_stage(|stage| {
        let (mut batch, result) = f(RawBatch::of(queue.id(), Ahead::new(queue, stage)));
        batch.ring();
        if batch.fault.is_none() {
            // Nothing is ahead any more, and no session is open.
            mem::forget(batch);
            return Ok(result);
        }
        Err(batch.into_error(result))
    })
}

/// Lends `f` a batch on `queue`, and rings after it. The batch stays in its place, which is faster.
#[inline(always)]
pub(super) fn batch_in_place<'env, B, R>(
    queue: &mut SendQueue,
    f: impl FnOnce(&mut RawBatch<'_, 'env, B>) -> R,
) -> Result<R, BatchError<B, R>> {
    with_stage(|stage| run(queue.id(), Ahead::new(queue, stage), f))
}

/// Lends `f` a batch with the requests that are `ahead`, from the id `start` on, and rings after it.
#[inline(always)]
pub(super) fn run<'env, B, R>(
    start: WorkId,
    ahead: Ahead<'_>,
    f: impl FnOnce(&mut RawBatch<'_, 'env, B>) -> R,
) -> Result<R, BatchError<B, R>> {
    let mut batch = RawBatch::of(start, ahead);
    let result = f(&mut batch);
    batch.ring();
    if batch.fault.is_none() {
        // Nothing is ahead any more, and no session is open.
        mem::forget(batch);
        return Ok(result);
    }
    Err(batch.into_error(result))
}

impl<'batch, B> RawBatch<'batch, '_, B> {
    #[inline(always)]
    fn of(start: WorkId, ahead: Ahead<'batch>) -> Self {
        RawBatch { ahead, start, fault: None, env: PhantomData }
    }
}

impl<'env, B> RawBatch<'_, 'env, B> {
    /// How many requests the device does not know yet.
    #[inline(always)]
    pub(crate) fn count(&self) -> u32 {
        self.ahead.count()
    }

    #[inline(always)]
    pub(crate) fn post<M: Postable<B> + 'env, K>(
        &mut self,
        request: WorkRequest<M, K>,
    ) -> Result<WorkId, PostError<WorkRequest<M, K>>>
    where
        B: Brand,
    {
        let request = match request.plain(self.ahead.bounds()) {
            Ok(request) => match self.ahead.stage(request) {
                Ok(id) => return Ok(id),
                Err(request) => request.into_request(),
            },
            Err(request) => request,
        };
        self.post_any(request)
    }

    /// [`post`](Self::post) of any request to any queue.
    #[cold]
    #[inline(never)]
    fn post_any<M: Postable<B> + 'env, K>(
        &mut self,
        request: WorkRequest<M, K>,
    ) -> Result<WorkId, PostError<WorkRequest<M, K>>>
    where
        B: Brand,
    {
        let request = match request.check(self.ahead.bounds()) {
            Ok(request) => request,
            Err((request, flaw)) => return Err(PostError::Flawed { request, flaw }),
        };
        if self.count() == self.ahead.room() && !self.ring_for_room() {
            return Err(self.no_room(request.into_request()));
        }
        self.ahead.add(request).map_err(|request| self.no_room(request.into_request()))
    }

    #[inline(always)]
    pub(crate) fn post_each<M: Postable<B> + 'env, K>(
        &mut self,
        requests: impl IntoIterator<Item = WorkRequest<M, K>>,
    ) -> Result<usize, PostError<WorkRequest<M, K>>>
    where
        B: Brand,
    {
        let (before, sessions) = (self.ahead.next_id(), self.ahead.sessions());
        let mut requests = requests.into_iter();
        loop {
            let other = match sessions {
                None => self.ahead.stage_each(&mut requests),
                Some(sessions) => self.ahead.add_each(sessions, &mut requests),
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
        let before = self.ahead.next_id();
        if self.ahead.sessions().is_some() {
            unlikely();
            return self.post_rest(items, make, None, before);
        }
        let other = self.ahead.stage_row(&mut items, &mut make);
        if items.left() != 0 || other.is_some() {
            return self.post_rest(items, make, other, before);
        }
        Ok(self.signal_last(before))
    }

    /// [`post_all`](Self::post_all), where one row of the ledger is not enough or a request is not plain: that is
    /// `other`, which was made before the `items` that are left. Since then the batch had `before` as its next id.
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
        let sessions = self.ahead.sessions();
        loop {
            if other.is_none() && items.left() != 0 {
                let is_for_row = match sessions {
                    None => self.ahead.has_plain_slot(),
                    Some(_) => self.ahead.plain_room() != 0 && items.left() != 1,
                };
                if !is_for_row {
                    if self.is_full() {
                        // The last request took the last slot, so it makes a completion.
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
                None => self.ahead.stage_row(&mut items, &mut make),
                Some(sessions) => {
                    // What is in a session cannot be signalled any more, so the last item goes another way.
                    let count = (self.ahead.plain_room() as usize).min(items.left() - 1);
                    if count == 0 {
                        None
                    } else {
                        self.ahead.in_session(sessions).add_some(count, &mut items, &mut make)
                    }
                }
            };
        }
    }

    /// Makes the newest request a signalled one, if any was added since the batch had `before` as its next id. Returns
    /// how many were added.
    #[inline(always)]
    fn signal_last(&mut self, before: WorkId) -> usize {
        let added = self.added_since(before);
        if added != 0 {
            // It is still ahead: after a doorbell at least one request was added.
            self.ahead.signal_newest();
        }
        added
    }

    /// How many requests were added since the batch had `before` as its next id.
    #[inline(always)]
    fn added_since(&self, before: WorkId) -> usize {
        between(before.raw(), self.ahead.next_id().raw()) as usize
    }

    /// Rings the doorbell, since what is ahead may have to complete to make room. Returns whether there is room now.
    #[cold]
    #[inline(never)]
    fn ring_for_room(&mut self) -> bool {
        self.ring();
        if self.fault.is_none() {
            self.ahead.look_for_room();
        }
        self.ahead.room() != 0
    }

    /// Whether there is no room, also after a doorbell, and nothing else is wrong.
    fn is_full(&mut self) -> bool {
        self.count() == self.ahead.room() && !self.ring_for_room() && self.fault.is_none() && !self.ahead.is_broken()
    }

    #[cold]
    fn no_room<R>(&self, request: R) -> PostError<R> {
        match self.fault.as_deref() {
            Some(Fault { source, uncertain: 0, .. }) => PostError::Refused { request, source: *source },
            // If it is uncertain what was posted, the queue is broken and says so.
            _ => self.ahead.no_room(request),
        }
    }

    /// Hands what is ahead to the device.
    #[inline(always)]
    fn ring(&mut self) {
        let before = self.ahead.id();
        if let Err(failed) = self.ahead.ring() {
            self.refused(before, failed);
        }
    }

    /// The provider refused the requests from the id `first` on, or some of them.
    #[cold]
    fn refused(&mut self, first: WorkId, failed: PostFailure) {
        let count = self.added_since(first);
        let mut fault = Fault::of(&mut self.ahead, count, failed);
        fault.posted += between(self.start.raw(), first.raw());
        self.fault = Some(Box::new(fault));
    }

    /// The error of a batch with a fault, with what its closure returned.
    #[cold]
    #[inline(never)]
    fn into_error<R>(mut self, result: R) -> BatchError<B, R> {
        let fault = self.fault.take().map(|fault| *fault);
        // Callers have seen that there is a fault.
        fault.unwrap_or_else(|| Fault::uncertain(0, VerbError::new("ibv_post_send", 0))).into_error(result)
    }
}
