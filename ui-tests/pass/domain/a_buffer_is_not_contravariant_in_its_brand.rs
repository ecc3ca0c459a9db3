//! Rule D5: everything of a domain is invariant in its brand.

use interlock::{Buffer, Scoped};

fn lengthen<'long: 'short, 'short>(buffer: Buffer<Scoped<'short>>) -> Buffer<Scoped<'short>> {
    buffer
}

fn main() {}
