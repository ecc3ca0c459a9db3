//! Rule M27: a window is bound over memory that was registered for that, of its own domain.

use interlock::Buffer;
use interlock::window::Bindable;

fn forge<B>(buffer: Buffer<B>) -> Bindable<B> {
    buffer.into_bindable().unwrap()
}

fn main() {}
