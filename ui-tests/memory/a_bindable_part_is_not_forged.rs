//! Rule M27: a window is bound over memory that was registered for that, of its own domain.
//! Error: E0451

use interlock::Buffer;
use interlock::window::Bindable;

fn forge<B>(buffer: Buffer<B>) -> Bindable<B> {
    Bindable { buffer }
}

fn main() {}
