//! Rule N2: a step takes its identifier; only its result goes on.

use interlock::Brand;
use interlock::cm::Connection;

fn twice<B: Brand>(connection: Connection<B>) {
    let _ = connection.disconnect();
}

fn main() {}
