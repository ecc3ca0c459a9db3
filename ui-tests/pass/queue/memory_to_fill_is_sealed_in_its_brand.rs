//! Rule Q8: the device writes only to memory that one handle owns.

use interlock::{Buffer, QueuePair};

interlock::domain! { struct Mine; }

fn receive(pair: &mut QueuePair<Mine>, memory: Buffer<Mine>) -> bool {
    pair.post_receive(memory).is_ok()
}

fn main() {}
