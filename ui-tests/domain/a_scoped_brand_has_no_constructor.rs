//! Rule D6: a brand cannot be made up.
//! Error: E0423

use interlock::Scoped;

fn forge<'pd>(scoped: Scoped<'pd>) -> Scoped<'pd> {
    drop(scoped);
    Scoped(std::marker::PhantomData)
}

fn main() {}
