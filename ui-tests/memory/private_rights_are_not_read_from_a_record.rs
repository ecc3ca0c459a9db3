//! Rule M4: private memory is not granted to peers.
//! Error: E0599

use interlock::{LocalWrite, RemoteRegion};

fn parse(record: &[u8]) {
    let _ = RemoteRegion::<LocalWrite>::from_bytes(record);
}

fn main() {}
