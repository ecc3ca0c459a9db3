//! Rule M23: what other processes or devices write is never a slice and never a buffer.

use interlock::memory::Pages;

fn look(map: &Pages) -> &[u8] {
    map
}

fn main() {}
