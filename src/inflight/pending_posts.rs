//! Send requests that are written and not posted yet.
//!
//! A request is *pending* from when it is written until the doorbell rings. Its entry is in the ledger, but is not
//! published, so the poller does not see it. The request itself is in a stage or in an open session, where the device
//! does not see it yet. The doorbell publishes the entries and hands the requests to the device.
//!
//! Two more words of this file: a *row* is contiguous cells of the ledger, at most up to the end of the ring. A *plain*
//! request is one that [`WorkRequest::plain`] accepts: one buffer or inline bytes, at least one byte, no recipient.
#![allow(unsafe_code, reason = "writes to the ledger before it publishes, and posts what it wrote")]

use super::cell::Items;
use super::entry::sealed::Postable;
use super::ledger::{CellRow, between};
use super::raw_session::{Call, Session, Sessions};
use super::request::{Accepted, WorkRequest};
use super::work_queue::{Chain, PostFailure, STAGED, SendQueue, Slot, Slots, Unqueued};
use super::{Entry, WorkId};
use crate::domain::Brand;
use crate::verb_error::VerbError;
use std::mem;
use std::ops::Deref;

/// A send queue with its pending requests. It borrows the queue mutably and lends it only for reading (`Deref`), so
/// nobody else posts while requests are pending.
pub(super) struct PendingPosts<'q> {
    queue: &'q mut SendQueue,
    /// # Invariants
    ///
    /// 0. The requests from the queue's next id to before `end` are pending: each is written in the ledger, and is
    ///    neither published nor dropped. If the queue posts in lists, they fill the first slots of `stage`, in order.
    ///    If it posts in sessions, they were added to the open session, in order.
    end: WorkId,
    /// 1. The ledger has room for `free` requests, the pending ones included. This and (2) hold from
    ///    [`refresh_room`](Self::refresh_room) until the next doorbell.
    free: u32,
    /// The slots of a stage that nobody else uses. It may be empty if the queue posts in sessions.
    stage: &'q [Slot],
    /// 2. The slots for plain requests that can be added without another check of the queue. The ledger has room for
    ///    one request in each of these slots, and for one more: the last request that fits must be signalled, so it
    ///    does not go this way. The first of these slots follows the filled slots. (If there are none, the iterator may
    ///    point anywhere.)
    plain_slots: Slots<'q>,
    /// 3. The open session of the queue, if there is one.
    session: Option<Session>,
}

impl Deref for PendingPosts<'_> {
    type Target = SendQueue;

    #[inline(always)]
    fn deref(&self) -> &SendQueue {
        self.queue
    }
}

/// The slots for plain requests of a batch that has no requests yet, if `free` requests fit in the queue.
#[inline(always)]
fn plain_slots<'q>(queue: &SendQueue, stage: &'q [Slot], free: u32) -> Slots<'q> {
    let count = if queue.sessions().is_none() { stage.len().min(free.saturating_sub(1) as usize) } else { 0 };
    stage.get(..count).unwrap_or_default().iter()
}

impl<'q> PendingPosts<'q> {
    /// No request is pending yet. `stage` may be empty if the queue posts in sessions.
    #[inline(always)]
    pub(super) fn new(queue: &'q mut SendQueue, stage: &'q [Slot]) -> Self {
        let (end, free) = (queue.id(), queue.room());
        let plain_slots = plain_slots(queue, stage, free);
        Self { queue, end, free, stage, plain_slots, session: None }
    }

    /// Computes again how many requests fit. Call it after a doorbell: while requests are pending it does nothing.
    #[inline(always)]
    pub(super) fn refresh_room(&mut self) {
        if self.count() == 0 {
            self.free = self.queue.room();
            self.plain_slots = plain_slots(self.queue, self.stage, self.free);
        }
    }

    /// The id that the next request gets.
    #[inline(always)]
    pub(super) fn next_id(&self) -> WorkId {
        self.end
    }

    /// How many requests are pending.
    #[inline(always)]
    pub(super) fn count(&self) -> u32 {
        between(self.queue.poster.next_id(), self.end.raw())
    }

    #[inline(always)]
    fn slot(&self, at: usize) -> Option<&'q Slot> {
        self.stage.get(at)
    }

    /// How many requests may be pending at once.
    #[inline(always)]
    pub(super) fn room(&self) -> u32 {
        self.free.min(STAGED as u32)
    }

    /// How many more unsignalled requests can go into the session without another check of the queue. The last free
    /// slot of the queue is kept for a signalled request.
    #[inline(always)]
    pub(super) fn plain_room(&self) -> u32 {
        self.room().min(self.free.saturating_sub(1)).saturating_sub(self.count())
    }

    /// Whether an unsignalled request can go into the list without another check of the queue.
    #[inline(always)]
    pub(super) fn has_plain_slot(&self) -> bool {
        !self.plain_slots.as_slice().is_empty()
    }

    /// Adds a plain request to the list. Returns the request if it cannot be added without another check of the queue.
    #[inline(always)]
    pub(super) fn stage<B, M: Postable<B>>(&mut self, request: Accepted<M, true>) -> Result<WorkId, Accepted<M, true>> {
        let Some(slot) = self.plain_slots.next() else { return Err(request) };
        let mut row = RowCursor::new(self.queue, &mut self.end, 1);
        let id = row.id;
        // SAFETY: `slot` is one of the plain slots, so the ledger has room for this request (2).
        let cell = unsafe { row.cell() };
        cell.write(slot.fill(request, id, false));
        Ok(id)
    }

    /// Adds a request of any kind. A request that takes the queue's last free slot is signalled. Returns the request if
    /// there is no room.
    #[inline(always)]
    pub(super) fn add<B, M: Postable<B>>(&mut self, request: Accepted<M, false>) -> Result<WorkId, Accepted<M, false>> {
        match self.queue.sessions() {
            None => self.stage_any(request),
            Some(sessions) => self.add_any(sessions, request),
        }
    }

    #[inline(always)]
    fn stage_any<B, M: Postable<B>>(&mut self, request: Accepted<M, false>) -> Result<WorkId, Accepted<M, false>> {
        let (count, last) = (self.count(), self.count() + 1 == self.free);
        let Some(slot) = self.slot(count as usize) else { return Err(request) };
        let mut row = RowCursor::new(self.queue, &mut self.end, self.free - count);
        let id = row.id;
        let Some(cell) = row.next() else { return Err(request) };
        cell.keep_recipient(self.queue, &request);
        cell.write(slot.fill(request, id, last));
        // `slot` is still the first of `plain_slots`, unless these are used up. Remove it: it is filled now.
        self.plain_slots.next();
        Ok(id)
    }

    /// Adds a request to the session. This function is not inlined: it would take registers from the code for lists.
    #[inline(never)]
    fn add_any<B, M: Postable<B>>(
        &mut self,
        sessions: Sessions,
        request: Accepted<M, false>,
    ) -> Result<WorkId, Accepted<M, false>> {
        let (id, last) = (self.end, self.count() + 1 == self.free);
        self.session_writer(sessions).add(request, last).map(|()| id)
    }

    /// Adds plain requests to the list. Stops at the first request that is not plain or has no room, and returns it.
    /// Returns `None` at the end of the iterator.
    #[inline(always)]
    pub(super) fn stage_each<B: Brand, M: Postable<B>, K>(
        &mut self,
        requests: &mut impl Iterator<Item = WorkRequest<M, K>>,
    ) -> Option<WorkRequest<M, K>> {
        let bounds = self.queue.bounds();
        let mut burst = self.burst();
        loop {
            match requests.next()?.plain(bounds) {
                Ok(request) => {
                    if let Err(request) = burst.put(request) {
                        return Some(request.into_request());
                    }
                }
                Err(other) => return Some(other),
            }
        }
    }

    /// Makes requests of `items` with `make`, and adds them to the list, unsignalled, at most to the end of a row.
    /// Stops at the first request that is not plain, and returns it.
    #[inline(always)]
    pub(super) fn stage_row<B: Brand, X, M: Postable<B>, K>(
        &mut self,
        items: &mut Items<'_, X>,
        make: &mut impl FnMut(X) -> WorkRequest<M, K>,
    ) -> Option<WorkRequest<M, K>> {
        let bounds = self.queue.bounds();
        let mut burst = self.burst();
        // A stage has only `STAGED` slots, so `min(STAGED)` never changes `count`. But it lets the compiler drop a
        // check inside `make`.
        let count = burst.row.reserve(items.left().min(STAGED));
        let mut first = items.first(count);
        while let Some(item) = first.next() {
            match make(item).without_signal().plain(bounds) {
                Ok(request) => {
                    // SAFETY: `count` cells are reserved, and `first` has at most `count` items.
                    unsafe { burst.put_reserved(request) };
                }
                Err(other) => return Some(other),
            }
        }
        None
    }

    /// The plain slots, and the next row of cells for them.
    #[inline(always)]
    fn burst(&mut self) -> Burst<'_, 'q> {
        let slots = self.plain_slots.clone();
        let row = RowCursor::new(self.queue, &mut self.end, slots.len() as u32);
        Burst { row, slots, plain_slots: &mut self.plain_slots }
    }

    /// Adds plain requests to the session. Stops at the first request that is not plain or has no room, and returns it.
    /// Returns `None` at the end of the iterator.
    #[inline(always)]
    pub(super) fn add_each<B: Brand, M: Postable<B>, K>(
        &mut self,
        sessions: Sessions,
        requests: &mut impl Iterator<Item = WorkRequest<M, K>>,
    ) -> Option<WorkRequest<M, K>> {
        let (bounds, room) = (self.queue.bounds(), self.plain_room());
        let mut row = RowCursor::new(self.queue, &mut self.end, room);
        loop {
            match requests.next()?.plain(bounds) {
                Ok(request) => match row.next() {
                    Some(cell) => {
                        cell.add(ensure_open(&mut self.session, self.queue, sessions), self.queue, request, false)
                    }
                    None => return Some(request.into_request()),
                },
                Err(other) => return Some(other),
            }
        }
    }

    /// Opens the session if it is not open, and lends it with the next row of the ledger.
    #[inline(always)]
    pub(super) fn session_writer(&mut self, sessions: Sessions) -> SessionWriter<'_> {
        let room = self.free - self.count();
        let row = RowCursor::new(self.queue, &mut self.end, room);
        SessionWriter { row, session: ensure_open(&mut self.session, self.queue, sessions), queue: self.queue }
    }

    /// How many more requests fit in the queue and in one row.
    #[inline(always)]
    pub(super) fn room_in_row(&self) -> u32 {
        self.queue.poster.row(self.end.raw()).1.min(self.free - self.count())
    }

    /// Makes the newest pending request of the list a signalled one.
    #[inline(always)]
    pub(super) fn signal_newest(&self) {
        if let Some(slot) = self.slot((self.count() as usize).wrapping_sub(1)) {
            slot.signal();
        }
    }

    /// Rings the doorbell: hands the pending requests to the device. Afterwards none is pending. The caller [refreshes
    /// the room](Self::refresh_room) before it adds more. A failure leaves no room.
    #[inline(always)]
    pub(super) fn ring_doorbell(&mut self) -> Result<(), PostFailure> {
        if self.queue.sessions().is_some() {
            return self.complete().map_err(|source| (source, None));
        }
        let Some(chain) = Chain::of(self.stage, self.count() as usize) else { return Ok(()) };
        self.publish();
        // SAFETY: `chain` is a list of the requests that were pending before `publish`. All of them are filled (0), and
        // are the newest requests of the ledger. The ledger owns their memory. Inline bytes stay borrowed until after
        // this doorbell, by `'env` of `RawBatch`.
        let result = unsafe { self.queue.hand_over(chain.first()) };
        result.inspect_err(|_| self.forget_room())
    }

    #[cold]
    fn forget_room(&mut self) {
        (self.free, self.plain_slots) = (0, Slots::default());
    }

    /// Closes the session, if one is open, and hands its requests to the device.
    #[inline(always)]
    pub(super) fn complete(&mut self) -> Result<(), VerbError> {
        let Some(session) = self.session.take() else { return Ok(()) };
        if self.count() == 0 {
            session.abort();
            return Ok(());
        }
        self.publish();
        session.complete().inspect_err(|_| self.forget_room())
    }

    #[inline(always)]
    fn publish(&mut self) {
        // SAFETY: each request before `end` is written (0).
        unsafe { self.queue.poster.publish(self.end.raw()) };
    }

    /// Takes back the newest request, which the provider did not queue at the last doorbell, and undoes the change to
    /// its memory. The request was in slot `at` of the stage.
    pub(super) fn take_back(&mut self, unqueued: &mut Unqueued, at: usize) -> Option<Entry> {
        let entry = self.queue.take_back(unqueued)?;
        // No request is pending after a doorbell, so `end` must be the next id of the queue. The take-back has lowered
        // that id.
        self.end = self.queue.id();
        if let Some(slot) = self.slot(at) {
            slot.undo_fill(&entry);
        }
        Some(entry)
    }

    /// Drops the pending requests, which the device never got.
    #[cold]
    #[inline(never)]
    fn abandon(&mut self) {
        if let Some(session) = self.session.take() {
            session.abort();
        }
        let end = mem::replace(&mut self.end, self.queue.id());
        // SAFETY: the requests before `end` are written, and are neither published nor dropped (0).
        unsafe { self.queue.poster.drop_unpublished(end.raw()) };
    }
}

impl Drop for PendingPosts<'_> {
    /// Requests are still pending only if the program's code panicked. They are dropped.
    #[inline(always)]
    fn drop(&mut self) {
        if self.count() != 0 || self.session.is_some() {
            self.abandon();
        }
    }
}

/// The open session of a [`PendingPosts`]; opens one if there is none.
#[inline(always)]
fn ensure_open<'s>(session: &'s mut Option<Session>, queue: &mut SendQueue, sessions: Sessions) -> &'s mut Session {
    debug_assert!(queue.sessions().is_some());
    // SAFETY: the pair of `queue` is in a state that sends (0 of `WorkQueue`). Nobody else posts to it, since `queue`
    // is borrowed mutably. No session of the pair is open: an open session would be in `session` (3 of
    // `PendingPosts`).
    session.get_or_insert_with(|| unsafe { sessions.open() })
}

/// A cursor over a row of the ledger, for the requests of a [`PendingPosts`]. It is a few words, so that loops keep it
/// in registers. Its drop writes the position back to the `PendingPosts`, also when the program's code panics.
struct RowCursor<'a> {
    /// # Invariants
    ///
    /// 0. `cells` are the cells of the requests from `id` on. At least the first `left` of them are free.
    cells: CellRow<Entry>,
    left: u32,
    id: WorkId,
    end: &'a mut WorkId,
}

impl<'a> RowCursor<'a> {
    /// The row of the cells from `end` on, at most `room` of them. The ledger must have room for `room` requests behind
    /// the pending ones.
    #[inline(always)]
    fn new(queue: &SendQueue, end: &'a mut WorkId, room: u32) -> Self {
        let (cells, count) = queue.poster.row(end.raw());
        Self { left: count.min(room), cells, id: *end, end }
    }

    /// The next free cell, if one is left.
    #[inline(always)]
    fn next(&mut self) -> Option<FreeCell<'_, 'a>> {
        self.left = self.left.checked_sub(1)?;
        Some(FreeCell(self))
    }

    /// Reserves up to `count` cells, and returns how many.
    #[inline(always)]
    fn reserve(&mut self, count: usize) -> usize {
        let count = count.min(self.left as usize);
        self.left -= count as u32;
        count
    }

    /// The next reserved cell.
    ///
    /// # Safety
    ///
    /// A cell is reserved, or the caller knows from elsewhere that the ledger has room for the next request.
    #[inline(always)]
    unsafe fn cell(&mut self) -> FreeCell<'_, 'a> {
        FreeCell(self)
    }
}

impl Drop for RowCursor<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        *self.end = self.id;
    }
}

/// The next cell of a row. The cell exists and is free.
struct FreeCell<'r, 'a>(&'r mut RowCursor<'a>);

impl FreeCell<'_, '_> {
    /// Writes the entry of the row's next request, and moves on to the next cell.
    #[inline(always)]
    fn write(self, entry: Entry) {
        // SAFETY: the cell of a `FreeCell` exists and is free.
        unsafe { self.0.cells.write(entry) };
        self.0.id = self.0.id.after(1);
    }

    /// Adds a request to the session, and writes its entry into this cell. `last`: the request takes the queue's last
    /// free slot, so it is signalled.
    #[inline(always)]
    fn add<const PLAIN: bool, B, M: Postable<B>>(
        self,
        session: &mut Session,
        queue: &mut SendQueue,
        request: Accepted<M, PLAIN>,
        last: bool,
    ) {
        let id = self.0.id;
        self.keep_recipient(queue, &request);
        let (call, entry) = Call::of(request, last);
        self.write(entry);
        // SAFETY: the ledger has the entry. Inline bytes stay borrowed until the session is closed. A batch borrows
        // them for `'env` of `RawBatch`, and closes the session before `'env` ends. In `post_all`, their lifetime is
        // part of the type `M`, so they stay borrowed until `post_all` returns, and `post_all` closes the session
        // before it returns. The request was checked for this queue (`Accepted`), and the pair's type allows the
        // operation. The queue's `Peers` keep the address handle of the recipient (`keep_recipient`).
        unsafe { session.add(call, id) };
    }

    /// Keeps the address handle of the recipient for as long as the request may be in flight.
    #[inline(always)]
    fn keep_recipient<const PLAIN: bool, B, M: Postable<B>>(
        &self,
        queue: &mut SendQueue,
        request: &Accepted<M, PLAIN>,
    ) {
        if let Some(to) = request.recipient() {
            queue.keep(self.0.id, to);
        }
    }
}

/// A row of cells, and the slots of the stage for the same requests. Its drop writes the position back to the
/// [`PendingPosts`].
struct Burst<'a, 'q> {
    row: RowCursor<'a>,
    /// # Invariants
    ///
    /// 0. There are at least as many slots as the row has cells left or reserved.
    slots: Slots<'q>,
    plain_slots: &'a mut Slots<'q>,
}

impl Burst<'_, '_> {
    /// Adds a plain request. Returns the request if there is no room.
    #[inline(always)]
    fn put<B, M: Postable<B>>(&mut self, request: Accepted<M, true>) -> Result<(), Accepted<M, true>> {
        if self.row.reserve(1) == 0 {
            return Err(request);
        }
        // SAFETY: a cell was reserved just above.
        unsafe { self.put_reserved(request) };
        Ok(())
    }

    /// Adds a plain request to a reserved cell.
    ///
    /// # Safety
    ///
    /// A cell is reserved.
    #[inline(always)]
    unsafe fn put_reserved<B, M: Postable<B>>(&mut self, request: Accepted<M, true>) {
        // `unwrap_unchecked` saves a register in loops that call this. With a check whether a slot is left, such a loop
        // would have to keep the end of the slots in a register.
        // SAFETY: a cell is reserved (caller), and there are at least as many slots as reserved cells (0).
        let slot = unsafe { self.slots.as_slice().first().unwrap_unchecked() };
        let entry = slot.fill(request, self.row.id, false);
        // SAFETY: a cell is reserved (caller).
        unsafe { self.row.cell() }.write(entry);
        // The slot is removed only here: a call of `next` above, instead of `first`, would cost one more instruction.
        self.slots.next();
    }
}

impl Drop for Burst<'_, '_> {
    #[inline(always)]
    fn drop(&mut self) {
        *self.plain_slots = self.slots.clone();
    }
}

/// An open session, and the row of cells for its next requests.
pub(super) struct SessionWriter<'a> {
    row: RowCursor<'a>,
    session: &'a mut Session,
    queue: &'a mut SendQueue,
}

impl SessionWriter<'_> {
    /// Adds a request. `last`: the request takes the queue's last free slot, so it is signalled. Returns the request if
    /// the row has no room.
    #[inline(always)]
    pub(super) fn add<const PLAIN: bool, B, M: Postable<B>>(
        &mut self,
        request: Accepted<M, PLAIN>,
        last: bool,
    ) -> Result<(), Accepted<M, PLAIN>> {
        let Some(cell) = self.row.next() else { return Err(request) };
        cell.add(self.session, self.queue, request, last);
        Ok(())
    }

    /// Makes requests of the next `count` of `items` with `make`, and adds them, unsignalled, as far as the row has
    /// room. Stops at the first request that is not plain, and returns it.
    #[inline(always)]
    pub(super) fn add_some<B: Brand, X, M: Postable<B>, K>(
        &mut self,
        count: usize,
        items: &mut Items<'_, X>,
        make: &mut impl FnMut(X) -> WorkRequest<M, K>,
    ) -> Option<WorkRequest<M, K>> {
        let bounds = self.queue.bounds();
        let mut first = items.first(self.row.reserve(count));
        while let Some(item) = first.next() {
            match make(item).without_signal().plain(bounds) {
                Ok(request) => {
                    // SAFETY: `reserve` returned the number of reserved cells, and `first` has at most that many items.
                    let cell = unsafe { self.row.cell() };
                    cell.add(self.session, self.queue, request, false);
                }
                Err(other) => return Some(other),
            }
        }
        None
    }
}
