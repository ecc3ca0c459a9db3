//! Rule C3: a completion comes from the poller, once.
//! Error: E0639

use interlock::{Brand, Failure, Status};

fn forge<B: Brand>(failure: Failure<B>) -> Failure<B> {
    let Failure { id, queue_pair, operation, vendor_error, first_failure, memory, .. } = failure;
    Failure { id, queue_pair, operation, status: Status::Flushed, vendor_error, first_failure, memory }
}

fn main() {}
