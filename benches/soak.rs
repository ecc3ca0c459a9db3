//! A soak at full rate on the soft device: dozens of pairs, every operation, injected faults, and pairs that break, are
//! reset and are replaced. It accounts for every request and for the heap.
//!
//! ```sh
//! cargo bench --bench soak                       # 10 s
//! cargo bench --bench soak -- --seconds 600
//! cargo bench --bench soak -- --seed 7           # the same run, except for thread timing
//! cargo bench --features tokio --bench soak -- --futures --seconds 600
//! ```
//!
//! With `--futures` it is a soak of tasks instead, on the device that `INTERLOCK_DEVICE` names. They connect, send,
//! lend and cancel. At the end nothing may be left of them: see `common/futures.rs`.
//!
//! Without `--futures`, each second has three parts. First, one world that lasts for the whole soak runs; then all its
//! pairs are destroyed, and only its completion queues stay. Second, new worlds run, which must leave no allocation
//! behind. Third, threads race. Worlds are deterministic. A violation panics, so the exit status is not 0.
#![deny(unsafe_code)]

#[allow(unsafe_code, reason = "the allocator that counts")]
mod common;

use common::world::{Tally, World, generation};
use common::{heap, race::race, random};
use interlock::Context;
use interlock::soft::Fabric;
use lexopt::{Arg, ValueExt};
use std::error::Error;
use std::time::{Duration, Instant};

#[global_allocator]
static ALLOCATOR: heap::Counting = heap::Counting;

/// How far the heap may exceed its size in the first seconds. A later second may have more in flight, so a table may
/// grow.
const SLACK_BYTES: i64 = 64 << 10;
const WARM_UP: u64 = 3;
const LINKS: usize = 32;

struct Options {
    seconds: u64,
    seed: u64,
    has_futures: bool,
}

fn options() -> Result<Options, lexopt::Error> {
    let mut options = Options { seconds: 10, seed: random::fresh_seed(), has_futures: false };
    let mut parser = lexopt::Parser::from_env();
    while let Some(arg) = parser.next()? {
        match arg {
            Arg::Long("seconds") => options.seconds = parser.value()?.parse()?,
            Arg::Long("seed") => options.seed = parser.value()?.parse()?,
            Arg::Long("futures") => options.has_futures = true,
            // Cargo passes this option.
            Arg::Long("bench") => {}
            other => return Err(other.unexpected()),
        }
    }
    Ok(options)
}

fn main() -> Result<(), Box<dyn Error>> {
    let Options { seconds, seed, has_futures } = options()?;
    println!("seed {seed}");
    if has_futures {
        return soak_futures(seconds, seed);
    }
    let begin = Instant::now();
    // This run makes the allocations that happen once in each thread.
    generation(seed, LINKS, 2_000, 1_000);
    let before = heap::mine();
    let fabric = Fabric::manual();
    let context = Context::open_on(&fabric, "long")?;
    let fabric_bytes = heap::mine() - before;
    // `world_bytes` includes the domain.
    let before = heap::mine();
    let (tally, world_bytes) = context.with_domain(|domain| {
        let mut long = World::new(fabric.clone(), domain, seed, LINKS);
        let mut long_bytes = heap::mine() - before;
        let mut random = random::Random::new(seed);
        let (mut tally, mut plateau) = (Tally::default(), i64::MIN);
        let mut second = 0;
        while begin.elapsed() < Duration::from_secs(seconds) {
            second += 1;
            let start = Instant::now();
            let (before, then) = (heap::mine(), long.tally);
            while start.elapsed() < Duration::from_millis(400) {
                long.run(500);
            }
            long.checkpoint();
            long_bytes += heap::mine() - before;
            let lasting = long.tally - then;

            let mut fresh = Tally::default();
            while start.elapsed() < Duration::from_millis(800) {
                let (seed, before) = (random.next() >> 16, heap::mine());
                fresh += generation(seed, 1 + random.below(LINKS), 20_000, 5_000);
                assert_eq!(heap::mine(), before, "bytes that nobody owns, after world {seed}");
            }

            let before = heap::live();
            let mut raced = Tally::default();
            while start.elapsed() < Duration::from_millis(1000) {
                raced += race(random.next() >> 16, 4, 20);
            }
            let race_bytes = heap::live() - before;

            println!(
                "{second:>4} s: long world {:>7} posted, {:>5} lives, {:>4} faults, {long_bytes} bytes; \
                 new worlds {:>7} posted, {:>5} lives, {:>4} faults; \
                 races {:>6} posted, {:>4} lives, {:>3} faults, {race_bytes} bytes left",
                lasting.posted,
                lasting.lives,
                lasting.faults,
                fresh.posted,
                fresh.lives,
                fresh.faults,
                raced.posted,
                raced.lives,
                raced.faults,
            );
            for part in [lasting, fresh, raced] {
                tally += part;
            }
            if second <= WARM_UP {
                plateau = plateau.max(long_bytes);
            } else {
                assert!(long_bytes <= plateau + SLACK_BYTES, "the heap grew from {plateau} to {long_bytes} bytes");
                // A few bytes can be left: the standard library keeps a little memory for threads.
                assert!(race_bytes <= SLACK_BYTES, "bytes that nobody owns, after races");
            }
        }
        let before = heap::mine();
        drop(long);
        long_bytes += heap::mine() - before;
        (tally, long_bytes)
    })?;
    let before = heap::mine();
    drop((context, fabric));
    // The fabric frees its empty tables only now. They grew while the world ran, so `world_bytes` counts them.
    assert_eq!(fabric_bytes + world_bytes, before - heap::mine(), "bytes that nobody owns, after the long world");
    println!("{tally:?}\nno violation in {:.0} s (seed {seed})", begin.elapsed().as_secs_f64());
    Ok(())
}

#[cfg(feature = "tokio")]
fn soak_futures(seconds: u64, seed: u64) -> Result<(), Box<dyn Error>> {
    common::futures::soak(seconds, seed)
}

#[cfg(not(feature = "tokio"))]
fn soak_futures(_: u64, _: u64) -> Result<(), Box<dyn Error>> {
    Err("--futures needs the feature tokio: cargo bench --features tokio --bench soak -- --futures".into())
}
