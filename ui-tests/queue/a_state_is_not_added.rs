//! Rule Q5: states and their capabilities are sealed.
//! Error: E0277

use interlock::{Brand, QueuePair};
use interlock::state::State;

enum Reborn {}
impl State for Reborn {
    const NAME: &'static str = "Reborn";
}
fn name<B: Brand, S: State>(pair: &QueuePair<B, S>) -> u32 {
    pair.number().value()
}

fn reborn<B: Brand>(pair: &QueuePair<B, Reborn>) -> u32 {
    name(pair)
}

fn main() {}
