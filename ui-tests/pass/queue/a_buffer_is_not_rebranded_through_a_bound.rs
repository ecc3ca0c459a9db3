//! Rule Q5: states and their capabilities are sealed.

use interlock::request::SendMemory;

fn rebrand<One, M: SendMemory<One>>(memory: M) -> Option<M> {
    Some(memory)
}

fn main() {}
