//! Rule M28: memory behind a window is the program's again when the window has ended, and not before.

use interlock::{Brand, LapsedRegion, LocalWrite, Windowed};

fn look<B: Brand>(region: LapsedRegion<B, Windowed<LocalWrite>>) -> u8 {
    region.deregister().unwrap()[0]
}

fn main() {}
