//! Rule Q5: states and their capabilities are sealed.
//! Error: E0308

use interlock::request::{Operation, SendMemory};

fn rebrand<One, Other, M: SendMemory<One>, N: SendMemory<Other>>(memory: M) -> Option<N> {
    N::from_entry(memory.into_entry(Operation::Send, ()), ())
}

fn main() {}
