//! Changing a queue pair: everything is checked before anything is changed.
#![forbid(unsafe_code)]

use super::{
    device,
    fabric::State,
    pair::{Attributes, PSN_MASK, Pair},
    transition::{PairState, masks},
};
use crate::sys::{ibv_mtu, ibv_qp_attr, ibv_qp_attr_mask as Mask, ibv_qp_state};
use libc::c_int;

/// Queue pair numbers have 24 bits.
const QPN_MASK: u32 = 0xff_ffff;
/// The `ibv_access_flags` that a queue pair may have.
const KNOWN_ACCESS: u32 = 0x1f;

impl State {
    /// Checks everything, then changes attributes and state. Returns the new state.
    pub(super) fn modify_pair(&mut self, index: usize, new: &ibv_qp_attr, mask: Mask) -> Result<ibv_qp_state, c_int> {
        self.touch_pair(index);
        let pair = self.pairs.get(index).ok_or(libc::EINVAL)?;
        let from = pair.state;
        let has = |bit: Mask| (mask & bit).0 != 0;
        let to = if has(Mask::IBV_QP_STATE) { PairState::from_raw(new.qp_state).ok_or(libc::EINVAL)? } else { from };
        if has(Mask::IBV_QP_CUR_STATE) && PairState::from_raw(new.cur_qp_state) != Some(from) {
            return Err(libc::EINVAL);
        }
        let (required, optional) = masks(pair.transport, from, to).ok_or(libc::EINVAL)?;
        let allowed = required | optional | Mask::IBV_QP_STATE;
        if (mask & required) != required || mask.0 & !allowed.0 != 0 {
            return Err(libc::EINVAL);
        }
        if pair.draining() && to == PairState::ReadyToSend {
            return Err(libc::EINVAL);
        }
        let attributes = self.checked(pair, new, mask)?;
        if to == PairState::Error && self.latitudes.takes(|habits| habits.refuses_moves) {
            return Err(libc::ENOMEM);
        }
        let pair = self.pairs.get(index).ok_or(libc::EINVAL)?;
        let is_used_again = match (from, to) {
            (PairState::Reset, PairState::Init) => pair.was_reset,
            (PairState::SendError, PairState::ReadyToSend) => true,
            _ => false,
        };
        if is_used_again && !self.latitudes.row.pairs_can_be_reset {
            self.latitudes.violate(format!("pair {:#x} is used again", pair.qpn));
        }

        // On a transition from `SendError` to `ReadyToSend`, flush all requests that are still in the send queue. They
        // must not run when sending starts again.
        if from == PairState::SendError && to == PairState::ReadyToSend {
            while self.flush_send(index) {}
        }
        if to == PairState::Reset {
            self.leave_completions(index, true);
        }
        let epoch = if to == PairState::Reset { self.next_epoch() } else { 0 };
        let forgets = self.latitudes.habits.forgets_in_error;
        let pair = self.pairs.get_mut(index).ok_or(libc::EINVAL)?;
        pair.attributes = attributes;
        if has(Mask::IBV_QP_RQ_PSN) {
            pair.expected_psn = new.rq_psn & PSN_MASK;
        }
        if has(Mask::IBV_QP_SQ_PSN) {
            pair.next_psn = new.sq_psn & PSN_MASK;
        }
        if from == PairState::ReadyToSend && to == PairState::Drain {
            pair.notify_drained = has(Mask::IBV_QP_EN_SQD_ASYNC_NOTIFY) && new.en_sqd_async_notify != 0;
        }
        if to != PairState::Error && to != from {
            pair.flush_withheld = false;
        }
        match to {
            PairState::Reset => {
                pair.epoch = epoch;
                pair.was_reset |= from != PairState::Reset;
                pair.state = PairState::Reset;
                pair.attributes = Attributes::default();
                pair.send.reset();
                pair.receive.reset();
                pair.flight = None;
                pair.late = None;
                pair.timer = 0;
                pair.next_psn = 0;
                pair.expected_psn = 0;
                pair.notify_drained = false;
                pair.established = false;
            }
            // If a fault has withheld the flush of a pair in Error, moving the pair to Error again lets it flush. With
            // the habit `forgets_in_error`, moving it again does nothing: `enter_error` ignores a pair in Error.
            PairState::Error if from == PairState::Error && !forgets => pair.flush_withheld = false,
            PairState::Error => self.enter_error(index),
            _ => pair.state = to,
        }
        self.tell_drained(index);
        self.schedule(index);
        Ok(to.raw())
    }

    /// The attributes of `pair`, with those in `mask` taken from `new`. `Err` if a new one is out of range.
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
            a.peer_gid = ah.grh.dgid.bytes();
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
        if has(Mask::IBV_QP_QKEY) {
            a.qkey = new.qkey;
        }
        // This device has no alternate paths, so there is nothing to migrate to.
        if has(Mask::IBV_QP_ALT_PATH) || has(Mask::IBV_QP_PATH_MIG_STATE) {
            return Err(libc::EOPNOTSUPP);
        }
        Ok(a)
    }
}
