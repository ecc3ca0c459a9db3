//! Completions that do not retire the oldest request of a work queue. Such a completion names a request that completed
//! out of order, a shared receive, a request of a work queue that was attached just now, or no request in flight.

use super::PollState;
use crate::completion::control::Control;
use crate::completion::retired::Retirement;
use crate::inflight::{Status, WorkId};

impl PollState {
    /// If the next completion names a request that completed out of order, moves that request to the ledger where it is
    /// the oldest.
    #[cold]
    #[inline(never)]
    pub(super) fn move_to_single(&mut self, control: &Control) -> bool {
        let Some(wc) = self.end.peek() else { return false };
        let id = WorkId::from_raw(wc.wr_id);
        let slot = id.key().slot();
        if let Some(place) = self.retirers.get_mut(slot)
            && place.lend().has(id.raw())
            && !self.out_of_order.has(slot)
            && let Some(posted) = self.retirers.vacate(slot)
        {
            let single = self.out_of_order.begin(slot, posted, &control.ledgers);
            self.retirers.put(slot, single);
        }
        if !self.out_of_order.can_move(id) {
            return false;
        }
        // The failure is recorded before the move takes the request out of the ledger. After the move the program can
        // see that the pair is drained, and can reset it. A failure recorded later would count against the pair after
        // the reset.
        let status = Status::from_raw(wc.status.0);
        if status != Status::Success {
            self.statuses.note_early(id, status);
        }
        self.retirers.get_mut(slot).is_some_and(|place| self.out_of_order.move_to_single(id, place))
    }

    /// If the next completion belongs to a shared receive, moves its request to the pair that took it, and returns the
    /// slot of that pair.
    #[cold]
    #[inline(never)]
    pub(super) fn move_to_pair(&mut self) -> Option<usize> {
        self.receivers.move_to_pair(&self.end.peek()?)
    }

    /// The shared receive that was moved to the pair in this slot. The next completion belongs to it.
    #[cold]
    pub(super) fn current_of(&mut self, slot: usize) -> Option<Retirement<'_>> {
        let pending = self.end.pending()?;
        let moved = self.retirers.get_mut(slot)?.lend().oldest_moved(pending.proof())?;
        Some(Retirement::completed(moved, &self.statuses, pending))
    }

    /// The next completion names no request that this state knows. If there is mail, its work queue may have been
    /// attached just now, so the mail is read first. Otherwise the completion is dropped and counted.
    #[cold]
    #[inline(never)]
    pub(super) fn resolve_unmatched(&mut self, control: &Control) {
        if control.mailbox.has_mail() {
            self.read_mail(control);
            // `read_mail` has cleared the flag. Set the flag again: a later call must still do what `poll_with_mail`
            // does after `read_mail`, such as returning the requests of orphans.
            control.mailbox.flag();
        } else if let Some(wc) = self.end.peek() {
            // When a shared receive queue was destroyed, its requests were given back to the program. So a late
            // completion of one of them is not the provider's fault, and does not count as unknown.
            self.unknown += u64::from(!self.receivers.is_of_destroyed(WorkId::from_raw(wc.wr_id)));
            self.end.skip();
        }
    }
}
