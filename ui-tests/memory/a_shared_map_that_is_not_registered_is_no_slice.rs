//! Rule M23: what other processes or devices write is never a slice and never a buffer.
//! Error: E0308

use interlock::memory::SharedMap;

fn look(map: &SharedMap) -> &[u8] {
    map
}

fn main() {}
