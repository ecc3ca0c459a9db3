//! Work requests: the operations that a program posts, and their memory.
//!
//! [`QueuePair::post_send`](crate::QueuePair::post_send) and its siblings post one request of the usual form. For any
//! other form, make a [`WorkRequest`] and give it to [`QueuePair::post`](crate::QueuePair::post): unsignalled,
//! solicited, fenced or inline, with an immediate, or with a list of buffers. A [`Batch`] posts many with one doorbell.
//! Each post returns a [`WorkId`], which the completion carries too. The kinds ([`Send`], [`Write`], ...) are types, so
//! that a pair accepts only requests that its transport carries.
//!
//! ```
//! use interlock::request::WorkRequest;
//! use interlock::{Brand, Buffer, QueuePair};
//! use interlock::error::PostError;
//!
//! /// Sends without a completion of its own: the buffer comes back with the next signalled request.
//! fn send_quietly<B: Brand>(pair: &mut QueuePair<B>, buffer: Buffer<B>) -> bool {
//!     pair.post(WorkRequest::send(buffer).unsignalled()).is_ok()
//! }
//! ```

pub use crate::inflight::{Operation, PostedMemory, WorkId};
pub use crate::queue::batch::Batch;
pub use crate::queue::request_kinds::{
    Atomic, AtomicWrite, BindWindow, Fenced, Read, Revoke, Send, SendInvalidating, SendTo, Write,
};
pub use crate::queue::request_kinds::{CarriesImmediate, FillMemory, Inline, RequestMemory, SendMemory, WorkRequest};
