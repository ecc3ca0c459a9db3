//! Rule H4: datagrams come to receives that have room for their header.
//! Error: E0308

use interlock::shared::{Datagrams, Messages, SharedReceiveQueue};

interlock::domain! { struct Storage; }

fn change(shared: SharedReceiveQueue<Storage, Messages>) -> SharedReceiveQueue<Storage, Datagrams> {
    shared
}

fn main() {}
