//! Rule N4: private data fit the call that carries them.

use interlock::cm::{ConnectData, Parameters, Resolved};
use interlock::{Brand, Init, QueuePair};

fn connect<B: Brand>(id: Resolved, pair: QueuePair<B, Init>) {
    let _ = id.connect(pair, &Parameters::default(), &ConnectData::none());
}

fn main() {}
