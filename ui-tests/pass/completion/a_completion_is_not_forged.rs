//! Rule C3: a completion comes from the poller, once.

use interlock::Completion;

fn forge<One>(completion: Completion<One>) -> Completion<One> {
    completion
}

fn main() {}
