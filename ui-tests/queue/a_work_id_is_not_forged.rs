//! Rule Q13: work ids come from posting.
//! Error: E0423

use interlock::WorkId;

fn forge(id: WorkId) -> WorkId {
    drop(id);
    WorkId(7)
}

fn main() {}
