//! Completion queues, channels, and the fields of completions.
#![forbid(unsafe_code)]

use super::{
    events::{Signal, Subject},
    fabric::State,
    memory::Late,
    objects::{Raw, Table},
    pair::Pair,
};
use crate::sys::{ibv_cq, ibv_event_type, ibv_wc, ibv_wc__bindgen_ty_1, ibv_wc_flags, ibv_wc_opcode, ibv_wc_status};
use libc::c_int;
use std::{collections::VecDeque, os::fd::RawFd};

/// The value of fields that a completion leaves undefined: easy to recognize, and wrong wherever it is used.
const JUNK: u32 = 0xbad0_bad0;
const JUNK_SHORT: u16 = 0xbad0;
const JUNK_BYTE: u8 = 0xba;
/// The most entries for which a new queue allocates room when it is created.
const RESERVED: usize = 4096;

/// Which work queue a completion belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    /// The send queue of a pair.
    Send,
    /// The receive queue of a pair.
    Receive,
    /// A shared receive queue.
    Shared,
}

/// The slot that a completion frees in a work queue when it is polled.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slot {
    pub(super) side: Side,
    /// The pair or shared receive queue.
    pub(super) owner: usize,
    /// The owner's epoch in which the request was posted: creation and each reset begin a new epoch.
    pub(super) epoch: u64,
    /// How many requests were posted in that epoch, up to and including this one. Polling the completion frees the
    /// slots of all of them. In a shared queue, where requests complete in any order, it frees only one slot.
    pub(super) end: u64,
}

/// A completion that has not been polled.
pub(super) struct Entry {
    pub(super) wc: ibv_wc,
    pub(super) slot: Slot,
    pub(super) solicited: bool,
    /// Payload that is written when this completion is polled.
    pub(super) late: Option<Box<Late>>,
    /// The pair was destroyed, and its provider does not support a later poll of this completion: a violation.
    pub(super) is_dead: bool,
}

/// The completions for which a queue is armed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Arm {
    No,
    Solicited,
    Any,
}

/// A completion queue.
pub(super) struct Cq {
    pub(super) context: usize,
    pub(super) raw: Raw<ibv_cq>,
    pub(super) device: usize,
    channel: usize,
    depth: usize,
    pub(super) entries: VecDeque<Entry>,
    arm: Arm,
    /// Whether the queue has overrun.
    pub(super) failed: bool,
    /// How many work queues complete on this queue.
    pub(super) users: u32,
    /// Whether a thread is in the middle of a poll.
    pub(super) is_polled: bool,
    /// The number of a pair that was destroyed while it could still take a shared receive. A receive could have
    /// completed at any time before the destroy, so a later poll could find its completion.
    pub(super) was_receiving: Option<u32>,
}

/// A completion channel.
pub(super) struct Channel {
    context: usize,
    signal: Signal,
    /// The queues with events that have not been taken.
    waiting: VecDeque<usize>,
    users: u32,
}

impl State {
    pub(super) fn create_channel(&mut self, context: usize) -> Result<(usize, RawFd), c_int> {
        let info = self.contexts.get_mut(context).ok_or(libc::EINVAL)?;
        let signal = Signal::new()?;
        let fd = signal.fd();
        info.children += 1;
        let channel = Channel { context, signal, waiting: VecDeque::new(), users: 0 };
        Ok((self.channels.insert(channel), fd))
    }

    pub(super) fn destroy_channel(&mut self, index: usize) -> Result<(), c_int> {
        let channel = self.channels.get(index).ok_or(libc::EINVAL)?;
        if channel.users > 0 {
            return Err(libc::EBUSY);
        }
        let context = channel.context;
        self.channels.remove(index);
        self.release_context(context);
        Ok(())
    }

    /// Takes one event, and returns the queue that it belongs to.
    pub(super) fn take_event(&mut self, index: usize) -> Result<Option<*mut ibv_cq>, c_int> {
        let channel = self.channels.get_mut(index).ok_or(libc::EINVAL)?;
        let taken = channel.waiting.pop_front();
        if channel.waiting.is_empty() {
            channel.signal.lower();
        }
        Ok(taken.and_then(|cq| self.cqs.get(cq)).map(|cq| cq.raw.get()))
    }

    pub(super) fn create_cq(&mut self, context: usize, depth: u32, channel: usize) -> Result<usize, c_int> {
        let info = self.contexts.get_mut(context).ok_or(libc::EINVAL)?;
        let owner = self.channels.get_mut(channel).filter(|owner| owner.context == context).ok_or(libc::EINVAL)?;
        let depth = entries(depth)?;
        info.children += 1;
        owner.users += 1;
        let entries = VecDeque::with_capacity(depth.min(RESERVED));
        let device = info.device;
        let cq = Cq {
            context,
            raw: Raw::default(),
            device,
            channel,
            depth,
            entries,
            arm: Arm::No,
            failed: false,
            users: 0,
            is_polled: false,
            was_receiving: None,
        };
        Ok(self.cqs.insert(cq))
    }

    /// Gives a queue room for exactly `depth` entries. Fails if the unpolled completions do not fit.
    pub(super) fn resize_cq(&mut self, index: usize, depth: u32) -> Result<(), c_int> {
        let depth = entries(depth)?;
        let cq = self.cqs.get_mut(index).ok_or(libc::EINVAL)?;
        if depth < cq.entries.len() {
            return Err(libc::EINVAL);
        }
        cq.depth = depth;
        Ok(())
    }

    pub(super) fn destroy_cq(&mut self, index: usize) -> Result<(), c_int> {
        let cq = self.cqs.get(index).ok_or(libc::EINVAL)?;
        if cq.users > 0 {
            return Err(libc::EBUSY);
        }
        let (context, channel) = (cq.context, cq.channel);
        self.forget(Subject::Cq(index));
        self.cqs.remove(index);
        self.release_context(context);
        if let Some(channel) = self.channels.get_mut(channel) {
            channel.users = channel.users.saturating_sub(1);
            channel.waiting.retain(|&waiting| waiting != index);
            if channel.waiting.is_empty() {
                channel.signal.lower();
            }
        }
        Ok(())
    }

    /// Arms a queue. A queue that is armed for any completion stays so when it is armed for solicited ones.
    pub(super) fn arm(&mut self, index: usize, solicited_only: bool) -> Result<(), c_int> {
        let cq = self.cqs.get_mut(index).ok_or(libc::EINVAL)?;
        if !(solicited_only && cq.arm == Arm::Any) {
            cq.arm = if solicited_only { Arm::Solicited } else { Arm::Any };
        }
        if self.latitudes.takes(|habits| habits.spurious_events) {
            self.tell(index);
        }
        Ok(())
    }

    /// Takes the oldest completion, and frees the slots that it retires. `Err` if there is none after an overrun.
    pub(super) fn poll(&mut self, index: usize) -> Result<Option<ibv_wc>, c_int> {
        let cq = self.cqs.get_mut(index).ok_or(libc::EINVAL)?;
        let Some(entry) = cq.entries.pop_front() else { return if cq.failed { Err(libc::EIO) } else { Ok(None) } };
        self.meet(&entry);
        let Slot { side, owner, epoch, end } = entry.slot;
        match side {
            Side::Shared => {
                if let Some(srq) = self.srqs.get_mut(owner).filter(|srq| srq.epoch == epoch) {
                    srq.queue.free_one();
                }
            }
            Side::Send | Side::Receive => {
                if let Some(pair) = self.pairs.get_mut(owner).filter(|pair| pair.epoch == epoch) {
                    if side == Side::Send { pair.send.free_to(end) } else { pair.receive.free_to(end) }
                }
            }
        }
        Ok(Some(entry.wc))
    }

    /// Adds a completion, and makes an event if the queue was armed for such a completion.
    pub(super) fn complete(&mut self, index: usize, mut entry: Entry) {
        let overtakes = self.latitudes.takes(|habits| habits.overtakes);
        let is_quiet = self.latitudes.habits.quiet_flushes && entry.wc.status == ibv_wc_status::IBV_WC_WR_FLUSH_ERR;
        let Some(cq) = self.cqs.get_mut(index) else { return };
        if cq.failed {
            return;
        }
        if cq.entries.len() >= cq.depth {
            cq.failed = true;
            self.notify(index, true);
            self.overrun(index);
            return;
        }
        let urgent = entry.solicited || entry.wc.status != ibv_wc_status::IBV_WC_SUCCESS;
        let ours = (entry.slot.side, entry.slot.owner, entry.slot.epoch);
        if let Some(last) = cq.entries.back_mut()
            && (last.slot.side, last.slot.owner, last.slot.epoch) == ours
        {
            self.latitudes.shift_blame(&mut last.wc, &mut entry.wc);
        }
        cq.entries.push_back(entry);
        if overtakes
            && let [.., before, last] = cq.entries.make_contiguous()
            && (before.slot.side, before.slot.owner, before.slot.epoch) == ours
        {
            std::mem::swap(before, last);
        }
        if !is_quiet {
            self.notify(index, urgent);
        }
    }

    /// If the queue is armed for completions of this kind, makes an event and disarms the queue.
    fn notify(&mut self, index: usize, urgent: bool) {
        let Some(cq) = self.cqs.get_mut(index) else { return };
        if cq.arm == Arm::Any || cq.arm == Arm::Solicited && urgent {
            cq.arm = Arm::No;
            self.tell(index);
        }
    }

    /// Makes an event for the queue, even if it is not armed.
    fn tell(&mut self, index: usize) {
        if let Some(channel) = self.cqs.get(index).and_then(|cq| self.channels.get_mut(cq.channel)) {
            channel.waiting.push_back(index);
            channel.signal.raise();
        }
    }

    /// Makes an event for each armed queue of a device that is gone, since no completion will come any more.
    pub(super) fn notify_all(&mut self, device: usize) {
        for index in self.queues_of(device) {
            self.notify(index, true);
        }
    }

    /// Makes each queue of a device lose a completion.
    pub(super) fn overrun_all(&mut self, device: usize) {
        for index in self.queues_of(device) {
            if let Some(cq) = self.cqs.get_mut(index) {
                cq.failed = true;
            }
            self.notify(index, true);
            self.overrun(index);
        }
    }

    fn queues_of(&self, device: usize) -> Vec<usize> {
        self.cqs.iter().filter(|(_, cq)| cq.device == device).map(|(index, _)| index).collect()
    }

    /// Called when a queue has lost a completion: raises the events, and moves the pairs of the queue to Error.
    fn overrun(&mut self, index: usize) {
        let attached = |pair: &Pair| pair.send_cq == index || pair.receive_cq == index;
        let pairs: Vec<usize> =
            self.pairs.iter().filter(|(_, pair)| attached(pair)).map(|(number, _)| number).collect();
        self.raise(ibv_event_type::IBV_EVENT_CQ_ERR, Subject::Cq(index));
        for pair in pairs {
            if self.pairs.get(pair).is_some_and(Pair::can_break) {
                self.raise(ibv_event_type::IBV_EVENT_QP_FATAL, Subject::Pair(pair));
            }
            self.enter_error(pair);
        }
    }

    /// Wakes the threads that wait for an event. They find no event, but they see the new timer.
    pub(super) fn wake_waiting(&mut self) {
        for (_, cq) in self.cqs.iter().filter(|(_, cq)| cq.arm != Arm::No) {
            if let Some(channel) = self.channels.get_mut(cq.channel) {
                channel.signal.raise();
            }
        }
    }
}

/// Checks the number of entries that is asked for.
fn entries(depth: u32) -> Result<usize, c_int> {
    if depth == 0 || depth > super::device::MAX_CQE {
        return Err(libc::EINVAL);
    }
    usize::try_from(depth).map_err(|_| libc::EINVAL)
}

/// Completion queues.
pub(super) type Cqs = Table<Cq>;
/// Completion channels.
pub(super) type Channels = Table<Channel>;

/// A placeholder for a completion, with junk in all fields.
pub(super) fn undefined() -> ibv_wc {
    wc(u64::from(JUNK), ibv_wc_status(JUNK), JUNK)
}

/// A completion with junk in all fields that its status leaves undefined.
fn wc(id: u64, status: ibv_wc_status, qpn: u32) -> ibv_wc {
    ibv_wc {
        wr_id: id,
        status,
        opcode: ibv_wc_opcode(JUNK),
        vendor_err: JUNK,
        byte_len: JUNK,
        __bindgen_anon_1: ibv_wc__bindgen_ty_1 { imm_data: JUNK },
        qp_num: qpn,
        src_qp: JUNK,
        wc_flags: JUNK,
        pkey_index: JUNK_SHORT,
        slid: JUNK_SHORT,
        sl: JUNK_BYTE,
        dlid_path_bits: JUNK_BYTE,
    }
}

/// The completion of a request that failed. The vendor's error code repeats the status.
pub(super) fn failed(id: u64, status: ibv_wc_status, qpn: u32) -> ibv_wc {
    let mut wc = wc(id, status, qpn);
    wc.vendor_err = 0x5000 | status.0;
    wc
}

/// The completion of a send-side request that succeeded. Only reads and atomics have a defined `len`.
pub(super) fn sent(id: u64, opcode: ibv_wc_opcode, qpn: u32, len: Option<u32>) -> ibv_wc {
    let mut wc = wc(id, ibv_wc_status::IBV_WC_SUCCESS, qpn);
    wc.opcode = opcode;
    wc.wc_flags = 0;
    if let Some(len) = len {
        wc.byte_len = len;
    }
    wc
}

/// The data that a message carries besides its payload.
#[derive(Clone, Copy, Debug)]
pub(super) enum Extra {
    Nothing,
    /// Immediate data, in network byte order as in the request.
    Immediate(u32),
    /// The key that the message invalidates.
    Invalidated(u32),
}

/// The sender of a datagram.
#[derive(Clone, Copy, Debug)]
pub(super) struct Origin {
    pub(super) qpn: u32,
    pub(super) service_level: u8,
}

/// The completion of a receive that a message filled. For a datagram, `origin` is the sender, and `len` includes the
/// header.
pub(super) fn received(
    id: u64,
    opcode: ibv_wc_opcode,
    qpn: u32,
    len: u32,
    extra: Extra,
    origin: Option<Origin>,
) -> ibv_wc {
    let mut wc = wc(id, ibv_wc_status::IBV_WC_SUCCESS, qpn);
    wc.opcode = opcode;
    wc.byte_len = len;
    wc.wc_flags = 0;
    match extra {
        Extra::Nothing => {}
        Extra::Immediate(imm_data) => {
            wc.wc_flags = ibv_wc_flags::IBV_WC_WITH_IMM.0;
            wc.__bindgen_anon_1 = ibv_wc__bindgen_ty_1 { imm_data };
        }
        Extra::Invalidated(invalidated_rkey) => {
            wc.wc_flags = ibv_wc_flags::IBV_WC_WITH_INV.0;
            wc.__bindgen_anon_1 = ibv_wc__bindgen_ty_1 { invalidated_rkey };
        }
    }
    if let Some(origin) = origin {
        wc.wc_flags |= ibv_wc_flags::IBV_WC_GRH.0;
        wc.src_qp = origin.qpn;
        wc.sl = origin.service_level;
        wc.slid = 0;
        wc.pkey_index = 0;
        wc.dlid_path_bits = 0;
    }
    wc
}
