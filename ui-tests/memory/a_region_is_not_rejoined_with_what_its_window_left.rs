//! Rule M28: memory behind a window is the program's again when the window has ended, and not before.
//! Error: E0308

use interlock::{Brand, LocalWrite};
use interlock::access::Windowed;
use interlock::memory::{Lapsed, SplitRegion};

fn rejoin<B: Brand>(rest: SplitRegion<B, Windowed<LocalWrite>>, lapsed: Lapsed<B>) {
    let _ = rest.rejoin(lapsed);
}

fn main() {}
