//! Rule N1: a call exists only in the states that allow it.

use interlock::cm::{ConnectData, Parameters, Resolved};
use interlock::{Brand, Init, QueuePair};

fn connect<B: Brand>(id: Resolved, pair: QueuePair<B, Init>) {
    let _ = id.connect(pair, &Parameters::default(), &ConnectData::none());
}

fn main() {}
