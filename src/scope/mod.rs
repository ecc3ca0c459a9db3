//! Scopes: memory of the caller, borrowed for the length of a closure.
//!
//! A [`Buffer`] is memory that the library owns. A scope registers and posts any `&[T]` and `&mut [T]` of the caller.
//! When the scope returns, the device has no request left that names this memory, and the registrations have ended.
//!
//! ```
//! use interlock::scope::{Exclusive, InScopeError};
//! use interlock::{Context, Limits};
//! use std::time::Duration;
//!
//! interlock::domain! { struct Docs; }
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let context = Context::open("soft0")?;
//!     let domain = context.named_domain(Docs)?;
//!     let limits = Limits::default();
//!     let (queue, poller) = domain.completion_queue(limits.completions())?;
//!     let pair = domain.reliable(&queue, &limits)?.into_init(&context.active_port()?)?;
//!     let myself = pair.endpoint(); // a pair may be connected to itself
//!     let pair = pair.connect(&myself)?;
//!     drop(queue); // nobody else can complete there
//!     let mut exclusive = Exclusive::new(pair, poller)?;
//!
//!     let message = String::from("borrowed");
//!     let mut answer = [0_u8; 64];
//!     let length = exclusive.scope(Duration::from_secs(1), |scope| {
//!         let receive = scope.post_receive(scope.lend_mut(&mut answer)?)?;
//!         let send = scope.post_send(scope.lend(message.as_bytes())?)?;
//!         scope.wait(send)?;
//!         Ok::<_, InScopeError>(scope.wait(receive)?.memory.len())
//!     })??;
//!     assert_eq!(&answer[..length], message.as_bytes());
//!     Ok(())
//! }
//! ```
//!
//! # How a scope ends
//!
//! The closure may return, leave by `?`, or panic. In every case the scope takes these steps until one is enough:
//!
//! 1. it waits until all its requests have completed, its deadline has passed, or the pair has failed;
//! 2. it moves the pair to Error, and polls what the device flushes, for at most a second;
//! 3. it moves the pair to Reset, where that is allowed;
//! 4. it destroys the pair;
//! 5. it **aborts the process.**
//!
//! If step 1 was enough and nothing failed, the pair is still connected, and the scope returns what the closure
//! returned. After the other steps it returns [`ScopeError::Broken`]. A receive that gets no message is cut off in this
//! way, and the connection with it: so post in a scope only what will complete in the scope.
//!
//! Then the registrations end. If the device refuses that for a second, the scope aborts the process if peers could
//! reach the memory. A registration that no peer can reach stays with the device, and a line on standard error reports
//! it: no request names it, and no peer has a right to it.
//!
//! **When it aborts.** Requests are in flight, and the device neither flushes them nor confirms a reset or a destroy.
//! An example is a device that was pulled out, whose driver answers with errors. The library leaks owned memory in this
//! case, but it cannot leak borrowed memory, which the caller will use again. A program that must survive this posts
//! [`Buffer`]s. A scope never aborts if nothing is in flight at its end and nothing was [granted](Scope::grant).
//!
//! # What it costs
//!
//! Each [`lend`](Scope::lend) registers memory, and the end of the scope deregisters it: system calls that pin each
//! page and, on hardware, send commands to the device. Measured on a scope with one lend:
//!
//! | device | no lend | 64 bytes | 4 KiB | 64 KiB | 1 MiB | a copy of 4 KiB, of 1 MiB |
//! |---|---|---|---|---|---|---|
//! | soft | 0.1 µs | 0.5 µs | 0.5 µs | 0.5 µs | 0.5 µs | 0.03 µs, 380 µs |
//! | Linux soft-RoCE, emulated machine | 1.2 µs | 160 µs | 140 µs | 510 µs | 1200 µs | 5 µs, 2500 µs |
//!
//! (The soft device pins nothing. An emulated machine is slow, so compare only within its row.) So a scope pays off for
//! large memory, where a copy takes longer than a registration, and for memory that the library cannot own. For small
//! or repeated messages keep [`Buffer`]s and copy, or post [`Inline`](crate::Inline). One lend serves any number of
//! requests of the scope: a [`Lent`] can be cloned and [sliced](Lent::slice), and a [`LentMut`] comes back from each
//! request and can be [split](LentMut::split_at).

mod error;
mod exclusive;
mod lent;
mod section;
mod settle;
mod slots;
mod ticket;

pub use error::{InScopeError, NotExclusive, ScopeError, SharedQueue, WaitFailure};
pub use exclusive::{Exclusive, Parts};
pub use lent::{Granted, Lent, LentMemory, LentMut};
pub use section::Scope;
pub use ticket::{Done, Ticket};

use std::marker::PhantomData;

/// A marker that is invariant in the scope.
type ScopeRules<'scope> = PhantomData<fn(&'scope ()) -> &'scope ()>;

#[cfg(doc)]
use crate::Buffer;
