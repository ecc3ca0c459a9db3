//! Rule Q2: a transition takes exactly the attributes that it requires.
//! Error: E0308

use interlock::attributes::RtsAttributes;
use interlock::error::OutOfRange;

fn attributes(from: RtsAttributes) -> Result<RtsAttributes, OutOfRange> {
    Ok(RtsAttributes { send_psn: 0x100_0000, ..from })
}

fn main() {}
