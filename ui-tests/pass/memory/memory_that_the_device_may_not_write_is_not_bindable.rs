//! Rule M27: a window is bound over memory that was registered for that, of its own domain.

use interlock::{Bindable, Brand, LocalWrite, MemoryRegion, Windowed};

fn split<B: Brand>(region: MemoryRegion<B, Windowed<LocalWrite>>) -> Bindable<B> {
    region.split_bindable().1
}

fn main() {}
