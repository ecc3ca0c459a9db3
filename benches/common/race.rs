//! Threads that bring pairs up, use them in halves and break them, while one thread polls.
//!
//! The fabric is automatic, so no two runs are the same. The race checks that
//! - each queue returns its requests in posting order, each one once and with its own memory;
//! - messages arrive once and in order;
//! - no request succeeds after a failure;
//! - a pair that was reset comes up again only after all requests from before the reset came back;
//! - all buffers are back at the end.

use super::random::Random;
use super::shape::{Ended, Outcome, poll_each};
use super::world::Tally;
use interlock::attributes::ConnectAttributes;
use interlock::error::{PostAllError, TransitionFailure};
use interlock::number::{AckTimeout, Qpn, RetryCount};
use interlock::queue::{Posting, ReceiveHalf, SendHalf};
use interlock::request::{Operation, PostedMemory};
use interlock::soft::{Fabric, Fault, Verb};
use interlock::{
    Brand, Buffer, CompletionQueue, Context, Limits, Port, PostError, ProtectionDomain, QueuePair, Reset, Status,
    WorkId, WorkRequest,
};
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

const LEN: usize = 64;
const LIMITS: Limits = Limits { sends: 16, receives: 16, inline_bytes: 0, elements: 1, posting: Posting::List };
/// The number of buffers of each thread.
const BUFFERS: usize = 64;
/// After this long, a request counts as lost.
const PATIENCE: Duration = Duration::from_secs(60);

const SEND: usize = 0;
const RECEIVE: usize = 1;

/// The accounts of one queue pair. The record of a post may come before or after its completion; this matches the two.
#[derive(Default)]
struct Account {
    /// Requests that were posted, with the addresses of their buffers. The id is `None` if `post_all` posted the
    /// request.
    posted: [VecDeque<(Option<WorkId>, usize)>; 2],
    arrived: [VecDeque<(WorkId, usize)>; 2],
    failed: [bool; 2],
    next_message: u32,
}

impl Account {
    fn reconcile(&mut self) {
        for side in [SEND, RECEIVE] {
            while let (Some(posted), Some(arrived)) = (self.posted[side].front(), self.arrived[side].front()) {
                let id = posted.0.unwrap_or(arrived.0);
                assert_eq!((id, posted.1), *arrived, "requests come back in order, with their memory");
                self.posted[side].pop_front();
                self.arrived[side].pop_front();
            }
        }
    }

    fn is_settled(&self) -> bool {
        self.posted.iter().all(VecDeque::is_empty) && self.arrived.iter().all(VecDeque::is_empty)
    }
}

/// The data that all threads share.
struct Course<'r, B> {
    fabric: &'r Fabric,
    domain: &'r ProtectionDomain<B>,
    port: &'r Port,
    queue: &'r CompletionQueue<B>,
    /// The lane that each pair's completions go to.
    owners: &'r Mutex<HashMap<Qpn, usize>>,
}

struct Lane<'r, B> {
    course: &'r Course<'r, B>,
    number: usize,
    inbox: Receiver<Ended<B>>,
    spare: Vec<Buffer<B>>,
    accounts: HashMap<Qpn, Account>,
    random: Random,
    tally: Tally,
}

/// Runs `threads` threads. Each has two pairs, and brings each of them up `lives` times.
pub(crate) fn race(seed: u64, threads: usize, lives: usize) -> Tally {
    let fabric = Fabric::new();
    let context = Context::open_on(&fabric, "race").expect("a device");
    context.with_domain(|domain| race_in(&fabric, &domain, seed, threads, lives)).expect("a domain")
}

fn race_in<B: Brand>(fabric: &Fabric, domain: &ProtectionDomain<B>, seed: u64, threads: usize, lives: usize) -> Tally {
    let port = domain.context().active_port().expect("a port");
    // Each thread runs one lane, with two pairs at a time. The room of a destroyed pair comes back late, so the queue
    // has room for a third pair of each lane. A lane that finds no room waits.
    let (queue, poller) = domain.completion_queue(LIMITS.completions() * 3 * threads as u32).expect("a queue");
    let owners = Mutex::new(HashMap::new());
    let course = Course { fabric, domain, port: &port, queue: &queue, owners: &owners };
    let finished = AtomicUsize::new(0);
    let (ways, inboxes): (Vec<_>, Vec<_>) = (0..threads).map(|_| channel()).unzip();
    let mut tally = Tally::default();
    let poller = thread::scope(|scope| {
        let mut poller = poller;
        let runners: Vec<_> = inboxes
            .into_iter()
            .enumerate()
            .map(|(number, inbox)| {
                let (course, finished) = (&course, &finished);
                scope.spawn(move || {
                    // `_ends` counts this thread as finished, even if it panics. Otherwise the polling loop below would
                    // not end after a panic.
                    let _ends = Ends(finished);
                    let mut lane = Lane {
                        course,
                        number,
                        inbox,
                        spare: course.domain.buffers(BUFFERS, LEN).expect("buffers"),
                        accounts: HashMap::new(),
                        random: Random::new(seed.wrapping_add(number as u64)),
                        tally: Tally::default(),
                    };
                    lane.run(lives);
                    lane.tally
                })
            })
            .collect();
        let mut random = Random::new(!seed);
        while finished.load(Ordering::Acquire) < threads {
            let give = |ended: Ended<B>| {
                let owner = owners.lock().unwrap_or_else(PoisonError::into_inner)[&ended.queue_pair];
                // The result is ignored: `send` fails only if the lane has panicked, since its inbox is then closed.
                // The join below reports the panic.
                _ = ways[owner].send(ended);
            };
            if random.one_in(64) {
                let patience = Duration::from_micros(random.below(500) as u64);
                if let Some(completion) = poller.wait_for(patience).expect("a queue that works") {
                    give(Ended::of(completion));
                }
            } else if random.one_in(64) {
                drop(poller);
                poller = queue.take_poller().expect("the poller again");
            } else if poll_each(&mut poller, |completion| give(Ended::of(completion))).expect("a queue that works") == 0
            {
                thread::yield_now();
            }
        }
        for runner in runners {
            tally += runner.join().expect("a lane without violations");
        }
        poller
    });
    assert_eq!(poller.unknown_completions(), 0, "unknown completions");
    assert_eq!(tally.posted, tally.succeeded + tally.failed + tally.destroyed, "requests that came back");
    tally
}

struct Ends<'r>(&'r AtomicUsize);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Release);
    }
}

impl<B: Brand> Lane<'_, B> {
    fn run(&mut self, lives: usize) {
        let mut pairs = None;
        for _ in 0..lives {
            let [left, right] = match pairs.take() {
                Some(pairs) => pairs,
                None => [self.create(), self.create()],
            };
            pairs = self.live(left, right);
        }
        drop(pairs);
        let deadline = Instant::now() + PATIENCE;
        while self.spare.len() < BUFFERS {
            self.read();
            assert!(Instant::now() < deadline, "{} buffers did not come back", BUFFERS - self.spare.len());
        }
        self.read();
        assert_eq!(self.spare.len(), BUFFERS, "buffers given twice");
        for account in self.accounts.values_mut() {
            account.reconcile();
            assert!(account.is_settled(), "requests that did not come back");
        }
    }

    fn create(&mut self) -> QueuePair<B, Reset> {
        let deadline = Instant::now() + PATIENCE;
        let posting = [Posting::List, Posting::WorkRequestApi][self.tally.made as usize % 2];
        let pair = loop {
            match self.course.domain.reliable(self.course.queue, &Limits { posting, ..LIMITS }) {
                Ok(pair) => break pair,
                // Perhaps the queue has no room yet: the room of a destroyed pair comes back once the poller has seen
                // the queue empty. Try again until `deadline`.
                Err(error) => assert!(Instant::now() < deadline, "{error}"),
            }
            self.read();
        };
        self.tally.made += 1;
        self.course.owners.lock().unwrap_or_else(PoisonError::into_inner).insert(pair.number(), self.number);
        self.accounts.insert(pair.number(), Account::default());
        pair
    }

    /// Reads the completions that the polling thread sent.
    fn read(&mut self) {
        let mut any = false;
        while let Ok(Ended { id, queue_pair, outcome, memory }) = self.inbox.try_recv() {
            any = true;
            let account = self.accounts.get_mut(&queue_pair).expect("the accounts of a pair");
            let buffer = memory.into_buffer().expect("a buffer");
            let side = match outcome {
                Outcome::Sent => SEND,
                Outcome::Received { .. } => {
                    let found = buffer.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes));
                    assert_eq!((found, buffer.len()), (Some(account.next_message), LEN), "messages in order");
                    assert!(buffer[4..].iter().all(|&byte| byte == account.next_message as u8), "a message");
                    account.next_message += 1;
                    RECEIVE
                }
                Outcome::Failed { operation: Operation::Receive, .. } => RECEIVE,
                Outcome::Failed { operation: Operation::Send, .. } => SEND,
                other => panic!("{other:?}"),
            };
            match outcome {
                Outcome::Failed { status, .. } => {
                    account.failed[side] = true;
                    assert_ne!(status, Status::ProviderFault);
                    *(if status == Status::Destroyed { &mut self.tally.destroyed } else { &mut self.tally.failed }) +=
                        1;
                }
                _ => {
                    assert!(!account.failed[side], "{outcome:?} after a failure");
                    self.tally.succeeded += 1;
                }
            }
            account.arrived[side].push_back((id, buffer.as_ptr().addr()));
            self.spare.push(buffer);
        }
        if !any {
            thread::yield_now();
        }
    }

    fn live(&mut self, left: QueuePair<B, Reset>, right: QueuePair<B, Reset>) -> Option<[QueuePair<B, Reset>; 2]> {
        let [left, right] = [left, right].map(|mut pair| {
            let deadline = Instant::now() + PATIENCE;
            loop {
                match pair.into_init(self.course.port) {
                    Ok(pair) => break pair,
                    Err(error) => {
                        assert!(matches!(error.source, TransitionFailure::Unsettled), "{error}");
                        pair = error.queue_pair;
                    }
                }
                assert!(Instant::now() < deadline, "never settled");
                self.read();
            }
        });
        let numbers = [left.number(), right.number()];
        for number in numbers {
            // The pair counts as drained as soon as the poller has taken its last completion. That completion can still
            // be on its way to this thread, so read until the account is settled.
            let deadline = Instant::now() + PATIENCE;
            loop {
                self.read();
                let account = self.accounts.get_mut(&number).expect("the accounts of a pair");
                account.reconcile();
                if account.is_settled() {
                    *account = Account::default();
                    break;
                }
                assert!(Instant::now() < deadline, "settled with requests under way");
            }
        }
        self.tally.lives += 2;
        self.faults();
        let attributes = ConnectAttributes {
            timeout: AckTimeout::new(7).expect("in range"),
            retry_count: RetryCount::new(2).expect("in range"),
            ..ConnectAttributes::default()
        };
        let (to_left, to_right) = (left.endpoint(), right.endpoint());
        let left = left.connect_with(&to_right, &attributes).expect("a connection");
        let right = right.connect_with(&to_left, &attributes).expect("a connection");
        let ((send, left_receive), (right_send, mut receive)) = (left.split(), right.split());
        let messages = 8 + self.random.below(100);
        let buffers = self.spare.split_off(self.spare.len().saturating_sub(BUFFERS / 4));
        let mut source = self.random.clone();
        self.random.next();
        let send = thread::scope(|scope| {
            let sender = scope.spawn(move || send_all(send, buffers, messages, &mut source));
            while !sender.is_finished() {
                self.read();
                self.post_receives(numbers[1], &mut receive);
            }
            let Sender { half, left, posted, refused } = sender.join().expect("a sender");
            self.spare.extend(left);
            self.tally.posted += posted.len() as u64;
            self.tally.refused += refused;
            self.accounts.get_mut(&numbers[0]).expect("the accounts of a pair").posted[SEND].extend(posted);
            half
        });
        let left = send.join(left_receive).expect("the halves of one pair");
        let right = right_send.join(receive).expect("the halves of one pair");
        for _ in 0..self.random.below(100) {
            self.read();
        }
        match self.random.below(4) {
            0 => None,
            1 => {
                let (left, right) = (left.into_error().expect("Error"), right.into_error().expect("Error"));
                self.read();
                Some([left.into_reset().expect("Reset"), right.into_reset().expect("Reset")])
            }
            _ => Some([left.into_reset().expect("Reset"), right.into_reset().expect("Reset")]),
        }
    }

    fn post_receives(&mut self, number: Qpn, receive: &mut ReceiveHalf<B>) {
        let account = self.accounts.get_mut(&number).expect("the accounts of a pair");
        while let Some(buffer) = self.spare.pop() {
            let address = buffer.as_ptr().addr();
            match receive.post_receive(buffer) {
                Ok(id) | Err(PostError::Uncertain { id, .. }) => {
                    account.posted[RECEIVE].push_back((Some(id), address));
                    self.tally.posted += 1;
                }
                Err(error) => return self.spare.push(error.into_request().expect("what was not posted")),
            }
        }
    }

    /// Injects faults, which hit all lanes.
    fn faults(&mut self) {
        let Course { fabric, .. } = self.course;
        if self.random.one_in(3) {
            fabric.heal();
        }
        if self.random.one_in(2) {
            return;
        }
        self.tally.faults += 1;
        let count = 1 + self.random.below(8) as u32;
        fabric.inject(match self.random.below(7) {
            0 | 1 => Fault::RequestsLost { count },
            2 | 3 => Fault::AnswersLost { count },
            4 => Fault::FlushWithheld,
            5 => Fault::SendKept { errno: libc::EINVAL },
            _ => Fault::VerbFails { verb: Verb::PostSend, after: count, count: 1, errno: libc::ENOMEM },
        });
    }
}

/// The result of a sender thread.
struct Sender<B> {
    half: SendHalf<B>,
    left: Vec<Buffer<B>>,
    posted: Vec<(Option<WorkId>, usize)>,
    refused: u64,
}

/// Posts about `messages` messages: one at a time, by `post_all`, and in batches. Ends earlier if the pair breaks or no
/// buffer is left.
fn send_all<B: Brand>(
    mut half: SendHalf<B>,
    buffers: Vec<Buffer<B>>,
    messages: usize,
    random: &mut Random,
) -> Sender<B> {
    let mut left = buffers;
    let mut posted = Vec::new();
    let mut refused = 0;
    let mut next = 0_u32;
    let stamp = |buffer: &mut Buffer<B>, number: u32| {
        buffer.set_len(LEN).expect("within its capacity");
        buffer.fill(number as u8);
        buffer[..4].copy_from_slice(&number.to_ne_bytes());
    };
    while posted.len() < messages {
        let Some(mut buffer) = left.pop() else { break };
        if random.one_in(2) {
            stamp(&mut buffer, next);
            let address = buffer.as_ptr().addr();
            match half.post_send(buffer) {
                Ok(id) => posted.push((Some(id), address)),
                Err(PostError::Uncertain { id, .. }) => {
                    posted.push((Some(id), address));
                    break;
                }
                Err(error) => {
                    let full = matches!(error, PostError::QueueFull(_));
                    refused += u64::from(matches!(error, PostError::Refused { .. }));
                    left.push(error.into_request().expect("what was not posted"));
                    if !full {
                        break;
                    }
                    continue;
                }
            }
            next += 1;
            continue;
        }
        left.push(buffer);
        let mut staged = Vec::new();
        if random.one_in(2) {
            // `post_all` takes buffers from the front. Those that find no room stay in `all`.
            let mut all = left.split_off(left.len() - random.below(left.len().min(20)));
            let mut number = next;
            let result = half.post_all(&mut all, |mut buffer| {
                stamp(&mut buffer, number);
                number += 1;
                staged.push((None, buffer.as_ptr().addr()));
                WorkRequest::send(buffer)
            });
            left.append(&mut all);
            let mut back = Vec::new();
            let broken = match result {
                Ok(count) => {
                    assert_eq!(count, staged.len(), "all that was made of items");
                    false
                }
                Err(PostAllError::Stopped(error)) => {
                    back.extend(error.into_request().map(WorkRequest::into_memory));
                    true
                }
                Err(PostAllError::Failed(error)) => {
                    refused += error.refused.len() as u64;
                    back.extend(error.refused.into_iter().filter_map(PostedMemory::into_buffer));
                    let last = error.result.err().and_then(PostError::into_request);
                    back.extend(last.map(WorkRequest::into_memory));
                    true
                }
                Err(error) => panic!("{error}"),
            };
            staged.truncate(staged.len() - back.len());
            left.append(&mut back);
            next += staged.len() as u32;
            posted.append(&mut staged);
            if broken {
                break;
            }
            continue;
        }
        let result = half.batch(|batch| {
            for number in next..next + random.below(8) as u32 {
                let Some(mut buffer) = left.pop() else { return };
                stamp(&mut buffer, number);
                let address = buffer.as_ptr().addr();
                match batch.post(WorkRequest::send(buffer).unsignalled()) {
                    Ok(id) => staged.push((Some(id), address)),
                    Err(error) => return left.push(error.into_request().expect("what was not posted").into_memory()),
                }
            }
        });
        let mut broken = false;
        if let Err(error) = result {
            staged.truncate(error.posted + error.uncertain);
            refused += error.refused.len() as u64;
            left.extend(error.refused.into_iter().filter_map(PostedMemory::into_buffer));
            broken = true;
        }
        next += staged.len() as u32;
        posted.extend(staged);
        if broken {
            break;
        }
    }
    Sender { half, left, posted, refused }
}
