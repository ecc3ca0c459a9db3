//! Rule N3: a queue pair that is being connected is out of reach until it is back.
//! Error: E0382

use interlock::cm::{AcceptData, Parameters, Request};
use interlock::{Brand, Buffer, Init, QueuePair};

fn late<B: Brand>(id: Request, mut pair: QueuePair<B, Init>, buffer: Buffer<B>) {
    let _ = id.accept(pair, &Parameters::default(), &AcceptData::none());
    let _ = pair.post_receive(buffer);
}

fn main() {}
