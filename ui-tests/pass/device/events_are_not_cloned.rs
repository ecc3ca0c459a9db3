//! Rule E1: the events of a device are taken by one at a time.

use interlock::event::AsyncEvents;

fn twice(events: AsyncEvents) {
    let _ = events;
}

fn main() {}
