//! Rule N5: only reliable connections are made by address.

use interlock::cm::{ConnectData, Parameters, Resolved};
use interlock::{Brand, Init, QueuePair, ReliableConnection};

fn connect<B: Brand>(id: Resolved, pair: QueuePair<B, Init, ReliableConnection>) {
    let _ = id.connect(pair, &Parameters::default(), &ConnectData::none());
}

fn main() {}
