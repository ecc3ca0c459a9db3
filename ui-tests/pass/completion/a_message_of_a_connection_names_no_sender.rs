//! Rule C6: only a datagram names its sender.

use interlock::datagram::Datagram;
use interlock::number::Qpn;

fn sender<B>(message: Datagram<B>) -> Qpn {
    message.sender
}

fn main() {}
