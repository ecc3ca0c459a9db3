//! Rule M7: registered memory belongs to its region until it is deregistered.
//! Error: E0308

use interlock::memory::Memory;

fn take_apart<M: Memory>(memory: M) {
    let _ = memory.take_apart(());
}

fn main() {}
