//! Futures of posted requests on a tokio runtime: many tasks, timeouts, `select!`, and a runtime that is dropped while
//! requests are in flight. The same tests run on every device.

use interlock::aio::{self, Receiver, Sender, SharedPoller};
use interlock::event::{AsyncEvent, PortEvent};
use interlock::soft::{Fabric, Fault};
use interlock::{Brand, Buffer, Completion, Context, MemoryRegion, ProtectionDomain, RemoteReadWrite, RemoteWrite};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use support::{Link, PATIENCE, Random, context};
use tokio::runtime::{Builder, Runtime};
use tokio::time::{sleep, timeout};

struct Tasks<B: Brand> {
    domain: ProtectionDomain<B>,
    poller: SharedPoller<B>,
    left: (Sender<B>, Receiver<B>),
    right: (Sender<B>, Receiver<B>),
    region: MemoryRegion<B, RemoteReadWrite, Vec<u64>>,
}

impl<B: Brand + 'static> Tasks<B> {
    /// Two connected pairs, and a driver on `runtime`.
    fn new(domain: ProtectionDomain<B>, depth: u32, runtime: &Runtime) -> Self {
        let Link { domain, poller, left, right, .. } = Link::new(domain, depth);
        let poller = SharedPoller::new(poller);
        let (left, right) = (poller.split(left).unwrap(), poller.split(right).unwrap());
        let region = domain.register::<RemoteReadWrite, _>(vec![0_u64; 8]).unwrap();
        let tasks = Self { domain, poller, left, right, region };
        tasks.drive(runtime);
        tasks
    }

    fn drive(&self, runtime: &Runtime) {
        let driver = self.poller.driver().unwrap();
        let _inside = runtime.enter();
        drop(aio::spawn(driver).unwrap());
    }
}

macro_rules! tasks {
    ($depth:expr, $runtime:expr) => {
        Tasks::new(context().checked_domain().unwrap(), $depth, $runtime)
    };
}

fn one_thread() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

fn two_threads() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// The buffer of a completion, whatever its status.
fn buffer_of<B>(completion: Completion<B>) -> Buffer<B> {
    match completion.check() {
        Ok(success) => success.into_buffer().unwrap(),
        Err(failure) => failure.into_buffer().unwrap(),
    }
}

#[test]
fn a_task_sleeps_until_its_message_comes() {
    let runtime = one_thread();
    let mut tasks = tasks!(8, &runtime);
    runtime.block_on(async {
        tasks.right.1.post_receive(tasks.domain.buffer(8).unwrap()).unwrap();
        assert!(timeout(Duration::from_millis(20), tasks.right.1.next()).await.is_err(), "nothing was sent");
        let domain = tasks.domain.clone();
        let mut sender = tasks.left.0;
        let sending = tokio::spawn(async move {
            sleep(Duration::from_millis(5)).await;
            let mut word = domain.buffer(8).unwrap();
            word.write(b"word").unwrap();
            sender.send(word).unwrap().await.unwrap();
            sender
        });
        let message = timeout(PATIENCE, tasks.right.1.next()).await.unwrap().unwrap().unwrap();
        assert_eq!(&message.into_received().unwrap()[..], b"word");
        drop(sending.await.unwrap());
    });
}

/// A future that lost in a `select!` is polled again, and gets its answer.
#[test]
fn a_future_that_lost_in_a_select_goes_on() {
    let runtime = two_threads();
    let mut tasks = tasks!(8, &runtime);
    runtime.block_on(async {
        let remote = tasks.region.remote();
        for _ in 0..100 {
            let mut posted = tasks.left.0.write(tasks.domain.buffer(8).unwrap(), &remote).unwrap();
            let answer = tokio::select! {
                biased;
                () = tokio::task::yield_now() => None,
                answer = &mut posted => Some(answer),
            };
            match answer {
                Some(answer) => answer.unwrap(),
                None => timeout(PATIENCE, posted).await.unwrap().unwrap(),
            };
        }
    });
}

/// 16 tasks share 16 buffers. About half of their futures are dropped before the answer, some after a poll. At the end
/// every buffer is back.
fn lose_half<B: Brand + 'static>(tasks: Tasks<B>, runtime: &Runtime, rounds: usize) {
    let count = 16;
    let Tasks { domain, poller, left: (sender, receiver), right, region } = tasks;
    let shared = sender.into_shared();
    let home = Arc::new(tokio::sync::Mutex::new(domain.buffers(count, 8).unwrap()));
    let lost = Arc::new(AtomicUsize::new(0));
    runtime.block_on(async {
        let mut handles = Vec::new();
        for seed in 0..count {
            let (shared, remote, home, lost) = (shared.clone(), region.remote(), Arc::clone(&home), Arc::clone(&lost));
            handles.push(tokio::spawn(async move {
                let mut random = Random::new(seed as u64);
                for _ in 0..rounds {
                    let mut buffer = home.lock().await.pop();
                    while buffer.is_none() {
                        buffer = match shared.with(|sender| sender.take_stray()) {
                            Some(stray) => Some(buffer_of(stray)),
                            None => {
                                tokio::task::yield_now().await;
                                home.lock().await.pop()
                            }
                        };
                    }
                    let Ok(permit) = timeout(PATIENCE, shared.room()).await.expect("room comes") else { panic!() };
                    let mut posted = permit.with(|sender| sender.write(buffer.take().unwrap(), &remote)).unwrap();
                    let back = match random.below(4) {
                        0 => None,
                        1 => tokio::select! {
                            biased;
                            () = tokio::task::yield_now() => None,
                            answer = &mut posted => Some(answer.unwrap()),
                        },
                        2 => {
                            // Also drop a wait for room.
                            drop(timeout(Duration::ZERO, shared.room()).await);
                            Some(timeout(PATIENCE, &mut posted).await.expect("no wake-up is lost").unwrap())
                        }
                        _ => Some(timeout(PATIENCE, &mut posted).await.expect("no wake-up is lost").unwrap()),
                    };
                    drop(posted);
                    match back {
                        Some(buffer) => home.lock().await.push(buffer),
                        None => {
                            lost.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                }
            }));
        }
        for handle in handles {
            handle.await.unwrap();
        }
        let mut back = home.lock().await;
        let gather = async {
            while back.len() < count {
                match shared.with(|sender| sender.take_stray()) {
                    Some(stray) => back.push(buffer_of(stray)),
                    None => tokio::task::yield_now().await,
                }
            }
        };
        timeout(PATIENCE, gather).await.expect("every buffer comes back");
    });
    assert!(lost.load(Ordering::Relaxed) > rounds, "many were lost on purpose");
    let sender = shared.try_into_sender().unwrap();
    assert_eq!((sender.counters().dropped_strays, sender.in_flight()), (0, 0));
    drop((sender, receiver, right, poller));
}

#[test]
fn half_of_the_futures_are_lost_and_no_buffer_on_one_thread() {
    let runtime = one_thread();
    lose_half(tasks!(16, &runtime), &runtime, 200);
}

#[test]
fn half_of_the_futures_are_lost_and_no_buffer_on_two_threads() {
    let runtime = two_threads();
    lose_half(tasks!(16, &runtime), &runtime, 200);
}

/// 14,000 rounds of 16 tasks, about half of whose futures are lost.
#[test]
#[ignore = "takes minutes on a real device; `cargo test --release --features tokio --test aio_tokio -- --ignored`"]
fn a_hundred_thousand_futures_are_lost_and_no_buffer() {
    let runtime = two_threads();
    lose_half(tasks!(16, &runtime), &runtime, 14_000);
}

/// A runtime is dropped with its driver and its waiting tasks. The requests in flight complete under the next runtime.
#[test]
fn a_runtime_that_is_dropped_takes_no_memory_with_it() {
    let runtime = two_threads();
    let mut tasks = tasks!(8, &runtime);
    tasks.right.1.post_receive(tasks.domain.buffer(8).unwrap()).unwrap();
    let receiver = Arc::new(tokio::sync::Mutex::new(tasks.right.1));
    let waiting = Arc::clone(&receiver);
    runtime.spawn(async move { waiting.lock().await.next().await.map(drop) });
    std::thread::sleep(Duration::from_millis(5));
    runtime.shutdown_timeout(PATIENCE);
    let next = one_thread();
    let driver = tasks.poller.driver().expect("the old one is gone");
    next.block_on(async {
        drop(aio::spawn(driver).unwrap());
        let mut word = tasks.domain.buffer(8).unwrap();
        word.write(b"on").unwrap();
        let sent = tasks.left.0.send(word).unwrap();
        let mut receiver = receiver.lock().await;
        let message = timeout(PATIENCE, receiver.next()).await.unwrap().unwrap().unwrap();
        assert_eq!(&message.into_received().unwrap()[..], b"on");
        timeout(PATIENCE, sent).await.unwrap().unwrap();
    });
}

/// The driver is also the clock for deadlines: it sleeps no longer than until the next deadline.
#[test]
fn a_lease_ends_in_time_by_the_driver() {
    let runtime = two_threads();
    let tasks = tasks!(8, &runtime);
    let long = Duration::from_secs(3600);
    let lease = tasks.domain.lease::<RemoteWrite, _>(tasks.domain.buffer(8).unwrap(), long).unwrap();
    let held = lease.hold(&tasks.poller, Duration::from_millis(20), std::future::pending::<()>());
    let (output, memory) = runtime.block_on(async { timeout(PATIENCE, held).await.unwrap().unwrap() });
    assert_eq!((output, memory.len()), (None, 8));
}

#[test]
fn the_driver_ends_with_the_last_handle() {
    let runtime = one_thread();
    interlock::domain! { struct Test; }
    let Link { poller, left, right, .. } = Link::new(context().named_domain(Test).unwrap(), 2);
    let poller = SharedPoller::new(poller);
    let driver = poller.driver().unwrap();
    runtime.block_on(async {
        let driving = aio::spawn(driver).unwrap();
        let pair = poller.split(left).unwrap();
        tokio::task::yield_now().await;
        drop((pair, right, poller));
        timeout(PATIENCE, driving).await.unwrap().unwrap().unwrap();
    });
}

#[test]
fn tokio_waits_for_the_events_of_a_device() {
    let fabric = Fabric::new();
    let context = Context::open_on(&fabric, "dev0").unwrap();
    let mut events = context.events().unwrap();
    let port = context.active_port().unwrap().number();
    one_thread().block_on(async {
        let readiness = events.readiness().unwrap().watch().unwrap();
        for (is_down, event) in [(true, PortEvent::Down), (false, PortEvent::Active)] {
            assert_eq!(events.poll().unwrap(), None);
            assert!(timeout(Duration::from_millis(10), readiness.readable()).await.is_err());
            let happens = async {
                if is_down { fabric.inject(Fault::PortDown { device: "dev0".into() }) } else { fabric.heal() }
            };
            let (ready, ()) = tokio::join!(timeout(PATIENCE, readiness.readable()), happens);
            ready.unwrap().unwrap();
            assert_eq!(events.poll().unwrap(), Some(AsyncEvent::OfPort(port, event)));
        }
    });
}
