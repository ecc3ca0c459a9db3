//! Measures 1 to 10,000 queue pairs on one completion queue: the cost of a completion, the memory of a pair, and 64
//! threads that post while one polls.
//!
//! It runs on the soft device, or on the device that `INTERLOCK_DEVICE` names, within its limits. It checks every
//! message; if one goes astray, the exit status is not 0.
//!
//! ```sh
//! cargo bench --bench scale
//! # Do only this much work, inside `counted_work`, to count its instructions:
//! cargo bench --bench scale -- --count-only PAIRS MESSAGES
//! ```
#![deny(unsafe_code)]

#[allow(unsafe_code, reason = "the allocator that counts")]
mod common;

use common::fleet::{Crowd, Fleet, crowd, pair_to_itself, queue_for};
use common::heap;
use common::shape::{Ended, poll_each};
use interlock::{Brand, Context, Limits, Port, ProtectionDomain};
use lexopt::{Arg, ValueExt};
use std::error::Error;
use std::process::ExitCode;
use std::time::{Duration, Instant};

#[global_allocator]
static ALLOCATOR: heap::Counting = heap::Counting;

const COUNTS: [usize; 5] = [1, 10, 100, 1_000, 10_000];
const LIMITS: Limits =
    Limits { sends: 16, receives: 16, inline_bytes: 0, elements: 1, posting: interlock::queue::Posting::List };
/// The number of messages that a round measures. Each makes two completions.
const MESSAGES: usize = 20_000;

struct Options {
    rounds: usize,
    count_only: Option<(usize, usize)>,
}

fn options() -> Result<Options, lexopt::Error> {
    let mut options = Options { rounds: 7, count_only: None };
    let mut parser = lexopt::Parser::from_env();
    while let Some(arg) = parser.next()? {
        match arg {
            Arg::Long("rounds") => options.rounds = parser.value()?.parse()?,
            Arg::Long("count-only") => {
                options.count_only = Some((parser.value()?.parse()?, parser.value()?.parse()?));
            }
            // Cargo passes this option.
            Arg::Long("bench") => {}
            other => return Err(other.unexpected()),
        }
    }
    Ok(options)
}

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let options = options()?;
    let context =
        if std::env::var_os("INTERLOCK_DEVICE").is_some() { Context::open_default()? } else { Context::open("soft0")? };
    let port = context.active_port()?;
    context.with_domain(|domain| match options.count_only {
        Some((pairs, messages)) => {
            let mut fleet = Fleet::new(&domain, &port, &LIMITS, pairs);
            println!("{pairs} pairs, {messages} messages: {} astray", counted_work(&mut fleet, messages));
            Ok(ExitCode::SUCCESS)
        }
        None => everything(&context, &domain, &port, options.rounds),
    })?
}

/// The part to count with `valgrind --tool=callgrind --toggle-collect='*counted_work*'`.
#[inline(never)]
fn counted_work<B: Brand>(fleet: &mut Fleet<B>, messages: usize) -> usize {
    let count = fleet.pairs.len();
    fleet.exchange(messages, count)
}

fn everything<B: Brand>(
    context: &Context,
    domain: &ProtectionDomain<B>,
    port: &Port,
    rounds: usize,
) -> Result<ExitCode, Box<dyn Error>> {
    let device = context.attributes()?;
    let fits = |count: usize| {
        count <= device.max_queue_pairs() as usize
            && count * LIMITS.completions() as usize <= device.max_completion_entries() as usize
    };
    let counts: Vec<usize> = COUNTS.into_iter().filter(|&count| fits(count)).collect();
    println!("{}: {} sends and {} receives a pair, minimum of {rounds} rounds", context.name(), 16, 16);
    let (costs, stray) = measure(domain, port, &counts, rounds);
    println!(
        "{:>7} {:>24} {:>24} {:>10} {:>10}",
        "pairs", "all in turn, ns (ratio)", "one of them, ns (ratio)", "set-up", "teardown"
    );
    for (count, cost) in counts.iter().zip(&costs) {
        let per_completion = |time: Duration| time.as_nanos() as f64 / (2 * MESSAGES) as f64;
        let ratio = |time: Duration, first: Duration| time.as_secs_f64() / first.as_secs_f64();
        let per_pair = |time: Duration| time.as_nanos() as f64 / *count as f64;
        println!(
            "{count:>7} {:>16.1} ({:>5.2}) {:>16.1} ({:>5.2}) {:>7.0} ns {:>7.0} ns",
            per_completion(cost.all),
            ratio(cost.all, costs[0].all),
            per_completion(cost.one),
            ratio(cost.one, costs[0].one),
            per_pair(cost.set_up),
            per_pair(cost.teardown),
        );
    }
    println!();
    // `memory` also makes pairs whose queues are four times as deep as those of `LIMITS`. Such a pair needs the room of
    // four.
    let counts: Vec<usize> = counts.into_iter().filter(|&count| fits(4 * count)).collect();
    memory(context, domain, port, &counts);
    println!();
    let mut fine = stray == 0;
    for (threads, pairs_each) in [(1, 64), (64, 1), (64, 8)] {
        if !fits(threads * pairs_each) {
            continue;
        }
        let found = crowd(domain, port, threads, pairs_each, 200_000 / threads as u64);
        let Crowd { sent, received, out_of_order, unknown, missing, elapsed } = found;
        let rate = (sent + received) as f64 / elapsed.as_secs_f64() / 1e6;
        println!(
            "{threads} threads with {pairs_each} pairs each, one poller: {sent} sent, {received} received, \
             {rate:.2} million completions/s; {out_of_order} out of order, {unknown} unknown, {missing} buffers missing"
        );
        fine &= sent == received && out_of_order == 0 && unknown == 0 && missing == 0;
    }
    Ok(if fine { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

#[derive(Clone, Copy)]
struct Cost {
    all: Duration,
    one: Duration,
    set_up: Duration,
    teardown: Duration,
}

/// Measures all counts in each round, so that other load on the machine affects all of them alike.
fn measure<B: Brand>(domain: &ProtectionDomain<B>, port: &Port, counts: &[usize], rounds: usize) -> (Vec<Cost>, usize) {
    let never = Duration::MAX;
    let mut costs = vec![Cost { all: never, one: never, set_up: never, teardown: never }; counts.len()];
    let mut stray = 0;
    for _ in 0..rounds {
        for (&count, cost) in counts.iter().zip(&mut costs) {
            let begin = Instant::now();
            let (queue, mut poller) = queue_for(domain, &LIMITS, count);
            let mut pairs = Vec::with_capacity(count);
            pairs.extend((0..count).map(|_| pair_to_itself(domain, port, &queue, &LIMITS)));
            _ = poll_each(&mut poller, |_| ());
            cost.set_up = cost.set_up.min(begin.elapsed());
            let begin = Instant::now();
            drop(pairs);
            _ = poll_each(&mut poller, |_| ());
            drop((queue, poller));
            cost.teardown = cost.teardown.min(begin.elapsed());

            let mut fleet = Fleet::new(domain, port, &LIMITS, count);
            for (among, least) in [(count, &mut cost.all), (1, &mut cost.one)] {
                let begin = Instant::now();
                stray += fleet.exchange(MESSAGES, among);
                *least = begin.elapsed().min(*least);
            }
        }
    }
    (costs, stray)
}

/// Prints the bytes that a pair takes from the library and from the device, and how many of them grow with the depth.
fn memory<B: Brand>(context: &Context, domain: &ProtectionDomain<B>, port: &Port, counts: &[usize]) {
    // The bytes of one pair: the library's and the device's.
    let owned = |count: usize, depth: u32| {
        let limits = Limits { sends: depth, receives: depth, ..Limits::default() };
        let (queue, mut poller) = queue_for(domain, &limits, count);
        let mut pairs = Vec::with_capacity(count);
        let ((), owned) = heap::attribute(|| {
            pairs.extend((0..count).map(|_| pair_to_itself(domain, port, &queue, &limits)));
            _ = poll_each(&mut poller, |completion| drop(Ended::of(completion)));
        });
        let handle = size_of_val(&pairs[0]) as f64;
        (owned.library_bytes as f64 / count as f64 + handle, owned.device_bytes as f64 / count as f64)
    };
    println!(
        "{:>7} {:>34} {:>22} {:>22}",
        "pairs", "library, bytes a pair beyond slots", "bytes a slot", "device, bytes a pair"
    );
    for &count in counts {
        let ((shallow, device), (deep, _)) = (owned(count, 16), owned(count, 64));
        // A deep pair has 96 slots more than a shallow pair: 48 in each of its two work queues.
        let slot = (deep - shallow) / 96.0;
        // A shallow pair has 32 slots, and each takes one word. Subtract 32 words, and not 32 times `slot`: if the
        // memory of the ledgers has free blocks, `slot` is more than a word.
        println!("{count:>7} {:>34.0} {slot:>22.1} {device:>22.0}", shallow - 32.0 * size_of::<u64>() as f64);
        if device == 0.0 && context.is_soft() {
            println!("        (no symbols: what is the soft device's counts as the library's)");
        }
    }
}
