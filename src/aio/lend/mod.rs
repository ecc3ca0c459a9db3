//! The peers of a connection lend memory to each other. They agree by control messages.
//!
//! One side, the owner, [lends](Lending::lend) a [`Lease`](crate::memory::Lease). The other side, the holder, gets it
//! as an [`Offer`], or as the answer to its [`request`](Lending::request), and uses it as [`Granted`]. When the holder
//! drops the `Granted`, it returns the memory, and the owner's [`Lent::ended`] gives the memory back to the owner's
//! program.
//!
//! Who trusts whom for what:
//!
//! - *The owner trusts nobody.* [`Lent::ended`] gives memory back at the deadline at the latest, and always deregisters
//!   it first. From then on the device refuses requests of the peer. (On soft iWARP, a read that the peer has begun
//!   goes on, so memory that the peer may read never comes back: see [`Lent::end`].) A peer cannot extend a deadline,
//!   and cannot get more memory than its [`Quota`] by asking. A grant counts against the quota until its memory is
//!   deregistered and the peer can no longer access it.
//! - *The holder relies on nothing.* It knows the deadline of a grant only from the owner. If the owner ends the grant
//!   sooner, a request of the holder fails with a typed error, the remote access error, and the connection ends. (On
//!   iWARP, a write completes when it was sent, so a late write shows only as the end of the connection.)
//! - *Only the owner passes memory on*: [`Granted::pass_on`] asks the owner to lend the memory to somebody else. A
//!   holder that copies the record of the memory to others gives them no more rights than it has, and for no longer.
//!
//! [`LendingReceiver`] receives the messages of the connection and obeys the control messages among them. It also sends
//! the control messages of this side. The library starts no task for this, so a task of the program must always wait on
//! the receiver.
//!
//! # Examples
//!
//! Both ends in one program; the left side asks the right side for memory, and writes to it:
//!
//! ```
//! use interlock::aio::lend::{Lending, LendingOptions, Over, Quota};
//! use interlock::aio::SharedPoller;
//! use interlock::{Context, Limits, RemoteWrite};
//! use std::num::NonZeroU64;
//! use std::pin::pin;
//! use std::task::Poll;
//! use std::time::Duration;
//! interlock::domain! { struct Docs; }
//!
//! let domain = Context::open("soft0")?.named_domain(Docs)?;
//! let port = domain.context().active_port()?;
//! let (queue, poller) = domain.completion_queue(16)?;
//! let left = domain.reliable(&queue, &Limits::default())?.into_init(&port)?;
//! let right = domain.reliable(&queue, &Limits::default())?.into_init(&port)?;
//! let (to_left, to_right) = (left.endpoint(), right.endpoint());
//! let (left, right) = (left.connect(&to_right)?, right.connect(&to_left)?);
//! let poller = SharedPoller::new(poller);
//! let mut driver = poller.driver().expect("there is no other driver");
//!
//! let start = |pair, quota| -> Result<_, Box<dyn std::error::Error>> {
//!     let (sender, receiver) = poller.split(pair)?;
//!     let options = LendingOptions { quota, ..LendingOptions::default() };
//!     let (lending, mut messages) = Lending::start(&domain, &poller, sender.into_shared(), receiver, &options)?;
//!     for buffer in domain.buffers(4, 64)? {
//!         messages.post_receive(buffer)?;
//!     }
//!     Ok((lending, messages))
//! };
//! let (left, left_messages) = start(left, Quota::NOTHING)?;
//! let (right, right_messages) = start(right, Quota { bytes: 4096, grants: 1 })?;
//!
//! let asks = async {
//!     let granted = left.request::<RemoteWrite>(NonZeroU64::MIN, Duration::from_secs(1)).await?;
//!     let mut text = domain.buffer(8)?;
//!     text.write(b"for you")?;
//!     granted.slice(0..8)?.write(text)?.await?;
//!     granted.give_back();
//!     Ok::<(), Box<dyn std::error::Error>>(())
//! };
//! let serves = async {
//!     let asked = right.asked().await.expect("the connection is open");
//!     let lease = domain.lease::<RemoteWrite, _>(domain.buffer(64)?, asked.duration())?;
//!     let (memory, over) = asked.answer(lease)?.ended().await?;
//!     assert_eq!((&memory[..7], over), (&b"for you"[..], Over::Returned));
//!     Ok::<(), Box<dyn std::error::Error>>(())
//! };
//! // With a runtime these are four tasks.
//! let (mut asks, mut serves) = (pin!(asks), pin!(serves));
//! let (mut of_left, mut of_right) = (pin!(left_messages.run()), pin!(right_messages.run()));
//! let mut asked = None;
//! driver.block_on(std::future::poll_fn(|context| {
//!     let _ = (of_left.as_mut().poll(context), of_right.as_mut().poll(context));
//!     if asked.is_none()
//!         && let Poll::Ready(result) = asks.as_mut().poll(context)
//!     {
//!         asked = Some(result);
//!     }
//!     serves.as_mut().poll(context)
//! }))??;
//! asked.expect("the other side is done too")?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod asked;

mod granted;
mod hold;
mod holder;
mod lending;
mod lending_receiver;
mod lent;
mod owner;
mod record;
mod shared;
#[cfg(all(test, not(loom)))]
mod tests;
mod violation;

pub use asked::Asked;
pub use granted::{AskError, Granted, GrantedPart, Offer, Returning, UseError};
pub use lending::{Lending, LendingOptions, Mark};
pub use lending_receiver::{LendingReceiver, MessageError};
pub use lent::{LendError, LendFailure, Lent};
pub use owner::{Over, Quota};
pub use record::{CONTROL_BYTES, ControlError, Refusal};
pub use violation::Violation;
