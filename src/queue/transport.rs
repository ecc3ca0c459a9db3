//! Transports of a queue pair.

use crate::sys::ibv_qp_type;

mod sealed {
    #[allow(unnameable_types, reason = "seals `Transport`")]
    pub trait Sealed {
        const TYPE: crate::sys::ibv_qp_type;
    }
}

/// A transport. Sealed.
#[diagnostic::on_unimplemented(message = "`{Self}` is not a transport", note = "use `ReliableConnection`")]
#[doc(alias = "ibv_qp_type")]
pub trait Transport: sealed::Sealed + 'static {}

/// RC: one peer; every message arrives once and in order, or the pair breaks.
#[doc(alias = "IBV_QPT_RC")]
#[doc(alias = "RC")]
#[derive(Debug)]
pub enum ReliableConnection {}

impl sealed::Sealed for ReliableConnection {
    const TYPE: ibv_qp_type = ibv_qp_type::IBV_QPT_RC;
}
impl Transport for ReliableConnection {}

/// The number of a transport, for the device.
pub(crate) fn code<T: Transport>() -> ibv_qp_type {
    <T as sealed::Sealed>::TYPE
}
