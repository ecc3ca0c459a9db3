//! Queue pairs: their parts, and how they are created, queried and destroyed.
#![forbid(unsafe_code)]

use super::{
    completion::{Side, Slot},
    device,
    events::Subject,
    fabric::State,
    memory::Late,
    objects::{Raw, Table},
    transition::{PairState, Transport},
    work::{Queue, ReceiveWork, SendWork},
};
use crate::sys::{ibv_ah_attr, ibv_event_type, ibv_mtu, ibv_qp, ibv_qp_attr, ibv_qp_attr_mask as Mask, ibv_qp_cap};
use libc::c_int;

/// Queue pairs.
pub(super) type Pairs = Table<Pair>;

/// The attributes that `ibv_modify_qp` sets.
#[derive(Clone, Copy, Default)]
pub(super) struct Attributes {
    pub(super) port: u8,
    pub(super) pkey_index: u16,
    pub(super) access: u32,
    pub(super) mtu: ibv_mtu_code,
    pub(super) peer_qpn: u32,
    pub(super) ah: ibv_ah_attr,
    /// The GID at index `ah.grh.sgid_index`.
    pub(super) gid: [u8; 16],
    pub(super) peer_gid: [u8; 16],
    pub(super) max_dest_rd_atomic: u8,
    pub(super) min_rnr_timer: u8,
    pub(super) timeout: u8,
    pub(super) retry_count: u8,
    pub(super) rnr_retry: u8,
    pub(super) max_rd_atomic: u8,
    /// The Q_Key of a datagram pair.
    pub(super) qkey: u32,
}

/// A value of `ibv_mtu`.
#[allow(non_camel_case_types, reason = "stands for the C type")]
type ibv_mtu_code = u32;

impl Attributes {
    /// Payload bytes of a packet.
    pub(super) fn mtu_bytes(&self) -> u64 {
        // Code 1 is 256 bytes, code 5 is 4096.
        128 << self.mtu.min(ibv_mtu::IBV_MTU_4096.0)
    }
}

/// The progress of the request at the head of the send queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flight {
    pub(super) phase: Phase,
    /// The sequence number of its first packet.
    pub(super) psn: u32,
    pub(super) packets: u32,
    pub(super) timeouts: u8,
    pub(super) not_ready: u8,
    /// `Some` if the responder has executed the request although its answer was lost. For an atomic it holds the old
    /// value.
    pub(super) executed: Option<u64>,
}

/// The progress of a request in flight.
#[derive(Clone, Copy, Debug)]
pub(super) enum Phase {
    /// The request is to be sent or retransmitted.
    Ready,
    /// The request was sent, and no answer has come back.
    AwaitingAnswer,
    /// The responder was not ready, so the request will be retransmitted later.
    AwaitingReceiver,
    /// The answer is on its way.
    Answered(crate::sys::ibv_wc_status),
}

/// A queue pair.
pub(super) struct Pair {
    pub(super) raw: Raw<ibv_qp>,
    pub(super) transport: Transport,
    pub(super) device: usize,
    pub(super) pd: usize,
    pub(super) send_cq: usize,
    pub(super) receive_cq: usize,
    pub(super) qpn: u32,
    /// Unique in the whole fabric. Creation and each reset of the pair begin a new epoch.
    pub(super) epoch: u64,
    pub(super) state: PairState,
    pub(super) attributes: Attributes,
    pub(super) cap: ibv_qp_cap,
    pub(super) signal_all: bool,
    pub(super) send: Queue<SendWork>,
    /// Always empty if the pair has a shared receive queue.
    pub(super) receive: Queue<ReceiveWork>,
    pub(super) srq: Option<usize>,
    pub(super) flight: Option<Flight>,
    /// The sequence number of the next packet to send.
    pub(super) next_psn: u32,
    /// The sequence number of the next packet to arrive.
    pub(super) expected_psn: u32,
    /// The number of the pair's current timer, 0 if it has none. When a timer with another number fires, it is ignored.
    pub(super) timer: u64,
    /// Whether the program asked for an event when the pair is drained.
    pub(super) notify_drained: bool,
    /// Whether a message has come since the pair entered Ready To Receive.
    pub(super) established: bool,
    /// How many multicast groups the pair is attached to.
    pub(super) groups: u32,
    /// Whether the pair is in the queue of runnable pairs.
    pub(super) scheduled: bool,
    /// Whether a fault withholds the pair's flush.
    pub(super) flush_withheld: bool,
    /// Payload of the answer to the request in flight. It is written when the completion of the request is polled.
    pub(super) late: Option<Box<Late>>,
    /// Whether the pair was moved to Reset from another state.
    pub(super) was_reset: bool,
    /// Whether a destroy of the pair failed, on a device where no verb may use the pair after that.
    pub(super) is_half_dead: bool,
    /// Vectors for inline data, kept for reuse.
    pub(super) spare: Vec<Vec<u8>>,
}

impl Pair {
    /// Whether the pair has work that can be done now.
    pub(super) fn runnable(&self) -> bool {
        let begun = matches!(self.flight, Some(Flight { phase: Phase::Ready | Phase::Answered(_), .. }));
        match self.state {
            PairState::Error => !self.flush_withheld && (!self.send.is_empty() || !self.receive.is_empty()),
            PairState::ReadyToSend => begun || self.flight.is_none() && !self.send.is_empty(),
            PairState::Drain => begun,
            PairState::SendError => !self.flush_withheld && !self.send.is_empty(),
            PairState::Reset | PairState::Init | PairState::ReadyToReceive => false,
        }
    }

    /// Whether the next message is the first of the connection, and so raises an event.
    pub(super) fn is_fresh(&self) -> bool {
        self.state == PairState::ReadyToReceive && !self.established
    }

    /// Whether the pair flushes the requests in its send queue.
    pub(super) fn flushes_sends(&self) -> bool {
        matches!(self.state, PairState::SendError | PairState::Error)
    }

    /// Whether the pair can enter Error.
    pub(super) fn can_break(&self) -> bool {
        !matches!(self.state, PairState::Reset | PairState::Error)
    }

    /// The slot of a request in a queue of this pair.
    pub(super) fn slot(&self, index: usize, side: Side, end: u64) -> Slot {
        Slot { side, owner: index, epoch: self.epoch, end }
    }

    pub(super) fn draining(&self) -> bool {
        self.state == PairState::Drain && self.flight.is_some()
    }

    fn query(&self) -> ibv_qp_attr {
        let state = self.state.raw();
        let Attributes { port, pkey_index, access, mtu, peer_qpn, ah, .. } = self.attributes;
        ibv_qp_attr {
            qp_state: state,
            cur_qp_state: state,
            path_mtu: ibv_mtu(mtu),
            qkey: self.attributes.qkey,
            en_sqd_async_notify: u8::from(self.notify_drained),
            rq_psn: self.expected_psn,
            sq_psn: self.next_psn,
            dest_qp_num: peer_qpn,
            qp_access_flags: access,
            cap: self.cap,
            ah_attr: ah,
            pkey_index,
            sq_draining: u8::from(self.draining()),
            max_rd_atomic: self.attributes.max_rd_atomic,
            max_dest_rd_atomic: self.attributes.max_dest_rd_atomic,
            min_rnr_timer: self.attributes.min_rnr_timer,
            port_num: port,
            timeout: self.attributes.timeout,
            retry_cnt: self.attributes.retry_count,
            rnr_retry: self.attributes.rnr_retry,
            ..ibv_qp_attr::default()
        }
    }
}

/// The attributes that a pair is created with.
pub(super) struct Creation {
    pub(super) transport: Transport,
    pub(super) srq: Option<usize>,
    pub(super) pd: usize,
    pub(super) send_cq: usize,
    pub(super) receive_cq: usize,
    pub(super) cap: ibv_qp_cap,
    pub(super) signal_all: bool,
}

impl State {
    /// Creates a pair in Reset. Returns its index and its number.
    pub(super) fn create_pair(&mut self, creation: Creation) -> Result<(usize, u32), c_int> {
        let Creation { transport, srq, pd, send_cq, receive_cq, cap, signal_all } = creation;
        let device = self.pds.get(pd).ok_or(libc::EINVAL)?.device;
        if self.cqs.get(send_cq).is_none() || self.cqs.get(receive_cq).is_none() {
            return Err(libc::EINVAL);
        }
        if srq.is_some_and(|srq| self.srqs.get(srq).is_none()) {
            return Err(libc::EINVAL);
        }
        let fits = cap.max_send_wr <= device::MAX_QP_WR
            && cap.max_recv_wr <= device::MAX_QP_WR
            && cap.max_send_sge <= device::MAX_SGE
            && cap.max_recv_sge <= device::MAX_SGE
            && cap.max_inline_data <= device::MAX_INLINE;
        if !fits {
            return Err(libc::EINVAL);
        }
        let epoch = self.next_epoch();
        let index = self.pairs.insert(Pair {
            raw: Raw::default(),
            transport,
            device,
            pd,
            send_cq,
            receive_cq,
            qpn: 0,
            epoch,
            state: PairState::Reset,
            attributes: Attributes::default(),
            cap,
            signal_all,
            send: Queue::new(cap.max_send_wr),
            receive: Queue::new(cap.max_recv_wr),
            srq,
            flight: None,
            next_psn: 0,
            expected_psn: 0,
            timer: 0,
            notify_drained: false,
            established: false,
            groups: 0,
            scheduled: false,
            flush_withheld: false,
            late: None,
            was_reset: false,
            is_half_dead: false,
            spare: Vec::new(),
        });
        let Some(qpn) = self.devices.get_mut(device).and_then(|device| device.take_qpn(index)) else {
            self.pairs.remove(index);
            return Err(libc::ENOMEM);
        };
        if let Some(pair) = self.pairs.get_mut(index) {
            pair.qpn = qpn;
        }
        for cq in [send_cq, receive_cq] {
            if let Some(cq) = self.cqs.get_mut(cq) {
                cq.users += 1;
            }
        }
        if let Some(srq) = srq.and_then(|srq| self.srqs.get_mut(srq)) {
            srq.users += 1;
        }
        self.adopt(pd)?;
        Ok((index, qpn))
    }

    /// Destroys a pair. Requests in its queues are dropped silently; its completions stay. Windows that only this pair
    /// can use are unbound.
    pub(super) fn destroy_pair(&mut self, index: usize) -> Result<(), c_int> {
        if self.pairs.get(index).ok_or(libc::EINVAL)?.groups > 0 {
            return Err(libc::EBUSY);
        }
        self.touch_pair(index);
        if self.latitudes.takes(|habits| habits.lame_destroys) {
            return Err(libc::EIO);
        }
        self.forget(Subject::Pair(index));
        self.regions.unbind_pair(index);
        self.leave_completions(index, false);
        let reuses_numbers = self.latitudes.habits.reuses;
        let pair = self.pairs.remove(index).ok_or(libc::EINVAL)?;
        if let Some(srq) = pair.srq.and_then(|srq| self.srqs.get_mut(srq)) {
            srq.users = srq.users.saturating_sub(1);
        }
        if let Some(device) = self.devices.get_mut(pair.device) {
            device.qpns.remove(&pair.qpn);
            if reuses_numbers {
                device.take_next(pair.qpn);
            }
        }
        for cq in [pair.send_cq, pair.receive_cq] {
            if let Some(cq) = self.cqs.get_mut(cq) {
                cq.users = cq.users.saturating_sub(1);
            }
        }
        self.release_pd(pair.pd);
        Ok(())
    }

    pub(super) fn query_pair(&self, index: usize, mask: Mask) -> Result<ibv_qp_attr, c_int> {
        if mask.0 >= Mask::IBV_QP_RATE_LIMIT.0 {
            return Err(libc::EOPNOTSUPP);
        }
        Ok(self.pairs.get(index).ok_or(libc::EINVAL)?.query())
    }

    /// Raises the event of a drained send queue, once, if the program asked for it.
    pub(super) fn tell_drained(&mut self, index: usize) {
        let Some(pair) = self.pairs.get_mut(index) else { return };
        if pair.notify_drained && pair.state == PairState::Drain && pair.flight.is_none() {
            pair.notify_drained = false;
            self.raise(ibv_event_type::IBV_EVENT_SQ_DRAINED, Subject::Pair(index));
        }
    }

    /// Moves the pair to Error. The request in flight ends here, and the others are flushed.
    pub(super) fn enter_error(&mut self, index: usize) {
        let withheld = self.faults.flush_withheld;
        // Do nothing if the pair is already in Error, or if it is in Reset: there is no transition from Reset to Error.
        let Some(pair) = self.pairs.get_mut(index).filter(|pair| pair.can_break()) else { return };
        pair.state = PairState::Error;
        pair.flight = None;
        pair.timer = 0;
        pair.flush_withheld = withheld || self.devices.get(pair.device).is_none_or(|device| device.removed);
        if pair.srq.is_some() {
            // The event says that the pair has used its last shared receive. Raise the event at once: a message takes a
            // shared receive only when the message is complete, so no shared receive is still in use by the pair.
            self.raise(ibv_event_type::IBV_EVENT_QP_LAST_WQE_REACHED, Subject::Pair(index));
        }
        self.schedule(index);
    }

    /// Called when a request has failed at its requester. Later requests are flushed. A pair of an unreliable transport
    /// still receives.
    pub(super) fn break_sending(&mut self, index: usize) {
        let withheld = self.faults.flush_withheld;
        let Some(pair) = self.pairs.get_mut(index) else { return };
        let sends = matches!(pair.state, PairState::ReadyToSend | PairState::Drain);
        if pair.transport == Transport::Reliable || !sends {
            self.enter_error(index);
            return;
        }
        pair.state = PairState::SendError;
        pair.flush_withheld = withheld;
        self.schedule(index);
    }
}

/// Packet numbers have 24 bits.
pub(super) const PSN_MASK: u32 = 0xff_ffff;
