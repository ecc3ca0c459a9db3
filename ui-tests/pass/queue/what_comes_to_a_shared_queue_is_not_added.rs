//! Rule H4: datagrams come to receives that have room for their header.

use interlock::shared::Arrivals;

struct Mine;

fn arrives<A: Arrivals>() {}

fn mine() {
    let _ = Mine;
    arrives::<interlock::shared::Messages>();
}

fn main() {}
