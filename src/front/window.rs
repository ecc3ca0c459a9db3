//! Memory windows: a key to a part of a private region, made and ended by requests.
//!
//! A [`Window`] is bound over bytes of a region by a request on a queue pair. The request is ordered with the pair's
//! other requests and needs no registration. A [`BoundWindow`] grants access to exactly those bytes until it is
//! revoked. If the provider ends windows reliably ([`Promises`](crate::device::Promises)), revoking it gives the memory
//! back. Windows of [`Type1`] belong to the domain, those of [`Type2`] to one queue pair. On other providers, or for
//! whole regions, a [`Lease`](crate::memory::Lease) grants access by registration instead.
//!
//! ```
//! use interlock::window::{Type1, Window};
//! use interlock::{Brand, ProtectionDomain};
//! use interlock::error::VerbError;
//!
//! /// Not every device has windows; the error is then `EOPNOTSUPP`.
//! fn window_of<B: Brand>(domain: &ProtectionDomain<B>) -> Result<Window<B, Type1>, VerbError> {
//!     domain.window()
//! }
//! ```

pub use crate::memory::bindable::Bindable;
pub use crate::memory::remote::RemoteWindow;
pub use crate::memory::window::{BoundWindow, Revoked, Type1, Type2, UnsettledWindow, Window, WindowType};
