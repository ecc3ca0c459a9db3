//! What the specification says of verbs, case by case: those of docs/conformance.md that no other test shows. The
//! number of the case is in front. On the soft device, or on the one that `INTERLOCK_DEVICE` names, by the same code.

/// A domain on the device to test on.
macro_rules! domain {
    () => {{
        interlock::domain! { struct Test; }
        support::context().named_domain(Test).unwrap()
    }};
}
/// Two connected pairs on the device to test on.
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

/// Long enough for what does not come.
const WHILE: std::time::Duration = std::time::Duration::from_millis(100);

/// To Ready To Receive from `peer`.
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

/// To Ready To Send, `psn` first.
fn sending(psn: Psn) -> RtsAttributes {
    RtsAttributes {
        send_psn: psn,
        timeout: 14.try_into().unwrap(),
        retry_count: 3.try_into().unwrap(),
        rnr_retry: 7.try_into().unwrap(),
        initiator_depth: 1.try_into().unwrap(),
    }
}
