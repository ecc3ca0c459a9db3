//! Notices about the network below a connection that stays up.

/// A notice of rdma_cm about the network below a connection. The connection stays up.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Advice {
    /// The address of a neighbour has changed. If messages no longer reach the peer, connect again.
    #[doc(alias = "RDMA_CM_EVENT_UNREACHABLE")]
    NeighbourChanged,
    /// The address of this side has moved to another device, such as the other port of a bonding interface. The
    /// connection stays on the old device: to follow the address, connect again.
    #[doc(alias = "RDMA_CM_EVENT_ADDR_CHANGE")]
    AddressChanged,
}
