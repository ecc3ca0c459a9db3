//! A sender for many tasks.

use super::after::WakeOnDrop;
use super::lane::Parked;
use super::sender::{LentSender, Place, Sender};
use super::sender_mode::Deferred;
use crate::completion::PollError;
use crate::domain::Brand;
use crate::queue::transport::{ReliableConnection, Transport};
use crate::sync::lock;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::fmt;
use std::mem;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

/// A [`Sender`] for many tasks. This is a handle: clones name the same sender.
///
/// A task posts with [`with`](Self::with), which locks the sender for the length of the call. If the queue is full,
/// [`room`](Self::room) waits for a [`Permit`]. The task that has waited longest gets the next permit, and no other
/// post overtakes it. If each task can have a queue pair of its own, prefer that: it needs no lock.
///
/// # Examples
///
/// ```no_run
/// # use interlock::aio::SharedSender;
/// # use interlock::{Brand, Buffer};
/// # type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;
/// async fn send<B: Brand>(sender: &SharedSender<B>, buffer: Buffer<B>) -> Result<Buffer<B>> {
///     let permit = sender.room().await?; // holds no buffer: may be dropped in a `select!`
///     let posted = permit.with(|sender| sender.send(buffer)).map_err(|error| error.into_cause())?;
///     Ok(posted.await.map_err(|error| error.into_cause())?)
/// }
/// ```
pub struct SharedSender<B, T = ReliableConnection> {
    inner: Arc<Mutex<Inner<B, T>>>,
}

struct Inner<B, T> {
    sender: Sender<B, T>,
    /// How many permits there are that have not been used.
    permits: u32,
    /// The line of those who wait for a permit, the longest wait in front: the number and the waker of each.
    waiting: VecDeque<(u64, Option<Waker>)>,
    /// The number that the next one in the line gets.
    next: u64,
}

impl<B: Brand, T: Transport> Sender<B, T> {
    /// Makes this sender usable by many tasks.
    pub fn into_shared(self) -> SharedSender<B, T> {
        let inner = Inner { sender: self, permits: 0, waiting: VecDeque::new(), next: 0 };
        SharedSender { inner: Arc::new(Mutex::new(inner)) }
    }
}

impl<B: Brand, T: Transport> SharedSender<B, T> {
    /// Lends the sender to `f`, under a lock. A task that calls this meanwhile on another thread blocks that thread, so
    /// `f` should only post, and return the futures.
    ///
    /// `f` must not use this `SharedSender`, or it deadlocks. So `f` should not drop futures, and not call `with` of
    /// another `SharedSender`: both may wake tasks under the lock, and a waker may poll a task that uses this one.
    ///
    /// The posts of `f` cannot use room that [`room`](Self::room) has promised to others. While a task waits in `room`,
    /// every post of `f` fails with [`PostError::QueueFull`](crate::PostError::QueueFull), even if the queue has room.
    pub fn with<R>(&self, f: impl FnOnce(&mut LentSender<'_, B, T>) -> R) -> R {
        // `deferred` is declared before `inner`, so that it is dropped after `inner`, even if `f` panics. The drop of
        // `deferred` wakes tasks, which must not happen under the lock.
        let mut deferred = Deferred::none();
        let mut inner = lock(&*self.inner);
        let promised = if inner.waiting.is_empty() { inner.permits } else { u32::MAX };
        let result = f(&mut inner.sender.lend(promised, &mut deferred));
        drop(inner);
        // Drop `deferred` here, and not at the end of the function. If a waker panics here, `result` is dropped. At the
        // end `result` is already being returned, and a panic would leak `result`.
        drop(deferred);
        result
    }

    /// Waits for room for one request. Dropping the future loses nothing. A future that is not polled any more keeps
    /// its place in the line, so drop it. A future that is forgotten keeps the poller allocated, as every future here.
    ///
    /// If the pair is broken, a permit comes without room, and the post then says why.
    ///
    /// # Errors
    ///
    /// The completion queue failed.
    pub async fn room(&self) -> Result<Permit<'_, B, T>, PollError> {
        match self.take_at_once() {
            Some(permit) => Ok(permit),
            None => Room { sender: self, number: None, place: None }.await,
        }
    }

    /// A permit, if there is room and nobody is in the line.
    #[inline(always)]
    fn take_at_once(&self) -> Option<Permit<'_, B, T>> {
        let mut inner = lock(&*self.inner);
        let is_free = inner.waiting.is_empty() && inner.sender.free() > inner.permits;
        is_free.then(|| {
            inner.permits += 1;
            Permit { sender: self }
        })
    }

    /// The sender, if this is the only handle. Otherwise the handle.
    ///
    /// # Errors
    ///
    /// This handle: there are others.
    pub fn try_into_sender(self) -> Result<Sender<B, T>, Self> {
        match Arc::try_unwrap(self.inner) {
            Ok(inner) => Ok(inner.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner).sender),
            Err(inner) => Err(Self { inner }),
        }
    }
}

impl<B: Brand, T: Transport> Inner<B, T> {
    /// A permit is used while others are in the line: the first of them is woken, and only the first post goes before
    /// them. Returns for how many requests the posts leave room.
    #[cold]
    fn keep_for_line(&mut self, deferred: &mut Deferred<B>) -> u32 {
        deferred.wake_first(self.first_waker());
        self.sender.free().saturating_sub(1).max(self.permits)
    }
}

impl<B, T> Inner<B, T> {
    /// Takes the waker of the first in the line.
    fn first_waker(&mut self) -> Option<Waker> {
        self.waiting.front_mut().and_then(|(_, waker)| waker.take())
    }
}

/// Waits for a [`Permit`].
struct Room<'s, B, T> {
    sender: &'s SharedSender<B, T>,
    /// The number in the line; `None` before the first poll, and after the end.
    number: Option<u64>,
    /// Where the first in the line waits for room.
    place: Option<Place<B>>,
}

/// A waker that was replaced, to be dropped without the lock.
type OldWaker = Option<Waker>;

/// What a look at the line has found.
enum Look {
    /// The caller has a permit. The first waker is that of the next one in the line.
    Permit(WakeOnDrop, [OldWaker; 3]),
    /// The caller is the first in the line. It waits for a permit to end, or for a request of the sender to complete.
    First(#[allow(dead_code, reason = "is dropped")] OldWaker),
    /// The caller waits for those in front of it.
    InLine(#[allow(dead_code, reason = "is dropped")] OldWaker),
}

impl<B, T> Room<'_, B, T> {
    /// Ends the wait of the first in the line, at one desk or two. The caller holds the lock of the sender: otherwise
    /// the next one in the line might leave its waker there before this takes it. Returns the wakers, to be dropped
    /// without a lock.
    fn stop_waiting(&mut self) -> [Option<Waker>; 2] {
        let Some(Place { desk, slot, other }) = self.place.take() else { return [None, None] };
        let for_room = desk.with(|state| state.lanes.with(slot, |lane, tally| lane.stop_waiting_for_room(tally)));
        [for_room.flatten(), other.and_then(|(desk, place)| desk.stop_watching(place))]
    }
}

impl<B: Brand, T: Transport> Room<'_, B, T> {
    /// Looks whether there is a permit, and otherwise leaves `waker` in the line.
    fn look(&mut self, waker: Waker) -> Look {
        let mut guard = lock(&*self.sender.inner);
        let inner = &mut *guard;
        let number = *self.number.get_or_insert_with(|| {
            inner.waiting.push_back((inner.next, None));
            inner.next += 1;
            inner.next - 1
        });
        let is_first = inner.waiting.front().is_some_and(|&(first, _)| first == number);
        if is_first && (inner.sender.free() > inner.permits || inner.sender.is_broken()) {
            let own = inner.waiting.pop_front().and_then(|(_, waker)| waker);
            inner.permits += 1;
            self.number = None;
            let [for_room, watch] = self.stop_waiting();
            return Look::Permit(WakeOnDrop(inner.first_waker()), [own, for_room, watch]);
        }
        let place = inner.waiting.iter_mut().find(|(other, _)| *other == number);
        let old = place.and_then(|(_, place)| place.replace(waker));
        if is_first { Look::First(old) } else { Look::InLine(old) }
    }
}

impl<'s, B: Brand, T: Transport> Future for Room<'s, B, T> {
    type Output = Result<Permit<'s, B, T>, PollError>;

    /// No code of a waker may run under the lock of the sender, so the look at the room and the note of the wait do not
    /// happen under one lock. A request that completes between them wakes nobody. So this looks once more after it has
    /// noted the wait.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut is_noted = false;
        loop {
            match self.look(context.waker().clone()) {
                Look::Permit(next, old) => {
                    // If a waker below panics, `permit` is dropped, and its room is free again.
                    let permit = Permit { sender: self.sender };
                    drop(old);
                    // Perhaps there is room for the next task in the line too, so wake it.
                    drop(next);
                    return Poll::Ready(Ok(permit));
                }
                Look::First(_) if !is_noted => {}
                Look::First(_) | Look::InLine(_) => return Poll::Pending,
            }
            let place = lock(&*self.sender.inner).sender.place();
            let Place { desk, slot, other } = &*self.place.insert(place);
            is_noted = true;
            let waited = desk.poll_for(
                context,
                |_| None::<Infallible>,
                |state, waker, mine, after| {
                    let parked = state.lanes.with(*slot, |lane, tally| lane.park_for_room(waker, mine, tally, after));
                    parked.unwrap_or(Parked::Yes)
                },
            );
            if let Poll::Ready(Err(error)) = waited {
                return Poll::Ready(Err(error));
            }
            if let Some((desk, place)) = other {
                desk.watch(*place, context)?;
            }
        }
    }
}

impl<B, T> Drop for Room<'_, B, T> {
    fn drop(&mut self) {
        let Some(number) = self.number else { return };
        let mut guard = lock(&*self.sender.inner);
        let Some(at) = guard.waiting.iter().position(|&(other, _)| other == number) else { return };
        let old = (guard.waiting.remove(at), self.stop_waiting());
        // If this wait was the first in the line, the drop of `_next` at the end of this function wakes the next task,
        // even if the drop of `old` panics.
        let _next = WakeOnDrop(if at == 0 { guard.first_waker() } else { None });
        drop(guard);
        drop(old);
    }
}

/// Room for one request of a [`SharedSender`]. Dropping the permit gives the room to the next task in the line.
#[must_use = "it keeps room from others"]
pub struct Permit<'s, B, T = ReliableConnection> {
    sender: &'s SharedSender<B, T>,
}

impl<B: Brand, T: Transport> Permit<'_, B, T> {
    /// Lends the sender to `f`, whose first post has room. See [`SharedSender::with`].
    pub fn with<R>(self, f: impl FnOnce(&mut LentSender<'_, B, T>) -> R) -> R {
        // `deferred` is declared before `guard`, so that it is dropped after `guard`, even if `f` panics. The drop of
        // `deferred` wakes tasks, which must not happen under the lock.
        let mut deferred = Deferred::none();
        let mut guard = lock(&*self.sender.inner);
        mem::forget(self);
        // The permit ends and `f` posts without a release of the lock in between, so no other task gets the room of
        // this permit.
        guard.permits -= 1;
        let kept = if guard.waiting.is_empty() { guard.permits } else { guard.keep_for_line(&mut deferred) };
        let result = f(&mut guard.sender.lend(kept, &mut deferred));
        drop(guard);
        // Drop `deferred` here, and not at the end of the function. If a waker panics here, `result` is dropped. At the
        // end `result` is already being returned, and a panic would leak `result`.
        drop(deferred);
        result
    }
}

impl<B, T> Drop for Permit<'_, B, T> {
    fn drop(&mut self) {
        // `_wake_first` is declared before `guard`, so that it is dropped after `guard`. The drop of `_wake_first`
        // wakes a task, which must not happen under the lock.
        let _wake_first;
        let mut guard = lock(&*self.sender.inner);
        guard.permits -= 1;
        _wake_first = WakeOnDrop(guard.first_waker());
    }
}

impl<B, T> Clone for SharedSender<B, T> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner) }
    }
}

impl<B, T> fmt::Debug for SharedSender<B, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedSender").finish_non_exhaustive()
    }
}

impl<B, T> fmt::Debug for Permit<'_, B, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit").finish_non_exhaustive()
    }
}
