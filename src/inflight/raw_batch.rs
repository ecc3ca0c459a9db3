//! Batches: requests that are handed to the device together, by one doorbell.
//!
//! A batch writes its requests ahead in the ledger, where nobody looks yet. Ringing the doorbell publishes what was
//! written and hands it to the device: as a linked list of [`Staged`] requests, or as a [`Session`].
#![allow(unsafe_code, reason = "links the requests of a list, writes ahead in the ledger")]

use super::items::Items;
use super::ledger::{CellRow, between};
use super::raw_post::{SendQueue, Staged};
use super::raw_session::{KeepId, Session, Sessions};
use super::request::{PostLimits, Postable, WorkRequest};
use super::{BatchError, Entry, PostAllError, PostError, PostedMemory, WorkId, unlikely};
use crate::domain::{Brand, DomainId};
use crate::seal::KEY;
use crate::verb_error::VerbError;
use std::cell::{Cell, UnsafeCell};
use std::mem::{self, MaybeUninit};
use std::ptr;

/// How many requests a batch hands to the device at once.
pub(crate) const STAGED: usize = 32;

/// Where a batch keeps its requests until it rings. Each request is linked to the next.
struct Stage(UnsafeCell<MaybeUninit<[Staged; STAGED]>>);

/// What a thread's [`Stage`] is used for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Usage {
    Unlinked,
    Free,
    Taken,
}

thread_local! {
    /// One stage for all batches of a thread: it is linked once, and no queue pair has to keep one.
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
            // SAFETY: inside the stage, which nobody uses now, and which does not move until its batch is over.
            unsafe { Staged::link(this, this.wrapping_add(1)) };
        }
    }
}

/// A linked stage, taken for one batch.
struct TakenStage {
    first: *mut Staged,
    /// What the thread's stage is used for afterwards.
    after: Usage,
}

impl TakenStage {
    /// The thread's stage, or `spare` if a batch is using that one.
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

impl Drop for TakenStage {
    #[inline(always)]
    fn drop(&mut self) {
        // It is the stage of the same thread: `first` keeps this type from being `Send`.
        STAGE.with(|(usage, _)| usage.set(self.after));
    }
}

/// Fills a part of the stage and of the ledger side by side. It is a few words, so that loops run in registers. At its
/// end it tells the batch how far it came, also when the program's code panics.
struct Staging<'b> {
    /// # Invariants
    ///
    /// 0. From `next` to before `end` there is room in the stage of the batch, in the ledger from `id` on, and in
    ///    `row`. All three go on together.
    next: *mut Staged,
    end: *mut Staged,
    id: WorkId,
    row: CellRow<Entry>,
    of_batch: (&'b mut *mut Staged, &'b mut WorkId),
}

impl Staging<'_> {
    /// Adds `request`, if it is plain and there is room; otherwise it comes back.
    #[inline(always)]
    fn add<B: Brand, M: Postable<B>, K>(
        &mut self,
        request: WorkRequest<M, K>,
        domain: DomainId,
        limits: PostLimits,
    ) -> Option<WorkRequest<M, K>> {
        let Some(length) = request.plain_length(domain, limits).filter(|_| self.next < self.end) else {
            return Some(request);
        };
        // SAFETY: there is room.
        unsafe { self.put(request, length) };
        None
    }

    /// Adds a plain request.
    ///
    /// # Safety
    ///
    /// `next` is before `end`. `length` is what [`WorkRequest::plain_length`] answered.
    #[inline(always)]
    unsafe fn put<B, M: Postable<B>, K>(&mut self, request: WorkRequest<M, K>, length: u32) {
        let WorkRequest { memory, action, .. } = request;
        // SAFETY: there is room (0, caller), linked; it stays where it is until the batch rings.
        let (entry, _) = unsafe { Staged::stage::<false, B, M>(self.next, memory, &action, length, self.id, false) };
        // SAFETY: there is a cell, which is free (0, caller).
        unsafe { self.row.write(entry) };
        self.next = self.next.wrapping_add(1);
        self.id = self.id.after(1);
    }
}

impl Drop for Staging<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        (*self.of_batch.0, *self.of_batch.1) = (self.next, self.id);
    }
}

/// A batch without its transport, and without the lifetime of what is inline in it: whoever posts a request with inline
/// bytes keeps them until the next [`ring`](Self::ring).
pub(crate) struct RawBatch<'batch, B> {
    queue: &'batch mut SendQueue,
    /// # Invariants
    ///
    /// 0. The beginning of a stage: room for `STAGED` linked requests, which nobody else uses while this is around. The
    ///    requests before `next` are filled, and their entries are written ahead in the ledger, from the queue's next
    ///    id to before `id`. Neither device nor poller knows them yet. Where the queue posts in sessions, the stage is
    ///    empty, and the open session has the requests.
    staged: *mut Staged,
    next: *mut Staged,
    /// 1. Up to here requests can be staged without a look at the queue: it is inside the stage, and leaves at least
    ///    one slot of the queue free, for a signalled request. After a fault, and where the queue posts in sessions, it
    ///    is the beginning of the stage.
    plain_end: *mut Staged,
    /// The id of the next request. The distance to the queue's next id says how many requests the device does not know
    /// yet.
    id: WorkId,
    /// The id of the first request.
    start: WorkId,
    /// The open session, if there is one.
    session: Option<Session>,
    /// How many requests fit in the queue, those of the stage included; 0 after a fault.
    free: u32,
    fault: Option<Box<Fault<B>>>,
}

/// What went wrong at a doorbell.
struct Fault<B> {
    posted: u32,
    source: VerbError,
    refused: Vec<PostedMemory<B>>,
    uncertain: usize,
}

impl<B> Fault<B> {
    /// The provider refused the newest `count` requests, which are at the beginning of the stage `staged`. The first
    /// that it surely did not queue is at `bad`; null if nothing is sure.
    ///
    /// # Safety
    ///
    /// `staged`, `count` and `bad` are as described above.
    #[cold]
    unsafe fn of(
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
            // SAFETY: the newest of those that are left was surely not queued (caller).
            let Some(entry) = (unsafe { queue.poster.take_back() }) else { break };
            // SAFETY: this entry was staged there (caller).
            unsafe { Staged::unstage(staged.wrapping_add(number), &entry) };
            fault.refused.push(entry.into_memory());
        }
        fault.refused.reverse();
        fault
    }

    /// The error, with what the program's code returned.
    fn into_error<R>(self, result: R) -> BatchError<B, R> {
        let Self { posted, refused, uncertain, source } = self;
        BatchError { posted: posted as usize, refused, uncertain, source, result }
    }
}

/// How many of `free` requests can be staged without a look at the queue, while one slot is left for a signalled
/// request.
#[inline(always)]
fn plain(queue: &SendQueue, free: u32) -> usize {
    if queue.sessions().is_none() { STAGED.min(free.saturating_sub(1) as usize) } else { 0 }
}

/// Lends `f` a batch on `queue`, and rings after it.
#[inline(always)]
pub(crate) fn batch<B, R>(
    queue: &mut SendQueue,
    f: impl for<'batch> FnOnce(RawBatch<'batch, B>) -> (RawBatch<'batch, B>, R),
) -> Result<R, BatchError<B, R>> {
    let spare = Stage::new();
    let taken = TakenStage::of_thread_or(&spare);
    let staged = taken.first;
    let (id, free) = (queue.id(), queue.room());
    let plain_end = staged.wrapping_add(plain(queue, free));
    let batch = RawBatch { queue, staged, next: staged, plain_end, id, start: id, session: None, free, fault: None };
    let (mut batch, result) = f(batch);
    batch.ring();
    if batch.fault.is_none() {
        // Nothing is staged any more, and no session is open.
        mem::forget(batch);
        return Ok(result);
    }
    Err(batch.into_error(result))
}

impl<B> RawBatch<'_, B> {
    /// Looks again how many requests fit. Nothing is staged.
    #[inline(always)]
    fn make_room(&mut self) {
        self.free = self.queue.room();
        self.plain_end = self.staged.wrapping_add(plain(self.queue, self.free));
    }

    /// How many requests the device does not know yet.
    #[inline(always)]
    pub(crate) fn count(&self) -> u32 {
        between(self.queue.poster.next_id(), self.id.raw())
    }

    /// How many requests may be waiting for the doorbell.
    #[inline(always)]
    fn room(&self) -> u32 {
        self.free.min(STAGED as u32)
    }

    /// How many more unsignalled requests can go into the session without a look at the queue. The last slot is left
    /// for a signalled one.
    #[inline(always)]
    fn plain_room(&self) -> u32 {
        self.room().min(self.free.saturating_sub(1)).saturating_sub(self.count())
    }

    #[inline(always)]
    pub(crate) fn post<M: Postable<B>, K>(
        &mut self,
        request: WorkRequest<M, K>,
    ) -> Result<WorkId, PostError<WorkRequest<M, K>>>
    where
        B: Brand,
    {
        let Some(length) =
            request.plain_length(self.queue.domain(), self.queue.limits()).filter(|_| self.next < self.plain_end)
        else {
            return self.post_any(request);
        };
        let id = self.id;
        // SAFETY: there is room (1), and the length is that of a plain request.
        unsafe { self.stage::<false, M, K>(request, length, false) };
        Ok(id)
    }

    /// [`post`](Self::post) of any request to any queue.
    #[cold]
    #[inline(never)]
    fn post_any<M: Postable<B>, K>(
        &mut self,
        request: WorkRequest<M, K>,
    ) -> Result<WorkId, PostError<WorkRequest<M, K>>>
    where
        B: Brand,
    {
        let length = match request.length(self.queue.domain(), self.queue.limits()) {
            Ok(length) => length,
            Err(flaw) => return Err(PostError::Flawed { request, flaw }),
        };
        if self.count() == self.room() && !self.ring_for_room() {
            return Err(self.no_room(request));
        }
        let id = self.id;
        let last = self.count() + 1 == self.free;
        match self.queue.sessions() {
            // SAFETY: there is room.
            None => unsafe { self.stage::<true, M, K>(request, length, last) },
            // SAFETY: there is room.
            Some(sessions) => unsafe { self.add_in_session(sessions, request, length, last) },
        }
        Ok(id)
    }

    #[inline(always)]
    pub(crate) fn post_each<M: Postable<B>, K>(
        &mut self,
        requests: impl IntoIterator<Item = WorkRequest<M, K>>,
    ) -> Result<usize, PostError<WorkRequest<M, K>>>
    where
        B: Brand,
    {
        if let Some(sessions) = self.queue.sessions() {
            return self.post_each_in_session(sessions, requests.into_iter());
        }
        let (before, domain, limits) = (self.id, self.queue.domain(), self.queue.limits());
        let mut requests = requests.into_iter();
        loop {
            let mut staging = self.staging(usize::MAX);
            let other = loop {
                let Some(request) = requests.next() else {
                    drop(staging);
                    return Ok(self.added_since(before));
                };
                if let Some(other) = staging.add(request, domain, limits) {
                    break other;
                }
            };
            drop(staging);
            self.post_any(other)?;
        }
    }

    #[inline(always)]
    pub(crate) fn post_all<X, M: Postable<B>, K>(
        &mut self,
        items: &mut Vec<X>,
        mut make: impl FnMut(X) -> WorkRequest<M, K>,
    ) -> Result<usize, PostError<WorkRequest<M, K>>>
    where
        B: Brand,
    {
        let mut items = Items::new(items);
        let before = self.id;
        if self.queue.sessions().is_some() {
            unlikely();
            return self.post_rest(items, make, None, before);
        }
        let other = self.stage_row(&mut items, &mut make);
        if items.left() != 0 || other.is_some() {
            return self.post_rest(items, make, other, before);
        }
        Ok(self.signal_last(before))
    }

    /// [`post_all`](Self::post_all), where one row is not enough or a request is not plain.
    #[cold]
    #[inline(never)]
    fn post_rest<X, M: Postable<B>, K>(
        &mut self,
        mut items: Items<'_, X>,
        mut make: impl FnMut(X) -> WorkRequest<M, K>,
        mut other: Option<WorkRequest<M, K>>,
        before: WorkId,
    ) -> Result<usize, PostError<WorkRequest<M, K>>>
    where
        B: Brand,
    {
        let sessions = self.queue.sessions();
        loop {
            if other.is_none() && items.left() != 0 {
                let is_for_row = match sessions {
                    None => self.next < self.plain_end,
                    Some(_) => self.plain_room() != 0 && items.left() != 1,
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
                None => self.stage_row(&mut items, &mut make),
                Some(sessions) => self.add_row(sessions, &mut items, &mut make),
            };
        }
    }

    /// The part of the stage for plain requests whose entries lie in one row of the ledger, at most `count` of them.
    #[inline(always)]
    fn staging(&mut self, count: usize) -> Staging<'_> {
        let row = self.queue.poster.row(self.id.raw());
        let room = (row.len() as usize).min(count);
        let end = self.plain_end.min(self.next.wrapping_add(room));
        Staging { next: self.next, end, id: self.id, row, of_batch: (&mut self.next, &mut self.id) }
    }

    /// Stages the requests that `make` makes of `items`, unsignalled, as far as their entries lie in one row of the
    /// ledger. It stops at the first request that is not plain, which comes back.
    #[inline(always)]
    fn stage_row<X, M: Postable<B>, K>(
        &mut self,
        items: &mut Items<'_, X>,
        make: &mut impl FnMut(X) -> WorkRequest<M, K>,
    ) -> Option<WorkRequest<M, K>>
    where
        B: Brand,
    {
        let (domain, limits) = (self.queue.domain(), self.queue.limits());
        let row = self.queue.poster.row(self.id.raw());
        // `next` is behind `plain_end` where the last slot was taken, by a signalled request.
        let room = if self.next < self.plain_end {
            self.plain_end.addr().wrapping_sub(self.next.addr()) / size_of::<Staged>()
        } else {
            0
        };
        // The bound by `STAGED` changes nothing, but with it the compiler may spare `make` a check of its own.
        let count = room.min(row.len() as usize).min(items.left()).min(STAGED);
        let (next, id) = (self.next, self.id);
        let end = next.wrapping_add(count);
        let mut staging = Staging { next, end, id, row, of_batch: (&mut self.next, &mut self.id) };
        let mut first = items.first(count);
        while let Some(item) = first.next() {
            let request = make(item).without_signal();
            let Some(length) = request.plain_length(domain, limits) else { return Some(request) };
            // SAFETY: there is room for as many as there are items.
            unsafe { staging.put(request, length) };
        }
        None
    }

    /// Makes the newest request a signalled one, if any was added since the batch had `before` as its next id. Returns
    /// how many were added.
    #[inline(always)]
    fn signal_last(&mut self, before: WorkId) -> usize {
        let added = self.added_since(before);
        if added != 0 {
            // SAFETY: in the stage, and filled (0): after the doorbell was rung, at least one request was added.
            unsafe { Staged::signal(self.next.wrapping_sub(1)) };
        }
        added
    }

    /// How many requests were added since the batch had `before` as its next id.
    #[inline(always)]
    fn added_since(&self, before: WorkId) -> usize {
        between(before.raw(), self.id.raw()) as usize
    }

    /// Adds a request to the list. The `last` that the queue has room for is signalled. Any length, and a recipient,
    /// may be `ANY`; otherwise the request is plain.
    ///
    /// # Safety
    ///
    /// There is room. `length` is what [`WorkRequest::length`] answered.
    #[inline(always)]
    unsafe fn stage<const ANY: bool, M: Postable<B>, K>(
        &mut self,
        request: WorkRequest<M, K>,
        length: u32,
        last: bool,
    ) {
        let WorkRequest { memory, action, .. } = request;
        let (id, staged) = (self.id, self.next);
        if let (true, Some(to)) = (ANY, memory.recipient(KEY)) {
            // SAFETY: the slot is free (caller).
            unsafe { self.queue.keep(id, to) };
        }
        // SAFETY: room in the stage (0, caller), linked; it stays where it is until the batch rings.
        let (entry, _) = unsafe { Staged::stage::<ANY, B, M>(staged, memory, &action, length, id, last) };
        // SAFETY: the queue has room for it (caller), and nothing is written there (0).
        unsafe { self.queue.poster.write_at(id.raw(), entry) };
        self.next = staged.wrapping_add(1);
        self.id = id.after(1);
    }

    /// Rings the doorbell, since what is staged may have to complete to make room. Returns whether there is room now.
    #[cold]
    #[inline(never)]
    fn ring_for_room(&mut self) -> bool {
        self.ring();
        if self.fault.is_none() {
            self.make_room();
        }
        self.room() != 0
    }

    /// Whether there is no room, also after a doorbell, and nothing else is wrong.
    fn is_full(&mut self) -> bool {
        self.count() == self.room() && !self.ring_for_room() && self.fault.is_none() && !self.queue.is_broken()
    }

    #[cold]
    fn no_room<R>(&self, request: R) -> PostError<R> {
        match self.fault.as_deref() {
            Some(Fault { source, uncertain: 0, .. }) => PostError::Refused { request, source: *source },
            // If it is uncertain what was posted, the queue is broken and says so.
            _ => self.queue.no_room(request),
        }
    }

    /// Hands what is staged, or what the session has, to the device.
    #[inline(always)]
    fn ring(&mut self) {
        if self.queue.sessions().is_some() {
            return self.ring_session();
        }
        if self.next == self.staged {
            return;
        }
        let before = self.queue.id();
        // SAFETY: all before `id` are written (0).
        unsafe { self.queue.poster.publish(self.id.raw()) };
        let after_last = mem::replace(&mut self.next, self.staged);
        let last = after_last.wrapping_sub(1);
        // SAFETY: in the stage, and filled (0).
        unsafe { Staged::link(last, ptr::null_mut()) };
        // SAFETY: the requests from there to `last` are filled, and the ledger has their memory (0).
        let result = unsafe { self.queue.ring(self.staged) };
        // SAFETY: in the stage (0). So the stage is linked again.
        unsafe { Staged::link(last, after_last) };
        if let Err((source, bad)) = result {
            self.refused(before, source, bad);
        }
    }

    /// The provider refused the requests from the id `first` on. The first that it surely did not queue is at `bad`;
    /// null if nothing is sure.
    #[cold]
    fn refused(&mut self, first: WorkId, source: VerbError, bad: *mut Staged) {
        let count = self.added_since(first);
        // SAFETY: they were staged from the beginning of the stage on; `bad` comes from `ring`, or is null.
        let mut fault = unsafe { Fault::of(self.queue, self.staged, count, source, bad) };
        fault.posted += between(self.start.raw(), first.raw());
        self.fault = Some(Box::new(fault));
        self.id = self.queue.id();
        (self.free, self.plain_end) = (0, self.staged);
    }

    /// The error of a batch with a fault, with what its closure returned.
    #[cold]
    #[inline(never)]
    fn into_error<R>(mut self, result: R) -> BatchError<B, R> {
        let fault = self.fault.take().map(|fault| *fault);
        // Callers have seen that there is a fault.
        let source = VerbError::new("ibv_post_send", 0);
        let nothing = || Fault { posted: 0, source, refused: Vec::new(), uncertain: 0 };
        fault.unwrap_or_else(nothing).into_error(result)
    }

    /// Takes back what the device was not given.
    #[cold]
    #[inline(never)]
    fn abandon(&mut self) {
        if let Some(session) = self.session.take() {
            session.abort();
        }
        let end = mem::replace(&mut self.id, self.queue.id());
        self.next = self.staged;
        // SAFETY: written ahead and not published (0).
        unsafe { self.queue.poster.drop_ahead(end.raw()) };
    }

    /// The session, which is opened if there is none.
    #[inline(always)]
    fn opened<'s>(session: &'s mut Option<Session>, queue: &mut SendQueue, sessions: Sessions) -> &'s mut Session {
        let _ = queue;
        // SAFETY: the pair is in a state that sends (0 of `WorkQueue`), nobody else posts (`&mut`), and no session is
        // open.
        session.get_or_insert_with(|| unsafe { sessions.open() })
    }

    /// Adds a request to the session. A function of its own, so that it takes no registers from lists.
    ///
    /// # Safety
    ///
    /// There is room. `length` is what [`WorkRequest::length`] answered.
    #[inline(never)]
    unsafe fn add_in_session<M: Postable<B>, K>(
        &mut self,
        sessions: Sessions,
        request: WorkRequest<M, K>,
        length: u32,
        last: bool,
    ) {
        let id = self.id;
        let session = Self::opened(&mut self.session, self.queue, sessions);
        // SAFETY: the slot is free (caller); what is inline is copied now; the entry is written below.
        let entry = unsafe { session.add_any(self.queue, request, length, id, last) };
        // SAFETY: the queue has room for it (caller), and nothing is written there (0).
        unsafe { self.queue.poster.write_at(id.raw(), entry) };
        self.id = id.after(1);
    }

    /// [`post_each`](Self::post_each), in the session.
    #[inline(always)]
    fn post_each_in_session<M: Postable<B>, K>(
        &mut self,
        sessions: Sessions,
        mut requests: impl Iterator<Item = WorkRequest<M, K>>,
    ) -> Result<usize, PostError<WorkRequest<M, K>>>
    where
        B: Brand,
    {
        let (before, domain, limits) = (self.id, self.queue.domain(), self.queue.limits());
        loop {
            let mut row = self.queue.poster.row(self.id.raw()).at_most(self.plain_room());
            let mut kept = KeepId { id: self.id, next_id: &mut self.id };
            let other = loop {
                let Some(request) = requests.next() else {
                    drop(kept);
                    return Ok(self.added_since(before));
                };
                let Some(length) = request.plain_length(domain, limits).filter(|_| !row.is_empty()) else {
                    break request;
                };
                let (id, WorkRequest { memory, action, .. }) = (kept.id, request);
                kept.id = id.after(1);
                let session = Self::opened(&mut self.session, self.queue, sessions);
                // SAFETY: the row has a next cell, which is free, since the queue has room for it.
                unsafe { session.add_plain(&mut row, memory, &action, length, id) };
            };
            drop(kept);
            self.post_any(other)?;
        }
    }

    /// Adds the requests that `make` makes of `items` to the session, unsignalled, as far as their entries lie in one
    /// row of the ledger. It stops at the first request that is not plain, which comes back. It leaves the last item:
    /// what is in the session cannot be signalled any more.
    #[inline(always)]
    fn add_row<X, M: Postable<B>, K>(
        &mut self,
        sessions: Sessions,
        items: &mut Items<'_, X>,
        make: &mut impl FnMut(X) -> WorkRequest<M, K>,
    ) -> Option<WorkRequest<M, K>>
    where
        B: Brand,
    {
        let mut row = self.queue.poster.row(self.id.raw());
        let room = self.plain_room().min(row.len()) as usize;
        let count = room.min(items.left().saturating_sub(1));
        if count == 0 {
            return None;
        }
        let session = Self::opened(&mut self.session, self.queue, sessions);
        // SAFETY: the row has room for so many, which is free, since the queue has room for them.
        unsafe { session.add_some(self.queue, &mut self.id, count, &mut row, items, make) }
    }

    /// Closes the session, if one is open, and hands its requests to the device.
    #[inline(always)]
    fn ring_session(&mut self) {
        let Some(session) = self.session.take() else { return };
        let before = self.queue.id();
        if self.id == before {
            return session.abort();
        }
        // SAFETY: all before `id` are written (0).
        unsafe { self.queue.poster.publish(self.id.raw()) };
        if let Err(source) = session.complete() {
            self.refused(before, source, ptr::null_mut());
        }
    }
}

impl<B> Drop for RawBatch<'_, B> {
    /// Ends a batch whose closure panicked. The device was not given what is staged, so it is dropped.
    #[inline(always)]
    fn drop(&mut self) {
        if self.count() != 0 || self.session.is_some() {
            self.abandon();
        }
    }
}

/// The answer of posting all of a vector. Two words, since the data path returns it.
pub(crate) type PostedAll<B, R> = Result<usize, PostAllError<B, R>>;

/// A batch of what `f` posts and nothing else.
#[inline(always)]
fn batch_of_all<B, R>(
    queue: &mut SendQueue,
    f: impl FnOnce(&mut RawBatch<'_, B>) -> Result<usize, PostError<R>>,
) -> PostedAll<B, R> {
    // The error is boxed at once, so that the batch has few words to bring back.
    let result = batch(queue, |mut batch| {
        let result = f(&mut batch).map_err(boxed);
        (batch, result)
    });
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
fn failed<B, R>(error: BatchError<B, Result<usize, Box<PostError<R>>>>) -> PostAllError<B, R> {
    PostAllError::Failed(Box::new(error.map(|result| result.map_err(|error| *error))))
}

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
    batch_of_all(queue, |batch| batch.post_all(items, make))
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
    let (count, room) = (items.len(), STAGED.min(queue.room() as usize));
    let mut row = queue.poster.row(queue.poster.next_id());
    // The last request is signalled, so that it may take the last slot.
    if count.wrapping_sub(1) >= room || count > row.len() as usize {
        return all_in_batch(queue, items, make);
    }
    let (domain, limits) = (queue.domain(), queue.limits());
    let mut items = Items::new(items);
    let mut ahead = WholeSession { id: queue.id(), queue, session: None };
    let session = RawBatch::<B>::opened(&mut ahead.session, ahead.queue, sessions);
    // Two loops: the processor's branch history reaches back far enough to predict the end of a loop over half a stage,
    // but not over a whole one, since the provider has branches too.
    let half = (count - 1).min(STAGED / 2);
    // SAFETY: the queue and the row have room for all items.
    let mut other = unsafe { session.add_some(ahead.queue, &mut ahead.id, half, &mut row, &mut items, &mut make) };
    if other.is_none() {
        let rest = items.left() - 1;
        // SAFETY: the queue and the row have room for all items.
        other = unsafe { session.add_some(ahead.queue, &mut ahead.id, rest, &mut row, &mut items, &mut make) };
    }
    if let Some(other) = other {
        return ahead.go_on(items, make, other);
    }
    let Some(last) = items.next() else { return ahead.complete(count) };
    // What is in a session cannot be signalled any more, so the last is signalled before it goes in.
    let last = make(last).signalled();
    let Some(length) = last.plain_length(domain, limits) else {
        return ahead.go_on(items, make, last);
    };
    mem::forget(items);
    let (id, WorkRequest { memory, action, .. }) = (ahead.id, last);
    ahead.id = id.after(1);
    let session = RawBatch::<B>::opened(&mut ahead.session, ahead.queue, sessions);
    // SAFETY: the queue and the row have room for all items.
    unsafe { session.add_plain(&mut row, memory, &action, length, id) };
    ahead.complete(count)
}

/// Posts all of `items` in as many pieces as it takes.
#[cold]
#[inline(never)]
fn all_in_batch<B: Brand, X, M: Postable<B>, K>(
    queue: &mut SendQueue,
    items: &mut Vec<X>,
    make: impl FnMut(X) -> WorkRequest<M, K>,
) -> PostedAll<B, WorkRequest<M, K>> {
    batch_of_all(queue, |batch| batch.post_all(items, make))
}

/// A session for all of a vector. Its requests are written ahead in the ledger, from the queue's next id to before
/// `id`, while the session is open: neither device nor poller knows them yet.
struct WholeSession<'q> {
    queue: &'q mut SendQueue,
    id: WorkId,
    session: Option<Session>,
}

impl<'q> WholeSession<'q> {
    /// Closes the session, and hands its `count` requests to the device.
    #[inline(always)]
    fn complete<B, R>(mut self, count: usize) -> PostedAll<B, R> {
        let Some(session) = self.session.take() else { return Ok(0) };
        // SAFETY: all before `id` are written.
        unsafe { self.queue.poster.publish(self.id.raw()) };
        match session.complete() {
            Ok(()) => Ok(count),
            Err(source) => Err(uncertain(self.queue, count, source)),
        }
    }

    /// Goes on in a batch, with a request that is not plain. It and those after it fit: all were compared with the room
    /// before the session was opened. (The batch looks again, and finds no room if the pair has broken meanwhile.)
    #[cold]
    #[inline(never)]
    fn go_on<B: Brand, X, M: Postable<B>, K>(
        mut self,
        items: Items<'_, X>,
        make: impl FnMut(X) -> WorkRequest<M, K>,
        other: WorkRequest<M, K>,
    ) -> PostedAll<B, WorkRequest<M, K>> {
        let (session, next) = (self.session.take(), self.id);
        let result = batch_of_all(self.queue, |batch| {
            let before = mem::replace(&mut batch.id, next);
            batch.session = session;
            batch.post_rest(items, make, Some(other), before)
        });
        // There is no session to abort: so the compiler knows it, too.
        mem::forget(self);
        result
    }
}

impl Drop for WholeSession<'_> {
    /// Aborts the session, if it is still open since the program's code panicked.
    #[inline(always)]
    fn drop(&mut self) {
        if let Some(session) = self.session.take() {
            session.abort();
            // SAFETY: written ahead, and not published.
            unsafe { self.queue.poster.drop_ahead(self.id.raw()) };
        }
    }
}

/// The provider failed with the newest `count` requests, and nothing is sure.
#[cold]
#[inline(never)]
fn uncertain<B, R>(queue: &mut SendQueue, count: usize, source: VerbError) -> PostAllError<B, R> {
    queue.poison();
    let fault = Fault { posted: 0, source, refused: Vec::new(), uncertain: count };
    failed(fault.into_error(Ok(count)))
}
