//! Rule M27: a window is bound over memory that was registered for that, of its own domain.

use interlock::access::Windowed;
use interlock::window::Bindable;
use interlock::{Brand, LocalWrite, MemoryRegion};

fn split<B: Brand>(region: MemoryRegion<B, Windowed<LocalWrite>>) -> Bindable<B> {
    region.split_bindable().1
}

fn main() {}
