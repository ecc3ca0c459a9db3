//! Two connected pairs.

use crate::Queues;
use interlock::attributes::ConnectAttributes;
use interlock::transport::Reliable;
use interlock::{Brand, CompletionQueue, Init, Limits, Poller, Port, ProtectionDomain, QueuePair, ReadyToSend};

/// Two connected pairs on one completion queue.
#[derive(Debug)]
pub struct Link<B> {
    /// The domain of both pairs.
    pub domain: ProtectionDomain<B>,
    /// The port that both pairs use.
    pub port: Port,
    /// The queue on which both pairs complete. It has no room for a third pair.
    pub queue: CompletionQueue<B>,
    /// Polls `queue`.
    pub poller: Poller<B>,
    /// The peer of `right`.
    pub left: QueuePair<B, ReadyToSend>,
    /// The peer of `left`.
    pub right: QueuePair<B, ReadyToSend>,
}

impl<B: Brand> Link<B> {
    /// Connects two pairs that each take `depth` sends and `depth` receives.
    pub fn new(domain: ProtectionDomain<B>, depth: u32) -> Self {
        Self::with(domain, depth, &ConnectAttributes::default())
    }

    /// [`new`](Self::new), connected with `attr`.
    pub fn with(domain: ProtectionDomain<B>, depth: u32, attr: &ConnectAttributes) -> Self {
        Self::limited(domain, &Limits { sends: depth, receives: depth, ..Limits::default() }, attr)
    }

    /// Connects two pairs of these limits with `attr`.
    pub fn limited(domain: ProtectionDomain<B>, limits: &Limits, attr: &ConnectAttributes) -> Self {
        let port = domain.context().active_port().unwrap();
        let (queue, poller) = domain.queue(2 * limits.completions()).unwrap();
        let left = domain.reliable(&queue, limits).unwrap().into_init(&port).unwrap();
        let right = domain.reliable(&queue, limits).unwrap().into_init(&port).unwrap();
        let (left, right) = connect_to_each_other(left, right, attr);
        Self { domain, port, queue, poller, left, right }
    }
}

/// Connects two pairs with `attr`, each to the other.
pub fn connect_to_each_other<B: Brand, L: Reliable, R: Reliable>(
    left: QueuePair<B, Init, L>,
    right: QueuePair<B, Init, R>,
    attr: &ConnectAttributes,
) -> (QueuePair<B, ReadyToSend, L>, QueuePair<B, ReadyToSend, R>) {
    let (to_left, to_right) = (left.endpoint(), right.endpoint());
    (left.connect_with(&to_right, attr).unwrap(), right.connect_with(&to_left, attr).unwrap())
}
