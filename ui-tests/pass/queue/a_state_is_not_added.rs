//! Rule Q5: states and their capabilities are sealed.

use interlock::state::State;
use interlock::{Brand, QueuePair};

use interlock::Reset as Reborn;
fn name<B: Brand, S: State>(pair: &QueuePair<B, S>) -> u32 {
    pair.number().value()
}

fn reborn<B: Brand>(pair: &QueuePair<B, Reborn>) -> u32 {
    name(pair)
}

fn main() {}
