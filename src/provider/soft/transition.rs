//! The states and transitions of a queue pair, and the attributes of each transition.
#![forbid(unsafe_code)]

use crate::sys::{ibv_qp_attr_mask as Mask, ibv_qp_state, ibv_qp_type};

/// The transport of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Transport {
    Reliable,
    Unreliable,
    Datagram,
}

impl Transport {
    pub(super) fn from_raw(raw: ibv_qp_type) -> Option<Self> {
        Some(match raw {
            ibv_qp_type::IBV_QPT_RC => Self::Reliable,
            ibv_qp_type::IBV_QPT_UC => Self::Unreliable,
            ibv_qp_type::IBV_QPT_UD => Self::Datagram,
            _ => return None,
        })
    }
}

/// The states of a queue pair; a reliable connection is never in `SendError`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PairState {
    Reset,
    Init,
    ReadyToReceive,
    ReadyToSend,
    Drain,
    SendError,
    Error,
}

impl PairState {
    pub(super) fn from_raw(raw: ibv_qp_state) -> Option<Self> {
        Some(match raw {
            ibv_qp_state::IBV_QPS_RESET => Self::Reset,
            ibv_qp_state::IBV_QPS_INIT => Self::Init,
            ibv_qp_state::IBV_QPS_RTR => Self::ReadyToReceive,
            ibv_qp_state::IBV_QPS_RTS => Self::ReadyToSend,
            ibv_qp_state::IBV_QPS_SQD => Self::Drain,
            ibv_qp_state::IBV_QPS_SQE => Self::SendError,
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
            Self::SendError => ibv_qp_state::IBV_QPS_SQE,
            Self::Error => ibv_qp_state::IBV_QPS_ERR,
        }
    }

    /// Whether the pair serves the requests of its peer.
    pub(super) fn responds(self) -> bool {
        matches!(self, Self::ReadyToReceive | Self::ReadyToSend | Self::Drain | Self::SendError)
    }

    /// Whether requests may be posted to the send queue, even if the pair only flushes them.
    pub(super) fn takes_sends(self) -> bool {
        matches!(self, Self::ReadyToSend | Self::Drain | Self::SendError | Self::Error)
    }
}

const NONE: Mask = Mask(0);

/// The required and the optional attributes of a transition, without the state itself. `None` if there is no such
/// transition.
pub(super) fn masks(transport: Transport, from: PairState, to: PairState) -> Option<(Mask, Mask)> {
    use PairState::{Drain, Error, Init, ReadyToReceive, ReadyToSend, Reset, SendError};
    let datagram = transport == Transport::Datagram;
    let rights = if datagram { Mask::IBV_QP_QKEY } else { Mask::IBV_QP_ACCESS_FLAGS };
    let init = Mask::IBV_QP_PKEY_INDEX | Mask::IBV_QP_PORT | rights;
    Some(match (from, to) {
        (_, Reset) | (Init | ReadyToReceive | ReadyToSend | Drain | SendError | Error, Error) => (NONE, NONE),
        (Reset, Init) => (init, NONE),
        (Init, Init) => (NONE, init),
        (Init, ReadyToReceive) => to_receive(transport),
        (ReadyToReceive, ReadyToSend) => (to_send(transport), running(transport)),
        (ReadyToSend | Drain, ReadyToSend) => (NONE, running(transport)),
        (ReadyToSend, Drain) => (NONE, Mask::IBV_QP_EN_SQD_ASYNC_NOTIFY),
        (Drain, Drain) => (NONE, drained(transport)),
        (SendError, ReadyToSend) if transport != Transport::Reliable => (NONE, Mask::IBV_QP_CUR_STATE | rights),
        _ => return None,
    })
}

fn to_receive(transport: Transport) -> (Mask, Mask) {
    let path = Mask::IBV_QP_AV | Mask::IBV_QP_PATH_MTU | Mask::IBV_QP_DEST_QPN | Mask::IBV_QP_RQ_PSN;
    let optional = Mask::IBV_QP_ALT_PATH | Mask::IBV_QP_ACCESS_FLAGS | Mask::IBV_QP_PKEY_INDEX;
    match transport {
        Transport::Reliable => (path | Mask::IBV_QP_MAX_DEST_RD_ATOMIC | Mask::IBV_QP_MIN_RNR_TIMER, optional),
        Transport::Unreliable => (path, optional),
        Transport::Datagram => (NONE, Mask::IBV_QP_PKEY_INDEX | Mask::IBV_QP_QKEY),
    }
}

fn to_send(transport: Transport) -> Mask {
    match transport {
        Transport::Reliable => {
            Mask::IBV_QP_SQ_PSN
                | Mask::IBV_QP_TIMEOUT
                | Mask::IBV_QP_RETRY_CNT
                | Mask::IBV_QP_RNR_RETRY
                | Mask::IBV_QP_MAX_QP_RD_ATOMIC
        }
        Transport::Unreliable | Transport::Datagram => Mask::IBV_QP_SQ_PSN,
    }
}

/// The attributes that can be changed in Ready To Send, and in the transition to it.
fn running(transport: Transport) -> Mask {
    let connected =
        Mask::IBV_QP_CUR_STATE | Mask::IBV_QP_ALT_PATH | Mask::IBV_QP_ACCESS_FLAGS | Mask::IBV_QP_PATH_MIG_STATE;
    match transport {
        Transport::Reliable => connected | Mask::IBV_QP_MIN_RNR_TIMER,
        Transport::Unreliable => connected,
        Transport::Datagram => Mask::IBV_QP_CUR_STATE | Mask::IBV_QP_QKEY,
    }
}

/// The attributes that can be changed in Send Queue Drain.
fn drained(transport: Transport) -> Mask {
    let connected = Mask::IBV_QP_AV
        | Mask::IBV_QP_ALT_PATH
        | Mask::IBV_QP_ACCESS_FLAGS
        | Mask::IBV_QP_PKEY_INDEX
        | Mask::IBV_QP_PATH_MIG_STATE;
    match transport {
        Transport::Reliable => {
            connected
                | Mask::IBV_QP_PORT
                | Mask::IBV_QP_TIMEOUT
                | Mask::IBV_QP_RETRY_CNT
                | Mask::IBV_QP_RNR_RETRY
                | Mask::IBV_QP_MAX_QP_RD_ATOMIC
                | Mask::IBV_QP_MAX_DEST_RD_ATOMIC
                | Mask::IBV_QP_MIN_RNR_TIMER
        }
        Transport::Unreliable => connected,
        Transport::Datagram => Mask::IBV_QP_PKEY_INDEX | Mask::IBV_QP_QKEY,
    }
}
