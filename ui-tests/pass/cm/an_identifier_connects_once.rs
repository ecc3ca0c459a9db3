//! Rule N2: a step takes its identifier; only its result goes on.

use interlock::cm::{ConnectData, Parameters, Resolved};
use interlock::{Brand, Init, QueuePair};

fn twice<B: Brand>(first: Resolved, second: Resolved, one: QueuePair<B, Init>, other: QueuePair<B, Init>) {
    let _ = first.connect(one, &Parameters::default(), &ConnectData::none());
    let _ = second.connect(other, &Parameters::default(), &ConnectData::none());
}

fn main() {}
