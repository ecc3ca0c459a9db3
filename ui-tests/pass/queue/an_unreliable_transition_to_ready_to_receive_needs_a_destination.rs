//! Rule Q2: a transition takes exactly the attributes that it requires.

use interlock::attributes::{PeerPath, UnreliableRtrAttributes};
use interlock::number::{Mtu, Psn, Qpn};

fn attributes(path: PeerPath, destination: Qpn, receive_psn: Psn) -> UnreliableRtrAttributes {
    UnreliableRtrAttributes { path, path_mtu: Mtu::Bytes1024, receive_psn, destination }
}

fn main() {}
