//! Access rights of registered memory, as types.
//!
//! A [`MemoryRegion<B, A>`](crate::MemoryRegion) has its rights in `A`. `A` is one of seven presets, from [`LocalRead`]
//! to [`RemoteAll`], or a preset with an option around it: [`RelaxedOrdering`], [`OnDemand`], [`ZeroBased`],
//! [`Windowed`]. Traits such as [`PeerMayWrite`] say what a preset allows, and functions have them as bounds. So the
//! compiler refuses memory without the right where the right is needed.
//!
//! ```
//! use interlock::access::PeerMayRead;
//! use interlock::{Context, RemoteRead, RemoteRegion};
//!
//! /// Takes any grant that lets us read.
//! fn bytes_of<A: PeerMayRead>(grant: &RemoteRegion<A>) -> u64 {
//!     grant.len()
//! }
//!
//! interlock::domain! { struct Docs; }
//! let domain = Context::open("soft0")?.named_domain(Docs)?;
//! let region = domain.register::<RemoteRead, _>(vec![0_u64; 8])?;
//! assert_eq!(bytes_of(&region.remote()), 64);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub use crate::memory::access::{
    Access, DeviceMayWrite, Exposed, LocalRead, LocalWrite, PeerCannotWrite, PeerMayAtomic, PeerMayChange, PeerMayRead,
    PeerMayWrite, RemoteAll, RemoteAtomic, RemoteRead, RemoteReadWrite, RemoteWrite, Unexposed,
};
pub use crate::memory::options::{KeepsOrder, MayBind, OnDemand, RelaxedOrdering, WindowRights, Windowed, ZeroBased};
