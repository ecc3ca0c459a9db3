//! Long random histories: requests are posted and their futures polled, dropped or forgotten, while a driver comes and
//! goes and the device loses packets. Each history checks that an answer has the memory of its request, that no wake-up
//! is lost, and that at the end every buffer is back or was forgotten on purpose.
//!
//! `INTERLOCK_SEED=<number>` repeats one history. The soft device is stepped by hand.

use interlock::aio::{Driver, Posted, PostedAll, Receiver, RequestError, Sender, SharedPoller};
use interlock::attributes::ConnectAttributes;
use interlock::soft::{Fabric, Fault};
use interlock::{
    Brand, Buffer, Completion, Context, Limits, MemoryRegion, PostError, ProtectionDomain, RemoteReadWrite, WorkRequest,
};
use std::collections::BTreeSet;
use std::future::poll_fn;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{self, Poll, Wake, Waker};
use std::time::{Duration, Instant};
use support::steps::{self, Program, Step, programs};
use support::{PATIENCE, Queues, connect_to_each_other, context};

#[derive(Clone, Copy, Debug)]
enum Call {
    Write,
    Read,
    Batch,
    Poll,
    Await,
    Drop,
    Forget,
    TakeStrays,
    StepDevice,
    TurnDriver,
    DropDriver,
    Receive,
    Next,
    SendToLeft,
    LosePacket,
}

const CALLS: [(u32, Call); 15] = [
    (12, Call::Write),
    (6, Call::Read),
    (3, Call::Batch),
    (12, Call::Poll),
    (8, Call::Await),
    (6, Call::Drop),
    (1, Call::Forget),
    (4, Call::TakeStrays),
    (10, Call::StepDevice),
    (6, Call::TurnDriver),
    (1, Call::DropDriver),
    (4, Call::Receive),
    (4, Call::Next),
    (4, Call::SendToLeft),
    (2, Call::LosePacket),
];

/// Places for futures.
const PLACES: usize = 12;
const BUFFERS: usize = 16;
/// Fewer than there are buffers, so the queue gets full and its ring wraps around.
const DEPTH: u32 = 6;

/// Counts how often it is woken.
#[derive(Default)]
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// A future, and the buffers of its requests by their addresses.
struct Flight<B> {
    posted: Waiting<B>,
    buffers: BTreeSet<usize>,
    woken: Arc<Count>,
    /// The count in `woken` before the last poll, if that poll was pending and there was a driver.
    asleep_since: Option<usize>,
}

impl<B> Flight<B> {
    /// Whether the future waits to be woken. A runtime does not poll it before that.
    fn is_asleep(&self) -> bool {
        self.asleep_since == Some(self.woken.0.load(Ordering::SeqCst))
    }
}

enum Waiting<B> {
    One(Posted<B, Buffer<B>>),
    All(PostedAll<B>),
}

struct World<B: Brand> {
    fabric: Option<Fabric>,
    left: (Sender<B>, Receiver<B>),
    right: (Sender<B>, Receiver<B>),
    poller: SharedPoller<B>,
    driver: Option<Driver<B>>,
    region: MemoryRegion<B, RemoteReadWrite, Vec<u64>>,
    home: Vec<Buffer<B>>,
    flights: [Option<Flight<B>>; PLACES],
    abandoned: BTreeSet<usize>,
    forgotten: BTreeSet<usize>,
    /// How many buffers are in posted receives.
    receiving: usize,
    /// How many receives have been posted, and how many messages. Each message takes a receive of its own.
    receives: usize,
    messages: usize,
    domain: ProtectionDomain<B>,
}

fn address<B>(buffer: &Buffer<B>) -> usize {
    buffer.as_ptr().addr()
}

/// The buffer of a completion, whatever its status.
fn buffer_of<B>(completion: Completion<B>) -> Buffer<B> {
    match completion.check() {
        Ok(success) => success.into_buffer().unwrap(),
        Err(failure) => failure.into_buffer().unwrap(),
    }
}

impl<B: Brand> World<B> {
    fn new(context: &Context, domain: ProtectionDomain<B>, fabric: Option<Fabric>) -> Self {
        let port = context.active_port().unwrap();
        let limits = Limits { sends: DEPTH, receives: DEPTH, ..Limits::default() };
        let (queue, poller) = domain.queue(2 * limits.completions()).unwrap();
        let pair = || domain.reliable(&queue, &limits).unwrap().into_init(&port).unwrap();
        let (left, right) = connect_to_each_other(&domain, pair(), pair(), &ConnectAttributes::default());
        let poller = SharedPoller::new(poller);
        let (left, right) = (poller.split(left).unwrap(), poller.split(right).unwrap());
        let region = domain.register::<RemoteReadWrite, _>(vec![0_u64; 8]).unwrap();
        let home = domain.buffers(BUFFERS, 8).unwrap();
        let (flights, abandoned, forgotten) = Default::default();
        let driver = poller.driver();
        Self {
            fabric,
            left,
            right,
            poller,
            driver,
            region,
            home,
            flights,
            abandoned,
            forgotten,
            receiving: 0,
            receives: 0,
            messages: 0,
            domain,
        }
    }

    /// Runs the device until it has nothing to do. If it had nothing to do from the start, lets its next timer expire.
    fn run_device(&self) {
        match &self.fabric {
            Some(fabric) => {
                if fabric.run() == 0
                    && let Some(timer) = fabric.next_timer()
                {
                    fabric.advance(timer);
                }
            }
            None => std::thread::sleep(Duration::from_micros(50)),
        }
    }

    fn step_device(&self, count: usize) {
        match &self.fabric {
            Some(fabric) => (0..count).for_each(|_| _ = fabric.step()),
            None => std::thread::sleep(Duration::from_micros(50)),
        }
    }

    /// One turn of the driver, if there is one.
    fn turn(&mut self) {
        let Some(driver) = &mut self.driver else { return };
        let mut has_yielded = false;
        let once = poll_fn(|context| {
            if mem::replace(&mut has_yielded, true) {
                return Poll::Ready(());
            }
            context.waker().wake_by_ref();
            Poll::Pending
        });
        driver.block_on(once).unwrap();
    }

    fn poll(&mut self, place: usize) {
        let Some(mut flight) = self.flights[place].take() else { return };
        let waker = Waker::from(Arc::clone(&flight.woken));
        let mut context = task::Context::from_waker(&waker);
        let before = flight.woken.0.load(Ordering::SeqCst);
        let answer = match &mut flight.posted {
            Waiting::One(posted) => Pin::new(posted).poll(&mut context).map(|answer| match answer {
                Ok(buffer) => vec![buffer],
                Err(RequestError::Failed(failure)) => vec![failure.into_buffer().unwrap()],
                Err(error) => panic!("{error}"),
            }),
            Waiting::All(posted) => Pin::new(posted).poll(&mut context).map(|answer| match answer {
                Ok(buffers) => buffers,
                Err(error) => error.buffers,
            }),
        };
        match answer {
            Poll::Pending => {
                flight.asleep_since = self.driver.is_some().then_some(before);
                self.flights[place] = Some(flight);
            }
            Poll::Ready(buffers) => {
                let found: BTreeSet<usize> = buffers.iter().map(address).collect();
                assert_eq!(found, flight.buffers, "an answer with the memory of another request");
                self.home.extend(buffers);
            }
        }
    }

    fn keep(&mut self, place: usize, posted: Waiting<B>, buffers: BTreeSet<usize>) {
        self.drop_flight(place);
        self.flights[place] = Some(Flight { posted, buffers, woken: Arc::default(), asleep_since: None });
    }

    fn drop_flight(&mut self, place: usize) {
        if let Some(mut flight) = self.flights[place].take() {
            if let Waiting::All(posted) = &mut flight.posted {
                let back = posted.take_buffers();
                back.iter().for_each(|buffer| assert!(flight.buffers.remove(&address(buffer))));
                self.home.extend(back);
            }
            self.abandoned.extend(flight.buffers);
        }
    }

    fn take_strays(&mut self) {
        for sender in [&mut self.left.0, &mut self.right.0] {
            while let Some(stray) = sender.take_stray() {
                let buffer = buffer_of(stray);
                assert!(self.abandoned.remove(&address(&buffer)), "a stray that nobody has abandoned");
                self.home.push(buffer);
            }
        }
    }

    fn fetch_received(&mut self) {
        let mut context = task::Context::from_waker(Waker::noop());
        while let Poll::Ready(Some(received)) = self.left.1.poll_next(&mut context) {
            let buffer = match received {
                Ok(success) => success.into_buffer().unwrap(),
                Err(error) => error.into_failure().unwrap().into_buffer().unwrap(),
            };
            self.receiving -= 1;
            self.home.push(buffer);
        }
    }

    /// A sender keeps at most as many strays as its depth. So this takes them before there could be more.
    fn make_room_for_strays(&mut self) {
        if self.abandoned.len() >= DEPTH as usize {
            self.wait_until(|world| world.abandoned.is_empty());
        }
    }

    fn wait_until(&mut self, mut is_so: impl FnMut(&Self) -> bool) {
        let start = Instant::now();
        while !is_so(self) {
            assert!(
                start.elapsed() < PATIENCE,
                "no end: {:?} are still out; in flight {} and {} with {} receives; {:?} {:?}",
                self.abandoned,
                self.left.0.in_flight(),
                self.right.0.in_flight(),
                self.left.1.in_flight(),
                self.left.0.counters(),
                self.right.0.counters(),
            );
            self.run_device();
            self.turn();
            // Without a driver, only polls of the program find completions. So poll everything once here, and leave the
            // rest to a new driver.
            if self.driver.is_none() {
                self.fetch_received();
                let mut context = task::Context::from_waker(Waker::noop());
                let _ = self.left.0.poll_room(&mut context);
                let _ = self.right.1.poll_next(&mut context);
                (0..PLACES).for_each(|place| self.poll(place));
                self.driver = self.poller.driver();
            }
            self.take_strays();
        }
    }

    fn run(&mut self, step: &Step<Call>) {
        let (place, mut random) = (step.place % PLACES, step.random());
        let remote = self.region.remote();
        match step.call {
            Call::Write | Call::Read => {
                self.make_room_for_strays();
                let Some(buffer) = self.home.pop() else { return };
                let buffers = BTreeSet::from([address(&buffer)]);
                let sender = &mut self.left.0;
                let posted = match step.call {
                    Call::Write => sender.write(buffer, &remote),
                    _ => sender.read(buffer, &remote.slice(0..8).unwrap()),
                };
                match posted {
                    Ok(posted) => self.keep(place, Waiting::One(posted), buffers),
                    Err(PostError::QueueFull(buffer)) => self.home.push(buffer),
                    Err(error) => panic!("{error}"),
                }
            }
            Call::Batch => {
                self.make_room_for_strays();
                let count = random.below(4).min(self.home.len());
                let mut items = self.home.split_off(self.home.len() - count);
                let all: BTreeSet<usize> = items.iter().map(address).collect();
                let posted = self.left.0.post_all(&mut items, |buffer| WorkRequest::write(buffer, &remote)).unwrap();
                let left: BTreeSet<usize> = items.iter().map(address).collect();
                self.home.extend(items);
                self.keep(place, Waiting::All(posted), &all - &left);
            }
            Call::Poll => self.poll(place),
            Call::Await => {
                let start = Instant::now();
                while let Some(flight) = &self.flights[place] {
                    assert!(start.elapsed() < PATIENCE, "an answer never comes, or a wake-up is lost");
                    // As under a runtime, a future that is asleep is polled only after somebody has woken it.
                    if !flight.is_asleep() {
                        self.poll(place);
                    }
                    self.run_device();
                    self.turn();
                }
            }
            Call::Drop => {
                self.make_room_for_strays();
                self.drop_flight(place);
            }
            Call::Forget => {
                // The buffers of a forgotten future never come back, so forget none if too few buffers would be left.
                if self.forgotten.len() + 8 < BUFFERS
                    && let Some(flight) = self.flights[place].take()
                {
                    self.forgotten.extend(flight.buffers.iter().copied());
                    mem::forget(flight);
                }
            }
            Call::TakeStrays => self.take_strays(),
            Call::StepDevice => self.step_device(random.below(8)),
            Call::TurnDriver => self.turn(),
            Call::DropDriver => {
                self.driver = match self.driver.take() {
                    Some(_) => None,
                    None => self.poller.driver(),
                };
                // The drop of a driver wakes all tasks that wait, so no future counts as asleep any more.
                self.flights.iter_mut().flatten().for_each(|flight| flight.asleep_since = None);
            }
            Call::Receive => {
                if self.receiving < DEPTH as usize
                    && let Some(buffer) = self.home.pop()
                {
                    match self.left.1.post_receive(buffer) {
                        Ok(_) => {
                            self.receiving += 1;
                            self.receives += 1;
                        }
                        Err(PostError::QueueFull(buffer)) => self.home.push(buffer),
                        Err(error) => panic!("{error}"),
                    }
                }
            }
            Call::Next => self.fetch_received(),
            Call::SendToLeft => {
                self.make_room_for_strays();
                // Send only if there is a receive for the message, so that no send waits for ever.
                if self.messages >= self.receives {
                    return;
                }
                let Some(buffer) = self.home.pop() else { return };
                let buffers = BTreeSet::from([address(&buffer)]);
                match self.right.0.send(buffer) {
                    Ok(posted) => {
                        self.messages += 1;
                        self.keep(place, Waiting::One(posted), buffers);
                    }
                    Err(PostError::QueueFull(buffer)) => self.home.push(buffer),
                    Err(error) => panic!("{error}"),
                }
            }
            Call::LosePacket => {
                if let Some(fabric) = &self.fabric {
                    fabric.inject(if random.one_in(2) {
                        Fault::RequestsLost { count: 1 }
                    } else {
                        Fault::AnswersLost { count: 1 }
                    });
                }
            }
        }
    }

    /// Ends everything, and checks that every buffer is accounted for.
    fn finish(mut self) {
        for place in 0..PLACES {
            self.make_room_for_strays();
            self.drop_flight(place);
        }
        self.wait_until(|world| world.abandoned.is_empty());
        self.fetch_received();
        let out = self.forgotten.len() + self.receiving;
        assert_eq!(self.home.len() + out, BUFFERS, "a buffer is lost");
        for sender in [&self.left.0, &self.right.0] {
            assert_eq!(sender.counters().dropped_strays, 0);
        }
        drop(self.driver);
        drop((self.left, self.right, self.poller, self.region, self.home, self.domain));
    }
}

interlock::domain! { struct Histories; }

fn run(program: &Program<Call>) {
    let (context, fabric) = match context().is_soft() {
        true => {
            let fabric = Fabric::manual();
            (Context::open_on(&fabric, "random").unwrap(), Some(fabric))
        }
        false => (context(), None),
    };
    let Ok(domain) = context.named_domain(Histories) else { steps::give_up() };
    let mut world = World::new(&context, domain, fabric);
    program.steps().for_each(|step| world.run(step));
    world.finish();
}

#[test]
fn nothing_is_lost_in_any_history() {
    let given = std::env::var("INTERLOCK_SEED").ok().map(|seed| seed.parse().unwrap());
    let count = match (cfg!(miri), context().is_soft()) {
        (true, _) => 2,
        (_, true) => 1500,
        _ => 20,
    };
    let seeds = given.map_or(0..count, |seed: u64| seed..seed + 1);
    let programs = programs(&CALLS, PLACES, if cfg!(miri) { 60 } else { 300 });
    for seed in seeds {
        steps::check(&format!("INTERLOCK_SEED={seed}"), seed, &programs, Duration::from_secs(10), run);
    }
}
