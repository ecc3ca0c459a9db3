//! The attributes that rdma_cm gives for the transitions of a queue pair, up to Ready To Send.
#![forbid(unsafe_code)]

use super::{HeldPair, Id, Link, Phase};
use crate::provider::cm::PortSpace;
use crate::provider::soft::{device, fabric::State};
use crate::sys::{ibv_ah_attr, ibv_gid, ibv_global_route, ibv_qp_attr, ibv_qp_attr_mask as Mask, ibv_qp_state};
use libc::c_int;

/// The queue key of datagrams, unless a program chooses one: `RDMA_UDP_QKEY`.
pub(super) const DEFAULT_QKEY: u32 = 0x0123_4567;
/// The exponent of the acknowledgement timeout: 4.096 us * 2^17.
const ACK_TIMEOUT: u8 = 17;
/// The most routers that a packet may pass.
const HOP_LIMIT: u8 = 64;
/// The rights of the peer: writes, reads, atomics and the two kinds of flush.
const REMOTE_ACCESS: u32 = 0x30e;

/// The path to a GID.
pub(super) fn path(gid: [u8; 16], traffic_class: u8) -> ibv_ah_attr {
    let dgid = ibv_gid { raw: gid };
    let grh = ibv_global_route {
        dgid,
        sgid_index: super::address::GID_ROW,
        hop_limit: HOP_LIMIT,
        traffic_class,
        ..Default::default()
    };
    ibv_ah_attr { grh, is_global: 1, port_num: device::PORT, ..Default::default() }
}

impl State {
    /// `rdma_init_qp_attr`.
    pub(super) fn cm_attributes(&mut self, number: u64, to: ibv_qp_state) -> Result<(ibv_qp_attr, Mask), c_int> {
        let is_iwarp = self.is_iwarp();
        let id = self.cm.id(number)?;
        let known = [ibv_qp_state::IBV_QPS_INIT, ibv_qp_state::IBV_QPS_RTR, ibv_qp_state::IBV_QPS_RTS];
        if id.device.is_none() || !known.contains(&to) {
            return Err(libc::EINVAL);
        }
        let base = ibv_qp_attr { qp_state: to, port_num: device::PORT, ..Default::default() };
        let to_init = Mask::IBV_QP_STATE | Mask::IBV_QP_PKEY_INDEX | Mask::IBV_QP_PORT;
        use Phase::{
            Accepted, AddressResolved, Bound, Connected, Connecting, Requested, ResolvingAddress, ResolvingRoute,
            Responded, RouteResolved,
        };
        let is_init = to == ibv_qp_state::IBV_QPS_INIT;
        match id.phase {
            // For datagrams, Linux gives the attributes of the transition to Init, whatever state is requested.
            Bound | ResolvingAddress | AddressResolved | ResolvingRoute | RouteResolved | Connecting | Connected
            | Requested | Accepted
                if id.space == PortSpace::Udp =>
            {
                Ok((ibv_qp_attr { qkey: DEFAULT_QKEY, ..base }, to_init | Mask::IBV_QP_QKEY))
            }
            Bound | ResolvingAddress | AddressResolved | ResolvingRoute | RouteResolved => {
                Ok((base, to_init | Mask::IBV_QP_ACCESS_FLAGS))
            }
            Connecting | Responded | Requested | Accepted | Connected if is_iwarp => {
                let mask = if is_init { Mask::IBV_QP_STATE | Mask::IBV_QP_ACCESS_FLAGS } else { Mask(0) };
                Ok((ibv_qp_attr { qp_access_flags: REMOTE_ACCESS, ..base }, mask))
            }
            Connecting | Responded | Requested | Accepted | Connected if is_init => {
                let attributes = ibv_qp_attr { qp_access_flags: REMOTE_ACCESS, ..base };
                Ok((attributes, to_init | Mask::IBV_QP_ACCESS_FLAGS))
            }
            Responded | Requested | Accepted | Connected => {
                let link = id.link.ok_or(libc::EINVAL)?;
                Ok(if to == ibv_qp_state::IBV_QPS_RTR { id.to_receive(&link, base) } else { id.to_send(&link, base) })
            }
            _ => Err(libc::EINVAL),
        }
    }

    /// Moves the pair of an identifier to Ready To Send, as the device does on iWARP.
    pub(super) fn cm_raise_pair(&mut self, number: u64) -> Result<(), c_int> {
        let (pair, _) = self.cm_hold_pair(number)?;
        let id = self.cm.id(number)?;
        let mut link = id.link.ok_or(libc::EINVAL)?;
        link.serves = link.serves.min(id.own.serves);
        link.starts = link.starts.min(id.own.starts);
        let at = |state| ibv_qp_attr { qp_state: state, ..Default::default() };
        let (to_rtr, rtr) = id.to_receive(&link, at(ibv_qp_state::IBV_QPS_RTR));
        let (to_rts, rts) = id.to_send(&link, at(ibv_qp_state::IBV_QPS_RTS));
        self.modify_pair(pair, &to_rtr, rtr)?;
        self.modify_pair(pair, &to_rts, rts)?;
        Ok(())
    }

    /// Notes in the identifier which pair it connects, and returns that pair.
    pub(super) fn cm_hold_pair(&mut self, number: u64) -> Result<HeldPair, c_int> {
        let id = self.cm.id(number)?;
        let device = self.devices.get(id.device.ok_or(libc::EINVAL)?).ok_or(libc::EINVAL)?;
        let pair = *device.qpns.get(&id.own.queue_pair).ok_or(libc::EINVAL)?;
        let held = (pair, self.pairs.get(pair).ok_or(libc::EINVAL)?.epoch);
        self.cm.id_mut(number)?.pair = Some(held);
        Ok(held)
    }

    /// Moves the pair of an identifier to Error, as an iWARP device does when the stream ends.
    pub(super) fn cm_break_pair(&mut self, number: u64) {
        if let Some(held) = self.cm.ids.get_mut(&number).and_then(|id| id.pair.take()) {
            self.cm_break(held);
        }
    }

    pub(super) fn cm_break(&mut self, (pair, epoch): HeldPair) {
        // The program may have destroyed the pair, and a new pair may have the same index. The epochs differ then, and
        // the new pair is left alone.
        if self.pairs.get(pair).is_some_and(|pair| pair.epoch == epoch) {
            self.enter_error(pair);
        }
    }
}

impl Id {
    fn to_receive(&self, link: &Link, base: ibv_qp_attr) -> (ibv_qp_attr, Mask) {
        let mask = Mask::IBV_QP_STATE
            | Mask::IBV_QP_AV
            | Mask::IBV_QP_PATH_MTU
            | Mask::IBV_QP_RQ_PSN
            | Mask::IBV_QP_MIN_RNR_TIMER
            | Mask::IBV_QP_MAX_DEST_RD_ATOMIC
            | Mask::IBV_QP_DEST_QPN;
        let attributes = ibv_qp_attr {
            ah_attr: path(link.gid, self.type_of_service),
            path_mtu: device::ACTIVE_MTU,
            rq_psn: link.psn,
            dest_qp_num: link.queue_pair,
            max_dest_rd_atomic: link.serves,
            min_rnr_timer: 0,
            ..base
        };
        (attributes, mask)
    }

    fn to_send(&self, link: &Link, base: ibv_qp_attr) -> (ibv_qp_attr, Mask) {
        let mask = Mask::IBV_QP_STATE
            | Mask::IBV_QP_TIMEOUT
            | Mask::IBV_QP_RETRY_CNT
            | Mask::IBV_QP_RNR_RETRY
            | Mask::IBV_QP_MAX_QP_RD_ATOMIC
            | Mask::IBV_QP_SQ_PSN;
        let attributes = ibv_qp_attr {
            timeout: self.ack_timeout.unwrap_or(ACK_TIMEOUT),
            retry_cnt: link.retry_count,
            rnr_retry: link.rnr_retry_count,
            max_rd_atomic: link.starts,
            sq_psn: self.own.psn,
            ..base
        };
        (attributes, mask)
    }
}
