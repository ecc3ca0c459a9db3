//! What a connection is told that goes on.

/// What rdma_cm says of the network below a connection. The connection goes on.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Advice {
    /// The address of a neighbour has changed. If messages no longer reach the peer, connect again.
    #[doc(alias = "RDMA_CM_EVENT_UNREACHABLE")]
    NeighbourChanged,
    /// The address of this side has moved to another device, such as the other half of a bond. The connection stays on
    /// the old one: to follow the address, connect again.
    #[doc(alias = "RDMA_CM_EVENT_ADDR_CHANGE")]
    AddressChanged,
}
