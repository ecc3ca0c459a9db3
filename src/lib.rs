//! RDMA verbs in safe Rust: most misuse does not compile.
//!
//! RDMA lets a network card move bytes between the memories of two machines without the kernel. Its C interface, the
//! *verbs* of InfiniBand, puts every rule on the programmer. This library puts the rules into types where it can:
//!
//! - most misuse of the verbs does not compile, and most of the rest is refused with an error before the device sees
//!   it;
//! - what only the device can know comes back as a typed value;
//! - while the device may write to memory, for a request or for a peer, the program has no reference to it.
//!
//! All of it is safe Rust: nothing of this interface is `unsafe` to use. The one exception is a program with memory of
//! a kind that the library does not know: it implements an `unsafe` trait for it,
//! [`ForeignMemory`](memory::ForeignMemory).
//!
//! # A first program
//!
//! Two queue pairs of one process greet each other. `soft0` is a simulated device inside the process, so this runs
//! everywhere. [`Context::open_default`] opens the RDMA device of the machine instead.
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
//!     right.post_receive(domain.buffer(64)?)?; // moved: the device owns the buffer now
//!
//!     // Between two machines, send the bytes of `Endpoint::to_bytes` through a socket.
//!     let (to_left, to_right) = (left.endpoint(), right.endpoint());
//!     let (mut left, _right) = (left.connect(&to_right)?, right.connect(&to_left)?);
//!
//!     let mut greeting = domain.buffer(64)?;
//!     greeting.write(b"hello")?;
//!     left.post_send(greeting)?; // moved as well
//!
//!     let mut free = Vec::new();
//!     for _ in 0..2 {
//!         // The send and the receive complete, each once. `check` tells success from failure.
//!         let success = poller.wait(Duration::from_secs(1))?.check()?;
//!         match success.into_received() {
//!             Ok(message) => assert_eq!(&message[..], b"hello"), // the receive's buffer, with the message in it
//!             Err(sent) => free.extend(sent.into_buffer()),      // the greeting's buffer, free again
//!         }
//!     }
//!     Ok(())
//! }
//! ```
//!
//! # Where to find what
//!
//! The crate root has the types that a first program meets. Each type is in a module that is named after its subject;
//! the types at the root are in their modules, too. [`verbs`] leads from each C function to the method that does the
//! same, and the C names are search aliases: try `ibv_post_send` or `IBV_QPS_RTR` in the search box.
//!
//! | module | what it is about |
//! |---|---|
//! | [`device`], [`event`] | opening a device, its limits, its ports; what happens to it later |
//! | [`mod@domain`] | protection domains, and the brands that keep their objects apart |
//! | [`memory`], [`access`], [`window`] | registered memory, its access rights, keys to parts of it |
//! | [`completion`] | completion queues, their pollers, and what a poll gives back |
//! | [`queue`], [`state`], [`transport`], [`attributes`] | queue pairs: making, connecting, draining, ending them |
//! | [`request`], [`datagram`], [`shared`] | what is posted: work requests, datagrams, shared receives |
//! | [`cm`] | connecting by address, through rdma_cm |
//! | [`scope`] | requests on borrowed memory |
//! | [`aio`] | futures of posted requests |
//! | [`number`], [`error`] | checked numbers; error types ([`aio`], [`cm`] and [`scope`] have their own) |
//! | [`soft`] | the simulated device for tests |
//!
//! # States of a queue pair
//!
//! A transition is a method that consumes the pair and returns one of the next type, or an error with the unchanged
//! pair. The page of [`State`](state::State) has the diagram. [`connect`](QueuePair::connect) goes from Init to Ready
//! To Send.
//!
//! The type is the state that the program asked for last. The device can enter Error by itself at any time: completions
//! report it, and later posts are refused as [`PostError::Broken`].
//!
//! # Who owns memory
//!
//! At any moment registered memory has one of three owners, and the type says which:
//!
//! | owner | type | the program may |
//! |---|---|---|
//! | the program | [`Buffer`], [`SharedBuffer`], a [`MemoryRegion`] without rights of peers | borrow it as `&[u8]`; write it if not shared |
//! | the device | none: the buffer was moved into the queue pair | do nothing; the [`Completion`] gives it back |
//! | a peer | a [`MemoryRegion`] that peers may write, a [`Lease`](memory::Lease) | copy bytes and load words, never borrow |
//!
//! A [`Pool`](memory::Pool) keeps registered buffers ready: a program takes one or waits for one, and a dropped buffer
//! returns to its pool.
//!
//! Posting *moves* the buffer. No safety depends on a destructor: when an object is forgotten or dropped, memory that
//! the device may still write is leaked, never freed. Memory comes back with the completion of its request, or after
//! the device has confirmed that it destroyed or reset the queue pair.
//!
//! Providers differ in what they promise. [`Context::promises`] says what the library relies on for this device. If a
//! provider does not promise something, the library uses another way, or refuses with an error.
//!
//! Everything of a protection domain bears the [brand](Brand) `B` of the domain. Objects of two domains do not fit
//! together: ``expected `Buffer<Storage>`, found `Buffer<Scratch>` ``. A program that learns only at run time how many
//! domains it has uses the brand [`Checked`]; mixing is then refused at run time.
//!
//! # Names
//!
//! | a method named | does |
//! |---|---|
//! | `into_` | consumes the object: a transition to the next state, or an accessor that takes a part out |
//! | `post_` | hands a request to the device; [`QueuePair::post`] takes a [`WorkRequest`] with options |
//! | `..._with` | the same as the method without `_with`, with options |
//! | `..._on` | the same, on objects that the caller chooses: two completion queues, or a soft fabric |
//!
//! # When it does not compile
//!
//! | the compiler says | what to do |
//! |---|---|
//! | ``borrow of moved value: `buffer` `` | It was posted, so the device has it. Take it out of its completion ([`Success::into_buffer`]), or use another. [`SharedBuffer`] is for memory that is sent many times at once. |
//! | ``borrow of moved value: `pair` `` | A transition consumed it. Go on with the pair that the transition returned; in a struct field, use [`AnyQueuePair`]. |
//! | ``cannot post ... in state `Init` `` | The note names the transitions that are missing. |
//! | ``no method named `post_send` found`` for an [`AnyQueuePair`] | Ask for the pair in Ready To Send: [`AnyQueuePair::ready`]. |
//! | ``no method named `into_received` found`` for a [`Completion`] | Call [`check`](Completion::check) first: it tells success from failure. |
//! | ``no method named `poll` found`` for a [`CompletionQueue`] | The [`Poller`] polls; [`completion_queue`](ProtectionDomain::completion_queue) returns both. |
//! | `is not memory of the protection domain`, `the device cannot fill`, ``expected `Storage`, found `Scratch` `` | Two domains are mixed: take both objects from one domain. Or the memory is no buffer (a `&[u8]`), or a receive has a [`SharedBuffer`], which nobody may write. |
//! | `argument requires that borrow lasts for 'static`, for a post of [`Inline`] | The error of the post would keep the borrowed bytes. Let it drop them: `.map_err(PostError::into_cause)?`. |
//! | `lifetime may not live long enough`, `borrowed data escapes` | An object of a [scoped](Scoped) domain meets one of another, or leaves its closure. |
//!
//! # Errors
//!
//! A call that takes an object and fails gives the object back inside the error. [`VerbError`] is a verb that failed,
//! with its C name and `errno`; [`PostError`] is a request that was not posted; [`Failure`] is a request that was
//! posted and did not succeed, with its [`Status`] in words. The [`error`] module has the others; [`aio`], [`cm`] and
//! [`scope`] have their own.
//!
//! `?` turns all of them into a `Box<dyn Error>`, except an error that holds an object of a [scoped](Scoped) brand.
//! Such an error cannot leave its closure; `into_cause` drops the object and gives an error that can.
//!
//! The text of an error says what happened and, if the library knows it, what to do. If a section of
//! `docs/failures.md` explains the error, the text names the section: `see docs/failures.md#retry-exceeded`. A `main`
//! that returns an error prints its `Debug` form: print the error and its [sources](std::error::Error::source) instead,
//! as the examples do. No function of this library panics, except where its page has a heading `Panics` (a future that
//! is polled after its answer, for example), and no destructor fails silently: what had to be leaked is reported on
//! standard error.
//!
//! # The soft device
//!
//! [`soft`] is an RDMA device inside the process, for tests and for a first run. It needs no hardware, kernel module or
//! package, follows the specification, and checks what hardware checks. The devices `soft0` and `soft1` are always
//! there; a [`soft::Fabric`] can be stepped by hand and told to fail ([`soft::Fault`]). It is a test device, not a
//! transport between processes. It is never chosen silently: the program or `INTERLOCK_DEVICE=soft0` names it, and a
//! build without the feature `soft` does not contain it.
//!
//! # Features
//!
//! | feature | default | what |
//! |---|---|---|
//! | `rdma-core` | yes | real devices, through libibverbs, which is linked |
//! | `bindgen` | yes | makes the bindings from the installed headers at build time, with libclang; includes `rdma-core` |
//! | `soft` | yes | the soft device |
//! | `cm` | yes | connecting by address, the module [`cm`]; `rdma-core` and `soft` include it. librdmacm is linked if it is installed |
//! | `aio` | yes | futures of posted requests, the module [`aio`]; no runtime is needed |
//! | `tokio` | no | the drivers of the futures as tasks of a tokio runtime, and connections over its TCP streams (`aio::tcp`) |
//! | `tracing` | no | events for a subscriber of the crate `tracing`: see [Events](#events) |
//!
//! Without `bindgen` the library uses checked-in bindings, for x86-64 and 64-bit Arm. They suit the libibverbs of
//! rdma-core 44 and later. With `soft` alone nothing is linked. One of `rdma-core` and `soft` is needed. The
//! environment variable `INTERLOCK_DEVICE` names the device that [`Context::open_default`] takes.
//!
//! # Events
//!
//! With the feature `tracing` the library tells a subscriber, under the target `interlock`:
//!
//! | level | what |
//! |---|---|
//! | error | an object that the device refused to destroy, and that leaks |
//! | warn | a request that failed first on its queue pair; a peer that breaks the protocol of [`aio::lend`] |
//! | info | connections of [`aio`]: made, ended and why, closed |
//! | debug | queue pairs: made, moved to another state, ended (destroyed, or left to the poller); requests that end with their pair |
//!
//! No request that succeeds is an event. A failed request is reported when it is [checked](Completion::check). A
//! subscriber may run under a lock of the library, so it must not call the library. If it panics, the panic ends there.
//!
//! # What is not here yet
//!
//! XRC and the transports of vendors.
//!
//! # More
//!
//! In the repository: `docs/guide.md` (a chapter for each kind of program), `docs/architecture.md` (how the library is
//! built), `docs/walks.md` (a buffer, a pair and an error, function by function), `docs/trust-model.md` (what is
//! assumed, and why a program cannot corrupt memory), `docs/providers.md` (what each provider promises),
//! `docs/hazards.md` (known ways to get RDMA wrong, and what stops them), `docs/failures.md` (what each failure means),
//! `docs/conformance.md` (the specification case by case), `docs/performance.md` (what it costs),
//! `docs/from-async-rdma.md` (what each item of async-rdma is here).

#![deny(unsafe_code)]
#![cfg_attr(not(feature = "aio"), allow(dead_code, reason = "only `aio` uses some methods"))]
#![warn(
    missing_docs,
    missing_debug_implementations,
    unreachable_pub,
    rustdoc::broken_intra_doc_links,
    rustdoc::private_intra_doc_links,
    rustdoc::invalid_rust_codeblocks,
    rustdoc::bare_urls
)]

#[cfg(feature = "aio")]
pub mod aio;
#[cfg(feature = "cm")]
pub mod cm;
pub mod completion;
pub mod device;
pub mod domain;
mod front;
mod inflight;
pub mod memory;
mod os;
mod provider;
pub mod queue;
mod readiness;
pub mod scope;
mod seal;
mod sync;
mod sys;
mod trace;
mod types;
mod verb_error;
pub mod verbs;

pub use front::{access, attributes, datagram, error, event, number, request, shared, state, transport, window};
#[cfg(feature = "soft")]
pub use provider::soft;

pub use access::{LocalRead, LocalWrite, RemoteAll, RemoteAtomic, RemoteRead, RemoteReadWrite, RemoteWrite};
pub use completion::{Completion, CompletionQueue, Failure, Poller, Status, Success, Work};
pub use device::{Context, Device, Port, devices};
pub use domain::{Brand, Checked, ProtectionDomain, Scoped};
pub use error::{PostError, VerbError};
pub use memory::{Buffer, MemoryRegion, RemoteRegion, SharedBuffer};
pub use number::Gid;
pub use queue::{AnyQueuePair, Endpoint, Limits, QueuePair};
pub use request::{Inline, WorkId, WorkRequest};
pub use state::{Errored, Init, ReadyToReceive, ReadyToSend, Reset};
pub use transport::{ReliableConnection, UnreliableConnection, UnreliableDatagram};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

#[cfg(all(doctest, feature = "aio"))]
#[doc = include_str!("../docs/from-async-rdma.md")]
struct FromAsyncRdma;
