//! Attacks that use only safe calls on the promises of shared receive queues. Each test is named after what never
//! happens. Each runs on a soft device of its own, whose requests stay in flight for as long as the attack needs.

use interlock::attributes::ConnectAttributes;
use interlock::completion::Polling;
use interlock::memory::{Growth, PoolOptions, SizeClass};
use interlock::number::RetryCount;
use interlock::shared::{SharedLimits, SharedReceiveQueue};
use interlock::soft::{Fabric, Fault, Profile, Verb};
use interlock::transport::OnShared;
use interlock::{
    Brand, Buffer, Completion, CompletionQueue, Context, Limits, Poller, Port, PostError, ProtectionDomain, QueuePair,
    ReadyToSend, ReliableConnection, Status, WorkId,
};
use std::collections::HashSet;
use std::pin::pin;
use std::sync::{Arc, Mutex, mpsc};
use std::task::{self, Wake, Waker};
use std::time::{Duration, Instant};
use std::{mem, thread};
use support::Queues;

type Server<B, S = ReadyToSend> = QueuePair<B, S, OnShared<ReliableConnection>>;

const LIMITS: Limits =
    Limits { sends: 4, receives: 4, inline_bytes: 0, elements: 1, posting: interlock::queue::Posting::List };

/// Two servers on a shared queue of 4 receives, each with its client, on one completion queue. The fabric is manual:
/// nothing moves until `run` is called.
struct Stage<B> {
    fabric: Fabric,
    domain: ProtectionDomain<B>,
    port: Port,
    queue: CompletionQueue<B>,
    poller: Poller<B>,
    shared: SharedReceiveQueue<B>,
    clients: Vec<QueuePair<B>>,
    servers: Vec<Server<B>>,
}

impl<B: Brand> Stage<B> {
    fn new(fabric: Fabric, domain: ProtectionDomain<B>) -> Self {
        let port = domain.context().active_port().unwrap();
        let (queue, poller) = domain.queue(64).unwrap();
        let shared = domain.shared_receive_queue(&SharedLimits { receives: 4, grows_to: 0 }).unwrap();
        let (clients, servers) = (Vec::new(), Vec::new());
        let mut stage = Self { fabric, domain, port, queue, poller, shared, clients, servers };
        stage.add();
        stage.add();
        stage
    }

    fn add(&mut self) {
        let client = self.domain.reliable(&self.queue, &LIMITS).unwrap().into_init(&self.port).unwrap();
        let server = self.shared.reliable(&self.queue, &LIMITS).unwrap().into_init(&self.port).unwrap();
        let attr = ConnectAttributes { retry_count: RetryCount::new(1).unwrap(), ..Default::default() };
        let (to_client, to_server) = (client.endpoint(), server.endpoint());
        self.clients.push(client.connect_with(&to_server, &attr).unwrap());
        self.servers.push(server.connect_with(&to_client, &attr).unwrap());
    }

    fn small(&self) -> Buffer<B> {
        self.domain.buffer(8).unwrap()
    }

    fn stock(&mut self, count: usize) -> Vec<WorkId> {
        (0..count).map(|_| self.shared.post_receive(self.domain.buffer(8).unwrap()).unwrap()).collect()
    }

    /// Sends a message from a client and lets it arrive. Polls neither completion.
    fn message(&mut self, client: usize) {
        let buffer = self.small();
        self.clients[client].post_send(buffer).unwrap();
        self.fabric.run();
    }

    fn all(&mut self) -> Vec<Completion<B>> {
        // A ledger with a wrong count might return completions without end, so take at most 100.
        std::iter::from_fn(|| self.poller.poll().unwrap()).take(100).collect()
    }

    /// Polls until the poller has destroyed a pair, whose room in the completion queue is free then.
    fn poll_until_room_is_more_than(&mut self, room: u32) {
        let begin = Instant::now();
        while self.queue.room() == room {
            self.all();
            assert!(begin.elapsed() < Duration::from_secs(30), "the pair is never destroyed");
            thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(self.fabric.violations(), <Vec<String>>::new());
    }

    /// The ids of the receives that have completed.
    fn received(&mut self) -> Vec<WorkId> {
        self.all().into_iter().map(|c| c.check().unwrap()).filter(is_receive).map(|s| s.id()).collect()
    }
}

fn is_receive<B>(success: &interlock::Success<B>) -> bool {
    success.operation() == interlock::request::Operation::Receive
}

fn fails(verb: Verb, count: u32) -> Fault {
    Fault::VerbFails { verb, after: 0, count, errno: libc::EBUSY }
}

/// Makes a stage.
macro_rules! stage {
    () => {{
        let fabric = Fabric::manual();
        let domain = Context::open_on(&fabric, "dev").unwrap().checked_domain().unwrap();
        Stage::new(fabric, domain)
    }};
}

#[test]
fn a_forgotten_completion_of_a_shared_receive_is_never_lost() {
    let mut stage = stage!();
    let ids = stage.stock(2);
    stage.message(0);
    stage.message(1);
    for _ in 0..3 {
        // The program forgets the completion without taking anything from it, so the same completion comes again each
        // time.
        let mut seen = 0;
        let panicking = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            stage.poller.poll_retired(|retired| {
                seen += 1;
                mem::forget(retired);
                panic!("after the first");
            })
        }));
        assert!(panicking.is_err());
        assert_eq!(seen, 1);
    }
    assert_eq!(stage.received().into_iter().collect::<HashSet<_>>(), ids.into_iter().collect());
    assert_eq!((stage.poller.unknown_completions(), stage.shared.in_flight()), (0, 0));
}

#[test]
fn a_forgotten_completion_never_frees_the_slot_for_another() {
    let mut stage = stage!();
    stage.stock(4);
    stage.message(0);
    let mut retired = 0;
    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        stage.poller.poll_retired(|run| {
            retired += run.len();
            mem::forget(run);
            panic!("once");
        })
    }));
    assert_eq!(retired, 1);
    // The poller has taken the request out of its slot, although the program has forgotten the completion. So the next
    // receive can use the slot. The forgotten completion comes again, but not as the completion of the next receive.
    let next = stage.stock(1)[0];
    stage.message(1);
    let received = stage.received();
    assert_eq!((received.len(), received.contains(&next)), (2, false));
    assert_eq!(stage.poller.unknown_completions(), 0);
}

#[test]
fn a_pair_that_goes_never_takes_the_receives_of_the_others_along() {
    let mut stage = stage!();
    let ids = stage.stock(3);
    stage.message(0);
    stage.servers.remove(0).destroy().unwrap();
    drop(stage.clients.remove(0));
    assert_eq!(stage.received(), ids[..1]);
    stage.message(0);
    assert_eq!(stage.received(), ids[1..2]);
    assert_eq!(stage.shared.in_flight(), 1);
}

#[test]
fn a_number_that_is_used_again_never_mixes_two_pairs() {
    let mut stage = stage!();
    for _ in 0..if cfg!(miri) { 4 } else { 20 } {
        stage.stock(2);
        stage.message(0);
        // Drop the server before the completion of its receive is polled. The next server can get the number of the
        // dropped server.
        drop(stage.servers.remove(0));
        drop(stage.clients.remove(0));
        stage.add();
        stage.message(1);
        let numbers: Vec<_> = stage.servers.iter().map(QueuePair::number).collect();
        let mut fresh = 0;
        for completion in stage.all() {
            let success = completion.check().unwrap();
            fresh += usize::from(is_receive(&success) && numbers.contains(&success.queue_pair()));
        }
        assert!(fresh >= 1);
        assert_eq!((stage.shared.in_flight(), stage.poller.unknown_completions()), (0, 0));
    }
}

#[test]
fn a_destroyed_queue_never_gives_a_buffer_twice() {
    let mut stage = stage!();
    stage.stock(4);
    stage.message(0);
    stage.message(1);
    let first = stage.all().into_iter().map(|c| c.check().unwrap()).find(is_receive).unwrap();
    stage.servers.clear();
    let spare = stage.domain.shared_receive_queue(&SharedLimits::default()).unwrap();
    let mut out = mem::replace(&mut stage.shared, spare).destroy().unwrap();
    out.extend(first.into_buffer());
    out.extend(stage.received().iter().map(|_| unreachable!("came from the destroy")).collect::<Vec<Buffer<_>>>());
    let places: HashSet<_> = out.iter().map(|buffer| buffer.as_ptr()).collect();
    assert_eq!(places.len(), out.len());
    assert_eq!(stage.poller.unknown_completions(), 0);
}

#[test]
fn a_queue_destroyed_while_another_thread_polls_never_loses_or_doubles_a_buffer() {
    for _ in 0..if cfg!(miri) { 2 } else { 50 } {
        let fabric = Fabric::manual();
        let domain = Context::open_on(&fabric, "dev").unwrap().checked_domain().unwrap();
        let mut stage = Stage::new(fabric, domain);
        stage.stock(4);
        for client in [0, 1, 0] {
            stage.message(client);
        }
        let Stage { mut poller, shared, servers, clients, queue, .. } = stage;
        let polled = thread::scope(|scope| {
            let polling = scope.spawn(move || {
                let mut out = Vec::new();
                // Poll until all pairs have given back their room on the queue.
                while queue.room() != queue.capacity() {
                    while let Some(completion) = poller.poll().unwrap() {
                        out.extend(completion.check().ok().filter(is_receive).and_then(|s| s.into_buffer()));
                    }
                    thread::yield_now();
                }
                assert_eq!(poller.unknown_completions(), 0);
                out
            });
            drop((servers, clients));
            let mut out = shared.destroy().unwrap();
            out.extend(polling.join().unwrap());
            out
        });
        let places: HashSet<_> = polled.iter().map(|buffer| buffer.as_ptr()).collect();
        assert_eq!((polled.len(), places.len()), (4, 4));
    }
}

#[test]
fn a_queue_that_stays_never_gives_its_buffers() {
    let mut stage = stage!();
    stage.stock(2);
    stage.servers.clear();
    stage.fabric.inject(fails(Verb::DestroySrq, 1));
    let error = stage.shared.destroy().unwrap_err();
    assert_eq!((error.source.verb(), error.source.errno()), ("ibv_destroy_srq", libc::EBUSY));
    assert_eq!(error.shared.in_flight(), 2);
    // The drop tries to destroy the queue once more, and the device refuses that too. So everything stays allocated,
    // and the name of the domain stays taken.
    stage.fabric.inject(fails(Verb::DestroySrq, 1));
    drop(error.shared);
    let Stage { fabric, domain, port, queue, poller, clients, .. } = stage;
    drop((domain, port, queue, poller, clients));
    interlock::domain! { struct Other; }
    assert!(Context::open_on(&fabric, "dev").unwrap().named_domain(Other).is_ok());
}

#[test]
fn a_pair_that_stays_never_lets_its_shared_queue_go() {
    let mut stage = stage!();
    stage.stock(1);
    stage.fabric.inject(fails(Verb::DestroyQp, u32::MAX));
    stage.servers.clear();
    stage.fabric.heal();
    let error = stage.shared.destroy().unwrap_err();
    assert_eq!(error.source.errno(), libc::EBUSY);
    assert_eq!(error.shared.in_flight(), 1, "the device may still write there");
}

#[test]
fn a_refused_post_never_keeps_the_buffer_nor_the_slot() {
    let mut stage = stage!();
    for round in 0..10 {
        stage.fabric.inject(Fault::VerbFails { verb: Verb::PostSrqRecv, after: 0, count: 1, errno: libc::ENOMEM });
        let refused = stage.shared.post_receive(stage.domain.buffer(8).unwrap()).unwrap_err();
        let PostError::Refused { request, source } = refused else { panic!("{refused}") };
        assert_eq!((request.capacity(), source.verb()), (8, "ibv_post_srq_recv"), "round {round}");
    }
    let ids = stage.stock(4);
    assert_eq!(ids.iter().collect::<HashSet<_>>().len(), 4);
    stage.message(0);
    assert_eq!(stage.received().len(), 1);
}

#[test]
fn a_resize_that_is_refused_never_changes_the_size() {
    let mut stage = stage!();
    let mut shared = stage.domain.shared_receive_queue(&SharedLimits { receives: 2, grows_to: 6 }).unwrap();
    for (size, errno) in [(1, libc::EOPNOTSUPP), (6, libc::EOPNOTSUPP), (1, libc::EINVAL), (6, libc::ENOSYS)] {
        stage.fabric.inject(Fault::VerbFails { verb: Verb::ModifySrq, after: 0, count: 1, errno });
        assert_eq!(shared.resize(size).unwrap_err().errno(), errno);
        assert_eq!(shared.limits().receives, 2);
    }
    for fits in [true, true, false] {
        assert_eq!(shared.post_receive(stage.domain.buffer(8).unwrap()).is_ok(), fits);
    }
    // Only the receives that were posted are in flight.
    assert_eq!(shared.in_flight(), 2);
    stage.stock(1);
}

/// When a resize fails halfway, the provider may already have freed the old queue.
#[test]
fn a_resize_that_failed_in_the_middle_never_lets_a_post_through() {
    for verb in [Verb::ModifySrq, Verb::QuerySrq] {
        let stage = stage!();
        let mut shared = stage.domain.shared_receive_queue(&SharedLimits { receives: 2, grows_to: 6 }).unwrap();
        shared.post_receive(stage.domain.buffer(8).unwrap()).unwrap();
        stage.fabric.inject(fails(verb, 1));
        assert_eq!(shared.resize(6).unwrap_err().errno(), libc::EBUSY);
        let posted = shared.post_receive(stage.domain.buffer(8).unwrap());
        if verb == Verb::QuerySrq {
            assert!(posted.is_ok(), "before anything was changed");
            continue;
        }
        let PostError::Broken { request, first_failure: None } = posted.unwrap_err() else { panic!("not broken") };
        assert_eq!((request.capacity(), shared.limits().receives), (8, 2));
        assert_eq!(shared.resize(6).unwrap_err().errno(), libc::EINVAL);
        assert_eq!(shared.destroy().unwrap().len(), 1);
    }
}

#[test]
fn a_failed_creation_never_keeps_a_lease() {
    let stage = stage!();
    let room = stage.queue.room();
    let (queue, _poller) = stage.domain.queue(8).unwrap();
    for verb in [Verb::CreateQp, Verb::CreateSrq] {
        stage.fabric.inject(fails(verb, 1));
        let made = match verb {
            Verb::CreateQp => stage.shared.reliable(&queue, &LIMITS).map(drop),
            _ => stage.domain.shared_receive_queue(&SharedLimits::default()).map(drop),
        };
        assert!(made.is_err());
        assert_eq!((queue.room(), stage.queue.room()), (8, room));
    }
    // The failures leaked no queue number.
    for _ in 0..10 {
        stage.domain.shared_receive_queue(&SharedLimits::default()).unwrap();
    }
}

#[test]
fn an_id_of_a_destroyed_queue_is_never_the_id_of_another() {
    let mut stage = stage!();
    let mut ids: HashSet<WorkId> = stage.stock(4).into_iter().collect();
    for round in 1..if cfg!(miri) { 6 } else { 20 } {
        let mut shared = stage.domain.shared_receive_queue(&SharedLimits { receives: 4, grows_to: 0 }).unwrap();
        for _ in 0..4 {
            assert!(ids.insert(shared.post_receive(stage.small()).unwrap()), "round {round}");
        }
        if round % 2 == 0 {
            assert_eq!(shared.destroy().unwrap().len(), 4);
        }
    }
}

#[test]
fn a_removed_device_never_gives_memory_that_it_may_still_have() {
    let mut stage = stage!();
    stage.stock(2);
    stage.message(0);
    stage.fabric.inject(Fault::DeviceFatal { device: "dev".to_owned() });
    let mut received = 0;
    for completion in stage.all() {
        match completion.check() {
            Ok(success) => received += usize::from(is_receive(&success)),
            Err(failure) => assert!(matches!(failure.status, Status::Flushed), "{failure}"),
        }
    }
    assert_eq!((received, stage.shared.in_flight()), (1, 1));
    stage.servers.clear();
    stage.clients.clear();
    assert_eq!(stage.shared.destroy().unwrap().len(), 1);
}

#[test]
fn a_poller_that_was_dropped_never_drops_shared_receives() {
    let mut stage = stage!();
    let ids = stage.stock(2);
    stage.message(0);
    // The next poller continues where the dropped one stopped.
    drop(mem::replace(&mut stage.poller, stage.domain.queue(1).unwrap().1));
    stage.message(1);
    stage.poller = stage.queue.take_poller().unwrap();
    assert_eq!(stage.received().into_iter().collect::<HashSet<_>>(), ids.into_iter().collect());
    // If no other poller follows a dropped one, the requests end with the completion queue.
    stage.stock(2);
    stage.message(0);
    let Stage { queue, poller, shared, clients, servers, .. } = stage;
    drop((poller, servers, clients, queue));
    drop(shared);
}

type Question = Box<dyn Fn() -> u32 + Send + Sync>;

/// A waker that uses the library, as the runtime of a program may.
struct Asks {
    question: Question,
    answer: mpsc::Sender<u32>,
}

impl Wake for Asks {
    fn wake(self: Arc<Self>) {
        self.answer.send((self.question)()).unwrap();
    }
}

/// When the last pair of a dropped queue goes, the receives of the queue are dropped. A pool buffer among them wakes
/// the task that waits for it. `look` polls until nothing is left.
fn wakes_when_the_receives_are_dropped<P>(
    share: impl FnOnce(Poller<Woken>, &CompletionQueue<Woken>) -> (P, Question) + Send + 'static,
    look: impl FnOnce(P) + Send + 'static,
) {
    // Only one domain of this name can exist at a time, so the callers take turns.
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap();
    let (answer, answers) = mpsc::channel();
    let program = thread::spawn(move || {
        let fabric = Fabric::manual();
        let domain = Context::open_on(&fabric, "dev").unwrap().named_domain(Woken).unwrap();
        let Stage { domain, queue, poller, mut shared, clients, servers, .. } = Stage::new(fabric, domain);
        let classes = vec![SizeClass { len_bytes: 64, count: 1 }];
        let pool = domain.pool(&PoolOptions { classes, growth: Growth::Never, ..Default::default() }).unwrap();
        shared.post_receive(pool.try_take(64).unwrap()).unwrap();
        let mut wait = pin!(pool.take(64));
        let (polled, question) = share(poller, &queue);
        let asks = Waker::from(Arc::new(Asks { question, answer }));
        assert!(wait.as_mut().poll(&mut task::Context::from_waker(&asks)).is_pending());
        drop(shared);
        drop((clients, servers));
        look(polled);
    });
    let answer = answers.recv_timeout(Duration::from_secs(30));
    assert_ne!(answer.expect("the waker runs, and has its answer"), 0);
    program.join().unwrap();
}

interlock::domain! { struct Woken; }

#[test]
fn a_waker_never_meets_a_lock_when_the_receives_of_a_queue_are_dropped() {
    wakes_when_the_receives_are_dropped(
        |poller, queue| {
            let queue = queue.clone();
            (poller, Box::new(move || queue.room()))
        },
        |mut poller| while poller.poll().unwrap().is_some() {},
    );
    #[cfg(feature = "aio")]
    wakes_when_the_receives_are_dropped(
        |poller, _| {
            let poller = interlock::aio::SharedPoller::new(poller);
            let other = poller.clone();
            (poller, Box::new(move || 1 + other.unknown_completions() as u32))
        },
        |poller| {
            let mut polls = 0;
            let three = std::future::poll_fn(move |context| {
                polls += 1;
                context.waker().wake_by_ref();
                if polls < 3 { task::Poll::Pending } else { task::Poll::Ready(()) }
            });
            poller.driver().unwrap().block_on(three).unwrap();
        },
    );
}

/// Two devices whose pairs on shared receive queues only the poller destroys: one like mlx4, where other pairs are
/// destroyed at any time, and one where that goes for all pairs. It makes some promises (seed bit 2), and no post or
/// destroy fails there.
fn left_to_poller() -> [Profile; 2] {
    let is_for_all_pairs = |&seed: &u64| {
        let context = Context::open_on(&Fabric::with_profile(Profile::Adversary(seed)), "dev").unwrap();
        !context.promises().pairs_may_have_two_queues()
    };
    let seed = (0..100).map(|number| 8 * number + 2).find(is_for_all_pairs).expect("a third of the seeds");
    [Profile::Mlx4, Profile::Adversary(seed)]
}

macro_rules! stage_with {
    ($profile:expr) => {{
        // The adversary of `left_to_poller` does not promise that its extended queues can be used. Use ordinary ones.
        support::POLLING.set(Polling::Array);
        let fabric = Fabric::manual_with_profile($profile);
        let domain = Context::open_on(&fabric, "dev").unwrap().checked_domain().unwrap();
        Stage::new(fabric, domain)
    }};
}

/// The device refuses to move a dropped pair to Error, so it may take another shared receive for the pair at any time.
/// With some providers, no poll may meet the completion of a destroyed pair. So the poller does not destroy the pair.
#[test]
fn a_pair_that_still_receives_is_not_destroyed() {
    for profile in left_to_poller() {
        let mut stage = stage_with!(profile);
        stage.stock(2);
        stage.fabric.inject(fails(Verb::ModifyQp, 1000));
        let room = stage.queue.room();
        drop(stage.servers.remove(0));
        for _ in 0..2 {
            assert!(stage.received().is_empty());
            thread::sleep(Duration::from_millis(25));
        }
        stage.message(0);
        assert_eq!(stage.received().len(), 1, "the pair still receives");
        assert_eq!(stage.queue.room(), room, "the pair is still there");
        assert_eq!(stage.fabric.violations(), <Vec<String>>::new());
    }
}

/// The third attempt succeeds. Some time later the poller destroys the pair.
#[test]
fn a_pair_that_is_flushed_late_is_destroyed_in_the_end() {
    for profile in left_to_poller() {
        let mut stage = stage_with!(profile);
        stage.fabric.inject(fails(Verb::ModifyQp, 2));
        let room = stage.queue.room();
        drop(stage.servers.remove(0));
        stage.poll_until_room_is_more_than(room);
    }
}

/// No device moves a pair from Reset to Error. But a pair in Reset or Init receives nothing.
#[test]
fn a_pair_that_was_never_moved_is_destroyed() {
    for profile in left_to_poller() {
        let mut stage = stage_with!(profile);
        for is_moved in [false, true] {
            let pair = stage.shared.reliable(&stage.queue, &LIMITS).unwrap();
            let room = stage.queue.room();
            if is_moved {
                drop(pair.into_init(&stage.port).unwrap())
            } else {
                drop(pair)
            }
            stage.poll_until_room_is_more_than(room);
        }
    }
}

support::also_extended![
    a_forgotten_completion_of_a_shared_receive_is_never_lost,
    a_forgotten_completion_never_frees_the_slot_for_another,
    a_pair_that_goes_never_takes_the_receives_of_the_others_along,
    a_number_that_is_used_again_never_mixes_two_pairs,
    a_destroyed_queue_never_gives_a_buffer_twice,
    a_queue_destroyed_while_another_thread_polls_never_loses_or_doubles_a_buffer,
    a_queue_that_stays_never_gives_its_buffers,
    a_pair_that_stays_never_lets_its_shared_queue_go,
    a_refused_post_never_keeps_the_buffer_nor_the_slot,
    a_resize_that_is_refused_never_changes_the_size,
    a_resize_that_failed_in_the_middle_never_lets_a_post_through,
    a_failed_creation_never_keeps_a_lease,
    an_id_of_a_destroyed_queue_is_never_the_id_of_another,
    a_removed_device_never_gives_memory_that_it_may_still_have,
    a_poller_that_was_dropped_never_drops_shared_receives,
    a_waker_never_meets_a_lock_when_the_receives_of_a_queue_are_dropped,
    a_pair_that_still_receives_is_not_destroyed,
    a_pair_that_is_flushed_late_is_destroyed_in_the_end,
    a_pair_that_was_never_moved_is_destroyed,
];
