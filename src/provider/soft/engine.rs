//! The requester and the responder.
//!
//! One request of a pair is under way at a time, so the numbers of reads in flight that both sides agreed on are kept
//! by nature. A unit of work carries it to the responder, which executes it whole or not at all; the next unit brings
//! the answer and completes it. Packets exist as numbers only.
#![allow(unsafe_code, reason = "moves data between registered regions")]

use super::{
    completion::{self, Entry, Side},
    fabric::State,
    memory::{self, AtomicOp, Span},
    pair::{Flight, PSN_MASK, Pair, PairState, Phase},
    work::{Operation, Remote, SendWork},
};
use crate::sys::{ibv_access_flags, ibv_wc_opcode, ibv_wc_status};
use std::{mem, time::Duration};

/// What became of a request that was sent.
enum Reply {
    /// Nothing came back.
    Lost,
    /// Done, refused by the responder, or spoilt by the requester's own memory.
    Done(ibv_wc_status),
    /// The responder had no receive; its timer code.
    NotReady(u8),
}

/// A refusal: the responder's pair is in Error after it.
struct Refusal {
    /// What the requester gets.
    status: ibv_wc_status,
    /// What the receive gets that the request would have used.
    receive: Option<ibv_wc_status>,
}

const SUCCESS: ibv_wc_status = ibv_wc_status::IBV_WC_SUCCESS;
const INVALID_REQUEST: Refusal = Refusal { status: ibv_wc_status::IBV_WC_REM_INV_REQ_ERR, receive: None };

impl State {
    /// One unit of work of a runnable pair.
    pub(super) fn work(&mut self, index: usize) {
        let Some(pair) = self.pairs.get_mut(index) else { return };
        if pair.state == PairState::Error {
            self.flush_one(index);
            return;
        }
        let Some((work, end)) = pair.send.pop() else { return };
        let flight = match pair.flight {
            Some(flight) => flight,
            None => match begin(pair, &work) {
                Ok(flight) => flight,
                Err(status) => return self.finish(index, work, end, status),
            },
        };
        if let Phase::Answered(status) = flight.phase {
            return self.finish(index, work, end, status);
        }
        pair.flight = Some(flight);
        let reply = self.carry(index, &work, flight);
        let Some(pair) = self.pairs.get_mut(index) else { return };
        pair.send.put_back(work);
        // A pair connected to itself may have been broken by its own request.
        if pair.state != PairState::Error {
            self.await_reply(index, reply);
        }
    }

    /// Notes what came of sending, and how long to wait.
    fn await_reply(&mut self, index: usize, reply: Reply) {
        let Some(pair) = self.pairs.get_mut(index) else { return };
        let attributes = pair.attributes;
        let Some(flight) = &mut pair.flight else { return };
        match reply {
            Reply::Done(status) => flight.phase = Phase::Answered(status),
            Reply::Lost => {
                flight.phase = Phase::AwaitingAnswer;
                if let Some(delay) = answer_timeout(attributes.timeout) {
                    self.start_timer(index, delay);
                }
            }
            // 7 is for ever.
            Reply::NotReady(_) if attributes.rnr_retry < 7 && flight.not_ready >= attributes.rnr_retry => {
                flight.phase = Phase::Answered(ibv_wc_status::IBV_WC_RNR_RETRY_EXC_ERR);
            }
            Reply::NotReady(code) => {
                flight.not_ready = flight.not_ready.saturating_add(1);
                flight.phase = Phase::AwaitingReceiver;
                self.start_timer(index, not_ready_delay(code));
            }
        }
    }

    /// The timer of a pair has gone off.
    pub(super) fn expire(&mut self, index: usize) {
        let Some(pair) = self.pairs.get_mut(index) else { return };
        pair.timer = 0;
        let retries = pair.attributes.retry_count;
        let Some(flight) = &mut pair.flight else { return };
        match flight.phase {
            Phase::AwaitingAnswer if flight.timeouts >= retries => {
                flight.phase = Phase::Answered(ibv_wc_status::IBV_WC_RETRY_EXC_ERR);
            }
            Phase::AwaitingAnswer => {
                flight.timeouts += 1;
                flight.phase = Phase::Ready;
            }
            Phase::AwaitingReceiver => flight.phase = Phase::Ready,
            Phase::Ready | Phase::Answered(_) => {}
        }
    }

    /// Completes the request that was at the head of the send queue.
    fn finish(&mut self, index: usize, work: SendWork, end: u64, status: ibv_wc_status) {
        let Some(pair) = self.pairs.get_mut(index) else { return };
        pair.flight = None;
        pair.timer = 0;
        if status == SUCCESS {
            if work.signaled {
                let len = match work.operation {
                    // As long as a message at most, so it fits.
                    Operation::Read(_) => u32::try_from(work.len).ok(),
                    Operation::Atomic(..) => Some(8),
                    Operation::Send | Operation::Write(_) => None,
                };
                let wc = completion::sent(work.id, work.opcode, pair.qpn, len);
                let entry = entry(pair, index, wc, Side::Send, end);
                let cq = pair.send_cq;
                pair.recycle(work);
                self.complete(cq, entry);
            } else {
                pair.recycle(work);
            }
        } else {
            let wc = completion::failed(work.id, status, pair.qpn);
            let entry = entry(pair, index, wc, Side::Send, end);
            let cq = pair.send_cq;
            self.complete(cq, entry);
            self.enter_error(index);
        }
    }

    /// Flushes one request of a pair in Error: sends first, each queue in order.
    fn flush_one(&mut self, index: usize) {
        let Some(pair) = self.pairs.get_mut(index) else { return };
        let flushed = ibv_wc_status::IBV_WC_WR_FLUSH_ERR;
        let (cq, id, side, end) = if let Some((work, end)) = pair.send.pop() {
            (pair.send_cq, work.id, Side::Send, end)
        } else if let Some((work, end)) = pair.receive.pop() {
            (pair.receive_cq, work.id, Side::Receive, end)
        } else {
            return;
        };
        let entry = entry(pair, index, completion::failed(id, flushed, pair.qpn), side, end);
        self.complete(cq, entry);
    }

    /// Sends a request: reads what it carries, and lets the responder have it.
    fn carry(&mut self, index: usize, work: &SendWork, flight: Flight) -> Reply {
        let mut local = mem::take(&mut self.local_scratch);
        local.clear();
        let reply = if self.gather(index, work, &mut local).is_none() {
            Reply::Done(ibv_wc_status::IBV_WC_LOC_PROT_ERR)
        } else if self.faults.loses_request() {
            Reply::Lost
        } else {
            match self.peer(index) {
                Some(peer) => self.arrive(index, peer, work, flight, &local),
                None => Reply::Lost,
            }
        };
        self.local_scratch = local;
        reply
    }

    /// The memory that an outgoing message comes from. `None`: a local protection error.
    fn gather(&self, index: usize, work: &SendWork, to: &mut Vec<Span>) -> Option<()> {
        match work.operation {
            Operation::Read(_) | Operation::Atomic(..) => Some(()),
            Operation::Send | Operation::Write(_) => match &work.inline {
                Some(data) => {
                    to.push(Span::of_bytes(data));
                    Some(())
                }
                None => self.regions.local(self.pairs.get(index)?.pd, work.sges.as_slice(), work.len, false, to),
            },
        }
    }

    /// The pair at the other end, if packets get there and it takes them: each must be connected to the other.
    fn peer(&self, index: usize) -> Option<usize> {
        let pair = self.pairs.get(index)?;
        let device = self.devices.iter().find(|device| device.has_gid(&pair.attributes.peer_gid))?;
        let peer_index = *device.qpns.get(&pair.attributes.peer_qpn)?;
        let peer = self.pairs.get(peer_index)?;
        let back = peer.attributes.peer_qpn == pair.qpn
            && peer.attributes.peer_gid == pair.attributes.gid
            && peer.attributes.gid == pair.attributes.peer_gid;
        (back && peer.state.responds()).then_some(peer_index)
    }

    /// A request arrives at the responder.
    fn arrive(&mut self, index: usize, peer: usize, work: &SendWork, flight: Flight, local: &[Span]) -> Reply {
        let Some(responder) = self.pairs.get(peer) else { return Reply::Lost };
        let after = flight.psn.wrapping_add(flight.packets) & PSN_MASK;
        let again = match flight.executed {
            None if responder.expected_psn == flight.psn => None,
            // The responder knows what it has executed and repeats only the answer.
            Some(before) if responder.expected_psn == after => Some(before),
            _ => return Reply::Lost,
        };
        let silent = self.faults.loses_answer();
        let result = match (work.operation, again) {
            (Operation::Read(remote), _) => self.read(index, peer, work, remote, silent),
            (Operation::Atomic(_, _), Some(before)) => Ok(self.atomic_result(index, work, before, silent)),
            (_, Some(_)) => Ok(Reply::Done(SUCCESS)),
            (Operation::Atomic(remote, op), None) => self.atomic(index, peer, work, remote, op, silent),
            (Operation::Send, None) => self.deliver(index, peer, work, local),
            (Operation::Write(remote), None) => self.write(index, peer, work, remote, local),
        };
        let executed = matches!(result, Ok(Reply::Done(_)));
        let reply = match result {
            Ok(reply) => reply,
            Err(refusal) => self.refuse(peer, &refusal),
        };
        if again.is_none()
            && executed
            && let Some(responder) = self.pairs.get_mut(peer)
        {
            responder.expected_psn = after;
        }
        if !silent {
            return reply;
        }
        if executed
            && let Some(flight) = self.pairs.get_mut(index).and_then(|pair| pair.flight.as_mut())
            && flight.executed.is_none()
        {
            flight.executed = Some(0);
        }
        Reply::Lost
    }

    /// The responder refuses a request and breaks.
    fn refuse(&mut self, peer: usize, refusal: &Refusal) -> Reply {
        if let (Some(status), Some(pair)) = (refusal.receive, self.pairs.get_mut(peer))
            && let Some((work, end)) = pair.receive.pop()
        {
            let entry = entry(pair, peer, completion::failed(work.id, status, pair.qpn), Side::Receive, end);
            let cq = pair.receive_cq;
            self.complete(cq, entry);
        }
        self.enter_error(peer);
        Reply::Done(refusal.status)
    }

    /// Whether both ends cut a message of `len` bytes into the same packets.
    fn same_packets(&self, index: usize, peer: usize, len: u64) -> bool {
        let mtu = |index| self.pairs.get(index).map_or(0, |pair| pair.attributes.mtu_bytes());
        let (ours, theirs) = (mtu(index), mtu(peer));
        ours == theirs || len <= ours.min(theirs)
    }

    /// A send arrives.
    fn deliver(&mut self, index: usize, peer: usize, work: &SendWork, local: &[Span]) -> Result<Reply, Refusal> {
        let same_packets = self.same_packets(index, peer, work.len);
        let Some(pair) = self.pairs.get(peer) else { return Ok(Reply::Lost) };
        let Some(receive) = pair.receive.front() else { return Ok(Reply::NotReady(pair.attributes.min_rnr_timer)) };
        let invalid = ibv_wc_status::IBV_WC_REM_INV_REQ_ERR;
        if !same_packets {
            return Err(Refusal { status: invalid, receive: Some(invalid) });
        }
        if receive.sges.bytes() < work.len {
            return Err(Refusal { status: invalid, receive: Some(ibv_wc_status::IBV_WC_LOC_LEN_ERR) });
        }
        let mut target = mem::take(&mut self.target_scratch);
        target.clear();
        let found = self.regions.local(pair.pd, receive.sges.as_slice(), work.len, true, &mut target);
        if found.is_some() {
            // SAFETY: spans of regions that are registered now, and under this lock stay so; the receive may be written.
            unsafe { memory::copy(local, &target) };
        }
        self.target_scratch = target;
        if found.is_none() {
            let status = ibv_wc_status::IBV_WC_REM_OP_ERR;
            return Err(Refusal { status, receive: Some(ibv_wc_status::IBV_WC_LOC_PROT_ERR) });
        }
        self.take_receive(peer, ibv_wc_opcode::IBV_WC_RECV, work);
        Ok(Reply::Done(SUCCESS))
    }

    /// Completes the oldest receive of the responder with what `work` brought.
    fn take_receive(&mut self, peer: usize, opcode: ibv_wc_opcode, work: &SendWork) {
        let Some(pair) = self.pairs.get_mut(peer) else { return };
        let Some((receive, end)) = pair.receive.pop() else { return };
        // No message is longer than 2^31.
        let len = u32::try_from(work.len).unwrap_or(u32::MAX);
        let wc = completion::received(receive.id, opcode, pair.qpn, len, work.immediate);
        let mut entry = entry(pair, peer, wc, Side::Receive, end);
        entry.solicited = work.solicited;
        let cq = pair.receive_cq;
        self.complete(cq, entry);
    }

    /// A write arrives.
    fn write(
        &mut self,
        index: usize,
        peer: usize,
        work: &SendWork,
        remote: Remote,
        local: &[Span],
    ) -> Result<Reply, Refusal> {
        let same_packets = self.same_packets(index, peer, work.len);
        let Some(pair) = self.pairs.get(peer) else { return Ok(Reply::Lost) };
        permit(pair, ibv_access_flags::IBV_ACCESS_REMOTE_WRITE)?;
        let with_receive = work.immediate.is_some();
        if with_receive && pair.receive.is_empty() {
            return Ok(Reply::NotReady(pair.attributes.min_rnr_timer));
        }
        if !same_packets {
            let receive = with_receive.then_some(ibv_wc_status::IBV_WC_REM_INV_REQ_ERR);
            return Err(Refusal { receive, ..INVALID_REQUEST });
        }
        // Without data there is nothing to check.
        if work.len > 0 {
            let right = ibv_access_flags::IBV_ACCESS_REMOTE_WRITE;
            let target = self.regions.remote(pair.pd, remote.rkey, remote.addr, work.len, right).ok_or(Refusal {
                status: ibv_wc_status::IBV_WC_REM_ACCESS_ERR,
                receive: with_receive.then_some(ibv_wc_status::IBV_WC_LOC_ACCESS_ERR),
            })?;
            // SAFETY: as in `deliver`; peers may write this region.
            unsafe { memory::copy(local, &[target]) };
        }
        if with_receive {
            self.take_receive(peer, ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM, work);
        }
        Ok(Reply::Done(SUCCESS))
    }

    /// A read arrives; the data goes to the requester at once, unless the answer is to be lost.
    fn read(
        &mut self,
        index: usize,
        peer: usize,
        work: &SendWork,
        remote: Remote,
        silent: bool,
    ) -> Result<Reply, Refusal> {
        let same_packets = self.same_packets(index, peer, work.len);
        let (Some(pair), Some(requester)) = (self.pairs.get(peer), self.pairs.get(index)) else {
            return Ok(Reply::Lost);
        };
        permit(pair, ibv_access_flags::IBV_ACCESS_REMOTE_READ)?;
        if pair.attributes.max_dest_rd_atomic == 0 {
            return Err(INVALID_REQUEST);
        }
        if work.len == 0 {
            return Ok(Reply::Done(SUCCESS));
        }
        let right = ibv_access_flags::IBV_ACCESS_REMOTE_READ;
        let source = self
            .regions
            .remote(pair.pd, remote.rkey, remote.addr, work.len, right)
            .ok_or(Refusal { status: ibv_wc_status::IBV_WC_REM_ACCESS_ERR, receive: None })?;
        if !same_packets {
            return Ok(Reply::Done(ibv_wc_status::IBV_WC_BAD_RESP_ERR));
        }
        let mut target = mem::take(&mut self.target_scratch);
        target.clear();
        let found = self.regions.local(requester.pd, work.sges.as_slice(), work.len, true, &mut target);
        if found.is_some() && !silent {
            // SAFETY: as in `deliver`; peers may read the one, and the other is where the requester wants it.
            unsafe { memory::copy(&[source], &target) };
        }
        self.target_scratch = target;
        Ok(Reply::Done(if found.is_some() { SUCCESS } else { ibv_wc_status::IBV_WC_LOC_PROT_ERR }))
    }

    /// An atomic arrives.
    fn atomic(
        &mut self,
        index: usize,
        peer: usize,
        work: &SendWork,
        remote: Remote,
        op: AtomicOp,
        silent: bool,
    ) -> Result<Reply, Refusal> {
        let Some(pair) = self.pairs.get(peer) else { return Ok(Reply::Lost) };
        let right = ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC;
        permit(pair, right)?;
        if pair.attributes.max_dest_rd_atomic == 0 {
            return Err(INVALID_REQUEST);
        }
        let target = self
            .regions
            .remote(pair.pd, remote.rkey, remote.addr, 8, right)
            .ok_or(Refusal { status: ibv_wc_status::IBV_WC_REM_ACCESS_ERR, receive: None })?;
        // SAFETY: eight bytes of a region that is registered now; one with a remote right is exposed.
        let before = unsafe { memory::atomic(target, op) }.ok_or(INVALID_REQUEST)?;
        if silent && let Some(flight) = self.pairs.get_mut(index).and_then(|pair| pair.flight.as_mut()) {
            flight.executed = Some(before);
        }
        Ok(self.atomic_result(index, work, before, silent))
    }

    /// The answer to an atomic: what was there before goes to the requester's memory.
    fn atomic_result(&mut self, index: usize, work: &SendWork, before: u64, silent: bool) -> Reply {
        let Some(requester) = self.pairs.get(index) else { return Reply::Lost };
        let mut target = mem::take(&mut self.target_scratch);
        target.clear();
        let found = self.regions.local(requester.pd, work.sges.as_slice(), 8, true, &mut target);
        if found.is_some() && !silent {
            // SAFETY: as in `deliver`.
            unsafe { memory::copy(&[Span::of_bytes(&before.to_ne_bytes())], &target) };
        }
        self.target_scratch = target;
        Reply::Done(if found.is_some() { SUCCESS } else { ibv_wc_status::IBV_WC_LOC_PROT_ERR })
    }
}

impl Pair {
    /// Keeps the buffer of a finished inline request for the next one.
    fn recycle(&mut self, work: SendWork) {
        if let Some(data) = work.inline {
            self.spare.push(data);
        }
    }
}

impl SendWork {
    /// Whether data goes from here to the peer.
    fn is_outgoing(&self) -> bool {
        matches!(self.operation, Operation::Send | Operation::Write(_))
    }
}

/// Starts the request at the head of the send queue: numbers its packets. `Err`: it cannot be done.
fn begin(pair: &mut Pair, work: &SendWork) -> Result<Flight, ibv_wc_status> {
    if work.too_long() || matches!(work.operation, Operation::Atomic(..)) && work.len < 8 {
        return Err(ibv_wc_status::IBV_WC_LOC_LEN_ERR);
    }
    if !work.is_outgoing() && pair.attributes.max_rd_atomic == 0 {
        return Err(ibv_wc_status::IBV_WC_LOC_QP_OP_ERR);
    }
    let packets = match work.operation {
        Operation::Atomic(..) => 1,
        // At most 2^31 / 256, so it fits.
        _ => u32::try_from(work.len.div_ceil(pair.attributes.mtu_bytes())).unwrap_or(u32::MAX).max(1),
    };
    let psn = pair.next_psn;
    pair.next_psn = psn.wrapping_add(packets) & PSN_MASK;
    Ok(Flight { phase: Phase::Ready, psn, packets, timeouts: 0, not_ready: 0, executed: None })
}

/// A completion of a request of `pair`.
fn entry(pair: &Pair, index: usize, wc: crate::sys::ibv_wc, side: Side, end: u64) -> Entry {
    Entry { wc, side, pair: index, epoch: pair.epoch, end, solicited: false }
}

/// Whether a pair lets its peer do that at all.
fn permit(pair: &Pair, right: ibv_access_flags) -> Result<(), Refusal> {
    if pair.attributes.access & right.0 == 0 { Err(INVALID_REQUEST) } else { Ok(()) }
}

/// 4.096 us * 2^code; for ever if 0.
fn answer_timeout(code: u8) -> Option<Duration> {
    (code != 0).then(|| Duration::from_nanos(4096 << code.min(31)))
}

/// What `min_rnr_timer` means.
fn not_ready_delay(code: u8) -> Duration {
    const HUNDREDTHS_OF_MS: [u64; 32] = [
        65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072,
        4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
    ];
    let hundredths = HUNDREDTHS_OF_MS.get(usize::from(code)).copied().unwrap_or(65536);
    Duration::from_micros(hundredths * 10)
}
