//! Rule M12: keys and grants come from devices and records, never from numbers.
//! Error: E0423

use interlock::number::Lkey;

fn forge(key: Lkey) -> Lkey {
    drop(key);
    Lkey(7)
}

fn main() {}
