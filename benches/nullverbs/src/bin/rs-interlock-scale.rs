//! Pairs that take turns on one completion queue, as in `scale.c`: `rs-interlock-scale PAIRS MESSAGES ROUNDS
//! [shuffled]`.
//!
//! Prints `NS <nanoseconds>`, the time of `MESSAGES` completions in the fastest of `ROUNDS` rounds. Exit status 2: the
//! program was called like the other contenders, with a workload, but it has none.
#![forbid(unsafe_code)]

use interlock::queue::Posting;
use interlock::{Buffer, Context, Limits, Poller, QueuePair, WorkId};
use std::time::{Duration, Instant};
use std::{error::Error, mem, process::exit};

interlock::domain! { struct Bench; }

const MESSAGE: usize = 64;
const BUFFERS: usize = 64;
/// The depth of a pair, and the number of messages under way at a time.
const DEPTH: usize = 16;

/// The free buffers in the order in which they came back.
struct Spare {
    ring: [Option<Buffer<Bench>>; BUFFERS],
    taken: usize,
    put: usize,
}

impl Spare {
    #[inline(always)]
    fn take(&mut self) -> Buffer<Bench> {
        let at = self.taken % BUFFERS;
        self.taken += 1;
        self.ring[at].take().expect("fewer are under way")
    }

    #[inline(always)]
    fn put(&mut self, buffer: Buffer<Bench>) {
        // The slot is empty, so `replace` returns `None`. `forget` keeps drop code out of the measured loop.
        mem::forget(self.ring[self.put % BUFFERS].replace(buffer));
        self.put += 1;
    }
}

struct Fleet {
    pairs: Vec<QueuePair<Bench>>,
    poller: Poller<Bench>,
    spare: Spare,
    turn: usize,
    /// The order of the turns, or `None` if the pairs take turns in the order in which they were made.
    turns: Option<Vec<u32>>,
    due: [Option<WorkId>; DEPTH],
}

impl Fleet {
    #[inline(always)]
    fn next_turn(&mut self) -> usize {
        let at = self.turn;
        self.turn = if at + 1 == self.pairs.len() { 0 } else { at + 1 };
        self.turns.as_ref().map_or(at, |turns| turns[at] as usize)
    }
}

/// Sends `messages` messages, `DEPTH` under way at a time, each on the pair whose turn it is. The function has a name
/// of its own for `valgrind --tool=callgrind --toggle-collect='*counted_work*'`.
#[inline(never)]
fn counted_work(fleet: &mut Fleet, mut messages: usize) {
    while messages > 0 {
        let posted = messages.min(DEPTH);
        for place in 0..posted {
            let at = fleet.next_turn();
            let id = fleet.pairs[at].post_send(fleet.spare.take()).expect("room");
            fleet.due[place] = Some(id);
        }
        let mut got = 0;
        let Fleet { poller, spare, due, .. } = fleet;
        while got < posted {
            let found = poller.poll_each(|completion| {
                let success = completion.check().expect("success");
                assert!(due[got] == Some(success.id()));
                got += 1;
                spare.put(success.into_buffer().expect("a buffer"));
            });
            found.expect("a queue that works");
        }
        messages -= posted;
    }
}

/// Returns the same order as the C program does.
fn shuffled(count: usize) -> Vec<u32> {
    let mut turns: Vec<u32> = (0..count as u32).collect();
    let mut state = 1_u64;
    for i in (1..count).rev() {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        turns.swap(i, (state >> 33) as usize % (i + 1));
    }
    turns
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let (count, messages, rounds) = match &arguments[1..] {
        [workload, ..] if workload.starts_with('W') => exit(2),
        [count, messages, rounds, ..] => (count.parse()?, messages.parse()?, rounds.parse()?),
        _ => return Err("usage: rs-interlock-scale PAIRS MESSAGES ROUNDS [shuffled]".into()),
    };
    let domain = Context::open("null0")?.named_domain(Bench)?;
    let port = domain.context().active_port()?;
    let limits = Limits { sends: DEPTH as u32, receives: 1, inline_bytes: 0, elements: 1, posting: Posting::List };
    let (queue, poller) = domain.completion_queue(limits.completions() * count as u32)?;
    let mut pairs = Vec::with_capacity(count);
    for _ in 0..count {
        let pair = domain.reliable(&queue, &limits)?.into_init(&port)?;
        let itself = pair.endpoint();
        pairs.push(pair.connect(&itself)?);
    }
    let mut spare = Spare { ring: [const { None }; BUFFERS], taken: 0, put: 0 };
    for (place, buffer) in spare.ring.iter_mut().zip(domain.buffers(BUFFERS, MESSAGE)?) {
        *place = Some(buffer);
    }
    let turns = (arguments.len() > 4).then(|| shuffled(count));
    let mut fleet = Fleet { pairs, poller, spare, turn: 0, turns, due: [None; DEPTH] };
    let mut least = Duration::MAX;
    for _ in 0..rounds {
        let begin = Instant::now();
        counted_work(&mut fleet, messages);
        least = least.min(begin.elapsed());
    }
    println!("NS {}", least.as_nanos());
    Ok(())
}
