//! Rule D6: a brand cannot be made up.

use interlock::{Checked, Context};

fn open(context: &Context, name: Checked) {
    let _ = (context.checked_domain(), name);
}
