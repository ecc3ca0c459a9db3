//! Rule C6: only a datagram names its sender.
//! Error: E0609

use interlock::{Qpn, Received};

fn sender<B>(message: Received<B>) -> Qpn {
    message.sender
}

fn main() {}
