//! Rule Q14: which operation exists on which transport is a matter of types.
//! Error: E0277

use interlock::{Buffer, QueuePair, UnreliableConnection, WorkRequest};
use interlock::transport::Carries;

interlock::domain! { struct Mine; }
impl Carries<Mine> for UnreliableConnection {}
fn post<K>(pair: &mut QueuePair<Mine, interlock::ReadyToSend, UnreliableConnection>, request: WorkRequest<Buffer<Mine>, K>)
where
    UnreliableConnection: Carries<K>,
{
    let _ = pair.post(request);
}

fn main() {}
