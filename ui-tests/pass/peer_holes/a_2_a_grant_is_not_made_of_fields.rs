//! Hole A-2: a grant with public fields, which any program can make up.

use interlock::number::Rkey;
use interlock::{RemoteRegion, RemoteWrite};

fn forge(record: &[u8], rkey: Rkey) -> Option<RemoteRegion<RemoteWrite>> {
    RemoteRegion::from_bytes(record).ok().filter(|region| region.rkey() == rkey)
}

fn main() {}
