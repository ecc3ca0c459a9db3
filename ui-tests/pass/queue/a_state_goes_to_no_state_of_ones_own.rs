//! Rule Q5: states and their capabilities are sealed.

use interlock::Init;
use interlock::state::GoesTo;

use interlock::ReadyToReceive as Mine;

fn goes<To: interlock::state::State, S: GoesTo<To>>() {}
fn check() {
    goes::<Mine, Init>();
}

fn main() {}
