//! Rule C3: a completion comes from the poller, once.
//! Error: cannot construct `Completion<_>` with struct literal syntax due to private fields

use interlock::Completion;

fn forge<One, Other>(completion: Completion<One>) -> Completion<Other> {
    drop(completion);
    Completion {}
}

fn main() {}
