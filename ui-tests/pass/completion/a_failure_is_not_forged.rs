//! Rule C3: a completion comes from the poller, once.

use interlock::{Brand, Failure};

fn forge<B: Brand>(failure: Failure<B>) -> Failure<B> {
    failure
}

fn main() {}
