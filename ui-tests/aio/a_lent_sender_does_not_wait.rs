//! Rule A7: a sender that is lent does not wait.
//! Error: E0599

use interlock::Brand;
use interlock::aio::SharedSender;
use std::task::Context;

fn wait<B: Brand>(shared: &SharedSender<B>, context: &mut Context<'_>) -> bool {
    shared.with(|sender| sender.poll_room(context).is_ready())
}

fn main() {}
