//! The state machine of a queue pair.
//!
//! Only the reliable connection exists. Another transport brings its own rows to [`masks`], its own receiving side in
//! `engine`, and its own places in `work`.
#![allow(unsafe_code, reason = "a union of the C interface")]

use super::{
    device::{self, raw_gid},
    fabric::State,
    objects::Table,
    work::{Queue, ReceiveWork, SendWork},
};
use crate::sys::{ibv_ah_attr, ibv_mtu, ibv_qp_attr, ibv_qp_attr_mask as Mask, ibv_qp_cap, ibv_qp_state};
use libc::c_int;

/// Queue pairs.
pub(super) type Pairs = Table<Pair>;

/// The states that this device has; SQE is none of a reliable connection's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PairState {
    Reset,
    Init,
    ReadyToReceive,
    ReadyToSend,
    Drain,
    Error,
}

impl PairState {
    fn from_raw(raw: ibv_qp_state) -> Option<Self> {
        Some(match raw {
            ibv_qp_state::IBV_QPS_RESET => Self::Reset,
            ibv_qp_state::IBV_QPS_INIT => Self::Init,
            ibv_qp_state::IBV_QPS_RTR => Self::ReadyToReceive,
            ibv_qp_state::IBV_QPS_RTS => Self::ReadyToSend,
            ibv_qp_state::IBV_QPS_SQD => Self::Drain,
            ibv_qp_state::IBV_QPS_ERR => Self::Error,
            _ => return None,
        })
    }

    pub(super) fn raw(self) -> ibv_qp_state {
        match self {
            Self::Reset => ibv_qp_state::IBV_QPS_RESET,
            Self::Init => ibv_qp_state::IBV_QPS_INIT,
            Self::ReadyToReceive => ibv_qp_state::IBV_QPS_RTR,
            Self::ReadyToSend => ibv_qp_state::IBV_QPS_RTS,
            Self::Drain => ibv_qp_state::IBV_QPS_SQD,
            Self::Error => ibv_qp_state::IBV_QPS_ERR,
        }
    }

    /// Whether what a peer sends is served.
    pub(super) fn responds(self) -> bool {
        matches!(self, Self::ReadyToReceive | Self::ReadyToSend | Self::Drain)
    }
}

/// Required and optional attributes of a transition, beside the state itself; `None` if there is no such transition.
fn masks(from: PairState, to: PairState) -> Option<(Mask, Mask)> {
    use PairState::{Drain, Error, Init, ReadyToReceive, ReadyToSend, Reset};
    const NONE: Mask = Mask(0);
    let running = Mask::IBV_QP_CUR_STATE
        | Mask::IBV_QP_ALT_PATH
        | Mask::IBV_QP_ACCESS_FLAGS
        | Mask::IBV_QP_MIN_RNR_TIMER
        | Mask::IBV_QP_PATH_MIG_STATE;
    let init = Mask::IBV_QP_PKEY_INDEX | Mask::IBV_QP_PORT | Mask::IBV_QP_ACCESS_FLAGS;
    Some(match (from, to) {
        (_, Reset) | (Init | ReadyToReceive | ReadyToSend | Drain | Error, Error) => (NONE, NONE),
        (Reset, Init) => (init, NONE),
        (Init, Init) => (NONE, init),
        (Init, ReadyToReceive) => (
            Mask::IBV_QP_AV
                | Mask::IBV_QP_PATH_MTU
                | Mask::IBV_QP_DEST_QPN
                | Mask::IBV_QP_RQ_PSN
                | Mask::IBV_QP_MAX_DEST_RD_ATOMIC
                | Mask::IBV_QP_MIN_RNR_TIMER,
            Mask::IBV_QP_ALT_PATH | Mask::IBV_QP_ACCESS_FLAGS | Mask::IBV_QP_PKEY_INDEX,
        ),
        (ReadyToReceive, ReadyToSend) => (
            Mask::IBV_QP_SQ_PSN
                | Mask::IBV_QP_TIMEOUT
                | Mask::IBV_QP_RETRY_CNT
                | Mask::IBV_QP_RNR_RETRY
                | Mask::IBV_QP_MAX_QP_RD_ATOMIC,
            running,
        ),
        (ReadyToSend | Drain, ReadyToSend) => (NONE, running),
        (ReadyToSend, Drain) => (NONE, Mask::IBV_QP_EN_SQD_ASYNC_NOTIFY),
        (Drain, Drain) => (
            NONE,
            Mask::IBV_QP_PORT
                | Mask::IBV_QP_AV
                | Mask::IBV_QP_TIMEOUT
                | Mask::IBV_QP_RETRY_CNT
                | Mask::IBV_QP_RNR_RETRY
                | Mask::IBV_QP_MAX_QP_RD_ATOMIC
                | Mask::IBV_QP_MAX_DEST_RD_ATOMIC
                | Mask::IBV_QP_ALT_PATH
                | Mask::IBV_QP_ACCESS_FLAGS
                | Mask::IBV_QP_PKEY_INDEX
                | Mask::IBV_QP_MIN_RNR_TIMER
                | Mask::IBV_QP_PATH_MIG_STATE,
        ),
        _ => return None,
    })
}

/// What modify sets.
#[derive(Clone, Copy, Default)]
pub(super) struct Attributes {
    pub(super) port: u8,
    pkey_index: u16,
    pub(super) access: u32,
    mtu: ibv_mtu_code,
    pub(super) peer_qpn: u32,
    ah: ibv_ah_attr,
    /// The GID of row `ah.grh.sgid_index`.
    pub(super) gid: [u8; 16],
    pub(super) peer_gid: [u8; 16],
    pub(super) max_dest_rd_atomic: u8,
    pub(super) min_rnr_timer: u8,
    pub(super) timeout: u8,
    pub(super) retry_count: u8,
    pub(super) rnr_retry: u8,
    pub(super) max_rd_atomic: u8,
}

/// A value of `ibv_mtu`.
#[allow(non_camel_case_types, reason = "stands for the C type")]
type ibv_mtu_code = u32;

impl Attributes {
    /// Payload bytes of a packet.
    pub(super) fn mtu_bytes(&self) -> u64 {
        // 1 is 256 bytes, 5 is 4096.
        128 << self.mtu.min(ibv_mtu::IBV_MTU_4096.0)
    }
}

/// The request at the head of the send queue, once it has been begun.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flight {
    pub(super) phase: Phase,
    /// Of its first packet.
    pub(super) psn: u32,
    pub(super) packets: u32,
    pub(super) timeouts: u8,
    pub(super) not_ready: u8,
    /// The responder has executed it, though the answer was lost; for an atomic, what was there before.
    pub(super) executed: Option<u64>,
}

/// Where a request in flight is.
#[derive(Clone, Copy, Debug)]
pub(super) enum Phase {
    /// To be sent, for the first time or again.
    Ready,
    /// Sent; nothing has come back.
    AwaitingAnswer,
    /// Told to come again later.
    AwaitingReceiver,
    /// The answer is on its way.
    Answered(crate::sys::ibv_wc_status),
}

/// A queue pair.
pub(super) struct Pair {
    pub(super) device: usize,
    pub(super) pd: usize,
    pub(super) send_cq: usize,
    pub(super) receive_cq: usize,
    pub(super) qpn: u32,
    /// Unique in the fabric to this life: a new one at each reset.
    pub(super) epoch: u64,
    pub(super) state: PairState,
    pub(super) attributes: Attributes,
    pub(super) cap: ibv_qp_cap,
    pub(super) signal_all: bool,
    pub(super) send: Queue<SendWork>,
    pub(super) receive: Queue<ReceiveWork>,
    pub(super) flight: Option<Flight>,
    /// Of the next packet to send.
    pub(super) next_psn: u32,
    /// Of the next packet to arrive.
    pub(super) expected_psn: u32,
    /// The timer that counts; an older one that fires is ignored. 0: none.
    pub(super) timer: u64,
    /// In the queue of runnable pairs.
    pub(super) scheduled: bool,
    /// A fault keeps the flush back.
    pub(super) flush_withheld: bool,
    /// Buffers for inline data, used again.
    pub(super) spare: Vec<Vec<u8>>,
}

impl Pair {
    /// Whether there is something to do for it now.
    pub(super) fn runnable(&self) -> bool {
        let begun = matches!(self.flight, Some(Flight { phase: Phase::Ready | Phase::Answered(_), .. }));
        match self.state {
            PairState::Error => !self.flush_withheld && (!self.send.is_empty() || !self.receive.is_empty()),
            PairState::ReadyToSend => begun || self.flight.is_none() && !self.send.is_empty(),
            PairState::Drain => begun,
            PairState::Reset | PairState::Init | PairState::ReadyToReceive => false,
        }
    }

    fn draining(&self) -> bool {
        self.state == PairState::Drain && self.flight.is_some()
    }

    fn query(&self) -> ibv_qp_attr {
        let state = self.state.raw();
        let Attributes { port, pkey_index, access, mtu, peer_qpn, ah, .. } = self.attributes;
        ibv_qp_attr {
            qp_state: state,
            cur_qp_state: state,
            path_mtu: ibv_mtu(mtu),
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

/// What creates a pair.
pub(super) struct Creation {
    pub(super) pd: usize,
    pub(super) send_cq: usize,
    pub(super) receive_cq: usize,
    pub(super) cap: ibv_qp_cap,
    pub(super) signal_all: bool,
}

impl State {
    /// Creates a pair in Reset, with the sizes that were asked for: its index and number.
    pub(super) fn create_pair(&mut self, creation: Creation) -> Result<(usize, u32), c_int> {
        let Creation { pd, send_cq, receive_cq, cap, signal_all } = creation;
        let device = self.pds.get(pd).ok_or(libc::EINVAL)?.device;
        if self.cqs.get(send_cq).is_none() || self.cqs.get(receive_cq).is_none() {
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
            flight: None,
            next_psn: 0,
            expected_psn: 0,
            timer: 0,
            scheduled: false,
            flush_withheld: false,
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
        if let Some(pd) = self.pds.get_mut(pd) {
            pd.children += 1;
        }
        Ok((index, qpn))
    }

    /// Ends a pair; what it had in its queues is dropped without a word, its old completions stay.
    pub(super) fn destroy_pair(&mut self, index: usize) -> Result<(), c_int> {
        let pair = self.pairs.remove(index).ok_or(libc::EINVAL)?;
        if let Some(device) = self.devices.get_mut(pair.device) {
            device.qpns.remove(&pair.qpn);
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

    /// Checks everything, then changes attributes and state; the state that the pair is in then.
    pub(super) fn modify_pair(&mut self, index: usize, new: &ibv_qp_attr, mask: Mask) -> Result<ibv_qp_state, c_int> {
        let pair = self.pairs.get(index).ok_or(libc::EINVAL)?;
        let from = pair.state;
        let has = |bit: Mask| (mask & bit).0 != 0;
        let to = if has(Mask::IBV_QP_STATE) { PairState::from_raw(new.qp_state).ok_or(libc::EINVAL)? } else { from };
        if has(Mask::IBV_QP_CUR_STATE) && PairState::from_raw(new.cur_qp_state) != Some(from) {
            return Err(libc::EINVAL);
        }
        let (required, optional) = masks(from, to).ok_or(libc::EINVAL)?;
        let allowed = required | optional | Mask::IBV_QP_STATE;
        if (mask & required) != required || mask.0 & !allowed.0 != 0 {
            return Err(libc::EINVAL);
        }
        if pair.draining() && to == PairState::ReadyToSend {
            return Err(libc::EINVAL);
        }
        let attributes = self.checked(pair, new, mask)?;

        let epoch = if to == PairState::Reset { self.next_epoch() } else { 0 };
        let pair = self.pairs.get_mut(index).ok_or(libc::EINVAL)?;
        pair.attributes = attributes;
        if has(Mask::IBV_QP_RQ_PSN) {
            pair.expected_psn = new.rq_psn & PSN_MASK;
        }
        if has(Mask::IBV_QP_SQ_PSN) {
            pair.next_psn = new.sq_psn & PSN_MASK;
        }
        match to {
            PairState::Reset => {
                pair.epoch = epoch;
                pair.state = PairState::Reset;
                pair.attributes = Attributes::default();
                pair.send.reset();
                pair.receive.reset();
                pair.flight = None;
                pair.timer = 0;
                pair.next_psn = 0;
                pair.expected_psn = 0;
                pair.flush_withheld = false;
            }
            // Entered again, it flushes what a fault kept back.
            PairState::Error if from == PairState::Error => pair.flush_withheld = false,
            PairState::Error => self.enter_error(index),
            _ => pair.state = to,
        }
        self.schedule(index);
        Ok(to.raw())
    }

    /// The attributes of `pair` with those of `new` that `mask` names, each within its range.
    fn checked(&self, pair: &Pair, new: &ibv_qp_attr, mask: Mask) -> Result<Attributes, c_int> {
        let has = |bit: Mask| (mask & bit).0 != 0;
        let ensure = |fine: bool| if fine { Ok(()) } else { Err(libc::EINVAL) };
        let mut a = pair.attributes;
        if has(Mask::IBV_QP_PORT) {
            ensure(new.port_num == device::PORT)?;
            a.port = new.port_num;
        }
        if has(Mask::IBV_QP_PKEY_INDEX) {
            ensure(new.pkey_index == 0)?;
            a.pkey_index = new.pkey_index;
        }
        if has(Mask::IBV_QP_ACCESS_FLAGS) {
            ensure(new.qp_access_flags & !KNOWN_ACCESS == 0)?;
            a.access = new.qp_access_flags;
        }
        if has(Mask::IBV_QP_AV) {
            let ah = new.ah_attr;
            ensure(ah.is_global != 0 && ah.port_num == a.port)?;
            let device = self.devices.get(pair.device).ok_or(libc::EINVAL)?;
            a.gid = device.gid(ah.grh.sgid_index).ok_or(libc::ENODATA)?;
            a.peer_gid = raw_gid(&ah.grh.dgid);
            a.ah = ah;
        }
        if has(Mask::IBV_QP_PATH_MTU) {
            ensure((ibv_mtu::IBV_MTU_256.0..=device::ACTIVE_MTU.0).contains(&new.path_mtu.0))?;
            a.mtu = new.path_mtu.0;
        }
        if has(Mask::IBV_QP_DEST_QPN) {
            ensure(new.dest_qp_num <= QPN_MASK)?;
            a.peer_qpn = new.dest_qp_num;
        }
        if has(Mask::IBV_QP_MAX_DEST_RD_ATOMIC) {
            ensure(new.max_dest_rd_atomic <= device::MAX_RD_ATOMIC)?;
            a.max_dest_rd_atomic = new.max_dest_rd_atomic;
        }
        if has(Mask::IBV_QP_MAX_QP_RD_ATOMIC) {
            ensure(new.max_rd_atomic <= device::MAX_RD_ATOMIC)?;
            a.max_rd_atomic = new.max_rd_atomic;
        }
        if has(Mask::IBV_QP_MIN_RNR_TIMER) {
            ensure(new.min_rnr_timer <= 31)?;
            a.min_rnr_timer = new.min_rnr_timer;
        }
        if has(Mask::IBV_QP_TIMEOUT) {
            ensure(new.timeout <= 31)?;
            a.timeout = new.timeout;
        }
        if has(Mask::IBV_QP_RETRY_CNT) {
            ensure(new.retry_cnt <= 7)?;
            a.retry_count = new.retry_cnt;
        }
        if has(Mask::IBV_QP_RNR_RETRY) {
            ensure(new.rnr_retry <= 7)?;
            a.rnr_retry = new.rnr_retry;
        }
        // There is one path and nothing to migrate to.
        if has(Mask::IBV_QP_ALT_PATH) || has(Mask::IBV_QP_PATH_MIG_STATE) {
            return Err(libc::EOPNOTSUPP);
        }
        Ok(a)
    }

    /// The pair is broken, or told to be: what it has begun ends here, the rest is flushed.
    pub(super) fn enter_error(&mut self, index: usize) {
        let withheld = self.faults.flush_withheld;
        let Some(pair) = self.pairs.get_mut(index) else { return };
        // From Reset there is no way to Error.
        if matches!(pair.state, PairState::Reset | PairState::Error) {
            return;
        }
        pair.state = PairState::Error;
        pair.flight = None;
        pair.timer = 0;
        pair.flush_withheld = withheld || self.devices.get(pair.device).is_none_or(|device| device.removed);
        self.schedule(index);
    }
}

/// Packet numbers have 24 bits.
pub(super) const PSN_MASK: u32 = 0xff_ffff;
/// So have queue pair numbers.
const QPN_MASK: u32 = 0xff_ffff;
/// `ibv_access_flags` that mean something, or at least nothing wrong, in a queue pair.
const KNOWN_ACCESS: u32 = 0x1f;
