//! Rule A6: a sender is not cloned.

use interlock::aio::Sender;

fn once<B>(sender: Sender<B>) -> [Sender<B>; 1] {
    [sender]
}

fn main() {}
