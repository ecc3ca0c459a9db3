//! Requests that are written ahead: in the ledger, where nobody looks yet, and in a stage or in an open session, where
//! the device does not look yet. A doorbell publishes them and hands them to the device.
#![allow(unsafe_code, reason = "writes ahead in the ledger, and hands over what it wrote")]

use super::items::Items;
use super::ledger::{CellRow, between};
use super::raw_post::{PostFailure, SendQueue, Unqueued};
use super::raw_session::{Call, Session, Sessions};
use super::request::{Accepted, Postable, WorkRequest};
use super::stage::{Chain, STAGED, Slot, Slots};
use super::{Entry, WorkId};
use crate::domain::Brand;
use crate::verb_error::VerbError;
use std::mem;
use std::ops::Deref;

/// A send queue, and the requests that are written ahead for it. It borrows the queue, and lends it for reading only,
/// so nobody posts past those requests.
pub(super) struct Ahead<'q> {
    queue: &'q mut SendQueue,
    /// # Invariants
    ///
    /// 0. From the queue's next id to before `end`, each request is written in the ledger, and is neither published nor
    ///    dropped. Where the queue posts in lists, they fill the first slots of the stage, in their order; where it
    ///    posts in sessions, they are in the open session, in their order.
    end: WorkId,
    /// 1. At most so many requests fit in the ledger, those written ahead included. This and (2) hold from a look for
    ///    room until the next doorbell.
    free: u32,
    /// The slots of a stage, which nobody else uses. There may be none where the queue posts in sessions.
    stage: &'q [Slot],
    /// 2. The slots for requests that need no look at the queue. For each of them the ledger has room, and room for one
    ///    more, since the last request that fits is signalled. They begin behind the slots that are filled. If there
    ///    are none, nothing is said of where they begin.
    plain: Slots<'q>,
    /// 3. The open session of the queue, if one is open.
    session: Option<Session>,
}

impl Deref for Ahead<'_> {
    type Target = SendQueue;

    #[inline(always)]
    fn deref(&self) -> &SendQueue {
        self.queue
    }
}

/// The slots that a batch without requests has for plain ones, if `free` requests fit in the queue.
#[inline(always)]
fn plain<'q>(queue: &SendQueue, stage: &'q [Slot], free: u32) -> Slots<'q> {
    let count = if queue.sessions().is_none() { stage.len().min(free.saturating_sub(1) as usize) } else { 0 };
    Slots::of(stage.get(..count).unwrap_or_default())
}

impl<'q> Ahead<'q> {
    /// With nothing ahead. Where the queue posts in sessions, there need be no stage.
    #[inline(always)]
    pub(super) fn new(queue: &'q mut SendQueue, stage: &'q [Slot]) -> Self {
        let (end, free) = (queue.id(), queue.room());
        let plain = plain(queue, stage, free);
        Self { queue, end, free, stage, plain, session: None }
    }

    /// Looks again how many requests fit. Only after a doorbell, when nothing is ahead.
    #[inline(always)]
    pub(super) fn look_for_room(&mut self) {
        if self.count() == 0 {
            self.free = self.queue.room();
            self.plain = plain(self.queue, self.stage, self.free);
        }
    }

    /// The id of the next request.
    #[inline(always)]
    pub(super) fn next_id(&self) -> WorkId {
        self.end
    }

    /// How many requests are ahead.
    #[inline(always)]
    pub(super) fn count(&self) -> u32 {
        between(self.queue.poster.next_id(), self.end.raw())
    }

    #[inline(always)]
    fn slot(&self, at: usize) -> Option<&'q Slot> {
        self.stage.get(at)
    }

    /// How many requests may wait for the doorbell.
    #[inline(always)]
    pub(super) fn room(&self) -> u32 {
        self.free.min(STAGED as u32)
    }

    /// How many more unsignalled requests can go into the session without a look at the queue. The last slot of the
    /// queue is left for a signalled one.
    #[inline(always)]
    pub(super) fn plain_room(&self) -> u32 {
        self.room().min(self.free.saturating_sub(1)).saturating_sub(self.count())
    }

    /// Whether an unsignalled request can go into the list without a look at the queue.
    #[inline(always)]
    pub(super) fn has_plain_slot(&self) -> bool {
        !self.plain.is_empty()
    }

    /// Adds a plain request to the list. It comes back if that needs a look at the queue.
    #[inline(always)]
    pub(super) fn stage<B, M: Postable<B>>(&mut self, request: Accepted<M, true>) -> Result<WorkId, Accepted<M, true>> {
        let Some(slot) = self.plain.next() else { return Err(request) };
        let mut row = Row::new(self.queue, &mut self.end, 1);
        let id = row.id;
        // SAFETY: for this slot the ledger has room (2).
        let cell = unsafe { row.cell() };
        cell.write(slot.fill(request, id, false));
        Ok(id)
    }

    /// Adds a request of any kind. The last that the queue has room for is signalled. Without room it comes back.
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
        let mut row = Row::new(self.queue, &mut self.end, self.free - count);
        let id = row.id;
        let Some(cell) = row.next() else { return Err(request) };
        cell.keep_recipient(self.queue, &request);
        cell.write(slot.fill(request, id, last));
        // If there are slots for plain requests, they began with this one.
        self.plain.next();
        Ok(id)
    }

    /// Adds a request to the session. A function of its own, so that it takes no registers from lists.
    #[inline(never)]
    fn add_any<B, M: Postable<B>>(
        &mut self,
        sessions: Sessions,
        request: Accepted<M, false>,
    ) -> Result<WorkId, Accepted<M, false>> {
        let (id, last) = (self.end, self.count() + 1 == self.free);
        self.in_session(sessions).add(request, last).map(|()| id)
    }

    /// Adds plain requests to the list until one needs another way, which comes back, or there are no more.
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

    /// Adds the requests that `make` makes of `items` to the list, unsignalled, as far as their entries lie in one row
    /// of the ledger. It stops at the first request that is not plain, which comes back.
    #[inline(always)]
    pub(super) fn stage_row<B: Brand, X, M: Postable<B>, K>(
        &mut self,
        items: &mut Items<'_, X>,
        make: &mut impl FnMut(X) -> WorkRequest<M, K>,
    ) -> Option<WorkRequest<M, K>> {
        let bounds = self.queue.bounds();
        let mut burst = self.burst();
        // The bound by `STAGED` changes nothing, but with it the compiler may spare `make` a check of its own.
        let count = burst.row.reserve(items.left().min(STAGED));
        let mut first = items.first(count);
        while let Some(item) = first.next() {
            match make(item).without_signal().plain(bounds) {
                Ok(request) => {
                    // SAFETY: as many places are set aside as there are items.
                    unsafe { burst.put_aside(request) };
                }
                Err(other) => return Some(other),
            }
        }
        None
    }

    /// The slots for plain requests whose entries lie in one row of the ledger.
    #[inline(always)]
    fn burst(&mut self) -> Burst<'_, 'q> {
        let slots = self.plain;
        let row = Row::new(self.queue, &mut self.end, slots.len() as u32);
        Burst { row, slots, plain: &mut self.plain }
    }

    /// Adds plain requests to the session until one needs another way, which comes back, or there are no more.
    #[inline(always)]
    pub(super) fn add_each<B: Brand, M: Postable<B>, K>(
        &mut self,
        sessions: Sessions,
        requests: &mut impl Iterator<Item = WorkRequest<M, K>>,
    ) -> Option<WorkRequest<M, K>> {
        let (bounds, room) = (self.queue.bounds(), self.plain_room());
        let mut row = Row::new(self.queue, &mut self.end, room);
        loop {
            match requests.next()?.plain(bounds) {
                Ok(request) => match row.next() {
                    Some(cell) => cell.add(opened(&mut self.session, self.queue, sessions), self.queue, request, false),
                    None => return Some(request.into_request()),
                },
                Err(other) => return Some(other),
            }
        }
    }

    /// Opens the session, if it is not open, to add requests whose entries lie in one row of the ledger.
    #[inline(always)]
    pub(super) fn in_session(&mut self, sessions: Sessions) -> InSession<'_> {
        let room = self.free - self.count();
        let row = Row::new(self.queue, &mut self.end, room);
        InSession { row, session: opened(&mut self.session, self.queue, sessions), queue: self.queue }
    }

    /// How many requests have room in the queue and in one row of the ledger.
    #[inline(always)]
    pub(super) fn room_in_row(&self) -> u32 {
        self.queue.poster.row(self.end.raw()).1.min(self.free - self.count())
    }

    /// Makes the newest request of the list a signalled one.
    #[inline(always)]
    pub(super) fn signal_newest(&self) {
        if let Some(slot) = self.slot((self.count() as usize).wrapping_sub(1)) {
            slot.signal();
        }
    }

    /// Hands what is ahead to the device. Afterwards nothing is ahead. Before another request is added, somebody
    /// [looks for room](Self::look_for_room) again; after a failure there is none.
    #[inline(always)]
    pub(super) fn ring(&mut self) -> Result<(), PostFailure> {
        if self.queue.sessions().is_some() {
            return self.complete().map_err(|source| (source, None));
        }
        let Some(chain) = Chain::of(self.stage, self.count() as usize) else { return Ok(()) };
        self.publish();
        // SAFETY: the list is of the requests that were ahead, all of which are filled (0). The ledger owns their
        // memory since they are published, as the newest. What is inline lives: whoever added it saw to that.
        let result = unsafe { self.queue.ring(chain.first()) };
        result.inspect_err(|_| self.forget_room())
    }

    #[cold]
    fn forget_room(&mut self) {
        (self.free, self.plain) = (0, Slots::of(&[]));
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
        // SAFETY: all before `end` are written (0).
        unsafe { self.queue.poster.publish(self.end.raw()) };
    }

    /// Takes back the newest request, which was rung and which the provider did not queue. Undoes what became of its
    /// memory; it was the request number `at` of the list.
    pub(super) fn take_back(&mut self, unqueued: &mut Unqueued, at: usize) -> Option<Entry> {
        let entry = self.queue.take_back(unqueued)?;
        // Nothing is ahead after a doorbell.
        self.end = self.queue.id();
        if let Some(slot) = self.slot(at) {
            slot.undo_fill(&entry);
        }
        Some(entry)
    }

    /// Drops what the device was not given.
    #[cold]
    #[inline(never)]
    fn abandon(&mut self) {
        if let Some(session) = self.session.take() {
            session.abort();
        }
        let end = mem::replace(&mut self.end, self.queue.id());
        // SAFETY: written ahead, and not published (0).
        unsafe { self.queue.poster.drop_ahead(end.raw()) };
    }
}

impl Drop for Ahead<'_> {
    /// Drops what is still ahead since the program's code panicked.
    #[inline(always)]
    fn drop(&mut self) {
        if self.count() != 0 || self.session.is_some() {
            self.abandon();
        }
    }
}

/// The session of an [`Ahead`], which is opened if none is open.
#[inline(always)]
fn opened<'s>(session: &'s mut Option<Session>, queue: &mut SendQueue, sessions: Sessions) -> &'s mut Session {
    debug_assert!(queue.sessions().is_some());
    // SAFETY: the pair is in a state that sends (0 of `WorkQueue`). Nobody else posts, since the queue is borrowed. No
    // session is open (3).
    session.get_or_insert_with(|| unsafe { sessions.open() })
}

/// The next cells of the ledger for an [`Ahead`]. A few words, so that loops run in registers. At its end it tells the
/// `Ahead` how far it came, also when the program's code panics.
struct Row<'a> {
    /// # Invariants
    ///
    /// 0. For the requests from `id` on, these are the cells; at least the first `left` of them are free.
    cells: CellRow<Entry>,
    left: u32,
    id: WorkId,
    end: &'a mut WorkId,
}

impl<'a> Row<'a> {
    /// The cells from `end` on, but no more than `room`: so many requests have room in the ledger behind those that are
    /// ahead.
    #[inline(always)]
    fn new(queue: &SendQueue, end: &'a mut WorkId, room: u32) -> Self {
        let (cells, count) = queue.poster.row(end.raw());
        Self { left: count.min(room), cells, id: *end, end }
    }

    /// The next free cell.
    #[inline(always)]
    fn next(&mut self) -> Option<FreeCell<'_, 'a>> {
        self.left = self.left.checked_sub(1)?;
        Some(FreeCell(self))
    }

    /// Sets up to `count` cells aside, and says how many.
    #[inline(always)]
    fn reserve(&mut self, count: usize) -> usize {
        let count = count.min(self.left as usize);
        self.left -= count as u32;
        count
    }

    /// The next cell of those that are set aside.
    ///
    /// # Safety
    ///
    /// There is one, or the ledger has room for the next request for another reason.
    #[inline(always)]
    unsafe fn cell(&mut self) -> FreeCell<'_, 'a> {
        FreeCell(self)
    }
}

impl Drop for Row<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        *self.end = self.id;
    }
}

/// The next cell of a row, which is free.
struct FreeCell<'r, 'a>(&'r mut Row<'a>);

impl FreeCell<'_, '_> {
    /// Writes the entry of the row's next request.
    #[inline(always)]
    fn write(self, entry: Entry) {
        // SAFETY: there is a cell, and it is free, as this type says.
        unsafe { self.0.cells.write(entry) };
        self.0.id = self.0.id.after(1);
    }

    /// Puts a request into the session and into this cell. If it is the `last` that the queue has room for, it is
    /// signalled.
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
        // SAFETY: the ledger has the entry; what is inline lives until the session is closed: whoever added it saw to
        // that. The request was accepted for this queue, and a handle is kept.
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

/// Cells and slots side by side, for plain requests of a list. At its end it tells the [`Ahead`] how far it came.
struct Burst<'a, 'q> {
    row: Row<'a>,
    /// # Invariants
    ///
    /// 0. At least as many as the row has left or set aside.
    slots: Slots<'q>,
    plain: &'a mut Slots<'q>,
}

impl Burst<'_, '_> {
    /// Adds a plain request. Without room it comes back.
    #[inline(always)]
    fn put<B, M: Postable<B>>(&mut self, request: Accepted<M, true>) -> Result<(), Accepted<M, true>> {
        if self.row.reserve(1) == 0 {
            return Err(request);
        }
        // SAFETY: a place is set aside.
        unsafe { self.put_aside(request) };
        Ok(())
    }

    /// Adds a plain request, for which a place was set aside.
    ///
    /// # Safety
    ///
    /// There is one.
    #[inline(always)]
    unsafe fn put_aside<B, M: Postable<B>>(&mut self, request: Accepted<M, true>) {
        // SAFETY: there are as many slots as cells (0), and there is a cell (caller).
        let slot = unsafe { self.slots.peek() };
        let entry = slot.fill(request, self.row.id, false);
        // SAFETY: the caller's promise.
        unsafe { self.row.cell() }.write(entry);
        // SAFETY: it was there just now.
        unsafe { self.slots.pass() };
    }
}

impl Drop for Burst<'_, '_> {
    #[inline(always)]
    fn drop(&mut self) {
        *self.plain = self.slots;
    }
}

/// An open session, and the next cells of the ledger for its requests.
pub(super) struct InSession<'a> {
    row: Row<'a>,
    session: &'a mut Session,
    queue: &'a mut SendQueue,
}

impl InSession<'_> {
    /// Adds a request. If it is the `last` that the queue has room for, it is signalled. Without room it comes back.
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

    /// Adds the requests that `make` makes of the next `count` of `items`, unsignalled, as far as there is room. It
    /// stops at the first request that is not plain, which comes back.
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
                    // SAFETY: as many are set aside as there are items.
                    let cell = unsafe { self.row.cell() };
                    cell.add(self.session, self.queue, request, false);
                }
                Err(other) => return Some(other),
            }
        }
        None
    }
}
