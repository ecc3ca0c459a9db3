//! Rule D5: everything of a domain is invariant in its brand.
//! Error: lifetime may not live long enough

use interlock::{Buffer, Scoped};

fn lengthen<'long: 'short, 'short>(buffer: Buffer<Scoped<'short>>) -> Buffer<Scoped<'long>> {
    buffer
}

fn main() {}
