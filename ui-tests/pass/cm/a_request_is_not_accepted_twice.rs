//! Rule N2: a step takes its identifier; only its result goes on.

use interlock::cm::{AcceptData, Parameters, Request};
use interlock::{Brand, Init, QueuePair};

fn twice<B: Brand>(first: Request, second: Request, one: QueuePair<B, Init>, other: QueuePair<B, Init>) {
    let _ = first.accept(one, &Parameters::default(), &AcceptData::none());
    let _ = second.accept(other, &Parameters::default(), &AcceptData::none());
}

fn main() {}
