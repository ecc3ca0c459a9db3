//! Rule M27: a window is bound over memory that was registered for that, of its own domain.

use interlock::{Bindable, Buffer};

fn forge<B>(buffer: Buffer<B>) -> Bindable<B> {
    buffer.into_bindable().unwrap()
}

fn main() {}
