//! Rule M12: keys and grants come from devices and records, never from numbers.

use interlock::number::Lkey;

fn forge(key: Lkey) -> Lkey {
    key
}

fn main() {}
