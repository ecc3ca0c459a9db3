//! Rule D5: everything of a domain is invariant in its brand.
//! Error: lifetime may not live long enough

use interlock::{QueuePair, Scoped};

fn shorten<'long: 'short, 'short>(pair: QueuePair<Scoped<'long>>) -> QueuePair<Scoped<'short>> {
    pair
}

fn main() {}
