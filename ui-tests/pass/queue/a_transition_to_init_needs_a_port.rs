//! Rule Q2: a transition takes exactly the attributes that it requires.

use interlock::Port;
use interlock::attributes::{InitAttributes, PeerRights};

fn attributes(port: &Port) -> InitAttributes {
    InitAttributes { port: port.clone(), pkey_index: 0, peer_rights: PeerRights::NONE }
}

fn main() {}
