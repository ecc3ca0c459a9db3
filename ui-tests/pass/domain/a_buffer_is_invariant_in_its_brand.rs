//! Rule D5: everything of a domain is invariant in its brand.

use interlock::{Buffer, Scoped};

fn shorten<'long: 'short, 'short>(buffer: Buffer<Scoped<'long>>) -> Buffer<Scoped<'long>> {
    buffer
}

fn main() {}
