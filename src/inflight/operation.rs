//! The operations of requests.

/// The operation of a request.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
#[repr(u8)]
#[doc(alias = "ibv_wr_opcode")]
#[doc(alias = "ibv_wc_opcode")]
pub enum Operation {
    /// Sends a message to a receive of the peer.
    #[doc(alias = "IBV_WR_SEND")]
    Send = 0,
    /// Writes to memory of the peer.
    #[doc(alias = "IBV_WR_RDMA_WRITE")]
    Write = 1,
    /// Reads memory of the peer.
    #[doc(alias = "IBV_WR_RDMA_READ")]
    Read = 2,
    /// Compares a word of the peer and swaps it if equal.
    #[doc(alias = "IBV_WR_ATOMIC_CMP_AND_SWP")]
    CompareAndSwap = 3,
    /// Adds to a word of the peer.
    #[doc(alias = "IBV_WR_ATOMIC_FETCH_AND_ADD")]
    FetchAndAdd = 4,
    /// Writes a word of the peer so that no reader sees a half-written word.
    #[doc(alias = "IBV_WR_ATOMIC_WRITE")]
    AtomicWrite = 5,
    /// Receives a message of the peer.
    #[doc(alias = "ibv_post_recv")]
    Receive = 8,
    /// Binds a memory window.
    #[doc(alias = "IBV_WR_BIND_MW")]
    Bind = 6,
    /// Invalidates or unbinds a memory window.
    #[doc(alias = "IBV_WR_LOCAL_INV")]
    Revoke = 7,
}

impl Operation {
    /// The bits that [`code`](Self::code) uses.
    pub(super) const MASK: usize = 0b111;

    /// The bits of the operation that the ledger keeps. A receive and a send both have 0: the kind of the queue tells
    /// them apart.
    #[inline(always)]
    pub(super) const fn code(self) -> usize {
        self as usize & Self::MASK
    }

    /// Whether the device writes to the memory of the request. How many bytes then count as filled is set by the post,
    /// or, for a receive, by the completion.
    #[inline(always)]
    pub(crate) fn fills(self) -> bool {
        matches!(self, Self::Read | Self::CompareAndSwap | Self::FetchAndAdd | Self::Receive)
    }
}
