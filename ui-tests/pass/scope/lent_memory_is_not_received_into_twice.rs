//! Rule B7: lent memory in flight is gone until its completion.

use interlock::Brand;
use interlock::scope::{InScopeError, LentMut, Scope};

fn post<'scope, B: Brand>(scope: &'scope Scope<'scope, '_, B>, memory: LentMut<'scope, B>) -> Result<(), InScopeError> {
    let (one, two) = memory.split_at(8).unwrap();
    drop(scope.post_receive(one)?);
    drop(scope.post_receive(two)?);
    Ok(())
}

fn main() {}
