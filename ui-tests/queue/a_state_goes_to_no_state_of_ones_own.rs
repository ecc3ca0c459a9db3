//! Rule Q5: states and their capabilities are sealed.
//! Error: E0277

use interlock::Init;
use interlock::state::GoesTo;

struct Mine;
impl GoesTo<Mine> for Init {}
fn goes<To: interlock::state::State, S: GoesTo<To>>() {}
fn check() {
    goes::<Mine, Init>();
}

fn main() {}
