//! Rule Q2: a transition takes exactly the attributes that it requires.

use interlock::{Mtu, PeerPath, Psn, Qpn, UnreliableRtrAttributes};

fn attributes(path: PeerPath, destination: Qpn, receive_psn: Psn) -> UnreliableRtrAttributes {
    UnreliableRtrAttributes { path, path_mtu: Mtu::Bytes1024, receive_psn, destination }
}

fn main() {}
