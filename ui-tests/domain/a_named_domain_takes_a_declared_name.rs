//! Rule D6: a brand cannot be made up.
//! Error: E0277

use interlock::Context;

interlock::domain! { struct Storage; }

fn open(context: &Context) {
    let _ = context.named_domain("storage");
}

fn main() {}
