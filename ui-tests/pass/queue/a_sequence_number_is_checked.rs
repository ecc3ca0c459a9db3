//! Rule Q2: a transition takes exactly the attributes that it requires.

use interlock::attributes::RtsAttributes;
use interlock::error::OutOfRange;
use interlock::number::Psn;

fn attributes(from: RtsAttributes) -> Result<RtsAttributes, OutOfRange> {
    Ok(RtsAttributes { send_psn: Psn::new(0x10_0000)?, ..from })
}

fn main() {}
