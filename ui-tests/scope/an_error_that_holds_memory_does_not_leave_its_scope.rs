//! Rule B3: nothing of a scope leaves its closure.
//! Error: lifetime may not live long enough

use interlock::Brand;
use interlock::scope::Exclusive;
use std::error::Error;
use std::time::Duration;

fn carry_out<B: Brand + 'static>(exclusive: &mut Exclusive<B>, timeout: Duration, bytes: &[u8]) {
    let _ = exclusive.scope(timeout, |scope| -> Result<(), Box<dyn Error>> {
        let lent = scope.lend(bytes)?;
        drop(scope.post_send(lent)?);
        Ok(())
    });
}

fn main() {}
