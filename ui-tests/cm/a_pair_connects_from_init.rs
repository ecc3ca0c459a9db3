//! Rule N3: a queue pair that is being connected is out of reach until it is back.
//! Error: E0308

use interlock::cm::{ConnectData, Parameters, Resolved};
use interlock::{Brand, QueuePair, Reset};

fn connect<B: Brand>(id: Resolved, pair: QueuePair<B, Reset>) {
    let _ = id.connect(pair, &Parameters::default(), &ConnectData::none());
}

fn main() {}
