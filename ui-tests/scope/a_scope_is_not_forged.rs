//! Rule B6: a scope has its pair for itself.
//! Error: E0451

use interlock::Brand;
use interlock::scope::{Exclusive, Scope};

fn forge<'scope, B: Brand>(scope: &'scope Scope<'scope, '_, B>, exclusive: &'scope Exclusive<B>) {
    let _ = Scope { exclusive, ..*scope };
}

fn main() {}
