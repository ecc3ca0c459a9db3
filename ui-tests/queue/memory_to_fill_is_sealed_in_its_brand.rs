//! Rule Q8: the device writes only to memory that one handle owns.
//! Error: E0277

use interlock::{QueuePair, SharedBuffer};
use interlock::request::FillMemory;

interlock::domain! { struct Mine; }
impl FillMemory<Mine> for SharedBuffer<Mine> {}
fn receive(pair: &mut QueuePair<Mine>, memory: SharedBuffer<Mine>) -> bool {
    pair.post_receive(memory).is_ok()
}

fn main() {}
