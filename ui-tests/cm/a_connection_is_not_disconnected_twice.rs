//! Rule N2: a step takes its identifier; only its result goes on.
//! Error: E0382

use interlock::Brand;
use interlock::cm::Connection;

fn twice<B: Brand>(connection: Connection<B>) {
    let _ = connection.disconnect();
    let _ = connection.disconnect();
}

fn main() {}
