//! Rule D5: everything of a domain is invariant in its brand.

use interlock::{QueuePair, Scoped};

fn shorten<'long: 'short, 'short>(pair: QueuePair<Scoped<'long>>) -> QueuePair<Scoped<'long>> {
    pair
}

fn main() {}
