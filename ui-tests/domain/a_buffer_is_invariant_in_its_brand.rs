//! Rule D5: everything of a domain is invariant in its brand.
//! Error: lifetime may not live long enough

use interlock::{Buffer, Scoped};

fn shorten<'long: 'short, 'short>(buffer: Buffer<Scoped<'long>>) -> Buffer<Scoped<'short>> {
    buffer
}

fn main() {}
