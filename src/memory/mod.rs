//! Registered memory and its three owners.
//!
//! | owner | type | the program may |
//! |---|---|---|
//! | the program | [`Buffer`], [`SharedBuffer`], [`MemoryRegion`] without rights of peers | borrow it as bytes |
//! | the device | none: the buffer was moved into a queue pair | do nothing until the completion |
//! | a peer | [`MemoryRegion`] with rights of peers, [`Lease`], [`BoundWindow`] | copy bytes and load words; never borrow what a peer may write |
//! | peers and other processes | [`OpaqueRegion`] over a [`SharedMap`] | copy bytes and load words |
//! | peers and other devices | [`OpaqueRegion`] over a [`DmaBuf`] | do nothing |
//!
//! [`ProtectionDomain::buffer`](crate::ProtectionDomain::buffer) is the shortest way to memory.
//! [`register`](crate::ProtectionDomain::register) takes memory of your own, with [rights](crate::access) as a type,
//! and [`deregister`](MemoryRegion::deregister) gives it back. A peer is told of memory by a [`RemoteRegion`].
//!
//! ```
//! use interlock::{Context, RemoteWrite};
//!
//! interlock::domain! { struct Docs; }
//! let domain = Context::open("soft0")?.named_domain(Docs)?;
//! let region = domain.register::<RemoteWrite, _>(vec![0_u64; 512])?;
//! let record = region.remote().to_bytes(); // goes to the peer, by a socket for example
//! let words: Vec<u64> = region.deregister()?; // the peer cannot reach the memory any more
//! # drop((record, words));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub(crate) mod access;
mod backing;
pub(crate) mod bindable;
pub(crate) mod buffer;
mod dmabuf;
pub(crate) mod error;
mod exposed;
mod fixed;
mod foreign;
pub(crate) mod huge;
pub(crate) mod lapsed;
mod lease;
mod list;
pub(crate) mod locked;
mod opaque;
pub(crate) mod options;
pub(crate) mod pages;
mod part;
mod raw_window;
mod region;
mod register;
mod registration;
pub(crate) mod remote;
pub(crate) mod shared_map;
mod whole;
pub(crate) mod window;
mod word;

pub(crate) use access::{
    Access, DeviceMayWrite, Exposed, LocalRead, LocalWrite, PeerCannotWrite, PeerMayAtomic, PeerMayChange, PeerMayRead,
    PeerMayWrite, RemoteAll, RemoteAtomic, RemoteRead, RemoteReadWrite, RemoteWrite, Unexposed,
};
pub use backing::{Memory, Plain, Viewable};
pub(crate) use bindable::Bindable;
pub use buffer::{Buffer, SharedBuffer};
pub(crate) use buffer::{SplitError, TooLong};
pub use dmabuf::DmaBuf;
pub(crate) use error::{DeregisterError, OutOfBounds, RegisterError, RegisterFailure};
pub use foreign::{Foreign, ForeignMemory};
pub use huge::HugePageSize;
pub use lapsed::{Lapsed, LapsedRegion};
pub use lease::Lease;
pub use list::BufferList;
pub(crate) use list::ListInner;
pub use locked::{locked_memory_limit, pinned_memory};
pub use opaque::{OpaqueMemory, OpaqueRegion};
pub(crate) use options::{MayBind, WindowRights};
pub use pages::Pages;
pub(crate) use part::{Descriptor, Part, SharedPart, UniquePart};
pub(crate) use raw_window::{NotPosted, Settled, Succeeded, WindowCore, WindowInner};
pub use region::{MemoryRegion, SplitRegion};
pub(crate) use remote::{NotAWord, RecordError, RemoteWindow};
pub use remote::{RemoteRegion, RemoteWord};
pub use shared_map::SharedMap;
pub(crate) use whole::{Lending, Loan};
pub(crate) use window::{BoundWindow, Revoked, Type1, Type2, UnsettledWindow, Window, WindowType};
pub(crate) use window::{of_pair as window_of_pair, rights as window_rights};
pub use word::Word;

/// The longest message of the specification: 2^31 bytes. A buffer may be longer; as a receive it takes messages up to
/// this length.
pub const MAX_MESSAGE_BYTES: usize = 1 << 31;
