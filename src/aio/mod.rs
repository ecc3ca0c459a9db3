//! Futures of posted requests: cancel-safe, without a runtime of their own.
//!
//! A [`SharedPoller`] shares the [`Poller`](crate::Poller) of a completion queue among tasks. It splits a queue pair
//! into a [`Sender`] and a [`Receiver`]. A method of the sender posts a request at once and returns a [`Posted`]
//! future. The future gives the memory back when the request has completed. The receiver is a stream of completed
//! receives.
//!
//! - *A future holds no memory.* While a request is in flight its memory is in the ledger, as always. If the future is
//!   dropped, in a `select!` or with its task, only the answer is abandoned; the request goes on. A future that is
//!   forgotten leaks: see [where memory is](#where-memory-is).
//! - *Whoever waits polls*: a future polls the completion queue itself, so an answer that has come already costs no
//!   task switch. A [`Driver`], on a thread or as a task, sleeps for all futures whose answer has not come.
//! - *Nothing is allocated* for a request.
//!
//! [`Sender::post`] takes any request of the send queue. A receive is posted by [`Receiver::post_receive`], or by
//! [`Connection::post_receive`].
//!
//! # Connections
//!
//! A [`Connection`] is a sender, a receiver, and a link that tells when the connection ends. `aio::cm` connects by
//! address through rdma_cm. `aio::tcp` (feature `tokio`) exchanges the records of the two sides over TCP.
//!
//! ```text
//!   SharedChannel ──connect──▶ Connection ──send, write, read──▶ Posted ──await──▶ Buffer
//!   Listener ──accept──▶ Request ──accept──▶   │   └─next──▶ Success
//!   tcp::connect, tcp::Listener ───────────▶   ├─closed──▶ End
//!                                              └─close──▶ Closing ──await──▶ Closed, with the buffers
//! ```
//!
//! # Many tasks, one pair
//!
//! A [`Sender`] is for one task. A [`SharedSender`] is a handle that many tasks have. It lends its sender to a closure,
//! under a lock and as a [`LentSender`], which posts and does not wait. A task that finds the queue full waits in a
//! line for a [`Permit`]: room for one request. A receiver has no such handle: one task receives, and hands messages
//! on.
//!
//! # Rules
//!
//! The compiler enforces each of them; programs that break them are in `ui-tests/aio` of the repository.
//!
//! - A1: a connection that is being closed is gone.
//! - A2: memory that a task has posted is gone until its answer.
//! - A3: a permit is used once.
//! - A4: a permit ends before its sender.
//! - A5: what a task posts is of the domain of its queue pair.
//! - A6: a sender is not cloned.
//! - A7: a sender that is lent does not wait.
//! - A8: a sender that is lent is not exchanged for another one.
//!
//! # Where memory is
//!
//! | what happens to the future of a request | memory of a [`Pool`](crate::memory::Pool) | other memory |
//! |---|---|---|
//! | awaited | in the answer, or in its error | the same |
//! | dropped | goes home when the request completes | [`Sender::take_stray`]; the oldest is dropped if there are many |
//! | forgotten | stays allocated until the process ends, and so does the poller | the same |
//! | the connection is closed first | in the answer of the future | the same |
//! | dropped, and then the pair is [closed](Sender::close) | goes home | in [`Closed`], unless it was taken before |
//! | none: a receive was posted, and the [`Receiver`] is dropped | goes home at a later poll | is dropped then |
//!
//! In every case, memory is freed or reused only when the device is done with it.
//!
//! # Without a driver
//!
//! Without a driver, futures that wait poll again and again. That is right for a thread that has nothing else to do.
#![forbid(unsafe_code)]

mod after;
mod closing;
#[cfg(feature = "cm")]
pub mod cm;
mod connection;
mod desk;
mod driver;
mod lane;
mod lane_handle;
mod lanes;
pub mod lend;
#[cfg(feature = "tokio")]
mod on_tokio;
mod outcome;
mod pairs;
mod posted;
mod posted_all;
mod receiver;
mod refill;
mod sender;
mod sender_mode;
mod shared_poller;
mod shared_receives;
mod shared_sender;
mod sleep;
mod split;
#[cfg(feature = "tokio")]
pub mod tcp;
mod timer;
mod timers;

pub use closing::{Closed, Closing, OfTwoPairsError};
pub use connection::{Connection, End, Link};
pub use driver::{Driver, block_on};
#[cfg(feature = "tokio")]
pub use on_tokio::spawn;
pub use outcome::{Counters, PollerCounters, RequestError, RequestErrorCause};
pub use posted::{Answer, Answers, Fetched, Posted, Returned};
pub use posted_all::{PostedAll, PostedAllError};
pub use receiver::Receiver;
pub use refill::RefillError;
pub use sender::{LentSender, Sender};
pub use sender_mode::{Borrowed, Owned, SenderMode};
pub use shared_poller::SharedPoller;
pub use shared_receives::{ReceivesError, SharedReceives};
pub use shared_sender::{Permit, SharedSender};
pub use sleep::Sleep;
pub use split::OtherQueueError;
