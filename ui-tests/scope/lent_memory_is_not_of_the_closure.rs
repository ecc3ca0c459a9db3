//! Rule B1: lent memory outlives its scope.
//! Error: E0597

use interlock::Brand;
use interlock::scope::{Exclusive, InScopeError};
use std::time::Duration;

fn lend<B: Brand>(exclusive: &mut Exclusive<B>, timeout: Duration) {
    let bytes = [0_u8; 8];
    let _ = exclusive.scope(timeout, |scope| {
        let bytes = [0_u8; 8];
        drop(scope.lend(&bytes)?);
        Ok::<_, InScopeError>(())
    });
}

fn main() {}
