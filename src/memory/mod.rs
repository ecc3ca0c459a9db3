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
//! # Choosing memory
//!
//! Who may touch the memory decides which type to use:
//!
//! | the memory | use | a peer reaches it | the program sees | it costs |
//! |---|---|---|---|---|
//! | messages that come and go | [`Buffer`] | no | `&mut [u8]`, except in flight | a registration for each region |
//! | the same, thousands of times a second, on any thread | [`Buffer`] of a [`Pool`] | no | likewise | a registration for the pool |
//! | the same bytes to many peers | [`SharedBuffer`] | no | `&[u8]`, also in flight | as the buffer |
//! | a header of a few bytes | [`Inline`](crate::Inline) | no | any slice | a copy when it is posted |
//! | peers write it as long as the program runs | [`MemoryRegion`] of [`RemoteWrite`] | yes | copies and words | a registration |
//! | peers write it for a while | [`Lease`] | until `end` | copies and words; afterwards `&mut [u8]` again | a registration each time |
//! | the same, granted and ended thousands of times a second | [`Window`] | until it is ended | likewise | two requests each time |
//! | a slice of the caller's that must not be copied | [`scope`](crate::scope) | no | a borrow, back when the scope ends | a registration each time |
//!
//! - *Copies and words*: a peer may write this memory at any moment, so the program gets no reference to it.
//!   [`read_into`](MemoryRegion::read_into) copies it, and [`load`](MemoryRegion::load) reads an aligned word of 8
//!   bytes.
//! - Registration is slow: the kernel pins every page. So register large pieces early and cut them up:
//!   [`buffers`](crate::ProtectionDomain::buffers) makes many buffers of one region. A pool does the same, and a
//!   dropped buffer returns to it from any thread. When all buffers are in use, `take(..).await` waits for one, which
//!   slows a fast sender down.
//! - What the end of a window guarantees depends on the device. On many, the memory comes back only with the end of the
//!   whole region ([`windows_are_barriers`](crate::device::Promises::windows_are_barriers)). A lease works on every
//!   device, so begin with leases.
//!
//! # First steps
//!
//! [`ProtectionDomain::buffer`](crate::ProtectionDomain::buffer) is the shortest way to memory. A [`Pool`] has many
//! buffers at hand, and takes each back when it is dropped.
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
mod loan;
pub(crate) mod locked;
mod opaque;
pub(crate) mod options;
mod owners;
pub(crate) mod pages;
mod part;
pub(crate) mod pool;
mod raw_window;
mod region;
mod registration;
pub(crate) mod remote;
pub(crate) mod shared_map;
mod shelf;
pub(crate) mod window;
mod word;

pub(crate) use crate::provider::window_handles::Succeeded;
pub(crate) use access::{
    Access, DeviceMayWrite, Exposed, LocalRead, LocalWrite, PeerCannotWrite, PeerMayAtomic, PeerMayChange, PeerMayRead,
    PeerMayWrite, RemoteAll, RemoteAtomic, RemoteRead, RemoteReadWrite, RemoteWrite, Unexposed,
};
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
pub use owners::{Memory, Plain, Viewable};
pub use pages::Pages;
pub(crate) use part::{Descriptor, Part, SharedPart, UniquePart};
pub use pool::{ClassStats, Growth, Pool, PoolOptions, PoolPages, PoolStats, SizeClass, Take};
pub(crate) use raw_window::{Settled, WindowCore, WindowInner};
pub use region::{MemoryRegion, SplitRegion};
pub(crate) use registration::{Lending, Loan};
pub(crate) use remote::{NotAWord, RecordError, RemoteWindow};
pub use remote::{RemoteRegion, RemoteWord};
pub use shared_map::SharedMap;
pub(crate) use window::{BoundWindow, Revoked, Type1, Type2, UnsettledWindow, Window, WindowType};
pub(crate) use window::{of_pair as window_of_pair, rights as window_rights};
pub use word::Word;

/// The longest message of the specification: 2^31 bytes. A buffer may be longer, but a receive into it takes messages
/// only up to this length.
pub const MAX_MESSAGE_BYTES: usize = 1 << 31;
