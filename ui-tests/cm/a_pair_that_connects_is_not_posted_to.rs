//! Rule N3: a queue pair that is being connected is out of reach until it is back.
//! Error: E0382

use interlock::cm::{ConnectData, Parameters, Resolved};
use interlock::{Brand, Buffer, Init, QueuePair};

fn late<B: Brand>(id: Resolved, mut pair: QueuePair<B, Init>, buffer: Buffer<B>) {
    let _ = id.connect(pair, &Parameters::default(), &ConnectData::none());
    let _ = pair.post_receive(buffer);
}

fn main() {}
