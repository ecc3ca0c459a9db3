//! Rule H4: datagrams come to receives that have room for their header.

use interlock::shared::{Datagrams, SharedReceiveQueue};

interlock::domain! { struct Storage; }

fn change(shared: SharedReceiveQueue<Storage, Datagrams>) -> SharedReceiveQueue<Storage, Datagrams> {
    shared
}

fn main() {}
