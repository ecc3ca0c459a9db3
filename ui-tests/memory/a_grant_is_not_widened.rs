//! Rule M12: keys and grants come from devices and records, never from numbers.
//! Error: E0308

use interlock::{RemoteAll, RemoteRead, RemoteRegion};

fn widen(region: RemoteRegion<RemoteRead>) -> Option<RemoteRegion<RemoteAll>> {
    Some(region)
}

fn main() {}
