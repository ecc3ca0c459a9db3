//! The mail of the control path: it tells the poller of work queues that have come and gone. The first poll after a
//! pair was made reads it, so that poll takes the slow path.

use super::{Found, PollError, PollState};
use crate::completion::control::Control;
use crate::completion::departing::Departure;
use crate::completion::message::{Attached, Message};
use crate::inflight::WorkId;
use std::mem;

impl PollState {
    /// Polls the device, and also reads the mail of the control path and empties the work queues that are gone.
    #[cold]
    #[inline(never)]
    pub(super) fn poll_with_mail(&mut self, control: &Control, may_poll: bool) -> Result<Found, PollError> {
        if self.failed {
            return Err(PollError::Failed);
        }
        if let Some(slot) = self.next_destroyed(control) {
            return Ok(Found::Destroyed(slot));
        }
        if !may_poll {
            return Ok(Found::Nothing);
        }
        // Read the mail before the poll. The device was done with each orphan (a work queue that is gone) before the
        // mail about that orphan was sent. So if the poll finds the completion queue empty, no completion of an orphan
        // in this mail is left.
        self.read_mail(control);
        let any = self.poll_device(control)?;
        // Each waiting orphan has a count: an upper limit of how many completions in the completion queue are older
        // than the orphan. One poll perhaps does not find all of them. So a poll that finds completions lowers each
        // count by their number, and a poll that finds none sets all counts to 0.
        let seen = if any { self.end.found() } else { u32::MAX };
        self.waiting_orphans.iter_mut().for_each(|(_, before)| *before = before.saturating_sub(seen));
        // The first of `waiting_orphans` has waited longest, and must come out first. `ready_orphans` is emptied from
        // its end, hence `rev`.
        let done = self.waiting_orphans.iter().take_while(|(_, before)| *before == 0).count();
        let waiting = self.waiting_orphans.split_off(done);
        self.ready_orphans
            .extend(mem::replace(&mut self.waiting_orphans, waiting).into_iter().rev().map(|(orphan, _)| orphan));
        if !(self.waiting_orphans.is_empty() && self.ready_orphans.is_empty() && self.departing.is_empty()) {
            // Orphans or departing pairs are left. The flag makes the next call come to this function again.
            control.mailbox.flag();
        }
        if any {
            self.departing.iter_mut().for_each(Departure::note_progress);
            return Ok(Found::Polled);
        }
        self.destroy_drained_pairs();
        Ok(self.next_destroyed(control).map_or(Found::Nothing, Found::Destroyed))
    }

    /// Reads what the control path has sent.
    #[cold]
    pub(super) fn read_mail(&mut self, control: &Control) {
        for message in control.mailbox.take() {
            match message {
                Message::Attach(Attached { retirer, status }) => {
                    let slot = WorkId::from_raw(retirer.oldest()).key().slot();
                    self.retirers.put(slot, retirer);
                    self.statuses.set(slot, Some(status));
                }
                Message::Join(receiver) => self.receivers.join(receiver),
                Message::Depart(pair) => self.departing.push(Departure::new(pair)),
                Message::Orphan(orphan) => self.waiting_orphans.push((orphan, control.room().capacity())),
                Message::Leaked => self.has_leaked = true,
            }
        }
    }
}
