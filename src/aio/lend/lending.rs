//! The handle by which a program lends and borrows over a connection.

use super::owner::Quota;
use super::shared::Shared;
use crate::aio::{SharedPoller, SharedSender};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// How control messages are told apart from the messages of the program. Both sides must choose the same mark.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mark {
    /// A message with this immediate is a control message. The program sends no messages with this immediate.
    ///
    /// An immediate is not a part of the payload. So the payloads of the program stay as they are, and none of them can
    /// be taken for a control message. On iWARP there are no immediates.
    Immediate(u32),
    /// Every message is a control message, and the program sends none of its own. It may still read, write and do
    /// atomics over the connection. Works on every device.
    Every,
}

/// What one side of a connection allows the other, and how they talk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LendingOptions {
    /// How control messages are told apart from those of the program.
    pub mark: Mark,
    /// How much memory of this side the peer may ask for.
    pub quota: Quota,
    /// How many grants this side holds at most at once. Each of its open requests counts as one. If there are as many,
    /// a further offer of the peer is a [`Violation::Flood`](super::Violation::Flood). This side drops that offer, so
    /// its owner gets the memory back at the deadline.
    pub most_held: usize,
    /// How long before the deadline this side stops using a grant. The margin must be longer than a control message and
    /// a write take together. If it is too short, a late write fails at the peer, which breaks the connection.
    pub margin: Duration,
    /// How many control messages of this side may be in flight at once.
    pub messages: usize,
}

impl Default for LendingOptions {
    /// All messages are control messages; the peer may ask for nothing; 64 grants at once; a margin of 10 ms; 4
    /// messages.
    fn default() -> Self {
        let margin = Duration::from_millis(10);
        Self { mark: Mark::Every, quota: Quota::NOTHING, most_held: 64, margin, messages: 4 }
    }
}

/// Lends memory to the peer of a connection, and borrows memory from the peer. Clones are handles of the same
/// connection.
///
/// [`Lending::start`] makes it, together with a [`LendingReceiver`](super::LendingReceiver). No control message is sent
/// or received unless a task waits on that receiver. See the [module](super).
pub struct Lending<B> {
    pub(super) shared: Arc<Shared>,
    pub(super) sender: SharedSender<B>,
    pub(super) poller: SharedPoller<B>,
}
static_assertions::assert_impl_all!(Lending<()>: Send, Sync, Clone);

impl<B> Lending<B> {
    /// The sender of the connection, for requests of the program.
    pub fn sender(&self) -> &SharedSender<B> {
        &self.sender
    }

    /// Says goodbye: this side asks and lends no more over this connection. Memory that this side has lent stays lent
    /// until the program ends the grant. When the goodbye arrives, all grants are over for the peer, those that it gave
    /// and those that it got.
    pub fn say_goodbye(&self) {
        self.shared.change(|core| core.say_goodbye());
    }

    /// Whether the connection has not ended and neither side has said goodbye.
    pub fn is_open(&self) -> bool {
        self.shared.with(|core| core.is_open())
    }

    /// How often the peer has broken the protocol. A peer that uses this library too may only cause a
    /// [`Violation::Flood`](super::Violation::Flood), by too many requests or offers.
    pub fn violations(&self) -> u64 {
        self.shared.with(|core| core.violations())
    }

    /// How much of its quota the peer uses: bytes, and requests and grants together.
    pub fn charged(&self) -> (u64, u32) {
        self.shared.with(|core| core.owner.charged())
    }

    /// How many grants of the peer this side holds, plus its open requests. A returned grant counts until the peer has
    /// confirmed its end.
    pub fn held(&self) -> usize {
        self.shared.with(|core| core.holder.len())
    }
}

impl<B> Clone for Lending<B> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared), sender: self.sender.clone(), poller: self.poller.clone() }
    }
}

impl<B> fmt::Debug for Lending<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lending").field("is_open", &self.is_open()).finish_non_exhaustive()
    }
}
