//! Why a request was not posted, with the request.

use crate::inflight::{Status, WorkId};
use crate::verb_error::VerbError;
use std::{error, fmt};

/// A request that was not posted, or that may not have been. `R` is what comes back.
#[non_exhaustive]
pub enum PostError<R> {
    /// As many requests as the queue holds are in flight. Poll, then post again.
    QueueFull(R),
    /// The pair, or the shared receive queue, has failed: a completion said so, or an earlier post was uncertain. Reset
    /// or destroy it.
    Broken {
        /// What was to be posted.
        request: R,
        /// What broke it, if a completion said.
        first_failure: Option<Status>,
    },
    /// The request's parts do not go together.
    Flawed {
        /// What was to be posted.
        request: R,
        /// Why not.
        flaw: RequestFlaw,
    },
    /// The provider refused it.
    Refused {
        /// What was to be posted.
        request: R,
        /// What the provider answered.
        source: VerbError,
    },
    /// The provider answered with an error, and the device may still execute the request: the provider did not name the
    /// request at fault, or its word is not enough ([`refusals_are_sure`](crate::device::Promises::refusals_are_sure)).
    ///
    /// Its memory stays with the device: it comes back with a completion, or once the pair was reset or destroyed. The
    /// pair is broken. Where the poller destroys pairs
    /// ([`pairs_end_at_once`](crate::device::Promises::pairs_end_at_once) is false), it waits for this request, so
    /// memory and pair may stay until the completion queue is dropped.
    Uncertain {
        /// The id of the request.
        id: WorkId,
        /// What the provider answered.
        source: VerbError,
    },
}

impl<R> PostError<R> {
    /// What was to be posted, unless the device may have it.
    pub fn into_request(self) -> Option<R> {
        match self {
            Self::QueueFull(request)
            | Self::Broken { request, .. }
            | Self::Flawed { request, .. }
            | Self::Refused { request, .. } => Some(request),
            Self::Uncertain { .. } => None,
        }
    }

    /// The error without the request, which is dropped. It can leave a scoped domain.
    pub fn into_cause(self) -> PostError<()> {
        self.map(drop)
    }

    /// The same error, with what `f` makes of the request.
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
                "the work queue is full: take completions (in a scope, the results of its tickets), then post again",
            ),
            Self::Broken { first_failure: Some(first), .. } => write!(f, "the queue pair has failed: {first}"),
            Self::Broken { first_failure: None, .. } => f.write_str("the queue has failed: reset or destroy it"),
            Self::Flawed { flaw, .. } => flaw.fmt(f),
            Self::Refused { .. } => f.write_str("the provider refused the request"),
            Self::Uncertain { .. } => f.write_str("the provider failed with the request possibly posted"),
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

/// A request whose parts do not go together. Nothing reached the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RequestFlaw {
    /// More bytes than fit at the target (the peer's memory for a write, the buffer for a read), in a message, in a
    /// datagram (the port's MTU), or than the pair takes [inline](crate::Inline).
    #[error(
        "{len_bytes} bytes do not fit in {within}: in what is written to or read into, in a message, in a datagram (the MTU), \
         or, of `Inline`, in what `Limits::inline_bytes` asked for"
    )]
    TooLong {
        /// How many bytes would be moved.
        len_bytes: u64,
        /// How many bytes there is room for.
        within: u64,
    },
    /// Memory, or a recipient, of another protection domain than the queue's. Only domains of the brand
    /// [`Checked`](crate::Checked) get this far; others do not compile.
    #[error("memory or recipient of another protection domain: take them from the domain that the queue is of")]
    OtherDomain,
    /// More buffers in a list than the pair takes.
    #[error("a list of {elements} buffers, where the queue pair takes {most}: see `Limits::elements`")]
    TooManyElements {
        /// How many there are.
        elements: usize,
        /// How many the pair was made for.
        most: u32,
    },
    /// A datagram comes with a header of 40 bytes, for which the receive must have room.
    #[error("a receive of datagrams needs at least 40 bytes, for the routing header; there are {len_bytes}")]
    NoRoomForHeader {
        /// How many bytes there are.
        len_bytes: u64,
    },
    /// A read, an atomic or an atomic write on a pair that may have none outstanding. Some devices would wait with it
    /// for ever.
    #[error(
        "the queue pair was connected to have no reads and atomics outstanding: see `RtsAttributes::initiator_depth` and \
         `ConnectAttributes::read_depth`"
    )]
    NoReadDepth,
    /// A receive into lent memory of no bytes, which was not registered.
    #[error("a receive needs at least one byte of memory")]
    EmptyReceive,
    /// The queue pair was not made for atomic writes.
    #[error("the queue pair has no atomic writes: create it with `Posting::AtomicWrites`")]
    NoAtomicWrites,
    /// Memory that peers reach is made of words, and so is the memory of a window.
    #[error("a window is bound over whole words; these are {len_bytes} bytes at {address:#x}")]
    NotInWords {
        /// The address.
        address: u64,
        /// How many bytes there are.
        len_bytes: u64,
    },
    /// This device does not keep peers within a window.
    #[error(
        "this device does not keep peers within a window ({len_bytes} bytes of a region of {region_bytes}): \
         bind it over a whole region; `ProtectionDomain::register` makes one of a buffer"
    )]
    WindowOverPart {
        /// How many bytes the window should have.
        len_bytes: u64,
        /// How many its region has.
        region_bytes: u64,
    },
    /// On this device, no request can end the window safely: peers may still reach the memory afterwards, or the
    /// request does harm.
    #[error("windows of this device are not ended by requests: `dealloc` them, and deregister their region")]
    NoBarrier,
    /// A window of type 2 is for the pair that it was made by.
    #[error("the window was made by another queue pair")]
    WindowOfAnotherPair,
    /// The pair that the window was made by is destroyed.
    #[error("the window was freed with its queue pair")]
    WindowEnded,
    /// The pair posts through `ibv_wr_*`.
    #[error("windows are posted on pairs with `Posting::List` only")]
    NotInSession,
    /// An atomic works on 8 bytes at an address that is a multiple of 8, on both sides.
    #[error("an atomic needs 8 bytes at a multiple of 8; there are {len_bytes} at {address:#x}")]
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
