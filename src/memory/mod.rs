//! Registered memory and its three owners.
//!
//! | owner | type | the program may |
//! |---|---|---|
//! | the program | [`MemoryRegion`] without peer rights, [`Buffer`], [`SharedBuffer`] | read and write it as bytes |
//! | the device | the ledger, from posting to completion | nothing: the buffer was moved |
//! | a peer | [`MemoryRegion`] with peer rights, from registration to deregistration; [`Lease`] | copy and load words; never borrow what the peer may write |
//! | a peer | [`BoundWindow`] over a part of a private region | the same |
//! | peers and other processes | [`OpaqueRegion`] over a [`SharedMap`] | copy and load words |
//! | peers and other devices | [`OpaqueRegion`] over a [`DmaBuf`] | nothing |

mod access;
mod backing;
mod bindable;
mod buffer;
mod dmabuf;
mod error;
mod exposed;
mod fixed;
mod foreign;
mod huge;
mod lapsed;
mod lease;
mod list;
mod locked;
mod opaque;
mod options;
mod pages;
mod part;
mod raw_window;
mod region;
mod register;
mod registration;
mod remote;
mod shared_map;
mod whole;
mod window;
mod word;

pub use access::{
    Access, DeviceMayWrite, Exposed, LocalRead, LocalWrite, PeerCannotWrite, PeerMayAtomic, PeerMayChange, PeerMayRead,
    PeerMayWrite, RemoteAll, RemoteAtomic, RemoteRead, RemoteReadWrite, RemoteWrite, Unexposed,
};
pub use backing::{Memory, Plain, Viewable};
pub use bindable::{Bindable, NotBindable};
pub use buffer::{Buffer, JoinError, NotUnique, NotUniqueReason, SharedBuffer, SplitError, TooLong, ViewError};
pub use dmabuf::DmaBuf;
pub use error::{DeregisterError, OutOfBounds, RegisterError, RegisterFailure, RejoinError};
pub use foreign::{Foreign, ForeignMemory};
pub use huge::{HugePageSize, NoHugePages};
pub use lapsed::{Lapsed, LapsedRegion, NoBarrier};
pub use lease::Lease;
pub use list::BufferList;
pub(crate) use list::ListInner;
pub use locked::{LockedMemoryLimit, locked_memory_limit, pinned_memory};
pub use opaque::{OpaqueMemory, OpaqueRegion};
pub use options::{KeepsOrder, MayBind, OnDemand, RelaxedOrdering, WindowRights, Windowed, ZeroBased};
pub use pages::{NoPages, Pages};
pub(crate) use part::{Descriptor, Part};
pub(crate) use raw_window::{WindowCore, WindowInner};
pub use region::{MemoryRegion, SplitRegion};
pub use remote::{NotAWord, RecordError, RemoteRegion, RemoteWindow, RemoteWord};
pub use shared_map::{NoSharedMap, SharedMap};
pub(crate) use whole::Loan;
pub use window::{BoundWindow, DeallocError, Revoked, Type1, Type2, UnsettledWindow, Window, WindowType};
pub(crate) use window::{of_pair as window_of_pair, rights as window_rights};
pub use word::Word;

/// The longest message of the specification: 2^31 bytes. A buffer may be longer; as a receive it takes messages up to
/// this length.
pub const MAX_MESSAGE_BYTES: usize = 1 << 31;
