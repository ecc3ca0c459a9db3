//! The stage where a batch keeps its requests, in the form that the provider reads, until it rings.
#![forbid(unsafe_code)]

use super::post::{Filled, Staged, undo_fill};
use crate::inflight::cell::with_local;
use crate::inflight::entry::sealed::Postable;
use crate::inflight::request::Accepted;
use crate::inflight::{Entry, WorkId};
use std::cell::Cell;
use std::mem::offset_of;
use std::ptr;

/// The most requests that a batch hands to the device at once.
pub(in crate::inflight) const STAGED: usize = 32;

/// A place for one request in a stage.
pub(in crate::inflight) struct Slot {
    staged: Staged,
    /// See [`Filled::filled_before`].
    filled_before: Cell<usize>,
}
// A pointer to a slot is also a pointer to its request.
const _: () = assert!(offset_of!(Slot, staged) == 0);

impl Slot {
    const fn new() -> Self {
        Self { staged: Staged::new(), filled_before: Cell::new(0) }
    }

    /// [Fills](Staged::fill) the slot. Returns the entry for the ledger.
    #[inline(always)]
    pub(in crate::inflight) fn fill<const PLAIN: bool, B, M: Postable<B>>(
        &self,
        request: Accepted<M, PLAIN>,
        id: WorkId,
        last: bool,
    ) -> Entry {
        let fills = request.action().operation.fills();
        let Filled { entry, filled_before, .. } = self.staged.fill(request, id, last);
        if fills {
            self.filled_before.set(filled_before);
        }
        entry
    }

    /// Makes the request a signalled one.
    #[inline(always)]
    pub(in crate::inflight) fn signal(&self) {
        self.staged.signal();
    }

    /// Undoes what [`fill`](Self::fill) did to the memory of `entry`.
    pub(in crate::inflight) fn undo_fill(&self, entry: &Entry) {
        undo_fill(entry, self.filled_before.get());
    }
}

/// The next slots of a stage, in order.
pub(in crate::inflight) type Slots<'s> = std::slice::Iter<'s, Slot>;

/// The slots for the requests of a batch. Each request is linked to the next one.
struct Stage([Slot; STAGED]);

impl Stage {
    const fn new() -> Self {
        Self([const { Slot::new() }; STAGED])
    }

    #[cold]
    fn link(&self) {
        for (slot, next) in self.0.iter().zip(&self.0[1..]) {
            slot.staged.link_to(next.staged.as_wr());
        }
    }
}

/// The first requests of a stage, as a list. While this exists, the last of them is not linked to the next slot.
pub(in crate::inflight) struct Chain<'s> {
    first: &'s Slot,
    last: &'s Slot,
    /// A pointer to the end of the last slot. It is derived from the slice of all slots: a pointer derived from the
    /// last slot may not be used to read the next slot.
    after: *const Slot,
}

impl<'s> Chain<'s> {
    /// The first `count` of the slots; `None` if there are fewer, or if `count` is 0.
    #[inline(always)]
    pub(in crate::inflight) fn of(slots: &'s [Slot], count: usize) -> Option<Self> {
        let last = slots.get(count.wrapping_sub(1))?;
        last.staged.link_to(ptr::null_mut());
        Some(Self { first: slots.first()?, last, after: slots.as_ptr().wrapping_add(count) })
    }

    #[inline(always)]
    pub(in crate::inflight) fn first(&self) -> &'s Staged {
        &self.first.staged
    }
}

impl Drop for Chain<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        // Restore the link that `Chain::of` set to null. If `last` is the last slot of the stage, the link points past
        // the end of the stage. No provider follows it: a list that contains the last slot ends there, and `Chain::of`
        // sets the link to null before such a list is posted.
        self.last.staged.link_to(self.after.cast_mut().cast());
    }
}

/// How a thread's stage is used now.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Usage {
    Unlinked,
    Free,
    Taken,
}

type ThreadStage = (Cell<Usage>, Stage);

thread_local! {
    /// One stage serves all batches of a thread, so it is linked only once, and queue pairs need no stages.
    static THREAD_STAGE: ThreadStage = const { (Cell::new(Usage::Unlinked), Stage::new()) };
}

/// Restores the usage of the thread's stage when a batch is over.
struct RestoreUsage<'t>(&'t Cell<Usage>, Usage);

impl Drop for RestoreUsage<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.0.set(self.1);
    }
}

/// Lends `f` a linked stage that nobody else uses: the thread's stage, or a new one while another batch uses the
/// thread's.
#[inline(always)]
pub(in crate::inflight) fn with_stage<R>(f: impl FnOnce(&[Slot]) -> R) -> R {
    with_local(&THREAD_STAGE, |(usage, of_thread)| {
        let mut spare = None;
        let (stage, after) = match usage.replace(Usage::Taken) {
            Usage::Free => (of_thread, Usage::Free),
            before => linked(before, of_thread, &mut spare),
        };
        let _restore = RestoreUsage(usage, after);
        f(&stage.0)
    })
}

#[cold]
#[inline(never)]
fn linked<'s>(before: Usage, of_thread: &'s Stage, spare: &'s mut Option<Stage>) -> (&'s Stage, Usage) {
    let (stage, after): (&Stage, _) =
        if before == Usage::Taken { (spare.insert(Stage::new()), Usage::Taken) } else { (of_thread, Usage::Free) };
    stage.link();
    (stage, after)
}
