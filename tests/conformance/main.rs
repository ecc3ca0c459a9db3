//! The cases of docs/conformance.md that no other test covers: what the specification requires of verbs. Each test name
//! begins with the number of its case. The same code runs on the soft device, or on the device that `INTERLOCK_DEVICE`
//! names.

/// Makes a domain on the device under test.
macro_rules! domain {
    () => {{
        interlock::domain! { struct Test; }
        support::context().named_domain(Test).unwrap()
    }};
}
/// Makes two connected pairs on the device under test.
macro_rules! link {
    ($depth:expr) => {
        crate::Link::new(domain!(), $depth)
    };
    ($depth:expr, $attributes:expr) => {
        crate::Link::with(domain!(), $depth, &$attributes)
    };
}

mod datagrams;
mod lifetime;
mod limits;
mod opcodes;
mod posting;
mod protection;
mod regions;
mod shared;
mod states;

use interlock::Endpoint;
use interlock::attributes::{PeerPath, RtrAttributes, RtsAttributes};
use interlock::number::{Psn, RnrTimer};
use support::{Link, failure, message, next};

/// How long a test waits for something that must not happen.
const WHILE: std::time::Duration = std::time::Duration::from_millis(100);

/// Attributes of Ready To Receive with `peer` as the sender.
fn from(peer: &Endpoint) -> RtrAttributes {
    RtrAttributes {
        path: PeerPath::to(peer.gid().unwrap()),
        path_mtu: peer.mtu(),
        destination: peer.queue_pair(),
        receive_psn: peer.psn(),
        responder_depth: 1.try_into().unwrap(),
        min_rnr_timer: RnrTimer::new(12).unwrap(),
    }
}

/// Attributes of Ready To Send with `psn` as the first packet number.
fn sending(psn: Psn) -> RtsAttributes {
    RtsAttributes {
        send_psn: psn,
        timeout: 14.try_into().unwrap(),
        retry_count: 3.try_into().unwrap(),
        rnr_retry: 7.try_into().unwrap(),
        initiator_depth: 1.try_into().unwrap(),
    }
}
