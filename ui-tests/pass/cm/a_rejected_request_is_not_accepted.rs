//! Rule N2: a step takes its identifier; only its result goes on.

use interlock::cm::{AcceptData, Parameters, RejectData, Request};
use interlock::{Brand, Init, QueuePair};

fn both<B: Brand>(first: Request, second: Request, pair: QueuePair<B, Init>) {
    let _ = first.reject(&RejectData::none());
    let _ = second.accept(pair, &Parameters::default(), &AcceptData::none());
}

fn main() {}
