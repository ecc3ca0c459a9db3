//! Messages from lists of buffers, inline bytes and shared buffers, posted one by one or in batches, which may be
//! refused halfway. Reads and atomics are posted between them, and the completion queue is resized.

use crate::{Device, Effort, Random, Stage, Stock, compose, connect, for_programs, read, set_up, two_pairs};
use interlock::error::ResizeError;
use interlock::memory::BufferList;
use interlock::request::PostedMemory;
use interlock::soft::{Fault, Verb};
use interlock::{
    Buffer, Completion, CompletionQueue, Inline, Limits, MemoryRegion, Poller, Port, PostError, ProtectionDomain,
    QueuePair, RemoteAll, RemoteReadWrite, SharedBuffer, Work, WorkId, WorkRequest,
};
use std::collections::{HashMap, VecDeque};
use support::Queues;
use support::steps::Step;

interlock::domain! { struct Test; }

/// The send queue takes more than a batch hands over at once.
const LIMITS: Limits =
    Limits { sends: 40, receives: 6, inline_bytes: 32, elements: 3, posting: interlock::queue::Posting::List };
const LINKS: usize = 2;
const ROOM: u32 = 2 * LINKS as u32 * LIMITS.completions();
const BUFFER_BYTES: usize = 48;
const BUFFERS: usize = LINKS * 3 * (LIMITS.sends + LIMITS.receives) as usize + 3;
/// The words that are read.
const SOURCE: [u64; 8] = [1, 2, 3, 5, 7, 11, 13, 17];

#[derive(Clone, Copy, PartialEq, Debug)]
enum What {
    Receive,
    Message,
    Shared,
    Inline,
    Read,
    Add,
}

#[derive(Debug)]
struct Posted {
    link: usize,
    what: What,
    /// The addresses of its buffers.
    addresses: Vec<usize>,
}

struct Link {
    from: QueuePair<Test>,
    to: QueuePair<Test>,
    /// The messages that were sent, each as number, immediate and length. They arrive in this order.
    log: Vec<(u64, Option<u32>, usize)>,
    received: usize,
    /// The sends and the receives in flight, the oldest first.
    order: [VecDeque<WorkId>; 2],
}

/// The call that a step of a program makes. The `place` of a step chooses a link.
#[derive(Clone, Copy, Debug)]
enum Call {
    Poll,
    Step,
    Receive,
    Message,
    Inline,
    Read,
    Add,
    Broadcast,
    Batch,
    Lose,
    Resize,
    Settle,
}

/// Each call, with its relative frequency. When a failing program is reduced, later calls are replaced by earlier ones.
const CALLS: [(u32, Call); 12] = [
    (34, Call::Poll),
    (38, Call::Step),
    (40, Call::Receive),
    (30, Call::Message),
    (10, Call::Inline),
    (10, Call::Read),
    (10, Call::Add),
    (10, Call::Broadcast),
    (6, Call::Batch),
    (5, Call::Lose),
    (5, Call::Resize),
    (2, Call::Settle),
];

struct World {
    device: Device,
    _domain: ProtectionDomain<Test>,
    port: Port,
    queue: CompletionQueue<Test>,
    poller: Poller<Test>,
    stock: Stock<Test>,
    links: Vec<Link>,
    in_flight: HashMap<WorkId, Posted>,
    /// The words to read.
    words: MemoryRegion<Test, RemoteReadWrite, Vec<u64>>,
    /// A word to which atomics add, where the device has them.
    sum: Option<MemoryRegion<Test, RemoteAll, Vec<u64>>>,
    /// On iWARP a message that finds no receive ends the connection, reads are overtaken by sends, and there are no
    /// atomics, immediates and resizes.
    is_iwarp: bool,
    /// How many atomics were posted, and the old values that they returned.
    adds: u64,
    brought: Vec<u64>,
    /// The shared buffers by address, with the number of requests that hold each of them.
    shares: HashMap<usize, (SharedBuffer<Test>, usize)>,
    last: u64,
}

impl World {
    fn new() -> Self {
        let (device, domain, port) = set_up(Test);
        let (queue, poller) = domain.queue(ROOM).unwrap();
        let stock = Stock::new(&domain, BUFFERS, BUFFER_BYTES);
        let is_iwarp = device.context.is_iwarp();
        let words = domain.register::<RemoteReadWrite, _>(SOURCE.to_vec()).unwrap();
        let sum = (!is_iwarp).then(|| domain.register::<RemoteAll, _>(vec![0]).unwrap());
        let link = || {
            let [from, to] = two_pairs(&domain, &queue, &LIMITS, &port);
            let (from, to) = connect(&domain, from, to);
            Link { from, to, log: Vec::new(), received: 0, order: Default::default() }
        };
        let links = (0..LINKS).map(|_| link()).collect();
        let (in_flight, shares, brought) = (HashMap::new(), HashMap::new(), Vec::new());
        let (_domain, adds, last) = (domain, 0, 0);
        Self {
            device,
            _domain,
            port,
            queue,
            poller,
            stock,
            links,
            in_flight,
            words,
            sum,
            is_iwarp,
            adds,
            brought,
            shares,
            last,
        }
    }

    /// The shortest message. Soft iWARP may break a pair to which more than a hundred messages of up to 32 bytes are
    /// posted: docs/providers.md.
    fn least(&self) -> usize {
        if self.is_iwarp { 33 } else { 8 }
    }

    /// How many more messages may be sent on a link.
    fn credits(&self, link: usize) -> usize {
        let Link { log, received, order, .. } = &self.links[link];
        if self.is_iwarp { order[1].len() - (log.len() - received) } else { usize::MAX }
    }

    fn note(&mut self, id: WorkId, link: usize, what: What, addresses: Vec<usize>) {
        self.links[link].order[usize::from(what == What::Receive)].push_back(id);
        let known = self.in_flight.insert(id, Posted { link, what, addresses });
        assert!(known.is_none(), "{id:?} is in flight twice");
    }

    /// One to three buffers, some of which may be empty, that together hold a message. Also returns the message's
    /// length.
    fn list(&mut self, random: &mut Random, number: u64) -> (BufferList<Test>, usize) {
        let lens: Vec<usize> = (0..1 + random.below(3)).map(|_| random.below(BUFFER_BYTES + 1)).collect();
        let mut whole = self.stock.take();
        let total = lens.iter().sum::<usize>().max(self.least());
        let mut bytes = vec![0; total];
        for (place, byte) in bytes.iter_mut().enumerate() {
            *byte = crate::byte_of(number, place);
        }
        let mut rest = &bytes[..];
        let mut buffers = Vec::new();
        for (at, len) in lens.iter().enumerate() {
            let len = if at + 1 == lens.len() { rest.len() } else { (*len).min(rest.len()) };
            let (part, after) = rest.split_at(len);
            whole.write(part).unwrap();
            let next = if at + 1 < lens.len() { Some(self.stock.take()) } else { None };
            let Some(next) = next else { break };
            buffers.push(std::mem::replace(&mut whole, next));
            rest = after;
        }
        buffers.push(whole);
        (BufferList::new(buffers), total)
    }

    fn receive(&mut self, random: &mut Random, link: usize) {
        let full = self.links[link].order[1].len() as u32 == LIMITS.receives;
        let expected = self.device.expect(random, Verb::PostRecv, false, full);
        let list = BufferList::new((0..3).map(|_| self.stock.take()).collect());
        let addresses = addresses(&list);
        match expected.check(&"a receive", self.links[link].to.post_receive(list)) {
            Ok(id) => self.note(id, link, What::Receive, addresses),
            Err(list) => list.into_buffers().into_iter().for_each(|buffer| self.stock.give(buffer)),
        }
    }

    fn post(&mut self, random: &mut Random, link: usize, what: What) {
        let full = self.links[link].order[0].len() as u32 == LIMITS.sends;
        let expected = self.device.expect(random, Verb::PostSend, false, full);
        let immediate = (random.one_in(3) && !self.is_iwarp).then(|| random.next() as u32);
        if matches!(what, What::Message | What::Inline) && self.credits(link) == 0 {
            return;
        }
        self.last += 1;
        let number = self.last;
        macro_rules! post {
            ($request:expr) => {{
                let request = $request;
                let request = if random.one_in(3) { request.unsignalled() } else { request };
                self.links[link].from.post(request)
            }};
        }
        macro_rules! send {
            ($memory:expr) => {
                match immediate {
                    Some(immediate) => post!(WorkRequest::send($memory).with_immediate(immediate)),
                    None => post!(WorkRequest::send($memory)),
                }
            };
        }
        let (id, addresses, len) = match what {
            What::Message => {
                let (list, len) = self.list(random, number);
                let addresses = addresses(&list);
                match expected.check(&what, send!(list)) {
                    Ok(id) => (id, addresses, len),
                    Err(request) => {
                        let list = request.into_memory().into_buffers();
                        return list.into_iter().for_each(|buffer| self.stock.give(buffer));
                    }
                }
            }
            What::Inline => {
                let mut bytes = [0; LIMITS.inline_bytes as usize];
                for (place, byte) in bytes.iter_mut().enumerate() {
                    *byte = crate::byte_of(number, place);
                }
                let posted = send!(Inline(&bytes[..])).map_err(|error| error.map(drop));
                // The program is allowed to overwrite the bytes as soon as they are posted.
                bytes.fill(0xee);
                match expected.check(&what, posted) {
                    Ok(id) => (id, Vec::new(), bytes.len()),
                    Err(()) => return,
                }
            }
            What::Read => {
                // On iWARP a read goes into one buffer.
                let [count, len] = if self.is_iwarp { [1, BUFFER_BYTES] } else { [2, 64] };
                let list: BufferList<Test> = (0..count).map(|_| self.stock.take()).collect();
                let addresses = addresses(&list);
                let source = self.words.remote().slice(0..len as u64).unwrap();
                match expected.check(&what, post!(WorkRequest::read_scattered(list, &source))) {
                    Ok(id) => (id, addresses, 0),
                    Err(request) => {
                        let list = request.into_memory().into_buffers();
                        return list.into_iter().for_each(|buffer| self.stock.give(buffer));
                    }
                }
            }
            _ => {
                let Some(sum) = &self.sum else { return };
                let word = sum.remote();
                let buffer = self.stock.take();
                let address = buffer.as_ptr().addr();
                match expected.check(&what, post!(WorkRequest::fetch_and_add(buffer, &word, 1))) {
                    Ok(id) => {
                        self.adds += 1;
                        (id, vec![address], 0)
                    }
                    Err(request) => return self.stock.give(request.into_memory()),
                }
            }
        };
        if matches!(what, What::Message | What::Inline) {
            self.links[link].log.push((number, immediate, len));
        }
        self.note(id, link, what, addresses);
    }

    /// Sends the same memory on every link, up to two times each.
    fn broadcast(&mut self, random: &mut Random) {
        let mut buffer = self.stock.take();
        self.last += 1;
        let (number, least) = (self.last, self.least());
        let len = least + random.below(BUFFER_BYTES + 1 - least);
        compose(&mut buffer, number, len);
        let address = buffer.as_ptr().addr();
        let share = buffer.share();
        let mut posted = 0;
        for link in 0..LINKS {
            for _ in 0..random.below(3).min(self.credits(link)) {
                let full = self.links[link].order[0].len() as u32 == LIMITS.sends;
                let expected = self.device.expect(random, Verb::PostSend, false, full);
                match expected.check(&What::Shared, self.links[link].from.post_send(share.clone())) {
                    Ok(id) => {
                        posted += 1;
                        self.links[link].log.push((number, None, len));
                        self.note(id, link, What::Shared, vec![address]);
                    }
                    Err(share) => drop(share),
                }
            }
        }
        self.shares.insert(address, (share, posted));
        self.unshare(address, 0);
    }

    /// Records that `back` requests gave their share back. The memory becomes unique again with the last share, and not
    /// before.
    fn unshare(&mut self, address: usize, back: usize) {
        let (share, left) = self.shares.remove(&address).expect("nothing is shared out there");
        match (share.into_unique(), left - back) {
            (Ok(buffer), 0) => self.stock.give(buffer),
            (Err(error), left) if left > 0 => drop(self.shares.insert(address, (error.share, left))),
            (result, left) => panic!("{result:?} with {left} in flight"),
        }
    }

    /// Posts many messages in one batch. The device may refuse it at the first doorbell or at a later one.
    fn batch(&mut self, random: &mut Random, link: usize) {
        let room = LIMITS.sends as usize - self.links[link].order[0].len();
        let count = (1 + random.below(LIMITS.sends as usize + 2)).min(self.credits(link));
        let after = random.below(3) as u32;
        let refused = random.one_in(3)
            && self.device.inject(Fault::VerbFails { verb: Verb::PostSend, after, count: 1, errno: libc::ENOMEM });
        let mut buffers = Vec::new();
        for _ in 0..count {
            let mut buffer = self.stock.take();
            self.last += 1;
            let len = self.least() + random.below(BUFFER_BYTES + 1 - self.least());
            compose(&mut buffer, self.last, len);
            buffers.push((buffer, self.last, len));
        }
        let sent: Vec<_> =
            buffers.iter().map(|(buffer, number, len)| (buffer.as_ptr().addr(), *number, *len)).collect();
        let mut back = Vec::new();
        let result = self.links[link].from.batch(|batch| {
            let mut ids = Vec::new();
            for (buffer, ..) in buffers {
                match batch.post(WorkRequest::send(buffer)) {
                    Ok(id) => ids.push(id),
                    Err(PostError::QueueFull(request)) => back.push(request.into_memory()),
                    Err(error) => back.push(error.into_request().expect("it comes back").into_memory()),
                }
            }
            ids
        });
        let (ids, posted) = match result {
            Ok(ids) => {
                assert_eq!(ids.len(), count.min(room), "{} came back, of {count} for {room}", back.len());
                let posted = ids.len();
                (ids, posted)
            }
            Err(error) => {
                assert!(refused && error.uncertain == 0, "{error}");
                assert_eq!(error.posted + error.refused.len(), error.result.len(), "{error}");
                let memory = error.refused.into_iter().zip(&sent[error.posted..]);
                for (memory, (address, ..)) in memory {
                    let buffer = memory.into_buffer().unwrap();
                    assert_eq!(buffer.as_ptr().addr(), *address, "not in the order of posting");
                    self.stock.give(buffer);
                }
                (error.result, error.posted)
            }
        };
        back.into_iter().for_each(|buffer| self.stock.give(buffer));
        for (id, (address, number, len)) in ids.into_iter().zip(sent).take(posted) {
            self.links[link].log.push((number, None, len));
            self.note(id, link, What::Message, vec![address]);
        }
        // Remove the injected refusal, if it has not happened.
        self.device.heal();
    }

    fn resize(&mut self, random: &mut Random) {
        if self.is_iwarp {
            return;
        }
        let asked = ROOM - 20 + random.below(60) as u32;
        match self.poller.resize(asked) {
            Ok(()) => assert!(asked >= ROOM && self.queue.capacity() == asked && self.queue.room() == asked - ROOM),
            Err(ResizeError::Leased { leased, .. }) => assert!(asked < ROOM && leased == ROOM),
            Err(error) => panic!("{error}"),
        }
    }

    fn complete(&mut self, completion: Completion<Test>) {
        let id = completion.id();
        let Some(Posted { link, what, addresses: posted }) = self.in_flight.remove(&id) else {
            panic!("{id:?} came, which is not in flight")
        };
        let queue = usize::from(what == What::Receive);
        let order = &mut self.links[link].order[queue];
        let at = order.iter().position(|posted| *posted == id).expect("it was posted");
        assert!(at == 0 || self.is_iwarp && queue == 0, "{what:?} out of order");
        order.remove(at);
        let success = completion.check().unwrap_or_else(|failure| panic!("{what:?} on {link}: {failure}"));
        let buffers = match (what, success.into_work()) {
            (What::Receive, Work::Scattered(scattered)) => {
                let link = &mut self.links[link];
                let bytes: Vec<u8> = scattered.list.iter().flat_map(|buffer| buffer.to_vec()).collect();
                let expected = link.log[link.received];
                assert_eq!((read(&bytes), scattered.immediate, bytes.len()), expected, "message {}", link.received);
                link.received += 1;
                scattered.list.into_buffers()
            }
            (What::Message, Work::Sent(PostedMemory::List(list))) => list.into_buffers(),
            (What::Message, Work::Sent(PostedMemory::Unique(buffer))) => vec![buffer],
            (What::Shared, Work::Sent(PostedMemory::Shared(share))) => {
                let address = share.as_ptr().addr();
                assert_eq!(posted, [address], "another share came back");
                drop(share);
                return self.unshare(address, 1);
            }
            (What::Inline, Work::Sent(PostedMemory::Inline)) => Vec::new(),
            (What::Read, Work::ReadScattered(list)) => {
                let bytes: Vec<u8> = list.iter().flat_map(|buffer| buffer.to_vec()).collect();
                assert_eq!(bytes, SOURCE.map(u64::to_ne_bytes).concat()[..bytes.len()]);
                assert_eq!(bytes.len(), if self.is_iwarp { BUFFER_BYTES } else { 64 });
                list.into_buffers()
            }
            (What::Add, Work::Atomic { original, buffer }) => {
                self.brought.push(original);
                vec![buffer]
            }
            (what, work) => panic!("{what:?} became {work:?}"),
        };
        assert_eq!(buffers.iter().map(|buffer| buffer.as_ptr().addr()).collect::<Vec<_>>(), posted);
        buffers.into_iter().for_each(|buffer: Buffer<Test>| self.stock.give(buffer));
    }

    /// Waits until all messages have arrived and all memory except that of receives is back.
    fn settle(&mut self, random: &mut Random) {
        for link in 0..LINKS {
            // The completion of an unsignalled send is returned with that of the next signalled request. `flush` posts
            // a signalled request.
            self.until("room", |world| {
                world.links[link].order[0].len() < LIMITS.sends as usize || world.receive_some(random)
            });
            while self.links[link].order[0].back().is_some() && !self.flush(link) {
                self.device.step(random);
            }
        }
        self.until("the end of all sends", |world| {
            world.links.iter().all(|link| link.order[0].is_empty() && link.received == link.log.len())
                || world.receive_some(random)
        });
        self.brought.sort_unstable();
        assert!(self.brought.iter().copied().eq(0..self.adds), "{} adds brought {:?}", self.adds, self.brought);
        assert_eq!(self.sum.as_ref().map_or(0, |sum| sum.load(0).unwrap()), self.adds);
        assert!(self.shares.is_empty());
    }

    /// Posts receives for messages that wait for them. Returns false, so that `until` calls it again.
    fn receive_some(&mut self, random: &mut Random) -> bool {
        for link in 0..LINKS {
            let missing = self.links[link].log.len() - self.links[link].received;
            if self.links[link].order[1].len() < missing.min(LIMITS.receives as usize) {
                self.receive(random, link);
            }
        }
        false
    }

    /// Posts a signalled request. On iWARP each request is signalled.
    fn flush(&mut self, link: usize) -> bool {
        let Some(sum) = &self.sum else { return true };
        let word = sum.remote();
        let buffer = self.stock.take();
        let address = buffer.as_ptr().addr();
        match self.links[link].from.post_fetch_and_add(buffer, &word, 1) {
            Ok(id) => {
                self.adds += 1;
                self.note(id, link, What::Add, vec![address]);
                true
            }
            Err(error) => {
                self.stock.give(error.into_request().unwrap());
                false
            }
        }
    }

    fn act(&mut self, step: &Step<Call>) {
        let (random, link) = (&mut step.random(), step.place);
        match step.call {
            Call::Poll => drop(self.poll(1 + random.below(8))),
            Call::Step => self.device.step(random),
            Call::Receive => self.receive(random, link),
            Call::Message => self.post(random, link, What::Message),
            Call::Inline => self.post(random, link, What::Inline),
            Call::Read => self.post(random, link, What::Read),
            Call::Add => self.post(random, link, What::Add),
            Call::Broadcast => self.broadcast(random),
            Call::Batch => self.batch(random, link),
            Call::Lose => self.device.lose(random),
            Call::Resize => self.resize(random),
            Call::Settle => self.settle(random),
        }
    }
}

fn addresses(list: &BufferList<Test>) -> Vec<usize> {
    list.iter().map(|buffer| buffer.as_ptr().addr()).collect()
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
fn lists_batches_and_shares_arrive_whole_and_come_back_once() {
    let effort = Effort { programs: [60, 6], most_steps: [600, 200] };
    for_programs("lists_batches_and_shares_arrive_whole_and_come_back_once", &effort, LINKS, &CALLS, |program| {
        let mut world = World::new();
        program.steps().for_each(|step| world.act(step));
        world.settle(&mut program.random_after());
        let World { links, mut poller, mut stock, in_flight, .. } = world;
        links.into_iter().for_each(|link| drop((link.from, link.to)));
        while let Some(completion) = poller.poll().unwrap() {
            assert_eq!(in_flight[&completion.id()].what, What::Receive);
            let PostedMemory::List(list) = completion.check().unwrap_err().memory else { panic!("not a list") };
            list.into_buffers().into_iter().for_each(|buffer| stock.give(buffer));
        }
        assert!(stock.away.is_empty(), "something did not come back");
    });
}
