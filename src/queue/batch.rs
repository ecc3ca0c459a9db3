//! Batches: requests that are handed to the device together.
//!
//! A batch writes ahead in the ledger, where nobody looks yet; ringing publishes what was written and hands it to the device.
#![allow(unsafe_code, reason = "links the requests of a list")]

use super::all::Taking;
use super::post::SendQueue;
use super::post_error::PostError;
use super::request::sealed::Stageable;
use super::request::{RequestMemory, WorkRequest};
use super::staged::Staged;
use super::transport::{Carries, ReliableConnection};
use crate::domain::Brand;
use crate::domain::brand::Branded;
use crate::error::VerbError;
use crate::inflight::ledger::between;
use crate::inflight::{PostedMemory, WorkId, unlikely};
use crate::seal::KEY;
use std::cell::{Cell, UnsafeCell};
use std::marker::PhantomData;
use std::mem::{self, MaybeUninit};
use std::{error, fmt, ptr};

/// How many requests a batch hands to the device at once.
pub(super) const STAGED: usize = 32;

/// Where a batch keeps its requests until it rings. Linked, so that each points to the next.
struct Stage(UnsafeCell<MaybeUninit<[Staged; STAGED]>>);

/// What a thread's [`Stage`] is used for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Usage {
    Unlinked,
    Free,
    Taken,
}

thread_local! {
    /// One for all batches of a thread: linking is done once. No pair has to keep room for it.
    static STAGE: (Cell<Usage>, Stage) = const { (Cell::new(Usage::Unlinked), Stage::new()) };
}

impl Stage {
    const fn new() -> Self {
        Self(UnsafeCell::new(MaybeUninit::uninit()))
    }

    fn first(&self) -> *mut Staged {
        self.0.get().cast()
    }

    #[cold]
    fn link(&self) {
        for at in 0..STAGED {
            let this = self.first().wrapping_add(at);
            // SAFETY: inside; nobody uses the stage now, and it does not move until its batch is over.
            unsafe { Staged::link(this, this.wrapping_add(1)) };
        }
    }
}

/// A linked stage, taken for one batch.
struct Taken {
    first: *mut Staged,
    /// What the thread's stage is used for afterwards.
    after: Usage,
}

impl Taken {
    /// The thread's stage; `spare` if a batch is using that.
    #[inline(always)]
    fn of_thread_or(spare: &Stage) -> Self {
        STAGE.with(|(usage, of_thread)| match usage.replace(Usage::Taken) {
            Usage::Free => Self { first: of_thread.first(), after: Usage::Free },
            before => Self::linked(before, of_thread, spare),
        })
    }

    #[cold]
    #[inline(never)]
    fn linked(before: Usage, of_thread: &Stage, spare: &Stage) -> Self {
        let (stage, after) = if before == Usage::Taken { (spare, Usage::Taken) } else { (of_thread, Usage::Free) };
        stage.link();
        Self { first: stage.first(), after }
    }
}

impl Drop for Taken {
    #[inline(always)]
    fn drop(&mut self) {
        // The same thread's, since a pointer makes this not `Send`.
        STAGE.with(|(usage, _)| usage.set(self.after));
    }
}

/// Notes what is staged, also when the program's code panics. Few words, so that loops run in registers.
struct Staging<'b> {
    next: *mut Staged,
    id: WorkId,
    of_batch: (&'b mut *mut Staged, &'b mut WorkId),
}
impl Drop for Staging<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        (*self.of_batch.0, *self.of_batch.1) = (self.next, self.id);
    }
}

/// Invariant in both.
type Section<'batch, 'env> = fn(&'batch (), &'env ()) -> (&'batch (), &'env ());

/// Requests that are handed to the device together, with one doorbell. Lent by [`QueuePair::batch`](crate::QueuePair::batch).
///
/// `'batch` is new for each batch, so that two batches cannot be swapped; what is posted [`Inline`](crate::Inline) is
/// copied by the doorbell, so it lives for `'env`. What a batch that panicked had not handed over was never posted: its ids
/// are given out again.
pub struct Batch<'batch, 'env, B, T = ReliableConnection> {
    pub(super) queue: &'batch mut SendQueue,
    /// # Invariants
    ///
    /// 0. Room for `STAGED` linked requests, which nobody else uses for as long as this is around. Those before `next` are
    ///    filled, and their entries are written ahead in the ledger. Neither device nor poller knows them yet. Of a queue
    ///    that posts in sessions: none, and the open session has the requests.
    staged: *mut Staged,
    next: *mut Staged,
    /// 1. As far as one can stage without a look at the queue or a signal for its last slot: inside the stage, and one less
    ///    than fits in the queue at most. The beginning of the stage after a fault, and for a queue that posts in sessions.
    plain_end: *mut Staged,
    /// The id of the next request: it tells how many there are that the device does not know.
    pub(super) id: WorkId,
    /// The id of the first request.
    start: WorkId,
    /// Whether a session is open.
    pub(super) open: bool,
    /// What fits in the queue, that of `staged` included; 0 after a fault.
    pub(super) free: u32,
    fault: Option<Box<Fault<B>>>,
    brand: Branded<B>,
    transport: PhantomData<fn() -> T>,
    section: PhantomData<Section<'batch, 'env>>,
}

/// A batch of which not all was posted. What the device surely does not have comes back.
pub struct BatchError<B, R> {
    /// How many requests were posted before the one that was refused.
    pub posted: usize,
    /// The memory of the refused request and of those staged after it, in the order of posting.
    pub refused: Vec<PostedMemory<B>>,
    /// How many requests the device may have or not: the provider did not say which one was at fault. Their memory comes with
    /// completions, or once the pair was reset or destroyed; the pair is broken. 0 where anything was `refused`.
    pub uncertain: usize,
    /// What the provider answered.
    pub source: VerbError,
    /// What the closure returned, with whatever it holds.
    pub result: R,
}

/// What a [`BatchError`] says, without memory and result.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct BatchCause {
    /// How many requests were posted before the one that was refused.
    pub posted: usize,
    /// How many requests were refused.
    pub refused: usize,
    /// How many requests the device may have or not.
    pub uncertain: usize,
    /// What the provider answered.
    pub source: VerbError,
}

impl fmt::Display for BatchCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { posted, refused, uncertain, .. } = self;
        match uncertain {
            0 => write!(f, "the provider refused {refused} requests of a batch after {posted}"),
            _ => write!(f, "the provider failed with {uncertain} requests of a batch possibly posted after {posted}"),
        }
    }
}

impl error::Error for BatchCause {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        Some(&self.source)
    }
}

impl<B, R> BatchError<B, R> {
    fn cause(&self) -> BatchCause {
        let Self { posted, uncertain, source, .. } = *self;
        BatchCause { posted, refused: self.refused.len(), uncertain, source }
    }

    /// The error without memory and result, which are dropped: it can leave a scoped domain.
    pub fn into_cause(self) -> BatchCause {
        self.cause()
    }

    /// The same error with what `f` makes of the result.
    pub fn map<P>(self, f: impl FnOnce(R) -> P) -> BatchError<B, P> {
        let Self { posted, refused, uncertain, source, result } = self;
        BatchError { posted, refused, uncertain, source, result: f(result) }
    }
}

impl<B, R> fmt::Display for BatchError<B, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.cause().fmt(f)
    }
}

impl<B, R> fmt::Debug for BatchError<B, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BatchError")
            .field("posted", &self.posted)
            .field("refused", &self.refused.len())
            .field("uncertain", &self.uncertain)
            .field("source", &self.source)
            .finish_non_exhaustive()
    }
}

impl<B, R> error::Error for BatchError<B, R> {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        Some(&self.source)
    }
}

/// What went wrong with a doorbell.
pub(super) struct Fault<B> {
    posted: u32,
    source: VerbError,
    refused: Vec<PostedMemory<B>>,
    uncertain: usize,
}

impl<B> Fault<B> {
    /// The provider refused the newest `count` requests, of which the `bad` one, of those on the stage at `staged`, is said to
    /// be at fault; none, if that is null.
    #[cold]
    pub(super) fn of(
        queue: &mut SendQueue,
        staged: *mut Staged,
        count: usize,
        source: VerbError,
        bad: *mut Staged,
    ) -> Self {
        let mut fault = Self { posted: 0, source, refused: Vec::new(), uncertain: 0 };
        let Some(at) = (0..count).find(|&at| !bad.is_null() && ptr::eq(staged.wrapping_add(at), bad)) else {
            queue.poison();
            fault.uncertain = count;
            return fault;
        };
        fault.posted = at as u32;
        for number in (at..count).rev() {
            let Some(entry) = queue.take_back() else { break };
            // SAFETY: staged there.
            unsafe { Staged::unstage(staged.wrapping_add(number), &entry) };
            fault.refused.push(entry.into_memory());
        }
        fault.refused.reverse();
        fault
    }

    /// Says so, with what the program's code returned.
    pub(super) fn into_error<R>(self, result: R) -> BatchError<B, R> {
        let Self { posted, refused, uncertain, source } = self;
        BatchError { posted: posted as usize, refused, uncertain, source, result }
    }
}

/// How many of `free` requests can be staged without a look at the queue or a signal for its last slot.
#[inline(always)]
fn plain(queue: &SendQueue, free: u32) -> usize {
    if queue.session().is_none() { STAGED.min(free.saturating_sub(1) as usize) } else { 0 }
}

/// Lends `f` a batch on `queue`.
#[inline(always)]
pub(super) fn batch<'env, B, T, R>(
    queue: &mut SendQueue,
    f: impl for<'batch> FnOnce(&mut Batch<'batch, 'env, B, T>) -> R,
) -> Result<R, BatchError<B, R>> {
    let spare = Stage::new();
    let taken = Taken::of_thread_or(&spare);
    let staged = taken.first;
    let (brand, transport, section) = (PhantomData, PhantomData, PhantomData);
    let (id, free) = (queue.id(), queue.room());
    let plain_end = staged.wrapping_add(plain(queue, free));
    let mut batch = Batch {
        queue,
        staged,
        next: staged,
        plain_end,
        id,
        start: id,
        open: false,
        free,
        fault: None,
        brand,
        transport,
        section,
    };
    let result = f(&mut batch);
    batch.ring();
    if batch.fault.is_none() {
        // Nothing is staged any more.
        mem::forget(batch);
        return Ok(result);
    }
    Err(batch.into_error(result))
}

impl<'env, B, T> Batch<'_, 'env, B, T> {
    /// Looks how many requests fit. Nothing is staged.
    #[inline(always)]
    fn make_room(&mut self) {
        self.free = self.queue.room();
        self.plain_end = self.staged.wrapping_add(plain(self.queue, self.free));
    }

    /// How many requests there are that the device does not know.
    #[inline(always)]
    pub(super) fn count(&self) -> u32 {
        between(self.queue.poster.next_id(), self.id.raw())
    }

    /// How many there may be.
    #[inline(always)]
    fn room(&self) -> u32 {
        self.free.min(STAGED as u32)
    }

    /// How many more can go into a session without a look at the queue, or a signal for its last slot.
    #[inline(always)]
    pub(super) fn plain_room(&self) -> u32 {
        self.room().min(self.free.saturating_sub(1)).saturating_sub(self.count())
    }

    /// Adds a request. It is handed to the device at the end of the batch; before, when 32 have come together or the queue
    /// is full, so that polling makes room again.
    ///
    /// # Errors
    ///
    /// As [`QueuePair::post`](crate::QueuePair::post); the rest of the batch is not touched.
    #[inline(always)]
    pub fn post<M: RequestMemory<B, K> + 'env, K>(
        &mut self,
        request: WorkRequest<M, K>,
    ) -> Result<WorkId, PostError<WorkRequest<M, K>>>
    where
        B: Brand,
        T: Carries<K>,
    {
        let Some(length) =
            request.plain_length(self.queue.domain(), self.queue.most()).filter(|_| self.next < self.plain_end)
        else {
            return self.post_any(request);
        };
        let WorkRequest { memory, action, .. } = request;
        let (id, staged) = (self.id, self.next);
        // SAFETY: room (0), since it is before the end of the stage (1); it stays where it is until it was rung.
        let (entry, _) = unsafe { Staged::stage(staged, memory, &action, length, id, false) };
        // SAFETY: so much fits in the queue (1); nobody else posts.
        unsafe { self.queue.poster.write_at(id.raw(), entry) };
        self.next = staged.wrapping_add(1);
        self.id = id.after(1);
        Ok(id)
    }

    /// [`post`](Self::post) of any request to any queue.
    #[cold]
    #[inline(never)]
    pub(super) fn post_any<M: Stageable<B> + 'env, K>(
        &mut self,
        request: WorkRequest<M, K>,
    ) -> Result<WorkId, PostError<WorkRequest<M, K>>>
    where
        B: Brand,
    {
        let length = match request.action.length(&request.memory, self.queue.domain(), self.queue.most()) {
            Ok(length) => length,
            Err(flaw) => return Err(PostError::Flawed { request, flaw }),
        };
        if self.count() == self.room() && !self.ring_for_room() {
            return Err(self.no_room(request));
        }
        let id = self.id;
        let last = self.count() + 1 == self.free;
        match self.queue.session() {
            // SAFETY: there is room.
            None => unsafe { self.add(request, length, last) },
            // SAFETY: there is room.
            Some(session) => unsafe { self.add_in_session(session, request, length, last) },
        }
        Ok(id)
    }

    /// Adds requests until there are no more; says how many. Faster than as many [`post`](Self::post)s.
    ///
    /// # Errors
    ///
    /// As [`post`](Self::post), for the request that comes back: those before it are added, those after it still in the
    /// iterator. So pass an iterator that you keep, `&mut requests`, where errors are to be expected.
    #[inline(always)]
    pub fn post_each<M: RequestMemory<B, K> + 'env, K>(
        &mut self,
        requests: impl IntoIterator<Item = WorkRequest<M, K>>,
    ) -> Result<usize, PostError<WorkRequest<M, K>>>
    where
        B: Brand,
        T: Carries<K>,
    {
        if let Some(session) = self.queue.session() {
            return self.post_each_in_session(session, requests.into_iter());
        }
        let (before, domain, most) = (self.id, self.queue.domain(), self.queue.most());
        let mut requests = requests.into_iter();
        loop {
            let mut row = self.queue.poster.row(self.id.raw());
            // One after the other, as in the row.
            let end = self.plain_end.min(self.next.wrapping_add(row.len() as usize));
            let mut staging = Staging { next: self.next, id: self.id, of_batch: (&mut self.next, &mut self.id) };
            let other = loop {
                let Some(request) = requests.next() else {
                    drop(staging);
                    return Ok(self.added_since(before));
                };
                let Some(length) = request.plain_length(domain, most).filter(|_| staging.next < end) else {
                    break request;
                };
                let WorkRequest { memory, action, .. } = request;
                // SAFETY: room (0), since it is before the end of the stage (1); it stays where it is until it was rung.
                let (entry, _) = unsafe { Staged::stage(staging.next, memory, &action, length, staging.id, false) };
                // SAFETY: so much fits in the queue (1), and in the row; nobody else posts.
                unsafe { row.write(entry) };
                staging.next = staging.next.wrapping_add(1);
                staging.id = staging.id.after(1);
            };
            drop(staging);
            self.post_any(other)?;
        }
    }

    /// Adds the requests that `make` makes of `items`, as many as the queue has room for; says how many. Only the last of
    /// them makes a completion, whatever they ask for: it [retires](crate::Poller::poll_retired) them all. (So does one that
    /// took the last slot, if polling then made room for more.) What does not fit stays in `items`.
    ///
    /// Alone in a batch it is [`QueuePair::post_all`](crate::QueuePair::post_all), which is faster.
    ///
    /// # Errors
    ///
    /// As [`post`](Self::post) but for [`QueueFull`](PostError::QueueFull), for the request that comes back: those before it are
    /// added, to be retired by the next one that makes a completion, and what is after it stays in `items`.
    #[inline(always)]
    pub fn post_all<X, M: RequestMemory<B, K> + 'env, K>(
        &mut self,
        items: &mut Vec<X>,
        mut make: impl FnMut(X) -> WorkRequest<M, K>,
    ) -> Result<usize, PostError<WorkRequest<M, K>>>
    where
        B: Brand,
        T: Carries<K>,
    {
        let mut items = Taking::new(items);
        let before = self.id;
        if self.queue.session().is_some() {
            unlikely();
            return self.post_rest(items, make, None, before);
        }
        let other = self.stage_row(&mut items, &mut make);
        if items.left() != 0 || other.is_some() {
            return self.post_rest(items, make, other, before);
        }
        Ok(self.signal_last(before))
    }

    /// [`post_all`](Self::post_all), where one row is not enough, or a request not an ordinary one.
    #[cold]
    #[inline(never)]
    pub(super) fn post_rest<X, M: Stageable<B> + 'env, K>(
        &mut self,
        mut items: Taking<'_, X>,
        mut make: impl FnMut(X) -> WorkRequest<M, K>,
        mut other: Option<WorkRequest<M, K>>,
        before: WorkId,
    ) -> Result<usize, PostError<WorkRequest<M, K>>>
    where
        B: Brand,
        T: Carries<K>,
    {
        let session = self.queue.session();
        loop {
            if other.is_none() && items.left() != 0 {
                let is_for_row = match session {
                    None => self.next < self.plain_end,
                    Some(_) => self.plain_room() != 0 && items.left() != 1,
                };
                if !is_for_row {
                    if self.is_full() {
                        // The last one took the last slot, so it makes a completion.
                        return Ok(self.added_since(before));
                    }
                    // SAFETY: there is one.
                    other = Some(make(unsafe { items.next() }));
                }
            }
            if let Some(other) = other {
                self.post_any(if items.left() == 0 { other.signalled() } else { other.unsignalled() })?;
            }
            if items.left() == 0 {
                return Ok(if session.is_none() { self.signal_last(before) } else { self.added_since(before) });
            }
            other = match session {
                None => self.stage_row(&mut items, &mut make),
                Some(session) => self.add_row(session, &mut items, &mut make),
            };
        }
    }

    /// Stages the requests that `make` makes of `items`, unsignalled, as far as their entries are in a row in the ledger,
    /// and up to one that is no ordinary one, which comes back.
    #[inline(always)]
    fn stage_row<X, M: Stageable<B> + 'env, K>(
        &mut self,
        items: &mut Taking<'_, X>,
        make: &mut impl FnMut(X) -> WorkRequest<M, K>,
    ) -> Option<WorkRequest<M, K>>
    where
        B: Brand,
        T: Carries<K>,
    {
        let (domain, most) = (self.queue.domain(), self.queue.most());
        let mut row = self.queue.poster.row(self.id.raw());
        // One that is past the end is what took the last slot, signalled.
        let room = if self.next < self.plain_end {
            // SAFETY: both in the stage, in this order (1).
            unsafe { self.plain_end.offset_from_unsigned(self.next) }
        } else {
            0
        };
        // At most a stage: known here, it may spare `make` a look whether it has enough to go with the items.
        let end = items.after(room.min(row.len() as usize).min(items.left()).min(STAGED));
        let mut staging = Staging { next: self.next, id: self.id, of_batch: (&mut self.next, &mut self.id) };
        while items.next != end {
            // SAFETY: there is one: `end` is at most theirs.
            let request = make(unsafe { items.next() }).unsignalled();
            let Some(length) = request.plain_length(domain, most) else { return Some(request) };
            let WorkRequest { memory, action, .. } = request;
            // SAFETY: room (0), since it is before the end of the stage (1); it stays where it is until it was rung.
            let (entry, _) = unsafe { Staged::stage(staging.next, memory, &action, length, staging.id, false) };
            // SAFETY: so much fits in the queue (1), and in the row; nobody else posts.
            unsafe { row.write(entry) };
            staging.next = staging.next.wrapping_add(1);
            staging.id = staging.id.after(1);
        }
        None
    }

    /// Lets the last request that was added make a completion, if any was added since the next one had this id; says how
    /// many.
    #[inline(always)]
    fn signal_last(&mut self, before: WorkId) -> usize {
        let added = self.added_since(before);
        if added != 0 {
            // SAFETY: inside, and filled (0): the doorbell is rung only before one is added.
            unsafe { Staged::signal(self.next.wrapping_sub(1)) };
        }
        added
    }

    /// How many requests came since the next one had this id.
    #[inline(always)]
    pub(super) fn added_since(&self, before: WorkId) -> usize {
        between(before.raw(), self.id.raw()) as usize
    }

    /// # Safety
    ///
    /// There is room.
    #[inline(always)]
    unsafe fn add<M: Stageable<B>, K>(&mut self, request: WorkRequest<M, K>, length: u32, last: bool) {
        let (id, staged) = (self.id, self.next);
        if let Some(to) = request.memory.recipient(KEY) {
            // SAFETY: there is room (caller); nobody else posts.
            unsafe { self.queue.keep(id, to) };
        }
        // SAFETY: room (0, caller); it stays where it is until it was rung.
        let (entry, _) = unsafe { Staged::stage_any(staged, request.memory, &request.action, length, id, last) };
        // SAFETY: so much fits in the queue (caller); nobody else posts.
        unsafe { self.queue.poster.write_at(id.raw(), entry) };
        self.next = staged.wrapping_add(1);
        self.id = id.after(1);
    }

    /// Hands over what is staged, which may be needed for completions to make room; says whether there is room now.
    #[cold]
    #[inline(never)]
    fn ring_for_room(&mut self) -> bool {
        self.ring();
        if self.fault.is_none() {
            self.make_room();
        }
        self.room() != 0
    }

    /// Whether there is no room, after a doorbell if need be, and nothing else is wrong.
    fn is_full(&mut self) -> bool {
        self.count() == self.room() && !self.ring_for_room() && self.fault.is_none() && !self.queue.is_broken()
    }

    #[cold]
    fn no_room<R>(&self, request: R) -> PostError<R> {
        match self.fault.as_deref() {
            Some(Fault { source, uncertain: 0, .. }) => PostError::Refused { request, source: *source },
            // Broken, if it is uncertain what was posted.
            _ => self.queue.no_room(request),
        }
    }

    /// Hands what is staged to the device.
    #[inline(always)]
    fn ring(&mut self) {
        if let Some(session) = self.queue.session() {
            return self.ring_session(session);
        }
        if self.next == self.staged {
            return;
        }
        let before = self.queue.id();
        self.queue.poster.publish(self.id.raw());
        let after_last = mem::replace(&mut self.next, self.staged);
        let last = after_last.wrapping_sub(1);
        // SAFETY: inside, and filled (0).
        unsafe { Staged::link(last, ptr::null_mut()) };
        let result = self.queue.ring(self.staged);
        // SAFETY: as above.
        unsafe { Staged::link(last, after_last) };
        if let Err((source, bad)) = result {
            self.refused(before, source, bad);
        }
    }

    /// The provider refused requests from the one with the id `first` on, of which the `bad` one is said to be at fault.
    #[cold]
    pub(super) fn refused(&mut self, first: WorkId, source: VerbError, bad: *mut Staged) {
        let mut fault = Fault::of(self.queue, self.staged, self.added_since(first), source, bad);
        fault.posted += between(self.start.raw(), first.raw());
        self.fault = Some(Box::new(fault));
        self.id = self.queue.id();
        (self.free, self.plain_end) = (0, self.staged);
    }

    /// What a batch that did not end well says, with what its closure returned.
    #[cold]
    #[inline(never)]
    fn into_error<R>(mut self, result: R) -> BatchError<B, R> {
        let fault = self.fault.take().map(|fault| *fault);
        // Is only asked of one with a fault.
        let source = VerbError::new("ibv_post_send", 0);
        let nothing = || Fault { posted: 0, source, refused: Vec::new(), uncertain: 0 };
        fault.unwrap_or_else(nothing).into_error(result)
    }

    /// Takes back what is staged, which the device was not given.
    #[cold]
    #[inline(never)]
    fn abandon(&mut self) {
        self.abort_session();
        let end = mem::replace(&mut self.id, self.queue.id());
        self.next = self.staged;
        // SAFETY: written ahead and not published (0).
        unsafe { self.queue.poster.drop_ahead(end.raw()) };
    }
}

impl<B, T> Drop for Batch<'_, '_, B, T> {
    /// Ends a batch whose closure panicked: the device was not given what is staged, so it is the program's again.
    #[inline(always)]
    fn drop(&mut self) {
        if self.count() != 0 || self.open {
            self.abandon();
        }
    }
}

impl<B, T> fmt::Debug for Batch<'_, '_, B, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch").field("staged", &self.count()).finish_non_exhaustive()
    }
}
