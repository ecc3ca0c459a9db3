//! Rule Q5: states and their capabilities are sealed.

use interlock::request::SendMemory;
use interlock::{Brand, QueuePair};

use interlock::Buffer as Mine;
fn send<B: Brand>(pair: &mut QueuePair<B>, memory: Mine<B>) -> bool {
    post(pair, memory)
}

fn post<B: Brand, M: SendMemory<B>>(pair: &mut QueuePair<B>, memory: M) -> bool {
    pair.post_send(memory).is_ok()
}

fn main() {}
