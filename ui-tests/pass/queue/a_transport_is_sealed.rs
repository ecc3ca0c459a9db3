//! Rule Q5: states and their capabilities are sealed.

use interlock::transport::Transport;
use interlock::{Brand, Init, QueuePair};

use interlock::ReliableConnection as Pigeon;
fn number<B: Brand, T: Transport>(pair: &QueuePair<B, Init, T>) -> u32 {
    pair.number().value()
}

fn pigeon<B: Brand>(pair: &QueuePair<B, Init, Pigeon>) -> u32 {
    number(pair)
}

fn main() {}
