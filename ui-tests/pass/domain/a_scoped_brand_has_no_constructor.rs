//! Rule D6: a brand cannot be made up.

use interlock::Scoped;

fn forge<'pd>(scoped: Scoped<'pd>) -> Scoped<'pd> {
    scoped
}

fn main() {}
