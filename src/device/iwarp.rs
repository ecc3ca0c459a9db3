//! Operations that iWARP devices do not have.

use std::fmt;

/// An operation that an iWARP device (RDMA over TCP) does not have, or that this library does not use there. The
/// library refuses it before it calls a verb: some of these verbs report success and do nothing.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum NotOnIwarp {
    /// A connection by records, or by transitions of the program: only rdma_cm moves such a pair.
    Records,
    /// A return to the state Reset.
    Reset,
    /// The state Send Queue Drain.
    Drain,
    /// Unreliable connections and datagrams.
    OtherTransports,
    /// Immediates.
    Immediates,
    /// Atomics, atomic writes, and memory for them.
    Atomics,
    /// Queue pairs, on devices of irdma: its polls may report old completions as new ones there.
    QueuePairs,
}

impl NotOnIwarp {
    /// A text that says what is missing, and what to do.
    fn text(self) -> &'static str {
        match self {
            Self::Records => "this is an iWARP device: connect with rdma_cm, `cm::connect` and `cm::listen`",
            Self::Reset => "a queue pair of an iWARP device cannot be reset: destroy it and create another",
            Self::Drain => {
                "a queue pair of an iWARP device cannot drain its send queue: poll until all sends have completed"
            }
            Self::OtherTransports => "this is an iWARP device, which has reliable connections only: see `reliable`",
            Self::Immediates => "this is an iWARP device, which carries no immediates: put the number into the message",
            Self::Atomics => {
                "this is an iWARP device, which has no atomics: let the program that owns the memory change it"
            }
            Self::QueuePairs => {
                "queue pairs of this device are not safe while it is an iWARP device, because of a fault in its provider: \
                 switch the card to RoCE"
            }
        }
    }
}

impl fmt::Display for NotOnIwarp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (see docs/failures.md#not-on-iwarp)", self.text())
    }
}

impl std::error::Error for NotOnIwarp {}
