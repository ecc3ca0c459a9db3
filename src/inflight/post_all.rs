//! Posting all of a vector: a batch of its items and nothing else, or one session where they all fit in one.

use super::ahead::Ahead;
use super::items::Items;
use super::raw_batch::{Fault, batch_in_place, run};
use super::raw_post::SendQueue;
use super::raw_session::Sessions;
use super::request::{Postable, WorkRequest};
use super::stage::STAGED;
use super::{BatchError, PostAllError, PostError, unlikely};
use crate::domain::Brand;
use crate::verb_error::VerbError;
use std::mem;

/// The answer of posting all of a vector. Two words, since the data path returns it.
pub(crate) type PostedAll<B, R> = Result<usize, PostAllError<B, R>>;

/// What a batch of all answers. The error is boxed at once, so that the batch has few words to bring back.
type Boxed<R> = Result<usize, Box<PostError<R>>>;

/// Posts all of `items` that there is room for.
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

/// Posts all of `items` in one session. A function of its own, so that it takes no registers from lists, and has its
/// own for what calls must preserve.
#[inline(never)]
fn all_in_session<B: Brand, X, M: Postable<B>, K>(
    queue: &mut SendQueue,
    sessions: Sessions,
    items: &mut Vec<X>,
    mut make: impl FnMut(X) -> WorkRequest<M, K>,
) -> PostedAll<B, WorkRequest<M, K>> {
    let count = items.len();
    let mut ahead = Ahead::new(queue, &[]);
    let mut items = Items::new(items);
    // The last request is signalled, so that it may take the last slot.
    if count.wrapping_sub(1) >= STAGED.min(ahead.room_in_row() as usize) {
        return go_on(ahead, items, make, None);
    }
    let bounds = ahead.bounds();
    let mut session = ahead.in_session(sessions);
    // Two loops: the processor's branch history reaches back far enough to predict the end of a loop over half a stage,
    // but not over a whole one, since the provider has branches too.
    let mut other = session.add_some((count - 1).min(STAGED / 2), &mut items, &mut make);
    if other.is_none() {
        let rest = items.left() - 1;
        other = session.add_some(rest, &mut items, &mut make);
    }
    if other.is_none()
        && let Some(last) = items.next()
    {
        // What is in a session cannot be signalled any more, so the last is signalled before it goes in.
        match make(last).signalled().plain(bounds) {
            Ok(last) => other = session.add(last, false).err().map(|last| last.into_request()),
            Err(last) => other = Some(last),
        }
    }
    drop(session);
    if other.is_some() {
        return go_on(ahead, items, make, other);
    }
    mem::forget(items);
    match ahead.complete() {
        Ok(()) => Ok(count),
        Err(source) => Err(uncertain(&ahead, count, source)),
    }
}

/// The provider failed with all of the items, and may have queued any of them.
#[cold]
#[inline(never)]
fn uncertain<B, R>(queue: &SendQueue, count: usize, source: VerbError) -> PostAllError<B, R> {
    queue.poison();
    failed(Fault::uncertain(count, source).into_error(Ok(count)))
}

/// Goes on in a batch, in as many pieces as it takes, with the request `other` and then with the `items` that are left.
#[cold]
#[inline(never)]
fn go_on<B: Brand, X, M: Postable<B>, K>(
    ahead: Ahead<'_>,
    items: Items<'_, X>,
    make: impl FnMut(X) -> WorkRequest<M, K>,
    other: Option<WorkRequest<M, K>>,
) -> PostedAll<B, WorkRequest<M, K>> {
    let first = ahead.id();
    answer(run(first, ahead, |batch| batch.post_rest(items, make, other, first).map_err(boxed)))
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
