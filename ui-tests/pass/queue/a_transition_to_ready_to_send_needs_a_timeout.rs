//! Rule Q2: a transition takes exactly the attributes that it requires.

use interlock::attributes::RtsAttributes;
use interlock::error::OutOfRange;
use interlock::number::{AckTimeout, Psn, ReadDepth, RetryCount, RnrRetry};

fn attributes(send_psn: Psn) -> Result<RtsAttributes, OutOfRange> {
    Ok(RtsAttributes {
        send_psn,
        timeout: AckTimeout::new(14)?,
        retry_count: RetryCount::new(7)?,
        rnr_retry: RnrRetry::FOREVER,
        initiator_depth: ReadDepth::new(1)?,
    })
}

fn main() {}
