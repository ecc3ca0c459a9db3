//! Rule C3: a completion comes from the poller, once.
//! Error: E0616

use interlock::{Brand, Success};

fn forge<B: Brand>(success: Success<B>) -> (Success<B>, Success<B>) {
    let again = Success { ended: success.ended, entry: success.entry, brand: Default::default() };
    (success, again)
}

fn main() {}
