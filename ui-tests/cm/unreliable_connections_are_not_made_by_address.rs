//! Rule N5: only reliable connections are made by address.
//! Error: E0277

use interlock::cm::{ConnectData, Parameters, Resolved};
use interlock::{Brand, Init, QueuePair, UnreliableConnection};

fn connect<B: Brand>(id: Resolved, pair: QueuePair<B, Init, UnreliableConnection>) {
    let _ = id.connect(pair, &Parameters::default(), &ConnectData::none());
}

fn main() {}
