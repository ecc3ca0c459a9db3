//! On-demand paging: which requests a device can serve from memory that is not pinned.

use super::Context;
use crate::sys;
use crate::verb_error::VerbError;
use std::fmt;

/// Which operations of which transports a device can do on memory registered as [`OnDemand`](crate::access::OnDemand).
#[derive(Clone, Copy)]
#[doc(alias = "ibv_odp_caps")]
pub struct OnDemandPaging(pub(crate) sys::ibv_odp_caps);

/// An operation on memory that is paged in on demand.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
#[doc(alias = "ibv_odp_transport_cap_bits")]
pub enum PagedOperation {
    /// Sends, which read the memory.
    #[doc(alias = "IBV_ODP_SUPPORT_SEND")]
    Send,
    /// Receives, which write the memory.
    #[doc(alias = "IBV_ODP_SUPPORT_RECV")]
    Receive,
    /// Writes, on both sides.
    #[doc(alias = "IBV_ODP_SUPPORT_WRITE")]
    Write,
    /// Reads, on both sides.
    #[doc(alias = "IBV_ODP_SUPPORT_READ")]
    Read,
    /// Atomics, on both sides.
    #[doc(alias = "IBV_ODP_SUPPORT_ATOMIC")]
    Atomic,
    /// Receives of a shared receive queue.
    #[doc(alias = "IBV_ODP_SUPPORT_SRQ_RECV")]
    SharedReceive,
}

impl PagedOperation {
    /// `ibv_odp_transport_cap_bits`.
    fn bit(self) -> u32 {
        match self {
            Self::Send => 1 << 0,
            Self::Receive => 1 << 1,
            Self::Write => 1 << 2,
            Self::Read => 1 << 3,
            Self::Atomic => 1 << 4,
            Self::SharedReceive => 1 << 5,
        }
    }
}

impl OnDemandPaging {
    /// Whether the device has on-demand paging, so that memory can be registered as
    /// [`OnDemand`](crate::access::OnDemand).
    #[doc(alias = "IBV_ODP_SUPPORT")]
    pub fn is_there(&self) -> bool {
        self.0.general_caps & 1 != 0
    }

    /// Whether reliable connections can do `operation` on such memory.
    pub fn reliable_connection(&self, operation: PagedOperation) -> bool {
        self.0.per_transport_caps.rc_odp_caps & operation.bit() != 0
    }

    /// Whether unreliable connections can do `operation` on such memory.
    pub fn unreliable_connection(&self, operation: PagedOperation) -> bool {
        self.0.per_transport_caps.uc_odp_caps & operation.bit() != 0
    }

    /// Whether datagram pairs can do `operation` on such memory.
    pub fn unreliable_datagram(&self, operation: PagedOperation) -> bool {
        self.0.per_transport_caps.ud_odp_caps & operation.bit() != 0
    }
}

impl fmt::Debug for OnDemandPaging {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let caps = &self.0.per_transport_caps;
        f.debug_struct("OnDemandPaging")
            .field("is_there", &self.is_there())
            .field("reliable_connection", &format_args!("{:#b}", caps.rc_odp_caps))
            .field("unreliable_connection", &format_args!("{:#b}", caps.uc_odp_caps))
            .field("unreliable_datagram", &format_args!("{:#b}", caps.ud_odp_caps))
            .finish()
    }
}

impl Context {
    /// The operations that the device can do on memory that is paged in on demand.
    ///
    /// `ibv_query_device_ex(3)`, `odp_caps`.
    ///
    /// # Errors
    ///
    /// The device is gone (`EIO`).
    ///
    /// # Examples
    ///
    /// ```
    /// use interlock::Context;
    /// use interlock::device::PagedOperation;
    /// let paging = Context::open("soft0")?.on_demand()?;
    /// assert!(!paging.is_there() && !paging.reliable_connection(PagedOperation::Write));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "ibv_query_device_ex")]
    pub fn on_demand(&self) -> Result<OnDemandPaging, VerbError> {
        self.0.query_device_ex().map(|device| OnDemandPaging(device.odp_caps))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_operation_has_a_bit_of_its_own() {
        let all = [
            PagedOperation::Send,
            PagedOperation::Receive,
            PagedOperation::Write,
            PagedOperation::Read,
            PagedOperation::Atomic,
            PagedOperation::SharedReceive,
        ];
        for operation in all {
            let mut caps = sys::ibv_odp_caps::default();
            caps.per_transport_caps.uc_odp_caps = operation.bit();
            let paging = OnDemandPaging(caps);
            assert_eq!(all.map(|other| paging.unreliable_connection(other)), all.map(|other| other == operation));
            assert!(!paging.reliable_connection(operation) && !paging.unreliable_datagram(operation));
        }
    }
}
