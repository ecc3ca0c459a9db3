//! Borrowed memory: what scopes do on whichever device there is, and that nothing breaks them. Each attack is named as what
//! never happens, or as what happens instead.

mod common;

use common::{PATIENCE, context, on_hardware};
use interlock::scope::{Exclusive, InScopeError, Lent, LentMut, Scope, ScopeError, SharedQueue, Ticket, WaitFailure};
use interlock::soft::{Fabric, Fault, Verb};
use interlock::{
    AnyQueuePair, Brand, ConnectAttributes, Context, Limits, NamedDomainError, Operation, Poller, Port, PostError,
    ProtectionDomain, QueuePair, RegisterFailure, RemoteAll, RemoteRead, RemoteReadWrite, RemoteRegion, RemoteWrite,
    RequestFlaw, RetryCount, Status, WaitError, Work, ZeroBased,
};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;
use std::time::{Duration, Instant};
use std::{env, mem, thread};

const SHORT: Duration = Duration::from_millis(50);
const DEPTH: u32 = 4;

/// A pair for scopes, and its peer, which completes elsewhere.
struct Wire<B> {
    domain: ProtectionDomain<B>,
    port: Port,
    exclusive: Exclusive<B>,
    peer: QueuePair<B>,
    peers_poller: Poller<B>,
}

impl<B: Brand> Wire<B> {
    fn new(domain: ProtectionDomain<B>) -> Self {
        Self::with(domain, &ConnectAttributes::default())
    }

    fn with(domain: ProtectionDomain<B>, attributes: &ConnectAttributes) -> Self {
        let limits = Limits { sends: DEPTH, receives: DEPTH, ..Limits::default() };
        let port = domain.context().active_port().unwrap();
        let (queue, poller) = domain.completion_queue(limits.completions()).unwrap();
        let (peers_queue, peers_poller) = domain.completion_queue(limits.completions()).unwrap();
        let pair = domain.reliable(&queue, &limits).unwrap().into_init(&port).unwrap();
        let peer = domain.reliable(&peers_queue, &limits).unwrap().into_init(&port).unwrap();
        drop(queue);
        let (to_pair, to_peer) = (pair.endpoint(), peer.endpoint());
        let pair = pair.connect_with(&to_peer, attributes).unwrap();
        let peer = peer.connect_with(&to_pair, attributes).unwrap();
        let exclusive = Exclusive::new(pair, poller).unwrap();
        Self { domain, port, exclusive, peer, peers_poller }
    }

    fn peer_posts_receive(&mut self, len_bytes: usize) {
        self.peer.post_receive(self.domain.buffer(len_bytes).unwrap()).unwrap();
    }

    fn peer_sends(&mut self, bytes: &[u8]) {
        let mut buffer = self.domain.buffer(bytes.len()).unwrap();
        buffer.write(bytes).unwrap();
        self.peer.post_send(buffer).unwrap();
    }

    /// The next message that the peer received.
    fn peer_received(&mut self) -> Vec<u8> {
        loop {
            if let Some(buffer) = self.peers_poller.wait(PATIENCE).unwrap().check().unwrap().received() {
                return buffer.to_vec();
            }
        }
    }
}

/// A fabric, and a wire between two pairs of its only device.
macro_rules! wire {
    ($fabric:expr) => {{
        interlock::domain! { struct Test; }
        let fabric: Fabric = $fabric;
        let domain: ProtectionDomain<Test> = Context::open_on(&fabric, "dev0").unwrap().named_domain(Test).unwrap();
        let wire = Wire::new(domain);
        (fabric, wire)
    }};
    () => {{
        interlock::domain! { struct Test; }
        Wire::new(context().named_domain(Test).unwrap())
    }};
}

fn fails(verb: Verb, errno: i32) -> Fault {
    Fault::VerbFails { verb, after: 0, count: 1, errno }
}

fn always(verb: Verb, errno: i32) -> Fault {
    Fault::VerbFails { verb, after: 0, count: u32::MAX, errno }
}

/// The state and the number of requests that were cut off.
fn broken<R>(ended: Result<R, ScopeError<R>>) -> (&'static str, u32, Option<Status>) {
    match ended {
        Err(ScopeError::Broken { state, cut_off, first_failure, .. }) => (state, cut_off, first_failure),
        Err(other) => panic!("{other:?}"),
        Ok(_) => panic!("the pair is still connected"),
    }
}

// What scopes are for.

#[test]
fn borrowed_messages_go_both_ways() {
    let mut wire = wire!();
    wire.peer_posts_receive(64);
    wire.peer_sends(b"from the peer");
    let message = String::from("from a string");
    let mut answer = [0_u8; 64];
    let length = wire
        .exclusive
        .scope(PATIENCE, |scope| {
            let receive = scope.post_receive(scope.lend_mut(&mut answer)?)?;
            let send = scope.post_send(scope.lend(message.as_bytes())?)?;
            assert_eq!(&scope.wait(send)?.memory[..], b"from a string");
            let done = scope.wait(receive)?;
            assert_eq!((&done.memory[..], done.immediate), (&b"from the peer"[..], None));
            Ok::<_, InScopeError>(done.memory.len())
        })
        .unwrap()
        .unwrap();
    assert_eq!(&answer[..length], b"from the peer");
    assert_eq!(wire.peer_received(), b"from a string");
    assert!(wire.exclusive.is_connected());
}

#[test]
fn the_end_of_a_scope_waits_for_what_nobody_waited_for() {
    let mut wire = wire!();
    wire.peer_posts_receive(64);
    let message = vec![7_u8; 64];
    wire.exclusive.scope(PATIENCE, |scope| drop(scope.post_send(scope.lend(&message).unwrap()).unwrap())).unwrap();
    drop(message);
    assert_eq!(wire.peer_received(), [7; 64]);
}

#[test]
fn memory_comes_back_to_the_closure_and_goes_out_again() {
    let mut wire = wire!();
    for message in [&b"ping"[..], b"again"] {
        wire.peer_posts_receive(64);
        wire.peer_sends(message);
    }
    let mut buffer = vec![0_u8; 64];
    wire.exclusive
        .scope(PATIENCE, |scope| {
            let mut memory = scope.lend_mut(&mut buffer)?;
            for _ in 0..2 {
                memory = scope.wait(scope.post_receive(memory)?)?.memory;
                memory.make_ascii_uppercase();
                memory = scope.wait(scope.post_send(memory)?)?.memory;
            }
            Ok::<_, InScopeError>(())
        })
        .unwrap()
        .unwrap();
    assert_eq!(&buffer[..5], b"AGAIN");
    assert_eq!((wire.peer_received(), wire.peer_received()), (b"PING".to_vec(), b"AGAIN".to_vec()));
}

#[test]
fn one_lend_serves_many_requests_and_overlaps_others() {
    let mut wire = wire!();
    let bytes: Vec<u8> = (0..=255).collect();
    for _ in 0..4 {
        wire.peer_posts_receive(300);
    }
    wire.exclusive
        .scope(PATIENCE, |scope| {
            let all = scope.lend(&bytes)?;
            let odd = scope.lend(&bytes[1..])?;
            let sent = [
                scope.post_send(all.clone())?,
                scope.post_send(all.slice(3..10).unwrap())?,
                scope.post_send(odd.slice(0..1).unwrap().slice(0..1).unwrap())?,
                scope.post_send(all.slice(256..256).unwrap())?,
            ];
            assert!(all.slice(200..257).is_err() && odd.slice(0..256).is_err());
            #[allow(clippy::reversed_empty_ranges, reason = "that is the case")]
            let backwards = all.slice(9..8);
            assert!(backwards.is_err());
            for ticket in sent {
                scope.wait(ticket)?;
            }
            Ok::<_, InScopeError>(())
        })
        .unwrap()
        .unwrap();
    assert_eq!(wire.peer_received(), bytes);
    assert_eq!((wire.peer_received(), wire.peer_received()), (bytes[3..10].to_vec(), vec![1]));
    assert_eq!(wire.peer_received(), b"");
}

#[test]
fn empty_memory_is_sent_and_not_received_into() {
    let mut wire = wire!();
    wire.peer_posts_receive(8);
    wire.peer_posts_receive(8);
    let mut nothing: [u8; 0] = [];
    wire.exclusive
        .scope(PATIENCE, |scope| {
            scope.wait(scope.post_send(scope.lend::<u8>(&[])?)?)?;
            let memory = scope.lend_mut(&mut nothing)?;
            let refused = scope.post_receive(memory).unwrap_err();
            let PostError::Flawed { request, flaw: RequestFlaw::EmptyReceive } = refused else { panic!("{refused:?}") };
            scope.wait(scope.post_send(request)?)?;
            Ok::<_, InScopeError>(())
        })
        .unwrap()
        .unwrap();
    assert_eq!((wire.peer_received(), wire.peer_received()), (Vec::new(), Vec::new()));
}

#[test]
fn memory_of_the_program_itself_is_lent_to_be_read() {
    static CONSTANT: [u32; 3] = [1, 2, 3];
    let mut wire = wire!();
    wire.peer_posts_receive(16);
    wire.peer_posts_receive(16);
    wire.exclusive
        .scope(PATIENCE, |scope| {
            scope.wait(scope.post_send(scope.lend(&CONSTANT)?)?)?;
            scope.wait(scope.post_send(scope.lend(b"literal")?)?)?;
            Ok::<_, InScopeError>(())
        })
        .unwrap()
        .unwrap();
    let words: Vec<u8> = CONSTANT.iter().flat_map(|word| word.to_ne_bytes()).collect();
    assert_eq!((wire.peer_received(), wire.peer_received()), (words, b"literal".to_vec()));
}

#[test]
fn writes_reads_atomics_and_immediates_work_on_borrowed_memory() {
    let mut wire = wire!();
    let target = wire.domain.register::<RemoteAll, _>(vec![0_u64; 4]).unwrap();
    let remote = target.remote();
    wire.peer_posts_receive(8);
    wire.peer_posts_receive(8);
    let (source, mut copy, mut word) = ([1_u64, 2, 3, 4], [0_u64; 4], [0_u64]);
    wire.exclusive
        .scope(PATIENCE, |scope| {
            let source = scope.lend(&source)?;
            scope.wait(scope.post_write(source.clone(), &remote)?)?;
            scope.wait(scope.post_read(scope.lend_mut(&mut copy)?, &remote)?)?;
            let word = scope.lend_mut(&mut word)?;
            let word = scope.wait(scope.post_fetch_and_add(word, &remote, 10)?)?.memory;
            assert_eq!(&word[..], 1_u64.to_ne_bytes());
            let word = scope.wait(scope.post_compare_and_swap(word, &remote, 11, 99)?)?.memory;
            assert_eq!(&word[..], 11_u64.to_ne_bytes());
            scope.wait(scope.post_send_with_immediate(source.slice(0..8).unwrap(), 5)?)?;
            scope.wait(scope.post_write_with_immediate(source.slice(8..16).unwrap(), &remote, 6)?)?;
            let too_much = scope.post_write(source, &remote.slice(0..8).unwrap()).unwrap_err();
            assert!(matches!(too_much, PostError::Flawed { flaw: RequestFlaw::TooLong { .. }, .. }));
            Ok::<_, InScopeError>(())
        })
        .unwrap()
        .unwrap();
    assert_eq!((copy, word), ([1, 2, 3, 4], [11]));
    let mut immediates = Vec::new();
    while immediates.len() < 2 {
        match wire.peers_poller.wait(PATIENCE).unwrap().check().unwrap().work() {
            Work::Received(received) => immediates.push(received.immediate.unwrap()),
            Work::WrittenWithImmediate(written) => immediates.push(written.immediate),
            _ => (),
        }
    }
    assert_eq!((immediates, target.load(0).unwrap()), (vec![5, 6], 2));
}

#[test]
fn a_receive_says_what_a_write_with_immediate_wrote_elsewhere() {
    let mut wire = wire!();
    let mut words = [0_u64; 2];
    let mut buffer = [9_u8; 8];
    let mut written = wire.domain.buffer(16).unwrap();
    written.fill(1);
    let peer = &mut wire.peer;
    wire.exclusive
        .scope(PATIENCE, |scope| {
            let words = scope.grant::<RemoteWrite>(&mut words)?;
            let receive = scope.post_receive(scope.lend_mut(&mut buffer)?)?;
            peer.post_write_with_immediate(written, &words.remote(), 3).unwrap();
            let done = scope.wait(receive)?;
            assert_eq!((done.memory.len(), done.immediate, done.written_bytes), (0, Some(3), Some(16)));
            assert_eq!(words.load(8).unwrap(), u64::from_ne_bytes([1; 8]));
            Ok::<_, InScopeError>(())
        })
        .unwrap()
        .unwrap();
    assert_eq!((words, buffer), ([u64::from_ne_bytes([1; 8]); 2], [9; 8]));
}

#[test]
fn memory_granted_in_a_scope_is_beyond_the_peers_reach_after_it() {
    let mut wire = wire!();
    let mut words = vec![1_u64; 64];
    let mut told: Option<RemoteRegion<RemoteReadWrite>> = None;
    let (peer, domain, poller) = (&mut wire.peer, &wire.domain, &mut wire.peers_poller);
    wire.exclusive
        .scope(PATIENCE, |scope| {
            let mut granted = scope.grant::<RemoteReadWrite>(&mut words).unwrap();
            told = Some(granted.remote());
            granted.store(8, 5).unwrap();
            peer.post_read(domain.buffer(16).unwrap(), &granted.remote().slice(0..16).unwrap()).unwrap();
            let read = poller.wait(PATIENCE).unwrap().check().unwrap().into_buffer().unwrap();
            assert_eq!(read.view_slice::<u64>().unwrap(), [1, 5]);
            let mut message = domain.buffer(8).unwrap();
            message.fill(0xff);
            peer.post_write(message, &granted.remote()).unwrap();
            poller.wait(PATIENCE).unwrap().check().unwrap();
            assert_eq!((granted.load(0).unwrap(), granted.len()), (u64::MAX, 512));
            let mut bytes = [0; 3];
            granted.read_into(7, &mut bytes).unwrap();
            assert_eq!(bytes[0], 0xff);
        })
        .unwrap();
    assert_eq!(words[..3], [u64::MAX, 5, 1]);
    words[0] = 0;
    wire.peer.post_write(wire.domain.buffer(8).unwrap(), &told.unwrap()).unwrap();
    let failure = wire.peers_poller.wait(PATIENCE).unwrap().check().unwrap_err();
    assert_eq!(failure.status, Status::RemoteAccess);
    assert_eq!(words[0], 0);
}

#[test]
fn memory_that_peers_read_only_may_be_looked_at() {
    let mut wire = wire!();
    let mut words = [3_u64; 2];
    wire.exclusive
        .scope(PATIENCE, |scope| {
            let mut granted = scope.grant::<RemoteRead>(&mut words).unwrap();
            granted.write_from(0, &[0; 8]).unwrap();
            assert_eq!(granted.as_bytes()[..8], [0; 8]);
            assert!(granted.store(3, 1).is_err() && granted.load(16).is_err());
            assert!(matches!(scope.grant::<RemoteRead>(&mut []), Err(RegisterFailure::Empty)));
        })
        .unwrap();
    assert_eq!(words, [0, 3]);
}

#[test]
fn memory_granted_from_zero_on_is_reached_by_offsets() {
    let mut wire = wire!();
    // Whole pages: of 64 kB at most.
    let mut words = vec![0_u64; 3 * 8192];
    let at = (0..8192).find(|&at| words[at..].as_ptr().addr().is_multiple_of(65_536)).unwrap();
    let (peer, domain, poller) = (&mut wire.peer, &wire.domain, &mut wire.peers_poller);
    let pages = &mut words[at..at + 8192];
    wire.exclusive
        .scope(PATIENCE, |scope| {
            let granted = scope.grant::<ZeroBased<RemoteWrite>>(pages).unwrap();
            let remote = granted.remote().slice(8..16).unwrap();
            assert_eq!(remote.address(), 8);
            let mut message = domain.buffer(8).unwrap();
            message.fill(1);
            peer.post_write(message, &remote).unwrap();
            poller.wait(PATIENCE).unwrap().check().unwrap();
        })
        .unwrap();
    assert_eq!(words[at..at + 3], [0, u64::from_ne_bytes([1; 8]), 0]);
    let odd = &mut words[at + 1..at + 8193];
    let refused = wire.exclusive.scope(PATIENCE, |scope| scope.grant::<ZeroBased<RemoteWrite>>(odd).map(drop)).unwrap();
    assert!(matches!(refused, Err(RegisterFailure::NotInPages { .. })), "{refused:?}");
}

#[test]
fn parts_of_one_lend_are_in_flight_apart() {
    let mut wire = wire!();
    wire.peer_sends(b"left");
    wire.peer_sends(b"right");
    let mut buffer = [0_u8; 32];
    wire.exclusive
        .scope(PATIENCE, |scope| {
            let (mut left, right) = scope.lend_mut(&mut buffer).unwrap().split_at(16).unwrap();
            assert!(left.set_len(17).is_err());
            left.set_len(3).unwrap();
            assert_eq!((left.len(), left.capacity(), right.capacity()), (3, 16, 16));
            let (left, right) = (scope.post_receive(left).unwrap(), scope.post_receive(right).unwrap());
            assert_ne!(left.id(), right.id());
            // In the order that one likes.
            let right = scope.wait(right).unwrap().memory;
            let left = scope.wait(left).unwrap().memory;
            assert!(left.split_at(16).is_err());
            assert_eq!(&right[..], b"right");
        })
        .unwrap();
    assert_eq!((&buffer[..4], &buffer[16..21]), (&b"left"[..], &b"right"[..]));
}

#[test]
fn whatever_a_handle_refuses_leaves_the_closure() {
    let mut wire = wire!();
    let (mut buffer, mut words) = ([0_u8; 8], [0_u64; 2]);
    for (which, said) in [
        (0, "9 bytes do not fit in a buffer of 8"),
        (1, "9 is not inside the buffer, which has 8 bytes"),
        (2, "5 bytes at offset 4 are not inside 8 bytes"),
        (3, "9 bytes at offset 8 are not inside 16 bytes"),
        (4, "a word is 8 bytes at a multiple of 8"),
    ] {
        let ended = wire.exclusive.scope(PATIENCE, |scope| {
            let (mut lent, target) = (scope.lend_mut(&mut buffer)?, scope.grant::<RemoteWrite>(&mut words)?.remote());
            match which {
                0 => lent.set_len(9)?,
                1 => drop(lent.split_at(9)?),
                2 => drop(scope.lend(b"eight by")?.slice(4..9)?),
                3 => _ = target.slice(8..17)?,
                _ => _ = target.word(4)?,
            }
            Ok::<_, InScopeError>(())
        });
        let error = ended.unwrap().unwrap_err().to_string();
        assert!(error.starts_with(said), "{error}");
    }
}

#[test]
fn owned_buffers_in_flight_across_scopes_come_out_between_them() {
    let mut wire = wire!();
    wire.exclusive.post_receive(wire.domain.buffer(8).unwrap()).unwrap();
    wire.peer_sends(b"owned");
    wire.peer_sends(b"lent");
    let mut buffer = [0_u8; 8];
    wire.exclusive
        .scope(PATIENCE, |scope| {
            let receive = scope.post_receive(scope.lend_mut(&mut buffer).unwrap()).unwrap();
            scope.wait(receive).unwrap();
        })
        .unwrap();
    assert_eq!(&buffer[..4], b"lent");
    let owned = wire.exclusive.poll().unwrap().unwrap().check().unwrap().received().unwrap();
    assert_eq!(&owned[..], b"owned");
    assert!(wire.exclusive.poll().unwrap().is_none());
    wire.peer_posts_receive(8);
    wire.exclusive.post(interlock::WorkRequest::send(owned)).unwrap();
    assert_eq!(wire.exclusive.wait(PATIENCE).unwrap().check().unwrap().operation(), Operation::Send);
}

#[test]
fn scopes_of_two_pairs_nest() {
    interlock::domain! { struct Other; }
    let mut wire = wire!();
    let mut other = Wire::new(context().named_domain(Other).unwrap());
    wire.peer_sends(b"passed on");
    other.peer_posts_receive(16);
    let mut buffer = [0_u8; 16];
    wire.exclusive
        .scope(PATIENCE, |outer| {
            let received = outer.wait(outer.post_receive(outer.lend_mut(&mut buffer)?)?)?.memory;
            // What came is lent on, while it is still registered here.
            let sent = other.exclusive.scope(PATIENCE, |inner| {
                inner.wait(inner.post_send(inner.lend(&received[..])?)?)?;
                Ok::<_, InScopeError>(())
            });
            sent.unwrap()
        })
        .unwrap()
        .unwrap();
    assert_eq!(other.peer_received(), b"passed on");
}

#[test]
fn lent_memory_is_filled_by_other_threads() {
    let mut wire = wire!();
    wire.peer_posts_receive(64);
    let mut buffer = [0_u8; 64];
    wire.exclusive
        .scope(PATIENCE, |scope| {
            let mut memory = scope.lend_mut(&mut buffer)?;
            thread::scope(|threads| drop(threads.spawn(|| memory.fill(4))));
            scope.wait(scope.post_send(memory)?)?;
            Ok::<_, InScopeError>(())
        })
        .unwrap()
        .unwrap();
    assert_eq!(wire.peer_received(), [4; 64]);
}

// What breaks the pair, and how it comes back.

#[test]
fn a_receive_without_a_message_is_cut_off_and_its_memory_is_back() {
    let mut wire = wire!();
    let mut buffer = vec![1_u8; 4096];
    let begun = Instant::now();
    let ended = wire.exclusive.scope(SHORT, |scope| {
        let ticket = scope.post_receive(scope.lend_mut(&mut buffer).unwrap()).unwrap();
        let Err(WaitFailure::Unfinished { ticket, source: WaitError::TimedOut(_) }) = scope.wait_for(ticket, SHORT / 5)
        else {
            panic!("nobody sent")
        };
        let again = scope.wait(ticket).unwrap_err();
        assert!(begun.elapsed() >= SHORT);
        InScopeError::from(again).to_string()
    });
    assert!(ended.as_ref().unwrap_err().to_string().contains("1 requests had to be cut off"), "{ended:?}");
    assert_eq!(broken(ended), ("Errored", 1, None));
    buffer.fill(2);
    assert!(!wire.exclusive.is_connected());
    let mut called = false;
    let refused = wire.exclusive.scope(SHORT, |_| called = true);
    assert!(matches!(refused, Err(ScopeError::NotConnected { state: "Errored" })) && !called, "{refused:?}");
    assert!(refused.unwrap_err().into_result().is_none());
}

#[test]
fn a_pair_that_a_scope_broke_is_connected_again() {
    let mut wire = wire!();
    let mut buffer = [0_u8; 8];
    let ended = wire.exclusive.scope(Duration::ZERO, |scope| {
        drop(scope.post_receive(scope.lend_mut(&mut buffer).unwrap()).unwrap());
        "what the closure returned"
    });
    assert_eq!(ended.unwrap_err().into_result(), Some("what the closure returned"));
    let parts = wire.exclusive.into_parts();
    let AnyQueuePair::Errored(pair) = parts.queue_pair else { panic!("{:?}", parts.queue_pair) };
    assert!(parts.completions.is_empty());
    let pair = pair.into_reset().unwrap().into_init(&wire.port).unwrap();
    let peer = wire.peer.into_reset().unwrap().into_init(&wire.port).unwrap();
    let (to_pair, to_peer) = (pair.endpoint(), peer.endpoint());
    let pair = pair.connect(&to_peer).unwrap();
    wire.peer = peer.connect(&to_pair).unwrap();
    wire.exclusive = Exclusive::new(pair, parts.poller.unwrap()).unwrap();
    wire.peer_sends(b"again");
    let mut buffer = [0_u8; 8];
    wire.exclusive
        .scope(PATIENCE, |scope| drop(scope.post_receive(scope.lend_mut(&mut buffer).unwrap()).unwrap()))
        .unwrap();
    assert_eq!(&buffer[..5], b"again");
}

#[test]
fn a_failed_request_says_why_and_breaks_the_pair() {
    let mut wire = wire!();
    let region = wire.domain.register::<RemoteWrite, _>(vec![0_u64; 1]).unwrap();
    let remote = region.remote();
    drop(region.deregister().unwrap());
    let bytes = [1_u8; 8];
    let begun = Instant::now();
    let ended = wire.exclusive.scope(PATIENCE, |scope| {
        let ticket = scope.post_write(scope.lend(&bytes).unwrap(), &remote).unwrap();
        match scope.wait(ticket) {
            Err(WaitFailure::Failed { cause, memory }) => {
                assert_eq!((cause.status, cause.operation, memory.len()), (Status::RemoteAccess, Operation::Write, 8));
                let refused = scope.post_send(memory).unwrap_err();
                assert!(matches!(refused, PostError::Broken { first_failure: Some(Status::RemoteAccess), .. }));
            }
            other => panic!("{other:?}"),
        }
    });
    assert!(begun.elapsed() < PATIENCE);
    assert_eq!(broken(ended), ("Errored", 0, Some(Status::RemoteAccess)));
}

#[test]
fn a_failure_ends_the_wait_for_the_others() {
    let mut wire = wire!();
    let region = wire.domain.register::<RemoteWrite, _>(vec![0_u64; 1]).unwrap();
    let remote = region.remote();
    drop(region.deregister().unwrap());
    let (bytes, mut buffer) = ([1_u8; 8], [0_u8; 8]);
    let begun = Instant::now();
    let ended = wire.exclusive.scope(PATIENCE, |scope| {
        drop(scope.post_receive(scope.lend_mut(&mut buffer).unwrap()).unwrap());
        drop(scope.post_write(scope.lend(&bytes).unwrap(), &remote).unwrap());
    });
    assert!(begun.elapsed() < PATIENCE / 2);
    let (state, _, first) = broken(ended);
    assert_eq!((state, first), ("Errored", Some(Status::RemoteAccess)));
}

// Attacks.

#[test]
fn a_panic_with_requests_in_flight_ends_the_scope_first() {
    let mut wire = wire!();
    let mut buffer = vec![0_u8; 64];
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        wire.exclusive.scope(SHORT, |scope| {
            let _ticket = scope.post_receive(scope.lend_mut(&mut buffer).unwrap()).unwrap();
            panic!("in the closure");
        })
    }));
    assert_eq!(panicked.unwrap_err().downcast_ref(), Some(&"in the closure"));
    buffer.fill(1);
    drop(buffer);
    assert!(!wire.exclusive.is_connected());
    assert!(matches!(wire.exclusive.into_parts().queue_pair, AnyQueuePair::Errored(_)));
}

#[test]
fn a_panic_with_nothing_in_flight_leaves_the_pair_connected() {
    let mut wire = wire!();
    let bytes = [0_u8; 8];
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        wire.exclusive.scope(SHORT, |scope| {
            let _lent = scope.lend(&bytes).unwrap();
            panic!("in the closure");
        })
    }));
    assert!(panicked.is_err() && wire.exclusive.is_connected());
}

#[test]
fn forgetting_everything_gives_nothing_to_the_device() {
    let mut wire = wire!();
    let mut buffer = vec![0_u8; 64];
    let bytes = [5_u8; 8];
    let ended = wire.exclusive.scope(SHORT, |scope| {
        mem::forget(scope.lend(&bytes).unwrap());
        mem::forget(scope.lend(&bytes).unwrap().clone());
        let (left, right) = scope.lend_mut(&mut buffer).unwrap().split_at(8).unwrap();
        mem::forget(right);
        mem::forget(scope.post_receive(left).unwrap());
    });
    assert_eq!(broken(ended), ("Errored", 1, None));
    buffer.fill(1);
    drop(buffer);
}

#[test]
fn forgotten_tickets_keep_places_until_the_scope_ends() {
    let mut wire = wire!();
    let region = wire.domain.register::<RemoteWrite, _>(vec![0_u64; 1]).unwrap();
    let (remote, bytes) = (region.remote(), [1_u8; 8]);
    for _ in 0..2 {
        wire.exclusive
            .scope(PATIENCE, |scope| {
                let lent = scope.lend(&bytes)?;
                for _ in 0..2 * DEPTH {
                    let ticket = scope.post_write(lent.clone(), &remote)?;
                    let id = ticket.id();
                    mem::forget(ticket);
                    // Another one is waited for, so that there is room in the queue.
                    let Ok(next) = scope.post_write(lent.clone(), &remote) else { return Ok(()) };
                    assert_ne!(next.id(), id);
                    scope.wait(next)?;
                }
                panic!("results are kept without end");
                #[allow(unreachable_code, reason = "gives the type")]
                Ok::<_, InScopeError>(())
            })
            .unwrap()
            .unwrap();
    }
    // Those that are dropped take none.
    wire.exclusive
        .scope(PATIENCE, |scope| {
            let mut lent = scope.lend(&bytes)?;
            for _ in 0..10 * DEPTH {
                lent = match scope.post_write(lent, &remote) {
                    Ok(ticket) => {
                        assert!(!ticket.is_done());
                        scope.lend(&bytes)?
                    }
                    Err(PostError::QueueFull(lent)) => {
                        scope.wait_any(PATIENCE)?;
                        lent
                    }
                    Err(error) => return Err(error.into()),
                };
            }
            let last = loop {
                match scope.post_write(lent.clone(), &remote) {
                    Ok(ticket) => break ticket,
                    Err(_) => scope.wait_any(PATIENCE)?,
                }
            };
            while !last.is_done() {
                scope.wait_any(PATIENCE)?;
            }
            scope.wait_for(last, Duration::ZERO)?;
            assert!(matches!(scope.wait_any(Duration::ZERO), Err(WaitError::TimedOut(_))));
            Ok::<_, InScopeError>(())
        })
        .unwrap()
        .unwrap();
}

#[test]
fn a_poller_that_serves_others_makes_no_exclusive() {
    let mut wire = wire!();
    let limits = Limits { sends: 1, receives: 1, ..Limits::default() };
    let (queue, poller) = wire.domain.completion_queue(8).unwrap();
    let connected = |wire: &Wire<_>, pair: QueuePair<_, interlock::Reset>| {
        let pair = pair.into_init(&wire.port).unwrap();
        let myself = pair.endpoint();
        pair.connect(&myself).unwrap()
    };
    let pair = connected(&wire, wire.domain.reliable(&queue, &limits).unwrap());
    // The queue's handle makes other pairs.
    let error = Exclusive::new(pair, poller).unwrap_err();
    assert_eq!(error.reason, SharedQueue::Shared { others: 1 });
    // Another pair is there already.
    let other = wire.domain.reliable(&queue, &limits).unwrap();
    drop(queue);
    let error = Exclusive::new(error.queue_pair, error.poller).unwrap_err();
    assert_eq!(error.reason, SharedQueue::Shared { others: 2 });
    // One that was forgotten still is.
    mem::forget(other);
    let error = Exclusive::new(error.queue_pair, error.poller).unwrap_err();
    assert_eq!(error.reason, SharedQueue::Shared { others: 2 });
    assert!(error.to_string().contains("2 other handles"), "{error}");
    // The poller of another pair.
    let parts = wire.exclusive.into_parts();
    let AnyQueuePair::ReadyToSend(mine) = parts.queue_pair else { panic!("is connected") };
    let swapped = Exclusive::new(mine, error.poller).unwrap_err();
    assert_eq!(swapped.reason, SharedQueue::OtherQueue);
    wire.exclusive = Exclusive::new(swapped.queue_pair, parts.poller.unwrap()).unwrap();
    // Sends here, receives there.
    let (one, one_poller) = wire.domain.completion_queue(8).unwrap();
    let (two, _two_poller) = wire.domain.completion_queue(8).unwrap();
    let pair = connected(&wire, wire.domain.reliable_on(&one, &two, &limits).unwrap());
    drop((one, two));
    assert_eq!(Exclusive::new(pair, one_poller).unwrap_err().reason, SharedQueue::OtherQueue);
}

#[test]
fn handles_of_exclusives_may_be_swapped_between_scopes() {
    interlock::domain! { struct Same; }
    let domain = context().named_domain(Same).unwrap();
    let (mut one, mut two) = (Wire::new(domain.clone()), Wire::new(domain));
    one.peer_posts_receive(8);
    mem::swap(&mut one.exclusive, &mut two.exclusive);
    let bytes = [1_u8; 8];
    two.exclusive.scope(PATIENCE, |scope| drop(scope.post_send(scope.lend(&bytes).unwrap()).unwrap())).unwrap();
    assert_eq!(one.peer_received(), [1; 8]);
}

/// Types of functions that a program would write.
#[allow(dead_code, reason = "needs only compile")]
fn scopes_are_passed_on<'scope, B: Brand>(
    scope: &'scope Scope<'scope, '_, B>,
    bytes: Lent<'scope, B>,
    buffer: LentMut<'scope, B>,
) -> Result<Ticket<'scope, B, LentMut<'scope, B>>, InScopeError> {
    scope.wait(scope.post_send(bytes)?)?;
    Ok(scope.post_receive(buffer)?)
}

// Devices that fail.

#[test]
fn a_peer_that_is_silent_costs_the_time_of_the_scope_and_the_connection() {
    let (fabric, mut wire) = wire!(Fabric::new());
    fabric.inject(Fault::RequestsLost { count: u32::MAX });
    let bytes = [1_u8; 8];
    let ended = wire.exclusive.scope(SHORT, |scope| drop(scope.post_send(scope.lend(&bytes).unwrap()).unwrap()));
    assert_eq!(broken(ended), ("Errored", 1, None));
    // One that gives up earlier says so.
    let attributes = ConnectAttributes { retry_count: RetryCount::new(0).unwrap(), ..ConnectAttributes::default() };
    let mut wire = Wire::with(wire.domain, &attributes);
    let ended = wire.exclusive.scope(PATIENCE, |scope| {
        let ticket = scope.post_send(scope.lend(&bytes).unwrap()).unwrap();
        InScopeError::from(scope.wait(ticket).unwrap_err())
    });
    assert!(matches!(&ended, Err(ScopeError::Broken { result: InScopeError::Failed(_), .. })), "{ended:?}");
    assert_eq!(broken(ended), ("Errored", 0, Some(Status::RetryExceeded)));
}

#[test]
fn a_flush_that_comes_late_is_waited_for() {
    let (fabric, mut wire) = wire!(Fabric::new());
    fabric.inject(Fault::FlushWithheld);
    let mut buffer = [0_u8; 8];
    let ended = wire
        .exclusive
        .scope(Duration::ZERO, |scope| drop(scope.post_receive(scope.lend_mut(&mut buffer).unwrap()).unwrap()));
    assert_eq!(broken(ended), ("Errored", 1, None));
}

/// Posts a send, a receive and a read, on a fabric that does not move by itself; then `faults`, then the end of the scope.
/// Afterwards the memory is changed, and what the device then does must not be seen. Says the state of the pair, and whether
/// the poller is still there.
fn cut_off_on_a_device_that_stands_still(faults: &[Fault]) -> (&'static str, bool) {
    let fabric = Fabric::manual();
    let context = Context::open_on(&fabric, "dev0").unwrap();
    let ended = context.with_domain(|domain| {
        let mut wire = Wire::new(domain);
        let region = wire.domain.register::<RemoteRead, _>(vec![7_u64; 2]).unwrap();
        wire.peer_posts_receive(16);
        wire.peer_sends(b"too late");
        let (message, mut buffer, mut copy) = (vec![1_u8; 16], vec![0_u8; 16], vec![0_u64; 2]);
        let ended = wire.exclusive.scope(Duration::ZERO, |scope| {
            drop(scope.post_send(scope.lend(&message).unwrap()).unwrap());
            drop(scope.post_receive(scope.lend_mut(&mut buffer).unwrap()).unwrap());
            drop(scope.post_read(scope.lend_mut(&mut copy).unwrap(), &region.remote()).unwrap());
            faults.iter().for_each(|fault| fabric.inject(fault.clone()));
        });
        let (state, cut_off, first) = broken(ended);
        assert_eq!((cut_off, first), (3, None));
        fabric.heal();
        buffer.fill(9);
        copy.fill(9);
        fabric.run();
        assert!(buffer.iter().all(|&byte| byte == 9) && copy.iter().all(|&word| word == 9));
        drop((message, buffer, copy));
        fabric.run();
        let mut parts = wire.exclusive.into_parts();
        if let Some(poller) = &mut parts.poller
            && let Some(completion) = poller.poll().unwrap()
        {
            panic!("{completion:?} is of a scope that is over");
        }
        assert_eq!(parts.queue_pair.state(), state);
        (state, parts.poller.is_some())
    });
    ended.unwrap()
}

#[test]
fn a_pair_that_is_not_flushed_is_reset() {
    assert_eq!(cut_off_on_a_device_that_stands_still(&[]), ("Reset", true));
}

#[test]
fn a_pair_that_is_neither_flushed_nor_reset_is_destroyed() {
    let faults = [always(Verb::ModifyQp, libc::EIO)];
    assert_eq!(cut_off_on_a_device_that_stands_still(&faults), ("Vacant", true));
}

#[test]
fn a_queue_that_gives_nothing_out_goes_with_the_pair() {
    let poll = always(Verb::PollCq, libc::EIO);
    for other in [poll.clone(), always(Verb::DestroyQp, libc::EIO), always(Verb::ModifyQp, libc::EIO)] {
        assert_eq!(cut_off_on_a_device_that_stands_still(&[poll.clone(), other]), ("Vacant", false));
    }
}

#[test]
fn an_exclusive_without_a_pair_refuses_all() {
    let (fabric, mut wire) = wire!(Fabric::manual());
    let mut buffer = [0_u8; 8];
    fabric.inject(always(Verb::ModifyQp, libc::EIO));
    let ended = wire
        .exclusive
        .scope(Duration::ZERO, |scope| drop(scope.post_receive(scope.lend_mut(&mut buffer).unwrap()).unwrap()));
    assert_eq!(broken(ended), ("Vacant", 1, None));
    let owned = wire.domain.buffer(8).unwrap();
    let refused = wire.exclusive.post_receive(owned).unwrap_err();
    assert!(matches!(refused, PostError::Broken { .. }));
    let refused = wire.exclusive.post(interlock::WorkRequest::send(refused.into_request().unwrap()));
    assert!(matches!(refused, Err(PostError::Broken { .. })));
    assert!(matches!(wire.exclusive.scope(SHORT, |_| ()), Err(ScopeError::NotConnected { state: "Vacant" })));
    assert!(wire.exclusive.poll().unwrap().is_none());
    assert!(format!("{:?}", wire.exclusive).contains("Vacant"));
}

#[test]
fn a_post_that_may_be_queued_keeps_the_memory_until_the_pair_is_flushed() {
    let (fabric, mut wire) = wire!(Fabric::new());
    let mut buffer = [0_u8; 8];
    let ended = wire.exclusive.scope(PATIENCE, |scope| {
        fabric.inject(Fault::ReceiveKept { errno: libc::EINVAL });
        let error = scope.post_receive(scope.lend_mut(&mut buffer).unwrap()).unwrap_err();
        assert!(matches!(error, PostError::Uncertain { .. }), "{error:?}");
    });
    assert_eq!(broken(ended), ("Errored", 1, None));
    // Nothing of it comes out later.
    assert!(wire.exclusive.poll().unwrap().is_none());
}

#[test]
fn a_refused_post_gives_the_memory_back() {
    let (fabric, mut wire) = wire!(Fabric::new());
    wire.peer_posts_receive(8);
    let bytes = [6_u8; 8];
    wire.exclusive
        .scope(PATIENCE, |scope| {
            fabric.inject(fails(Verb::PostSend, libc::ENOMEM));
            let error = scope.post_send(scope.lend(&bytes)?).unwrap_err();
            assert!(matches!(&error, PostError::Refused { request, .. } if request[..] == [6; 8]), "{error:?}");
            scope.wait(scope.post_send(error.into_request().unwrap())?)?;
            Ok::<_, InScopeError>(())
        })
        .unwrap()
        .unwrap();
    assert_eq!(wire.peer_received(), [6; 8]);
}

#[test]
fn a_full_queue_gives_the_memory_back() {
    let (fabric, mut wire) = wire!(Fabric::manual());
    let mut buffer = [0_u8; 8 * (DEPTH as usize + 1)];
    let ended = wire.exclusive.scope(Duration::ZERO, |scope| {
        let mut rest = scope.lend_mut(&mut buffer).unwrap();
        for _ in 0..DEPTH {
            let (part, after) = rest.split_at(8).unwrap();
            rest = after;
            drop(scope.post_receive(part).unwrap());
        }
        let error = scope.post_receive(rest).unwrap_err();
        assert!(matches!(&error, PostError::QueueFull(memory) if memory.capacity() == 8), "{error:?}");
    });
    assert_eq!(broken(ended), ("Reset", DEPTH, None));
    fabric.run();
}

#[test]
fn a_limit_of_locked_memory_is_a_typed_error() {
    let (fabric, mut wire) = wire!(Fabric::new());
    let bytes = vec![0_u8; 1 << 20];
    fabric.inject(Fault::LockedMemoryLimit { bytes: (1 << 20) - 1 });
    wire.exclusive
        .scope(PATIENCE, |scope| {
            let refused = scope.lend(&bytes).unwrap_err();
            let limited =
                matches!(refused, RegisterFailure::LockedMemoryLimit(ref limit) if limit.needed_bytes == 0x10_0000);
            assert!(limited || matches!(refused, RegisterFailure::Verb(_)), "{refused:?}");
            scope.lend(&bytes[..8]).unwrap();
        })
        .unwrap();
}

#[test]
#[cfg_attr(miri, ignore = "too much memory")]
fn memory_longer_than_a_message_is_sent_in_slices() {
    if on_hardware() {
        return; // its machine has little memory, and this is about the soft device
    }
    let (_fabric, mut wire) = wire!(Fabric::new());
    wire.peer_posts_receive(8);
    // Never touched, so never there.
    let bytes = vec![0_u8; interlock::MAX_MESSAGE_BYTES + 8];
    wire.exclusive
        .scope(PATIENCE, |scope| {
            let error = scope.post_send(scope.lend(&bytes).unwrap()).unwrap_err();
            let PostError::Flawed { request, flaw: RequestFlaw::TooLong { .. } } = error else { panic!("{error:?}") };
            let end = request.slice(interlock::MAX_MESSAGE_BYTES..interlock::MAX_MESSAGE_BYTES + 8).unwrap();
            scope.wait(scope.post_send(end).unwrap()).unwrap();
        })
        .unwrap();
    assert_eq!(wire.peer_received(), [0; 8]);
}

#[test]
fn a_registration_that_ends_late_is_waited_for() {
    let (fabric, mut wire) = wire!(Fabric::new());
    let (bytes, mut words) = ([0_u8; 8], [0_u64; 1]);
    wire.exclusive
        .scope(PATIENCE, |scope| {
            drop(scope.lend(&bytes).unwrap());
            drop(scope.grant::<RemoteWrite>(&mut words).unwrap());
            fabric.inject(Fault::VerbFails { verb: Verb::DeregMr, after: 0, count: 3, errno: libc::EBUSY });
        })
        .unwrap();
}

#[test]
fn a_private_registration_that_does_not_end_is_leaked_with_its_domain() {
    interlock::domain! { struct Leaky; }
    let fabric = Fabric::new();
    let context = Context::open_on(&fabric, "dev0").unwrap();
    let mut wire = Wire::new(context.named_domain(Leaky).unwrap());
    let bytes = vec![0_u8; 8];
    wire.exclusive
        .scope(PATIENCE, |scope| {
            drop(scope.lend(&bytes).unwrap());
            fabric.inject(always(Verb::DeregMr, libc::EBUSY));
        })
        .unwrap();
    fabric.heal();
    drop((bytes, wire));
    assert!(matches!(context.named_domain(Leaky), Err(NamedDomainError::Taken { .. })));
}

#[test]
fn a_domain_whose_scopes_are_over_is_freed() {
    interlock::domain! { struct Clean; }
    let context = context();
    let mut wire = Wire::new(context.named_domain(Clean).unwrap());
    let (bytes, mut buffer) = ([0_u8; 8], [0_u8; 8]);
    let ended = wire.exclusive.scope(Duration::ZERO, |scope| {
        let lent = scope.lend(&bytes).unwrap();
        drop(scope.post_receive(scope.lend_mut(&mut buffer).unwrap()).unwrap());
        drop(lent.slice(0..2));
    });
    assert_eq!(broken(ended), ("Errored", 1, None));
    drop(wire);
    context.named_domain(Clean).expect("nothing of the domain is left");
}

#[test]
fn a_device_that_goes_away_with_nothing_in_flight_ends_no_process() {
    let (fabric, mut wire) = wire!(Fabric::new());
    let bytes = [0_u8; 8];
    wire.exclusive
        .scope(SHORT, |scope| {
            drop(scope.lend(&bytes).unwrap());
            fabric.inject(Fault::DeviceRemoved { device: "dev0".to_owned() });
        })
        .unwrap();
}

#[test]
fn a_device_that_fails_but_lets_go_ends_no_process() {
    let (fabric, mut wire) = wire!(Fabric::new());
    let mut buffer = [0_u8; 8];
    let ended = wire.exclusive.scope(SHORT, |scope| {
        drop(scope.post_receive(scope.lend_mut(&mut buffer).unwrap()).unwrap());
        fabric.inject(Fault::DeviceFatal { device: "dev0".to_owned() });
    });
    assert!(ended.is_err());
}

// The last resort.

/// Runs the test `name` of this program again, as another process, which must abort with `message`. Says whether this is
/// that process.
fn is_to_abort(name: &str, message: &str) -> bool {
    const ABORTS: &str = "INTERLOCK_TEST_ABORTS";
    if env::var_os(ABORTS).is_some_and(|which| which == name) {
        return true;
    }
    let output = Command::new(env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture", "--test-threads=1"])
        .env(ABORTS, name)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    let signal = std::os::unix::process::ExitStatusExt::signal(&output.status);
    assert_eq!(signal, Some(libc::SIGABRT), "{said}");
    assert!(said.contains("interlock: the memory of a scope is still in use: ") && said.contains(message), "{said}");
    assert!(!said.contains("got away"), "{said}");
    false
}

#[test]
#[cfg_attr(miri, ignore = "has no processes")]
fn a_device_that_lets_go_of_nothing_ends_the_process() {
    if !is_to_abort("a_device_that_lets_go_of_nothing_ends_the_process", "neither flushed nor ended") {
        return;
    }
    let (fabric, mut wire) = wire!(Fabric::manual());
    let mut buffer = [0_u8; 8];
    let ended = wire.exclusive.scope(Duration::ZERO, |scope| {
        drop(scope.post_receive(scope.lend_mut(&mut buffer).unwrap()).unwrap());
        fabric.inject(always(Verb::ModifyQp, libc::EIO));
        fabric.inject(always(Verb::DestroyQp, libc::EIO));
    });
    eprintln!("got away: {ended:?}");
}

#[test]
#[cfg_attr(miri, ignore = "has no processes")]
fn a_panic_over_a_device_that_lets_go_of_nothing_ends_the_process() {
    if !is_to_abort("a_panic_over_a_device_that_lets_go_of_nothing_ends_the_process", "neither flushed nor ended") {
        return;
    }
    let (fabric, mut wire) = wire!(Fabric::manual());
    let caught = catch_unwind(AssertUnwindSafe(|| {
        let mut buffer = [0_u8; 8];
        wire.exclusive.scope(Duration::ZERO, |scope| {
            drop(scope.post_receive(scope.lend_mut(&mut buffer).unwrap()).unwrap());
            fabric.inject(always(Verb::ModifyQp, libc::EIO));
            fabric.inject(always(Verb::DestroyQp, libc::EIO));
            panic!("in the closure");
        })
    }));
    eprintln!("got away: {caught:?}");
}

#[test]
#[cfg_attr(miri, ignore = "has no processes")]
fn a_device_that_is_pulled_out_with_requests_in_flight_ends_the_process() {
    if !is_to_abort("a_device_that_is_pulled_out_with_requests_in_flight_ends_the_process", "neither flushed nor ended")
    {
        return;
    }
    let (fabric, mut wire) = wire!(Fabric::new());
    let mut buffer = [0_u8; 8];
    let ended = wire.exclusive.scope(SHORT, |scope| {
        drop(scope.post_receive(scope.lend_mut(&mut buffer).unwrap()).unwrap());
        fabric.inject(Fault::DeviceRemoved { device: "dev0".to_owned() });
    });
    eprintln!("got away: {ended:?}");
}

#[test]
#[cfg_attr(miri, ignore = "has no processes")]
fn memory_that_peers_can_still_reach_ends_the_process() {
    if !is_to_abort("memory_that_peers_can_still_reach_ends_the_process", "peers can still reach it") {
        return;
    }
    let (fabric, mut wire) = wire!(Fabric::new());
    let mut words = [0_u64; 8];
    let ended = wire.exclusive.scope(SHORT, |scope| {
        drop(scope.grant::<RemoteWrite>(&mut words).unwrap());
        fabric.inject(always(Verb::DeregMr, libc::EBUSY));
    });
    eprintln!("got away: {ended:?}");
}

/// For the numbers in the documentation.
#[test]
#[ignore = "prints what a scope and a lend cost; run it in a release build"]
fn what_lending_costs() {
    const ROUNDS: u32 = 200;
    let mut wire = wire!();
    let time = |what: &str, round: &mut dyn FnMut()| {
        (0..10).for_each(|_| round());
        let begun = Instant::now();
        (0..ROUNDS).for_each(|_| round());
        println!("{what}: {} ns", begun.elapsed().as_nanos() / u128::from(ROUNDS));
    };
    let mut bytes = vec![1_u8; 1 << 20];
    time("an empty scope", &mut || wire.exclusive.scope(PATIENCE, |_| ()).unwrap());
    for len_bytes in [64, 4096, 65_536, 1 << 20] {
        time(&format!("a scope that lends {len_bytes} bytes"), &mut || {
            wire.exclusive.scope(PATIENCE, |scope| drop(scope.lend_mut(&mut bytes[..len_bytes]).unwrap())).unwrap();
        });
        let source = bytes.clone();
        time(&format!("a copy of {len_bytes} bytes"), &mut || {
            bytes[..len_bytes].copy_from_slice(std::hint::black_box(&source[..len_bytes]));
        });
    }
}
