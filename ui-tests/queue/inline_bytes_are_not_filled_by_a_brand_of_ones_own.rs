//! Rule Q8: the device writes only to memory that one handle owns.
//! Error: E0277

use interlock::Inline;
use interlock::request::FillMemory;

interlock::domain! { struct Mine; }
impl FillMemory<Mine> for Inline<'_> {}
fn fills<M: FillMemory<Mine>>(_: M) {}
fn check(memory: Inline<'_>) {
    fills(memory);
}

fn main() {}
