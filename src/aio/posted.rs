//! A posted request as a future.

use super::desk::Desk;
use super::outcome::RequestError;
use crate::completion::{Completion, Failure, Success, Work};
use crate::domain::Brand;
use crate::inflight::{Entry, WorkId};
use crate::memory::{Buffer, BufferList, SharedBuffer};
use crate::queue::datagram::Addressed;
use crate::queue::request_kinds::{Atomic, AtomicWrite, Fenced, Inline, Read, Send as SendKind, SendTo, Write};
use std::fmt;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// A request that was posted. The future is ready when the request has completed, and gives its memory back.
///
/// The request is posted already, and goes on whatever happens to this future. Dropping the future abandons the answer,
/// not the request. When the request completes, memory of a [`Pool`](crate::memory::Pool) goes home. Other memory is
/// kept for [`Sender::take_stray`](super::Sender::take_stray): at most as many completions as the queue is deep, then
/// the oldest is dropped.
///
/// In a `select!` pass `&mut posted`, which is a future too. If another branch is ready first, nothing is abandoned,
/// and `posted` may be polled again.
///
/// The future has no deadline, since verbs have none: put a timeout around `&mut posted`.
#[must_use = "the request is posted; if the future is dropped, its answer is lost, and its memory goes to its pool or to `Sender::take_stray`"]
pub struct Posted<B, V> {
    /// `None` after the answer was given.
    desk: Option<Arc<Desk<B>>>,
    id: WorkId,
    answer: PhantomData<fn() -> V>,
}
static_assertions::assert_impl_all!(Posted<(), Buffer<()>>: Send, Sync, Unpin);
static_assertions::assert_not_impl_any!(Posted<(), Buffer<()>>: Clone);

impl<B, V> Posted<B, V> {
    #[inline(always)]
    pub(super) fn new(desk: &Arc<Desk<B>>, id: WorkId) -> Self {
        Self { desk: Some(Arc::clone(desk)), id, answer: PhantomData }
    }

    /// The id of the request.
    pub fn id(&self) -> WorkId {
        self.id
    }

    /// Gives up the answer: the same as dropping the future.
    pub fn abandon(self) {}
}

impl<B, V: Answer<B>> Future for Posted<B, V> {
    type Output = Result<V, RequestError<B>>;

    /// # Panics
    ///
    /// If it is polled again after it was ready.
    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let next = self.desk.as_ref().and_then(|desk| desk.take_request(self.id));
        match next {
            Some(completion) => Poll::Ready(self.answer(completion)),
            None => self.poll_slowly(context),
        }
    }
}

impl<B, V: Answer<B>> Posted<B, V> {
    #[inline(always)]
    fn answer(&mut self, completion: Completion<B>) -> Result<V, RequestError<B>> {
        self.desk = None;
        completion.check().and_then(V::of).map_err(RequestError::Failed)
    }

    #[inline(never)]
    fn poll_slowly(&mut self, context: &mut Context<'_>) -> Poll<Result<V, RequestError<B>>> {
        let Some(desk) = &self.desk else { panic!("`Posted` was polled after it was ready") };
        desk.poll_request(self.id, context).map(|result| match result {
            Ok(completion) => self.answer(completion),
            Err(error) => Err(RequestError::Queue(error)),
        })
    }
}

impl<B, V> Drop for Posted<B, V> {
    #[inline]
    fn drop(&mut self) {
        if let Some(desk) = &self.desk {
            desk.abandon(self.id);
        }
    }
}

impl<B, V> fmt::Debug for Posted<B, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Posted").field("id", &self.id).field("is_answered", &self.desk.is_none()).finish()
    }
}

/// The answer of an atomic request.
pub struct Fetched<B> {
    /// The value of the word before the request, in the byte order of this machine.
    pub original: u64,
    /// The buffer of the request.
    pub buffer: Buffer<B>,
}

impl<B> fmt::Debug for Fetched<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fetched").field("original", &self.original).field("buffer", &self.buffer).finish()
    }
}

mod sealed {
    #[allow(unnameable_types, reason = "seals `Answer`")]
    pub trait Answer<B> {}
    #[allow(unnameable_types, reason = "seals `Answers`")]
    pub trait Answers<B, M> {}
    #[allow(unnameable_types, reason = "seals `Returned`")]
    pub trait Returned<B> {}
}

/// A type that a [`Posted`] future may give. Sealed.
pub trait Answer<B>: sealed::Answer<B> + Sized {
    /// Makes the answer from the success of the request.
    #[doc(hidden)]
    fn of(success: Success<B>) -> Result<Self, Failure<B>>;
}

impl<B> sealed::Answer<B> for Buffer<B> {}
impl<B> Answer<B> for Buffer<B> {
    #[inline(always)]
    fn of(success: Success<B>) -> Result<Self, Failure<B>> {
        success.take_memory(Entry::try_into_buffer)
    }
}

impl<B> sealed::Answer<B> for SharedBuffer<B> {}
impl<B> Answer<B> for SharedBuffer<B> {
    #[inline]
    fn of(success: Success<B>) -> Result<Self, Failure<B>> {
        success.take_memory(Entry::try_into_shared)
    }
}

impl<B> sealed::Answer<B> for BufferList<B> {}
impl<B> Answer<B> for BufferList<B> {
    #[inline]
    fn of(success: Success<B>) -> Result<Self, Failure<B>> {
        success.take_memory(Entry::try_into_list)
    }
}

impl<B> sealed::Answer<B> for () {}
impl<B> Answer<B> for () {
    #[inline(always)]
    fn of(_: Success<B>) -> Result<Self, Failure<B>> {
        Ok(())
    }
}

impl<B> sealed::Answer<B> for Fetched<B> {}
impl<B> Answer<B> for Fetched<B> {
    #[inline]
    fn of(success: Success<B>) -> Result<Self, Failure<B>> {
        let buffer = <Buffer<B> as Answer<B>>::of(success)?;
        let original = buffer.first_chunk::<8>().map_or(0, |word| u64::from_ne_bytes(*word));
        Ok(Self { original, buffer })
    }
}

impl<B> sealed::Answer<B> for Work<B> {}
impl<B> Answer<B> for Work<B> {
    fn of(success: Success<B>) -> Result<Self, Failure<B>> {
        Ok(success.into_work())
    }
}

/// Memory of a request, and the type in which it comes back. Sealed.
pub trait Returned<B>: sealed::Returned<B> {
    /// What comes back: the memory, or `()` for [`Inline`] data.
    type Back: Answer<B>;
}

impl<B> sealed::Returned<B> for Buffer<B> {}
impl<B> Returned<B> for Buffer<B> {
    type Back = Self;
}
impl<B> sealed::Returned<B> for SharedBuffer<B> {}
impl<B> Returned<B> for SharedBuffer<B> {
    type Back = Self;
}
impl<B> sealed::Returned<B> for BufferList<B> {}
impl<B> Returned<B> for BufferList<B> {
    type Back = Self;
}
impl<B> sealed::Returned<B> for Inline<'_> {}
impl<B> Returned<B> for Inline<'_> {
    type Back = ();
}
impl<B, M: Returned<B>> sealed::Returned<B> for Addressed<B, M> {}
impl<B, M: Returned<B>> Returned<B> for Addressed<B, M> {
    type Back = M::Back;
}

/// A kind of request, and the type of its answer if its memory is `M`. Sealed.
pub trait Answers<B, M>: sealed::Answers<B, M> {
    /// The answer.
    type Answer: Answer<B>;
}

/// Implements [`Answers`] for kinds of requests whose answer is their memory.
macro_rules! give_memory_back {
    ($($kind:ty),*) => {$(
        impl<B, M: Returned<B>> sealed::Answers<B, M> for $kind {}
        impl<B, M: Returned<B>> Answers<B, M> for $kind {
            type Answer = M::Back;
        }
    )*};
}
give_memory_back!(SendKind, SendTo, Write, Read, AtomicWrite);

impl<B> sealed::Answers<B, Buffer<B>> for Atomic {}
impl<B> Answers<B, Buffer<B>> for Atomic {
    type Answer = Fetched<B>;
}
impl<B, M, K: Answers<B, M>> sealed::Answers<B, M> for Fenced<K> {}
impl<B, M, K: Answers<B, M>> Answers<B, M> for Fenced<K> {
    type Answer = K::Answer;
}

/// Checks that posted requests of every [`Brand`] may go to other threads, not only of the brand `()` as above.
#[allow(dead_code, reason = "a check for the compiler")]
fn is_send<B: Brand, V>(posted: Posted<B, V>) -> impl Send {
    posted
}
