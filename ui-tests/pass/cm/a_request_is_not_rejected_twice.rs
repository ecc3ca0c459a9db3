//! Rule N2: a step takes its identifier; only its result goes on.

use interlock::cm::{RejectData, Request};

fn twice(request: Request) {
    let _ = request.reject(&RejectData::none());
}

fn main() {}
