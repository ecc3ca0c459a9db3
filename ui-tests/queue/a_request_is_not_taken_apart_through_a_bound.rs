//! Rule Q5: states and their capabilities are sealed.
//! Error: E0308

use interlock::request::SendMemory;

fn alias<B, M: SendMemory<B>>(memory: &M) {
    let _ = memory.descriptor(());
}

fn main() {}
