//! Registered memory and its three owners.
//!
//! | owner | type | the program may |
//! |---|---|---|
//! | the program | [`MemoryRegion`] without peer rights, [`Buffer`], [`SharedBuffer`] | read and write it as bytes |
//! | the device | the ledger, from posting to completion | nothing: the buffer was moved |
//! | a peer | [`MemoryRegion`] with peer rights, from registration to deregistration | copy and load words; never borrow what the peer may write |

mod access;
mod backing;
mod buffer;
mod exposed;
mod loan;
mod part;
mod region;
mod remote;

pub use access::{
    Access, DeviceMayWrite, Exposed, LocalRead, LocalWrite, PeerCannotWrite, PeerMayAtomic, PeerMayRead, PeerMayWrite,
    RemoteAll, RemoteAtomic, RemoteRead, RemoteReadWrite, RemoteWrite, Unexposed,
};
pub use backing::{Memory, NoPages, Pages, Plain, Viewable};
pub use buffer::{Buffer, JoinError, SharedBuffer, SplitError, TooLong, ViewError};
pub use exposed::OutOfBounds;
pub(crate) use loan::Loan;
pub(crate) use part::{Descriptor, Part};
pub(crate) use region::RegionInner;
pub use region::{
    DeregisterError, MemoryRegion, RegisterError, RegisterFailure, RejoinError, SplitRegion, locked_memory_limit,
};
pub use remote::{RecordError, RemoteRegion};

/// The longest message of the specification: 2^31 bytes. A buffer may be longer; as a receive it then takes so much.
pub const MAX_MESSAGE_BYTES: usize = 1 << 31;
