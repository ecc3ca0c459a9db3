//! Receives the messages of a connection, hands those of the program out, and obeys the control messages.

use super::lending::{Lending, LendingOptions, Mark};
use super::record::CONTROL_BYTES;
use super::shared::{Shared, Wakes};
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

/// The messages that a connection receives. A task that waits for the [`next`](Self::next) one also sends and receives
/// the control messages of the [`Lending`], so a task must always wait here.
///
/// Control messages wait for room in the send queue, like the requests of the program. Each message of the peer's
/// program that comes meanwhile sends them back to the end of that line. So if tasks always wait for room, and messages
/// come all the time, control messages wait for as long as that lasts.
///
/// If a control message takes a receive, its buffer is posted again at once. So control messages use up no receives of
/// the program. Dropping this ends the lending on this side: all grants are over, those that this side gave and those
/// that it got, and its requests fail with [`AskError::Closed`](super::AskError::Closed).
pub struct LendingReceiver<B> {
    lending: Lending<B>,
    receiver: Receiver<B>,
    outbound: Outbound<B>,
    mark: Mark,
    /// How many control messages came one after another without a wait.
    in_a_row: u32,
    /// An error that the program has not got yet. If a waker panics before, it is still here for the next call.
    error: Option<MessageError<B>>,
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
    /// A receive failed, so the connection has ended. The error contains the memory.
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

/// A completion of the receive queue, by its kind.
enum Sorted<B> {
    /// A message of the program, or another completion.
    Data(Success<B>),
    /// A control message, which was obeyed. Post its buffer again, then wake.
    Control(Buffer<B>, Wakes),
    /// A control message that breaks the protocol. Post its buffer again, then wake.
    Refused(Buffer<B>, Violation, Wakes),
}

impl<B: Brand> Lending<B> {
    /// Starts to lend over a connection. The peer must do the same, with the same [`Mark`].
    ///
    /// Control messages take receives of the program, so each receive must have room for [`CONTROL_BYTES`]. The peer
    /// may send control messages at any time, so there must always be receives posted.
    ///
    /// # Errors
    ///
    /// The library could not register the buffers for control messages.
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
        let (mark, in_a_row, error) = (options.mark, 0, None);
        Ok((lending.clone(), LendingReceiver { lending, receiver, outbound, mark, in_a_row, error }))
    }
}

impl<B: Brand> LendingReceiver<B> {
    /// Posts a receive: see [`Receiver::post_receive`].
    ///
    /// # Errors
    ///
    /// As [`Receiver::post_receive`].
    pub fn post_receive(&mut self, buffer: Buffer<B>) -> Result<WorkId, PostError<Buffer<B>>> {
        self.receiver.post_receive(buffer)
    }

    /// The next message of the program. `None` if no receive is posted, since no message can come then.
    ///
    /// Dropping the future loses nothing.
    ///
    /// # Errors
    ///
    /// [`MessageError`].
    pub async fn next(&mut self) -> Option<Result<Success<B>, MessageError<B>>> {
        let Self { lending, receiver, outbound, mark, in_a_row, error } = self;
        let mut sending = pin!(Some(outbound.send_all(lending, *mark)));
        let next = poll_fn(|context| {
            if sending.as_mut().as_pin_mut().is_some_and(|sending| sending.poll(context).is_ready()) {
                sending.set(None);
            }
            loop {
                if let Some(error) = error.take() {
                    return Poll::Ready(Some(Err(error)));
                }
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
                    Poll::Ready(Some(Err(failed))) => {
                        *error = Some(MessageError::Request(failed));
                        lending.shared.change(|core| core.lose_peer());
                        continue;
                    }
                    Poll::Ready(Some(Ok(message))) => message,
                };
                let (buffer, wakes) = match lending.sort(message, *mark) {
                    Sorted::Data(message) => return Poll::Ready(Some(Ok(message))),
                    Sorted::Control(buffer, wakes) => (buffer, wakes),
                    Sorted::Refused(buffer, found, wakes) => {
                        *error = Some(MessageError::Peer(found));
                        (buffer, wakes)
                    }
                };
                *in_a_row += 1;
                // The result is ignored. If the post fails, the buffer is dropped. If it fails because the pair is
                // broken, the next `poll_next` reports that.
                drop(receiver.post_receive(buffer));
                drop(wakes);
            }
        });
        let next = next.await;
        // Drop the `send_all` future here, and not at the end of the function: the drop can wake tasks. If a waker
        // panics here, `next` is dropped. At the end `next` is already being returned, and a panic would leak `next`.
        sending.set(None);
        next
    }

    /// Obeys control messages until the connection ends or no receive is posted. For a program that sends no messages
    /// of its own. Messages of the peer's program are dropped and their buffers posted again. Violations are only
    /// counted.
    pub async fn run(mut self) {
        while let Some(message) = self.next().await {
            match message {
                Ok(message) => drop(message.into_buffer().map(|buffer| self.post_receive(buffer))),
                Err(MessageError::Peer(_)) => {}
                Err(MessageError::Request(_)) => return,
            }
        }
    }
}

impl<B: Brand> Lending<B> {
    /// Obeys a control message. Gives back a message of the program, or another completion.
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
        match self.shared.change_with(|core| core.receive(&buffer)) {
            (Ok(()), wakes) => Sorted::Control(buffer, wakes),
            (Err(violation), wakes) => {
                trace::violated(&violation);
                Sorted::Refused(buffer, violation, wakes)
            }
        }
    }
}

impl<B: Brand> Outbound<B> {
    /// Sends control messages until the connection fails. Dropping the future loses none.
    async fn send_all(&mut self, lending: &Lending<B>, mark: Mark) {
        loop {
            lending.shared.wait(|core| core.has_outgoing().then_some(())).await;
            while self.idle.is_empty() {
                let Some(first) = self.sending.front_mut() else {
                    // `idle` and `sending` are both empty: each buffer was lost in a send that failed, or in a panic of
                    // the program's code. Nothing can be sent any more.
                    return lending.shared.change(|core| core.lose_peer());
                };
                let sent = poll_fn(|context| Pin::new(&mut *first).poll(context)).await;
                self.sending.pop_front();
                match sent {
                    Ok(buffer) => self.idle.push(buffer),
                    Err(_) => return lending.shared.change(|core| core.lose_peer()),
                }
            }
            let Ok(permit) = lending.sender.room().await else {
                return lending.shared.change(|core| core.lose_peer());
            };
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
