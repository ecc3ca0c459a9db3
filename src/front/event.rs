//! Events of a device, and waiting for them in an event loop.
//!
//! [`Context::events`](crate::Context::events) gives the [`AsyncEvents`] of a device: a port that came up or went down,
//! a queue pair that broke, a shared receive queue that runs low. Each [`AsyncEvent`] is acknowledged when it is taken.
//! Objects are named by ids such as [`CompletionQueueId`], since the object itself may be gone by then.
//!
//! What can be waited for has a [`Readiness`]: a file descriptor for `poll(2)`, `epoll(7)` or a runtime.
//! [`Armed`](crate::completion::Armed) does the same for completions.
//!
//! ```
//! use interlock::Context;
//! use std::time::Duration;
//!
//! let context = Context::open("soft0")?;
//! // `None` if another part of the program has taken them.
//! if let Some(mut events) = context.events() {
//!     // Nothing has happened yet.
//!     assert!(events.next(Duration::ZERO)?.is_none());
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub use crate::device::events::{AsyncEvent, AsyncEvents, PortEvent, QueuePairEvent, SharedReceiveQueueEvent};
pub use crate::device::objects::{CompletionQueueId, SharedReceiveQueueId};
pub use crate::readiness::Readiness;
