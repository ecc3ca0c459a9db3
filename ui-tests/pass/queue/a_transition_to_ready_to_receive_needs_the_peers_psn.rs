//! Rule Q2: a transition takes exactly the attributes that it requires.

use interlock::attributes::{PeerPath, RtrAttributes};
use interlock::error::OutOfRange;
use interlock::number::{Mtu, Psn, Qpn, ReadDepth, RnrTimer};

fn attributes(path: PeerPath, destination: Qpn, receive_psn: Psn) -> Result<RtrAttributes, OutOfRange> {
    Ok(RtrAttributes {
        path,
        path_mtu: Mtu::Bytes1024,
        destination,
        receive_psn,
        responder_depth: ReadDepth::new(1)?,
        min_rnr_timer: RnrTimer::new(12)?,
    })
}

fn main() {}
