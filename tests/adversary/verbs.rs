//! Random programs on every profile, with verbs that fail at random. A buffer comes back at most once, and does not
//! change after that.
use super::{for_programs, profiles, rounds};
use interlock::queue::Posting;
use interlock::request::PostedMemory;
use interlock::shared::SharedLimits;
use interlock::soft::{Fabric, Fault, Profile, Verb};
use interlock::transport::OnShared;
use interlock::{
    Buffer, Checked, Completion, CompletionQueue, Context, Limits, Poller, QueuePair, ReadyToSend, ReliableConnection,
    RemoteAll,
};
use std::collections::HashSet;
use std::time::{Duration, Instant};
use support::steps::Program;

const LIMITS: Limits = Limits { sends: 4, receives: 4, inline_bytes: 16, elements: 2, posting: Posting::List };
const BYTES: usize = 64;

enum Pair {
    Own(QueuePair<Checked>),
    Served(QueuePair<Checked, ReadyToSend, OnShared<ReliableConnection>>),
}

fn memory(completion: Completion<Checked>) -> PostedMemory<Checked> {
    match completion.check() {
        Ok(success) => success.into_memory(),
        Err(failure) => failure.memory,
    }
}

const VERBS: [Verb; 14] = [
    Verb::ModifyQp,
    Verb::DestroyQp,
    Verb::DestroyQp,
    Verb::DestroyCq,
    Verb::DeregMr,
    Verb::DestroySrq,
    Verb::PollCq,
    Verb::PostSend,
    Verb::PostRecv,
    Verb::PostSrqRecv,
    Verb::CreateQp,
    Verb::CreateCq,
    Verb::ModifyQp,
    Verb::QueryQp,
];

/// The call that a step of a program makes. If there is no object for the call, the step posts something.
#[derive(Clone, Copy, Debug)]
enum Call {
    Post,
    Poll,
    Heal,
    Fail,
    AddQueue,
    DropQueue,
    AddPairs,
    DropPair,
    /// Moves the clock of the device forward.
    Advance,
    /// Waits, because the library does some things only after some time has passed.
    Sleep,
}

/// Each call, with its relative frequency. When a failing program is reduced, later calls are replaced by earlier ones.
const CALLS: [(u32, Call); 10] = [
    (1000, Call::Post),
    (320, Call::Poll),
    (160, Call::Heal),
    (320, Call::Fail),
    (160, Call::AddQueue),
    (53, Call::DropQueue),
    (320, Call::AddPairs),
    (160, Call::DropPair),
    (20, Call::Advance),
    (8, Call::Sleep),
];

fn run_one(profile: Profile, program: &Program<Call>) {
    let fabric = Fabric::with_profile(profile);
    let context = Context::open_on(&fabric, "dev0").unwrap();
    let port = context.active_port().unwrap();
    let domain = context.checked_domain().unwrap();
    let source = domain.register::<RemoteAll, _>(vec![0x6666_6666_6666_6666_u64; BYTES / 8]).unwrap();
    let remote = source.remote();
    let mut shared = domain.shared_receive_queue(&SharedLimits { receives: 8, ..Default::default() }).ok();
    let mut queues: Vec<(CompletionQueue<Checked>, Poller<Checked>)> = Vec::new();
    let mut pairs: Vec<Pair> = Vec::new();
    let mut mine: Vec<Buffer<Checked>> = Vec::new();
    let mut here: HashSet<usize> = HashSet::new();
    let check = |mine: &Vec<Buffer<Checked>>, what: &str| {
        for buffer in mine {
            assert!(buffer.iter().all(|byte| *byte == 0xaa), "{profile:?}: a buffer changed by itself: {what}");
        }
    };
    for (number, step) in program.steps().enumerate() {
        let (mut back, mut dice) = (Vec::new(), step.random());
        match step.call {
            Call::AddQueue if queues.len() < 3 => queues.extend(domain.completion_queue(64).ok()),
            Call::DropQueue if !queues.is_empty() => drop(queues.swap_remove(dice.below(queues.len()))),
            Call::AddPairs if !queues.is_empty() && pairs.len() < 8 => {
                let (one, two) = (&queues[dice.below(queues.len())].0, &queues[dice.below(queues.len())].0);
                let Ok(left) = domain.reliable(one, &LIMITS) else { continue };
                let Ok(left) = left.into_init(&port) else { continue };
                let to_left = left.endpoint();
                if let Some(shared) = shared.as_ref().filter(|_| dice.below(2) == 0) {
                    let Ok(right) = shared.reliable(two, &LIMITS) else { continue };
                    let Ok(right) = right.into_init(&port) else { continue };
                    let to_right = right.endpoint();
                    pairs.extend(left.connect(&to_right).ok().map(Pair::Own));
                    pairs.extend(right.connect(&to_left).ok().map(Pair::Served));
                } else {
                    let Ok(right) = domain.reliable(two, &LIMITS) else { continue };
                    let Ok(right) = right.into_init(&port) else { continue };
                    let to_right = right.endpoint();
                    pairs.extend(left.connect(&to_right).ok().map(Pair::Own));
                    pairs.extend(right.connect(&to_left).ok().map(Pair::Own));
                }
            }
            Call::DropPair if !pairs.is_empty() => match pairs.swap_remove(dice.below(pairs.len())) {
                Pair::Own(pair) if dice.below(2) == 0 => {
                    if let Ok(pair) = pair.into_error()
                        && let Ok(pair) = pair.into_reset()
                    {
                        drop(pair.destroy());
                    }
                }
                pair => drop(pair),
            },
            Call::Fail => {
                let verb = VERBS[dice.below(VERBS.len())];
                let count = if dice.below(4) == 0 { 20 } else { 1 };
                fabric.inject(Fault::VerbFails {
                    verb,
                    after: dice.below(3) as u32,
                    count,
                    errno: [libc::EIO, libc::ENOMEM, libc::EBUSY, libc::EINVAL][dice.below(4)],
                });
                if dice.below(6) == 0 {
                    fabric.inject(Fault::FlushWithheld);
                }
                if dice.below(6) == 0 {
                    fabric.inject(Fault::RequestsLost { count: 2 });
                }
            }
            Call::Heal => fabric.heal(),
            Call::Poll => {
                for (_, poller) in &mut queues {
                    let _ = poller.poll_each(|completion| back.push(memory(completion)));
                }
            }
            Call::Advance => fabric.advance(Duration::from_millis(50)),
            Call::Sleep => std::thread::sleep(Duration::from_millis(22)),
            _ if !pairs.is_empty() && !mine.is_empty() => {
                let buffer = mine.swap_remove(dice.below(mine.len()));
                here.remove(&buffer.as_ptr().addr());
                let at = dice.below(pairs.len());
                let returned = match (dice.below(4), &mut pairs[at]) {
                    (0, Pair::Own(pair)) => pair.post_receive(buffer).err().and_then(|error| error.into_request()),
                    (0, Pair::Served(_)) => {
                        shared.as_mut().unwrap().post_receive(buffer).err().and_then(|error| error.into_request())
                    }
                    (1, Pair::Own(pair)) => pair.post_send(buffer).err().and_then(|error| error.into_request()),
                    (1, Pair::Served(pair)) => pair.post_send(buffer).err().and_then(|error| error.into_request()),
                    (_, Pair::Own(pair)) => {
                        pair.post_read(buffer, &remote).err().and_then(|error| error.into_request())
                    }
                    (_, Pair::Served(pair)) => {
                        pair.post_read(buffer, &remote).err().and_then(|error| error.into_request())
                    }
                };
                back.extend(returned.map(PostedMemory::Unique));
            }
            _ => {}
        }
        if mine.len() < 6 {
            back.extend((0..4).filter_map(|_| domain.buffer(BYTES).ok()).map(PostedMemory::Unique));
        } else if dice.below(3) == 0 {
            let gone = mine.swap_remove(0);
            here.remove(&gone.as_ptr().addr());
        }
        for memory in back {
            let PostedMemory::Unique(mut buffer) = memory else { continue };
            assert!(here.insert(buffer.as_ptr().addr()), "{profile:?}: a buffer came back twice");
            buffer.write(&[0xaa; BYTES]).unwrap();
            mine.push(buffer);
        }
        check(&mine, &format!("step {number}, {:?}", step.call));
    }
    pairs.clear();
    let until = Instant::now() + Duration::from_millis(30);
    while Instant::now() < until {
        for (_, poller) in &mut queues {
            let _ = poller.poll_each(drop);
        }
    }
    if program.random_after().one_in(2) {
        queues.clear();
    }
    fabric.heal();
    mine.extend((0..32).filter_map(|_| domain.buffer(BYTES).ok()).map(|mut buffer| {
        buffer.write(&[0xaa; BYTES]).unwrap();
        buffer
    }));
    fabric.advance(Duration::from_secs(10));
    fabric.run();
    check(&mine, "at the end");
    drop(queues);
    check(&mine, "after the end");
}

#[test]
fn verbs_that_fail_give_no_memory_back_early() {
    let devices = profiles().into_iter().flat_map(|profile| (0..rounds(3)).map(move |seed| (profile, seed)));
    for_programs("verbs_that_fail_give_no_memory_back_early", devices, &CALLS, 1200, run_one);
}
