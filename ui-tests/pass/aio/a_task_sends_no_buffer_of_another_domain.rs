//! Rule A5: what a task posts is of the domain of its queue pair.

use interlock::Buffer;
use interlock::aio::Sender;
interlock::domain! { struct Storage; }
interlock::domain! { struct Scratch; }

fn send(sender: &mut Sender<Storage>, buffer: Buffer<Storage>, _: Buffer<Scratch>) {
    drop(sender.send(buffer));
}

fn main() {}
