//! Posting all of a vector: as a batch, or as a session in one piece where that can be.
#![allow(unsafe_code, reason = "takes items out of a vector, opens a session for all of them")]

use super::batch::{Batch, BatchCause, BatchError, Fault, STAGED, batch};
use super::post::SendQueue;
use super::post_error::PostError;
use super::request::sealed::Stageable;
use super::request::{RequestMemory, WorkRequest};
use super::session::Extended;
use super::transport::Carries;
use crate::domain::Brand;
use crate::error::VerbError;
use crate::inflight::{WorkId, unlikely};
use std::mem::{self, ManuallyDrop};
use std::{fmt, ptr};

/// Of a vector, not all was posted, and not for want of room. What was not made into a request is still in the vector.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum PostAllError<B, R> {
    /// A request cannot be posted, and comes back. Those before it are posted: the next request that makes a completion
    /// retires them.
    #[error(transparent)]
    Stopped(Box<PostError<R>>),
    /// The provider refused requests, or failed. The result within says how many were added, or gives back one that was
    /// not: it cannot be posted, or was the first that was made afterwards.
    #[error(transparent)]
    Failed(Box<BatchError<B, Result<usize, PostError<R>>>>),
}

/// What a [`PostAllError`] says, without the requests.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PostAllCause {
    /// A request cannot be posted.
    #[error(transparent)]
    Stopped(PostError<()>),
    /// The provider refused requests, or failed.
    #[error(transparent)]
    Failed(BatchCause),
}

impl<B, R> PostAllError<B, R> {
    /// The error without the requests, which are dropped: it can leave a scoped domain.
    pub fn into_cause(self) -> PostAllCause {
        match self {
            Self::Stopped(error) => PostAllCause::Stopped(error.into_cause()),
            Self::Failed(error) => PostAllCause::Failed(error.into_cause()),
        }
    }
}

impl<B, R> fmt::Debug for PostAllError<B, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stopped(error) => error.fmt(f),
            Self::Failed(error) => error.fmt(f),
        }
    }
}

/// What posting all of a vector says: in two words, since it is for the data path.
type PostedAll<B, R> = Result<usize, PostAllError<B, R>>;

/// A batch of what `f` posts, which is all.
#[inline(always)]
fn batch_of_all<'env, B, T, R>(
    queue: &mut SendQueue,
    f: impl for<'batch> FnOnce(&mut Batch<'batch, 'env, B, T>) -> Result<usize, PostError<R>>,
) -> PostedAll<B, R> {
    // Boxed at once: few words for the batch to bring back.
    match batch(queue, |batch| f(batch).map_err(boxed)) {
        Ok(Ok(count)) => Ok(count),
        Ok(Err(error)) => Err(PostAllError::Stopped(error)),
        Err(error) => Err(failed(error)),
    }
}

#[cold]
#[inline(never)]
fn boxed<R>(error: PostError<R>) -> Box<PostError<R>> {
    Box::new(error)
}

#[cold]
#[inline(never)]
fn failed<B, R>(error: BatchError<B, Result<usize, Box<PostError<R>>>>) -> PostAllError<B, R> {
    PostAllError::Failed(Box::new(error.map(|result| result.map_err(|error| *error))))
}

/// Posts all of `items` that there is room for.
#[inline(always)]
pub(super) fn post_all<'env, B: Brand, T: Carries<K>, X, M: RequestMemory<B, K> + 'env, K>(
    queue: &mut SendQueue,
    items: &mut Vec<X>,
    make: impl FnMut(X) -> WorkRequest<M, K>,
) -> PostedAll<B, WorkRequest<M, K>> {
    if let Some(session) = queue.session() {
        unlikely();
        return in_session::<B, T, _, _, _>(queue, session, items, make);
    }
    batch_of_all::<B, T, _>(queue, |batch| batch.post_all(items, make))
}

/// In one session. A function of its own, so that it takes no registers from lists, and has its own for what calls must
/// preserve.
#[inline(never)]
fn in_session<'env, B: Brand, T: Carries<K>, X, M: RequestMemory<B, K> + 'env, K>(
    queue: &mut SendQueue,
    session: Extended,
    items: &mut Vec<X>,
    mut make: impl FnMut(X) -> WorkRequest<M, K>,
) -> PostedAll<B, WorkRequest<M, K>> {
    let (count, room) = (items.len(), STAGED.min(queue.room() as usize));
    let mut row = queue.poster.row(queue.poster.next_id());
    // The last is signalled, so that it may take the last slot.
    if count.wrapping_sub(1) >= room || count > row.len() as usize {
        return in_batch::<B, T, _, _, _>(queue, items, make);
    }
    let (domain, most) = (queue.domain(), queue.most());
    let mut items = Taking::new(items);
    // SAFETY: of this queue, whose pair sends.
    let mut ahead = unsafe { Ahead::open(queue, session) };
    // Two loops: a processor knows by its branches where one of half a stage ends, but not where one of a whole stage
    // does, as the provider has branches too.
    let half = (count - 1).min(STAGED / 2);
    // SAFETY: open. So many items, so much room in the queue and the row. What is inline lives for `'env`.
    let mut other = unsafe { session.add_some(ahead.queue, &mut ahead.id, half, &mut row, &mut items, &mut make) };
    if other.is_none() {
        let rest = items.left() - 1;
        // SAFETY: as above.
        other = unsafe { session.add_some(ahead.queue, &mut ahead.id, rest, &mut row, &mut items, &mut make) };
    }
    if let Some(other) = other {
        return ahead.go_on::<B, T, _, _, _>(items, make, other);
    }
    // SAFETY: there is one. What is in a session cannot be signalled any more.
    let last = make(unsafe { items.next() }).signalled();
    let Some(length) = last.plain_length(domain, most) else {
        return ahead.go_on::<B, T, _, _, _>(items, make, last);
    };
    mem::forget(items);
    let (id, WorkRequest { memory, action, .. }) = (ahead.id, last);
    ahead.id = id.after(1);
    // SAFETY: as above.
    unsafe { session.add_plain(&mut row, memory, &action, length, id) };
    ahead.complete(count)
}

/// In as many pieces as it takes.
#[cold]
#[inline(never)]
fn in_batch<'env, B: Brand, T: Carries<K>, X, M: RequestMemory<B, K> + 'env, K>(
    queue: &mut SendQueue,
    items: &mut Vec<X>,
    make: impl FnMut(X) -> WorkRequest<M, K>,
) -> PostedAll<B, WorkRequest<M, K>> {
    batch_of_all::<B, T, _>(queue, |batch| batch.post_all(items, make))
}

/// An open session, whose requests were written ahead in the ledger: neither device nor poller knows them yet.
struct Ahead<'q> {
    queue: &'q mut SendQueue,
    /// The id of the next request.
    id: WorkId,
    session: Extended,
}

impl<'q> Ahead<'q> {
    /// # Safety
    ///
    /// `session` is of the queue, whose pair sends.
    #[inline(always)]
    unsafe fn open(queue: &'q mut SendQueue, session: Extended) -> Self {
        let id = queue.id();
        // SAFETY: the caller's promise; nobody else posts (`&mut`).
        unsafe { session.start() };
        Self { queue, id, session }
    }

    /// Closes the session, and hands its `count` requests to the device.
    #[inline(always)]
    fn complete<B, R>(self, count: usize) -> PostedAll<B, R> {
        let this = ManuallyDrop::new(self);
        // SAFETY: taken out here, and not dropped.
        let queue = unsafe { ptr::read(&raw const this.queue) };
        // Before the device.
        queue.poster.publish(this.id.raw());
        // SAFETY: open.
        match unsafe { this.session.complete() } {
            Ok(()) => Ok(count),
            Err(source) => Err(uncertain(queue, count, source)),
        }
    }

    /// Goes on in a batch, with a request that is no ordinary one. It and those after it fit: all were compared with the room
    /// before the session was opened. (The batch looks again, and finds none if the pair has broken meanwhile.)
    #[cold]
    #[inline(never)]
    fn go_on<'env, B: Brand, T: Carries<K>, X, M: Stageable<B> + 'env, K>(
        self,
        items: Taking<'_, X>,
        make: impl FnMut(X) -> WorkRequest<M, K>,
        other: WorkRequest<M, K>,
    ) -> PostedAll<B, WorkRequest<M, K>> {
        let mut this = ManuallyDrop::new(self);
        let next = this.id;
        batch_of_all::<B, T, _>(this.queue, |batch| {
            let before = mem::replace(&mut batch.id, next);
            batch.open = true;
            batch.post_rest(items, make, Some(other), before)
        })
    }
}

impl Drop for Ahead<'_> {
    /// The program's code panicked.
    #[cold]
    fn drop(&mut self) {
        // SAFETY: open.
        unsafe { self.session.abort() };
        // SAFETY: written ahead, and not published.
        unsafe { self.queue.poster.drop_ahead(self.id.raw()) };
    }
}

/// The provider failed with the newest `count` requests.
#[cold]
#[inline(never)]
fn uncertain<B, R>(queue: &mut SendQueue, count: usize, source: VerbError) -> PostAllError<B, R> {
    failed(Fault::of(queue, ptr::null_mut(), count, source, ptr::null_mut()).into_error(Ok(count)))
}

/// The items of a vector that are taken out from the front; the others stay, also when the program's code panics.
pub(super) struct Taking<'v, X> {
    /// # Invariants
    ///
    /// 0. Of length 0, with items from `next` to `end` in its memory that nobody else has.
    items: &'v mut Vec<X>,
    pub(super) next: *const X,
    end: *const X,
}

impl<'v, X> Taking<'v, X> {
    /// From one item to the next, in bytes: items of no size are counted by where they would be.
    const STEP: usize = if mem::size_of::<X>() == 0 { 1 } else { mem::size_of::<X>() };

    #[inline(always)]
    pub(super) fn new(items: &'v mut Vec<X>) -> Self {
        let len = items.len();
        // SAFETY: less than before; the items are ours until this is dropped.
        unsafe { items.set_len(0) };
        let next = items.as_ptr();
        Self { end: next.wrapping_byte_add(len * Self::STEP), next, items }
    }

    /// The next item.
    ///
    /// # Safety
    ///
    /// There is one.
    #[inline(always)]
    pub(super) unsafe fn next(&mut self) -> X {
        let item = if mem::size_of::<X>() == 0 { ptr::dangling() } else { self.next };
        self.next = self.after(1);
        // SAFETY: there is one (caller), which is ours (0), and was not taken.
        unsafe { item.read() }
    }

    /// How many there are.
    #[inline(always)]
    pub(super) fn left(&self) -> usize {
        // Of items of no size there may be more than there are addresses after the first.
        self.end.addr().wrapping_sub(self.next.addr()) / Self::STEP
    }

    /// Where the next `count` end. There are so many.
    #[inline(always)]
    pub(super) fn after(&self, count: usize) -> *const X {
        self.next.wrapping_byte_add(count * Self::STEP)
    }

    #[cold]
    #[inline(never)]
    fn put_back(items: &mut Vec<X>, next: *const X, left: usize) {
        if mem::size_of::<X>() != 0 {
            // SAFETY: in the memory of the vector (0).
            unsafe { ptr::copy(next, items.as_mut_ptr(), left) };
        }
        // SAFETY: so many are there, which nobody else has (0).
        unsafe { items.set_len(left) };
    }
}

impl<X> Drop for Taking<'_, X> {
    #[inline(always)]
    fn drop(&mut self) {
        if self.next != self.end {
            Self::put_back(self.items, self.next, self.left());
        }
    }
}
