//! Memory windows: a key to a part of a private region, made and ended by requests.
//!
//! A [`Window`] is bound over bytes of a region by a request on a queue pair, in the order of its other requests,
//! without a registration. A [`BoundWindow`] grants access to exactly those bytes until it is revoked; where the
//! provider ends windows reliably ([`Promises`](crate::device::Promises)) the memory comes back then. Windows of
//! [`Type1`] belong to the domain, those of [`Type2`] to one queue pair. Elsewhere, or for whole regions, a
//! [`Lease`](crate::memory::Lease) does the same by registration.
//!
//! ```
//! use interlock::window::{Type1, Window};
//! use interlock::{Brand, ProtectionDomain};
//! use interlock::error::VerbError;
//!
//! /// Not every device has windows: the error says so.
//! fn window_of<B: Brand>(domain: &ProtectionDomain<B>) -> Result<Window<B, Type1>, VerbError> {
//!     domain.window()
//! }
//! ```

pub use crate::memory::bindable::Bindable;
pub use crate::memory::remote::RemoteWindow;
pub use crate::memory::window::{BoundWindow, Revoked, Type1, Type2, UnsettledWindow, Window, WindowType};
