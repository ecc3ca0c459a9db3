//! The queue pairs that receive from shared receive queues, as a completion queue sees them.
//!
//! A shared receive's id names its queue, and the completion besides the pair that took it: `qp_num`, which is defined
//! where the status is a failure too. The request is brought from the shared queue's slab to a ledger of that pair for one request,
//! and goes on from there as the pair's own receives do.
//!
//! ASSUMPTION: a completion of a shared receive comes to the receive completion queue of the pair that it names in `qp_num`
//! (`ibv_poll_cq(3)`), and a shared receive makes at most one.

use crate::inflight::ledger::Poster;
use crate::inflight::{Entry, SharedLedger, WorkId};
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

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
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
            member.poster.push(entry);
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

#[cfg(all(test, not(loom)))]
mod tests {
    //! Completions of a device that lies.
    use super::*;
    use crate::domain::Numbers;
    use crate::inflight::ledger::{Origin, Retirer, ledger};
    use crate::inflight::{Operation, SlabPoster, slab};

    fn queues() -> [SlabPoster<Entry>; 2] {
        let numbers = std::sync::Arc::new(Numbers::default());
        [(); 2].map(|()| slab(numbers.take(2).unwrap(), 2, 2))
    }

    fn post(queue: &mut SlabPoster<Entry>) -> WorkId {
        queue.push(Entry::inline(Operation::Send)).unwrap()
    }

    fn join(members: &mut Members, qpn: u32, slot: usize, queue: &SlabPoster<Entry>) -> Retirer<Entry> {
        let (poster, retirer) = ledger(&Arc::default(), 1, 0, Origin::default());
        members.join(Member { qpn, slot, poster, ledger: Arc::clone(&queue.slab) });
        retirer
    }

    fn wc(id: WorkId, qp_num: u32) -> sys::ibv_wc {
        sys::ibv_wc { wr_id: id.raw(), qp_num, ..Default::default() }
    }

    #[test]
    fn a_completion_brings_its_request_to_the_pair_that_it_names_once() {
        let (mut members, [mut queue, _]) = (Members::default(), queues());
        let [mut one, mut two] = [(7, 0), (3, 1)].map(|(qpn, slot)| join(&mut members, qpn, slot, &queue));
        let ids = [post(&mut queue), post(&mut queue)];
        assert_eq!(members.bring(&wc(ids[1], 7)), Some(0));
        assert_eq!(members.bring(&wc(ids[1], 7)), Some(0), "forgotten, not taken");
        assert!(one.take().is_some() && !one.has_any() && !two.has_any());
        assert_eq!(members.bring(&wc(ids[1], 7)), None, "completed twice");
        assert_eq!(members.bring(&wc(ids[1], 3)), None);
        assert_eq!(members.bring(&wc(ids[0], 3)), Some(1));
        assert!(two.take().is_some());
    }

    #[test]
    fn a_completion_that_names_no_pair_of_its_queue_brings_nothing() {
        let (mut members, [mut queue, mut other]) = (Members::default(), queues());
        let (mut retirer, of_other) = (join(&mut members, 7, 0, &queue), join(&mut members, 8, 1, &other));
        let (id, others) = (post(&mut queue), post(&mut other));
        for lie in
            [wc(id, 8), wc(id, 6), wc(id, 0), wc(others, 7), wc(WorkId::from_raw(0), 7), wc(WorkId::from_raw(!0), 7)]
        {
            assert_eq!(members.bring(&lie), None, "{:#x} of {}", lie.wr_id, lie.qp_num);
        }
        assert_eq!((queue.slab.in_flight(), other.slab.in_flight()), (1, 1));
        assert!(!retirer.has_any() && !of_other.has_any());
        assert_eq!(members.bring(&wc(id, 7)), Some(0));
        assert!(retirer.take().is_some());
        drop(other.slab.take(others));
    }

    #[test]
    fn completions_of_a_number_are_of_the_pair_that_had_it_first_until_that_is_gone() {
        let (mut members, [mut queue, mut other]) = (Members::default(), queues());
        let mut old = join(&mut members, 7, 4, &queue);
        let mut new = join(&mut members, 7, 2, &queue);
        let mut elsewhere = join(&mut members, 7, 3, &other);
        let id = post(&mut other);
        assert_eq!(members.bring(&wc(id, 7)), Some(3), "the queue tells");
        let id = post(&mut queue);
        assert_eq!(members.bring(&wc(id, 7)), Some(4));
        members.leave(7, 4);
        let id = post(&mut queue);
        assert_eq!(members.bring(&wc(id, 7)), Some(2));
        assert!([&mut old, &mut new, &mut elsewhere].map(Retirer::take).iter().all(Option::is_some));
    }

    #[test]
    fn what_a_destroyed_queue_had_is_no_fault() {
        let (mut members, [mut queue, _]) = (Members::default(), queues());
        let retirer = join(&mut members, 7, 0, &queue);
        let id = post(&mut queue);
        assert!(!members.is_over(id));
        queue.slab.end();
        assert_eq!(queue.slab.take_all().count(), 1);
        assert_eq!((members.bring(&wc(id, 7)), members.is_over(id)), (None, true));
        assert!(!retirer.has_any());
    }

    #[test]
    fn room_is_leased_once_for_all_pairs_of_a_queue() {
        let (mut leases, [queue, other]) = (SharedLeases::default(), queues());
        assert_eq!((leases.needed(&queue.slab), leases.needed(&other.slab)), (2, 2));
        leases.begin(&queue.slab);
        leases.begin(&queue.slab);
        assert_eq!((leases.needed(&queue.slab), leases.needed(&other.slab)), (0, 2));
        assert_eq!([(); 3].map(|()| leases.end(&queue.slab)), [0, 2, 0]);
        assert_eq!(leases.needed(&queue.slab), 2);
    }
}
