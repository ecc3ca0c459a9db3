//! Errors: one type for each decision that a caller can take.
//!
//! An error of a call that took an object gives the object back: [`PostError`] the request with its buffer (unless the
//! device may have it), [`TransitionError`] the pair, [`RegisterError`] the memory, [`DestroyError`] the pair. Errors
//! that hold an object have a method `into_cause`, which drops the object and gives an error that can leave a [scoped
//! domain](crate::Context::with_domain). A request that was posted and failed is reported by a
//! [`Failure`](crate::Failure) instead, with its [`Status`](crate::Status).
//!
//! The text of an error says what happened and, if the library knows it, what to do. If a section of
//! `docs/failures.md` explains the error, the text names the section: `see docs/failures.md#retry-exceeded`.
//!
//! The errors by subject:
//!
//! - Devices, their ports, GIDs and events: [`OpenError`], [`NoActivePort`], [`NoGid`], [`TakeEventsError`],
//!   [`EventsError`].
//! - Domains: [`NamedDomainError`].
//! - Completion queues: [`CompletionQueueError`], [`ResizeError`], [`PollError`], [`WaitError`].
//! - Memory of the system: [`NoPages`], [`NoHugePages`], [`NoSharedMap`].
//! - Regions: [`RegisterError`] with its [`RegisterFailure`], [`LockedMemoryLimit`]; at their end, [`DeregisterError`],
//!   [`RejoinError`], [`NoBarrier`].
//! - Pools: [`PoolError`], [`NoBuffer`].
//! - Buffers: [`SplitError`], [`JoinError`], [`NotUnique`] with its [`NotUniqueReason`], [`TooLong`], [`OutOfBounds`],
//!   [`ViewError`].
//! - Memory of a peer: [`RecordError`], [`OutOfBounds`], [`NotAWord`].
//! - Memory windows: [`NotBindable`], [`DeallocError`].
//! - New queue pairs, shared receive queues and address handles: [`CreateError`], [`NoRoom`], [`AddressError`].
//! - Transitions of a queue pair: [`TransitionError`] with its [`TransitionFailure`], [`AdvanceError`], [`Undrained`]
//!   with its [`DrainFailure`], [`NotOnIwarp`].
//! - The two halves of a queue pair: [`JoinHalvesError`], [`OfDifferentPairs`].
//! - Requests: [`PostError`] with its [`RequestFlaw`]; for many at once [`PostAllError`] with its [`PostAllCause`], and
//!   [`BatchError`] with its [`BatchCause`].
//! - The end of a queue pair or a shared receive queue: [`DestroyError`], [`DestroySharedError`].
//! - Everywhere: [`OutOfRange`], a number outside the range of its type; [`VerbError`], the errno of a verb.
//!
//! ```
//! use interlock::error::PostError;
//! use interlock::{Context, Limits};
//!
//! # interlock::domain! { struct Docs; }
//! # let domain = Context::open("soft0")?.named_domain(Docs)?;
//! # let port = domain.context().active_port()?;
//! let (queue, _poller) = domain.completion_queue(2)?;
//! let mut pair = domain.reliable(&queue, &Limits { sends: 1, receives: 1, ..Limits::default() })?.into_init(&port)?;
//! pair.post_receive(domain.buffer(64)?)?;
//! // The queue is full, so the error gives the buffer back.
//! match pair.post_receive(domain.buffer(64)?) {
//!     Err(PostError::QueueFull(buffer)) => assert_eq!(buffer.capacity(), 64),
//!     other => panic!("{other:?}"),
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub use crate::completion::control::NoRoom;
pub use crate::completion::options::CompletionQueueError;
pub use crate::completion::poller::PollError;
pub use crate::completion::resize::ResizeError;
pub use crate::completion::wait::WaitError;
pub use crate::device::context::{NoActivePort, OpenError};
pub use crate::device::events::{EventsError, TakeEventsError};
pub use crate::device::iwarp::NotOnIwarp;
pub use crate::device::port::NoGid;
pub use crate::domain::NamedDomainError;
pub use crate::inflight::{BatchCause, BatchError, PostAllCause, PostAllError, PostError, RequestFlaw};
pub use crate::memory::bindable::NotBindable;
pub use crate::memory::buffer::{JoinError, NotUnique, NotUniqueReason, SplitError, TooLong, ViewError};
pub use crate::memory::error::{DeregisterError, OutOfBounds, RegisterError, RegisterFailure, RejoinError};
pub use crate::memory::huge::NoHugePages;
pub use crate::memory::lapsed::NoBarrier;
pub use crate::memory::locked::LockedMemoryLimit;
pub use crate::memory::pages::NoPages;
pub use crate::memory::pool::{NoBuffer, PoolError};
pub use crate::memory::remote::{NotAWord, RecordError};
pub use crate::memory::shared_map::NoSharedMap;
pub use crate::memory::window::DeallocError;
pub use crate::queue::any::AdvanceError;
pub use crate::queue::datagram::AddressError;
pub use crate::queue::error::{CreateError, DestroyError, DrainFailure, TransitionError, TransitionFailure, Undrained};
pub use crate::queue::halves::{JoinHalvesError, OfDifferentPairs};
pub use crate::queue::shared::DestroySharedError;
pub use crate::types::OutOfRange;
pub use crate::verb_error::VerbError;
