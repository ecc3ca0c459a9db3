//! Connections, and how they end.

use super::advice::Advice;
use super::channel::Identifier;
use super::ended::Ended;
use super::error::{Cause, Failed};
use super::is_of_removed_device;
use super::meaning::Phase;
use super::private_data::PeerData;
use super::wait::Patience;
use crate::domain::Brand;
use crate::provider::cm::RawEventKind;
use crate::queue::QueuePair;
use crate::queue::state::{Errored, ReadyToSend};
use crate::queue::transport::{Reliable, ReliableConnection};
use crate::verb_error::VerbError;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// A queue pair in Ready To Send, connected to a peer by rdma_cm.
///
/// Post on `pair`, as on any queue pair. When the peer disconnects or its process ends, most devices do not notice:
/// only rdma_cm learns of it, and the device keeps waiting for messages. So a program that waits for messages calls
/// [`poll_end`](Self::poll_end) now and then, or has a thread that waits in [`wait_end`](Self::wait_end). When the
/// connection has ended, either call moves the pair to Error, so that every request in flight comes back as flushed.
///
/// Dropping the connection disconnects, and destroys the pair.
#[derive(Debug)]
pub struct Connection<B, T = ReliableConnection> {
    /// The queue pair.
    ///
    /// A program that moves the pair out of the connection, for example to [split](QueuePair::split) it, must keep
    /// `link`: dropping `link` ends the connection. On most devices the pair then stays in Ready To Send without a
    /// peer, and its receives never complete.
    pub pair: QueuePair<B, ReadyToSend, T>,
    /// The private data that the peer sent with its connect or accept.
    pub data: PeerData,
    /// rdma_cm's part of the connection.
    pub link: Link,
}

/// rdma_cm's part of a connection: the identifier. Dropping the link disconnects, which tells the peer.
///
/// A program that has moved the pair out of its [`Connection`] asks the link whether the connection has ended. If it
/// has, the program must move the pair to Error.
#[derive(Debug)]
#[doc(alias = "rdma_cm_id")]
pub struct Link {
    pub(super) id: Identifier,
    /// How the connection has ended; `None` while it lasts.
    end: Ended,
    /// Whether a [`Connection`] has moved its pair to Error because of the end. A link by itself has no pair to move.
    has_moved_pair: bool,
    advice: Option<Advice>,
}

impl Link {
    /// The address of this side.
    #[doc(alias = "rdma_get_local_addr")]
    pub fn local_address(&self) -> Option<SocketAddr> {
        self.id.raw.local_address()
    }

    /// The address of the peer.
    #[doc(alias = "rdma_get_peer_addr")]
    pub fn peer_address(&self) -> Option<SocketAddr> {
        self.id.raw.peer_address()
    }

    /// Returns the cause if the connection has ended and this side did not end it: [`Cause::Disconnected`],
    /// [`Cause::DeviceRemoved`], or [`Cause::Rejected`] if the server accepted, and ended before it learned that the
    /// client was connected.
    ///
    /// # Errors
    ///
    /// The channel failed.
    pub fn poll_end(&mut self) -> Result<Option<Cause>, VerbError> {
        self.end_by(Patience::None)
    }

    /// Waits until the peer ends the connection, at most for `timeout`. Returns `None` if the connection lasts longer.
    ///
    /// # Errors
    ///
    /// The channel failed.
    pub fn wait_end(&mut self, timeout: Duration) -> Result<Option<Cause>, VerbError> {
        self.end_by(Patience::of(timeout))
    }

    fn end_by(&mut self, patience: Patience) -> Result<Option<Cause>, VerbError> {
        self.end.look(&self.id.events, Phase::Connected, patience, &mut self.advice)
    }

    /// Takes the latest advice of rdma_cm about the network, if any has arrived since the last call. Advice is read
    /// from the channel by [`poll_end`](Self::poll_end) and [`wait_end`](Self::wait_end), so call one of them first.
    pub fn take_advice(&mut self) -> Option<Advice> {
        self.advice.take()
    }
}

impl<B: Brand, T: Reliable> Connection<B, T> {
    pub(super) fn new(pair: QueuePair<B, ReadyToSend, T>, id: Identifier, data: PeerData) -> Self {
        Self { pair, data, link: Link { id, end: Ended::default(), has_moved_pair: false, advice: None } }
    }

    /// The address of this side.
    #[doc(alias = "rdma_get_local_addr")]
    pub fn local_address(&self) -> Option<SocketAddr> {
        self.link.local_address()
    }

    /// The address of the peer.
    #[doc(alias = "rdma_get_peer_addr")]
    pub fn peer_address(&self) -> Option<SocketAddr> {
        self.link.peer_address()
    }

    /// Returns the cause if the connection has ended and this side did not end it. The causes are those of
    /// [`Link::poll_end`]. If there is one, the call has moved the pair to Error, unless the device was removed.
    ///
    /// # Errors
    ///
    /// The channel failed, or the device refused to move the pair. The next call tries that again.
    pub fn poll_end(&mut self) -> Result<Option<Cause>, VerbError> {
        self.end_by(Patience::None)
    }

    /// Waits until the peer ends the connection, at most for `timeout`. Returns `None` if the connection lasts longer.
    ///
    /// # Errors
    ///
    /// As [`poll_end`](Self::poll_end).
    pub fn wait_end(&mut self, timeout: Duration) -> Result<Option<Cause>, VerbError> {
        self.end_by(Patience::of(timeout))
    }

    fn end_by(&mut self, patience: Patience) -> Result<Option<Cause>, VerbError> {
        let end = self.link.end_by(patience)?;
        if let Some(cause) = &end
            && !self.link.has_moved_pair
        {
            match self.pair.end_traffic() {
                Ok(()) => self.link.has_moved_pair = true,
                // A removed device cannot move the pair.
                Err(error) if matches!(cause, Cause::DeviceRemoved) || is_of_removed_device(error) => {}
                // The end is not lost: the link keeps the cause, and the next call tries again to move the pair.
                Err(error) => return Err(error),
            }
        }
        Ok(end)
    }

    /// Takes the latest advice of rdma_cm about the network, if any has arrived since the last call. Advice is read
    /// from the channel by [`poll_end`](Self::poll_end) and [`wait_end`](Self::wait_end), so call one of them first.
    pub fn take_advice(&mut self) -> Option<Advice> {
        self.link.take_advice()
    }

    /// Ends the connection: tells the peer, and moves the pair to Error, so that every request in flight comes back
    /// from the poller as flushed.
    ///
    /// `rdma_disconnect(3)`. Call [`QueuePair::drain`] next, then destroy or reset the pair.
    ///
    /// # Errors
    ///
    /// [`Cause::Pair`]: the pair did not go to Error.
    #[doc(alias = "rdma_disconnect")]
    #[allow(clippy::result_large_err, reason = "the connection comes back")]
    pub fn disconnect(self) -> Result<Disconnected<B, T>, Failed<Self>> {
        let Self { pair, data, mut link } = self;
        // If this call fails, `is_told` is false, and `Disconnected::wait_for_number` makes the call again, except on
        // iWARP. If no call succeeds, the destruction of the identifier tells the peer that the connection has ended.
        let is_told = link.id.raw.disconnect().is_ok();
        match pair.into_error() {
            Ok(pair) => {
                link.id.events.set_polled(false);
                Ok(Disconnected { pair, id: link.id, is_told })
            }
            Err(error) => {
                let value = Self { pair: error.queue_pair, data, link };
                Err(Failed { value, cause: error.source.into() })
            }
        }
    }
}

/// A connection that this side has ended.
///
/// rdma_cm keeps the number of the pair out of use for about a second, so that no late packet of this connection is
/// mistaken for a packet of the next connection. A program that resets the pair and connects it again waits for the end
/// of that time with [`wait_for_number`](Self::wait_for_number). A program that drops the pair need not wait.
#[derive(Debug)]
pub struct Disconnected<B, T = ReliableConnection> {
    /// The queue pair: drain it to get every buffer back.
    pub pair: QueuePair<B, Errored, T>,
    id: Identifier,
    /// `rdma_disconnect` has succeeded, and need not be called again.
    is_told: bool,
}

impl<B: Brand, T: Reliable> Disconnected<B, T> {
    /// Waits until the pair's number may be used again, at most for `timeout`. Returns false if the number is
    /// still in use then, for example because the peer has not disconnected, or if the device was removed. On iWARP the
    /// number may be used again at once.
    ///
    /// If [`disconnect`](Connection::disconnect) could not tell rdma_cm of the end, this call tries again, except on
    /// iWARP.
    ///
    /// # Errors
    ///
    /// The channel failed, or the system refused to disconnect.
    #[doc(alias = "rdma_disconnect")]
    pub fn wait_for_number(&mut self, timeout: Duration) -> Result<bool, VerbError> {
        if self.id.raw.device().is_some_and(|device| device.is_iwarp) {
            return Ok(true);
        }
        let deadline = Instant::now().checked_add(timeout);
        loop {
            // Perhaps an earlier call has taken the event `DEVICE_REMOVAL`, or the event `TIMEWAIT_EXIT`, which frees
            // the number. Then the `wait` below does not return that event. But `is_removed` and `is_number_free` still
            // know of it.
            if self.id.events.is_removed() {
                return Ok(false);
            }
            if self.id.events.is_number_free() {
                return Ok(true);
            }
            if !self.is_told {
                match self.id.raw.disconnect() {
                    Ok(()) => self.is_told = true,
                    Err(_) if self.id.events.is_removed() => return Ok(false),
                    Err(error) => return Err(error),
                }
            }
            match self.id.events.wait(deadline)?.map(|event| event.kind) {
                None | Some(RawEventKind::DEVICE_REMOVAL) => return Ok(false),
                // The peer has disconnected. If both sides did so at the same time, each has to answer the other, and
                // another call of `rdma_disconnect` is that answer. In all other cases another call does nothing.
                Some(RawEventKind::DISCONNECTED) => self.is_told = false,
                Some(_) => {}
            }
        }
    }
}
