//! Rule M27: a window is bound over memory that was registered for that, of its own domain.
//! Error: E0277

use interlock::{Brand, LocalWrite, MemoryRegion};
use interlock::window::Bindable;

fn split<B: Brand>(region: MemoryRegion<B, LocalWrite>) -> Bindable<B> {
    region.split_bindable().1
}

fn main() {}
