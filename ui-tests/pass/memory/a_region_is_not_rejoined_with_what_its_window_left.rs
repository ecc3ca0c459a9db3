//! Rule M28: memory behind a window is the program's again when the window has ended, and not before.

use interlock::access::Windowed;
use interlock::memory::{Lapsed, SplitRegion};
use interlock::{Brand, LocalWrite};

fn rejoin<B: Brand>(rest: SplitRegion<B, Windowed<LocalWrite>>, lapsed: Lapsed<B>) {
    let _ = rest.rejoin(lapsed.reclaim().unwrap().into_buffer());
}

fn main() {}
