//! Rule C3: a completion comes from the poller, once.
//! Error: E0639

use interlock::{Brand, Success, Work, WorkId};

fn forge<B: Brand>(success: Success<B>, id: WorkId, work: Work<B>) -> Success<B> {
    Success { id, queue_pair: success.queue_pair, work }
}

fn main() {}
