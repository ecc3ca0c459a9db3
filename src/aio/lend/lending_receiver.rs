//! The messages of a connection: those of the program come out, and the control messages do their work.

use super::lending::{Lending, LendingOptions, Mark};
use super::record::CONTROL_BYTES;
use super::shared::Shared;
use super::violation::Violation;
use crate::aio::{Posted, Receiver, RequestError, SharedPoller, SharedSender};
use crate::completion::Success;
use crate::domain::{Brand, ProtectionDomain};
use crate::inflight::{PostError, WorkId, WorkRequest};
use crate::memory::{Buffer, RegisterFailure};
use crate::trace;
use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;

/// How many control messages are obeyed in a row before other tasks run.
const BUDGET: u32 = 64;

/// The messages that a connection receives. Whoever waits for the [`next`](Self::next) one also sends and receives the
/// control messages of the [`Lending`], so a task must wait here all the time.
///
/// A receive that a control message took is posted again at once, so there are always as many receives as the program
/// has posted. Dropping this ends the lending: what the peer holds is over, and requests are answered with `Closed`.
pub struct LendingReceiver<B> {
    lending: Lending<B>,
    receiver: Receiver<B>,
    outbound: Outbound<B>,
    mark: Mark,
    /// How many control messages came one after the other without a wait.
    in_a_row: u32,
}
static_assertions::assert_impl_all!(LendingReceiver<()>: Send);

/// The buffers of the control messages that this side sends.
struct Outbound<B> {
    idle: Vec<Buffer<B>>,
    sending: VecDeque<Posted<B, Buffer<B>>>,
}

/// Why there is no next message.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum MessageError<B> {
    /// A receive failed, so the connection has ended. The memory comes back in it.
    #[error("{0}")]
    Request(RequestError<B>),
    /// The peer has broken the protocol. The connection goes on.
    #[error(transparent)]
    Peer(Violation),
}

impl<B> fmt::Debug for MessageError<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Request(error) => f.debug_tuple("Request").field(error).finish(),
            Self::Peer(violation) => f.debug_tuple("Peer").field(violation).finish(),
        }
    }
}

/// What a message that was received is.
enum Sorted<B> {
    /// A message of the program, or another completion.
    Data(Success<B>),
    /// A control message, which was obeyed. Post its buffer again.
    Control(Buffer<B>),
    /// A control message that breaks the protocol. Post its buffer again.
    Refused(Buffer<B>, Violation),
}

impl<B: Brand> Lending<B> {
    /// Starts to lend over a connection, whose peer does the same with the same [`Mark`].
    ///
    /// The receives of the program must have room for [`CONTROL_BYTES`], and the peer sends control messages at any
    /// time, so there must be receives for them.
    ///
    /// # Errors
    ///
    /// The buffers for control messages were not registered.
    pub fn start(
        domain: &ProtectionDomain<B>,
        poller: &SharedPoller<B>,
        sender: SharedSender<B>,
        receiver: Receiver<B>,
        options: &LendingOptions,
    ) -> Result<(Self, LendingReceiver<B>), RegisterFailure> {
        let idle = domain.buffers(options.messages.max(1), CONTROL_BYTES)?;
        let shared = Arc::new(Shared::new(options.quota, options.most_held, options.margin));
        let lending = Self { shared, sender, poller: poller.clone() };
        let outbound = Outbound { idle, sending: VecDeque::new() };
        Ok((lending.clone(), LendingReceiver { lending, receiver, outbound, mark: options.mark, in_a_row: 0 }))
    }
}

impl<B: Brand> LendingReceiver<B> {
    /// Posts a receive: see [`Receiver::post`].
    ///
    /// # Errors
    ///
    /// As [`Receiver::post`].
    pub fn post(&mut self, buffer: Buffer<B>) -> Result<WorkId, PostError<Buffer<B>>> {
        self.receiver.post(buffer)
    }

    /// The next message of the program. `None` if no receive is posted, so that none can come.
    ///
    /// Dropping the future loses nothing.
    ///
    /// # Errors
    ///
    /// [`MessageError`].
    pub async fn next(&mut self) -> Option<Result<Success<B>, MessageError<B>>> {
        let Self { lending, receiver, outbound, mark, in_a_row } = self;
        let mut sending = pin!(outbound.send_all(lending, *mark));
        let mut is_sending = true;
        poll_fn(|context| {
            if is_sending && sending.as_mut().poll(context).is_ready() {
                is_sending = false;
            }
            loop {
                if *in_a_row == BUDGET {
                    *in_a_row = 0;
                    context.waker().wake_by_ref();
                    return Poll::Pending;
                }
                let message = match receiver.poll_next(context) {
                    Poll::Pending => {
                        *in_a_row = 0;
                        return Poll::Pending;
                    }
                    Poll::Ready(None) => return Poll::Ready(None),
                    Poll::Ready(Some(Err(error))) => {
                        lending.shared.change(|core| core.lose_peer());
                        return Poll::Ready(Some(Err(MessageError::Request(error))));
                    }
                    Poll::Ready(Some(Ok(message))) => message,
                };
                let (buffer, violation) = match lending.sort(message, *mark) {
                    Sorted::Data(message) => return Poll::Ready(Some(Ok(message))),
                    Sorted::Control(buffer) => (buffer, None),
                    Sorted::Refused(buffer, violation) => (buffer, Some(violation)),
                };
                *in_a_row += 1;
                // If the pair is broken, the next receive says so.
                drop(receiver.post(buffer));
                if let Some(violation) = violation {
                    return Poll::Ready(Some(Err(MessageError::Peer(violation))));
                }
            }
        })
        .await
    }

    /// As [`next`](Self::next), for a program that sends no messages of its own: runs until the connection ends, or no
    /// receive is posted. Messages of the peer's program are dropped, and violations only counted.
    pub async fn run(mut self) {
        while let Some(message) = self.next().await {
            match message {
                Ok(message) => drop(message.into_buffer().map(|buffer| self.post(buffer))),
                Err(MessageError::Peer(_)) => {}
                Err(MessageError::Request(_)) => return,
            }
        }
    }
}

impl<B: Brand> Lending<B> {
    /// Obeys a message if it is a control message.
    fn sort(&self, message: Success<B>, mark: Mark) -> Sorted<B> {
        let is_control = match mark {
            Mark::Immediate(mark) => message.immediate() == Some(mark),
            Mark::Every => true,
        };
        if !is_control {
            return Sorted::Data(message);
        }
        let buffer = match message.into_received() {
            Ok(buffer) => buffer,
            Err(other) => return Sorted::Data(other),
        };
        match self.shared.change(|core| core.receive(&buffer)) {
            Ok(()) => Sorted::Control(buffer),
            Err(violation) => {
                trace::violated(&violation);
                Sorted::Refused(buffer, violation)
            }
        }
    }
}

impl<B: Brand> Outbound<B> {
    /// Sends control messages for as long as the connection can. Dropping the future loses none.
    async fn send_all(&mut self, lending: &Lending<B>, mark: Mark) {
        loop {
            lending.shared.wait(|core| core.has_outgoing().then_some(())).await;
            while self.idle.is_empty() {
                let Some(first) = self.sending.front_mut() else { return };
                let sent = poll_fn(|context| Pin::new(&mut *first).poll(context)).await;
                self.sending.pop_front();
                match sent {
                    Ok(buffer) => self.idle.push(buffer),
                    Err(_) => return lending.shared.change(|core| core.lose_peer()),
                }
            }
            let Ok(permit) = lending.sender.room().await else { return };
            let Some(mut buffer) = self.idle.pop() else { continue };
            let Some(message) = lending.shared.with(|core| core.take_outgoing()) else {
                self.idle.push(buffer);
                continue;
            };
            if buffer.write(&message.to_bytes()).is_err() {
                return;
            }
            let posted = permit.with(|sender| {
                let request = WorkRequest::send(buffer);
                let request = match mark {
                    Mark::Immediate(mark) => request.with_immediate(mark),
                    Mark::Every => request,
                };
                match message.is_fenced() {
                    true => sender.post(request.fenced()).map_err(|error| error.map(WorkRequest::into_inner)),
                    false => sender.post(request).map_err(|error| error.map(WorkRequest::into_inner)),
                }
            });
            match posted {
                Ok(posted) => self.sending.push_back(posted),
                Err(error) => {
                    let is_full = matches!(error, PostError::QueueFull(_));
                    self.idle.extend(error.into_request());
                    lending.shared.with(|core| core.put_back(message));
                    if !is_full {
                        return lending.shared.change(|core| core.lose_peer());
                    }
                }
            }
        }
    }
}

impl<B> Drop for LendingReceiver<B> {
    fn drop(&mut self) {
        self.lending.shared.change(|core| core.lose_peer());
    }
}

impl<B> fmt::Debug for LendingReceiver<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LendingReceiver")
            .field("lending", &self.lending)
            .field("mark", &self.mark)
            .finish_non_exhaustive()
    }
}
