//! Tests in which a completion comes at each step of a wait, on a device that runs only when it is told to.
use super::*;
use crate::soft::Fabric;
use crate::{Brand, Context, Limits, ProtectionDomain, QueuePair, ReadyToSend};

/// Longer than any test takes. A wait that sleeps this long has lost a wake-up.
const LONG: Duration = Duration::from_secs(30);

/// A pair that is connected to itself, with its fabric and its domain.
struct World<B> {
    fabric: Fabric,
    domain: ProtectionDomain<B>,
    pair: Option<QueuePair<B, ReadyToSend>>,
}

/// A world with a domain name of its own, and its poller.
macro_rules! world {
    ($fabric:expr) => {{
        crate::domain! { struct Test; }
        let fabric = $fabric;
        let domain = Context::open_on(&fabric, "dev0").unwrap().named_domain(Test).unwrap();
        World::new(fabric, domain)
    }};
}

impl<B: Brand> World<B> {
    fn new(fabric: Fabric, domain: ProtectionDomain<B>) -> (Self, Poller<B>) {
        let port = domain.context().active_port().unwrap();
        let (queue, poller) = domain.completion_queue(8).unwrap();
        let pair = domain.reliable(&queue, &Limits::default()).unwrap().into_init(&port).unwrap();
        let myself = pair.endpoint();
        let pair = pair.connect(&myself).unwrap();
        (Self { fabric, domain, pair: Some(pair) }, poller)
    }

    fn post(&mut self) {
        let pair = self.pair.as_mut().unwrap();
        pair.post_receive(self.domain.buffer(8).unwrap()).unwrap();
        pair.post_send(self.domain.buffer(8).unwrap()).unwrap();
    }
}

/// A poller that waits, while something happens: before step `at` of the wait, or during that step if it is a sleep.
struct Disturbed<'p, B, F> {
    inner: Waiting<'p, B>,
    steps: usize,
    at: usize,
    /// The action that happens; `None` once it has run.
    happening: Option<F>,
    slept: Duration,
}

impl<B, F: FnOnce()> Disturbed<'_, B, F> {
    fn step(&mut self) {
        if self.steps == self.at
            && let Some(happening) = self.happening.take()
        {
            happening();
        }
        self.steps += 1;
    }
}

impl<B, F: FnOnce() + Send> Source for Disturbed<'_, B, F> {
    type Item = Completion<B>;

    fn poll(&mut self) -> Result<Option<Self::Item>, WaitError> {
        self.step();
        self.inner.poll()
    }

    fn arm(&mut self) -> Result<(), WaitError> {
        self.step();
        self.inner.arm()
    }

    fn sleep(&mut self, left: Duration) -> Result<(), WaitError> {
        let start = Instant::now();
        if self.steps == self.at
            && let Some(happening) = self.happening.take()
        {
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    std::thread::sleep(Duration::from_millis(5));
                    happening();
                });
                self.inner.sleep(left)
            })?;
        } else if self.happening.is_none() {
            self.inner.sleep(left)?;
        }
        // If neither branch ran, the action belongs to a later step, and this `sleep` returns at once. A `Source` is
        // allowed to do that.
        self.steps += 1;
        self.slept = self.slept.max(start.elapsed());
        Ok(())
    }

    fn take_events(&mut self) -> Result<bool, WaitError> {
        self.step();
        self.inner.take_events()
    }
}

/// The number of steps: two rounds of poll, take events, arm, poll, sleep.
const STEPS: usize = 10;

#[test]
#[cfg_attr(miri, ignore = "poll(2)")]
fn hz14_a_completion_at_any_place_of_the_routine_ends_the_wait() {
    for at in 0..STEPS {
        for wake_for in [WakeFor::Any, WakeFor::Solicited] {
            let (mut world, mut poller) = world!(Fabric::manual());
            let fabric = world.fabric.clone();
            if wake_for == WakeFor::Solicited {
                let pair = world.pair.as_mut().unwrap();
                pair.post_receive(world.domain.buffer(8).unwrap()).unwrap();
                let request = crate::WorkRequest::send(world.domain.buffer(8).unwrap());
                pair.post(request.solicited()).unwrap();
            } else {
                world.post();
            }
            let inner = Waiting { poller: &mut poller, wake_for };
            // Runs all of the device's work. One step is not enough: the receive and the send complete in different
            // steps.
            let happening = move || while fabric.step() {};
            let mut source = Disturbed { inner, steps: 0, at, happening: Some(happening), slept: Duration::ZERO };
            let found = wait(&mut source, Duration::ZERO, LONG).unwrap();
            assert!(found.is_some() && source.slept < LONG / 2, "step {at}");
        }
    }
}

/// Some units of the device's work run before the wait, the others at one step of it. So the unit that completes
/// something may run at any step.
#[test]
#[cfg_attr(miri, ignore = "poll(2)")]
fn hz14_single_steps_of_the_device_at_any_place_end_the_wait() {
    for before in 0..4 {
        for at in 0..STEPS {
            let (mut world, mut poller) = world!(Fabric::manual());
            world.post();
            for _ in 0..before {
                world.fabric.step();
            }
            // Takes out the completions that the steps above have made, so that the wait below needs a completion that
            // a later step makes.
            while let Some(completion) = poller.poll().unwrap() {
                drop(completion);
            }
            let fabric = world.fabric.clone();
            let pair = world.pair.as_ref().unwrap();
            if pair.sends_in_flight() + pair.receives_in_flight() == 0 {
                continue;
            }
            let happening = move || while fabric.step() {};
            let inner = Waiting { poller: &mut poller, wake_for: WakeFor::Any };
            let mut source = Disturbed { inner, steps: 0, at, happening: Some(happening), slept: Duration::ZERO };
            let found = wait(&mut source, Duration::ZERO, LONG).unwrap();
            assert!(found.is_some() && source.slept < LONG / 2, "step {at} after {before}");
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "poll(2)")]
fn hz14_the_end_of_a_pair_at_any_place_of_the_routine_ends_the_wait() {
    for at in 0..STEPS {
        let (mut world, mut poller) = world!(Fabric::manual());
        world.post();
        let pair = world.pair.take().unwrap();
        let inner = Waiting { poller: &mut poller, wake_for: WakeFor::Any };
        let happening = move || drop(pair);
        let mut source = Disturbed { inner, steps: 0, at, happening: Some(happening), slept: Duration::ZERO };
        let found = wait(&mut source, Duration::ZERO, LONG).unwrap();
        assert!(found.is_some() && source.slept < LONG / 2, "step {at}");
    }
}

/// Each arming wakes once, whether anybody sleeps or not.
#[test]
fn waits_that_never_sleep_leave_one_event() {
    let (mut world, mut poller) = world!(Fabric::manual());
    for _ in 0..if cfg!(miri) { 4 } else { 10 } {
        world.post();
        let mut left = 2;
        while left > 0 {
            left -= usize::from(poller.wait_for(Duration::ZERO).unwrap().is_some());
            world.fabric.step();
        }
    }
    assert_eq!(poller.queue().channel.take_events(None).unwrap(), 1);
}

#[test]
fn what_came_while_spinning_is_given_without_arming() {
    let (mut world, mut poller) = world!(Fabric::new());
    world.post();
    let how = Wait { spin: Duration::from_secs(1), ..Wait::new(Duration::from_secs(1)) };
    assert!(poller.wait_for(how).unwrap().is_some());
    assert!(poller.wait_for(how).unwrap().is_some());
    // The queue was not armed, so another completion raises no event.
    world.post();
    assert!(!poller.take_events().unwrap());
}
