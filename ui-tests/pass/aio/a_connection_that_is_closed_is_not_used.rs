//! Rule A1: a connection that is being closed is gone.

use interlock::Brand;
use interlock::aio::Connection;

fn close<B: Brand>(connection: Connection<B>) {
    let _closing = connection.close();
}

fn main() {}
