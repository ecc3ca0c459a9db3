//! The responder: the side of a pair that executes the requests of its peer.
#![forbid(unsafe_code)]

use super::{
    completion::{self, Entry, Extra, Origin},
    datagram::HEADER,
    engine::{Reply, SUCCESS},
    events::Subject,
    fabric::State,
    memory::{self, AtomicOp, Source, Span},
    pair::{Flight, PSN_MASK, Pair},
    work::{Operation, Remote, SendWork},
};
use crate::sys::{ibv_access_flags, ibv_event_type, ibv_wc_opcode, ibv_wc_status};
use std::mem;

/// A refused request. The responder's pair enters Error.
struct Refusal {
    /// The status that the requester gets.
    status: ibv_wc_status,
    /// The status of the receive that the request would have used; `None` if it uses none.
    receive: Option<ibv_wc_status>,
}

/// Why a receive cannot take a message.
pub(super) enum Misfit {
    /// There is no receive.
    NoReceive,
    TooSmall,
    /// The receive's memory is not registered, or may not be written.
    Protected,
}

const INVALID_REQUEST: Refusal = Refusal { status: ibv_wc_status::IBV_WC_REM_INV_REQ_ERR, receive: None };

impl State {
    /// Executes a request that arrives at the responder.
    pub(super) fn arrive(
        &mut self,
        index: usize,
        peer: usize,
        work: &SendWork,
        flight: Flight,
        message: Source<'_>,
    ) -> Reply {
        let Some(responder) = self.pairs.get(peer) else { return Reply::Lost };
        let after = flight.psn.wrapping_add(flight.packets) & PSN_MASK;
        let again = match flight.executed {
            None if responder.expected_psn == flight.psn => None,
            // A retransmission: the responder has executed this request, but the answer was lost. Below, a read is
            // executed again. All other requests only get their answer again.
            Some(before) if responder.expected_psn == after => Some(before),
            _ => return Reply::Lost,
        };
        if responder.is_fresh() {
            self.establish(peer);
        }
        let silent = self.faults.loses_answer();
        let result = match (work.operation, again) {
            (Operation::Read(remote), _) => self.read(index, peer, work, remote, silent),
            (Operation::Atomic(_, _), Some(before)) => Ok(self.atomic_result(index, work, before, silent)),
            (_, Some(_)) => Ok(Reply::Done(SUCCESS)),
            (Operation::Atomic(remote, op), None) => self.atomic(index, peer, work, remote, op, silent),
            (Operation::Send, None) => self.deliver(index, peer, work, message),
            (Operation::Write(remote), None) => self.write(index, peer, work, remote, message),
            (Operation::AtomicWrite(remote), None) => self.atomic_write(peer, remote, message),
            // Local operations are never sent to a responder.
            (Operation::Invalidate(_) | Operation::Bind(_), None) => Ok(Reply::Lost),
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

    /// Refuses a request and moves the responder to Error. If no completion shows the reason, an event is raised.
    fn refuse(&mut self, peer: usize, refusal: &Refusal) -> Reply {
        match refusal.receive {
            Some(status) => self.fail_receive(peer, status),
            None if refusal.status == ibv_wc_status::IBV_WC_REM_ACCESS_ERR => {
                self.raise(ibv_event_type::IBV_EVENT_QP_ACCESS_ERR, Subject::Pair(peer));
            }
            None => self.raise(ibv_event_type::IBV_EVENT_QP_REQ_ERR, Subject::Pair(peer)),
        }
        self.enter_error(peer);
        Reply::Done(refusal.status)
    }

    /// Handles the first message of a connection: it raises an event.
    fn establish(&mut self, peer: usize) {
        if let Some(pair) = self.pairs.get_mut(peer).filter(|pair| pair.is_fresh()) {
            pair.established = true;
            self.raise(ibv_event_type::IBV_EVENT_COMM_EST, Subject::Pair(peer));
        }
    }

    /// Takes a message that needs no acknowledgement. A message that is refused is dropped silently, unless the receive
    /// has failed.
    pub(super) fn arrive_unreliably(
        &mut self,
        index: usize,
        peer: usize,
        work: &SendWork,
        flight: Flight,
        message: Source<'_>,
    ) {
        self.establish(peer);
        // A new message is accepted with any sequence number, because messages before it can be lost.
        if let Some(pair) = self.pairs.get_mut(peer) {
            pair.expected_psn = flight.psn.wrapping_add(flight.packets) & PSN_MASK;
        }
        let result = match work.operation {
            Operation::Send => self.deliver(index, peer, work, message),
            Operation::Write(remote) => self.write(index, peer, work, remote, message),
            _ => return,
        };
        let fault = [ibv_wc_status::IBV_WC_LOC_LEN_ERR, ibv_wc_status::IBV_WC_LOC_PROT_ERR];
        if let Err(refusal) = result
            && refusal.receive.is_some_and(|status| fault.contains(&status))
        {
            self.refuse(peer, &refusal);
        }
    }

    /// Whether both sides divide a message of `len` bytes into the same packets: their MTUs are equal, or one packet of
    /// either side holds it.
    fn same_packets(&self, index: usize, peer: usize, len: u64) -> bool {
        let mtu = |index| self.pairs.get(index).map_or(0, |pair| pair.attributes.mtu_bytes());
        let (ours, theirs) = (mtu(index), mtu(peer));
        ours == theirs || len <= ours.min(theirs)
    }

    /// Appends to `to` the first `len` bytes of the memory of the pair's oldest receive.
    fn place(&self, peer: usize, len: u64, to: &mut Vec<Span>) -> Result<(), Misfit> {
        let (receive, pd) = self.next_receive(peer).ok_or(Misfit::NoReceive)?;
        if receive.sges.bytes() < len {
            return Err(Misfit::TooSmall);
        }
        self.regions.local(pd, receive.sges.as_slice(), len, true, to).ok_or(Misfit::Protected)
    }

    /// Copies `len` bytes into the oldest receive of a pair.
    pub(super) fn scatter(&mut self, peer: usize, message: Source<'_>, len: u64) -> Result<(), Misfit> {
        let mut target = mem::take(&mut self.target_scratch);
        target.clear();
        let found = self.place(peer, len, &mut target);
        if found.is_ok() {
            self.scribble(peer);
            memory::copy(&self.regions.era, message, &target);
            self.delay(&target);
        }
        self.target_scratch = target;
        found
    }

    /// Executes a send.
    fn deliver(&mut self, index: usize, peer: usize, work: &SendWork, message: Source<'_>) -> Result<Reply, Refusal> {
        let same_packets = self.same_packets(index, peer, work.len);
        let Some(pair) = self.pairs.get(peer) else { return Ok(Reply::Lost) };
        let (who, not_ready) = (pair.who(peer), Reply::NotReady(pair.attributes.min_rnr_timer));
        let invalid = ibv_wc_status::IBV_WC_REM_INV_REQ_ERR;
        let fault = match work.extra {
            _ if !same_packets => Some(invalid),
            Extra::Invalidated(rkey) if !self.regions.can_invalidate(who, rkey) => {
                Some(ibv_wc_status::IBV_WC_LOC_QP_OP_ERR)
            }
            _ => None,
        };
        if fault.is_some() {
            let ready = self.next_receive(peer).is_some();
            return if ready { Err(Refusal { status: invalid, receive: fault }) } else { Ok(not_ready) };
        }
        match self.scatter(peer, message, work.len) {
            Ok(()) => {}
            Err(Misfit::NoReceive) => return Ok(not_ready),
            Err(Misfit::TooSmall) => {
                return Err(Refusal { status: invalid, receive: Some(ibv_wc_status::IBV_WC_LOC_LEN_ERR) });
            }
            Err(Misfit::Protected) => {
                let status = ibv_wc_status::IBV_WC_REM_OP_ERR;
                return Err(Refusal { status, receive: Some(ibv_wc_status::IBV_WC_LOC_PROT_ERR) });
            }
        }
        if let Extra::Invalidated(rkey) = work.extra {
            self.regions.invalidate(who, rkey);
        }
        self.take_receive(peer, ibv_wc_opcode::IBV_WC_RECV, work, None);
        Ok(Reply::Done(SUCCESS))
    }

    /// Completes the oldest receive of the responder with the message of `work`. For a datagram, `origin` is its
    /// sender.
    pub(super) fn take_receive(&mut self, peer: usize, opcode: ibv_wc_opcode, work: &SendWork, origin: Option<Origin>) {
        let Some((id, slot)) = self.pop_receive(peer) else { return };
        let Some(pair) = self.pairs.get(peer) else { return };
        let header = if origin.is_some() { HEADER as u64 } else { 0 };
        // No message is longer than 2^31 bytes, so the length fits a `u32`.
        let len = u32::try_from(work.len + header).unwrap_or(u32::MAX);
        let wc = completion::received(id, opcode, pair.qpn, len, work.extra, origin);
        let cq = pair.receive_cq;
        let late = self.take_late();
        self.complete(cq, Entry { wc, slot, solicited: work.solicited, late, is_dead: false });
    }

    /// Fails the oldest receive of a pair, because it cannot take the message.
    pub(super) fn fail_receive(&mut self, peer: usize, status: ibv_wc_status) {
        let late = self.waste(peer);
        let Some((id, slot)) = self.pop_receive(peer) else { return };
        let Some(pair) = self.pairs.get(peer) else { return };
        let wc = completion::failed(id, status, pair.qpn);
        let cq = pair.receive_cq;
        self.complete(cq, Entry { wc, slot, solicited: false, late, is_dead: false });
    }

    /// Executes a write.
    fn write(
        &mut self,
        index: usize,
        peer: usize,
        work: &SendWork,
        remote: Remote,
        message: Source<'_>,
    ) -> Result<Reply, Refusal> {
        let same_packets = self.same_packets(index, peer, work.len);
        let Some(pair) = self.pairs.get(peer) else { return Ok(Reply::Lost) };
        permit(pair, ibv_access_flags::IBV_ACCESS_REMOTE_WRITE)?;
        let who = pair.who(peer);
        let with_receive = matches!(work.extra, Extra::Immediate(_));
        if with_receive && self.next_receive(peer).is_none() {
            return Ok(Reply::NotReady(pair.attributes.min_rnr_timer));
        }
        if !same_packets {
            let receive = with_receive.then_some(ibv_wc_status::IBV_WC_REM_INV_REQ_ERR);
            return Err(Refusal { receive, ..INVALID_REQUEST });
        }
        // A write of 0 bytes touches no memory, so its key and address need not be valid (InfiniBand, C9-88).
        if work.len > 0 {
            let right = ibv_access_flags::IBV_ACCESS_REMOTE_WRITE;
            let target = self.regions.remote(who, remote.rkey, remote.addr, work.len, right).ok_or(Refusal {
                status: ibv_wc_status::IBV_WC_REM_ACCESS_ERR,
                receive: with_receive.then_some(ibv_wc_status::IBV_WC_LOC_ACCESS_ERR),
            })?;
            memory::copy(&self.regions.era, message, &[target]);
        }
        if with_receive {
            self.take_receive(peer, ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM, work, None);
        }
        Ok(Reply::Done(SUCCESS))
    }

    /// Executes a read: copies the data to the memory of the requester, unless the answer will be lost.
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
            .remote(pair.who(peer), remote.rkey, remote.addr, work.len, right)
            .ok_or(Refusal { status: ibv_wc_status::IBV_WC_REM_ACCESS_ERR, receive: None })?;
        if !same_packets {
            return Ok(Reply::Done(ibv_wc_status::IBV_WC_BAD_RESP_ERR));
        }
        let mut target = mem::take(&mut self.target_scratch);
        target.clear();
        let found = self.regions.local(requester.pd, work.sges.as_slice(), work.len, true, &mut target);
        if found.is_some() && !silent {
            memory::copy(&self.regions.era, Source { registered: &[source], ..Source::default() }, &target);
            self.delay_answer(index, &target, work.signaled);
        }
        self.target_scratch = target;
        Ok(Reply::Done(if found.is_some() { SUCCESS } else { ibv_wc_status::IBV_WC_LOC_PROT_ERR }))
    }

    /// The 8 bytes on which an atomic works.
    fn word(&self, peer: usize, pair: &Pair, remote: Remote, right: ibv_access_flags) -> Result<Span, Refusal> {
        permit(pair, right)?;
        if pair.attributes.max_dest_rd_atomic == 0 {
            return Err(INVALID_REQUEST);
        }
        let found = self.regions.remote(pair.who(peer), remote.rkey, remote.addr, 8, right);
        found.ok_or(Refusal { status: ibv_wc_status::IBV_WC_REM_ACCESS_ERR, receive: None })
    }

    /// Executes an atomic.
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
        let target = self.word(peer, pair, remote, ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC)?;
        let before = memory::atomic(&self.regions.era, target, op).ok_or(INVALID_REQUEST)?;
        if silent && let Some(flight) = self.pairs.get_mut(index).and_then(|pair| pair.flight.as_mut()) {
            flight.executed = Some(before);
        }
        Ok(self.atomic_result(index, work, before, silent))
    }

    /// Executes an atomic write of 8 bytes.
    fn atomic_write(&mut self, peer: usize, remote: Remote, message: Source<'_>) -> Result<Reply, Refusal> {
        let Some(pair) = self.pairs.get(peer) else { return Ok(Reply::Lost) };
        let target = self.word(peer, pair, remote, ibv_access_flags::IBV_ACCESS_REMOTE_WRITE)?;
        let mut value = [0; 8];
        memory::read(&self.regions.era, message, &mut value);
        let write = AtomicOp::Write(u64::from_ne_bytes(value));
        memory::atomic(&self.regions.era, target, write).ok_or(INVALID_REQUEST)?;
        Ok(Reply::Done(SUCCESS))
    }

    /// Answers an atomic: writes the old value to the memory of the requester.
    fn atomic_result(&mut self, index: usize, work: &SendWork, before: u64, silent: bool) -> Reply {
        let Some(requester) = self.pairs.get(index) else { return Reply::Lost };
        let mut target = mem::take(&mut self.target_scratch);
        target.clear();
        let found = self.regions.local(requester.pd, work.sges.as_slice(), 8, true, &mut target);
        if found.is_some() && !silent {
            let answer = Source { inline: &before.to_ne_bytes(), ..Source::default() };
            memory::copy(&self.regions.era, answer, &target);
            self.delay_answer(index, &target, work.signaled);
        }
        self.target_scratch = target;
        Reply::Done(if found.is_some() { SUCCESS } else { ibv_wc_status::IBV_WC_LOC_PROT_ERR })
    }
}

/// Refuses a request if the pair does not grant its peer this right.
fn permit(pair: &Pair, right: ibv_access_flags) -> Result<(), Refusal> {
    if pair.attributes.access & right.0 == 0 { Err(INVALID_REQUEST) } else { Ok(()) }
}
