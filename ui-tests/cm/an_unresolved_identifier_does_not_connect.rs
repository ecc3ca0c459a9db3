//! Rule N1: a call exists only in the states that allow it.
//! Error: E0599

use interlock::cm::{ConnectData, Idle, Parameters};
use interlock::{Brand, Init, QueuePair};

fn connect<B: Brand>(id: Idle, pair: QueuePair<B, Init>) {
    let _ = id.connect(pair, &Parameters::default(), &ConnectData::none());
}

fn main() {}
