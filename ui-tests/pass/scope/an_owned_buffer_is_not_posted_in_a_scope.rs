//! Rule B4: a scope takes only memory that was lent to it.

use interlock::Brand;
use interlock::scope::{Lent, Scope};

fn post<'scope, B: Brand>(scope: &'scope Scope<'scope, '_, B>, memory: Lent<'scope, B>) {
    let _ = scope.post_send(memory);
}

fn main() {}
