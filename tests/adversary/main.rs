//! Programs on soft devices that behave like each provider, and on adversaries, which do at random whatever a provider
//! may do.
//!
//! `ADVERSARY_SEEDS` is the number of adversaries, 16 if it is not set. `ADVERSARY_ROUNDS` is the number of random
//! programs that each of them meets. A random program that fails is made smaller; the adversary stays the same, since
//! its seed decides what it does.

mod random;
mod scopes;
mod threads;
mod verbs;

use interlock::error::{CreateError, NotOnIwarp, TakeEventsError, TransitionError, TransitionFailure};

use interlock::memory::{BufferList, Foreign};
use interlock::number::Qkey;
use interlock::shared::{Messages, SharedLimits, SharedReceiveQueue};
use interlock::soft::{Fabric, Fault, Profile, Verb};
use interlock::state::DeviceState;
use interlock::transport::OnShared;
use interlock::{
    Buffer, CompletionQueue, Context, Inline, Limits, LocalWrite, Poller, Port, PostError, ProtectionDomain, QueuePair,
    ReadyToSend, ReliableConnection, RemoteReadWrite, Work, WorkRequest,
};
use std::collections::HashSet;
use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use std::{env, thread};
use support::steps::{self, Program};
use support::{Guarded, PATIENCE, Random};

const LIMITS: Limits =
    Limits { sends: 8, receives: 8, inline_bytes: 32, elements: 3, posting: interlock::queue::Posting::List };

// `Profile::Siw` is not in the list: these tests connect each pair with the `Endpoint` of its peer, but only rdma_cm
// connects the pairs of iWARP devices.
const NAMED: [Profile; 8] = [
    Profile::Specification,
    Profile::Rxe,
    Profile::Mlx5,
    Profile::Mlx4,
    Profile::Irdma,
    Profile::BnxtRe,
    Profile::Hns,
    Profile::Efa,
];

/// All profiles, except the adversaries on which polls and destroys fail.
fn profiles() -> Vec<Profile> {
    if cfg!(miri) {
        // Miri is slow, so it gets only a few profiles.
        return vec![Profile::Mlx5, Profile::Efa, Profile::Adversary(3)];
    }
    let seeds = env::var("ADVERSARY_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(16);
    NAMED.into_iter().chain((0..seeds).map(|seed| Profile::Adversary(seed & 3 | (seed & !3) << 1))).collect()
}

/// Whether a post may fail although the device has queued the request. Such a request keeps its pair, so on such a
/// device a test does not wait until all pairs are gone.
fn posts_fail(profile: Profile) -> bool {
    matches!(profile, Profile::Hns) || matches!(profile, Profile::Adversary(seed) if seed & 1 != 0)
}

/// Whether polls and destroys may fail.
fn objects_die(profile: Profile) -> bool {
    matches!(profile, Profile::Adversary(seed) if seed & 4 != 0)
}

macro_rules! stage {
    ($profile:expr) => {{
        let fabric = Fabric::with_profile($profile);
        let context = Context::open_on(&fabric, "dev0").unwrap();
        let port = context.active_port().unwrap();
        (fabric, context.checked_domain().unwrap(), port)
    }};
}

/// Tests random programs: one for each of these profiles and seeds.
fn for_programs<C: Copy + Debug + 'static>(
    test: &str,
    devices: impl IntoIterator<Item = (Profile, u64)>,
    calls: &[(u32, C)],
    steps: usize,
    run: impl Fn(Profile, &Program<C>),
) {
    let strategy = steps::programs(calls, 1, if cfg!(miri) { 60 } else { steps });
    for (profile, seed) in devices {
        steps::check(
            &format!("{test}, {profile:?}, program {seed}"),
            seed,
            &strategy,
            Duration::from_secs(60),
            |program| run(profile, program),
        );
    }
}

/// How many random programs each device runs: `ADVERSARY_ROUNDS` if it is set, otherwise `usually`.
fn rounds(usually: u64) -> u64 {
    let asked = env::var("ADVERSARY_ROUNDS").ok().and_then(|rounds| rounds.parse().ok());
    asked.unwrap_or(if cfg!(miri) { 1 } else { usually })
}

/// Two connected pairs on one completion queue.
fn connected<B: interlock::Brand>(
    domain: &ProtectionDomain<B>,
    queue: &CompletionQueue<B>,
    port: &Port,
) -> (QueuePair<B>, QueuePair<B>) {
    let left = domain.reliable(queue, &LIMITS).unwrap().into_init(port).unwrap();
    let right = domain.reliable(queue, &LIMITS).unwrap().into_init(port).unwrap();
    let (to_left, to_right) = (left.endpoint(), right.endpoint());
    (left.connect(&to_right).unwrap(), right.connect(&to_left).unwrap())
}

/// Polls until `done`, and gives each completion to `f`.
fn poll_until<B: interlock::Brand>(
    profile: Profile,
    poller: &mut Poller<B>,
    mut f: impl FnMut(interlock::Completion<B>),
    mut done: impl FnMut() -> bool,
) {
    // If posts can fail, `done` perhaps never becomes true. So wait only a short time.
    let short = Duration::from_millis(if cfg!(miri) { 6000 } else { 300 });
    let patience = if posts_fail(profile) { short } else { PATIENCE };
    let deadline = Instant::now() + patience;
    loop {
        match poller.poll().unwrap() {
            Some(completion) => f(completion),
            None if done() => return,
            None => thread::yield_now(),
        }
        if Instant::now() > deadline {
            assert!(posts_fail(profile), "{profile:?}: it does not end: {poller:?}");
            return;
        }
    }
}

/// The addresses of the buffers that the program holds. A buffer must not come back while the program holds it.
#[derive(Default)]
struct Out(HashSet<usize>);

impl Out {
    fn back<B>(&mut self, buffer: &Buffer<B>) {
        assert!(self.0.insert(buffer.as_ptr().addr()), "a buffer came back twice");
    }
    fn goes<B>(&mut self, buffer: &Buffer<B>) {
        self.0.remove(&buffer.as_ptr().addr());
    }
}

#[test]
fn messages_arrive_whole_and_buffers_come_back_once() {
    for profile in profiles() {
        let (fabric, domain, port) = stage!(profile);
        let (queue, mut poller) = domain.completion_queue(256).unwrap();
        let mut dice = Random::new(1);
        for round in 0..if cfg!(miri) { 1 } else { 6_u8 } {
            let (mut left, mut right) = connected(&domain, &queue, &port);
            let mut out = Out::default();
            let mut spare: Vec<Buffer<_>> = domain.buffers(16, 48).unwrap();
            spare.iter().for_each(|buffer| out.back(buffer));
            let mut posted = 0_usize;
            for number in 0..8_u8 {
                let buffer = spare.pop().unwrap();
                out.goes(&buffer);
                let outcome = right.post_receive(buffer);
                posted += usize::from(matches!(outcome, Ok(_) | Err(PostError::Uncertain { .. })));
                let mut buffer = spare.pop().unwrap();
                out.goes(&buffer);
                let text = [number ^ round; 48];
                buffer.write(&text[..1 + dice.below(48)]).unwrap();
                let mut request = WorkRequest::send(buffer);
                if dice.below(2) == 0 {
                    request = request.unsignalled();
                }
                match left.post(request) {
                    Ok(_) => posted += 1,
                    // `into_request` returns `None` if the device perhaps has the request. Then the buffer comes back
                    // later, from the poller.
                    Err(error) => posted += usize::from(error.into_request().is_none()),
                }
            }
            // The completion of a signalled request also brings back the unsignalled requests before it.
            let _ = left.post_send(Inline(b"last"));
            let mut back = Vec::new();
            let mut kept: Vec<(Buffer<_>, Vec<u8>)> = Vec::new();
            let take = |completion: interlock::Completion<_>, back: &mut Vec<Buffer<_>>| match completion.check() {
                Ok(success) => back.extend(success.into_buffer()),
                Err(failure) => back.extend(failure.into_buffer()),
            };
            // Some buffers come back while the pairs are connected, the rest after the pairs are gone.
            for _ in 0..dice.below(16) {
                if let Some(completion) = poller.poll().unwrap() {
                    take(completion, &mut back);
                }
            }
            for buffer in back.drain(..) {
                out.back(&buffer);
                let bytes = buffer.to_vec();
                assert!(bytes.windows(2).all(|two| two[0] == two[1]), "{profile:?}: a mixture {bytes:?}");
                kept.push((buffer, bytes));
            }
            drop((left, right));
            let mut rest = Vec::new();
            poll_until(
                profile,
                &mut poller,
                |completion| take(completion, &mut rest),
                || queue.room() == queue.capacity(),
            );
            rest.iter().for_each(|buffer| out.back(buffer));
            for (buffer, bytes) in &kept {
                assert_eq!(buffer.to_vec(), *bytes, "{profile:?}: a buffer changed after it came back");
            }
            assert!(kept.len() + rest.len() <= posted, "{profile:?}: more came back than were posted");
            assert_eq!(fabric.violations(), <Vec<String>>::new(), "{profile:?}");
        }
    }
}

/// A poll may overlook a completion whose event was already taken. A sleeping thread must find the completion all the
/// same.
#[test]
fn a_sleeper_finds_what_a_poll_overlooked() {
    for profile in profiles()
        .into_iter()
        .filter(|&profile| profile != Profile::Rxe && !posts_fail(profile) && !objects_die(profile))
    {
        let (_fabric, domain, port) = stage!(profile);
        let (queue, mut poller) = domain.completion_queue(64).unwrap();
        let (mut left, mut right) = connected(&domain, &queue, &port);
        for round in 0..rounds(60) {
            right.post_receive(domain.buffer(8).unwrap()).unwrap();
            left.post_send(domain.buffer(8).unwrap()).unwrap();
            for _ in 0..2 {
                let begun = Instant::now();
                let completion = poller.wait(PATIENCE).unwrap_or_else(|error| panic!("{profile:?} {round}: {error}"));
                // After a lost wake-up, the last poll at the deadline would still find the completion. So check that
                // the wait ended before the deadline.
                assert!(begun.elapsed() < PATIENCE, "{profile:?} {round}: it slept to the end");
                completion.check().unwrap();
            }
        }
    }
}

#[test]
fn a_write_of_a_small_message_is_there_when_its_completion_is() {
    for profile in profiles() {
        let (fabric, domain, port) = stage!(profile);
        let (queue, mut poller) = domain.completion_queue(64).unwrap();
        let (mut left, _right) = connected(&domain, &queue, &port);
        let region = domain.register::<RemoteReadWrite, _>(vec![0_u64; 8]).unwrap();
        for value in 1..if cfg!(miri) { 4 } else { 20_u64 } {
            let mut buffer = domain.buffer(8).unwrap();
            buffer.write(&value.to_ne_bytes()).unwrap();
            if left.post_write(buffer, &region.remote()).is_err() {
                break;
            }
            poller.wait(PATIENCE).unwrap().check().unwrap();
            assert_eq!(region.load(0).unwrap(), value, "{profile:?}");
        }
        assert_eq!(fabric.violations(), <Vec<String>>::new(), "{profile:?}");
    }
}

type Server<B> = QueuePair<B, ReadyToSend, OnShared<ReliableConnection>>;

/// A shared receive queue; `None` where the library makes none on this provider.
fn shared_queue<B: interlock::Brand>(
    profile: Profile,
    domain: &ProtectionDomain<B>,
    limits: &SharedLimits,
) -> Option<SharedReceiveQueue<B, Messages>> {
    let has_none = match profile {
        Profile::Irdma | Profile::BnxtRe | Profile::Efa => true,
        Profile::Mlx5 => env::var_os("MLX5_SCATTER_TO_CQE").is_none_or(|value| value != "0"),
        Profile::Adversary(seed) => seed & 2 == 0,
        _ => false,
    };
    match domain.shared_receive_queue(limits) {
        Err(CreateError::NoSharedReceives { set, .. }) => {
            assert!(has_none, "{profile:?}");
            assert_eq!(set.is_some(), profile == Profile::Mlx5);
            None
        }
        made => {
            assert!(!has_none, "{profile:?}");
            Some(made.unwrap())
        }
    }
}

fn serve<B: interlock::Brand>(
    domain: &ProtectionDomain<B>,
    shared: &SharedReceiveQueue<B, Messages>,
    queue: &CompletionQueue<B>,
    port: &Port,
) -> (QueuePair<B>, Server<B>) {
    let client = domain.reliable(queue, &LIMITS).unwrap().into_init(port).unwrap();
    let server = shared.reliable(queue, &LIMITS).unwrap().into_init(port).unwrap();
    let (to_client, to_server) = (client.endpoint(), server.endpoint());
    (client.connect(&to_server).unwrap(), server.connect(&to_client).unwrap())
}

#[test]
fn connections_that_come_and_go_use_up_no_shared_receives() {
    'profiles: for profile in profiles() {
        let (fabric, domain, port) = stage!(profile);
        let (queue, mut poller) = domain.completion_queue(128).unwrap();
        let limits = SharedLimits { receives: 8, ..SharedLimits::default() };
        let Some(mut shared) = shared_queue(profile, &domain, &limits) else { continue };
        let mut dice = Random::new(3);
        for _ in 0..if cfg!(miri) { 2 } else { 40 } {
            let spare = (8 - shared.in_flight()) as usize;
            for buffer in (0..spare).map(|_| domain.buffer(48).unwrap()) {
                // Where posts can fail, the shared queue perhaps takes no more posts after a failed one. So the test
                // goes on with the next profile.
                if let Err(error) = shared.post_receive(buffer) {
                    assert!(posts_fail(profile), "{profile:?}: {error}");
                    continue 'profiles;
                }
            }
            assert_eq!(shared.in_flight(), 8, "{profile:?}: slots are lost");
            let (mut client, server) = serve(&domain, &shared, &queue, &port);
            for _ in 0..3 {
                let _ = client.post_send(Inline(b"to whom it may concern"));
            }
            for _ in 0..dice.below(3) {
                drop(poller.poll().unwrap());
            }
            drop((client, server));
            poll_until(profile, &mut poller, drop, || queue.room() == queue.capacity());
            assert_eq!(fabric.violations(), <Vec<String>>::new(), "{profile:?}");
        }
        let left = shared.in_flight() as usize;
        let back = shared.destroy().unwrap();
        assert_eq!(back.len(), left, "{profile:?}");
    }
}

/// If a device neither flushes requests nor destroys their pair, the memory in flight is leaked, even after the
/// completion queue is dropped.
#[test]
fn a_pair_that_is_not_destroyed_keeps_what_it_has_in_flight() {
    for profile in profiles() {
        for is_on_shared in [false, true] {
            let fabric = Fabric::with_profile(profile);
            let context = Context::open_on(&fabric, "dev0").unwrap();
            // The domain has no name: leaked pairs would keep the name for ever, so the next round could not use it.
            let (port, domain) = (context.active_port().unwrap(), context.checked_domain().unwrap());
            let (queue, mut poller) = domain.completion_queue(64).unwrap();
            fabric.inject(Fault::RequestsLost { count: u32::MAX });
            let refuses =
                |verb| fabric.inject(Fault::VerbFails { verb, after: 0, count: u32::MAX, errno: libc::EBUSY });
            if is_on_shared {
                let limits = SharedLimits { receives: 4, ..SharedLimits::default() };
                let Some(mut shared) = shared_queue(profile, &domain, &limits) else { continue };
                let _ = shared.post_receive(domain.buffer(16).unwrap());
                let (_client, mut server) = serve(&domain, &shared, &queue, &port);
                let _ = server.post_send(domain.buffer(16).unwrap());
                refuses(Verb::ModifyQp);
            } else {
                let (mut left, mut right) = connected(&domain, &queue, &port);
                let _ = left.post_send(domain.buffer(16).unwrap());
                let _ = right.post_receive(domain.buffer(16).unwrap());
                refuses(Verb::ModifyQp);
            }
            // Inject this fault only after the drops of the pairs. On some devices such a drop destroys the pair at
            // once. With the fault it would leak the pair, and a leaked pair keeps the completion queue alive. But this
            // test needs the drop of that queue.
            refuses(Verb::DestroyQp);
            // Poll for longer than the time (`SHARED_GRACE`) that a poller gives the device to finish shared receives.
            let since = Instant::now();
            while since.elapsed() < Duration::from_millis(40) {
                drop(poller.poll());
            }
            drop((poller, queue, domain));
            assert_eq!(fabric.violations(), <Vec<String>>::new(), "{profile:?}, shared: {is_on_shared}");
        }
    }
}

#[test]
fn a_number_that_is_given_out_again_is_no_other_pairs() {
    for profile in profiles() {
        let (fabric, domain, port) = stage!(profile);
        let (queue, mut poller) = domain.completion_queue(256).unwrap();
        let Some(mut shared) = shared_queue(profile, &domain, &SharedLimits::default()) else { continue };
        for buffer in domain.buffers(16, 48).unwrap() {
            let posted = shared.post_receive(buffer);
            assert!(posted.is_ok() || posts_fail(profile), "{profile:?}");
        }
        let (mut before, server) = serve(&domain, &shared, &queue, &port);
        let first = server.number();
        let _ = before.post_send(Inline(b"for the first"));
        // Drop the server first, then the client (`before`). A device that reuses numbers then gives the number of the
        // old client to the next client, and offers the number of the old server for the next server. The library must
        // refuse the number of the old server while completions of that server can still come.
        drop((server, before));
        let (mut client, server) = serve(&domain, &shared, &queue, &port);
        assert_ne!(server.number(), first, "{profile:?}");
        let _ = client.post_send(Inline(b"for the second"));
        let mut failed = false;
        let until = Instant::now() + Duration::from_millis(50);
        poll_until(profile, &mut poller, |completion| failed |= completion.check().is_err(), || Instant::now() > until);
        assert_eq!(server.first_failure(), None, "{profile:?}: {failed}");
        drop((client, server));
        poll_until(profile, &mut poller, drop, || queue.room() == queue.capacity());
        assert_eq!(fabric.violations(), <Vec<String>>::new(), "{profile:?}");
    }
}

/// Some providers read the first element of an empty list, and some take an element of 0 bytes for one of 2^31 bytes.
#[test]
fn messages_of_nothing_name_no_memory() {
    for profile in profiles() {
        let (fabric, domain, port) = stage!(profile);
        let (queue, mut poller) = domain.completion_queue(64).unwrap();
        let (mut left, mut right) = connected(&domain, &queue, &port);
        let region = domain.register::<RemoteReadWrite, _>(vec![0_u64; 8]).unwrap();
        let target = region.remote();
        let empties = || [vec![], vec![domain.buffer(8).unwrap()], domain.buffers(3, 8).unwrap()];
        for (index, parts) in empties().into_iter().enumerate() {
            let _ = right.post_receive(BufferList::new(parts));
            let _ = right.post_receive(domain.buffer(8).unwrap());
            let parts = empties().into_iter().nth(index).unwrap();
            let _ = left.post_send(BufferList::new(parts));
            let _ = left.post_send(domain.buffer(8).unwrap());
        }
        poll_until(profile, &mut poller, drop, || left.sends_in_flight() == 0);
        for parts in empties() {
            let _ = left.post_write(BufferList::new(parts), &target);
        }
        let _ = left.post(WorkRequest::read_scattered(BufferList::new(vec![]), &target));
        poll_until(profile, &mut poller, drop, || left.sends_in_flight() == 0);
        drop((left, right));
        poll_until(profile, &mut poller, drop, || queue.room() == queue.capacity());
        assert_eq!(fabric.violations(), <Vec<String>>::new(), "{profile:?}");
    }
}

/// Some providers add their flags to the flags that the caller's array already held.
#[test]
fn a_plain_message_brings_no_immediate_of_another() {
    for profile in profiles().into_iter().filter(|&profile| !posts_fail(profile)) {
        let (fabric, domain, port) = stage!(profile);
        let (queue, mut poller) = domain.completion_queue(64).unwrap();
        let (mut left, mut right) = connected(&domain, &queue, &port);
        for number in 0..12_u32 {
            right.post_receive(domain.buffer(8).unwrap()).unwrap();
            let sent = match number % 2 {
                0 => left.post_send_with_immediate(Inline(b"hello"), number),
                _ => left.post_send(Inline(b"hello")),
            };
            sent.unwrap();
            for _ in 0..2 {
                if let Work::Received(message) = poller.wait(PATIENCE).unwrap().check().unwrap().into_work() {
                    assert_eq!(message.immediate, (number % 2 == 0).then_some(number), "{profile:?}");
                    assert_eq!((&message.buffer[..], message.invalidated), (&b"hello"[..], None), "{profile:?}");
                }
            }
        }
        drop((left, right));
        poll_until(profile, &mut poller, drop, || queue.room() == queue.capacity());
        assert_eq!(fabric.violations(), <Vec<String>>::new(), "{profile:?}");
    }
}

/// A failed request that was posted before a reset does not break the pair that comes up after the reset. This holds
/// even if the failure comes out only then.
#[test]
fn a_failure_that_comes_out_late_breaks_no_other_life() {
    // On this adversary, requests complete in any order, and pairs can be reset.
    let profile = Profile::Adversary(42);
    let (_fabric, domain, port) = stage!(profile);
    let (queue, mut poller) = domain.completion_queue(64).unwrap();
    let mut lives = 0;
    for round in 0..if cfg!(miri) { 3 } else { 40 } {
        let mut pair = domain.reliable(&queue, &LIMITS).unwrap().into_init(&port).unwrap();
        for _ in 0..6 {
            pair.post_receive(domain.buffer(8).unwrap()).unwrap();
        }
        let mut pair = Some(pair.into_error().unwrap());
        let (mut next, mut forgets) = (None, round % 2 == 1);
        let deadline = Instant::now() + PATIENCE;
        while pair.as_ref().is_some_and(|pair| pair.receives_in_flight() != 0) && Instant::now() < deadline {
            let look = poller.poll_retired(|retired| {
                if let Some(drained) = pair.take_if(|pair| pair.receives_in_flight() == 0) {
                    next = Some(drained.into_reset().unwrap().into_init(&port).unwrap());
                    // The pair has been reset by now. If this completion is forgotten, `poll_retired` gives it to
                    // this closure again.
                    if std::mem::take(&mut forgets) {
                        return std::mem::forget(retired);
                    }
                }
                drop(retired);
            });
            look.unwrap();
        }
        // The poller may still have a completion of the old requests. Take it now, so that the check below covers
        // it.
        drop(poller.poll().unwrap());
        if let Some(next) = &next {
            assert_eq!((next.is_broken(), next.first_failure()), (false, None), "{profile:?}, round {round}");
            lives += 1;
        }
        drop((pair, next));
        poll_until(profile, &mut poller, drop, || queue.room() == queue.capacity());
    }
    assert_ne!(lives, 0, "{profile:?}: nothing came in another order");
}

/// Runs `f` while another thread polls the completion queue.
fn beside_polls<B: interlock::Brand>(poller: &mut Poller<B>, f: impl FnOnce()) {
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Acquire) {
                drop(poller.poll().unwrap());
            }
        });
        f();
        is_over.store(true, Ordering::Release);
    });
}

/// In iWARP mode, polls of libirdma could report old completions as new ones.
#[test]
fn a_provider_that_is_wrong_on_iwarp_makes_no_pairs_there() {
    for profile in [Profile::IrdmaIwarp, Profile::Irdma, Profile::Siw, Profile::IwarpAdversary(0)] {
        let (fabric, domain, _port) = stage!(profile);
        let (queue, _poller) = domain.completion_queue(64).unwrap();
        match domain.reliable(&queue, &LIMITS) {
            Ok(_) => assert_ne!(profile, Profile::IrdmaIwarp),
            Err(error) => {
                assert_eq!(profile, Profile::IrdmaIwarp, "{error}");
                assert!(matches!(error, CreateError::NotOnIwarp(NotOnIwarp::QueuePairs)), "{error}");
            }
        }
        assert_eq!(fabric.violations(), <Vec<String>>::new(), "{profile:?}");
    }
}

/// With some providers, requests of a pair that is used again could complete before the device has executed them.
#[test]
fn a_pair_is_used_once_where_its_provider_needs_that() {
    for profile in profiles().into_iter().chain([Profile::Irdma, Profile::Efa]) {
        let (fabric, domain, port) = stage!(profile);
        let (queue, _poller) = domain.completion_queue(64).unwrap();
        let is_once = !domain.context().promises().pairs_can_be_reset();
        assert!(is_once || !matches!(profile, Profile::BnxtRe | Profile::Hns | Profile::Irdma | Profile::Efa));
        let mut pair = domain.reliable(&queue, &LIMITS).unwrap().into_init(&port).unwrap();
        // Some of the adversaries refuse a move to Error now and then.
        let pair = loop {
            match pair.into_error() {
                Ok(errored) => break errored,
                Err(refused) => pair = refused.queue_pair,
            }
        };
        match pair.into_reset() {
            Ok(pair) => assert!(!is_once && pair.into_init(&port).is_ok(), "{profile:?}"),
            Err(error) => {
                assert!(is_once && matches!(error.source, TransitionFailure::UsedOnce { .. }), "{profile:?}: {error}");
                assert_eq!(error.queue_pair.query_state().unwrap(), DeviceState::Error);
            }
        }
        assert_eq!(fabric.violations(), <Vec<String>>::new(), "{profile:?}");
    }
}

/// The same is true of a pair whose send has failed on an unreliable transport. If it fails while the pair drains, the
/// device is in Send Queue Error, and the type says Send Queue Drain.
#[test]
fn a_failed_send_ends_a_pair_that_is_used_once() {
    for profile in [Profile::Specification, Profile::Mlx5, Profile::BnxtRe, Profile::Hns] {
        for drains in [false, true] {
            interlock::domain! { struct Test; }
            let fabric = Fabric::manual_with_profile(profile);
            let context = Context::open_on(&fabric, "dev0").unwrap();
            let port = context.active_port().unwrap();
            let is_once = !context.promises().pairs_can_be_reset();
            let domain = context.named_domain(Test).unwrap();
            let (queue, mut poller) = domain.completion_queue(64).unwrap();
            let mut pair = domain.datagram(&queue, &LIMITS).unwrap().into_init(&port).unwrap().open().unwrap();
            let to = domain.recipient(&port, &pair.endpoint(), Qkey::USUAL).unwrap();
            fabric.inject(Fault::RequestsFail { count: 1 });
            pair.post_send_to(Inline(b"fails"), &to).unwrap();
            assert!(fabric.step(), "the send has begun");
            let resumed = if drains {
                let pair = pair.into_sqd().unwrap();
                while fabric.step() {}
                assert_eq!(pair.query_state().unwrap(), DeviceState::SendQueueError);
                pair.resume().map(drop).map_err(TransitionError::into_cause)
            } else {
                while fabric.step() {}
                let pair = pair.into_sqe().unwrap();
                assert!(poller.poll().unwrap().unwrap().check().is_err());
                pair.resume().map(drop).map_err(TransitionError::into_cause)
            };
            let is_refused = matches!(resumed, Err(TransitionFailure::UsedOnce { .. }));
            assert_eq!((is_refused, resumed.is_err()), (is_once, is_once), "{profile:?}, drains: {drains}");
            assert_eq!(fabric.violations(), <Vec<String>>::new(), "{profile:?}, drains: {drains}");
        }
    }
}

/// Some providers change a pair during a poll without the lock that a reset of the pair takes.
#[test]
fn a_drained_pair_is_not_reset_in_the_middle_of_a_poll() {
    // Only the poller destroys the pairs of these adversaries, and pairs can be reset.
    for profile in [18, 42, 58].map(Profile::Adversary) {
        let (fabric, domain, port) = stage!(profile);
        let (queue, mut poller) = domain.completion_queue(64).unwrap();
        beside_polls(&mut poller, || {
            for _ in 0..if cfg!(miri) { 3 } else { 500 } {
                let Ok(pair) = domain.reliable(&queue, &LIMITS) else {
                    thread::yield_now();
                    continue;
                };
                let pair = pair.into_init(&port).unwrap().into_error().unwrap();
                drop(pair.into_reset().unwrap());
            }
        });
        assert_eq!(fabric.violations(), <Vec<String>>::new(), "{profile:?}");
    }
}

/// If a new pair gets a number for which completions may still come, the library makes another pair instead. It must
/// not destroy the rejected pair while a poll is running.
#[test]
fn a_pair_of_a_taken_number_is_not_destroyed_in_the_middle_of_a_poll() {
    // This adversary has shared queues, lets only the poller destroy pairs, and reuses numbers.
    let (fabric, domain, _) = stage!(Profile::Adversary(35));
    let (queue, mut poller) = domain.completion_queue(1024).unwrap();
    let shared = domain.shared_receive_queue(&SharedLimits { receives: 4, ..SharedLimits::default() }).unwrap();
    let limits = Limits { sends: 1, ..LIMITS };
    let many = if cfg!(miri) { 5 } else { 20 };
    beside_polls(&mut poller, || {
        let until = Instant::now() + Duration::from_millis(if cfg!(miri) { 100 } else { 1500 });
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    while Instant::now() < until {
                        let made: Vec<_> = (0..many).map_while(|_| shared.reliable(&queue, &limits).ok()).collect();
                        drop(made);
                    }
                });
            }
        });
    });
    assert_eq!(fabric.violations(), <Vec<String>>::new());
}

/// To take an event of bnxt_re makes the provider report live requests as flushed. Of a provider that was not reviewed,
/// nobody knows.
#[test]
fn events_are_taken_only_where_that_changes_nothing() {
    for profile in profiles().into_iter().chain([Profile::Adversary(0)]) {
        let (fabric, domain, _port) = stage!(profile);
        let context = domain.context();
        let has_none = matches!(profile, Profile::BnxtRe) || !context.promises().are_reviewed();
        assert_eq!(context.promises().has_events(), !has_none, "{profile:?}");
        let events = context.events();
        match events {
            Ok(mut events) => assert!(!has_none && events.poll().is_ok(), "{profile:?}"),
            Err(error) => assert!(has_none && error == TakeEventsError::NotOnThisProvider, "{profile:?}: {error}"),
        }
        assert_eq!(fabric.violations(), <Vec<String>>::new(), "{profile:?}");
    }
}

/// Inline bytes that do not fit into the request of hns could be written past the end of a ring.
#[test]
fn on_hns_inline_bytes_fit_into_the_request() {
    let (_fabric, domain, _port) = stage!(Profile::Hns);
    let (queue, _poller) = domain.completion_queue(64).unwrap();
    let limits = Limits { inline_bytes: 64, elements: 3, ..LIMITS };
    assert!(domain.reliable(&queue, &limits).unwrap().limits().inline_bytes <= 32);
    assert!(domain.datagram(&queue, &limits).unwrap().limits().inline_bytes <= 8);
}

/// An attack: a completion queue that nobody polls ends with two dropped pairs, and the memory in flight of one of them
/// panics when it is dropped. The panic does not get out, both pairs are destroyed, and no memory comes back twice.
#[test]
fn memory_that_panics_at_the_end_of_a_queue_leaves_no_pair_behind() {
    struct Panics(Arc<AtomicUsize>);
    impl Drop for Panics {
        fn drop(&mut self) {
            if self.0.fetch_add(1, Ordering::Relaxed) == 0 {
                panic!("the first drop of this memory panics");
            }
        }
    }
    for profile in [Profile::Mlx4, Profile::Mlx5, Profile::Adversary(82)] {
        let (fabric, domain, port) = stage!(profile);
        let Ok(shared) = domain.shared_receive_queue(&SharedLimits::default()) else { continue };
        let (receives, poller) = domain.completion_queue(shared.limits().completions() + 32).unwrap();
        let drops = Arc::new(AtomicUsize::new(0));
        for _ in 0..2 {
            let (sends, of_sends) = domain.completion_queue(8).unwrap();
            let limits = Limits { sends: 4, ..Limits::default() };
            let pair = shared.reliable_on(&sends, &receives, &limits).unwrap().into_init(&port).unwrap();
            let myself = pair.endpoint();
            let mut pair = pair.connect(&myself).unwrap();
            let memory = Foreign(Guarded::with(8, Panics(Arc::clone(&drops))));
            // There is no receive, so the send stays in flight.
            pair.post_send(domain.register::<LocalWrite, _>(memory).unwrap().split().1).unwrap();
            drop((pair, sends, of_sends));
        }
        assert_eq!(drops.load(Ordering::Relaxed), 0, "{profile:?}: the pairs are not destroyed yet");
        drop(poller);
        drop(receives);
        assert_eq!(drops.load(Ordering::Relaxed), 2, "{profile:?}");
        drop(shared);
        let left = format!("{fabric:?}");
        assert!(left.contains("queue_pairs: 0") && left.contains("completion_queues: 0"), "{profile:?}: {left}");
        assert_eq!(fabric.violations(), <Vec<String>>::new(), "{profile:?}");
    }
}

/// The poller of the receives destroys the pair, which then held the last reference to the other completion queue.
#[test]
fn a_pair_that_departs_leaves_no_completion_queue_behind() {
    for profile in profiles().into_iter().chain([Profile::Mlx4]) {
        let (fabric, domain, _port) = stage!(profile);
        let promises = domain.context().promises();
        if !promises.shared_receive_queues() || !promises.pairs_may_have_two_queues() {
            continue;
        }
        let shared = domain.shared_receive_queue(&SharedLimits::default()).unwrap();
        let (receives, poller) = domain.completion_queue(shared.limits().completions() + 8).unwrap();
        let (sends, of_sends) = domain.completion_queue(8).unwrap();
        let limits = Limits { sends: 4, ..Limits::default() };
        drop(shared.reliable_on(&sends, &receives, &limits).unwrap());
        drop((sends, of_sends));
        drop((receives, poller));
        drop(shared);
        let left = format!("{fabric:?}");
        assert!(left.contains("completion_queues: 0"), "{profile:?}: {left}");
    }
}
