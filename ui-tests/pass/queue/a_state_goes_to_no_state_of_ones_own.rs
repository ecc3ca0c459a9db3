//! Rule Q5: states and their capabilities are sealed.

use interlock::{GoesTo, Init};

use interlock::ReadyToReceive as Mine;

fn goes<To: interlock::State, S: GoesTo<To>>() {}
fn check() {
    goes::<Mine, Init>();
}

fn main() {}
