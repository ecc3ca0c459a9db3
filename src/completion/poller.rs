//! Polling: the only place where memory leaves the ledgers.
//!
//! ASSUMPTION: a request's completion comes after the device's last access to its memory; requests of a reliable
//! connection complete in the order of posting; and `ibv_poll_cq` orders what the device wrote before what is read after it.
#![allow(unsafe_code, reason = "polls and arms the raw queue")]

use super::entry::{Completion, RawCompletion, Status};
use super::queue::{Attached, CqInner, Message, Orphan, QueueStatus};
use crate::domain::brand::Branded;
use crate::error::VerbError;
use crate::queue::WorkId;
use crate::sys;
use std::marker::PhantomData;
use std::mem::{self, ManuallyDrop};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use std::{fmt, io};

/// How many completions are taken from the device at once.
const BATCH: usize = 16;

/// Polls one completion queue of domain `B`. There is one, so `&mut` means that nobody else polls.
///
/// It may go to another thread. Dropping it loses nothing: [`CompletionQueue::take_poller`](super::CompletionQueue::take_poller)
/// gives the next one, and memory that nobody polls for is freed with the queue.
#[doc(alias = "ibv_poll_cq")]
pub struct Poller<B> {
    /// Taken out only when this is dropped.
    desk: ManuallyDrop<Box<Desk>>,
    queue: Arc<CqInner>,
    brand: Branded<B>,
}

/// What a poller works on; outlives it.
pub(crate) struct Desk {
    /// The work queues, by slot.
    attached: Vec<Option<Attached>>,
    /// What was taken from the device and not given out yet: from `next` to `filled`.
    polled: [sys::ibv_wc; BATCH],
    next: usize,
    filled: usize,
    /// Work queues that were gone before the last look at the device; to be emptied once that look's completions are out.
    leaving: Vec<Orphan>,
    /// Work queues that went since.
    left: Vec<Orphan>,
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
        Self {
            attached: Vec::new(),
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

    pub(super) fn into_attached(self) -> Vec<Attached> {
        self.attached.into_iter().flatten().collect()
    }

    /// Reads what the control path sent.
    #[cold]
    fn read_mail(&mut self, queue: &CqInner) {
        for message in queue.mailbox.take() {
            match message {
                Message::Attach(attached) => {
                    let slot = attached.key.slot();
                    if self.attached.len() <= slot {
                        self.attached.resize_with(slot + 1, || None);
                    }
                    self.attached[slot] = Some(attached);
                }
                Message::Orphan(orphan) => self.left.push(orphan),
            }
        }
    }

    /// The work queue of the completion at `next`; `None` at the end of those taken from the device.
    #[inline(always)]
    fn current<'d>(
        polled: &'d [sys::ibv_wc; BATCH],
        attached: &'d mut [Option<Attached>],
        at: usize,
    ) -> Option<(&'d sys::ibv_wc, &'d mut Attached)> {
        let wc = polled.get(at)?;
        let key = WorkId::from_raw(wc.wr_id).key();
        match attached.get_mut(key.slot()) {
            Some(Some(attached)) if attached.key == key => Some((wc, attached)),
            _ => None,
        }
    }

    /// The next completion of those taken from the device.
    #[inline(always)]
    fn next_polled(&mut self, queue: &CqInner) -> Option<RawCompletion> {
        while self.next < self.filled {
            let Some((wc, attached)) = Self::current(&self.polled, &mut self.attached, self.next) else {
                self.not_attached(queue);
                continue;
            };
            let Some((raw, ahead)) = attached.retire(wc) else {
                self.skip_unknown();
                continue;
            };
            self.next += usize::from(ahead == 0);
            return Some(raw);
        }
        None
    }

    /// All completions of those taken from the device.
    #[inline(always)]
    fn each_polled(&mut self, queue: &CqInner, mut f: impl FnMut(RawCompletion)) -> usize {
        let mut count = 0;
        'polled: while self.next < self.filled {
            let Some((wc, attached)) = Self::current(&self.polled, &mut self.attached, self.next) else {
                self.not_attached(queue);
                continue;
            };
            // The work queue is looked up once for all that this completion retires.
            while let Some((raw, ahead)) = attached.retire(wc) {
                count += 1;
                self.next += usize::from(ahead == 0);
                f(raw);
                if ahead == 0 {
                    continue 'polled;
                }
            }
            self.skip_unknown();
        }
        count
    }

    /// A completion whose work queue is not known: perhaps that came since the last look at the mail.
    #[cold]
    fn not_attached(&mut self, queue: &CqInner) {
        if queue.mailbox.has_mail() {
            self.read_mail(queue);
        } else {
            self.skip_unknown();
        }
    }

    #[cold]
    fn each_destroyed(&mut self, queue: &CqInner, f: &mut dyn FnMut(RawCompletion)) -> usize {
        let mut count = 0;
        while let Some(raw) = self.next_destroyed(queue) {
            f(raw);
            count += 1;
        }
        count
    }

    /// The first `gone` of those that left have no completions but those just polled.
    #[cold]
    fn let_leave(&mut self, gone: usize) {
        // Emptied from the back, oldest first.
        self.leaving.extend(self.left.drain(..gone).rev());
    }

    #[cold]
    fn skip_unknown(&mut self) {
        self.unknown += 1;
        self.next += 1;
    }

    /// The next request of a work queue that is gone. All completions of before it went have been given out.
    #[cold]
    fn next_destroyed(&mut self, queue: &CqInner) -> Option<RawCompletion> {
        while let Some(orphan) = self.leaving.last() {
            let slot = orphan.place.key.slot();
            if let Some(Some(attached)) = self.attached.get_mut(slot) {
                if let Some(entry) = attached.retirer.take() {
                    let qpn = attached.qpn;
                    // Its index is not needed to find it any more; the queue tells the caller whose it was.
                    let id = attached.key.id(attached.retirer.last_index());
                    return Some(RawCompletion::destroyed(id, entry, qpn));
                }
                self.attached[slot] = None;
            }
            if let Some(Orphan { place, keeps_lease }) = self.leaving.pop() {
                queue.release(place, keeps_lease.is_none());
                if let Some(unsettled) = keeps_lease {
                    unsettled.fetch_sub(1, Ordering::Release);
                }
            }
        }
        None
    }
}

impl Attached {
    /// Takes out the oldest request that the device's completion `wc` retires. With it comes how many more are ahead of the one that
    /// `wc` is about; `None` if that is not in flight.
    #[inline(always)]
    fn retire(&mut self, wc: &sys::ibv_wc) -> Option<(RawCompletion, u32)> {
        let id = WorkId::from_raw(wc.wr_id);
        let failed = wc.status != sys::ibv_wc_status::IBV_WC_SUCCESS;
        let (mut first, status) = (None, &self.status);
        let (entry, ahead) = self.retirer.retire(id.index(), |ahead| {
            // Before the pair can see itself drained, and begin a new life without failures.
            if failed && ahead == 0 {
                first = note_failure(status, Status::from_raw(wc.status.0));
            }
        })?;
        let raw = if ahead != 0 {
            RawCompletion::implied(id.before(ahead), entry, self.qpn)
        } else if failed {
            RawCompletion::failed(id, entry, self.qpn, wc, first)
        } else {
            RawCompletion::succeeded(id, entry, self.qpn, wc)
        };
        Some((raw, ahead))
    }
}

/// Notes the first failure of a pair; gives the one there was before.
#[cold]
fn note_failure(status: &QueueStatus, failed: Status) -> Option<Status> {
    let first = status.first_failure();
    if first.is_none() {
        status.note_failure(failed);
    }
    first
}

/// Why nothing was polled.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PollError {
    /// `ibv_poll_cq` failed, which is neither an empty queue nor a completion. The queue is of no use any more: what
    /// is in flight on it is freed when the queue pairs and the queue are dropped, and a pair that was reset undrained
    /// does not come up again.
    #[error("the completion queue failed (overrun, or its device is gone): destroy its queue pairs")]
    Failed,
}

/// Why there is no completion.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WaitError {
    /// None came in time.
    #[error("no completion within {0:?}")]
    TimedOut(Duration),
    /// See [`PollError`].
    #[error(transparent)]
    Poll(#[from] PollError),
    /// Arming the queue or reading its channel failed.
    #[error(transparent)]
    Verb(#[from] VerbError),
    /// Waiting for the channel failed.
    #[error("cannot wait for the completion channel")]
    Io(#[from] io::Error),
}

impl<B> Poller<B> {
    pub(super) fn new(queue: Arc<CqInner>, desk: Box<Desk>) -> Self {
        Self { desk: ManuallyDrop::new(desk), queue, brand: PhantomData }
    }

    /// The next completion; `None` if there is none now.
    ///
    /// `ibv_poll_cq(3)`, which takes up to 16 at once. Each posted request comes out exactly once: with the status that the
    /// device reported; as a success where it was unsignalled and a later one completed; or, after its queue pair was
    /// destroyed or reset, as a [`Failure`](super::Failure) with [`Status::Destroyed`].
    ///
    /// # Errors
    ///
    /// [`PollError::Failed`], from then on always.
    #[inline(always)]
    pub fn poll(&mut self) -> Result<Option<Completion<B>>, PollError> {
        let desk = &mut **self.desk;
        loop {
            if let Some(raw) = desk.next_polled(&self.queue) {
                return Ok(Some(Completion::new(raw)));
            }
            if !desk.leaving.is_empty()
                && let Some(raw) = desk.next_destroyed(&self.queue)
            {
                return Ok(Some(Completion::new(raw)));
            }
            if !refill(desk, &self.queue)? {
                return Ok(None);
            }
        }
    }

    /// Gives `f` each completion that there is now; says how many. The way to take many: cheaper than as many
    /// [`poll`](Self::poll)s.
    ///
    /// Looks at the device only if nothing is left of an earlier look. What is left when `f` panics comes next time.
    ///
    /// # Errors
    ///
    /// As [`poll`](Self::poll).
    #[inline(always)]
    pub fn poll_each(&mut self, mut f: impl FnMut(Completion<B>)) -> Result<usize, PollError> {
        let desk = &mut **self.desk;
        loop {
            if desk.next >= desk.filled && desk.leaving.is_empty() && !refill(desk, &self.queue)? {
                return Ok(0);
            }
            let mut count = desk.each_polled(&self.queue, |raw| f(Completion::new(raw)));
            if !desk.leaving.is_empty() {
                // By reference, so that the loop above has `f` to itself and can inline it.
                count += desk.each_destroyed(&self.queue, &mut |raw| f(Completion::new(raw)));
            }
            if count != 0 {
                return Ok(count);
            }
        }
    }

    /// Waits for the next completion, at most for `timeout`.
    ///
    /// Arms the queue, looks again, then sleeps on the completion channel: `ibv_req_notify_cq(3)`,
    /// `ibv_get_cq_event(3)`. To spin instead, call [`poll`](Self::poll).
    ///
    /// # Errors
    ///
    /// [`WaitError`].
    pub fn wait(&mut self, timeout: Duration) -> Result<Completion<B>, WaitError> {
        let deadline = Instant::now().checked_add(timeout);
        loop {
            if let Some(completion) = self.poll()? {
                return Ok(completion);
            }
            self.arm()?;
            // What came before the queue was armed raises no event.
            if let Some(completion) = self.poll()? {
                return Ok(completion);
            }
            let left = deadline.map_or(timeout, |deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return Err(WaitError::TimedOut(timeout));
            }
            self.sleep(left)?;
        }
    }

    /// Completions that named no request in flight, and were dropped. Not 0 means that the provider is at fault, or that
    /// another program wrote to this one's memory.
    pub fn unknown_completions(&self) -> u64 {
        self.desk.unknown
    }

    fn arm(&self) -> Result<(), VerbError> {
        // SAFETY: alive as long as we hold it; we are its only poller.
        match unsafe { (self.queue.request_notify)(self.queue.raw.as_ptr(), 0) } {
            0 => Ok(()),
            errno => Err(VerbError::new("ibv_req_notify_cq", errno.wrapping_abs())),
        }
    }

    /// Sleeps until an event, or a timer of the device, or for `left`; takes what events there are.
    fn sleep(&self, left: Duration) -> Result<(), WaitError> {
        let left = self.queue.domain.context.next_timer().map_or(left, |timer| timer.min(left));
        // SAFETY: alive as long as the queue.
        let channel = unsafe { (*self.queue.channel.as_ptr()).fd };
        wait_readable([channel, self.queue.waker.fd()], left)?;
        self.queue.waker.clear();
        // SAFETY: alive as long as the queue.
        while unsafe { self.queue.domain.context.provider.take_cq_event(self.queue.channel) }? {}
        Ok(())
    }
}

/// Sleeps until one of `fds` can be read, or for `left`, or until a signal.
#[cfg(not(miri))]
fn wait_readable(fds: [i32; 2], left: Duration) -> io::Result<()> {
    let mut polls = fds.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
    // Rounded up, so as not to spin through the last millisecond.
    let millis = i32::try_from(left.as_micros().div_ceil(1000)).unwrap_or(i32::MAX);
    // SAFETY: two entries, which may be written.
    if unsafe { libc::poll(polls.as_mut_ptr(), 2, millis) } < 0 {
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
    Ok(())
}

/// Miri has no `poll(2)`; to come back early is allowed.
#[cfg(miri)]
fn wait_readable(_: [i32; 2], _: Duration) -> io::Result<()> {
    std::thread::yield_now();
    Ok(())
}

/// Looks at the device, once all that it gave earlier is out. False if there is nothing to give out.
#[inline(always)]
fn refill(desk: &mut Desk, queue: &CqInner) -> Result<bool, PollError> {
    if desk.poisoned {
        return Err(PollError::Failed);
    }
    if queue.mailbox.has_mail() {
        desk.read_mail(queue);
    }
    // These were gone before this look, so once it finds the end of the queue, it has found all completions of theirs.
    let gone = desk.left.len();
    // SAFETY: alive as long as we hold it; we are its only poller; there is room for `BATCH` entries.
    let count = unsafe { (queue.poll)(queue.raw.as_ptr(), BATCH as i32, desk.polled.as_mut_ptr()) };
    (desk.next, desk.filled) = (0, 0);
    let Ok(count) = usize::try_from(count) else {
        desk.poisoned = true;
        return Err(PollError::Failed);
    };
    desk.filled = count.min(BATCH);
    if gone != 0 && count < BATCH {
        desk.let_leave(gone);
    }
    Ok(count != 0 || !desk.leaving.is_empty())
}

impl<B> Drop for Poller<B> {
    fn drop(&mut self) {
        // SAFETY: taken once, here.
        self.queue.park(unsafe { ManuallyDrop::take(&mut self.desk) });
    }
}

impl<B> fmt::Debug for Poller<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Poller").field("unknown_completions", &self.unknown_completions()).finish_non_exhaustive()
    }
}
