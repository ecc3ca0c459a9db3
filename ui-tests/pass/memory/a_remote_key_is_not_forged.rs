//! Rule M12: keys and grants come from devices and records, never from numbers.

use interlock::{RemoteRead, RemoteRegion, Rkey};

fn forge(region: &RemoteRegion<RemoteRead>) -> Rkey {
    region.rkey()
}

fn main() {}
