//! The queue pairs that receive from shared receive queues, as a completion queue sees them.
//!
//! A shared receive's id names its queue, and the completion besides the pair that took it: `qp_num`, which is defined
//! where the status is a failure too. The request is brought from the shared queue's slab to a ledger of that pair for one request,
//! and goes on from there as the pair's own receives do.
//!
//! ASSUMPTION: a completion of a shared receive comes to the receive completion queue of the pair that it names in `qp_num`
//! (`ibv_poll_cq(3)`), and a shared receive makes at most one.
#![allow(unsafe_code, reason = "puts an entry into a ledger")]

use crate::queue::ledger::Poster;
use crate::queue::{Entry, SharedLedger, WorkId};
use crate::sync::Arc;
use crate::sys;

/// A queue pair, or one life of it, that receives from a shared receive queue and completes here.
pub(crate) struct Member {
    pub(crate) qpn: u32,
    /// Its slot here.
    pub(crate) slot: usize,
    /// Of its ledger there, for one request.
    pub(crate) poster: Poster<Entry>,
    pub(crate) ledger: SharedLedger,
}

/// By number; those of one number (one has gone, but not yet all its completions) as they came.
#[derive(Default)]
pub(super) struct Members(Vec<Member>);

impl Members {
    pub(super) fn join(&mut self, member: Member) {
        let at = self.0.partition_point(|other| other.qpn <= member.qpn);
        self.0.insert(at, member);
    }

    pub(super) fn leave(&mut self, qpn: u32, slot: usize) {
        self.0.retain(|member| (member.qpn, member.slot) != (qpn, slot));
    }

    fn first(&self, qpn: u32) -> usize {
        self.0.partition_point(|member| member.qpn < qpn)
    }

    /// The slot of the pair that the completion of a shared receive names, with the request in its ledger. `None` if there is
    /// no such request in flight, or no such pair on its queue.
    pub(super) fn bring(&mut self, wc: &sys::ibv_wc) -> Option<usize> {
        let id = WorkId::from_raw(wc.wr_id);
        let from = self.first(wc.qp_num);
        let of_this_number = self.0.iter_mut().skip(from).take_while(|member| member.qpn == wc.qp_num);
        let member = of_this_number.into_iter().find(|member| member.ledger.is_of(id))?;
        // Otherwise it was brought already, and who asked for it forgot what it got.
        if member.poster.free() != 0 {
            let entry = member.ledger.take(id)?;
            // SAFETY: there is room, as was just seen.
            unsafe { member.poster.push(member.poster.next_number(), entry) };
        }
        Some(member.slot)
    }

    /// Whether `id` is of a shared receive queue that was destroyed.
    pub(super) fn is_over(&self, id: WorkId) -> bool {
        self.0.iter().any(|member| member.ledger.is_of(id) && member.ledger.has_ended())
    }
}

/// The room that a completion queue has leased to shared receive queues: for each, once for all its pairs here.
#[derive(Default)]
pub(super) struct SharedLeases(Vec<SharedLease>);

struct SharedLease {
    ledger: SharedLedger,
    /// Pairs whose completions may be in the completion queue.
    pairs: u32,
}

impl SharedLeases {
    fn of(&mut self, ledger: &SharedLedger) -> Option<usize> {
        self.0.iter().position(|lease| Arc::ptr_eq(&lease.ledger, ledger))
    }

    /// How much room one more pair needs.
    pub(super) fn needed(&mut self, ledger: &SharedLedger) -> u32 {
        if self.of(ledger).is_some() { 0 } else { ledger.slots() }
    }

    /// A pair has come.
    pub(super) fn begin(&mut self, ledger: &SharedLedger) {
        match self.of(ledger).and_then(|at| self.0.get_mut(at)) {
            Some(lease) => lease.pairs += 1,
            None => self.0.push(SharedLease { ledger: Arc::clone(ledger), pairs: 1 }),
        }
    }

    /// A pair has gone; gives the room that is free by that.
    pub(super) fn end(&mut self, ledger: &SharedLedger) -> u32 {
        let Some(at) = self.of(ledger) else { return 0 };
        match self.0.get_mut(at) {
            Some(lease) if lease.pairs > 1 => {
                lease.pairs -= 1;
                0
            }
            _ => self.0.swap_remove(at).ledger.slots(),
        }
    }
}
