//! Reliable connections that receive from one shared queue, on two completion queues.

use crate::{Device, Effort, Random, Stage, Stock, compose, connect, for_programs, read, set_up};
use interlock::event::{AsyncEvent, AsyncEvents, SharedReceiveQueueEvent};
use interlock::number::Qpn;
use interlock::request::{Operation, PostedMemory};
use interlock::shared::{SharedLimits, SharedReceiveQueue};
use interlock::soft::Verb;
use interlock::transport::OnShared;
use interlock::{
    AnyQueuePair, Completion, CompletionQueue, Init, Limits, MemoryRegion, Poller, Port, ProtectionDomain, QueuePair,
    ReliableConnection, RemoteAll, Reset, Status, Work, WorkId,
};
use std::collections::HashMap;
use support::steps::Step;
use support::{Need, Queues, lacks_need};

interlock::domain! { struct Test; }

const LIMITS: Limits =
    Limits { sends: 4, receives: 1, inline_bytes: 0, elements: 1, posting: interlock::queue::Posting::List };
/// There can be more clients than receives.
const LINKS: usize = 3;
const SHARED: SharedLimits = SharedLimits { receives: 4, grows_to: 8 };
const RECEIVE_BYTES: usize = 64;
/// Longer than a receive.
const BUFFER_BYTES: usize = 96;

#[derive(Clone, Copy, PartialEq, Debug)]
enum What {
    /// A message of the client.
    Message,
    /// A write of the client to its word, with an immediate, so that it takes a receive.
    Write,
    /// A message of the client that is too long for any receive.
    TooLong,
    /// A write of the server to a word of the client.
    Answer,
}

/// A send or a write in flight.
#[derive(Debug)]
struct Posted {
    life: usize,
    number: u64,
    address: usize,
    what: What,
}

const CLIENT: usize = 0;
const SERVER: usize = 1;

/// The state that the model has of a connection from one connect to the next, here called a life. Arrays of two hold a
/// value for the client's sends and one for the server's.
#[derive(Debug)]
struct Life {
    server: Qpn,
    /// The requests that take a receive, each with its immediate and length.
    log: Vec<(What, Option<u32>, usize)>,
    received: usize,
    posted: [u64; 2],
    out: [u64; 2],
    failed: [bool; 2],
    /// Which ends were taken down.
    closing: [bool; 2],
    /// Whether no completion of the server can come any more.
    gone: bool,
    /// Whether a message that is too long was sent, and whether it has failed a receive.
    hit: bool,
    failed_receive: bool,
}

impl Life {
    fn over(&self, end: usize) -> bool {
        self.posted[end] == self.out[end]
    }

    fn may_fail(&self) -> bool {
        self.closing.contains(&true) || self.hit
    }
}

struct Link {
    client: AnyQueuePair<Test>,
    server: AnyQueuePair<Test, OnShared<ReliableConnection>>,
    life: usize,
}

/// The call that a step of a program makes. The `place` of a step chooses a link.
#[derive(Clone, Copy, Debug)]
enum Call {
    Poll,
    Step,
    Receive,
    Message,
    Write,
    Answer,
    Lose,
    Settle,
    TooLong,
    Arm,
    Resize,
    Destroy,
    Revive,
}

/// Each call, with its relative frequency. When a failing program is reduced, later calls are replaced by earlier ones.
const CALLS: [(u32, Call); 13] = [
    (90, Call::Poll),
    (60, Call::Step),
    (80, Call::Receive),
    (80, Call::Message),
    (30, Call::Write),
    (20, Call::Answer),
    (6, Call::Lose),
    (4, Call::Settle),
    (4, Call::TooLong),
    (8, Call::Arm),
    (8, Call::Resize),
    (4, Call::Destroy),
    (6, Call::Revive),
];

struct World {
    device: Device,
    events: AsyncEvents,
    domain: ProtectionDomain<Test>,
    port: Port,
    queues: [(CompletionQueue<Test>, Poller<Test>); 2],
    /// `None` between a destroy and the creation of the next one.
    shared: Option<SharedReceiveQueue<Test>>,
    /// The buffers for sends, and the buffers for receives.
    senders: Stock<Test>,
    receivers: Stock<Test>,
    /// Two words for each link: the client writes the first one, the server the second one.
    words: MemoryRegion<Test, RemoteAll, Vec<u64>>,
    links: Vec<Link>,
    lives: Vec<Life>,
    /// Keyed by completion queue and id, because requests of two queues may have the same id.
    sends: HashMap<(usize, WorkId), Posted>,
    receives: HashMap<WorkId, usize>,
    /// The limits that were armed, each with the smallest number of receives that the device may have had since.
    armed: Vec<(i64, i64)>,
}

impl World {
    fn new() -> Self {
        let (device, domain, port) = set_up(Test);
        let events = device.context.events().unwrap();
        let queue = || domain.queue(2 * LINKS as u32 * LIMITS.completions() + SHARED.completions()).unwrap();
        let (queues, shared) = ([queue(), queue()], Some(domain.shared_receive_queue(&SHARED).unwrap()));
        let senders = Stock::new(&domain, 2 * LINKS * LIMITS.sends as usize + 1, BUFFER_BYTES);
        let receivers = Stock::new(&domain, SHARED.completions() as usize + 1, RECEIVE_BYTES);
        let words = domain.register::<RemoteAll, _>(vec![0; 2 * LINKS]).unwrap();
        let (links, lives, armed) = (Vec::new(), Vec::new(), Vec::new());
        let (sends, receives) = (HashMap::new(), HashMap::new());
        let mut world = Self {
            device,
            events,
            domain,
            port,
            queues,
            shared,
            senders,
            receivers,
            words,
            links,
            lives,
            sends,
            receives,
            armed,
        };
        for link in 0..LINKS {
            let (client, server) = (world.client(link), world.server(link));
            let link = world.connect(client.into_init(&world.port).unwrap(), server.into_init(&world.port).unwrap());
            world.links.push(link);
        }
        world
    }

    fn client(&self, link: usize) -> QueuePair<Test, Reset> {
        self.domain.reliable(&self.queues[link % 2].0, &LIMITS).unwrap()
    }

    fn server(&self, link: usize) -> QueuePair<Test, Reset, OnShared<ReliableConnection>> {
        self.shared.as_ref().unwrap().reliable(&self.queues[link % 2].0, &LIMITS).unwrap()
    }

    fn connect(
        &mut self,
        client: QueuePair<Test, Init>,
        server: QueuePair<Test, Init, OnShared<ReliableConnection>>,
    ) -> Link {
        self.lives.push(Life {
            server: server.number(),
            log: Vec::new(),
            received: 0,
            posted: [0; 2],
            out: [0; 2],
            failed: [false; 2],
            closing: [false; 2],
            gone: false,
            hit: false,
            failed_receive: false,
        });
        let (client, server) = connect(&self.domain, client, server);
        Link { client: client.into(), server: server.into(), life: self.lives.len() - 1 }
    }

    /// Updates the smallest number of receives that the device may have had.
    fn note_low(&mut self) {
        let taken: usize = self.lives.iter().filter(|life| !life.gone).map(|life| life.log.len() - life.received).sum();
        let low = self.receives.len() as i64 - taken as i64;
        self.armed.iter_mut().for_each(|(_, lowest)| *lowest = low.min(*lowest));
    }

    fn post_receive(&mut self, random: &mut Random) {
        let Some(shared) = &mut self.shared else { return };
        let full = self.receives.len() as u32 == shared.limits().receives;
        let expected = self.device.expect(random, Verb::PostSrqRecv, false, full);
        let buffer = self.receivers.take();
        let address = buffer.as_ptr().addr();
        match expected.check(&"a receive", shared.post_receive(buffer)) {
            Ok(id) => {
                assert!(self.receives.insert(id, address).is_none(), "{id:?} is in flight twice");
                assert_eq!(shared.in_flight() as usize, self.receives.len());
            }
            Err(back) => {
                assert_eq!(back.as_ptr().addr(), address, "another buffer came back");
                self.receivers.give(back);
            }
        }
    }

    fn post(&mut self, random: &mut Random, link: usize, what: What) {
        let end = if what == What::Answer { SERVER } else { CLIENT };
        let place = 16 * link as u64 + 8 * end as u64;
        let word = self.words.remote().slice(place..place + 8).unwrap();
        let Link { client, server, life } = &mut self.links[link];
        let life = *life;
        let model = &self.lives[life];
        let full = model.posted[end] - model.out[end] == u64::from(LIMITS.sends);
        let broken = match end {
            CLIENT => client.ready().map(|pair| pair.is_broken()),
            _ => server.ready().map(|pair| pair.is_broken()),
        };
        let Some(broken) = broken else { return };
        assert!(!broken || model.may_fail() || self.device.fatal.get(), "broken for no reason: {model:?}");
        assert!(broken || !model.failed[end], "a failure was forgotten");
        let expected = self.device.expect(random, Verb::PostSend, broken, full);
        let mut buffer = self.senders.take();
        let (address, place) = (buffer.as_ptr().addr(), model.log.len());
        let len = match what {
            What::TooLong => BUFFER_BYTES,
            What::Message => 8 + random.below(RECEIVE_BYTES - 7),
            What::Write | What::Answer => 8,
        };
        compose(&mut buffer, (life << 32 | place) as u64, len);
        let immediate = (what == What::Write || random.one_in(3)).then_some((life << 16 | place) as u32);
        let posted = match (what, immediate) {
            (What::Answer, _) => server.ready().unwrap().post_write(buffer, &word),
            (What::Write, Some(immediate)) => {
                client.ready().unwrap().post_write_with_immediate(buffer, &word, immediate)
            }
            (_, Some(immediate)) => client.ready().unwrap().post_send_with_immediate(buffer, immediate),
            (_, None) => client.ready().unwrap().post_send(buffer),
        };
        match expected.check(&what, posted) {
            Ok(id) => {
                let model = &mut self.lives[life];
                let posted = Posted { life, number: model.posted[end], address, what };
                model.posted[end] += 1;
                model.hit |= what == What::TooLong;
                if end == CLIENT {
                    model.log.push((what, immediate, len));
                }
                let known = self.sends.insert((link % 2, id), posted);
                assert!(known.is_none(), "{id:?} is in flight twice");
                self.note_low();
            }
            Err(back) => {
                assert_eq!(back.as_ptr().addr(), address, "another buffer came back");
                self.senders.give(back);
            }
        }
    }

    /// Checks a completion against the model.
    fn complete(&mut self, queue: usize, completion: Completion<Test>) {
        let id = completion.id();
        if let Some(address) = self.receives.remove(&id) {
            self.complete_receive(completion, address);
            return self.note_low();
        }
        let Some(posted) = self.sends.remove(&(queue, id)) else { panic!("{id:?} came, which is not in flight") };
        let Posted { life, number, address, what } = posted;
        let end = if what == What::Answer { SERVER } else { CLIENT };
        let fatal = self.device.fatal.get();
        let model = &mut self.lives[life];
        assert_eq!(model.out[end], number, "{what:?} out of order");
        model.out[end] += 1;
        let memory = match completion.check() {
            Ok(success) => {
                assert!(!model.failed[end] && what != What::TooLong, "{what:?} succeeds after a failure");
                let operation = if what == What::Message { Operation::Send } else { Operation::Write };
                assert_eq!(success.operation(), operation);
                success.into_memory()
            }
            Err(failure) => {
                let may = match failure.status {
                    Status::Flushed => model.may_fail() || fatal,
                    Status::Destroyed => model.closing[end],
                    Status::RetryExceeded => model.may_fail() || fatal,
                    Status::RemoteInvalidRequest | Status::RemoteOperation => what == What::TooLong,
                    _ => false,
                };
                assert!(may, "{what:?} ends with {}: {model:?}", failure.status);
                model.failed[end] = true;
                failure.memory
            }
        };
        let PostedMemory::Unique(buffer) = memory else { panic!("{memory:?}") };
        assert_eq!(buffer.as_ptr().addr(), address, "{what:?} gives another buffer back");
        self.senders.give(buffer);
    }

    fn complete_receive(&mut self, completion: Completion<Test>, address: usize) {
        let (pair, buffer) = match completion.check() {
            Ok(success) => (success.queue_pair(), self.received(success.queue_pair(), success.into_work())),
            Err(failure) => {
                let deviation = support::deviates("C096");
                let expected = if deviation { Status::LocalQueuePairOperation } else { Status::LocalLength };
                assert_eq!(failure.status, expected, "{failure}");
                // A failure names only the pair, so find the life of that pair in which a message was too long.
                let of = |life: &&mut Life| {
                    life.server == failure.queue_pair && !life.gone && life.hit && !life.failed_receive
                };
                let life = self.lives.iter_mut().find(of).expect("no message was too long there");
                assert_eq!(life.log[life.received].0, What::TooLong, "{life:?}");
                life.failed_receive = true;
                (failure.queue_pair, failure.into_buffer().unwrap())
            }
        };
        assert_eq!(buffer.as_ptr().addr(), address, "{pair:?} gives another buffer back");
        self.receivers.give(buffer);
    }

    /// Checks a message. The message itself names its connection, and its index there.
    fn received(&mut self, pair: Qpn, work: Work<Test>) -> interlock::Buffer<Test> {
        let (life, place, what, immediate, len, buffer) = match work {
            Work::Received(received) => {
                let number = read(&received.buffer) as usize;
                let len = received.buffer.len();
                (number >> 32, number & 0xffff_ffff, What::Message, received.immediate, len, received.buffer)
            }
            Work::WrittenWithImmediate(written) => {
                let (number, len) = (written.immediate as usize, written.written_bytes as usize);
                (number >> 16, number & 0xffff, What::Write, Some(written.immediate), len, written.buffer)
            }
            other => panic!("{other:?}"),
        };
        let model = &mut self.lives[life];
        assert!(!model.gone && !model.failed_receive, "message {place} of {life} comes after the end: {model:?}");
        assert_eq!(
            (model.server, model.received),
            (pair, place),
            "a message of {life} to another pair, or out of order"
        );
        assert_eq!(model.log[place], (what, immediate, len));
        model.received += 1;
        buffer
    }

    /// Whether all sends of an end have completed.
    fn over(life: usize, end: usize) -> impl Fn(&Self) -> bool {
        move |world| world.lives[life].over(end)
    }

    /// Takes both ends of a connection down, and connects them or new ones.
    fn revive(&mut self, random: &mut Random, link: usize) {
        let life = self.links[link].life;
        for end in if random.one_in(2) { [CLIENT, SERVER] } else { [SERVER, CLIENT] } {
            // This end posts more requests before it is taken down. They can fail if the other end is down already.
            for _ in 0..random.below(3) {
                let what = if end == CLIENT { What::Message } else { What::Answer };
                self.post(random, link, what);
                self.device.step(random);
                self.poll(random.below(3));
            }
            self.lives[life].closing[end] = true;
            let over = Self::over(life, end);
            let flush = |world: &mut Self| world.until("the flush", |world| world.lives[life].over(end));
            if end == CLIENT {
                let pair = std::mem::take(&mut self.links[link].client);
                let pair = self.renew(random, pair, over, |world, _| flush(world), |world| world.client(link));
                self.links[link].client = pair.into();
            } else {
                let pair = std::mem::take(&mut self.links[link].server);
                let pair = self.renew(random, pair, over, |world, _| flush(world), |world| world.server(link));
                self.links[link].server = pair.into();
                // When `until` returns, it has found the completion queues empty. So they contain no message to this
                // pair any more.
                self.until("an empty queue", |_| true);
                self.lives[life].gone = true;
            }
        }
        let Link { client: AnyQueuePair::Init(client), server: AnyQueuePair::Init(server), .. } = std::mem::replace(
            &mut self.links[link],
            Link { client: Default::default(), server: Default::default(), life },
        ) else {
            panic!("not both in Init")
        };
        self.words.store(16 * link, 0).unwrap();
        self.links[link] = self.connect(client, server);
    }

    /// Destroys the shared queue. This is refused while the queue has pairs; afterwards it returns the buffers that
    /// have not completed.
    fn destroy(&mut self, random: &mut Random) {
        let Some(shared) = self.shared.take() else { return };
        if self.links.iter().any(|link| !matches!(link.server, AnyQueuePair::Vacant)) {
            let error = shared.destroy().unwrap_err();
            assert_eq!(error.source.errno(), libc::EBUSY);
            self.shared = Some(error.shared);
            if !random.one_in(8) {
                return;
            }
        } else {
            self.shared = Some(shared);
        }
        for link in 0..LINKS {
            let life = self.links[link].life;
            self.lives[life].closing = [true; 2];
            // The completion queues are not polled before the pairs are dropped, so messages can still be in them.
            drop((std::mem::take(&mut self.links[link].server), std::mem::take(&mut self.links[link].client)));
        }
        let back = self.shared.take().unwrap().destroy().unwrap();
        assert_eq!(back.len(), self.receives.len(), "receives that were in flight are lost, or there twice");
        for buffer in back {
            let address = buffer.as_ptr().addr();
            assert!(self.receives.values().any(|&posted| posted == address), "it was not in flight");
            self.receivers.give(buffer);
        }
        self.receives.clear();
        self.armed.clear();
        // Perhaps some completions were not polled yet. The poller must know them, although their pairs are gone.
        self.until("what was destroyed", |world| world.lives.iter().all(|life| life.over(CLIENT) && life.over(SERVER)));
        for life in &mut self.lives {
            life.gone = true;
        }
        assert_eq!(self.queues.each_ref().map(|(_, poller)| poller.unknown_completions()), [0; 2]);
        assert!(self.receivers.away.is_empty() && self.senders.away.is_empty(), "something did not come back");
    }

    /// Makes a shared queue and all connections again, after `destroy`.
    fn begin(&mut self) {
        let shared = self.domain.shared_receive_queue(&SHARED).unwrap();
        self.shared = Some(shared);
        for link in 0..LINKS {
            let (client, server) = (self.client(link), self.server(link));
            let pairs = (client.into_init(&self.port).unwrap(), server.into_init(&self.port).unwrap());
            self.links[link] = self.connect(pairs.0, pairs.1);
        }
    }

    fn take_events(&mut self) {
        while let Ok(Some(event)) = self.events.poll() {
            let AsyncEvent::OfSharedReceiveQueue(id, SharedReceiveQueueEvent::LimitReached) = event else { continue };
            assert_eq!(Some(id), self.shared.as_ref().map(SharedReceiveQueue::id));
            let due = self.armed.iter().position(|&(limit, lowest)| lowest < limit);
            let due =
                due.unwrap_or_else(|| panic!("an event with {} receives, of {:?}", self.receives.len(), self.armed));
            self.armed.drain(..=due);
        }
    }

    fn arm(&mut self, random: &mut Random) {
        self.take_events();
        let Some(shared) = &self.shared else { return };
        let (most, limit) = (shared.limits().receives, random.below(10) as u32);
        let result = shared.arm_limit(limit);
        assert_eq!(result.is_ok(), limit <= most, "{result:?}");
        if limit > most {
            return;
        }
        // A stepped device reports an event at once, so `take_events` has already taken the events of earlier limits.
        // The new limit replaces the earlier limits, so they cause no more events.
        if self.device.stepped.is_some() {
            self.armed.clear();
        }
        if limit > 0 {
            self.armed.push((limit.into(), i64::MAX));
            self.note_low();
        }
        let went_off = shared_limit(self.shared.as_ref().unwrap()) == 0;
        if limit > 0 && (went_off || self.device.stepped.is_some() && self.receives.len() < limit as usize) {
            let before = self.armed.len();
            self.until("the event of the limit", |world| world.armed.len() < before);
        }
    }

    fn resize(&mut self, random: &mut Random) {
        let Some(shared) = &mut self.shared else { return };
        let (before, asked) = (shared.limits(), 1 + random.below(10) as u32);
        let fits = asked as usize >= self.receives.len() && asked <= SHARED.grows_to;
        let result = shared.resize(asked);
        let limited = self.armed.iter().any(|&(limit, _)| limit > asked.into());
        assert!(result.is_ok() == fits || result.is_err() && limited, "{result:?} to {asked}");
        let receives = if result.is_ok() { asked } else { before.receives };
        assert_eq!(shared.limits(), SharedLimits { receives, ..before });
    }

    /// Waits until all messages have arrived on the connections where nothing went wrong.
    fn settle(&mut self, random: &mut Random) {
        let deadline = std::time::Instant::now() + support::PATIENCE;
        loop {
            let empty = self.poll(usize::MAX);
            let alive =
                |link: &&Link| !self.lives[link.life].may_fail() && !matches!(link.client, AnyQueuePair::Vacant);
            let at_rest = |life: &Life| life.over(CLIENT) && life.over(SERVER) && life.received == life.log.len();
            if empty && self.links.iter().filter(alive).all(|link| at_rest(&self.lives[link.life])) {
                return;
            }
            if self.receives.is_empty() {
                self.post_receive(random);
            }
            self.device.run();
            assert!(std::time::Instant::now() < deadline, "it does not come to rest: {:?}", self.lives);
        }
    }

    /// Executes a step.
    fn act(&mut self, step: &Step<Call>) {
        let (random, link) = (&mut step.random(), step.place);
        if self.shared.is_none() {
            return self.begin();
        }
        match step.call {
            Call::Poll => drop(self.poll(1 + random.below(6))),
            Call::Step => self.device.step(random),
            Call::Receive => self.post_receive(random),
            Call::Message => self.post(random, link, What::Message),
            Call::Write => self.post(random, link, What::Write),
            Call::Answer => self.post(random, link, What::Answer),
            Call::Lose => self.device.lose(random),
            Call::Settle => self.settle(random),
            Call::TooLong => self.post(random, link, What::TooLong),
            Call::Arm => self.arm(random),
            Call::Resize => self.resize(random),
            Call::Destroy => self.destroy(random),
            Call::Revive => self.revive(random, link),
        }
    }

    /// Executes one of the calls that make sense on a failed device.
    fn act_on_a_failed_device(&mut self, random: &mut Random) {
        let link = random.below(LINKS);
        match random.below(4) {
            0 => self.post_receive(random),
            1 => {
                let what = [What::Message, What::Write, What::Answer][random.below(3)];
                self.post(random, link, what);
            }
            2 => drop(self.poll(1 + random.below(6))),
            _ => self.device.step(random),
        }
    }
}

fn shared_limit(shared: &SharedReceiveQueue<Test>) -> u32 {
    shared.query().unwrap().limit
}

impl Stage<Test> for World {
    fn device(&self) -> &Device {
        &self.device
    }

    fn port(&self) -> &Port {
        &self.port
    }

    fn poll(&mut self, most: usize) -> bool {
        self.take_events();
        let mut empty = true;
        for queue in 0..2 {
            for taken in 0..=most {
                if taken == most {
                    empty = false;
                    break;
                }
                let Some(completion) = self.queues[queue].1.poll().unwrap() else { break };
                self.complete(queue, completion);
            }
        }
        empty
    }
}

#[test]
fn each_shared_receive_comes_back_once_with_its_message() {
    // In this test messages wait for a shared receive, and pairs are reset.
    if lacks_need(Need::Waiting) {
        return;
    }
    let effort = Effort { programs: [400, 10], most_steps: [1500, 500] };
    for_programs("each_shared_receive_comes_back_once_with_its_message", &effort, LINKS, &CALLS, |program| {
        let mut world = World::new();
        program.steps().for_each(|step| world.act(step));
        let mut random = program.random_after();
        if random.one_in(3) {
            world.device.fail();
        }
        if world.device.fatal.get() {
            for _ in 0..random.below(100) {
                world.act_on_a_failed_device(&mut random);
            }
        } else {
            world.settle(&mut random);
        }
        while world.shared.is_some() {
            world.destroy(&mut random);
        }
    });
}
