//! Rule N6: identifiers for connections and for datagrams do not mix.

use interlock::cm::{Datagrams, LookupData, Resolved};

fn look_up(id: Resolved<Datagrams>) {
    let _ = id.look_up(&LookupData::none());
}

fn main() {}
