//! Rule M27: a window is bound over memory that was registered for that, of its own domain.
//! Error: E0277

use interlock::{Brand, LocalRead, MemoryRegion};
use interlock::access::Windowed;
use interlock::memory::Pages;

fn split<B: Brand>(region: MemoryRegion<B, Windowed<LocalRead>, Pages>) {
    drop(region.split_bindable());
}

fn main() {}
