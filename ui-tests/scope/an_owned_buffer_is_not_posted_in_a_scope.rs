//! Rule B4: a scope takes only memory that was lent to it.
//! Error: E0277

use interlock::scope::Scope;
use interlock::{Brand, Buffer};

fn post<'scope, B: Brand>(scope: &'scope Scope<'scope, '_, B>, memory: Buffer<B>) {
    let _ = scope.post_send(memory);
}

fn main() {}
