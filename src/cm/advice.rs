//! Notices about the network below a connection that stays up.

/// A notice of rdma_cm about the network below a connection. The connection stays up.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Advice {
    /// The peer's IP address has got another link-layer address. If messages no longer reach the peer, connect again.
    #[doc(alias = "RDMA_CM_EVENT_UNREACHABLE")]
    NeighbourChanged,
    /// The IP address of this side has moved to another device, such as the other port of a network bond. The
    /// connection stays on the old device. To follow the address, connect again.
    #[doc(alias = "RDMA_CM_EVENT_ADDR_CHANGE")]
    AddressChanged,
}
