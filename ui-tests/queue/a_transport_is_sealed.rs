//! Rule Q5: states and their capabilities are sealed.
//! Error: E0277

use interlock::{Brand, Init, QueuePair};
use interlock::transport::Transport;

enum Pigeon {}
impl Transport for Pigeon {}
fn number<B: Brand, T: Transport>(pair: &QueuePair<B, Init, T>) -> u32 {
    pair.number().value()
}

fn pigeon<B: Brand>(pair: &QueuePair<B, Init, Pigeon>) -> u32 {
    number(pair)
}

fn main() {}
