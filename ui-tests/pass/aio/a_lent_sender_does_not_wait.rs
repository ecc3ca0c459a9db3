//! Rule A7: a sender that is lent does not wait.

use interlock::Brand;
use interlock::aio::Sender;
use std::task::Context;

fn wait<B: Brand>(sender: &mut Sender<B>, context: &mut Context<'_>) -> bool {
    sender.poll_room(context).is_ready()
}

fn main() {}
