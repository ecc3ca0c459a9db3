//! What a poller works on: the work queues of one completion queue, and what was taken from the device.
//!
//! ASSUMPTION: a request's completion comes after the device's last access to its memory; where the provider's
//! row says so, the sends of one work queue complete in the order of posting; and `ibv_poll_cq` orders what the
//! device wrote before what is read after it.
#![allow(unsafe_code, reason = "polls the raw queue")]

use super::Completion;
use super::completion::Ended;
use super::departing::Guest;
use super::poller::PollError;
use super::queue::{Attached, CqInner, Message, Orphan, Place};
use super::retired::Run;
use super::shares::Members;
use super::singly::Singles;
use super::statuses::Statuses;
use crate::inflight::ledger::{Nothing, Retirer};
use crate::inflight::{Entry, RawEntry, Status, WorkId};
use crate::sys;
use std::mem;
use std::sync::atomic::Ordering;

/// How many completions are taken from the device at once.
pub(super) const BATCH: usize = 16;
static_assertions::const_assert!(BATCH.is_power_of_two());

/// Outlives its poller.
pub(crate) struct Desk {
    /// # Invariants
    ///
    /// 0. `mask + 1` places, a power of two. The work queues are in those of their slots; what is in the others has nothing
    ///    in flight, so that no look at a place has to ask.
    retirers: Vec<Retirer<Entry>>,
    mask: usize,
    /// What else belongs to each; looked at when something fails.
    statuses: Statuses,
    vacant: Nothing<Entry>,
    /// Those of them that receive from a shared receive queue.
    members: Members,
    /// Those of them whose requests have completed in another order than they were posted.
    singles: Singles,
    /// Pairs to destroy once nothing of them is in flight.
    guests: Vec<Guest>,
    /// A pair could not be destroyed. The device may use for good what it has in flight here.
    has_lost: bool,
    /// What was taken from the device and not given out yet: from `next` to `filled`.
    ///
    /// 1. `next` is at most `filled`, which is at most `BATCH`.
    polled: [sys::ibv_wc; BATCH],
    next: u32,
    filled: u32,
    /// Work queues that were gone before the last look at the device; to be emptied once that look's completions are out.
    leaving: Vec<Orphan>,
    /// Work queues that went since, each with how many completions may be in the queue that were there before it went. The
    /// queue gives them out in order, so a queue that is never seen empty lets them leave too.
    left: Vec<(Orphan, u32)>,
    /// Completions for requests that are not in flight.
    unknown: u64,
    poisoned: bool,
}

// SAFETY: completions hold numbers only; the rest is `Send`.
unsafe impl Send for Desk {}
// SAFETY: shared access reads numbers only.
unsafe impl Sync for Desk {}

impl Desk {
    pub(super) fn new() -> Self {
        let vacant = Nothing::new();
        Self {
            retirers: vec![vacant.retirer()],
            mask: 0,
            statuses: Statuses::default(),
            vacant,
            members: Members::default(),
            singles: Singles::default(),
            guests: Vec::new(),
            has_lost: false,
            // SAFETY: a struct of numbers, for which zero is a value. (A device need not write all of them.)
            polled: unsafe { mem::zeroed() },
            next: 0,
            filled: 0,
            leaving: Vec::new(),
            left: Vec::new(),
            unknown: 0,
            poisoned: false,
        }
    }

    /// Whether pairs wait to be destroyed.
    pub(super) fn has_guests(&self) -> bool {
        !self.guests.is_empty()
    }

    /// The completion queue ends: destroys the pairs that wait for it. False if there is one, now or earlier, that could not be
    /// destroyed.
    pub(super) fn end_guests(&mut self) -> bool {
        for guest in mem::take(&mut self.guests) {
            // For its place elsewhere; this queue has none to give back any more.
            drop(self.end(guest));
        }
        !self.has_lost
    }

    /// Destroys a pair; its places here. If it cannot be destroyed, what is in flight here is kept for good.
    fn end(&mut self, mut guest: Guest) -> [Option<Place>; 2] {
        match guest.pair.destroy() {
            Ok(()) => guest.pair.into_places(),
            Err(error) => {
                guest.pair.leak(error);
                self.has_lost = true;
                [None, None]
            }
        }
    }

    /// Whether there may be completions without which something is lost: shared receives, or those of pairs to destroy.
    pub(super) fn owes(&self) -> bool {
        !self.poisoned && (!self.members.is_empty() || !self.guests.is_empty())
    }

    /// Drops what is in flight. The device is done with all of it.
    pub(super) fn drop_rest(mut self) {
        self.singles.drain().for_each(drop);
        for mut retirer in self.retirers {
            while let Some(entry) = retirer.take() {
                drop(entry);
            }
        }
    }

    pub(super) fn unknown(&self) -> u64 {
        self.unknown
    }

    /// Whether there is nothing to give out without another look at the device.
    #[inline(always)]
    pub(super) fn is_out(&self, queue: &CqInner) -> bool {
        self.next >= self.filled && !queue.mailbox.is_flagged()
    }

    /// The next completion to give out; `None` if there is none now. Looks at the device only if it `may_look`.
    #[inline(always)]
    pub(super) fn next<B>(&mut self, queue: &CqInner, may_look: bool) -> Result<Option<Completion<B>>, PollError> {
        if self.next >= self.filled {
            if !queue.mailbox.is_flagged() {
                if !may_look {
                    return Ok(None);
                }
                let count = self.take(queue);
                // Neither none, nor a negative one, which is a great one.
                if count.wrapping_sub(1) >= BATCH as u32 {
                    return if count == 0 { Ok(None) } else { Err(self.poison(queue)) };
                }
                self.filled = count;
                // SAFETY: there is one.
                if let Some(completion) = unsafe { self.oldest_of_success(0) } {
                    return Ok(Some(completion));
                }
                self.next = 0;
            }
        // SAFETY: there is one: `next` is less than `filled`.
        } else if let Some(completion) = unsafe { self.oldest_of_success(self.next) } {
            return Ok(Some(completion));
        }
        // Apart, so that one of the short way need not be in memory.
        let Some((ended, entry)) = self.next_of_any(queue, may_look)? else { return Ok(None) };
        // SAFETY: taken out just now.
        Ok(Some(unsafe { Completion::new(ended, entry) }))
    }

    /// The oldest request that the completion `at` this place, the next to give out, retires, if that says success.
    ///
    /// # Safety
    ///
    /// There is one.
    #[inline(always)]
    unsafe fn oldest_of_success<B>(&mut self, at: u32) -> Option<Completion<B>> {
        // SAFETY: less than `filled` (caller), so less than `BATCH` (1).
        let wc = unsafe { self.polled.get_unchecked(at as usize) };
        let id = wc.wr_id;
        if wc.status != sys::ibv_wc_status::IBV_WC_SUCCESS {
            return None;
        }
        // SAFETY: there are so many (0).
        let mut retirer = unsafe { self.retirers.get_unchecked_mut(id as usize & self.mask) }.lend();
        let (ended, entry) = if let Some(entry) = retirer.take_if_oldest(id) {
            self.next = at + 1;
            (Ended::succeeded(WorkId::from_raw(id), &entry, retirer.origin(), wc), entry)
        } else {
            if !retirer.origin().retires_prefixes() {
                return None;
            }
            let oldest = retirer.oldest_up_to(id)?;
            self.next = at;
            // SAFETY: in flight.
            let entry = unsafe { retirer.take_oldest(oldest) };
            (Ended::implied(WorkId::from_raw(oldest), retirer.origin().qpn()), entry)
        };
        // SAFETY: taken out just now.
        Some(unsafe { Completion::new(ended, entry.into_raw()) })
    }

    /// [`next`](Self::next), whatever that is.
    #[cold]
    #[inline(never)]
    fn next_of_any(&mut self, queue: &CqInner, may_look: bool) -> Result<Option<(Ended, RawEntry)>, PollError> {
        Ok(self.next_run(queue, may_look)?.map(Run::next))
    }

    /// The next requests to give out; `None` if there are none now. Looks at the device only if it `may_look`.
    #[inline(always)]
    pub(super) fn next_run(&mut self, queue: &CqInner, may_look: bool) -> Result<Option<Run<'_>>, PollError> {
        loop {
            if self.next >= self.filled {
                if queue.mailbox.is_flagged() {
                    match self.attend(queue, may_look)? {
                        Attended::Polled => {}
                        Attended::Destroyed(slot) => return Ok(self.destroyed(slot)),
                        Attended::Empty => return Ok(None),
                    }
                } else if !may_look || !self.look(queue)? {
                    return Ok(None);
                }
            }
            // SAFETY: there is one: `next` is less than `filled`.
            if let Some(run) = unsafe { self.current() } {
                // SAFETY: of the lifetime only, which the compiler takes for that of the loop: the ways on from here do
                // not have the run.
                return Ok(Some(unsafe { mem::transmute::<Run<'_>, Run<'_>>(run) }));
            }
            if self.single(queue) {
                continue;
            }
            match self.shared() {
                Some(slot) => return Ok(self.current_shared(slot)),
                None => self.astray(queue),
            }
        }
    }

    /// What the completion at `next` retires; `None` if no such request is known.
    ///
    /// # Safety
    ///
    /// There is one.
    #[inline(always)]
    unsafe fn current(&mut self) -> Option<Run<'_>> {
        // SAFETY: less than `filled` (caller), so less than `BATCH` (1).
        let wc = unsafe { self.polled.get_unchecked(self.next as usize) };
        let id = wc.wr_id;
        // SAFETY: there are so many (0).
        let retirer = unsafe { self.retirers.get_unchecked_mut(id as usize & self.mask) }.lend();
        let oldest = retirer.oldest_up_to(id)?;
        if oldest != id && !retirer.origin().retires_prefixes() {
            return None;
        }
        Some(Run::completed(retirer, &self.statuses, oldest, id, wc, &mut self.next))
    }

    /// Brings the request that the completion at `next` names to where it is the oldest, if it completed before others of its
    /// queue that do not end with it.
    #[cold]
    #[inline(never)]
    fn single(&mut self, queue: &CqInner) -> bool {
        let id = WorkId::from_raw(self.polled[self.next as usize % BATCH].wr_id);
        let slot = id.key().slot();
        if let Some(place) = self.retirers.get_mut(slot)
            && place.lend().oldest_up_to(id.raw()).is_some()
            && !self.singles.has(slot)
        {
            let ring = mem::replace(place, self.vacant.retirer());
            *place = self.singles.begin(slot, ring, &queue.domain.ledgers);
        }
        if !self.singles.has_one(id) {
            return false;
        }
        // To bring it accounts for it. By then the pair must know of its failure: it can see itself drained, and begin a new life.
        let status = Status::from_raw(self.polled[self.next as usize % BATCH].status.0);
        if status != Status::Success {
            self.statuses.note_early(id, status);
        }
        self.singles.bring(id)
    }

    /// Brings what the completion at `next` names to the pair that took it, if that is a shared receive; the pair's slot.
    #[cold]
    #[inline(never)]
    fn shared(&mut self) -> Option<usize> {
        self.members.bring(&self.polled[self.next as usize % BATCH])
    }

    /// The shared receive that was brought to the pair in `slot`.
    #[cold]
    fn current_shared(&mut self, slot: usize) -> Option<Run<'_>> {
        let wc = &self.polled[self.next as usize % BATCH];
        let retirer = self.retirers.get_mut(slot)?.lend();
        let brought = retirer.oldest();
        Some(Run::completed(retirer, &self.statuses, brought, brought, wc, &mut self.next))
    }

    /// The requests of a queue that is gone.
    #[cold]
    fn destroyed(&mut self, slot: usize) -> Option<Run<'_>> {
        self.retirers.get_mut(slot).map(|retirer| Run::destroyed(retirer.lend(), &self.statuses))
    }

    /// Asks the device for completions, `BATCH` at most, and gives its answer. They are not given out yet.
    #[inline(always)]
    fn take(&mut self, queue: &CqInner) -> u32 {
        // SAFETY: alive as long as we hold it; we are its only poller; there is room for `BATCH` entries.
        unsafe { (queue.poll)(queue.raw.as_ptr(), BATCH as i32, self.polled.as_mut_ptr()) as u32 }
    }

    /// Takes what the device has. False if that is nothing.
    #[inline(always)]
    fn look(&mut self, queue: &CqInner) -> Result<bool, PollError> {
        let count = self.take(queue);
        // Negative ones are great ones.
        if count > BATCH as u32 {
            return Err(self.poison(queue));
        }
        (self.next, self.filled) = (0, count);
        Ok(count != 0)
    }

    /// Does what an ordinary look leaves out: reads what the control path sent, and empties the queues that are gone.
    #[cold]
    #[inline(never)]
    fn attend(&mut self, queue: &CqInner, may_look: bool) -> Result<Attended, PollError> {
        if self.poisoned {
            return Err(PollError::Failed);
        }
        if let Some(slot) = self.next_destroyed(queue) {
            return Ok(Attended::Destroyed(slot));
        }
        if !may_look {
            return Ok(Attended::Empty);
        }
        // What is gone before this look has no completions after the end of the queue, if the look finds that.
        self.read_mail(queue);
        let any = self.look(queue)?;
        // Some give fewer than there are.
        let seen = if any { self.filled } else { u32::MAX };
        self.left.iter_mut().for_each(|(_, before)| *before = before.saturating_sub(seen));
        // Those at the front went first. They are emptied from the back, oldest first.
        let gone = self.left.iter().take_while(|(_, before)| *before == 0).count();
        let waiting = self.left.split_off(gone);
        self.leaving.extend(mem::replace(&mut self.left, waiting).into_iter().rev().map(|(orphan, _)| orphan));
        if !(self.left.is_empty() && self.leaving.is_empty() && self.guests.is_empty()) {
            queue.mailbox.flag();
        }
        if any {
            return Ok(Attended::Polled);
        }
        self.see_off();
        Ok(self.next_destroyed(queue).map_or(Attended::Empty, Attended::Destroyed))
    }

    /// Destroys the pairs that wait for it and have nothing in flight. The completion queue was just seen empty.
    fn see_off(&mut self) {
        for mut guest in mem::take(&mut self.guests) {
            let in_flight =
                |&slot: &usize| self.retirers.get(slot).is_some_and(Retirer::has_any) || self.singles.has_any(slot);
            if guest.pair.slots().iter().flatten().any(in_flight) || !guest.had_its_time() {
                guest.urge();
                self.guests.push(guest);
                continue;
            }
            let places = self.end(guest).into_iter().flatten();
            self.leaving.extend(places.map(|place| Orphan { place, keeps_lease: None }));
        }
    }

    #[cold]
    pub(super) fn poison(&mut self, queue: &CqInner) -> PollError {
        self.poisoned = true;
        queue.mailbox.flag();
        (self.next, self.filled) = (0, 0);
        PollError::Failed
    }

    /// Reads what the control path sent.
    #[cold]
    pub(super) fn read_mail(&mut self, queue: &CqInner) {
        for message in queue.mailbox.take() {
            match message {
                Message::Attach(attached) => {
                    let Attached { retirer, status } = attached;
                    let slot = WorkId::from_raw(retirer.oldest()).key().slot();
                    if self.retirers.len() <= slot {
                        self.retirers.resize_with((slot + 1).next_power_of_two(), || self.vacant.retirer());
                        self.mask = self.retirers.len() - 1;
                    }
                    if let Some(place) = self.retirers.get_mut(slot) {
                        *place = retirer;
                        self.statuses.set(slot, Some(status));
                    }
                }
                Message::Join(member) => self.members.join(member),
                Message::Depart(pair) => self.guests.push(Guest::new(pair)),
                Message::Orphan(orphan) => self.left.push((orphan, queue.capacity())),
            }
        }
    }

    /// A completion of a request that is not known: perhaps its queue came since the last look at the mail. Else it is counted,
    /// and dropped.
    #[cold]
    #[inline(never)]
    fn astray(&mut self, queue: &CqInner) {
        if queue.mailbox.has_mail() {
            self.read_mail(queue);
            // For what came besides.
            queue.mailbox.flag();
        } else {
            // What a queue that was destroyed had in flight came back then.
            let id = WorkId::from_raw(self.polled[self.next as usize % BATCH].wr_id);
            self.unknown += u64::from(!self.members.is_over(id));
            self.next += 1;
        }
    }

    /// The slot of a work queue that is gone and still has requests. All completions of before it went have been given
    /// out. Ends those that have none.
    #[cold]
    fn next_destroyed(&mut self, queue: &CqInner) -> Option<usize> {
        while let Some(orphan) = self.leaving.last() {
            let slot = orphan.place.next.key().slot();
            let mut next = orphan.place.next;
            if let Some(retirer) = self.retirers.get_mut(slot) {
                if retirer.has_any() || self.singles.bring_oldest(slot) {
                    return Some(slot);
                }
                if orphan.place.shared.is_some() {
                    self.members.leave(retirer.origin().qpn(), slot);
                    queue.forget_number(retirer.origin().qpn());
                }
                let ended = mem::replace(retirer, self.vacant.retirer());
                next = WorkId::from_raw(self.singles.end(slot).unwrap_or(ended).oldest());
                self.statuses.set(slot, None);
            }
            if let Some(Orphan { place, keeps_lease }) = self.leaving.pop() {
                queue.release(Place { next, ..place }, keeps_lease.is_none());
                if let Some(unsettled) = keeps_lease {
                    unsettled.fetch_sub(1, Ordering::Release);
                }
            }
        }
        None
    }
}

/// What came of a look that was not an ordinary one.
enum Attended {
    /// There are completions of the device.
    Polled,
    /// The queue in this slot is gone, and has requests.
    Destroyed(usize),
    /// Nothing.
    Empty,
}
