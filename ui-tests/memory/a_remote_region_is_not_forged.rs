//! Rule M12: keys and grants come from devices and records, never from numbers.
//! Error: E0451

use interlock::{RemoteRead, RemoteRegion};

fn forge(region: RemoteRegion<RemoteRead>) -> RemoteRegion<RemoteRead> {
    RemoteRegion { len_bytes: u64::MAX, ..region }
}

fn main() {}
