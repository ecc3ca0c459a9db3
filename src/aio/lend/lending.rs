//! The handle by which a program lends and borrows over a connection.

use super::owner::Quota;
use super::shared::Shared;
use crate::aio::{SharedPoller, SharedSender};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// How control messages are told apart from the messages of the program. Both sides must choose the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mark {
    /// A message with this immediate is a control message. The program sends no messages with this immediate.
    ///
    /// The mark is outside of the message, so messages of the program stay as they are, and nothing that the program
    /// passes on in them can be taken for a control message. On iWARP there are no immediates.
    Immediate(u32),
    /// Every message is a control message: the connection serves nothing else. The program may still read, write and
    /// do atomics over it. Works on every device.
    Every,
}

/// What one side of a connection allows the other, and how they talk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LendingOptions {
    /// How control messages are told apart from those of the program.
    pub mark: Mark,
    /// How much memory the peer may ask for.
    pub quota: Quota,
    /// How many grants this side holds at most at once. Each of its requests counts as one. A further grant that it did
    /// not ask for is a [`Violation::Flood`](super::Violation::Flood); its owner has the memory back at the deadline.
    pub most_held: usize,
    /// How much before the deadline this side stops to use a grant. It must cover the time that a message takes, and
    /// that a write takes. If it is too short, a late write fails at the peer, which breaks the connection.
    pub margin: Duration,
    /// How many control messages may be in flight.
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

/// Lends memory to the peer of a connection, and borrows memory of it. A handle: clones name the same connection.
///
/// [`Lending::start`] makes it, together with a [`LendingReceiver`](super::LendingReceiver). Nothing happens unless
/// that is polled. See the [module](super).
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

    /// Says goodbye: this side asks and lends no more over this connection. What it has lent stays lent until the
    /// program ends it, at the deadline at the latest. The peer takes it as the end of all grants, both ways.
    pub fn say_goodbye(&self) {
        self.shared.change(|core| core.say_goodbye());
    }

    /// Whether the connection serves, and neither side has said goodbye.
    pub fn is_open(&self) -> bool {
        self.shared.with(|core| core.is_open())
    }

    /// How often the peer has broken the protocol. A peer that works as this library does never breaks it.
    pub fn violations(&self) -> u64 {
        self.shared.with(|core| core.violations())
    }

    /// How many bytes of its quota the peer has, and how many grants and requests.
    pub fn charged(&self) -> (u64, u32) {
        self.shared.with(|core| core.owner.charged())
    }

    /// How many requests and grants of the peer this side has, those included whose end the peer has not confirmed.
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
