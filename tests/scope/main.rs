//! Borrowed memory: what scopes do on any device, and attacks on them. Each attack is named after what never happens,
//! or after what happens instead.

/// Makes a wire between two pairs of a fabric's only device.
macro_rules! wire {
    ($fabric:expr) => {{
        let fabric: interlock::soft::Fabric = $fabric;
        let wire = crate::Wire::new(interlock::Context::open_on(&fabric, "dev0").unwrap().checked_domain().unwrap());
        (fabric, wire)
    }};
    () => {
        crate::Wire::new(support::context().checked_domain().unwrap())
    };
}

mod broken;
mod faults;
mod last_resort;
mod messages;
mod misuse;
mod peers;

use interlock::attributes::ConnectAttributes;
use interlock::scope::{Exclusive, ScopeError};
use interlock::soft::{Fault, Verb};
use interlock::{Brand, Limits, Poller, Port, ProtectionDomain, QueuePair, Status};
use std::time::Duration;
use support::{PATIENCE, connect_to_each_other};

const SHORT: Duration = Duration::from_millis(50);
const DEPTH: u32 = 4;

/// A pair for scopes and its peer, which has another completion queue.
struct Wire<B> {
    domain: ProtectionDomain<B>,
    port: Port,
    exclusive: Exclusive<B>,
    peer: QueuePair<B>,
    peers_poller: Poller<B>,
}

impl<B: Brand> Wire<B> {
    fn new(domain: ProtectionDomain<B>) -> Self {
        Self::with(domain, &ConnectAttributes::default())
    }

    fn with(domain: ProtectionDomain<B>, attributes: &ConnectAttributes) -> Self {
        let limits = Limits { sends: DEPTH, receives: DEPTH, ..Limits::default() };
        let port = domain.context().active_port().unwrap();
        let (queue, poller) = domain.completion_queue(limits.completions()).unwrap();
        let (peers_queue, peers_poller) = domain.completion_queue(limits.completions()).unwrap();
        let pair = domain.reliable(&queue, &limits).unwrap().into_init(&port).unwrap();
        let peer = domain.reliable(&peers_queue, &limits).unwrap().into_init(&port).unwrap();
        drop(queue);
        let (pair, peer) = connect_to_each_other(&domain, pair, peer, attributes);
        let exclusive = Exclusive::new(pair, poller).unwrap();
        Self { domain, port, exclusive, peer, peers_poller }
    }

    fn peer_posts_receive(&mut self, len_bytes: usize) {
        self.peer.post_receive(self.domain.buffer(len_bytes).unwrap()).unwrap();
    }

    fn peer_sends(&mut self, bytes: &[u8]) {
        let mut buffer = self.domain.buffer(bytes.len()).unwrap();
        buffer.write(bytes).unwrap();
        self.peer.post_send(buffer).unwrap();
    }

    /// Returns the next message that the peer received.
    fn peer_received(&mut self) -> Vec<u8> {
        loop {
            if let Ok(buffer) = self.peers_poller.wait(PATIENCE).unwrap().check().unwrap().into_received() {
                return buffer.to_vec();
            }
        }
    }
}

fn always(verb: Verb, errno: i32) -> Fault {
    Fault::VerbFails { verb, after: 0, count: u32::MAX, errno }
}

/// Returns the state, the number of requests that were cut off, and the first failure.
fn broken<R>(ended: Result<R, ScopeError<R>>) -> (&'static str, u32, Option<Status>) {
    match ended {
        Err(ScopeError::Broken { state, cut_off, first_failure, .. }) => (state, cut_off, first_failure),
        Err(other) => panic!("{other:?}"),
        Ok(_) => panic!("the pair is still connected"),
    }
}
