//! Rule H4: datagrams come to receives that have room for their header.

use interlock::shared::{Messages, Serves};

use interlock::ReliableConnection as Mine;

fn serves<T, A: Serves<T>>() {}
fn check() {
    serves::<Mine, Messages>();
}

fn main() {}
