//! A connection that carries frames, and why it ends.

use crate::frame::{FRAME_BYTES, Frame, Kind, MOST_BODY, Violation};
use crate::place::Place;
use crate::rpc::SENDS;
use interlock::aio::{Connection, End, Posted};
use interlock::{Brand, Buffer, PostError, Status};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

/// The time that a connection has to give its buffers back.
const CLOSE: Duration = Duration::from_secs(10);

/// Why a connection was ended.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum Broken {
    #[error("the peer broke the protocol: it sent {0}")]
    Protocol(#[from] Violation),
    #[error("the connection ended: {0}")]
    Ended(End),
    #[error("the deadline came first")]
    Deadline,
    /// The fault of this side.
    #[error("{0}")]
    Local(String),
}

pub(crate) fn local(error: impl std::fmt::Display) -> Broken {
    Broken::Local(error.to_string())
}

/// A pair that has failed takes no more posts. A device whose connection is just ending may refuse one in a way that
/// leaves open whether it has taken it.
fn not_posted<M>(error: PostError<M>) -> Broken {
    match error {
        PostError::Broken { first_failure, .. } => Broken::Ended(End::Failed(first_failure.unwrap_or(Status::Flushed))),
        PostError::Uncertain { .. } => Broken::Ended(End::Failed(Status::Flushed)),
        other => local(other),
    }
}

/// A connection that carries frames.
pub(crate) struct Wire<B: Brand> {
    place: Arc<Place<B>>,
    pub(crate) connection: Connection<B>,
    /// The sends in flight, the oldest first.
    sent: VecDeque<Posted<B, Buffer<B>>>,
}

/// What happened to a connection.
pub(crate) enum Event {
    Frame(Frame),
    /// A send has completed: there is room for another one.
    Sent,
}

impl<B: Brand + 'static> Wire<B> {
    pub(crate) fn new(place: &Arc<Place<B>>, connection: Connection<B>) -> Self {
        Self { place: Arc::clone(place), connection, sent: VecDeque::new() }
    }

    pub(crate) fn has_room(&self) -> bool {
        self.sent.len() < SENDS
    }

    pub(crate) fn send(&mut self, kind: Kind, id: u64, body: &[u8]) -> Result<(), Broken> {
        let mut buffer = self.place.pool.try_take(FRAME_BYTES).map_err(local)?;
        if !Frame::write(&mut buffer, kind, id, body) {
            return Err(local(format_args!("a body has at most {MOST_BODY} bytes, not {}", body.len())));
        }
        self.sent.push_back(self.connection.send(buffer).map_err(not_posted)?);
        Ok(())
    }

    /// Waits for what happens next. The future may be dropped at any time.
    pub(crate) async fn next(&mut self) -> Result<Event, Broken> {
        let Self { connection, sent, .. } = self;
        let happened = poll_fn(|context| {
            if let Some(oldest) = sent.front_mut()
                && let Poll::Ready(result) = Pin::new(oldest).poll(context)
            {
                sent.pop_front();
                // `map` drops the buffer, which returns to the pool.
                return Poll::Ready(result.ok().map(|_| None));
            }
            connection.poll_next(context).map(|next| next?.ok().map(Some))
        });
        match happened.await {
            Some(None) => Ok(Event::Sent),
            Some(Some(received)) => {
                let buffer = received.into_received().map_err(|_| Violation::NoMessage)?;
                let frame = Frame::parse(&buffer);
                // Post the receive again before this message's credit is given back, so that the next message that uses
                // the credit finds a receive.
                self.connection.post_receive(buffer).map_err(not_posted)?;
                Ok(Event::Frame(frame?))
            }
            // A request failed, or no receive is left. Either way the connection has ended, and `closed` says why.
            None => Err(match self.connection.closed().await {
                // A message that is too long for its receive fails the receive. Soft-RoCE then reports the second of
                // these statuses (docs/conformance.md, C096).
                End::Failed(Status::LocalLength | Status::LocalQueuePairOperation) => Violation::TooLong.into(),
                end => Broken::Ended(end),
            }),
        }
    }

    /// Closes the connection. Returns whether every buffer came back.
    pub(crate) async fn close(self) -> bool {
        let closed = self.connection.close().within(CLOSE).await;
        closed.has_drained && closed.not_destroyed.is_none()
    }
}
