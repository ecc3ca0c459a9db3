//! Transports of a queue pair, as types.
//!
//! | type | delivers | carries |
//! |---|---|---|
//! | [`ReliableConnection`] | in order, once, or fails | everything |
//! | [`UnreliableConnection`] | in order, or not at all | sends, writes, and binds of windows |
//! | [`UnreliableDatagram`] | each by itself, or not at all | sends of one packet, to any peer |
//! | [`OnShared<T>`](OnShared) | as `T` | as `T`; receives from a [shared receive queue](crate::shared) |
//!
//! [`Carries<K>`](Carries) says which kinds of [request](crate::request) a transport carries. So a read on an
//! unreliable connection does not compile.
//!
//! ```
//! use interlock::request::Read;
//! use interlock::transport::Carries;
//! use interlock::ReliableConnection;
//!
//! fn needs_reads<T: Carries<Read>>() {}
//! needs_reads::<ReliableConnection>();
//! ```

pub use crate::queue::transport::{
    Carries, Connected, Connectionless, OnShared, OwnReceives, Reliable, ReliableConnection, Transport, Unreliable,
    UnreliableConnection, UnreliableDatagram,
};
