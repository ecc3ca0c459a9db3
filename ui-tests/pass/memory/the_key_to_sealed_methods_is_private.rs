//! Rule M7: registered memory belongs to its region until it is deregistered.

use interlock::memory::Memory;

fn take_apart<M: Memory>(memory: M) {
    drop(memory);
}

fn main() {}
