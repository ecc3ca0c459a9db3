//! Rule M12: keys and grants come from devices and records, never from numbers.

use interlock::{RemoteRead, RemoteRegion};

fn forge(region: RemoteRegion<RemoteRead>) -> RemoteRegion<RemoteRead> {
    region
}

fn main() {}
