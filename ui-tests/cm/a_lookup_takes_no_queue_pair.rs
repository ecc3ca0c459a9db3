//! Rule N6: identifiers for connections and for datagrams do not mix.
//! Error: E0599

use interlock::cm::{ConnectData, Datagrams, Parameters, Resolved};
use interlock::{Brand, Init, QueuePair};

fn connect<B: Brand>(id: Resolved<Datagrams>, pair: QueuePair<B, Init>) {
    let _ = id.connect(pair, &Parameters::default(), &ConnectData::none());
}

fn main() {}
