//! Rule M12: keys and grants come from devices and records, never from numbers.

use interlock::{RemoteAll, RemoteRead, RemoteRegion};

fn widen(region: RemoteRegion<RemoteRead>) -> Option<RemoteRegion<RemoteAll>> {
    region.restrict().ok()
}

fn main() {}
