//! What one completion of the device brings back: its own request, and the unsignalled ones before it.
//!
//! The only place where memory leaves the ledgers.
#![allow(unsafe_code, reason = "takes entries out of the ledgers")]

use super::completion::Ended;
use super::statuses::Statuses;
use super::{Completion, Failure, Success};
use crate::domain::brand::Branded;
use crate::inflight::ledger::{Retiring, after, between};
use crate::inflight::{Entry, QueueKind, RawEntry, Status, WorkId};
use crate::memory::Buffer;
use crate::sys;
use std::mem::ManuallyDrop;
use std::{fmt, iter::FusedIterator, marker::PhantomData};

/// Requests of one work queue that came to their end together: some that succeeded, and one of which the device says how it
/// ended. Forgetting it changes nothing: they are still in the ledger then, and the next poll finds them.
pub(super) struct Run<'d> {
    retirer: Retiring<'d, Entry>,
    statuses: &'d Statuses,
    /// # Invariants
    ///
    /// 0. The oldest in the ledger.
    oldest: u64,
    /// 1. The last: it is in flight, as are those before it.
    last: u64,
    /// What the device says of the last; `None` if the queue is gone.
    by_device: Option<(&'d sys::ibv_wc, &'d mut u32)>,
}

impl<'d> Run<'d> {
    /// `next` counts the completions that were given out.
    #[inline(always)]
    pub(super) fn completed(
        retirer: Retiring<'d, Entry>,
        statuses: &'d Statuses,
        oldest: u64,
        last: u64,
        wc: &'d sys::ibv_wc,
        next: &'d mut u32,
    ) -> Self {
        Self { retirer, statuses, oldest, last, by_device: Some((wc, next)) }
    }

    /// At least one request is in flight.
    pub(super) fn destroyed(retirer: Retiring<'d, Entry>, statuses: &'d Statuses) -> Self {
        let oldest = retirer.oldest();
        Self { retirer, statuses, oldest, last: oldest, by_device: None }
    }

    /// How many requests are before the last.
    #[inline(always)]
    fn ahead(&self) -> u32 {
        between(self.oldest, self.last)
    }

    /// Whether the device says that the last succeeded, and it was no receive: then it ended as those before it.
    #[inline(always)]
    fn is_sent(&self) -> bool {
        self.by_device.as_ref().is_some_and(|(wc, _)| {
            wc.status == sys::ibv_wc_status::IBV_WC_SUCCESS
                && WorkId::from_raw(wc.wr_id).key().kind() == QueueKind::Send
        })
    }

    /// Counts the completion of the device as given out: all that it retires was taken, the last too.
    #[inline(always)]
    fn give_out(self) {
        if let Some((_, next)) = self.by_device {
            *next += 1;
        }
    }

    /// The oldest of the requests.
    pub(super) fn next(mut self) -> (Ended, RawEntry) {
        let (ended, entry) = match self.next_before() {
            Some(before) => before,
            None => self.last(),
        };
        (ended, entry.into_raw())
    }

    /// The oldest of those before the last.
    #[inline(always)]
    fn next_before(&mut self) -> Option<(Ended, Entry)> {
        let id = self.oldest;
        if id == self.last {
            return None;
        }
        self.oldest = after(id, 1);
        // SAFETY: the oldest (0), in flight (1).
        let entry = unsafe { self.retirer.take_oldest(id) };
        Some((Ended::implied(WorkId::from_raw(id), self.retirer.origin().qpn()), entry))
    }

    /// Gives `f` those before the last.
    #[inline(always)]
    fn each_before(&mut self, mut f: impl FnMut(Ended, Entry)) {
        let qpn = self.retirer.origin().qpn();
        let f = |id, entry| f(Ended::implied(WorkId::from_raw(id), qpn), entry);
        // SAFETY: from the oldest (0) on, in flight (1).
        unsafe { self.retirer.take_each(&mut self.oldest, self.last, f) };
    }

    /// The last; there is none before it.
    #[inline(always)]
    fn last(self) -> (Ended, Entry) {
        let Self { mut retirer, statuses, by_device, last, .. } = self;
        let origin = retirer.origin();
        let Some((wc, next)) = by_device else {
            // SAFETY: in flight (1), the oldest by now.
            let entry = unsafe { retirer.take_oldest(last) };
            return (Ended::destroyed(WorkId::from_raw(last), origin.qpn()), entry);
        };
        *next += 1;
        // Of a shared receive another one than `last`.
        let id = WorkId::from_raw(wc.wr_id);
        if wc.status == sys::ibv_wc_status::IBV_WC_SUCCESS {
            // SAFETY: as above.
            let entry = unsafe { retirer.take_oldest(last) };
            return (Ended::succeeded(id, &entry, origin, wc), entry);
        }
        // Before the pair can see itself drained, and begin a new life without failures.
        let first = statuses.note(WorkId::from_raw(last), id.key().kind(), Status::from_raw(wc.status.0));
        // SAFETY: as above.
        let entry = unsafe { retirer.take_oldest(last) };
        (Ended::failed(id, origin.qpn(), wc, first), entry)
    }

    /// The last; drops the memory of what is still before it.
    #[inline(always)]
    fn finish<B>(mut self) -> Completion<B> {
        if self.ahead() != 0 {
            self.drop_before();
        }
        let (ended, entry) = self.last();
        // SAFETY: taken out just now.
        unsafe { Completion::new(ended, entry.into_raw()) }
    }

    #[cold]
    #[inline(never)]
    fn drop_before(&mut self) {
        self.each_before(|_, entry| drop(entry));
    }
}

/// What one completion of the device retires: requests of one work queue, in the order of posting. Lent by
/// [`Poller::poll_retired`](super::Poller::poll_retired).
///
/// The unsignalled ones before the last have succeeded. Dropping it drops the memory of what was not taken; forgetting
/// it loses nothing, since the same requests are given again, at once: who forgets each of them is never done.
pub struct Retired<'p, B> {
    /// Taken out once.
    run: ManuallyDrop<Run<'p>>,
    brand: Branded<B>,
}

impl<'p, B> Retired<'p, B> {
    #[inline(always)]
    pub(super) fn new(run: Run<'p>) -> Self {
        Self { run: ManuallyDrop::new(run), brand: PhantomData }
    }

    /// How many requests there are, the last included.
    #[inline(always)]
    #[allow(clippy::len_without_is_empty, reason = "never empty")]
    pub fn len(&self) -> usize {
        self.run.ahead() as usize + 1
    }

    /// The requests before the last: unsignalled ones that succeeded.
    ///
    /// [`for_each`](Iterator::for_each) is the fast way through them.
    #[inline(always)]
    pub fn unsignalled(&mut self) -> Unsignalled<'_, 'p, B> {
        Unsignalled { run: &mut self.run, brand: PhantomData }
    }

    /// Puts the buffers of all the requests into `free`. The fastest way to many buffers.
    ///
    /// # Errors
    ///
    /// The last request failed: the failure has its memory, and `free` the buffers of the others.
    #[inline(always)]
    pub fn into_buffers(mut self, free: &mut Vec<Buffer<B>>) -> Result<(), Failure<B>> {
        free.reserve(self.len());
        if self.run.is_sent() {
            // The last with the others: it ended as they did.
            let end = after(self.run.last, 1);
            // SAFETY: for so many; some may be there already.
            while unsafe { self.take_row(free, end) } {
                if self.run.oldest == end {
                    // SAFETY: taken out here, and not dropped.
                    unsafe { ManuallyDrop::take(&mut ManuallyDrop::new(self).run) }.give_out();
                    return Ok(());
                }
            }
        }
        self.take_buffers(free);
        free.extend(self.completion().check()?.into_buffer());
        Ok(())
    }

    /// Puts the buffers of the requests before the last into `free`.
    pub fn take_buffers(&mut self, free: &mut Vec<Buffer<B>>) {
        free.reserve(self.run.ahead() as usize);
        let last = self.run.last;
        // SAFETY: for so many; some may be there already.
        while self.run.ahead() != 0 && unsafe { self.take_row(free, last) } {}
        // What is not all buffers.
        if self.run.ahead() != 0 {
            self.run.each_before(|_, entry| free.extend(entry.into_buffer()));
        }
    }

    /// Takes those before `end`, which is the last or the one after it, as far as they are in a row in the ledger, if all are
    /// buffers. There is one at least.
    ///
    /// # Safety
    ///
    /// `free` has room for those before `end`.
    #[inline(always)]
    unsafe fn take_row(&mut self, free: &mut Vec<Buffer<B>>, end: u64) -> bool {
        let Run { retirer, oldest, .. } = &mut *self.run;
        // SAFETY: in flight (1).
        let row = unsafe { retirer.row(*oldest, end) };
        let count = row.len() as usize;
        let places = free.spare_capacity_mut().as_mut_ptr();
        let mut bits = 0;
        for at in 0..count {
            // SAFETY: in the row, and in flight (0). The copy is the value if all are buffers, else nothing.
            let entry = unsafe { row.copy(at as u32) };
            bits |= entry.bits();
            // SAFETY: used only if it is a buffer.
            let buffer = unsafe { ManuallyDrop::into_inner(entry).assume_buffer() };
            // SAFETY: there is room (caller).
            unsafe { places.wrapping_add(at).write(buffer) };
        }
        if !Entry::are_buffers(bits) {
            return false;
        }
        // SAFETY: so many were written, which are buffers.
        unsafe { free.set_len(free.len() + count) };
        // SAFETY: their copies are the values from here on.
        unsafe { retirer.took(after(*oldest, count as u32)) };
        *oldest = after(*oldest, count as u32);
        true
    }

    /// The last request, of which the device says how it ended. Drops the memory of what is still before it.
    #[inline(always)]
    pub fn completion(self) -> Completion<B> {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: taken out here, and not dropped.
        unsafe { ManuallyDrop::take(&mut this.run) }.finish()
    }
}

impl<B> Drop for Retired<'_, B> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: taken out here, at the end.
        drop(unsafe { ManuallyDrop::take(&mut self.run) }.finish::<B>());
    }
}

impl<B> fmt::Debug for Retired<'_, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Retired").field("len", &self.len()).finish_non_exhaustive()
    }
}

/// Unsignalled requests that succeeded. What is not taken stays with the [`Retired`] that lent it.
pub struct Unsignalled<'r, 'p, B> {
    run: &'r mut Run<'p>,
    brand: Branded<B>,
}

impl<B> Iterator for Unsignalled<'_, '_, B> {
    type Item = Success<B>;

    #[inline]
    fn next(&mut self) -> Option<Success<B>> {
        self.run.next_before().map(|(ended, entry)| Success::new(ended, entry))
    }

    #[inline(always)]
    fn size_hint(&self) -> (usize, Option<usize>) {
        let ahead = self.run.ahead() as usize;
        (ahead, Some(ahead))
    }

    /// In a row: the work queue has the room at the end.
    #[inline(always)]
    fn for_each<F: FnMut(Success<B>)>(self, mut f: F) {
        self.run.each_before(|ended, entry| f(Success::new(ended, entry)));
    }
}

impl<B> ExactSizeIterator for Unsignalled<'_, '_, B> {}
impl<B> FusedIterator for Unsignalled<'_, '_, B> {}

impl<B> fmt::Debug for Unsignalled<'_, '_, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Unsignalled").field("len", &self.len()).finish_non_exhaustive()
    }
}
