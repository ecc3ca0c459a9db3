//! Rule D5: everything of a domain is invariant in its brand.

use interlock::Buffer;

use interlock::domain::Named;
use std::marker::PhantomData;

/// A name with a parameter: one type is a subtype of the other, but they are two names.
struct Of<T>(PhantomData<T>);

impl<T: 'static> Named for Of<T> {
    const NAME: &'static str = "of";
}

type ForAll = Of<for<'a> fn(&'a ())>;
type ForStatic = Of<fn(&'static ())>;

fn rename(buffer: Buffer<ForAll>) -> Buffer<ForAll> {
    buffer
}

fn of_static(_: Buffer<ForStatic>) {}

fn main() {}
