//! Rule Q5: states and their capabilities are sealed.

use interlock::request::SendMemory;

fn alias<B, M: SendMemory<B>>(memory: &M) {
    let _ = memory;
}

fn main() {}
