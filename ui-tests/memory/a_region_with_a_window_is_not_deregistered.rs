//! Rule M28: memory behind a window is the program's again when the window has ended, and not before.
//! Error: E0599

use interlock::{Brand, LocalWrite};
use interlock::access::Windowed;
use interlock::memory::SplitRegion;
use interlock::window::BoundWindow;

fn end<B: Brand>(rest: SplitRegion<B, Windowed<LocalWrite>>, window: BoundWindow<B>) {
    let _ = rest.deregister();
    drop(window);
}

fn main() {}
