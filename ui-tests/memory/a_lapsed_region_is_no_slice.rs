//! Rule M28: memory behind a window is the program's again when the window has ended, and not before.
//! Error: E0599

use interlock::{Brand, LocalWrite};
use interlock::access::Windowed;
use interlock::memory::LapsedRegion;

fn look<B: Brand>(region: LapsedRegion<B, Windowed<LocalWrite>>) -> u8 {
    region.as_bytes()[0]
}

fn main() {}
