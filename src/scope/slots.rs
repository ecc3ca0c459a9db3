//! The results of a scope's requests, until their tickets take them.

use crate::completion::Completion;
use crate::inflight::{QueueKind, WorkId};
use crate::queue::Limits;
use std::mem;

/// A request of a scope.
#[derive(Default)]
enum Slot<B> {
    #[default]
    Free,
    /// Taken for a request that is about to be posted.
    Reserved,
    InFlight {
        id: WorkId,
        /// Whether nobody wants the result: the ticket was dropped, or was never made.
        abandoned: bool,
    },
    Done(Completion<B>),
}

/// The requests of a scope: one slot for each request that the pair can hold, allocated once.
pub(super) struct Slots<B> {
    slots: Box<[Slot<B>]>,
    free: Vec<u32>,
    /// Which slot a completion belongs to: by kind of queue, then by the request's index in its ledger.
    by_index: [Box<[u32]>; 2],
    in_flight: u32,
}

impl<B> Slots<B> {
    pub(super) fn new(limits: &Limits) -> Self {
        let count = limits.sends.saturating_add(limits.receives);
        let by_index = [limits.sends, limits.receives].map(|depth| vec![0; depth.next_power_of_two() as usize].into());
        Self { slots: (0..count).map(|_| Slot::Free).collect(), free: (0..count).collect(), by_index, in_flight: 0 }
    }

    /// How many requests the device may still work on.
    pub(super) fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// Takes a free slot. `None` if every slot is in flight or holds a result that was not taken.
    pub(super) fn reserve(&mut self) -> Option<u32> {
        let slot = self.free.pop()?;
        self.set(slot, Slot::Reserved);
        Some(slot)
    }

    /// Frees a slot for which nothing was posted.
    pub(super) fn release(&mut self, slot: u32) {
        self.set(slot, Slot::Free);
        self.free.push(slot);
    }

    /// Records that the request was posted, or may have been.
    pub(super) fn posted(&mut self, slot: u32, id: WorkId, abandoned: bool) {
        self.set(slot, Slot::InFlight { id, abandoned });
        self.in_flight += 1;
        if let Some(by_index) = self.by_index.get_mut(id.key().kind() as usize) {
            // The indices of the requests in flight on one queue lie in a range that is no longer than the table. The
            // length of the table is a power of two. So no two of these requests share an entry.
            let at = id.index() as usize & (by_index.len() - 1);
            by_index[at] = slot;
        }
    }

    /// Records that nobody wants the result of this slot.
    pub(super) fn abandon(&mut self, slot: u32) {
        match self.slots.get_mut(slot as usize) {
            Some(Slot::InFlight { abandoned, .. }) => *abandoned = true,
            Some(Slot::Done(_)) => self.release(slot),
            _ => (),
        }
    }

    /// Whether there is a result.
    pub(super) fn is_done(&self, slot: u32) -> bool {
        matches!(self.slots.get(slot as usize), Some(Slot::Done(_)))
    }

    /// Takes the result, if there is one.
    pub(super) fn take(&mut self, slot: u32) -> Option<Completion<B>> {
        match self.slots.get_mut(slot as usize).map(mem::take) {
            Some(Slot::Done(completion)) => {
                self.free.push(slot);
                Some(completion)
            }
            Some(other) => {
                self.set(slot, other);
                None
            }
            None => None,
        }
    }

    /// Keeps the completion if its request belongs to the scope; otherwise returns it.
    pub(super) fn route(&mut self, completion: Completion<B>) -> Option<Completion<B>> {
        let of = completion.id();
        // `by_index` has a table for the send queue and one for the receive queue of the pair: a scope posts to no
        // other queue. So a completion of another kind of queue does not belong to the scope.
        let Some(by_index) = self.by_index.get(of.key().kind() as usize) else { return Some(completion) };
        let slot = by_index[of.index() as usize & (by_index.len() - 1)];
        let abandoned = match self.slots.get(slot as usize) {
            Some(Slot::InFlight { id, abandoned }) if *id == of => *abandoned,
            _ => return Some(completion),
        };
        self.in_flight -= 1;
        if abandoned {
            drop(completion);
            self.release(slot);
        } else {
            self.set(slot, Slot::Done(completion));
        }
        None
    }

    /// Forgets all requests. The caller knows that no more of their completions will be polled.
    pub(super) fn clear(&mut self) {
        self.in_flight = 0;
        self.free.clear();
        self.slots.fill_with(|| Slot::Free);
        self.free.extend(0..self.slots.len() as u32);
    }

    fn set(&mut self, slot: u32, to: Slot<B>) {
        if let Some(place) = self.slots.get_mut(slot as usize) {
            *place = to;
        }
    }
}

static_assertions::const_assert_eq!(QueueKind::Send as usize, 0);
static_assertions::const_assert_eq!(QueueKind::Receive as usize, 1);
