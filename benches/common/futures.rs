//! A soak of tasks on a tokio runtime. The tasks make, use, cancel and end connections in every way, and use pools and
//! lent memory. At the end, the process must have the same resources of the system as at the start.
//!
//! How each kind of loss shows:
//!
//! - A lost wake-up: a wait takes longer than [`PATIENCE`], see [`soon`]. While [`World::talk`] runs, nothing else runs
//!   that could wake the driver by chance.
//! - A lost buffer of the pool: the buffer is not at home after a round.
//! - Any other lost object of the domain: the domain still exists after the soak, so its name is taken.
//! - A lost place on the completion queue: the queue does not have all its room back after a round.
//! - A handle that is never dropped: the drivers do not end.
//! - Lost memory, descriptors, threads, pinned pages and objects of the kernel: see [`Census`].

mod world;

use super::heap;
use super::random::Random;
use interlock::{Context, aio};
use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{fs, panic, process, thread};
use support::victim::left_of;
use tokio::runtime::{Builder, Handle};
use tokio::time::{sleep, timeout};
use world::{Futures, Tally, World};

/// A wait that takes longer counts as one that never ends.
const PATIENCE: Duration = Duration::from_secs(60);
/// How far the heap may exceed its earlier size, since the standard library and the runtime keep some memory.
const SLACK_BYTES: i64 = 64 << 10;

/// The resources of the system that the process has.
#[derive(PartialEq, Eq, Debug)]
struct Census {
    descriptors: usize,
    threads: usize,
    /// Memory that is pinned or locked, in KiB.
    pinned_kib: u64,
    /// The RDMA objects that the kernel has for this process.
    kernel_objects: Vec<String>,
}

impl Census {
    /// Waits until the threads of the library and of the runtime have ended and the kernel has freed all RDMA objects.
    fn take_when_quiet(context: &Context) -> Self {
        let begin = Instant::now();
        loop {
            let census = Self::take(context);
            let is_quiet = census.threads == 1 && census.kernel_objects.is_empty();
            if is_quiet || begin.elapsed() > PATIENCE {
                assert!(is_quiet, "what the process has of the system: {census:#?}");
                return census;
            }
            thread::sleep(Duration::from_millis(50));
        }
    }

    fn take(context: &Context) -> Self {
        let count = |folder| fs::read_dir(folder).expect("/proc").count();
        let status = fs::read_to_string("/proc/self/status").expect("/proc");
        let kib = |name: &str| {
            let value = status.lines().find_map(|line| line.strip_prefix(name)).expect("a line of /proc/self/status");
            value.trim().trim_end_matches(" kB").parse::<u64>().expect("a number of KiB")
        };
        Self {
            descriptors: count("/proc/self/fd"),
            threads: count("/proc/self/task"),
            pinned_kib: kib("VmPin:") + kib("VmLck:"),
            kernel_objects: kernel_objects(context),
        }
    }
}

fn kernel_objects(context: &Context) -> Vec<String> {
    if context.is_soft() { Vec::new() } else { left_of(&[process::id()]) }
}

/// Waits for something that must happen.
///
/// `timeout` alone would hide a lost wake-up, since it polls the future once more when the time is over.
#[track_caller]
fn soon<F: Future>(future: F) -> impl Future<Output = F::Output> {
    let caller = panic::Location::caller();
    async move {
        let begin = Instant::now();
        let output = timeout(PATIENCE, future).await;
        let Ok(output) = output else { panic!("{caller}: it does not end") };
        assert!(begin.elapsed() < PATIENCE, "{caller}: it ended only because it was polled once more");
        output
    }
}

/// Runs rounds in one world for `time`, at least one round. Returns what happened.
async fn rounds(context: &Context, time: Duration, seed: u64) -> Result<Tally, Box<dyn Error>> {
    let mut random = Random::new(seed);
    // This call fails if objects of an earlier world are left, since that world's domain has the same name.
    let world = Arc::new(World::new(context.named_domain(Futures)?));
    let drivers = [
        aio::spawn(world.poller.driver().expect("no other driver"))?,
        aio::cm::spawn(world.channel.driver().expect("no other driver"))?,
    ];
    let (begin, mut said, mut plateau) = (Instant::now(), 0, i64::MIN);
    loop {
        world.round(&mut random).await;
        let live = heap::live();
        if begin.elapsed() < time / 3 {
            plateau = plateau.max(live);
        } else if !time.is_zero() {
            assert!(live <= plateau + SLACK_BYTES, "the heap grew from {plateau} to {live} bytes");
        }
        let second = begin.elapsed().as_secs();
        if second > said {
            said = second;
            println!("{second:>4} s: {live} bytes, {:?}", world.tally.lock().expect("no panic"));
        }
        if begin.elapsed() >= time {
            break;
        }
    }
    let is_known = context.is_soft() || !kernel_objects(context).is_empty();
    assert!(is_known, "the kernel says nothing of the objects that this process has");
    let world = Arc::into_inner(world).expect("no task has the world any more");
    let tally = world.into_tally();
    for driver in drivers {
        soon(driver).await??;
    }
    soon(async {
        while Handle::current().metrics().num_alive_tasks() > 0 {
            sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
    Ok(tally)
}

/// The soak of `seconds` seconds.
pub(crate) fn soak(seconds: u64, seed: u64) -> Result<(), Box<dyn Error>> {
    let begin = Instant::now();
    // A panic in any task ends the process.
    let hook = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        hook(info);
        process::exit(101);
    }));
    let context = support::context();
    let run = |time| {
        let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let tally = runtime.block_on(rounds(&context, time, seed))?;
        runtime.shutdown_timeout(PATIENCE);
        Ok::<_, Box<dyn Error>>(tally)
    };
    // This run makes the allocations and objects that a process makes only once.
    run(Duration::ZERO)?;
    let (before, bytes) = (Census::take_when_quiet(&context), heap::live());
    println!("before: {before:?}, {bytes} bytes");
    let tally = run(Duration::from_secs(seconds))?;
    drop(context.named_domain(Futures).expect("nothing has the domain any more"));
    let after = Census::take_when_quiet(&context);
    let left = heap::live() - bytes;
    println!("after:  {after:?}, {left} bytes more");
    assert_eq!(after, before, "what the process has of the system");
    assert!(left <= SLACK_BYTES, "{left} bytes that nobody owns");
    println!("{tally:#?}\nno violation in {:.0} s (seed {seed})", begin.elapsed().as_secs_f64());
    Ok(())
}
