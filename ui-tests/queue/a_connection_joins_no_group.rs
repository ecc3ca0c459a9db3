//! Rule Q14: which operation exists on which transport is a matter of types.
//! Error: E0277

use interlock::{Brand, Gid, QueuePair};

fn join<B: Brand>(pair: &mut QueuePair<B>, group: Gid) {
    let _ = pair.join_group(group, 0);
}

fn main() {}
