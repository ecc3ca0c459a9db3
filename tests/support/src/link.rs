//! Two connected pairs.

use crate::{PATIENCE, Queues, address, on_hardware};
use interlock::attributes::ConnectAttributes;
use interlock::cm::{AcceptData, Channel, CmError, ConnectData, Connection, Idle, Parameters, Progress};
use interlock::transport::Reliable;
use interlock::{
    Brand, CompletionQueue, Context, Init, Limits, Poller, Port, ProtectionDomain, QueuePair, ReadyToSend,
};
use std::mem;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

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
    /// Connects two pairs that each take `depth` sends and `depth` receives. On a real device they are
    /// [`patient`].
    pub fn new(domain: ProtectionDomain<B>, depth: u32) -> Self {
        Self::with(domain, depth, &patient())
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
        let (left, right) = connect_to_each_other(&domain, left, right, attr);
        Self { domain, port, queue, poller, left, right }
    }
}

/// Attributes of pairs whose peer may be slow: a real device waits up to two seconds for an answer, not half a second.
/// The processor of an emulated machine may stand still for longer than that half second.
pub fn patient() -> ConnectAttributes {
    let usual = ConnectAttributes::default();
    if on_hardware() { ConnectAttributes { timeout: 16.try_into().unwrap(), ..usual } } else { usual }
}

/// Connects two pairs of `domain` with `attr`, each to the other: by records, or by rdma_cm where that is the only way.
pub fn connect_to_each_other<B: Brand, L: Reliable, R: Reliable>(
    domain: &ProtectionDomain<B>,
    left: QueuePair<B, Init, L>,
    right: QueuePair<B, Init, R>,
    attr: &ConnectAttributes,
) -> (QueuePair<B, ReadyToSend, L>, QueuePair<B, ReadyToSend, R>) {
    if domain.context().is_iwarp() {
        return connect_by_cm(&domain.context(), left, right, attr);
    }
    let (to_left, to_right) = (left.endpoint(), right.endpoint());
    (left.connect_with(&to_right, attr).unwrap(), right.connect_with(&to_left, attr).unwrap())
}

/// The left side asks, and the right side accepts. rdma_cm takes from the path all attributes for which [`Parameters`]
/// has no field.
fn connect_by_cm<B: Brand, L: Reliable, R: Reliable>(
    context: &Context,
    left: QueuePair<B, Init, L>,
    right: QueuePair<B, Init, R>,
    attr: &ConnectAttributes,
) -> (QueuePair<B, ReadyToSend, L>, QueuePair<B, ReadyToSend, R>) {
    let ConnectAttributes { retry_count, rnr_retry, min_rnr_timer, read_depth, .. } = *attr;
    let parameters =
        Parameters { responder_depth: read_depth, initiator_depth: read_depth, retry_count, rnr_retry, min_rnr_timer };
    let channel = channel(context);
    let bound = Idle::new(&channel).unwrap().bind((address(context), 0).into()).unwrap();
    let mut listener = bound.listen(0).unwrap();
    let at = listener.local_address().unwrap();
    let resolved = Idle::new(&channel).unwrap().resolve(at, PATIENCE).unwrap().wait(PATIENCE).unwrap();
    let mut connecting = resolved.connect(left, &parameters, &ConnectData::none()).unwrap();
    // Look at both sides: a connect that fails never reaches the listener, and only the left side knows why.
    let start = Instant::now();
    let request = loop {
        match listener.next(Duration::from_millis(100)) {
            Err(CmError::TimedOut(_)) if start.elapsed() < PATIENCE => {}
            asked => break asked.unwrap(),
        }
        match connecting.poll().expect("the listener got no request, since the connect failed") {
            Progress::Pending(still) => connecting = still,
            Progress::Done(_) => unreachable!("nobody has accepted"),
        }
    };
    let accepting = request.accept(right, &parameters, &AcceptData::none()).unwrap();
    let (left, right) = (connecting.wait(PATIENCE).unwrap(), accepting.wait(PATIENCE).unwrap());
    (for_ever(left), for_ever(right))
}

/// The channel for connections on the device of `context`. All connections on the device under test share one channel:
/// each connection keeps its channel open, and each channel keeps descriptors open.
fn channel(context: &Context) -> Channel {
    static SHARED: OnceLock<Channel> = OnceLock::new();
    if context.name() != crate::context().name() {
        return Channel::open(context).unwrap();
    }
    SHARED.get_or_init(|| Channel::open(context).unwrap()).clone()
}

/// The pair of a connection that this process never ends by rdma_cm. The device ends the connection with the pair.
fn for_ever<B: Brand, T: Reliable>(connection: Connection<B, T>) -> QueuePair<B, ReadyToSend, T> {
    let Connection { pair, data: _, link } = connection;
    mem::forget(link);
    pair
}
