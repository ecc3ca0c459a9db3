//! Requests that succeeded.

use super::ended::Ended;
use super::work::{Datagram, Received, Scattered, Work, WrittenWithImmediate};
use crate::domain::brand::Branded;
use crate::inflight::{Entry, Operation, PostedMemory, WorkId};
use crate::memory::Buffer;
use crate::types::Qpn;
use std::{fmt, marker::PhantomData};

/// A request that succeeded. Dropping it drops the buffer.
///
/// It is read by methods, because it is decoded only when it is asked. A [`Failure`](super::Failure) has fields, as
/// other errors have, so that a pattern takes it apart.
pub struct Success<B> {
    ended: Ended,
    entry: Entry,
    brand: Branded<B>,
}

impl<B> Success<B> {
    #[inline(always)]
    pub(super) fn new(ended: Ended, entry: Entry) -> Self {
        Self { ended, entry, brand: PhantomData }
    }

    /// The id that the post returned.
    #[inline]
    pub fn id(&self) -> WorkId {
        self.ended.id
    }

    /// The queue pair that the request was posted to; for a shared receive, the pair that took it.
    #[inline]
    pub fn queue_pair(&self) -> Qpn {
        self.ended.qpn()
    }

    /// The operation of the request.
    #[inline]
    pub fn operation(&self) -> Operation {
        self.entry.operation(self.ended.id.key().kind())
    }

    /// The result of the request, with its memory.
    #[inline]
    pub fn into_work(self) -> Work<B> {
        match self.operation() {
            Operation::Receive => self.into_receive(),
            operation => Work::of(operation, self.entry.into_memory(), self.ended.device_status()),
        }
    }

    #[inline]
    fn into_receive(self) -> Work<B> {
        let ended = self.ended;
        match self.entry.into_memory() {
            PostedMemory::Unique(buffer) if ended.is_with_write() => Work::WrittenWithImmediate(WrittenWithImmediate {
                buffer,
                written_bytes: ended.byte_len(),
                immediate: ended.immediate().unwrap_or(0),
            }),
            PostedMemory::Unique(buffer) => match ended.datagram() {
                None => {
                    Work::Received(Received { buffer, immediate: ended.immediate(), invalidated: ended.invalidated() })
                }
                Some((with_header, lid, service_level, sender)) => Work::Datagram(Datagram {
                    sender,
                    lid,
                    service_level,
                    immediate: ended.immediate(),
                    with_header,
                    buffer,
                }),
            },
            PostedMemory::List(list) => Work::Scattered(Scattered {
                list,
                written_bytes: ended.is_with_write().then_some(ended.byte_len()),
                immediate: ended.immediate(),
                invalidated: ended.invalidated(),
            }),
            // Unreachable: a receive has one of the two kinds of memory above.
            memory => Work::Sent(memory),
        }
    }

    /// The memory of the request.
    #[inline]
    pub fn into_memory(self) -> PostedMemory<B> {
        self.entry.into_memory()
    }

    /// The buffer of the request, if it had one. Other memory is dropped.
    #[inline(always)]
    pub fn into_buffer(self) -> Option<Buffer<B>> {
        self.entry.into_buffer()
    }

    /// The buffer of a message that was received over a connection.
    ///
    /// # Errors
    ///
    /// This value, with its memory, if the request was anything else: a request of this side, a datagram, a receive
    /// into a list, or a receive that a write with immediate took.
    ///
    /// # Examples
    ///
    /// A loop that takes messages, and keeps the buffers of its sends for the next ones:
    ///
    /// ```no_run
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # interlock::domain! { struct Docs; }
    /// # let (mut poller, mut free): (interlock::Poller<Docs>, Vec<interlock::Buffer<Docs>>) = todo!();
    /// # use std::time::Duration;
    /// let message = loop {
    ///     match poller.wait(Duration::from_secs(1))?.check()?.into_received() {
    ///         Ok(message) => break message,
    ///         Err(other) => free.extend(other.into_buffer()),
    ///     }
    /// };
    /// # Ok(()) }
    /// ```
    #[inline]
    pub fn into_received(self) -> Result<Buffer<B>, Self> {
        let is_message =
            self.operation() == Operation::Receive && !self.ended.is_with_write() && self.ended.datagram().is_none();
        if !is_message {
            return Err(self);
        }
        let Self { ended, entry, brand } = self;
        match entry.try_into_buffer() {
            Ok(buffer) => Ok(buffer),
            Err(entry) => Err(Self { ended, entry, brand }),
        }
    }
}

impl<B> fmt::Debug for Success<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Success")
            .field("id", &self.ended.id)
            .field("queue_pair", &self.queue_pair())
            .field("operation", &self.operation())
            .finish_non_exhaustive()
    }
}
