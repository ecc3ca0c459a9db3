//! Events of a device, and waiting for them in an event loop.
//!
//! [`Context::events`](crate::Context::events) returns the [`AsyncEvents`] of a device: a port that came up or went
//! down, a queue pair that broke, a shared receive queue that runs low. Each [`AsyncEvent`] is acknowledged when it is
//! taken. Events name objects by ids such as [`CompletionQueueId`], since the object itself may be gone by then.
//!
//! Everything that a program can wait for has a [`Readiness`]: a file descriptor for `poll(2)`, `epoll(7)` or a
//! runtime. To wait for completions with it, see [`Armed`](crate::completion::Armed).
//!
//! ```
//! use interlock::Context;
//! use std::time::Duration;
//!
//! let context = Context::open("soft0")?;
//! match context.events() {
//!     // Nothing has happened yet.
//!     Ok(mut events) => assert!(events.next(Duration::ZERO)?.is_none()),
//!     // Another part of the program has taken the events, or the provider's events are not used.
//!     Err(error) => println!("no events: {error}"),
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub use crate::device::events::{AsyncEvent, AsyncEvents, PortEvent, QueuePairEvent, SharedReceiveQueueEvent};
pub use crate::device::objects::{CompletionQueueId, SharedReceiveQueueId};
pub use crate::readiness::Readiness;
#[cfg(feature = "tokio")]
pub use crate::readiness::WatchedReadiness;
