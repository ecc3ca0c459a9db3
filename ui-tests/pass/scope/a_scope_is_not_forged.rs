//! Rule B6: a scope has its pair for itself.

use interlock::Brand;
use interlock::scope::{Exclusive, Scope};

fn forge<'scope, B: Brand>(scope: &'scope Scope<'scope, '_, B>, exclusive: &'scope Exclusive<B>) {
    let _ = (exclusive, scope);
}

fn main() {}
