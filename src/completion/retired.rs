//! The requests that one completion of the device retires: the request that it names, and the unsignalled ones before
//! that.
//!
//! The poller gives memory out to the program only here, and in `poller` to callers that ask for one completion at a
//! time. `poller::gone` drops what is left when the completion queue itself is gone. `out_of_order` and
//! `shared_receivers` move requests from one ledger to another.

use super::completion::{Completion, Ended, Success};
use super::failure::Failure;
use super::statuses::Statuses;
use crate::domain::brand::Branded;
use crate::inflight::ledger::Prefix;
use crate::inflight::{Entry, Finish, FinishOnDrop, Pending, QueueKind, RawEntry, Status, WorkId};
use crate::memory::Buffer;
use crate::sys;
use std::{fmt, iter::FusedIterator, marker::PhantomData};

/// Requests of one work queue that have ended together: unsignalled ones that succeeded, and a last one. Forgetting
/// this value (`mem::forget`) changes nothing: the requests are still in the ledger, and the next poll finds them
/// again.
pub(super) struct Retirement<'d> {
    requests: Prefix<'d, Entry>,
    statuses: &'d Statuses,
    /// The device's completion for the last request; `None` if the queue pair was destroyed or reset.
    by_device: Option<Pending<'d>>,
}

impl<'d> Retirement<'d> {
    #[inline(always)]
    pub(super) fn completed(requests: Prefix<'d, Entry>, statuses: &'d Statuses, pending: Pending<'d>) -> Self {
        Self { requests, statuses, by_device: Some(pending) }
    }

    /// One request, whose queue pair was destroyed or reset.
    pub(super) fn destroyed(requests: Prefix<'d, Entry>, statuses: &'d Statuses) -> Self {
        Self { requests, statuses, by_device: None }
    }

    /// The id of the oldest request.
    #[inline(always)]
    fn first(&self) -> WorkId {
        WorkId::from_raw(self.requests.first())
    }

    /// Puts the buffers of the requests into `free`, if they are successful sends with buffers, the oldest is `first`,
    /// and there are at most `most`. Requests that are not taken stay where they are.
    #[inline(always)]
    pub(super) fn take_batch<B>(self, first: WorkId, most: u32, free: &mut Vec<Buffer<B>>) {
        if self.first() == first && self.count_before_last() < most {
            let _ = self.into_sent_buffers(free);
        }
    }

    /// How many requests are before the last.
    #[inline(always)]
    fn count_before_last(&self) -> u32 {
        self.requests.count_before_last()
    }

    /// Whether the last request is a successful send. If so, it has ended in the same way as the requests before it.
    #[inline(always)]
    fn is_sent(&self) -> bool {
        self.by_device.as_ref().is_some_and(|pending| {
            let wc = pending.wc();
            wc.status == sys::ibv_wc_status::IBV_WC_SUCCESS
                && WorkId::from_raw(wc.wr_id).key().kind() == QueueKind::Send
        })
    }

    /// Takes out the oldest of the requests. The others stay in the ledger.
    pub(super) fn into_oldest(mut self) -> (Ended, RawEntry) {
        let (ended, entry) = match self.next_before_last() {
            Some(before) => before,
            None => self.into_last(),
        };
        (ended, entry.into_raw())
    }

    /// Takes out the oldest request, if it is not the last.
    #[inline(always)]
    fn next_before_last(&mut self) -> Option<(Ended, Entry)> {
        let qpn = self.requests.origin().qpn();
        self.requests.next_before_last().map(|(id, entry)| (Ended::implied(WorkId::from_raw(id), qpn), entry))
    }

    /// Takes out the requests before the last, and gives them to `f`.
    #[inline(always)]
    fn each_before_last(&mut self, mut f: impl FnMut(Ended, Entry)) {
        let qpn = self.requests.origin().qpn();
        self.requests.each_before_last(|id, entry| f(Ended::implied(WorkId::from_raw(id), qpn), entry));
    }

    /// Takes out the last request. The caller has taken out the requests before it.
    #[inline(always)]
    fn into_last(self) -> (Ended, Entry) {
        let Self { requests, statuses, by_device } = self;
        let (origin, last) = (requests.origin(), requests.last());
        let Some(pending) = by_device else {
            return (Ended::destroyed(WorkId::from_raw(last), origin.qpn()), requests.into_last());
        };
        let wc = pending.wc();
        pending.consume();
        // For a shared receive, `id` and `last` differ: `id` is the id in the shared receive queue, and `last` is the
        // id in the ledger of the pair that took the receive.
        let id = WorkId::from_raw(wc.wr_id);
        if wc.status == sys::ibv_wc_status::IBV_WC_SUCCESS {
            let entry = requests.into_last();
            return (Ended::succeeded(id, &entry, origin, wc), entry);
        }
        // The failure is recorded before the request leaves the ledger. Once the request has left, the program can see
        // that the pair is drained, and can reset it. A failure recorded after the reset would count against the pair
        // in its next use.
        let first = statuses.note(WorkId::from_raw(last), id.key().kind(), Status::from_raw(wc.status.0));
        (Ended::failed(id, origin.qpn(), wc, first), requests.into_last())
    }

    /// Takes out the last request. Drops the memory of requests before it that were not taken.
    #[inline(always)]
    pub(super) fn into_completion<B>(mut self) -> Completion<B> {
        if self.count_before_last() != 0 {
            self.drop_before_last();
        }
        let (ended, entry) = self.into_last();
        Completion::new(ended, entry.into_raw())
    }

    #[cold]
    #[inline(never)]
    fn drop_before_last(&mut self) {
        self.each_before_last(|_, entry| drop(entry));
    }

    /// Puts the buffers of all requests into `free`, if the last request [is a successful send](Self::is_sent) and all
    /// requests have buffers. Otherwise returns what is left.
    #[inline(always)]
    fn into_sent_buffers<B>(self, free: &mut Vec<Buffer<B>>) -> Result<(), Self> {
        if !self.is_sent() {
            return Err(self);
        }
        let Self { requests, statuses, by_device } = self;
        match requests.into_buffers(free) {
            Ok(()) => {
                if let Some(pending) = by_device {
                    pending.consume();
                }
                Ok(())
            }
            Err(requests) => Err(Self { requests, statuses, by_device }),
        }
    }

    /// Puts the buffers of the requests before the last into `free`.
    #[inline(always)]
    fn take_buffers<B>(&mut self, free: &mut Vec<Buffer<B>>) {
        self.requests.take_buffers_before_last(free);
        // If requests are left, at least one of them has memory other than a buffer.
        if self.count_before_last() != 0 {
            self.each_before_last(|_, entry| free.extend(entry.into_buffer()));
        }
    }
}

impl Finish for Retirement<'_> {
    #[inline(always)]
    fn finish(self) {
        drop(self.into_completion::<()>());
    }
}

/// The requests that one completion of the device retires: requests of one work queue, in the order of posting. Lent by
/// [`Poller::poll_retired`](super::Poller::poll_retired).
///
/// The requests before the last were unsignalled and have succeeded. Dropping this drops the memory that was not taken.
/// Forgetting it (`mem::forget`) loses nothing: the same requests come again at once, so a closure that forgets every
/// one of them never gets to the end.
pub struct Retired<'p, B> {
    retirement: FinishOnDrop<Retirement<'p>>,
    brand: Branded<B>,
}

impl<'p, B> Retired<'p, B> {
    #[inline(always)]
    pub(super) fn new(retirement: Retirement<'p>) -> Self {
        Self { retirement: FinishOnDrop::new(retirement), brand: PhantomData }
    }

    /// How many requests there are, including the last one.
    #[inline(always)]
    #[allow(clippy::len_without_is_empty, reason = "never empty")]
    pub fn len(&self) -> usize {
        self.retirement.count_before_last() as usize + 1
    }

    /// The requests before the last: unsignalled ones that succeeded.
    ///
    /// [`for_each`](Iterator::for_each) is the fast way through them.
    #[inline(always)]
    pub fn unsignalled(&mut self) -> Unsignalled<'_, 'p, B> {
        Unsignalled { retirement: &mut self.retirement, brand: PhantomData }
    }

    /// Puts the buffers of all the requests into `free`. This is the fastest way to get many buffers back.
    ///
    /// # Errors
    ///
    /// The last request failed: the error has its memory, and `free` has the buffers of the others.
    #[inline(always)]
    pub fn into_buffers(self, free: &mut Vec<Buffer<B>>) -> Result<(), Failure<B>> {
        let Err(mut rest) = self.retirement.into_inner().into_sent_buffers(free) else { return Ok(()) };
        rest.take_buffers(free);
        free.extend(rest.into_completion().check()?.into_buffer());
        Ok(())
    }

    /// Puts the buffers of the requests before the last into `free`.
    pub fn take_buffers(&mut self, free: &mut Vec<Buffer<B>>) {
        self.retirement.take_buffers(free);
    }

    /// The last request, which the device has reported. Drops the memory of requests before it that were not taken.
    #[inline(always)]
    pub fn into_completion(self) -> Completion<B> {
        self.retirement.into_inner().into_completion()
    }
}

impl<B> fmt::Debug for Retired<'_, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Retired").field("len", &self.len()).finish_non_exhaustive()
    }
}

/// Unsignalled requests that succeeded. Requests that are not taken stay in the [`Retired`] that lent them.
pub struct Unsignalled<'r, 'p, B> {
    retirement: &'r mut Retirement<'p>,
    brand: Branded<B>,
}

impl<B> Iterator for Unsignalled<'_, '_, B> {
    type Item = Success<B>;

    #[inline]
    fn next(&mut self) -> Option<Success<B>> {
        self.retirement.next_before_last().map(|(ended, entry)| Success::new(ended, entry))
    }

    #[inline(always)]
    fn size_hint(&self) -> (usize, Option<usize>) {
        let count = self.retirement.count_before_last() as usize;
        (count, Some(count))
    }

    /// Faster than a loop: the work queue gets its room back once, at the end.
    #[inline(always)]
    fn for_each<F: FnMut(Success<B>)>(self, mut f: F) {
        self.retirement.each_before_last(|ended, entry| f(Success::new(ended, entry)));
    }
}

impl<B> ExactSizeIterator for Unsignalled<'_, '_, B> {}
impl<B> FusedIterator for Unsignalled<'_, '_, B> {}

impl<B> fmt::Debug for Unsignalled<'_, '_, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Unsignalled").field("len", &self.len()).finish_non_exhaustive()
    }
}
