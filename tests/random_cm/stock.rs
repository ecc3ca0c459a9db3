//! The queue pairs and the buffers of a history. [`Stock`] checks that no buffer is lost and that none comes back
//! twice.

use interlock::state::DeviceState;
use interlock::{AnyQueuePair, Buffer, Checked, CompletionQueue, Context, Init, Limits, Poller};
use interlock::{ProtectionDomain, QueuePair};
use std::collections::HashSet;
use std::time::{Duration, Instant};
use support::PATIENCE;

/// The most pairs that a history has at a time.
const MOST_PAIRS: u32 = 24;
const LIMITS: Limits = Limits { sends: 2, receives: 2, ..Limits::DEFAULT };
const BYTES: usize = 64;

pub(crate) struct Stock {
    pub(crate) domain: ProtectionDomain<Checked>,
    queue: CompletionQueue<Checked>,
    pub(crate) poller: Poller<Checked>,
    /// Pairs in Init, each with a receive posted.
    pairs: Vec<QueuePair<Checked, Init>>,
    here: Vec<Buffer<Checked>>,
    away: HashSet<usize>,
    /// How many buffers may be missing at the end: those of pairs that the program forgot, or that a removed device did
    /// not destroy.
    pub(crate) lost: usize,
    /// Messages that have arrived, and that no step has checked.
    pub(crate) arrived: Vec<Vec<u8>>,
    /// How many sends have succeeded.
    pub(crate) sent: usize,
}

impl Stock {
    pub(crate) fn new(context: &Context) -> Self {
        let domain = context.checked_domain().unwrap();
        let (queue, poller) = domain.completion_queue(MOST_PAIRS * LIMITS.completions()).unwrap();
        let here = domain.buffers(4 * MOST_PAIRS as usize, BYTES).unwrap();
        Self {
            domain,
            queue,
            poller,
            pairs: Vec::new(),
            here,
            away: HashSet::new(),
            lost: 0,
            arrived: Vec::new(),
            sent: 0,
        }
    }

    fn take_buffer(&mut self) -> Buffer<Checked> {
        let buffer = self.here.pop().expect("buffers were lost");
        assert!(self.away.insert(buffer.as_ptr().addr()), "there are two of {buffer:?}");
        buffer
    }

    fn give(&mut self, mut buffer: Buffer<Checked>) {
        assert!(self.away.remove(&buffer.as_ptr().addr()), "{buffer:?} comes back twice");
        buffer.set_len(buffer.capacity()).unwrap();
        self.here.push(buffer);
    }

    /// A pair in Init with a receive posted; `None` if there are too many pairs, or the device was removed.
    pub(crate) fn pair(&mut self, is_removed: bool) -> Option<QueuePair<Checked, Init>> {
        if let Some(pair) = self.pairs.pop() {
            return Some(pair);
        }
        if is_removed || self.queue.room() < LIMITS.completions() || self.here.len() < 4 {
            return None;
        }
        let port = self.domain.context().active_port().unwrap();
        let mut pair = self.domain.reliable(&self.queue, &LIMITS).unwrap().into_init(&port).unwrap();
        pair.post_receive(self.take_buffer()).unwrap();
        Some(pair)
    }

    pub(crate) fn put(&mut self, pair: QueuePair<Checked, Init>) {
        self.pairs.push(pair);
    }

    /// Takes a pair that a step gave back, and checks that the device has it in the state that its type says.
    pub(crate) fn take_back(&mut self, pair: AnyQueuePair<Checked>, is_removed: bool) {
        if is_removed {
            self.lost += 1;
            return;
        }
        match pair {
            AnyQueuePair::Init(pair) => {
                assert_eq!(pair.query_state().unwrap(), DeviceState::Init, "the pair that came back");
                self.put(pair);
            }
            AnyQueuePair::Errored(pair) => {
                assert_eq!(pair.query_state().unwrap(), DeviceState::Error, "the pair that came back");
            }
            // On iWARP, a thread of the library owns the pair until the TCP stream is connected. If the step gives up
            // before that, the thread destroys the pair, and only the buffers come back.
            AnyQueuePair::Vacant if self.domain.context().is_iwarp() => {}
            other => panic!("a pair comes back in Init or Error, and not as {other:?}"),
        }
        self.poll();
    }

    pub(crate) fn poll(&mut self) {
        while let Some(completion) = self.poller.poll().unwrap() {
            match completion.check() {
                Ok(success) => match success.into_received() {
                    Ok(buffer) => {
                        self.arrived.push(buffer.to_vec());
                        self.give(buffer);
                    }
                    Err(success) => {
                        self.sent += 1;
                        self.give(success.into_buffer().expect("the buffer of a send"));
                    }
                },
                Err(failure) => self.give(failure.into_buffer().expect("the buffer of a request")),
            }
        }
    }

    /// A buffer with a message.
    pub(crate) fn message(&mut self, bytes: &[u8]) -> Buffer<Checked> {
        let mut buffer = self.take_buffer();
        buffer.write(bytes).unwrap();
        buffer
    }

    pub(crate) fn receive(&mut self) -> Buffer<Checked> {
        self.take_buffer()
    }

    /// Ends all pairs, and checks that every buffer is back.
    pub(crate) fn end(mut self, mut run: impl FnMut()) {
        self.pairs.clear();
        let deadline = Instant::now() + PATIENCE;
        loop {
            self.poll();
            if self.away.len() <= self.lost {
                break;
            }
            assert!(Instant::now() < deadline, "{} buffers do not come back", self.away.len() - self.lost);
            run();
            std::thread::sleep(Duration::from_micros(100));
        }
    }
}
