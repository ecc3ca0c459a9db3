//! Rule B7: lent memory in flight is gone until its completion.
//! Error: E0308

use interlock::Brand;
use interlock::scope::{InScopeError, Lent, LentMut, Scope};

fn post<'scope, B: Brand>(
    scope: &'scope Scope<'scope, '_, B>,
    shared: Lent<'scope, B>,
    unique: LentMut<'scope, B>,
) -> Result<(), InScopeError> {
    drop(scope.post_send(shared.clone())?);
    drop(scope.post_receive(shared)?);
    Ok(())
}

fn main() {}
