//! Rule A6: a sender has one holder.

use interlock::aio::Sender;

fn once<B>(sender: Sender<B>) -> [Sender<B>; 1] {
    [sender]
}

fn main() {}
