//! The reasons why a request was not posted. Each error gives the request back, except `Uncertain`: then the device may
//! have it.

use crate::device::iwarp::NotOnIwarp;
use crate::inflight::{Status, WorkId};
use crate::memory::MAX_MESSAGE_BYTES;
use crate::verb_error::VerbError;
use std::{error, fmt};

/// A request was not posted, or may not have been posted. `R` is the request that comes back.
#[non_exhaustive]
pub enum PostError<R> {
    /// The queue is full of requests in flight. Poll, then post again.
    ///
    /// The slot of a request becomes free when it and all requests before it have completed. On some devices, requests
    /// complete in any order, so several polls may be needed. Receives of a shared receive queue do not wait for each
    /// other.
    QueueFull(R),
    /// The pair, or the shared receive queue, has failed: a completion reported it, or an earlier post was uncertain.
    /// Destroy the pair or the queue; a pair can also be reset where
    /// [`pairs_can_be_reset`](crate::device::Promises::pairs_can_be_reset) is true.
    Broken {
        /// The request.
        request: R,
        /// The failure that broke the pair or the queue, if a completion reported one.
        first_failure: Option<Status>,
    },
    /// The parts of the request do not fit together.
    Flawed {
        /// The request.
        request: R,
        /// Why they do not fit.
        flaw: RequestFlaw,
    },
    /// The provider refused the request.
    Refused {
        /// The request.
        request: R,
        /// What the provider answered.
        source: VerbError,
    },
    /// The provider answered with an error, and the device may still execute the request: the provider did not name the
    /// refused request, or cannot be relied on to name it
    /// ([`refusals_are_sure`](crate::device::Promises::refusals_are_sure)).
    ///
    /// The pair is broken, and the memory of the request stays with the device: it comes back with a completion, or
    /// after the pair was destroyed or reset. If the poller destroys pairs
    /// ([`pairs_end_at_once`](crate::device::Promises::pairs_end_at_once) is false), the poller first waits for this
    /// request. So the memory and the pair may stay until the completion queue is dropped.
    Uncertain {
        /// The id of the request.
        id: WorkId,
        /// What the provider answered.
        source: VerbError,
    },
}

impl<R> PostError<R> {
    /// The request, unless the device may have it.
    pub fn into_request(self) -> Option<R> {
        match self {
            Self::QueueFull(request)
            | Self::Broken { request, .. }
            | Self::Flawed { request, .. }
            | Self::Refused { request, .. } => Some(request),
            Self::Uncertain { .. } => None,
        }
    }

    /// The error without the request, which is dropped. The result has no brand, so it can leave the closure of
    /// [`Context::with_domain`](crate::Context::with_domain).
    pub fn into_cause(self) -> PostError<()> {
        self.map(drop)
    }

    /// The same error, with the request replaced by the result of `f`.
    pub fn map<P>(self, f: impl FnOnce(R) -> P) -> PostError<P> {
        match self {
            Self::QueueFull(request) => PostError::QueueFull(f(request)),
            Self::Broken { request, first_failure } => PostError::Broken { request: f(request), first_failure },
            Self::Flawed { request, flaw } => PostError::Flawed { request: f(request), flaw },
            Self::Refused { request, source } => PostError::Refused { request: f(request), source },
            Self::Uncertain { id, source } => PostError::Uncertain { id, source },
        }
    }
}

impl<R> fmt::Display for PostError<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::QueueFull(_) => f.write_str(
                "the work queue is full: take completions (in a scope, wait for its tickets), then post again (see \
                 docs/failures.md#queue-full)",
            ),
            Self::Broken { first_failure: Some(first), .. } => {
                write!(f, "the queue pair has failed: {first} (see docs/failures.md#broken)")
            }
            Self::Broken { first_failure: None, .. } => f.write_str(
                "the queue pair or the shared receive queue has failed: destroy it, or reset the pair where that is \
                 allowed (see docs/failures.md#broken)",
            ),
            Self::Flawed { flaw, .. } => write!(f, "{flaw} (see docs/failures.md#flawed)"),
            Self::Refused { .. } => f.write_str("the provider refused the request (see docs/failures.md#refused)"),
            Self::Uncertain { .. } => f.write_str(
                "the provider failed, and the request may have been posted: destroy the queue pair (or reset it, where \
                 that is allowed) or the shared receive queue; the memory comes back then, or when the completion \
                 queue is dropped (see docs/failures.md#uncertain)",
            ),
        }
    }
}

impl<R> fmt::Debug for PostError<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Self::QueueFull(_) => "QueueFull",
            Self::Broken { .. } => "Broken",
            Self::Flawed { .. } => "Flawed",
            Self::Refused { .. } => "Refused",
            Self::Uncertain { .. } => "Uncertain",
        };
        let mut debug = f.debug_struct(name);
        match self {
            Self::Broken { first_failure, .. } => debug.field("first_failure", first_failure),
            Self::Flawed { flaw, .. } => debug.field("flaw", flaw),
            Self::Refused { source, .. } | Self::Uncertain { source, .. } => debug.field("source", source),
            Self::QueueFull(_) => &mut debug,
        };
        debug.finish_non_exhaustive()
    }
}

impl<R> error::Error for PostError<R> {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        match self {
            Self::Refused { source, .. } | Self::Uncertain { source, .. } => Some(source),
            _ => None,
        }
    }
}

/// The limits that can be `within`. Which of them it was depends on the request: see docs/failures.md, "Flawed".
fn limit(within: u64) -> &'static str {
    const MESSAGE: u64 = MAX_MESSAGE_BYTES as u64;
    match within {
        MESSAGE.. => "the length of the longest message",
        // The MTU of a port is a power of two from 256 to 4096.
        256..=4096 if within.is_power_of_two() => {
            "the length of the peer's memory or of the buffer of the read, the port's MTU, or `Limits::inline_bytes`"
        }
        // A pair keeps its `Limits::inline_bytes` as a `u16`, so `inline_bytes` is at most 0xffff.
        0..=0xffff => "the length of the peer's memory or of the buffer of the read, or `Limits::inline_bytes`",
        _ => "the length of the peer's memory or of the buffer of the read",
    }
}

/// Parts of a request that do not fit together. The device did not get the request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RequestFlaw {
    /// More bytes than there is room for: at the target (the peer's memory for a write, the buffer for a read), in a
    /// message, in a datagram (the port's MTU), or [inline](crate::Inline).
    #[error("{len_bytes} bytes are too many: the limit is {within} bytes, which is {}", limit(*within))]
    TooLong {
        /// How many bytes would be moved.
        len_bytes: u64,
        /// How many bytes there is room for.
        within: u64,
    },
    /// Memory, or a recipient, of another protection domain than the queue's. Only domains of the brand
    /// [`Checked`](crate::Checked) get this far; others do not compile.
    #[error("the memory or the recipient belongs to another protection domain: take it from the domain of the queue")]
    OtherDomain,
    /// More buffers in a list than the pair takes.
    #[error(
        "the list has {elements} buffers, and the queue pair takes {most}: post fewer, or raise `Limits::elements`"
    )]
    TooManyElements {
        /// How many buffers the list has.
        elements: usize,
        /// How many the pair takes.
        most: u32,
    },
    /// A read into a list of several buffers, on a device that reads into one only. Soft iWARP would fill the first
    /// buffer and report success.
    #[error("the read is into {elements} buffers, and this device reads into one: post a read for each buffer")]
    OneBufferPerRead {
        /// How many there are.
        elements: usize,
    },
    /// A datagram comes with a header of 40 bytes, for which the receive must have room.
    #[error("a receive for datagrams must have room for the routing header: post at least 40 bytes, not {len_bytes}")]
    NoRoomForHeader {
        /// How many bytes there are.
        len_bytes: u64,
    },
    /// A read, an atomic or an atomic write on a pair that may have none outstanding. On some devices the request would
    /// never complete.
    #[error(
        "the queue pair was connected with a depth of 0 for reads and atomics: connect it with a larger depth (see \
         `ConnectAttributes::read_depth` and `cm::Parameters::initiator_depth`)"
    )]
    NoReadDepth,
    /// The device is an iWARP device, which cannot do what the request asks for.
    #[error(transparent)]
    NotOnIwarp(NotOnIwarp),
    /// A receive into lent memory of 0 bytes, which was not registered.
    #[error("the receive has no memory: lend it at least one byte")]
    EmptyReceive,
    /// The queue pair was created without atomic writes.
    #[error("the queue pair cannot post atomic writes: create the pair with `Posting::AtomicWrites`")]
    NoAtomicWrites,
    /// The memory of a window consists of whole words, as does all memory that peers reach.
    #[error(
        "the memory of a window must be 8-byte aligned and a multiple of 8 bytes long, not {len_bytes} bytes at {address:#x}"
    )]
    NotInWords {
        /// The address.
        address: u64,
        /// How many bytes there are.
        len_bytes: u64,
    },
    /// The device does not check the bounds of a window: through it, peers reach the whole region.
    #[error(
        "on this device, peers reach all {region_bytes} bytes of the region through a window, not only the {len_bytes} \
         bytes of the window: register the part by itself (`ProtectionDomain::register`), and bind the window over \
         that region"
    )]
    WindowOverPart {
        /// How many bytes the window should have.
        len_bytes: u64,
        /// How many bytes its region has.
        region_bytes: u64,
    },
    /// On this device no request can end a window safely: afterwards peers may still reach the memory, or the request
    /// does harm.
    #[error("on this device no request ends a window safely: `dealloc` the window, and deregister its region")]
    NoBarrier,
    /// Only the pair that made a window of type 2 can bind or revoke it.
    #[error("the window belongs to another queue pair: use that pair, or make a window with `QueuePair::window`")]
    WindowOfAnotherPair,
    /// The pair that made the window is destroyed.
    #[error(
        "the window has ended with its queue pair: call `dealloc`, which gives back the memory of a bound window, and \
         make another with `QueuePair::window`"
    )]
    WindowEnded,
    /// The pair posts through `ibv_wr_*`, which takes no requests about windows.
    #[error("the queue pair cannot bind, revoke or invalidate a window: create the pair with `Posting::List`")]
    NotInSession,
    /// An atomic works on 8 bytes at an address that is a multiple of 8, on both sides.
    #[error("the memory of an atomic must be 8 bytes, 8-byte aligned, not {len_bytes} bytes at {address:#x}")]
    NotAWord {
        /// The address.
        address: u64,
        /// How many bytes there are.
        len_bytes: u64,
    },
}

impl RequestFlaw {
    #[cold]
    pub(super) fn of(len_bytes: u64, within: u64) -> Self {
        Self::TooLong { len_bytes, within }
    }
}
