//! Rule Q13: work ids come from posting.

use interlock::WorkId;

fn forge(id: WorkId) -> WorkId {
    id
}

fn main() {}
