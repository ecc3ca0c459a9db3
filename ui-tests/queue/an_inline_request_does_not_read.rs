//! Rule Q8: the device writes only to memory that one handle owns.
//! Error: E0308

use interlock::{Brand, Inline, QueuePair, RemoteAll, RemoteRegion};

fn post<B: Brand>(pair: &mut QueuePair<B>, source: &RemoteRegion<RemoteAll>) {
    let _ = pair.post_read(Inline(&[0; 8]), source);
}

fn main() {}
