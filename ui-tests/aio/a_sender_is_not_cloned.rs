//! Rule A6: a sender is not cloned.
//! Error: E0599

use interlock::aio::Sender;

fn twice<B>(sender: Sender<B>) -> [Sender<B>; 2] {
    [sender.clone(), sender]
}

fn main() {}
