//! Rule C6: only a datagram names its sender.
//! Error: E0609

use interlock::completion::Received;
use interlock::number::Qpn;

fn sender<B>(message: Received<B>) -> Qpn {
    message.sender
}

fn main() {}
