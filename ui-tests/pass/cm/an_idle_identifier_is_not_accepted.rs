//! Rule N1: a call exists only in the states that allow it.

use interlock::cm::{AcceptData, Parameters, Request};
use interlock::{Brand, Init, QueuePair};

fn accept<B: Brand>(id: Request, pair: QueuePair<B, Init>) {
    let _ = id.accept(pair, &Parameters::default(), &AcceptData::none());
}

fn main() {}
