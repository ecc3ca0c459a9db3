//! Notices about the network below a connection that stays up.

/// A notice of rdma_cm about the network below a connection. The connection stays up.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Advice {
    /// The link-layer address of the next hop towards the peer has changed. If messages no longer reach the peer,
    /// connect again.
    #[doc(alias = "RDMA_CM_EVENT_UNREACHABLE")]
    NeighbourChanged,
    /// The IP address of this side has moved to another device, such as the other port of a network bond. The
    /// connection stays on the old device. To follow the address, connect again.
    #[doc(alias = "RDMA_CM_EVENT_ADDR_CHANGE")]
    AddressChanged,
}
