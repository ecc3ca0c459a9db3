//! Rule E1: the events of a device are taken by one at a time.
//! Error: E0499

use interlock::event::AsyncEvents;

fn take(one: &mut AsyncEvents, two: &mut AsyncEvents) {
    std::thread::scope(|scope| {
        scope.spawn(|| one.poll().is_ok());
        scope.spawn(|| one.poll().is_ok());
        let _ = two;
    });
}

fn main() {}
