//! Rule B7: lent memory in flight is gone until its completion.

use interlock::Brand;
use interlock::scope::{InScopeError, LentMut, Scope};

fn look<'scope, B: Brand>(scope: &'scope Scope<'scope, '_, B>, memory: LentMut<'scope, B>) -> Result<u8, InScopeError> {
    let ticket = scope.post_receive(memory)?;
    let memory = scope.wait(ticket)?.memory;
    Ok(memory[0])
}

fn main() {}
