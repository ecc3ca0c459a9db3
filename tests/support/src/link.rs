//! Two connected pairs.

use crate::Queues;
use interlock::attributes::ConnectAttributes;
use interlock::{Brand, CompletionQueue, Limits, Poller, Port, ProtectionDomain, QueuePair, ReadyToSend};

/// Two connected pairs on one completion queue.
#[derive(Debug)]
pub struct Link<B> {
    /// The domain of both pairs.
    pub domain: ProtectionDomain<B>,
    /// The port that both pairs use.
    pub port: Port,
    /// The queue on which both pairs complete; it has no room for a third one.
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
        let (to_left, to_right) = (left.endpoint(), right.endpoint());
        let left = left.connect_with(&to_right, attr).unwrap();
        let right = right.connect_with(&to_left, attr).unwrap();
        Self { domain, port, queue, poller, left, right }
    }
}
