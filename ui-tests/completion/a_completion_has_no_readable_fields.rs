//! Rule C1: a completion says nothing before its status is checked.
//! Error: E0616

use interlock::{Brand, Completion, WorkId};

fn read<B: Brand>(completion: Completion<B>) -> WorkId {
    completion.ended.id
}

fn main() {}
