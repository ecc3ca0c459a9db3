//! Rule Q14: which operation exists on which transport is a matter of types.

use interlock::transport::Carries;
use interlock::{Buffer, QueuePair, UnreliableConnection, WorkRequest};

interlock::domain! { struct Mine; }

fn post<K>(
    pair: &mut QueuePair<Mine, interlock::ReadyToSend, UnreliableConnection>,
    request: WorkRequest<Buffer<Mine>, K>,
) where
    UnreliableConnection: Carries<K>,
{
    let _ = pair.post(request);
}

fn main() {}
