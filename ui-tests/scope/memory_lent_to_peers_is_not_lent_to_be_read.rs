//! Rule B2: memory lent to be written is out of the caller's reach until the scope ends.
//! Error: E0502

use interlock::scope::{Exclusive, InScopeError};
use interlock::{Brand, RemoteWrite};
use std::time::Duration;

fn grant<B: Brand>(exclusive: &mut Exclusive<B>, timeout: Duration, words: &mut [u64], others: &[u64]) {
    let _ = exclusive.scope(timeout, |scope| {
        drop(scope.grant::<RemoteWrite>(words)?);
        drop(scope.lend(words)?);
        Ok::<_, InScopeError>(())
    });
}

fn main() {}
