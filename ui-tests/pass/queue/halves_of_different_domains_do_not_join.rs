//! Rule Q6: a transition takes the pair; only its result goes on.

use interlock::queue::{ReceiveHalf, SendHalf};

interlock::domain! { struct Storage; struct Scratch; }

fn join(send: SendHalf<Storage>, receive: ReceiveHalf<Storage>) {
    let _ = send.join(receive);
}

fn main() {}
