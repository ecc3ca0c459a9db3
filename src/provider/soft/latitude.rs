//! Latitudes: choices that the specification leaves to a device. This is the code behind the
//! [habits](super::profile::Habits) of a profile.
//!
//! If the library uses the device in a way that its provider does not support, that is a violation: it is recorded, or
//! it aborts the process.
#![forbid(unsafe_code)]

use super::transition::PairState;
use super::{
    completion::{Entry, Side},
    fabric::{Fabric, State},
    fault::Verb,
    memory::{self, Late, Source, Span},
    post::Refused,
    posted::{Linked, Request},
    profile::{Habits, Profile},
    random::Random,
    work::Sges,
};
use crate::provider::reviewed::{Promises, Sessions, Teardown, Walk, Windows};
use crate::sys::{ibv_qp_cap, ibv_wc, ibv_wc_opcode, ibv_wc_status};
use libc::c_int;
use std::{ptr, sync::MutexGuard, thread};

/// The latitudes of the devices of a fabric. The device decides each time whether to take a latitude.
pub(super) struct Latitudes {
    pub(super) row: &'static Promises,
    pub(super) habits: Habits,
    /// Whether the devices are iWARP ones.
    pub(super) is_iwarp: bool,
    /// Whether the profile takes no latitude at all.
    pub(super) is_strict: bool,
    random: Random,
    /// The actions of the library that the provider does not support.
    pub(super) violations: Vec<String>,
    /// Whether a violation aborts the process.
    aborts: bool,
    /// Payload of the receive that is completed next. It is written when that completion is polled.
    late: Option<Box<Late>>,
}

/// The most bytes that are held back until a completion is polled.
const LATE_BYTES: usize = 64;
/// The most bytes of a receive that are overwritten needlessly.
const SCRIBBLE_BYTES: u64 = 1 << 16;
/// The byte that memory holds while its payload is held back.
const NOT_YET: u8 = 0xee;
/// The byte that overwrites memory which the device need not write.
const SCRIBBLE: u8 = 0xdb;
/// The inline limit of devices that grant less than was asked for.
const LITTLE_INLINE: u32 = 32;

impl Latitudes {
    pub(super) fn new(profile: Profile, aborts: bool) -> Self {
        Self {
            row: profile.row(),
            habits: profile.habits(),
            is_iwarp: profile.is_iwarp(),
            is_strict: profile == Profile::Specification,
            random: Random::new(profile.seed().unwrap_or(0)),
            violations: Vec::new(),
            aborts,
            late: None,
        }
    }

    /// Whether the device takes a latitude this time.
    pub(super) fn takes(&mut self, habit: impl FnOnce(&Habits) -> u64) -> bool {
        self.once_in(habit(&self.habits))
    }

    /// True once in `times`; never if `times` is 0.
    pub(super) fn once_in(&mut self, times: u64) -> bool {
        if times < 2 {
            return times == 1;
        }
        self.random.below(times) == 0
    }

    /// Whether this provider breaks if a poll finds a completion of a destroyed pair, or runs while a pair is
    /// destroyed.
    pub(super) fn forbids_late_polls(&self) -> bool {
        self.row.teardown == Teardown::Polled
    }

    /// The most completions that a poll writes to an array with `room` entries.
    pub(super) fn filled(&mut self, room: usize) -> usize {
        if self.takes(|habits| habits.empty_polls) {
            0
        } else if self.takes(|habits| habits.short_polls) {
            room.min(1)
        } else {
            room
        }
    }

    /// The number that a post returns for an error.
    pub(super) fn code(&mut self, errno: c_int) -> c_int {
        match errno {
            0 => 0,
            _ if !self.habits.odd_codes => errno,
            _ if self.once_in(2) => -errno,
            _ => -1,
        }
    }

    /// The size of a queue if the program asked for `asked` entries. Devices that grant more round up to a power of two
    /// within the limit.
    pub(super) fn round_up(&self, asked: u32, limit: u32) -> u32 {
        if self.habits.grants_more {
            asked.checked_next_power_of_two().unwrap_or(asked).clamp(asked, limit.max(asked))
        } else {
            asked
        }
    }

    /// Replaces the sizes that the program asked for by the sizes that the pair gets.
    pub(super) fn grant(&self, cap: &mut ibv_qp_cap, limits: &ibv_qp_cap) {
        let ibv_qp_cap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data } = cap;
        *max_send_wr = self.round_up(*max_send_wr, limits.max_send_wr);
        *max_recv_wr = self.round_up(*max_recv_wr, limits.max_recv_wr);
        *max_send_sge = self.round_up(*max_send_sge, limits.max_send_sge);
        *max_recv_sge = self.round_up(*max_recv_sge, limits.max_recv_sge);
        *max_inline_data = self.round_up(*max_inline_data, limits.max_inline_data);
        if self.habits.grants_less_inline {
            *max_inline_data = LITTLE_INLINE.min(*max_inline_data);
        }
    }

    /// Reads the elements of a request as some providers do: they read the first element of an empty list, and take an
    /// element of 0 bytes for one of 2^31 bytes.
    #[inline]
    pub(super) fn inspect<W: Linked>(&mut self, request: &Request<'_, W>, is_inline: bool) {
        if !self.habits.reads_lists {
            return;
        }
        match request.elements(u32::MAX) {
            Ok([]) if !request.read_first_element() => self.violate("a list of elements is null".to_owned()),
            Ok(elements) if !is_inline && elements.iter().any(|element| element.length == 0) => {
                self.violate("an element of no bytes, which stands for 2^31, was posted".to_owned());
            }
            _ => {}
        }
    }

    pub(super) fn resizes(&mut self) {
        if !self.row.resizes {
            self.violate("a completion queue was resized".to_owned());
        }
    }

    /// Called before an event is taken, also if there is none.
    pub(super) fn takes_event(&mut self) {
        if !self.row.events_change_nothing {
            self.violate("an asynchronous event was taken".to_owned());
        }
    }

    pub(super) fn opens_session(&mut self) {
        if self.row.sessions == Sessions::No {
            self.violate("a pair was made for ibv_wr_*".to_owned());
        }
    }

    pub(super) fn walks(&mut self, goes_on: bool) {
        if self.row.walk == Walk::No || goes_on && self.row.walk == Walk::Singly {
            self.violate("a completion queue was polled by ibv_start_poll and ibv_next_poll".to_owned());
        }
    }

    /// `new` is added to a completion queue after `last`, and both are of one work queue. If `last` failed and `new`
    /// was flushed, the device may report the failure for `new` instead.
    pub(super) fn shift_blame(&mut self, last: &mut ibv_wc, new: &mut ibv_wc) {
        let flush = ibv_wc_status::IBV_WC_WR_FLUSH_ERR;
        let may = new.status == flush && last.status != flush && last.status != ibv_wc_status::IBV_WC_SUCCESS;
        if may && self.habits.shifts_blame && self.once_in(2) {
            std::mem::swap(&mut last.status, &mut new.status);
            std::mem::swap(&mut last.vendor_err, &mut new.vendor_err);
        }
    }

    /// The opcode of the completion of a send-side request.
    pub(super) fn name_of(&self, opcode: ibv_wc_opcode) -> ibv_wc_opcode {
        if self.habits.calls_all_sends { ibv_wc_opcode::IBV_WC_SEND } else { opcode }
    }

    /// Whether a peer can access the whole region through a window.
    pub(super) fn has_lax_windows(&self) -> bool {
        !self.is_strict && self.row.windows == Windows::NoBarrier
    }

    pub(super) fn violate(&mut self, what: String) {
        if self.aborts {
            eprintln!(
                "interlock: the library used the soft device in a way that its provider does not support: {what}"
            );
            std::process::abort();
        }
        self.violations.push(what);
    }
}

impl State {
    /// Sometimes takes back the payload that was just written to `to`, so that it is written only when its completion
    /// is polled.
    fn hold_back(&mut self, to: &[Span]) -> Option<Box<Late>> {
        let len: usize = to.iter().map(Span::len).sum();
        if len == 0 || len > LATE_BYTES || !self.latitudes.takes(|habits| habits.late) {
            return None;
        }
        let mut bytes = vec![0; len];
        memory::read(&self.regions.era, Source { registered: to, ..Source::default() }, &mut bytes);
        let not_yet = [NOT_YET; LATE_BYTES];
        memory::copy(&self.regions.era, Source { inline: &not_yet, ..Source::default() }, to);
        Some(Box::new(Late::new(bytes, to.to_vec())))
    }

    /// Sometimes holds back the payload of a receive, which was just written to `to`.
    pub(super) fn delay(&mut self, to: &[Span]) {
        self.latitudes.late = self.hold_back(to);
    }

    /// Takes the payload that [`delay`](Self::delay) held back for the receive that is completed now.
    pub(super) fn take_late(&mut self) -> Option<Box<Late>> {
        self.latitudes.late.take()
    }

    /// Sometimes holds back the answer to a read or an atomic, which was just written to `to`.
    pub(super) fn delay_answer(&mut self, index: usize, to: &[Span], has_completion: bool) {
        // Payload that is held back is written when the completion is polled. Without a completion, nothing would write
        // it.
        if has_completion {
            let late = self.hold_back(to);
            if let Some(pair) = self.pairs.get_mut(index) {
                pair.late = late;
            }
        }
    }

    /// Called before a message fills the oldest receive of a pair. Sometimes overwrites all memory of that receive
    /// first.
    pub(super) fn scribble(&mut self, peer: usize) {
        if self.latitudes.takes(|habits| habits.scribbles)
            && let Some(late) = self.waste_of(peer)
        {
            late.write();
        }
    }

    /// Called when the oldest receive of a pair fails or is flushed. Sometimes returns junk to write to its memory when
    /// the completion is polled.
    pub(super) fn waste(&mut self, peer: usize) -> Option<Box<Late>> {
        let does = self.latitudes.takes(|habits| habits.scribbles);
        if does { self.waste_of(peer) } else { None }
    }

    fn waste_of(&self, peer: usize) -> Option<Box<Late>> {
        let (receive, pd) = self.next_receive(peer)?;
        let len = receive.sges.bytes();
        let mut to = Vec::new();
        self.regions.local(pd, receive.sges.as_slice(), len, true, &mut to)?;
        let small = len != 0 && len <= SCRIBBLE_BYTES;
        small.then(|| Box::new(Late::new(vec![SCRIBBLE; usize::try_from(len).unwrap_or(0)], to)))
    }

    /// Called when a pair is destroyed or reset. Sometimes removes the pair's unpolled completions.
    pub(super) fn leave_completions(&mut self, index: usize, is_reset: bool) {
        if self.latitudes.is_strict {
            return;
        }
        let Some(pair) = self.pairs.get(index) else { return };
        let (epoch, qpn, queues) = (pair.epoch, pair.qpn, [pair.send_cq, pair.receive_cq]);
        let is_of_pair = |entry: &Entry| match entry.slot.side {
            Side::Shared => entry.wc.qp_num == qpn,
            Side::Send | Side::Receive => entry.slot.owner == index && entry.slot.epoch == epoch,
        };
        let purges = self.latitudes.takes(|habits| habits.purges);
        let forbids = self.latitudes.forbids_late_polls();
        let is_quiet = matches!(pair.state, PairState::Reset | PairState::Init | PairState::Error);
        let is_receiving = pair.srq.is_some() && !is_quiet;
        let mut freed = Vec::new();
        for queue in queues {
            let Some(cq) = self.cqs.get_mut(queue) else { continue };
            if forbids && !is_reset && is_receiving {
                cq.was_receiving = Some(qpn);
            }
            if forbids && cq.is_polled {
                self.latitudes.violate(format!("pair {qpn:#x} was destroyed or reset while its queue is polled"));
            }
            if purges {
                freed.extend(cq.entries.iter().filter(|entry| is_of_pair(entry)).map(|entry| entry.slot));
                cq.entries.retain(|entry| !is_of_pair(entry));
                continue;
            }
            for entry in cq.entries.iter_mut().filter(|entry| is_of_pair(entry)) {
                entry.is_dead = forbids && !is_reset;
                // A pair must write nothing after it is destroyed or reset. So the held-back payload cannot wait for
                // the poll: write the payload here.
                if let Some(late) = entry.late.take() {
                    late.write();
                }
            }
        }
        // The removed completions of shared receives are never polled. So their slots become free now.
        for slot in freed.iter().filter(|slot| slot.side == Side::Shared) {
            if let Some(srq) = self.srqs.get_mut(slot.owner).filter(|srq| srq.epoch == slot.epoch) {
                srq.queue.free_one();
            }
        }
    }

    /// Called when a region is deregistered. That is a violation if a request in flight still names the region, or if
    /// payload for the region is held back.
    pub(super) fn watch_memory(&mut self, region: usize) {
        let Some(ending) = self.regions.get(region).filter(|_| !self.latitudes.is_strict) else { return };
        let needs = |sges: &Sges| sges.as_slice().iter().any(|element| element.lkey == ending.lkey);
        let of_pairs = self.pairs.iter().flat_map(|(_, pair)| {
            let sends = pair.send.iter().filter(|send| needs(&send.sges)).map(|send| send.id);
            sends.chain(pair.receive.iter().filter(|receive| needs(&receive.sges)).map(|receive| receive.id))
        });
        let of_shared = self.srqs.iter().flat_map(|(_, srq)| srq.queue.iter());
        let of_shared = of_shared.filter(|receive| needs(&receive.sges)).map(|receive| receive.id);
        let entries = self.cqs.iter().flat_map(|(_, cq)| cq.entries.iter());
        let late = entries.filter(|entry| entry.late.as_ref().is_some_and(|late| late.is_within(&ending.memory)));
        let in_flight = of_pairs.chain(of_shared).chain(late.map(|entry| entry.wc.wr_id)).next();
        if let Some(id) = in_flight {
            self.latitudes.violate(format!("memory of request {id:#x} was deregistered while it was in flight"));
        }
    }

    /// Called for each completion that is polled. Reports a violation if the completion is dead. Writes the payload
    /// that was held back.
    pub(super) fn meet(&mut self, entry: &Entry) {
        if entry.is_dead {
            let (id, qpn) = (entry.wc.wr_id, entry.wc.qp_num);
            self.latitudes.violate(format!("a poll met request {id:#x} of pair {qpn:#x}, which was destroyed before"));
        }
        if let Some(late) = &entry.late {
            late.write();
        }
    }

    /// Sometimes makes a post that succeeded return an error, or name the first request as refused.
    pub(super) fn belie<W>(&mut self, posted: Result<(), Refused<W>>, first: *mut W) -> Result<(), Refused<W>> {
        posted?;
        if self.latitudes.takes(|habits| habits.hides_posts) {
            Err(Refused { errno: libc::ENOMEM, at: ptr::null_mut() })
        } else if self.latitudes.takes(|habits| habits.false_refusals) {
            Err(Refused { errno: libc::EINVAL, at: first })
        } else {
            Ok(())
        }
    }

    /// Drops all completions of a queue, and makes it fail.
    pub(super) fn fail_queue(&mut self, index: usize) {
        if let Some(cq) = self.cqs.get_mut(index) {
            cq.entries.clear();
            cq.failed = true;
        }
    }

    /// Called for each verb on a pair. It is a violation if an earlier destroy has left the pair half-destroyed.
    pub(super) fn touch_pair(&mut self, index: usize) {
        if let Some(qpn) = self.pairs.get(index).filter(|pair| pair.is_half_dead).map(|pair| pair.qpn) {
            self.latitudes.violate(format!("pair {qpn:#x} was used after a destroy that failed"));
        }
    }

    /// Called when the destroy of an object fails. On some devices a queue pair or shared receive queue is then
    /// half-destroyed.
    pub(super) fn half_destroy(&mut self, verb: Verb, index: usize) {
        if self.latitudes.row.destroy_may_be_retried {
            return;
        }
        match verb {
            Verb::DestroyQp => self.pairs.get_mut(index).into_iter().for_each(|pair| pair.is_half_dead = true),
            Verb::DestroySrq => self.srqs.get_mut(index).into_iter().for_each(|srq| srq.is_half_dead = true),
            _ => {}
        }
    }

    /// Called for each verb on a shared receive queue. It is a violation if an earlier destroy has left the queue
    /// half-destroyed.
    pub(super) fn touch_srq(&mut self, index: usize) {
        if self.srqs.get(index).is_some_and(|srq| srq.is_half_dead) {
            self.latitudes.violate("a shared receive queue was used after a destroy that failed".to_owned());
        }
    }
}

/// Lets other threads run in the middle of a poll, to detect whether they poll the same queue or destroy a pair at the
/// same time. Some providers break when that happens.
pub(super) fn pause_in_poll<'f>(
    mut state: MutexGuard<'f, State>,
    fabric: &'f Fabric,
    queue: usize,
) -> MutexGuard<'f, State> {
    if !state.latitudes.forbids_late_polls() {
        return state;
    }
    let Some(cq) = state.cqs.get_mut(queue) else { return state };
    if std::mem::replace(&mut cq.is_polled, true) {
        state.latitudes.violate("two threads poll one completion queue".to_owned());
    } else if let Some(qpn) = cq.was_receiving.take() {
        let what = format!("a poll may meet a request of pair {qpn:#x}, which was destroyed while it could receive");
        state.latitudes.violate(what);
    }
    drop(state);
    thread::yield_now();
    state = fabric.lock();
    if let Some(cq) = state.cqs.get_mut(queue) {
        cq.is_polled = false;
    }
    state
}
