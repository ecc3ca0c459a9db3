//! Rule Q8: the device writes only to memory that one handle owns.

use interlock::Buffer;
use interlock::request::FillMemory;

interlock::domain! { struct Mine; }

fn fills<M: FillMemory<Mine>>(_: M) {}
fn check(memory: Buffer<Mine>) {
    fills(memory);
}

fn main() {}
