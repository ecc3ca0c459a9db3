//! RDMA verbs whose misuse does not compile.
//!
//! RDMA lets a network card move bytes between the memories of two machines without the kernel. Its C interface, the
//! *verbs* of InfiniBand, puts every rule on the programmer. This library puts them into types:
//!
//! - what the verbs forbid does not compile;
//! - what only the device can know comes back as a typed value;
//! - what the program hands to the device nobody can touch until the device has handed it back.
//!
//! All of it is safe Rust: nothing of this interface is `unsafe` to use. Only who brings memory of a kind that the
//! library does not know implements an `unsafe` trait for it, [`ForeignMemory`].
//!
//! # A first program
//!
//! Two queue pairs of one process greet each other. `soft0` is a simulated device inside the process, so this runs
//! everywhere; [`Context::open_default`] takes the RDMA device of the machine instead, and is an error where there is
//! none.
//!
//! ```
//! use interlock::{Context, Limits};
//! use std::time::Duration;
//!
//! interlock::domain! { struct Hello; } // a type that names one protection domain
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let context = Context::open("soft0")?;
//!     let port = context.active_port()?;
//!     let domain = context.named_domain(Hello)?;
//!     let (queue, mut poller) = domain.completion_queue(16)?; // 2 pairs, each with 4 sends and 4 receives
//!
//!     let left = domain.reliable(&queue, &Limits::default())?.into_init(&port)?;
//!     let mut right = domain.reliable(&queue, &Limits::default())?.into_init(&port)?;
//!     right.post_receive(domain.buffer(64)?)?; // moved: the device owns it now
//!
//!     // Between two machines, the bytes of `Endpoint::to_bytes` cross by a socket of your own.
//!     let (to_left, to_right) = (left.endpoint(), right.endpoint());
//!     let (mut left, _right) = (left.connect(&to_right)?, right.connect(&to_left)?);
//!
//!     let mut greeting = domain.buffer(64)?;
//!     greeting.write(b"hello")?;
//!     left.post_send(greeting)?; // moved as well
//!
//!     let mut free = Vec::new();
//!     let message = loop {
//!         // The send and the receive complete, each once. `check` tells success from failure.
//!         let success = poller.wait(Duration::from_secs(1))?.check()?;
//!         match success.into_received() {
//!             Ok(buffer) => break buffer, // here it is again, with what came in
//!             Err(sent) => free.extend(sent.into_buffer()), // the greeting's buffer, for the next one
//!         }
//!     };
//!     assert_eq!(&message[..], b"hello");
//!     Ok(())
//! }
//! ```
//!
//! # Which type for which noun
//!
//! | the verbs say | here | what it is |
//! |---|---|---|
//! | device, `ibv_device` | [`Device`], from [`devices`] | one that could be opened |
//! | context, `ibv_context` | [`Context`], [`DeviceAttributes`] | an open device, and its limits |
//! | asynchronous event | [`AsyncEvents`], [`AsyncEvent`] | what happens to a device and its objects |
//! | port, GID | [`Port`], [`GidEntry`], [`Gid`] | where peers reach it |
//! | protection domain, `ibv_pd` | [`ProtectionDomain`] | what may be used together; the rest is made from it |
//! | | [`Brand`], [`domain!`], [`Scoped`], [`Checked`] | the type that names one domain, or those told apart at run time |
//! | memory region, `ibv_mr` | [`MemoryRegion`], [`Access`] | registered memory, and the rights to it as a type |
//! | scatter/gather element, `ibv_sge` | [`Buffer`], [`SharedBuffer`] | a part of a region: to write alone, or to read many times |
//! | | [`RelaxedOrdering`], [`OnDemand`], [`ZeroBased`] | ways of registration, as types around the rights |
//! | | [`Pages`], [`Foreign`] | page-aligned memory, huge pages; memory of another kind |
//! | memory that others write too | [`OpaqueRegion`], [`SharedMap`], [`DmaBuf`] | granted to peers, never borrowed |
//! | | [`Lease`] | memory that peers may use for a time |
//! | memory window, `ibv_mw` | [`Window`], [`BoundWindow`], [`Bindable`] | a key to a part of a private region, made and ended by requests |
//! | remote address and rkey | [`RemoteRegion`] | memory that a peer granted |
//! | shared receive queue, `ibv_srq` | [`SharedReceiveQueue`], [`OnShared`] | receives for many pairs, and the transport of those |
//! | completion queue, `ibv_cq` | [`CompletionQueue`], [`Poller`] | to make pairs with, and to poll |
//! | completion channel, `ibv_comp_channel` | [`CompletionChannel`] | to wait for any of several completion queues |
//! | completion event | [`Armed`], [`Readiness`] | to wait in an event loop of your own |
//! | work completion, `ibv_wc` | [`Completion`], then [`Success`] or [`Failure`] | the end of one request, with its memory |
//! | queue pair, `ibv_qp` | [`QueuePair`], [`State`], [`Transport`] | one end of a connection |
//! | | [`AnyQueuePair`] | a pair in any state, for a struct field |
//! | | [`SendHalf`], [`ReceiveHalf`] | a pair taken apart for two threads |
//! | work request, `ibv_send_wr` | [`WorkRequest`], [`Batch`] | what is posted: one at a time, or many with one doorbell |
//! | | [`scope::Exclusive`], [`scope::Scope`] | requests on borrowed memory |
//! | `wr_id` | [`WorkId`] | the name of a posted request |
//! | what goes out of band | [`Endpoint`], [`RemoteRegion`] | records of fixed length, with a version |
//!
//! The C names are aliases: search this documentation for `ibv_post_send` or `IBV_QPS_RTR`. [`verbs`] has them call by
//! call.
//!
//! # States of a queue pair
//!
//! A transition is a method that consumes the pair and gives one of the next type, or an error with the pair as it was.
//! [`State`] has the diagram, and what each state allows. [`connect`](QueuePair::connect) does the middle two
//! transitions.
//!
//! The type says what the program asked for last. The device can enter Error by itself at any time: completions tell,
//! and posts are then refused as [`PostError::Broken`].
//!
//! # Who owns memory
//!
//! At any moment registered memory has one of three owners, and the type says which:
//!
//! | owner | type | the program may |
//! |---|---|---|
//! | the program | [`Buffer`], [`SharedBuffer`], a [`MemoryRegion`] without rights of peers | read it as `&[u8]`, and write it if it is not shared |
//! | the device | none: the buffer was moved into the queue pair | nothing; the [`Completion`] gives it back |
//! | a peer | a [`MemoryRegion`] that peers may write, a [`Lease`], a [`BoundWindow`] | copy bytes and load words, never borrow |
//!
//! Posting *moves* the buffer. Nothing rests on a destructor: whatever is forgotten or dropped, memory that the device
//! may still write is leaked, never freed. It comes back by the request's own completion, or once the device has
//! destroyed or reset the pair or ended the registration, and said so.
//!
//! What a device may be believed differs from provider to provider. [`Context::promises`] says what the library takes
//! for granted of one; what is not promised it does in another way, or refuses.
//!
//! Memory that a peer may write is never a `&[u8]`, because it can change while one looks.
//! [`deregister`](MemoryRegion::deregister) ends the peer's access and gives the memory back as what it was; a
//! [`Lease`] of a region, or of a part of one, has an hour for that. The rights of a region are a type parameter;
//! [`Access`] has the table of what each preset allows.
//!
//! Memory that is not the library's is borrowed for the length of a closure: see [`scope`]. It is back when the
//! closure's scope ends, whatever happens in it; what has not completed by then is cut off.
//!
//! Everything of a protection domain bears the domain's [brand](Brand) `B`. Objects of two domains do not fit together:
//! ``expected `Buffer<Storage>`, found `Buffer<Scratch>` ``. Where only the run tells how many domains there are, the
//! brand is [`Checked`], and mixing is refused when it happens.
//!
//! # Errors
//!
//! Whatever takes an object and fails gives the object back inside the error: [`TransitionError`] the pair as it was,
//! [`PostError`] the request and its buffer, [`RegisterError`] the memory, [`DestroyError`] the pair.
//!
//! - [`VerbError`] is a verb that failed: its C name, and the `errno`.
//! - [`PostError`] is a request that was not posted: full queue, broken pair, request at fault, refused. One of its
//!   variants, [`Uncertain`](PostError::Uncertain), keeps the buffer: the provider did not say whether it took it.
//! - [`Failure`] is a request that was posted and did not succeed: which, why ([`Status`], explained in words), and
//!   what broke the pair first, if this one was only flushed.
//! - [`PollError`], [`WaitError`], [`ResizeError`] and [`Undrained`] are about completion queues, [`EventsError`] about
//!   asynchronous events.
//!
//! `?` turns all of them into a `Box<dyn Error>` (`Send` and `Sync` too) where the brand is a named one. An error that
//! holds an object of a scoped brand does not leave the closure of [`Context::with_domain`]. Each error that holds an
//! object has a method `into_cause`, which drops the object and gives an error that can leave:
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! # use interlock::{Context, Limits};
//! let context = Context::open("soft0")?;
//! let port = context.active_port()?;
//! context.with_domain(|domain| {
//!     let (queue, _poller) = domain.completion_queue(8)?;
//!     let pair = domain.reliable(&queue, &Limits::default())?;
//!     let mut pair = pair.into_init(&port).map_err(|error| error.into_cause())?;
//!     pair.post_receive(domain.buffer(8)?).map_err(|error| error.into_cause())?;
//!     Ok(())
//! })?
//! # }
//! ```
//!
//! The text of an error says what to do. A `main` that returns one shows its `Debug` form instead: print the error and
//! its [`source`](std::error::Error::source)s, as the examples do.
//!
//! Nothing here panics, and no destructor fails silently: what had to be leaked is said on standard error.
//!
//! # The soft device
//!
//! [`soft`] is an RDMA device inside the process, for tests and for the first run: no hardware, no kernel module, no
//! package. It keeps to the specification and checks what hardware checks. The devices `soft0` and `soft1` are always
//! there; a [`soft::Fabric`] of your own can be stepped by hand and told to fail ([`soft::Fault`]), and
//! [`Context::open_on`] opens its devices. It is a test device, never a transport between processes: each process has
//! addresses of its own, and a peer in another process does not answer. It is never chosen silently: a program or
//! `INTERLOCK_DEVICE=soft0` names it, and a build without the feature `soft` has nothing of it.
//!
//! # Features
//!
//! | feature | default | what |
//! |---|---|---|
//! | `rdma-core` | yes | real devices, through libibverbs, which is linked |
//! | `bindgen` | yes | its bindings are made from the installed headers at build time, which needs libclang; includes `rdma-core` |
//! | `soft` | yes | the soft device |
//!
//! Without `bindgen` the bindings of this package serve, for x86-64 and 64-bit Arm; they suit the libibverbs of
//! rdma-core 44 and later. With `soft` alone nothing is linked and only the soft device exists. One of `rdma-core` and
//! `soft` must be there.
//!
//! The environment variable `INTERLOCK_DEVICE` names the device that [`Context::open_default`] takes; `soft0` is one.
//!
//! # What is not here yet
//!
//! `rdma_cm` and futures; XRC and the transports of vendors.
//!
//! # More
//!
//! In the repository: `docs/architecture.md` (how it is built), `docs/trust-model.md` (what is assumed, and why a
//! program cannot corrupt memory), `docs/providers.md` (what each provider is believed), `docs/hazards.md` (each known
//! way to get RDMA wrong, and what stops it),
//! `docs/failures.md` (what each failure means), `docs/conformance.md` (what the specification says, case by case, and
//! what shows it), `docs/peer-holes.md` (soundness holes of earlier libraries, and why they are not here),
//! `docs/performance.md` (what it costs, measured), `examples/`.

#![deny(unsafe_code)]
#![warn(
    missing_docs,
    missing_debug_implementations,
    unreachable_pub,
    rustdoc::broken_intra_doc_links,
    rustdoc::private_intra_doc_links,
    rustdoc::invalid_rust_codeblocks,
    rustdoc::bare_urls
)]

mod completion;
mod device;
mod domain;
mod error;
mod inflight;
mod memory;
mod os;
mod provider;
mod queue;
mod readiness;
pub mod scope;
mod seal;
mod sync;
mod sys;
mod types;
pub mod verbs;

pub use completion::{
    Armed, Completion, CompletionChannel, CompletionQueue, CompletionQueueError, CompletionQueueOptions, Datagram,
    Failure, FailureCause, NoRoom, PollError, Poller, Polling, Received, ResizeError, Retired, Scattered, Success,
    Unsignalled, Wait, WaitError, WakeFor, Work, WrittenWithImmediate,
};
pub use device::{
    AsyncEvent, AsyncEvents, CompletionQueueId, Context, Device, DeviceAttributes, EventsError, ForkSupport, GidEntry,
    GidKind, LinkLayer, NoActivePort, NoGid, OnDemandPaging, OpenError, PagedOperation, Port, PortEvent, PortState,
    Promises, QueuePairEvent, SharedReceiveQueueEvent, SharedReceiveQueueId, devices, enable_fork_support,
    fork_support,
};
pub use domain::{Brand, Checked, Named, NamedDomainError, ProtectionDomain, Scoped};
pub use error::VerbError;
pub use inflight::{FaultSide, Operation, PostedMemory, Status, WorkId};
pub use memory::{
    Access, Bindable, BoundWindow, Buffer, BufferList, DeallocError, DeregisterError, DeviceMayWrite, DmaBuf, Exposed,
    Foreign, ForeignMemory, HugePageSize, JoinError, KeepsOrder, Lapsed, LapsedRegion, Lease, LocalRead, LocalWrite,
    LockedMemoryLimit, MAX_MESSAGE_BYTES, MayBind, Memory, MemoryRegion, NoBarrier, NoHugePages, NoPages, NoSharedMap,
    NotAWord, NotBindable, NotUnique, NotUniqueReason, OnDemand, OpaqueMemory, OpaqueRegion, OutOfBounds, Pages,
    PeerCannotWrite, PeerMayAtomic, PeerMayChange, PeerMayRead, PeerMayWrite, Plain, RecordError, RegisterError,
    RegisterFailure, RejoinError, RelaxedOrdering, RemoteAll, RemoteAtomic, RemoteRead, RemoteReadWrite, RemoteRegion,
    RemoteWindow, RemoteWord, RemoteWrite, Revoked, SharedBuffer, SharedMap, SplitError, SplitRegion, TooLong, Type1,
    Type2, Unexposed, UnsettledWindow, ViewError, Viewable, Window, WindowRights, WindowType, Windowed, Word,
    ZeroBased, locked_memory_limit, pinned_memory,
};
#[cfg(feature = "soft")]
pub use provider::soft;
pub use queue::request;
pub use queue::{
    AddressError, AddressHandle, Addressed, AddressedParts, AdvanceError, Alterable, AlterableWhileDraining,
    AnyQueuePair, Arrivals, Batch, BatchCause, BatchError, Carries, CarriesImmediate, ConnectAttributes, Connected,
    Connectionless, CreateError, DatagramInitAttributes, Datagrams, DestroyError, DestroySharedError, DeviceState,
    DrainFailure, Endpoint, Errored, FillMemory, GoesTo, Halted, Init, InitAttributes, Inline, JoinHalvesError, Limits,
    Messages, OfDifferentPairs, OnPort, OnShared, OwnReceives, PeerPath, PeerRights, PostAllCause, PostAllError,
    PostError, PostReceive, PostSend, Posting, QueuePair, QueuePairAttributes, ReadyToReceive, ReadyToSend,
    ReceiveHalf, Recipient, Reliable, ReliableConnection, RequestFlaw, RequestMemory, Reset, RtrAttributes,
    RtsAttributes, SendHalf, SendMemory, SendQueueDrain, SendQueueError, Serves, SharedAttributes, SharedLimits,
    SharedReceiveQueue, SqdAttributes, State, TransitionError, TransitionFailure, Transport, Undrained, Unreliable,
    UnreliableConnection, UnreliableDatagram, UnreliableRtrAttributes, WorkRequest,
};
pub use readiness::Readiness;
pub use types::{
    AckTimeout, Gid, Lkey, Mtu, OutOfRange, Pkey, PortNumber, Psn, Qkey, Qpn, ReadDepth, RetryCount, Rkey, RnrRetry,
    RnrTimer,
};

#[doc(hidden)]
pub mod __private {
    pub use crate::domain::brand::Named;
}

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
