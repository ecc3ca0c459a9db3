//! Rule Q6: a transition takes the pair; only its result goes on.
//! Error: E0308

use interlock::queue::{ReceiveHalf, SendHalf};

interlock::domain! { struct Storage; struct Scratch; }

fn join(send: SendHalf<Storage>, receive: ReceiveHalf<Scratch>) {
    let _ = send.join(receive);
}

fn main() {}
