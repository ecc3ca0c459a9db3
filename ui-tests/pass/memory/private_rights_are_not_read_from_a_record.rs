//! Rule M4: private memory is not granted to peers.

use interlock::{RemoteRegion, RemoteWrite};

fn parse(record: &[u8]) {
    let _ = RemoteRegion::<RemoteWrite>::from_bytes(record);
}

fn main() {}
