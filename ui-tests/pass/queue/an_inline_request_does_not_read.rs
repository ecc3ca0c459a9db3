//! Rule Q8: the device writes only to memory that one handle owns.

use interlock::{Brand, Inline, QueuePair, RemoteAll, RemoteRegion};

fn post<B: Brand>(pair: &mut QueuePair<B>, target: &RemoteRegion<RemoteAll>) {
    let _ = pair.post_write(Inline(&[0; 8]), target);
}

fn main() {}
