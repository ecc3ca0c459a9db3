//! Rule N1: a call exists only in the states that allow it.
//! Error: E0599

use interlock::cm::{AcceptData, Idle, Parameters};
use interlock::{Brand, Init, QueuePair};

fn accept<B: Brand>(id: Idle, pair: QueuePair<B, Init>) {
    let _ = id.accept(pair, &Parameters::default(), &AcceptData::none());
}

fn main() {}
