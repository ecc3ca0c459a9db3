//! Several reliable connections, each with receives of its own; and objects that are dropped in any order.

use crate::{Device, Effort, Expected, Random, Stage, connect, for_programs, set_up, two_pairs};
use interlock::request::{Operation, PostedMemory};
use interlock::shared::SharedLimits;
use interlock::state::DeviceState;
use interlock::{
    AnyQueuePair, Buffer, Completion, CompletionQueue, Errored, Init, Limits, MemoryRegion, Poller, Port, PostError,
    ProtectionDomain, QueuePair, RemoteAll, RemoteReadWrite, RemoteRegion, Status, Work, WorkId, WorkRequest,
};
use std::any::Any;
use std::collections::HashMap;
use std::time::{Duration, Instant};
use support::steps::Step;
use support::{Need, PATIENCE, Queues, lacks_need};

interlock::domain! {
    struct Test;
    struct Dropped;
}

/// Short queues, so that they are often full.
const LIMITS: Limits =
    Limits { sends: 4, receives: 3, inline_bytes: 0, elements: 1, posting: interlock::queue::Posting::List };
const LINKS: usize = 3;
/// More buffers than can be in flight.
const BUFFERS: usize = 2 * LINKS * LIMITS.completions() as usize + 4;
const BUFFER_BYTES: usize = 64;

#[derive(Clone, Copy, PartialEq, Debug)]
enum What {
    Receive,
    Message,
    /// A write of this number to the peer's first word. The numbers grow.
    Write(u64),
    /// A read of that word, which held at least this number when the read was posted.
    Read(u64),
    /// An atomic that adds one to the peer's second word.
    Add,
    /// A write to a region that was deregistered.
    Bad,
}

/// A request in flight.
#[derive(Debug)]
struct Posted {
    life: usize,
    number: u64,
    address: usize,
    what: What,
}

/// The state that the model has of a pair from one connect to the next, here called a life.
#[derive(Default, Debug)]
struct Life {
    peer: usize,
    /// How many were posted, how many completed, and whether one of them has failed; each of these for sends and for
    /// receives.
    posted: [u64; 2],
    out: [u64; 2],
    failed: [bool; 2],
    /// The messages that were sent, each as immediate and length. The first eight bytes of a message are its index in
    /// this list.
    messages: Vec<(Option<u32>, usize)>,
    received: usize,
    /// The last number that was written, and the last one that certainly arrived.
    written: (u64, u64),
    added: Option<u64>,
    /// Whether the last send is unsignalled, so that only the next one shows whether it succeeded.
    quiet: bool,
    /// Reasons why requests may fail: the pair was taken down, a bad request of the peer broke it, a bad request of its
    /// own broke it, or the peer does not answer.
    closing: bool,
    hit: bool,
    bad: bool,
    unanswered: bool,
}

impl Life {
    fn in_flight(&self, queue: usize) -> u64 {
        self.posted[queue] - self.out[queue]
    }

    fn may_fail(&self) -> bool {
        self.closing || self.hit || self.bad || self.unanswered
    }

    fn may_end_with(&self, status: Status, what: What) -> bool {
        match status {
            Status::Flushed => self.may_fail(),
            Status::Destroyed => self.closing,
            Status::RemoteAccess => what == What::Bad,
            Status::RetryExceeded => self.unanswered && what != What::Receive,
            _ => false,
        }
    }
}

struct End {
    pair: AnyQueuePair<Test>,
    life: usize,
}

/// The call that a step of a program makes. The `place` of a step chooses one of the ends.
#[derive(Clone, Copy, Debug)]
enum Call {
    Poll,
    Step,
    Receive,
    Message,
    Write,
    Read,
    Add,
    Flawed,
    Lose,
    Settle,
    Pause,
    Bad,
    Revive,
}

/// Each call, with its relative frequency. When a failing program is reduced, later calls are replaced by earlier ones.
const CALLS: [(u32, Call); 13] = [
    (90, Call::Poll),
    (62, Call::Step),
    (60, Call::Receive),
    (60, Call::Message),
    (30, Call::Write),
    (30, Call::Read),
    (20, Call::Add),
    (10, Call::Flawed),
    (8, Call::Lose),
    (10, Call::Settle),
    (10, Call::Pause),
    (4, Call::Bad),
    (6, Call::Revive),
];

struct World {
    device: Device,
    domain: ProtectionDomain<Test>,
    port: Port,
    queue: CompletionQueue<Test>,
    poller: Poller<Test>,
    free: Vec<Buffer<Test>>,
    /// Two words for each end. The peer writes the first one and adds to the second one.
    words: MemoryRegion<Test, RemoteAll, Vec<u64>>,
    nothing: RemoteRegion<RemoteAll>,
    links: Vec<[End; 2]>,
    lives: Vec<Life>,
    in_flight: HashMap<WorkId, Posted>,
    /// Whether every send is signalled.
    loud: bool,
    /// Whether sends are fenced, and whether send queues are drained. Not every device does these right.
    fences: bool,
    drains: bool,
}

impl World {
    fn new(fences: bool, drains: bool) -> Self {
        let (device, domain, port) = set_up(Test);
        let (queue, poller) = domain.queue(2 * LINKS as u32 * LIMITS.completions()).unwrap();
        let free = domain.buffers(BUFFERS, BUFFER_BYTES).unwrap();
        let words = domain.register::<RemoteAll, _>(vec![0; 4 * LINKS]).unwrap();
        let gone = domain.register::<RemoteAll, _>(vec![0_u64; 8]).unwrap();
        let nothing = gone.remote();
        gone.deregister().unwrap();
        let (links, lives, in_flight) = (Vec::new(), Vec::new(), HashMap::new());
        let mut world = Self {
            device,
            domain,
            port,
            queue,
            poller,
            free,
            words,
            nothing,
            links,
            lives,
            in_flight,
            loud: false,
            fences,
            drains,
        };
        for _ in 0..LINKS {
            let ends = two_pairs(&world.domain, &world.queue, &LIMITS, &world.port);
            let link = world.connect(ends);
            world.links.push(link);
        }
        world
    }

    /// Connects two pairs, and begins a new life of each.
    fn connect(&mut self, pairs: [QueuePair<Test, Init>; 2]) -> [End; 2] {
        let life = self.lives.len();
        self.lives.push(Life { peer: life + 1, ..Life::default() });
        self.lives.push(Life { peer: life, ..Life::default() });
        let [mut left, right] = pairs;
        // A receive can be posted before the pair is connected.
        let buffer = self.free.pop().unwrap();
        let address = buffer.as_ptr().addr();
        let id = left.post_receive(buffer).unwrap();
        self.note(life, id, address, What::Receive);
        let (left, right) = connect(&self.domain, left, right);
        [End { pair: left.into(), life }, End { pair: right.into(), life: life + 1 }]
    }

    fn note(&mut self, life: usize, id: WorkId, address: usize, what: What) {
        let queue = usize::from(what == What::Receive);
        let posted = &mut self.lives[life].posted[queue];
        let known = self.in_flight.insert(id, Posted { life, number: *posted, address, what });
        assert!(known.is_none(), "{id:?} is in flight twice");
        *posted += 1;
    }

    /// A word of an end, as its peer addresses it.
    fn target(&self, link: usize, end: usize, word: u64) -> RemoteRegion<RemoteAll> {
        let at = 8 * (4 * link as u64 + 2 * end as u64 + word);
        self.words.remote().slice(at..at + 8).unwrap()
    }

    /// Posts something, and checks the answer against the model.
    fn post(&mut self, random: &mut Random, link: usize, end: usize, what: What) {
        let [first, second] = [self.target(link, 1 - end, 0), self.target(link, 1 - end, 1)];
        let nothing = self.nothing.slice(0..8).unwrap();
        let End { pair, life } = &mut self.links[link][end];
        let life = *life;
        let Some(pair) = pair.ready() else { return };
        let Some(mut buffer) = self.free.pop() else { panic!("buffers were lost") };
        let (address, model) = (buffer.as_ptr().addr(), &self.lives[life]);
        let queue = usize::from(what == What::Receive);
        let depth = u64::from([LIMITS.sends, LIMITS.receives][queue]);
        let (broken, full) = (pair.is_broken(), model.in_flight(queue) == depth);
        assert!(!broken || model.may_fail(), "broken for no reason");
        assert!(broken || !model.failed.contains(&true), "a failure was forgotten");
        let immediate = random.one_in(3).then(|| random.next() as u32);
        let len = 8 + random.below(BUFFER_BYTES - 8);
        let (unsignalled, fenced) = (!self.loud && random.one_in(2), self.fences && random.one_in(4));
        let quiet = unsignalled && model.in_flight(0) + 1 < depth;
        let number = if let What::Write(number) = what { number } else { model.messages.len() as u64 };
        if what != What::Receive {
            buffer.set_len(len).unwrap();
            buffer.fill(len as u8);
            buffer[..8].copy_from_slice(&number.to_ne_bytes());
        }
        if matches!(what, What::Write(_) | What::Bad | What::Read(_)) {
            buffer.set_len(8).unwrap();
        }
        macro_rules! posted {
            ($request:expr) => {{
                let mut request = $request;
                if unsignalled {
                    request = request.unsignalled();
                }
                if fenced {
                    pair.post(request.fenced()).map_err(|error| error.map(WorkRequest::into_memory))
                } else {
                    pair.post(request).map_err(|error| error.map(WorkRequest::into_memory))
                }
            }};
        }
        let result = match what {
            What::Receive => pair.post_receive(buffer),
            What::Message => match immediate {
                Some(immediate) => posted!(WorkRequest::send(buffer).with_immediate(immediate)),
                None => posted!(WorkRequest::send(buffer)),
            },
            What::Write(_) => posted!(WorkRequest::write(buffer, &first)),
            What::Read(_) => posted!(WorkRequest::read(buffer, &first)),
            What::Add => posted!(WorkRequest::fetch_and_add(buffer, &second, 1)),
            What::Bad => posted!(WorkRequest::write(buffer, &nothing)),
        };
        let back = match (Expected { broken, full, refused: false }).check(&what, result) {
            Ok(id) => {
                let (counted, queue_of) = (pair.sends_in_flight(), pair.receives_in_flight());
                self.note(life, id, address, what);
                let model = &mut self.lives[life];
                assert_eq!([counted, queue_of].map(u64::from), [model.in_flight(0), model.in_flight(1)]);
                if what != What::Receive {
                    model.quiet = quiet;
                }
                match what {
                    What::Message => model.messages.push((immediate, len)),
                    What::Write(number) => model.written.0 = number,
                    What::Bad => {
                        model.bad = true;
                        let peer = model.peer;
                        self.lives[peer].hit = true;
                        self.lives[peer].unanswered = true;
                        self.lives[life].unanswered = true;
                    }
                    _ => (),
                }
                return;
            }
            Err(back) => back,
        };
        assert_eq!(back.as_ptr().addr(), address, "another buffer came back");
        self.free.push(back);
    }

    /// Posts a request that the library refuses whether the pair is full, broken or neither.
    fn post_flawed(&mut self, link: usize, end: usize) {
        let target = self.target(link, 1 - end, 0);
        let Some(pair) = self.links[link][end].pair.ready() else { return };
        let mut buffer = self.free.pop().unwrap();
        let address = buffer.as_ptr().addr();
        buffer.set_len(9).unwrap();
        let Err(PostError::Flawed { request, .. }) = pair.post_write(buffer, &target) else { panic!("9 bytes in 8") };
        assert_eq!(request.as_ptr().addr(), address);
        self.free.push(request);
    }

    /// Checks a completion against the model.
    fn complete(&mut self, completion: Completion<Test>) {
        let id = completion.id();
        let Some(posted) = self.in_flight.remove(&id) else { panic!("{id:?} came, which is not in flight") };
        let Posted { life, number, address, what } = posted;
        let queue = usize::from(what == What::Receive);
        assert_eq!(self.lives[life].out[queue], number, "{what:?} out of order");
        self.lives[life].out[queue] += 1;
        let buffer = match completion.check() {
            Ok(success) => {
                assert!(!self.lives[life].failed[queue], "{what:?} succeeds after a failure");
                let operation = match what {
                    What::Receive => Operation::Receive,
                    What::Message => Operation::Send,
                    What::Write(_) => Operation::Write,
                    What::Read(_) => Operation::Read,
                    What::Add => Operation::FetchAndAdd,
                    What::Bad => panic!("a bad request succeeds"),
                };
                assert_eq!(success.operation(), operation);
                self.succeed(life, what, success.into_work())
            }
            Err(failure) => {
                let (status, model) = (failure.status, &mut self.lives[life]);
                assert!(model.may_end_with(status, what), "{what:?} ends with {status}");
                let first = !std::mem::replace(&mut model.failed[queue], true);
                assert!(first || matches!(status, Status::Flushed | Status::Destroyed), "{status} is not the first");
                failure.into_buffer().unwrap()
            }
        };
        assert_eq!(buffer.as_ptr().addr(), address, "{what:?} gives another buffer back");
        self.free.push(buffer);
    }

    fn succeed(&mut self, life: usize, what: What, work: Work<Test>) -> Buffer<Test> {
        let peer = self.lives[life].peer;
        match (what, work) {
            (What::Receive, Work::Received(received)) => {
                let place = self.lives[life].received;
                let (immediate, len) = self.lives[peer].messages[place];
                assert_eq!(
                    received.buffer[..8],
                    (place as u64).to_ne_bytes(),
                    "a message out of order: {:?}",
                    self.lives[life]
                );
                assert_eq!((received.immediate, received.buffer.len()), (immediate, len));
                assert!(received.buffer[8..].iter().all(|&byte| byte == len as u8));
                self.lives[life].received += 1;
                received.buffer
            }
            (What::Message, Work::Sent(PostedMemory::Unique(buffer))) => buffer,
            (What::Write(number), Work::Written(PostedMemory::Unique(buffer))) => {
                self.lives[life].written.1 = number;
                buffer
            }
            (What::Read(least), Work::Read(buffer)) => {
                let value = u64::from_ne_bytes(buffer[..8].try_into().unwrap());
                let most = self.lives[life].written.0;
                assert!((least..=most).contains(&value), "{value} is not in {least}..={most}");
                buffer
            }
            (What::Add, Work::Atomic { original, buffer }) => {
                let last = self.lives[life].added.replace(original);
                assert!(last.is_none_or(|last| original == last + 1), "{original} after {last:?}");
                buffer
            }
            (what, work) => panic!("{what:?} became {work:?}"),
        }
    }

    /// Takes an end down in one of several ways, and returns a pair in Init.
    fn take_down_end(&mut self, random: &mut Random, link: usize, end: usize) -> QueuePair<Test, Init> {
        let life = self.links[link][end].life;
        let peer = self.lives[life].peer;
        (self.lives[life].closing, self.lives[peer].unanswered) = (true, true);
        let over = |world: &Self| (0..2).all(|queue| world.lives[life].in_flight(queue) == 0);
        let flush = |world: &mut Self, errored: &QueuePair<Test, Errored>| {
            // `quiet` means that the last send is unsignalled. If it has succeeded, it makes no completion, and no
            // later send retires it. So `over` would never become true.
            if !world.lives[life].quiet {
                world.until("the flush", |world| over(world));
                assert_eq!((errored.sends_in_flight(), errored.receives_in_flight()), (0, 0));
            }
        };
        let pair = std::mem::take(&mut self.links[link][end].pair);
        self.renew(random, pair, over, flush, |world| world.domain.reliable(&world.queue, &LIMITS).unwrap())
    }

    /// Takes both ends of a link down and connects them again.
    fn revive(&mut self, random: &mut Random, link: usize) {
        let first = random.below(2);
        let one = self.take_down_end(random, link, first);
        // The other end is still up and continues to post. Its requests can fail.
        for _ in 0..random.below(3) {
            self.post(random, link, 1 - first, What::Message);
            self.device.step(random);
            self.poll(random.below(3));
        }
        let other = self.take_down_end(random, link, 1 - first);
        let life = self.lives.len();
        for end in 0..2 {
            // The words are set to 0 at the beginning of each life.
            self.words.store(8 * (4 * link + 2 * end), 0).unwrap();
            self.words.store(8 * (4 * link + 2 * end) + 8, 0).unwrap();
        }
        self.links[link] = self.connect([one, other]);
        assert_eq!(self.links[link].each_ref().map(|end| end.life), [life, life + 1]);
    }

    /// Drains a send queue and resumes it, if no send is in flight.
    fn pause(&mut self, link: usize, end: usize) {
        let life = self.links[link][end].life;
        if !self.drains || self.lives[life].in_flight(0) != 0 {
            return;
        }
        let may_fail = self.lives[life].may_fail();
        let pair = match std::mem::take(&mut self.links[link][end].pair) {
            AnyQueuePair::ReadyToSend(pair) => pair,
            other => return self.links[link][end].pair = other,
        };
        self.links[link][end].pair = match pair.into_sqd() {
            Ok(pair) => {
                self.until("the drained queue", |_| {
                    let drained = pair.drained(Duration::ZERO).unwrap();
                    assert!(!drained || pair.query_state().unwrap() == DeviceState::SendQueueDrain);
                    drained || pair.query_state().unwrap() == DeviceState::Error
                });
                match pair.resume() {
                    Ok(pair) => pair.into(),
                    // The device has moved the pair to Error, which the type does not show.
                    Err(error) => {
                        assert!(may_fail, "{error}");
                        error.queue_pair.into()
                    }
                }
            }
            Err(error) => {
                assert!(may_fail, "{error}");
                error.queue_pair.into()
            }
        };
    }

    /// Waits until all sends of a link are complete and have arrived, unless something went wrong there.
    fn settle(&mut self, random: &mut Random, link: usize) {
        let ends = [0, 1].map(|end| self.links[link][end].life);
        if ends.iter().any(|&life| self.lives[life].may_fail()) {
            return;
        }
        let deadline = Instant::now() + PATIENCE;
        self.loud = true;
        for (end, life) in ends.into_iter().enumerate() {
            if self.lives[life].quiet {
                self.post(random, link, end, What::Read(0));
            }
        }
        while ends.iter().any(|&life| self.lives[life].in_flight(0) > 0) || !self.arrived(ends) {
            for (end, life) in ends.into_iter().enumerate() {
                let model = &self.lives[life];
                let expected = self.lives[model.peer].messages.len() - model.received;
                if (model.in_flight(1) as usize) < expected {
                    self.post(random, link, end, What::Receive);
                }
            }
            self.device.run();
            self.poll(usize::MAX);
            if Instant::now() >= deadline {
                let left: Vec<_> = self.in_flight.values().filter(|posted| ends.contains(&posted.life)).collect();
                panic!("link {link} does not come to rest: {:?} and {left:?}", ends.map(|life| &self.lives[life]));
            }
        }
        self.loud = false;
        for (end, life) in ends.into_iter().enumerate() {
            let pair = self.links[link][end].pair.ready().unwrap();
            assert_eq!((pair.query_state().unwrap(), pair.first_failure()), (DeviceState::ReadyToSend, None));
            let at = 8 * (4 * link + 2 * (1 - end));
            assert_eq!(self.words.load(at).unwrap(), self.lives[life].written.1, "what was written last");
            let added = self.lives[life].added.map_or(0, |last| last + 1);
            assert_eq!(self.words.load(at + 8).unwrap(), added, "what was added");
        }
    }

    fn arrived(&self, ends: [usize; 2]) -> bool {
        ends.iter().all(|&life| self.lives[life].received == self.lives[self.lives[life].peer].messages.len())
    }

    /// Executes a step.
    fn act(&mut self, step: &Step<Call>) {
        let (random, link, end) = (&mut step.random(), step.place / 2, step.place % 2);
        let life = self.links[link][end].life;
        let (last, least) = self.lives[life].written;
        match step.call {
            Call::Poll => drop(self.poll(1 + random.below(6))),
            Call::Step => self.device.step(random),
            Call::Receive => self.post(random, link, end, What::Receive),
            Call::Message => self.post(random, link, end, What::Message),
            Call::Write => self.post(random, link, end, What::Write(last + 1)),
            Call::Read => self.post(random, link, end, What::Read(least)),
            Call::Add => self.post(random, link, end, What::Add),
            Call::Flawed => self.post_flawed(link, end),
            Call::Lose => self.device.lose(random),
            Call::Settle => self.settle(random, link),
            Call::Pause => self.pause(link, end),
            Call::Bad => self.post(random, link, end, What::Bad),
            Call::Revive => self.revive(random, link),
        }
    }
}

impl Stage<Test> for World {
    fn device(&self) -> &Device {
        &self.device
    }

    fn port(&self) -> &Port {
        &self.port
    }

    fn poll(&mut self, most: usize) -> bool {
        for _ in 0..most {
            let Some(completion) = self.poller.poll().unwrap() else { return true };
            self.complete(completion);
        }
        false
    }
}

#[test]
fn random_calls_end_as_the_model_says() {
    // This test connects pairs again and again, by the record of the peer and without rdma_cm.
    if lacks_need(Need::Records) {
        return;
    }
    let (fences, drains) = (!support::deviates("C062"), !support::deviates("C015"));
    let effort = Effort { programs: [150, 12], most_steps: [4000, 1200] };
    for_programs("random_calls_end_as_the_model_says", &effort, 2 * LINKS, &CALLS, |program| {
        let mut world = World::new(fences, drains);
        program.steps().for_each(|step| world.act(step));
        let random = &mut program.random_after();
        for link in 0..LINKS {
            world.settle(random, link);
        }
        // Requests in flight come back when their pair ends.
        for link in 0..LINKS {
            for end in 0..2 {
                drop(world.take_down_end(random, link, end));
            }
        }
        assert!(world.in_flight.is_empty());
        assert_eq!((world.free.len(), world.poller.unknown_completions()), (BUFFERS, 0));
    });
}

/// Drops an object.
#[derive(Clone, Copy, Debug)]
struct Dropping;

/// Objects of each kind, some of them in use, are dropped in any order. Afterwards nothing is left, so the name of the
/// domain is free again.
#[test]
fn drops_in_any_order_leave_nothing() {
    const OBJECTS: usize = 14;
    let effort = Effort { programs: [200, 30], most_steps: [OBJECTS, OBJECTS] };
    // A step drops one of the objects that are left. The objects that no step drops are dropped at the end.
    for_programs("drops_in_any_order_leave_nothing", &effort, OBJECTS, &[(1, Dropping)], |program| {
        let mut random = program.random_after();
        let (device, domain, port) = set_up(Dropped);
        let channel = domain.completion_channel().unwrap();
        let (queue, poller) = channel.queue(64).unwrap();
        let mut shared = domain.shared_receive_queue(&SharedLimits { receives: 4, grows_to: 0 }).unwrap();
        shared.post_receive(domain.buffer(8).unwrap()).unwrap();
        let server = shared.reliable(&queue, &LIMITS).unwrap().into_init(&port).unwrap();
        let client = domain.reliable(&queue, &LIMITS).unwrap().into_init(&port).unwrap();
        let (server, mut client) = connect(&domain, server, client);
        for _ in 0..random.below(4) {
            client.post_send(domain.buffer(8).unwrap()).unwrap();
        }
        client.post_receive(domain.buffer(8).unwrap()).unwrap();
        let alone = domain.reliable(&queue, &LIMITS).unwrap();
        // An iWARP device has neither datagrams nor atomics.
        let [sender, recipient, region]: [Box<dyn Any>; 3] = if device.context.is_iwarp() {
            let regions = [(); 3].map(|()| domain.register::<RemoteReadWrite, _>(vec![0_u64; 8]).unwrap());
            regions.map(|region| Box::new(region) as _)
        } else {
            let sender = domain.datagram(&queue, &LIMITS).unwrap().into_init(&port).unwrap().open().unwrap();
            let recipient = domain.recipient(&port, &sender.endpoint(), interlock::number::Qkey::USUAL).unwrap();
            let region = domain.register::<RemoteAll, _>(vec![0_u64; 8]).unwrap();
            [Box::new(sender), Box::new(recipient), Box::new(region)]
        };
        let whole = domain.register::<interlock::LocalWrite, _>(vec![0_u8; 64]).unwrap().split();
        let spare = domain.buffers(2, 8).unwrap();
        let readiness = poller.readiness().unwrap();
        device.step(&mut random);
        let mut objects: Vec<Box<dyn Any>> = vec![
            Box::new(domain),
            Box::new(channel),
            Box::new(queue),
            Box::new(poller),
            Box::new(shared),
            Box::new(server),
            Box::new(client),
            Box::new(alone),
            sender,
            recipient,
            region,
            Box::new(whole),
            Box::new(spare),
            Box::new(readiness),
        ];
        let context = device.context.clone();
        assert_eq!(objects.len(), OBJECTS);
        let mut order: Vec<usize> = program.steps().map(|step| step.place).collect();
        order.resize(OBJECTS, 0);
        for place in order {
            // The last object can be `readiness`, which belongs to no domain. Then the name of the domain is free
            // already.
            assert!(objects.len() == 1 || context.named_domain(Dropped).is_err(), "freed too early");
            objects.swap_remove(place % objects.len());
            device.step(&mut random);
        }
        context.named_domain(Dropped).expect("nothing is left");
    });
}
