//! Posting all items of a vector: in a batch of their own, or in one session if all of them fit into it.

use super::cell::Items;
use super::entry::sealed::Postable;
use super::pending_posts::PendingPosts;
use super::raw_batch::{Fault, batch_in_place, run};
use super::raw_session::Sessions;
use super::request::WorkRequest;
use super::work_queue::{STAGED, SendQueue};
use super::{BatchError, PostAllError, PostError, unlikely};
use crate::domain::Brand;
use crate::verb_error::VerbError;
use std::mem;

/// The result of posting all of a vector. It is two words, since the data path returns it.
pub(crate) type PostedAll<B, R> = Result<usize, PostAllError<B, R>>;

/// The result of a batch of all items. The error is boxed at once, so that the batch returns few words.
type Boxed<R> = Result<usize, Box<PostError<R>>>;

/// Posts `items`, as many as there is room for.
#[inline(always)]
pub(crate) fn post_all<B: Brand, X, M: Postable<B>, K>(
    queue: &mut SendQueue,
    items: &mut Vec<X>,
    make: impl FnMut(X) -> WorkRequest<M, K>,
) -> PostedAll<B, WorkRequest<M, K>> {
    if let Some(sessions) = queue.sessions() {
        unlikely();
        return all_in_session(queue, sessions, items, make);
    }
    answer(batch_in_place(queue, |batch| batch.post_all(items, make).map_err(boxed)))
}

/// Posts all of `items` in one session. This function is not inlined: it would take registers from the code for lists,
/// and has more callee-saved registers this way.
#[inline(never)]
fn all_in_session<B: Brand, X, M: Postable<B>, K>(
    queue: &mut SendQueue,
    sessions: Sessions,
    items: &mut Vec<X>,
    mut make: impl FnMut(X) -> WorkRequest<M, K>,
) -> PostedAll<B, WorkRequest<M, K>> {
    let count = items.len();
    let mut pending = PendingPosts::new(queue, &[]);
    let mut items = Items::new(items);
    // One session posts all items if there are 1 to `STAGED` of them, the queue has room for all, and their cells in
    // the ledger are contiguous (one row). Otherwise, also for 0 items, a batch posts them. The session may take the
    // queue's last free slot. The request in that slot must be signalled: it is the last request below, which is always
    // signalled.
    if count.wrapping_sub(1) >= STAGED.min(pending.room_in_row() as usize) {
        return go_on(pending, items, make, None);
    }
    let bounds = pending.bounds();
    let mut session = pending.session_writer(sessions);
    // Each call of `add_some` is a loop. Two short loops are faster than one long loop: the processor predicts the end
    // of a loop over half a stage, but not the end of a loop over a whole stage. The processor's branch history is too
    // short for a whole stage, since it also holds the branches of the provider.
    let mut other = session.add_some((count - 1).min(STAGED / 2), &mut items, &mut make);
    if other.is_none() {
        let rest = items.left() - 1;
        other = session.add_some(rest, &mut items, &mut make);
    }
    if other.is_none()
        && let Some(last) = items.next()
    {
        // The flags of a request cannot be changed after it was added to a session. So the last request becomes a
        // signalled one before it is added.
        match make(last).signalled().plain(bounds) {
            Ok(last) => other = session.add(last, false).err().map(|last| last.into_request()),
            Err(last) => other = Some(last),
        }
    }
    drop(session);
    if other.is_some() {
        return go_on(pending, items, make, other);
    }
    mem::forget(items);
    match pending.complete() {
        Ok(()) => Ok(count),
        Err(source) => Err(uncertain(&pending, count, source)),
    }
}

/// Poisons the queue, since the provider failed and may have queued any of the items.
#[cold]
#[inline(never)]
fn uncertain<B, R>(queue: &SendQueue, count: usize, source: VerbError) -> PostAllError<B, R> {
    queue.poison();
    failed(Fault::uncertain(count, source).into_error(Ok(count)))
}

/// Continues as a batch, with as many doorbells as needed: first the request `other`, then the `items` that are left.
#[cold]
#[inline(never)]
fn go_on<B: Brand, X, M: Postable<B>, K>(
    pending: PendingPosts<'_>,
    items: Items<'_, X>,
    make: impl FnMut(X) -> WorkRequest<M, K>,
    other: Option<WorkRequest<M, K>>,
) -> PostedAll<B, WorkRequest<M, K>> {
    let first = pending.id();
    answer(run(first, pending, |batch| batch.post_rest(items, make, other, first).map_err(boxed)))
}

#[inline(always)]
fn answer<B, R>(result: Result<Boxed<R>, BatchError<B, Boxed<R>>>) -> PostedAll<B, R> {
    match result {
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
fn failed<B, R>(error: BatchError<B, Boxed<R>>) -> PostAllError<B, R> {
    PostAllError::Failed(Box::new(error.map(|result| result.map_err(|error| *error))))
}
