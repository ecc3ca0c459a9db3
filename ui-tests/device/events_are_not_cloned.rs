//! Rule E1: the events of a device are taken by one at a time.
//! Error: E0599

use interlock::event::AsyncEvents;

fn twice(events: AsyncEvents) {
    let _ = (events.clone(), events);
}

fn main() {}
