//! Unreliable datagrams: their recipients, and what arrives.
//!
//! A pair of transport [`UnreliableDatagram`](crate::UnreliableDatagram) talks to any number of peers. Each datagram
//! names its [`Recipient`]: a queue pair behind an [`AddressHandle`]. A datagram is at most as long as the port's MTU.
//! It arrives as a [`Datagram`], which names its sender; the first 40 bytes of each receive are for the routing header.
//!
//! [`ProtectionDomain::datagram`](crate::ProtectionDomain::datagram) has an example with both ends.
//!
//! ```
//! use interlock::datagram::Recipient;
//! use interlock::number::Qkey;
//! use interlock::{Brand, Context, Endpoint, ProtectionDomain};
//!
//! /// Resolves the peer's endpoint, which the peer sent over a socket, for example.
//! fn resolve<B: Brand>(
//!     domain: &ProtectionDomain<B>,
//!     peer: &Endpoint,
//! ) -> Result<Recipient<B>, Box<dyn std::error::Error>> {
//!     let port = domain.context().active_port()?;
//!     Ok(domain.recipient(&port, peer, Qkey::USUAL)?)
//! }
//! ```

pub use crate::completion::work::Datagram;
pub use crate::queue::datagram::{AddressHandle, Addressed, AddressedParts, Recipient};
