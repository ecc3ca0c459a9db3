//! Rule A2: memory that a task has posted is gone until its answer.
//! Error: E0382

use interlock::aio::{Connection, RequestError};
use interlock::{Brand, Buffer};

async fn send<B: Brand>(connection: &mut Connection<B>, buffer: Buffer<B>) -> Result<u8, RequestError<B>> {
    let Ok(posted) = connection.send(buffer) else { return Ok(0) };
    let first = buffer[0];
    posted.await?;
    Ok(first)
}

fn main() {}
