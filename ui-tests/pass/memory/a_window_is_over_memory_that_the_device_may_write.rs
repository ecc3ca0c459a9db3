//! Rule M27: a window is bound over memory that was registered for that, of its own domain.

use interlock::access::Windowed;
use interlock::memory::Pages;
use interlock::{Brand, LocalWrite, MemoryRegion};

fn split<B: Brand>(region: MemoryRegion<B, Windowed<LocalWrite>, Pages>) {
    drop(region.split_bindable());
}

fn main() {}
