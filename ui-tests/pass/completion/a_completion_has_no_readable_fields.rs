//! Rule C1: a completion says nothing before its status is checked.

use interlock::{Brand, Completion, WorkId};

fn read<B: Brand>(completion: Completion<B>) -> WorkId {
    completion.id()
}

fn main() {}
