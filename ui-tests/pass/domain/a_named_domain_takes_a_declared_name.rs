//! Rule D6: a brand cannot be made up.

use interlock::Context;

interlock::domain! { struct Storage; }

fn open(context: &Context) {
    let _ = context.named_domain(Storage);
}

fn main() {}
