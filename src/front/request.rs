//! Work requests: what is asked of the device, and the memory that goes with it.
//!
//! [`QueuePair::post_send`](crate::QueuePair::post_send) and its like post one request of the usual form. Everything
//! else is a [`WorkRequest`] made here and given to [`QueuePair::post`](crate::QueuePair::post): unsignalled,
//! solicited, fenced or inline ones, those with an immediate, lists of buffers. A [`Batch`] posts many with one
//! doorbell. Each post gives a [`WorkId`], which the completion has again. The kinds ([`Send`], [`Write`], ...) are
//! types, so that a pair takes only requests that its transport carries.
//!
//! ```
//! use interlock::request::WorkRequest;
//! use interlock::{Brand, Buffer, QueuePair};
//! use interlock::error::PostError;
//!
//! /// Sends without a completion of its own: the next signalled request brings the buffer back.
//! fn send_quietly<B: Brand>(pair: &mut QueuePair<B>, buffer: Buffer<B>) -> bool {
//!     pair.post(WorkRequest::send(buffer).unsignalled()).is_ok()
//! }
//! ```

pub use crate::inflight::{Operation, PostedMemory, WorkId};
pub use crate::queue::batch::Batch;
pub use crate::queue::request::{
    Atomic, AtomicWrite, BindWindow, Fenced, Read, Revoke, Send, SendInvalidating, SendTo, Write,
};
pub use crate::queue::request::{CarriesImmediate, FillMemory, Inline, RequestMemory, SendMemory, WorkRequest};
