//! Rule M12: keys and grants come from devices and records, never from numbers.

use interlock::number::Rkey;
use interlock::{RemoteRead, RemoteRegion};

fn forge(region: &RemoteRegion<RemoteRead>) -> Rkey {
    region.rkey()
}

fn main() {}
