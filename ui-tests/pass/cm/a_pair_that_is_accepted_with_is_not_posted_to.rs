//! Rule N3: a queue pair that is being connected is out of reach until it is back.

use interlock::cm::{AcceptData, Parameters, Request};
use interlock::{Brand, Buffer, Init, QueuePair};

fn late<B: Brand>(id: Request, mut pair: QueuePair<B, Init>, buffer: Buffer<B>) {
    let _ = pair.post_receive(buffer);
    let _ = id.accept(pair, &Parameters::default(), &AcceptData::none());
}

fn main() {}
