//! Rule C3: a completion comes from the poller, once.

use interlock::{Brand, Completion};

fn twice<B: Brand>(completion: Completion<B>) {
    let _ = completion;
}

fn main() {}
