//! Rule N3: a queue pair that is being connected is out of reach until it is back.

use interlock::cm::{ConnectData, Parameters, Resolved};
use interlock::{Brand, Init, QueuePair};

fn connect<B: Brand>(id: Resolved, pair: QueuePair<B, Init>) {
    let _ = id.connect(pair, &Parameters::default(), &ConnectData::none());
}

fn main() {}
