//! Rule M28: memory behind a window is the program's again when the window has ended, and not before.

use interlock::access::Windowed;
use interlock::memory::SplitRegion;
use interlock::window::BoundWindow;
use interlock::{Brand, LocalWrite};

fn end<B: Brand>(rest: SplitRegion<B, Windowed<LocalWrite>>, window: BoundWindow<B>) {
    let lapsed = window.dealloc().unwrap();
    let _ = rest.rejoin_lapsed(lapsed).unwrap().deregister();
}

fn main() {}
