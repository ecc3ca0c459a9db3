//! Rule N4: private data fit the call that carries them.
//! Error: E0308

use interlock::cm::{AcceptData, Parameters, Resolved};
use interlock::{Brand, Init, QueuePair};

fn connect<B: Brand>(id: Resolved, pair: QueuePair<B, Init>) {
    let _ = id.connect(pair, &Parameters::default(), &AcceptData::none());
}

fn main() {}
