//! The requester: the side of a pair that sends requests.
//!
//! Each pair has at most one request in flight. So a pair never exceeds the number of reads that both sides agreed on,
//! and every request acts as if it were fenced. One unit of work carries a request to the responder, which executes all
//! of it or nothing; the next unit brings the answer and completes the request. On transports without acknowledgements,
//! the second unit only completes the request. Packets are not simulated, only their sequence numbers.
#![forbid(unsafe_code)]

use super::{
    completion::{self, Entry, Side},
    datagram::Header,
    device,
    fabric::{State, TimerOf},
    memory::{Source, Span},
    pair::{Flight, PSN_MASK, Pair, Phase},
    transition::{PairState, Transport},
    work::{Operation, SendWork},
};
use crate::sys::ibv_wc_status;
use std::{mem, time::Duration};

/// The outcome of sending a request once.
pub(super) enum Reply {
    /// No answer came back.
    Lost,
    /// The request has this status: it succeeded, the responder refused it, or it failed in the requester's own memory.
    Done(ibv_wc_status),
    /// The responder had no receive. The value is the RNR timer code of the time to wait.
    NotReady(u8),
}

pub(super) const SUCCESS: ibv_wc_status = ibv_wc_status::IBV_WC_SUCCESS;

impl State {
    /// Does one unit of work of a runnable pair.
    pub(super) fn work(&mut self, index: usize) {
        let Some(pair) = self.pairs.get_mut(index) else { return };
        match pair.state {
            PairState::Error => {
                _ = self.flush_send(index) || self.flush_receive(index);
                return;
            }
            PairState::SendError => {
                self.flush_send(index);
                return;
            }
            _ => {}
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
        // `carry` can move this pair to Error, for example if the pair is connected to itself. A pair in Error awaits
        // no answer.
        if pair.state != PairState::Error {
            self.await_reply(index, reply);
        }
    }

    /// Stores the answer to a request; or if there is none yet, starts a timer.
    fn await_reply(&mut self, index: usize, reply: Reply) {
        let Some(pair) = self.pairs.get_mut(index) else { return };
        let attributes = pair.attributes;
        let Some(flight) = &mut pair.flight else { return };
        match reply {
            Reply::Done(status) => flight.phase = Phase::Answered(status),
            Reply::Lost => {
                flight.phase = Phase::AwaitingAnswer;
                if let Some(delay) = answer_timeout(attributes.timeout) {
                    self.start_timer(TimerOf::Pair(index), delay);
                }
            }
            // A limit of 7 means unlimited retries.
            Reply::NotReady(_) if attributes.rnr_retry < 7 && flight.not_ready >= attributes.rnr_retry => {
                flight.phase = Phase::Answered(ibv_wc_status::IBV_WC_RNR_RETRY_EXC_ERR);
            }
            Reply::NotReady(code) => {
                flight.not_ready = flight.not_ready.saturating_add(1);
                flight.phase = Phase::AwaitingReceiver;
                self.start_timer(TimerOf::Pair(index), not_ready_delay(code));
            }
        }
    }

    /// Handles the timer of a pair: schedules a retransmission, or fails the request.
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
        if status != SUCCESS {
            pair.late = None;
        }
        if status == SUCCESS {
            if work.signaled {
                let len = match work.operation {
                    // No message is longer than 2^31 bytes, so the length fits a `u32`.
                    Operation::Read(_) => u32::try_from(work.len).ok(),
                    Operation::Atomic(..) => Some(8),
                    _ => None,
                };
                let late = pair.late.take();
                let opcode = self.latitudes.name_of(work.opcode);
                let wc = completion::sent(work.id, opcode, pair.qpn, len);
                let entry =
                    Entry { wc, slot: pair.slot(index, Side::Send, end), solicited: false, late, is_dead: false };
                let cq = pair.send_cq;
                pair.recycle(work);
                self.complete(cq, entry);
            } else {
                pair.recycle(work);
            }
            self.tell_drained(index);
        } else {
            let wc = completion::failed(work.id, status, pair.qpn);
            let entry =
                Entry { wc, slot: pair.slot(index, Side::Send, end), solicited: false, late: None, is_dead: false };
            let cq = pair.send_cq;
            pair.recycle(work);
            self.complete(cq, entry);
            self.break_sending(index);
        }
    }

    /// Flushes the oldest request of the send queue. Returns whether there was one.
    pub(super) fn flush_send(&mut self, index: usize) -> bool {
        let Some(pair) = self.pairs.get_mut(index) else { return false };
        let Some((work, end)) = pair.send.pop() else { return false };
        let wc = completion::failed(work.id, ibv_wc_status::IBV_WC_WR_FLUSH_ERR, pair.qpn);
        let entry = Entry { wc, slot: pair.slot(index, Side::Send, end), solicited: false, late: None, is_dead: false };
        let cq = pair.send_cq;
        pair.recycle(work);
        self.complete(cq, entry);
        true
    }

    /// Flushes the oldest request of the pair's own receive queue. Returns whether there was one.
    fn flush_receive(&mut self, index: usize) -> bool {
        let late = self.pairs.get(index).is_some_and(|pair| pair.srq.is_none()).then(|| self.waste(index)).flatten();
        let Some(pair) = self.pairs.get_mut(index) else { return false };
        let Some((work, end)) = pair.receive.pop() else { return false };
        let wc = completion::failed(work.id, ibv_wc_status::IBV_WC_WR_FLUSH_ERR, pair.qpn);
        let entry = Entry { wc, slot: pair.slot(index, Side::Receive, end), solicited: false, late, is_dead: false };
        let cq = pair.receive_cq;
        pair.receive.recycle(work.sges);
        self.complete(cq, entry);
        true
    }

    /// Sends a request: gathers its data, and passes the data to the responder.
    fn carry(&mut self, index: usize, work: &SendWork, flight: Flight) -> Reply {
        let Some((transport, who)) = self.pairs.get(index).map(|pair| (pair.transport, pair.who(index))) else {
            return Reply::Lost;
        };
        match work.operation {
            Operation::Bind(bind) => {
                let bound = self.regions.bind(who, &bind).is_some();
                return Reply::Done(if bound { SUCCESS } else { ibv_wc_status::IBV_WC_MW_BIND_ERR });
            }
            Operation::Invalidate(rkey) => {
                let ended = self.regions.invalidate(who, rkey);
                return Reply::Done(if ended { SUCCESS } else { ibv_wc_status::IBV_WC_LOC_QP_OP_ERR });
            }
            _ => {}
        }
        let mut local = mem::take(&mut self.local_scratch);
        local.clear();
        let reply = match transport {
            _ if self.faults.fails_request() => Reply::Done(ibv_wc_status::IBV_WC_LOC_PROT_ERR),
            Transport::Reliable => self.carry_reliably(index, work, flight, &mut local),
            Transport::Unreliable => self.carry_unreliably(index, work, flight, &mut local),
            Transport::Datagram => match self.header(index, work) {
                Ok(header) => self.carry_datagram(index, work, &header, &mut local),
                Err(status) => Reply::Done(status),
            },
        };
        self.local_scratch = local;
        reply
    }

    fn carry_reliably(&mut self, index: usize, work: &SendWork, flight: Flight, local: &mut Vec<Span>) -> Reply {
        if self.gather(index, work, local).is_none() {
            return Reply::Done(ibv_wc_status::IBV_WC_LOC_PROT_ERR);
        }
        if self.faults.loses_request() {
            return Reply::Lost;
        }
        match self.peer(index) {
            Some(peer) => self.arrive(index, peer, work, flight, source(&[], work, local)),
            None => Reply::Lost,
        }
    }

    /// Sends a request on a transport without acknowledgements: the requester does not learn whether the message
    /// arrives.
    fn carry_unreliably(&mut self, index: usize, work: &SendWork, flight: Flight, local: &mut Vec<Span>) -> Reply {
        if self.gather(index, work, local).is_none() {
            return Reply::Done(ibv_wc_status::IBV_WC_LOC_PROT_ERR);
        }
        if !self.faults.loses_request()
            && let Some(peer) = self.peer(index)
        {
            self.arrive_unreliably(index, peer, work, flight, source(&[], work, local));
        }
        Reply::Done(SUCCESS)
    }

    fn carry_datagram(&mut self, index: usize, work: &SendWork, header: &Header, local: &mut Vec<Span>) -> Reply {
        if self.gather(index, work, local).is_none() {
            return Reply::Done(ibv_wc_status::IBV_WC_LOC_PROT_ERR);
        }
        if !self.faults.loses_request() {
            self.distribute(index, work, header, source(header.bytes(), work, local));
        }
        Reply::Done(SUCCESS)
    }

    /// Appends the registered memory that an outgoing message is taken from. `None`: a local protection error.
    fn gather(&self, index: usize, work: &SendWork, to: &mut Vec<Span>) -> Option<()> {
        if !work.operation.is_outgoing() || work.inline.is_some() {
            return Some(());
        }
        self.regions.local(self.pairs.get(index)?.pd, work.sges.as_slice(), work.len, false, to)
    }

    /// The pair at the other end, if packets reach it and it accepts them: each of the two pairs must be connected to
    /// the other.
    fn peer(&self, index: usize) -> Option<usize> {
        let pair = self.pairs.get(index)?;
        if !self.devices.get(pair.device)?.is_reachable() {
            return None;
        }
        let device = self.devices.iter().find(|device| device.has_gid(&pair.attributes.peer_gid))?;
        let peer_index = *device.qpns.get(&pair.attributes.peer_qpn)?;
        let peer = self.pairs.get(peer_index)?;
        let back = peer.transport == pair.transport
            && device.is_reachable()
            && peer.attributes.peer_qpn == pair.qpn
            && peer.attributes.peer_gid == pair.attributes.gid
            && peer.attributes.gid == pair.attributes.peer_gid;
        (back && peer.state.responds()).then_some(peer_index)
    }
}

impl Pair {
    /// Keeps the vectors of a finished request for reuse.
    fn recycle(&mut self, work: SendWork) {
        self.send.recycle(work.sges);
        if let Some(data) = work.inline {
            self.spare.push(data);
        }
    }
}

/// The bytes of a request's message: the header, the inline data, then the memory that `gather` found.
fn source<'a>(header: &'a [u8], work: &'a SendWork, registered: &'a [Span]) -> Source<'a> {
    Source { header, inline: work.inline.as_deref().unwrap_or(&[]), registered }
}

/// Starts the request at the head of the send queue, and numbers its packets. `Err` if the request is invalid.
fn begin(pair: &mut Pair, work: &SendWork) -> Result<Flight, ibv_wc_status> {
    let fits = match work.operation {
        Operation::Atomic(..) => work.len >= 8,
        Operation::AtomicWrite(_) => work.len == 8,
        // A datagram must fit one packet.
        _ if pair.transport == Transport::Datagram => work.len <= device::ACTIVE_MTU_BYTES,
        _ => work.len <= u64::from(device::MAX_MESSAGE),
    };
    if !fits {
        return Err(ibv_wc_status::IBV_WC_LOC_LEN_ERR);
    }
    let answered = matches!(work.operation, Operation::Read(_) | Operation::Atomic(..) | Operation::AtomicWrite(_));
    if answered && pair.attributes.max_rd_atomic == 0 {
        return Err(ibv_wc_status::IBV_WC_LOC_QP_OP_ERR);
    }
    let packets = match work.operation {
        Operation::Bind(_) | Operation::Invalidate(_) => 0,
        Operation::Atomic(..) | Operation::AtomicWrite(_) => 1,
        _ if pair.transport == Transport::Datagram => 1,
        // There are at most 2^31 / 256 packets, so their number fits a `u32`.
        _ => u32::try_from(work.len.div_ceil(pair.attributes.mtu_bytes())).unwrap_or(u32::MAX).max(1),
    };
    let psn = pair.next_psn;
    pair.next_psn = psn.wrapping_add(packets) & PSN_MASK;
    Ok(Flight { phase: Phase::Ready, psn, packets, timeouts: 0, not_ready: 0, executed: None })
}

/// 4.096 us * 2^code. A code of 0 means no timeout.
fn answer_timeout(code: u8) -> Option<Duration> {
    (code != 0).then(|| Duration::from_nanos(4096 << code.min(31)))
}

/// The time for a code of `min_rnr_timer`.
fn not_ready_delay(code: u8) -> Duration {
    const HUNDREDTHS_OF_MS: [u64; 32] = [
        65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072,
        4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
    ];
    let hundredths = HUNDREDTHS_OF_MS.get(usize::from(code)).copied().unwrap_or(65536);
    Duration::from_micros(hundredths * 10)
}
