//! Rule A6: a sender has one holder.
//! Error: E0599

use interlock::aio::Sender;

fn twice<B>(sender: Sender<B>) -> [Sender<B>; 2] {
    [sender.clone(), sender]
}

fn main() {}
