//! Rule Q2: a transition takes exactly the attributes that it requires.
//! Error: E0063

use interlock::attributes::RtsAttributes;
use interlock::error::OutOfRange;
use interlock::number::{Psn, ReadDepth, RetryCount, RnrRetry};

fn attributes(send_psn: Psn) -> Result<RtsAttributes, OutOfRange> {
    Ok(RtsAttributes {
        send_psn,
        retry_count: RetryCount::new(7)?,
        rnr_retry: RnrRetry::FOREVER,
        initiator_depth: ReadDepth::new(1)?,
    })
}

fn main() {}
