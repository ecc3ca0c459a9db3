//! Rule Q5: states and their capabilities are sealed.
//! Error: E0277

use interlock::{Brand, Buffer, QueuePair};
use interlock::request::SendMemory;

struct Mine<B>(Buffer<B>);
impl<B> SendMemory<B> for Mine<B> {}
fn send<B: Brand>(pair: &mut QueuePair<B>, memory: Mine<B>) -> bool {
    post(pair, memory)
}

fn post<B: Brand, M: SendMemory<B>>(pair: &mut QueuePair<B>, memory: M) -> bool {
    pair.post_send(memory).is_ok()
}

fn main() {}
