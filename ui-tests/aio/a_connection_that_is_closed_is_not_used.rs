//! Rule A1: a connection that is being closed is gone.
//! Error: E0382

use interlock::Brand;
use interlock::aio::Connection;

fn close<B: Brand>(mut connection: Connection<B>) {
    let _closing = connection.close();
    let _ = connection.keep_alive(None);
}

fn main() {}
