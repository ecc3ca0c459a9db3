//! Rule C3: a completion comes from the poller, once.

use interlock::{Brand, Success, Work, WorkId};

fn forge<B: Brand>(success: Success<B>, _id: WorkId, _work: Work<B>) -> Success<B> {
    success
}

fn main() {}
