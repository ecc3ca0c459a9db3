//! Many pairs on one completion queue. Each pair is connected to itself, so no pair needs a peer.

use super::shape::{Ended, Outcome, poll_each};
use interlock::{Brand, Buffer, CompletionQueue, Limits, Poller, Port, ProtectionDomain, QueuePair};
use std::thread;

/// Bytes of a message.
pub(crate) const LEN: usize = 64;

pub(crate) struct Fleet<B> {
    pub(crate) queue: CompletionQueue<B>,
    pub(crate) poller: Poller<B>,
    pub(crate) pairs: Vec<QueuePair<B>>,
    spare: Vec<Buffer<B>>,
    next: usize,
    /// The indices of the pairs whose messages are under way, the oldest first.
    under_way: Vec<usize>,
}

/// Makes a completion queue with room for `count` pairs of these limits.
pub(crate) fn queue_for<B: Brand>(
    domain: &ProtectionDomain<B>,
    limits: &Limits,
    count: usize,
) -> (CompletionQueue<B>, Poller<B>) {
    domain.completion_queue(limits.completions() * count as u32).expect("a completion queue")
}

/// Makes a pair that is connected to itself.
pub(crate) fn pair_to_itself<B: Brand>(
    domain: &ProtectionDomain<B>,
    port: &Port,
    queue: &CompletionQueue<B>,
    limits: &Limits,
) -> QueuePair<B> {
    let pair = domain.reliable(queue, limits).expect("a queue pair").into_init(port).expect("a port");
    let itself = pair.endpoint();
    pair.connect(&itself).expect("a connection")
}

impl<B: Brand> Fleet<B> {
    pub(crate) fn new(domain: &ProtectionDomain<B>, port: &Port, limits: &Limits, count: usize) -> Self {
        let (queue, poller) = queue_for(domain, limits, count);
        let pairs = (0..count).map(|_| pair_to_itself(domain, port, &queue, limits)).collect();
        let in_flight = limits.sends.min(limits.receives) as usize;
        let mut fleet = Self {
            queue,
            poller,
            pairs,
            spare: domain.buffers(2 * in_flight, LEN).expect("buffers"),
            next: 0,
            under_way: Vec::with_capacity(in_flight),
        };
        // In this first exchange the poller learns of all pairs, so that no later exchange has to do that work.
        fleet.exchange(count, count);
        fleet
    }

    /// Sends `messages` messages, in turn over the first `among` pairs. Never has more in flight than one pair has room
    /// for. Each message makes two completions. Returns how many arrived at another pair than their sender, which must
    /// be 0.
    #[inline(never)]
    pub(crate) fn exchange(&mut self, messages: usize, among: usize) -> usize {
        let mut left = messages;
        let mut stray = 0;
        while left > 0 {
            while left > 0 && self.spare.len() >= 2 {
                let at = self.next % among;
                self.next = at + 1;
                let pair = &mut self.pairs[at];
                let (target, message) = (self.spare.pop(), self.spare.pop());
                if let (Some(target), Some(mut message)) = (target, message) {
                    message.set_len(LEN).expect("within its capacity");
                    message[..8].copy_from_slice(&(at as u64).to_ne_bytes());
                    pair.post_receive(target).expect("room for a receive");
                    pair.post_send(message).expect("room for a send");
                }
                self.under_way.push(at);
                left -= 1;
            }
            stray += self.collect();
        }
        stray
    }

    fn collect(&mut self) -> usize {
        let Self { poller, pairs, spare, under_way, .. } = self;
        let mut missing = 2 * under_way.len();
        let mut stray = 0;
        while missing > 0 {
            let found = poll_each(poller, |completion| {
                let Ended { queue_pair, outcome, memory, .. } = Ended::of(completion);
                let buffer = memory.into_buffer().expect("a buffer");
                match outcome {
                    Outcome::Sent => {}
                    Outcome::Received { .. } => {
                        let at = buffer.first_chunk().map_or(u64::MAX, |at| u64::from_ne_bytes(*at)) as usize;
                        stray += usize::from(pairs.get(at).is_none_or(|pair| pair.number() != queue_pair));
                    }
                    other => panic!("{other:?}"),
                }
                spare.push(buffer);
            })
            .expect("a queue that works");
            missing -= found;
            if found == 0 {
                thread::yield_now();
            }
        }
        under_way.clear();
        stray
    }
}

/// The result of many threads that post while one thread polls.
#[derive(Debug)]
pub(crate) struct Crowd {
    pub(crate) sent: u64,
    pub(crate) received: u64,
    /// Messages that arrived out of turn on their pair.
    pub(crate) out_of_order: u64,
    pub(crate) unknown: u64,
    /// Buffers that did not come back.
    pub(crate) missing: usize,
    pub(crate) elapsed: std::time::Duration,
}

/// Runs `threads` threads. Each has the send halves of `pairs_each` pairs and sends `messages_each` messages. The
/// calling thread polls, returns the buffers and posts the receives.
pub(crate) fn crowd<B: Brand>(
    domain: &ProtectionDomain<B>,
    port: &Port,
    threads: usize,
    pairs_each: usize,
    messages_each: u64,
) -> Crowd {
    use std::collections::HashMap;
    use std::sync::mpsc;
    const DEPTH: u32 = 4;
    let limits = Limits { sends: DEPTH, receives: DEPTH, ..Limits::default() };
    let count = threads * pairs_each;
    let (queue, mut poller) = queue_for(domain, &limits, count);
    let mut buffers = domain.buffers(2 * DEPTH as usize * count, LEN).expect("buffers");
    let total = buffers.len();
    let mut senders: Vec<Vec<_>> = (0..threads).map(|_| Vec::new()).collect();
    let mut receivers = Vec::with_capacity(count);
    let mut by_number = HashMap::with_capacity(count);
    for at in 0..count {
        let (send, mut receive) = pair_to_itself(domain, port, &queue, &limits).split();
        for buffer in buffers.drain(..DEPTH as usize) {
            receive.post_receive(buffer).expect("room for a receive");
        }
        by_number.insert(receive.number(), at);
        senders[at / pairs_each].push(send);
        // 0 is the number that the next message on this pair must carry.
        receivers.push((receive, 0_u64));
    }
    let (mut received, mut out_of_order, mut back) = (0, 0, 0);
    let wanted = threads as u64 * messages_each;
    let begin = std::time::Instant::now();
    let (ways, posters): (Vec<_>, Vec<_>) = senders
        .into_iter()
        .map(|mut halves| {
            let (give, take) = mpsc::channel();
            // Each pair gets `DEPTH` buffers, as many as it has room for in flight. A buffer that comes back is sent on
            // the same pair again.
            for (at, _) in halves.iter().enumerate() {
                for buffer in buffers.drain(..DEPTH as usize) {
                    give.send((at, buffer)).expect("a thread to be");
                }
            }
            let poster = move || {
                let mut next = vec![0_u64; halves.len()];
                let mut sent = 0;
                while sent < messages_each {
                    let (at, mut buffer): (usize, Buffer<B>) = take.recv().expect("the poller");
                    buffer.set_len(LEN).expect("within its capacity");
                    buffer[..8].copy_from_slice(&next[at].to_ne_bytes());
                    halves[at].post_send(buffer).expect("room for a send");
                    next[at] += 1;
                    sent += 1;
                }
                // The caller keeps both: buffers of sends that complete later still come back through `take`, and the
                // pairs of `halves` must stay alive until those sends have completed.
                (halves, take)
            };
            (give, poster)
        })
        .unzip();
    let kept = thread::scope(|scope| {
        let posters: Vec<_> = posters.into_iter().map(|poster| scope.spawn(poster)).collect();
        while back < 2 * wanted {
            let found = poll_each(&mut poller, |completion| {
                let Ended { queue_pair, outcome, memory, .. } = Ended::of(completion);
                let buffer = memory.into_buffer().expect("a buffer");
                let at = by_number[&queue_pair];
                back += 1;
                match outcome {
                    Outcome::Received { .. } => {
                        let (receive, next) = &mut receivers[at];
                        let number = buffer.first_chunk().map_or(u64::MAX, |number| u64::from_ne_bytes(*number));
                        out_of_order += u64::from(number != *next);
                        *next += 1;
                        received += 1;
                        receive.post_receive(buffer).expect("room for a receive");
                    }
                    Outcome::Sent => ways[at / pairs_each].send((at % pairs_each, buffer)).expect("the thread"),
                    other => panic!("{other:?}"),
                }
            });
            if found.expect("a queue that works") == 0 {
                thread::yield_now();
            }
        }
        posters.into_iter().map(|poster| poster.join().expect("a thread that does not panic")).collect::<Vec<_>>()
    });
    let elapsed = begin.elapsed();
    // Count the buffers that are in the threads' channels, and then those that the destroyed pairs return.
    let mut home = kept.iter().map(|(_, take)| take.try_iter().count()).sum::<usize>();
    drop((kept, receivers));
    loop {
        let found = poll_each(&mut poller, |completion| drop(Ended::of(completion))).expect("a queue that works");
        if found == 0 {
            break;
        }
        home += found;
    }
    let (unknown, missing) = (poller.unknown_completions(), total - home);
    Crowd { sent: back - received, received, out_of_order, unknown, missing, elapsed }
}
