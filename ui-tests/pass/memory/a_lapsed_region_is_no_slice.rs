//! Rule M28: memory behind a window is the program's again when the window has ended, and not before.

use interlock::access::Windowed;
use interlock::memory::LapsedRegion;
use interlock::{Brand, LocalWrite};

fn look<B: Brand>(region: LapsedRegion<B, Windowed<LocalWrite>>) -> u8 {
    region.deregister().unwrap()[0]
}

fn main() {}
