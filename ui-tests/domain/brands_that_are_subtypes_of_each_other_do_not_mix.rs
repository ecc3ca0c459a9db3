//! Rule D5: everything of a domain is invariant in its brand.
//! Error: E0308

use interlock::Buffer;

use interlock::domain::Named;
use std::marker::PhantomData;

/// A name with a parameter: each of the two types is a subtype of the other, but they are two names.
struct Of<T>(PhantomData<T>);

impl<T: 'static> Named for Of<T> {
    const NAME: &'static str = "of";
}

type One = Of<for<'a> fn(&'a (), &'a ())>;
type Other = Of<for<'a, 'b> fn(&'a (), &'b ())>;

fn rename(buffer: Buffer<One>) -> Buffer<Other> {
    buffer
}

fn other(_: Buffer<Other>) {}

fn main() {}
