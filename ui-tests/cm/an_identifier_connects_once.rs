//! Rule N2: a step takes its identifier; only its result goes on.
//! Error: E0382

use interlock::cm::{ConnectData, Parameters, Resolved};
use interlock::{Brand, Init, QueuePair};

fn twice<B: Brand>(first: Resolved, second: Resolved, one: QueuePair<B, Init>, other: QueuePair<B, Init>) {
    let _ = first.connect(one, &Parameters::default(), &ConnectData::none());
    let _ = first.connect(other, &Parameters::default(), &ConnectData::none());
}

fn main() {}
