//! Rule D6: a brand cannot be made up.
//! Error: E0423

use interlock::Checked;

fn forge(checked: Checked) -> Checked {
    drop(checked);
    Checked
}

fn main() {}
