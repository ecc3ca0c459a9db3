//! Rule C3: a completion comes from the poller, once.
//! Error: E0599

use interlock::{Brand, Completion};

fn twice<B: Brand>(completion: Completion<B>) {
    let _ = (completion.clone(), completion);
}

fn main() {}
