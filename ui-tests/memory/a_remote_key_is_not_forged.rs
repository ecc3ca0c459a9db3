//! Rule M12: keys and grants come from devices and records, never from numbers.
//! Error: E0423

use interlock::{RemoteRead, RemoteRegion};
use interlock::number::Rkey;

fn forge(region: &RemoteRegion<RemoteRead>) -> Rkey {
    Rkey(region.rkey().value() + 1)
}

fn main() {}
