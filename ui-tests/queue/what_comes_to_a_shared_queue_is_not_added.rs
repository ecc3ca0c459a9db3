//! Rule H4: datagrams come to receives that have room for their header.
//! Error: E0277

use interlock::shared::Arrivals;

struct Mine;
impl Arrivals for Mine {}

fn arrives<A: Arrivals>() {}

fn mine() {
    arrives::<Mine>();
}

fn main() {}
