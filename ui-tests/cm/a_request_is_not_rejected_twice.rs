//! Rule N2: a step takes its identifier; only its result goes on.
//! Error: E0382

use interlock::cm::{RejectData, Request};

fn twice(request: Request) {
    let _ = request.reject(&RejectData::none());
    let _ = request.reject(&RejectData::none());
}

fn main() {}
