//! Rule H4: datagrams come to receives that have room for their header.
//! Error: E0277

use interlock::shared::{Messages, Serves};

struct Mine;
impl Serves<Mine> for Messages {}
fn serves<T, A: Serves<T>>() {}
fn check() {
    serves::<Mine, Messages>();
}

fn main() {}
