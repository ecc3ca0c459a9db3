//! Rule D6: a brand cannot be made up.
//! Error: E0277

use interlock::{Checked, Context};

fn open(context: &Context, name: Checked) {
    let _ = context.named_domain(name);
}

fn main() {}
