//! Scopes: memory of the caller, borrowed for the length of a closure.
//!
//! A [`Buffer`] is memory that the library owns. A scope registers and posts any `&[T]` and `&mut [T]`, and gives them
//! back when it returns: until then no request that names them is left with the device, and their registrations are
//! ended.
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
//! However the closure is left, by returning, by `?`, or by a panic, the scope does the first of these that is enough:
//!
//! 1. waits until all its requests have completed, at most to the deadline of the scope, and not if the pair has
//!    failed;
//! 2. moves the pair to Error, and takes what the device flushes (for a second);
//! 3. moves it to Reset;
//! 4. destroys it;
//! 5. **aborts the process.**
//!
//! After 1 without a failure the pair is connected, and the scope gives what the closure returned. After the others it
//! gives [`ScopeError::Broken`]. A receive that nobody answers is cut off in this way, and with it the connection: post
//! in a scope what will complete in the scope.
//!
//! Then the registrations are ended. If the device refuses that for a second, the scope aborts if peers could reach the
//! memory. A private registration stays with the device, which a line on standard error reports: no request names it,
//! and no peer has a right to it.
//!
//! **When it aborts.** If requests are in flight, and the device neither flushes them nor confirms a reset or a
//! destroy: for example if it is dead, or was pulled out, and its driver answers with errors. Then the caller's memory
//! can never be given back: owned memory would be leaked, borrowed memory cannot be. A program that must survive this
//! posts [`Buffer`]s. A scope with nothing in flight at its end, and nothing [granted](Scope::grant), never aborts.
//!
//! # What it costs
//!
//! A registration and its end for each [`lend`](Scope::lend): system calls that pin each page, and with hardware
//! commands to the device. Measured on a scope with one lend:
//!
//! | device | no lend | 64 bytes | 4 KiB | 64 KiB | 1 MiB | a copy of 4 KiB, of 1 MiB |
//! |---|---|---|---|---|---|---|
//! | soft | 0.1 µs | 0.5 µs | 0.5 µs | 0.5 µs | 0.5 µs | 0.03 µs, 380 µs |
//! | Linux soft-RoCE, emulated machine | 1.2 µs | 160 µs | 140 µs | 510 µs | 1200 µs | 5 µs, 2500 µs |
//!
//! (The soft device pins nothing. An emulated machine is slow; compare within its row.) So a scope pays off for large
//! memory, where a copy would take longer, and for memory that the library cannot own. For small or repeated messages
//! keep [`Buffer`]s and copy, or post [`Inline`](crate::Inline). One lend serves any number of requests of the scope:
//! [`Lent`] is cloned and [sliced](Lent::slice), [`LentMut`] comes back from each and is [split](LentMut::split_at).

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

/// Invariant in the scope.
type ScopeRules<'scope> = PhantomData<fn(&'scope ()) -> &'scope ()>;

#[cfg(doc)]
use crate::Buffer;
