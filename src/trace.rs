//! Events for a subscriber of the `tracing` crate (feature `tracing`): the life of pairs and connections, failures and
//! leaks. Without the feature, these functions do nothing. There is no event on the data path.
//!
//! A subscriber is code of the program that runs in the middle of a call, sometimes in a drop or under a lock of this
//! library. So its panic ends here, and it must not use this library: the page of the crate says so.
#![forbid(unsafe_code)]

use std::fmt::{Debug, Display};

/// Calls the subscriber, and ends a panic of it here.
#[cfg(feature = "tracing")]
fn shielded(event: impl FnOnce()) {
    // A subscriber cannot reach the state of this library, so its panic leaves no state half changed.
    if let Err(panic) = std::panic::catch_unwind(std::panic::AssertUnwindSafe(event)) {
        // The drop of the panic's value can panic again, so forget the value. No panic may unwind from here: some
        // callers report a leak before they forget the memory, and an unwind would free memory that the device may
        // still use.
        std::mem::forget(panic);
    }
}

/// Defines functions that each emit one event.
macro_rules! events {
    ($(
        $(#[$doc:meta])*
        $name:ident($($field:ident: $type:ty),*) = $level:ident, $text:literal, [$($fields:tt)*];
    )*) => {$(
        $(#[$doc])*
        #[cfg_attr(feature = "tracing", cold, inline(never))]
        #[cfg_attr(not(feature = "tracing"), inline(always), allow(unused_variables, reason = "nobody listens"))]
        #[cfg_attr(not(feature = "aio"), allow(dead_code, reason = "some events are those of futures"))]
        pub(crate) fn $name($($field: $type),*) {
            #[cfg(feature = "tracing")]
            shielded(|| tracing::event!(target: "interlock", tracing::Level::$level, $($fields)*, $text));
        }
    )*};
}

events! {
    /// A queue pair was made.
    pair_made(pair: u32, transport: &str) = DEBUG, "queue pair made", [pair, transport];
    /// A queue pair is in another state.
    pair_moved(pair: u32, state: &dyn Debug) = DEBUG, "queue pair moved", [pair, ?state];
    /// A queue pair was destroyed, or it was left to its poller, which destroys it later.
    pair_gone(pair: u32) = DEBUG, "queue pair ended", [pair];
    /// A request failed, and no earlier failure explains it.
    request_failed(pair: u32, operation: &dyn Debug, status: &dyn Display, vendor_error: u32)
        = WARN, "request failed", [pair, ?operation, %status, vendor_error];
    /// A request failed because its pair had failed before, or was ended.
    request_ended(pair: u32, operation: &dyn Debug, status: &dyn Display, first: Option<&dyn Display>)
        = DEBUG, "request ended with its queue pair",
        [pair, ?operation, %status, first = first.map(tracing::field::display)];
    /// The device refused to destroy an object.
    leaked(what: &'static str, error: &dyn Display) = ERROR, "leaked for the life of the process", [what, %error];
    /// A connection of tasks was made.
    connected(pair: u32, peer: Option<std::net::SocketAddr>)
        = INFO, "connected", [pair, peer = peer.map(tracing::field::display)];
    /// A connection was ended by the peer, the device or a failure.
    ended(pair: u32, why: &dyn Display) = INFO, "connection ended", [pair, %why];
    /// A pair was closed.
    closed(receives: usize, strays: usize, has_drained: bool)
        = INFO, "closed", [receives, strays, has_drained];
    /// A peer has broken the protocol of lending.
    violated(why: &dyn Display) = WARN, "the peer has broken the protocol of lending", [%why];
}
