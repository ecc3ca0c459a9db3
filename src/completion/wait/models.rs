//! Every interleaving of a device that completes, a program that destroys, and a poller that waits.
use super::*;
use crate::sync::{Arc, Mutex, lock};
use loom::thread;

/// A device with one completion queue, and the library's waker next to it. Each step is atomic, as it is in a device.
struct Device(Mutex<State>);

#[derive(Default)]
struct State {
    completions: u32,
    armed: bool,
    /// Whether the descriptor of the channel is readable, and whether that of the waker is.
    event: bool,
    woken: bool,
    /// The messages to the poller, which it reads besides completions.
    mail: u32,
    /// How many threads have not finished yet.
    left: usize,
}

impl Device {
    fn complete(&self) {
        let mut state = lock(&self.0);
        state.completions += 1;
        state.event |= std::mem::take(&mut state.armed);
        state.left -= 1;
    }

    /// Sends a message, then wakes the poller: two separate steps.
    fn orphan(&self) {
        lock(&self.0).mail += 1;
        let mut state = lock(&self.0);
        state.woken = true;
        state.left -= 1;
    }
}

struct Waiter(Arc<Device>);

impl Source for Waiter {
    type Item = ();

    fn poll(&mut self) -> Result<Option<()>, WaitError> {
        let mut state = lock(&self.0.0);
        let State { completions, mail, .. } = &mut *state;
        let found = [completions, mail].into_iter().find(|count| **count > 0);
        Ok(found.map(|count| *count -= 1))
    }

    fn arm(&mut self) -> Result<(), WaitError> {
        lock(&self.0.0).armed = true;
        Ok(())
    }

    fn sleep(&mut self, _: Duration) -> Result<(), WaitError> {
        loop {
            let state = lock(&self.0.0);
            if state.event || state.woken {
                return Ok(());
            }
            // If all other threads have finished, nothing can end the sleep any more.
            let for_ever = state.left == 0;
            drop(state);
            assert!(!for_ever, "lost wake-up");
            thread::yield_now();
        }
    }

    fn take_events(&mut self) -> Result<bool, WaitError> {
        lock(&self.0.0).woken = false;
        Ok(std::mem::take(&mut lock(&self.0.0).event))
    }
}

/// The action of a thread other than the poller.
type Doing = fn(&Device);

/// Runs each of `doings` on a thread of its own, and waits once for each. `bound` limits how often loom preempts
/// threads.
fn model<const N: usize>(doings: [Doing; N], bound: Option<usize>, wait_once: fn(&mut Waiter)) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = bound;
    builder.check(move || {
        let device = Arc::new(Device(Mutex::new(State { left: N, ..State::default() })));
        let threads = doings.map(|doing| {
            let device = Arc::clone(&device);
            thread::spawn(move || doing(&device))
        });
        let mut waiter = Waiter(device);
        for _ in 0..N {
            wait_once(&mut waiter);
        }
        for thread in threads {
            thread.join().unwrap();
        }
    });
}

#[test]
fn no_wake_up_is_lost() {
    model([Device::complete, Device::orphan], None, |waiter| {
        assert!(wait(waiter, Duration::ZERO, Duration::MAX).unwrap().is_some())
    });
}

/// The waiter arms and sleeps by itself, as an event loop of the program does.
#[test]
fn no_wake_up_is_lost_between_armings() {
    model([Device::complete, Device::orphan], Some(3), |waiter| {
        loop {
            if arm(waiter).unwrap().is_some() {
                return;
            }
            waiter.sleep(Duration::MAX).unwrap();
        }
    });
}

/// A waiter that does not poll after arming loses a wake-up. The model finds that mistake.
#[test]
#[should_panic(expected = "lost wake-up")]
fn without_the_second_look_a_wake_up_is_lost() {
    model([Device::complete], None, |waiter| {
        while waiter.poll().unwrap().is_none() {
            waiter.arm().unwrap();
            waiter.sleep(Duration::MAX).unwrap();
            waiter.take_events().unwrap();
        }
    });
}

/// A waiter that takes events after its last poll loses a wake-up. The model finds that mistake.
#[test]
#[should_panic(expected = "lost wake-up")]
fn where_events_are_taken_after_the_last_look_a_wake_up_is_lost() {
    model([Device::complete], None, |waiter| {
        loop {
            if arm(waiter).unwrap().is_some() {
                return;
            }
            waiter.take_events().unwrap();
            waiter.sleep(Duration::MAX).unwrap();
        }
    });
}
