//! Hole A-2: a grant with public fields, which any program can make up.
//! Error: E0451

use interlock::{RemoteRegion, RemoteWrite};
use interlock::number::Rkey;

fn forge(record: &[u8], rkey: Rkey) -> Option<RemoteRegion<RemoteWrite>> {
    Some(RemoteRegion { address: 0x1000, len_bytes: record.len() as u64, rkey, fits: 8, rights: Default::default() })
}

fn main() {}
