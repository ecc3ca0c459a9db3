//! Batches: requests that are handed to the device together.
//!
//! A batch writes ahead in the ledger, where nobody looks yet; ringing publishes what was written and hands it to the device.
#![allow(unsafe_code, reason = "links the requests of a list")]

use super::post::{KEY, PostError, SendQueue, Staged, stage};
use super::request::{SendMemory, WorkRequest};
use super::work::{Operation, PostedMemory, WorkId};
use crate::domain::brand::Branded;
use crate::error::VerbError;
use std::marker::PhantomData;
use std::mem::{self, MaybeUninit};
use std::{error, fmt, ptr};

/// How many requests a batch hands to the device at once.
pub(super) const STAGED: usize = 32;

/// Where a batch keeps its requests until it rings. It belongs to the function that lends the batch, and stays there.
pub(super) type Stage = MaybeUninit<[Staged; STAGED]>;

/// Requests that are handed to the device together, with one doorbell. Lent by [`QueuePair::batch`](crate::QueuePair::batch).
///
/// `'batch` is new for each batch, so that two batches cannot be swapped. What a batch that panicked had not handed over
/// was never posted: its ids are given out again.
pub struct Batch<'batch, B> {
    queue: &'batch mut SendQueue,
    /// # Invariants
    ///
    /// 0. Room for `STAGED` requests, which nobody else uses for as long as this is around; the first `count` are filled,
    ///    and their entries are written ahead in the ledger. Neither device nor poller knows them yet.
    staged: *mut Staged,
    count: usize,
    /// 1. At most `STAGED`, and at most what fits in the queue; 0 after a fault.
    room: usize,
    /// What fits in the queue, that of `staged` included.
    free: usize,
    posted: usize,
    fault: Option<Fault<B>>,
    brand: Branded<B>,
    section: PhantomData<fn(&'batch ()) -> &'batch ()>,
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

impl<B, R> fmt::Display for BatchError<B, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (refused, posted) = (self.refused.len(), self.posted);
        match self.uncertain {
            0 => write!(f, "the provider refused {refused} requests of a batch after {posted}"),
            uncertain => {
                write!(f, "the provider failed with {uncertain} requests of a batch possibly posted after {posted}")
            }
        }
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
struct Fault<B> {
    source: VerbError,
    refused: Vec<PostedMemory<B>>,
    uncertain: usize,
}

impl<'batch, B> Batch<'batch, B> {
    pub(super) fn new(queue: &'batch mut SendQueue, stage: &'batch mut Stage) -> Self {
        let staged = stage.as_mut_ptr().cast();
        let (brand, section) = (PhantomData, PhantomData);
        let mut this = Self { queue, staged, count: 0, room: 0, free: 0, posted: 0, fault: None, brand, section };
        this.make_room();
        this
    }

    /// Looks how many requests fit.
    fn make_room(&mut self) {
        self.free = if self.fault.is_some() { 0 } else { self.queue.room() as usize };
        self.room = self.free.min(STAGED);
    }

    /// Adds a request. It is handed to the device at the end of the batch; before, when 32 have come together or the queue
    /// is full, so that polling makes room again.
    ///
    /// # Errors
    ///
    /// As [`QueuePair::post`](crate::QueuePair::post); the rest of the batch is not touched.
    #[inline(always)]
    pub fn post<M: SendMemory<B>, K>(
        &mut self,
        request: WorkRequest<M, K>,
    ) -> Result<WorkId, PostError<WorkRequest<M, K>>> {
        let length = match request.action.length(request.memory.part(KEY)) {
            Ok(length) => length,
            Err(flaw) => return Err(PostError::Flawed { request, flaw }),
        };
        if self.count == self.room {
            // Also what is staged may be needed to go first, for its completions to make room.
            self.ring();
            self.make_room();
            if self.room == 0 {
                return Err(self.no_room(request));
            }
        }
        let count = self.count;
        let id = self.queue.id(count as u32);
        let staged = self.at(count);
        let WorkRequest { memory, action, .. } = request;
        // SAFETY: room (0), since `count` is below `STAGED` (1); it stays where it is until it was rung.
        let entry = unsafe { stage(memory, &action, length, id, count + 1 == self.free, staged) };
        // SAFETY: so much fits in the queue (1); nobody else posts.
        unsafe { self.queue.poster.write_ahead(count as u32, entry) };
        if count != 0 {
            // SAFETY: filled (0).
            unsafe { (*self.at(count - 1)).wr.next = staged.cast() };
        }
        self.count = count + 1;
        Ok(id)
    }

    #[cold]
    fn no_room<R>(&self, request: R) -> PostError<R> {
        match &self.fault {
            Some(Fault { source, uncertain: 0, .. }) => PostError::Refused { request, source: *source },
            // Broken, if it is uncertain what was posted.
            _ => self.queue.no_room(request),
        }
    }

    #[inline(always)]
    fn at(&self, number: usize) -> *mut Staged {
        self.staged.wrapping_add(number)
    }

    /// Hands what is staged to the device.
    fn ring(&mut self) {
        let count = mem::take(&mut self.count);
        if count == 0 {
            return;
        }
        self.queue.poster.publish(count as u32);
        match self.queue.ring(self.staged) {
            Ok(()) => self.posted += count,
            Err((source, bad)) => self.refused(count, source, bad.cast()),
        }
    }

    #[cold]
    fn refused(&mut self, count: usize, source: VerbError, bad: *mut Staged) {
        let at = (0..count).find(|&at| ptr::eq(self.at(at), bad));
        let mut fault = Fault { source, refused: Vec::new(), uncertain: 0 };
        match at {
            Some(at) => {
                self.posted += at;
                for number in (at..count).rev() {
                    let Some(entry) = self.queue.take_back() else { break };
                    if !matches!(entry.operation(), Operation::Send | Operation::Write) {
                        // SAFETY: written when it was staged.
                        entry.part().set_filled(unsafe { (*self.at(number)).filled_before });
                    }
                    fault.refused.push(entry.into_memory());
                }
                fault.refused.reverse();
            }
            None => {
                fault.uncertain = count;
                self.queue.poison();
            }
        }
        self.fault = Some(fault);
    }

    /// Ends the batch in order, with what its closure returned.
    pub(super) fn finish<R>(mut self, result: R) -> Result<R, BatchError<B, R>> {
        self.ring();
        match self.fault.take() {
            None => Ok(result),
            Some(Fault { source, refused, uncertain }) => {
                Err(BatchError { posted: self.posted, refused, uncertain, source, result })
            }
        }
    }
}

impl<B> Drop for Batch<'_, B> {
    /// Ends a batch whose closure panicked: the device was not given what is staged, so it is the program's again.
    fn drop(&mut self) {
        for ahead in 0..mem::take(&mut self.count) {
            // SAFETY: written ahead and not published (0); taken once.
            drop(unsafe { self.queue.poster.read_ahead(ahead as u32) });
        }
    }
}

impl<B> fmt::Debug for Batch<'_, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch").field("staged", &self.count).finish_non_exhaustive()
    }
}
