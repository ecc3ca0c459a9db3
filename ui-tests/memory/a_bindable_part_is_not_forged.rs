//! Rule M27: a window is bound over memory that was registered for that, of its own domain.
//! Error: E0451

use interlock::{Bindable, Buffer};

fn forge<B>(buffer: Buffer<B>) -> Bindable<B> {
    Bindable { buffer }
}

fn main() {}
