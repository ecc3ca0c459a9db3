//! Rule B2: memory lent to be written is out of the caller's reach until the scope ends.

use interlock::scope::{Exclusive, InScopeError};
use interlock::{Brand, RemoteWrite};
use std::time::Duration;

fn grant<B: Brand>(exclusive: &mut Exclusive<B>, timeout: Duration, words: &mut [u64], others: &[u64]) {
    let _ = exclusive.scope(timeout, |scope| {
        drop(scope.grant::<RemoteWrite>(words)?);
        drop(scope.lend(others)?);
        Ok::<_, InScopeError>(())
    });
}

fn main() {}
