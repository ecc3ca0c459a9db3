//! Rule N3: a queue pair that is being connected is out of reach until it is back.

use interlock::cm::{ConnectData, Parameters, Resolved};
use interlock::{Brand, Buffer, Init, QueuePair};

fn late<B: Brand>(id: Resolved, mut pair: QueuePair<B, Init>, buffer: Buffer<B>) {
    let _ = pair.post_receive(buffer);
    let _ = id.connect(pair, &Parameters::default(), &ConnectData::none());
}

fn main() {}
