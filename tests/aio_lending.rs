//! Memory lent between peers. It comes back when the peer returns it, or at its deadline, and always after its
//! deregistration, whatever the peer or the program does. The same tests run on every device.

use interlock::aio::lend::{
    AskError, CONTROL_BYTES, ControlError, Granted, LendFailure, Lending, LendingOptions, LendingReceiver, Lent, Mark,
    MessageError, Over, Quota, Refusal, UseError, Violation,
};
use interlock::aio::{Driver, Receiver, RequestError, Sender, SharedPoller, SharedSender};
use interlock::attributes::PeerRights;
use interlock::memory::Lease;
use interlock::soft::{Fault, Verb};
use interlock::{Brand, Buffer, ProtectionDomain, RemoteRead, RemoteReadWrite, RemoteRegion, RemoteWrite, Status};
use std::future::{pending, poll_fn};
use std::mem;
use std::num::NonZeroU64;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};
use support::{Link, Need, PATIENCE, context, lacks_need};

/// Long enough never to pass in a test.
const LONG: Duration = Duration::from_secs(3600);
/// Short, and longer than the margin.
const SHORT: Duration = Duration::from_millis(60);
const MARGIN: Duration = Duration::from_millis(10);

fn bytes(len: u64) -> NonZeroU64 {
    NonZeroU64::new(len).unwrap()
}

/// One side of a connection.
struct Side<B> {
    lending: Lending<B>,
    messages: Option<LendingReceiver<B>>,
}

/// Two sides that lend to each other, and what they need.
struct Peers<B: Brand> {
    domain: ProtectionDomain<B>,
    driver: Driver<B>,
    poller: SharedPoller<B>,
    left: Side<B>,
    right: Side<B>,
}

fn options() -> LendingOptions {
    LendingOptions { quota: Quota { bytes: 4096, grants: 2 }, margin: MARGIN, ..LendingOptions::default() }
}

impl<B: Brand> Peers<B> {
    fn new(domain: ProtectionDomain<B>, options: &LendingOptions) -> Self {
        let (domain, driver, poller, [left, right]) = pairs(domain);
        let [left, right] = [left, right].map(|(sender, receiver)| {
            let (lending, mut messages) =
                Lending::start(&domain, &poller, sender.into_shared(), receiver, options).unwrap();
            for buffer in domain.buffers(8, CONTROL_BYTES).unwrap() {
                messages.post_receive(buffer).unwrap();
            }
            Side { lending, messages: Some(messages) }
        });
        Self { domain, driver, poller, left, right }
    }

    /// Runs `future` while both sides send and receive control messages.
    fn run<F: Future>(&mut self, future: F) -> F::Output {
        let Self { driver, poller, left, right, .. } = self;
        let mut late = poller.sleep(PATIENCE);
        let mut future = pin!(future);
        let mut messages = [&mut left.messages, &mut right.messages].map(|side| {
            let side = side.as_mut();
            Box::pin(async move {
                if let Some(side) = side {
                    // Skip violations of the peer. `future` learns of the end of the connection by itself.
                    while let Some(Ok(_) | Err(MessageError::Peer(_))) = side.next().await {}
                }
                pending::<()>().await;
            })
        });
        let both = poll_fn(|context| {
            for side in &mut messages {
                let _ = side.as_mut().poll(context);
            }
            // Under Miri, the clock advances with the instructions that run, so `late` can be over without a fault.
            assert!(cfg!(miri) || Pin::new(&mut late).poll(context).is_pending(), "nothing happens any more");
            future.as_mut().poll(context)
        });
        driver.block_on(both).unwrap()
    }

    /// Lets all messages arrive.
    fn settle(&mut self) {
        // Several naps, since the answer to a message goes out only when somebody polls again. On a busy machine one
        // nap of the same length might be a single poll.
        for _ in 0..15 {
            let nap = self.poller.sleep(Duration::from_millis(if cfg!(miri) { 70 } else { 1 }));
            self.run(nap);
        }
    }

    /// Waits until `is_so` returns true.
    fn until(&mut self, mut is_so: impl FnMut() -> bool) {
        let start = Instant::now();
        while !is_so() {
            assert!(cfg!(miri) || start.elapsed() < PATIENCE, "it never comes");
            let nap = self.poller.sleep(Duration::from_millis(1));
            self.run(nap);
        }
    }

    fn lease<A: interlock::access::Exposed>(&self, duration: Duration) -> Lease<B, A> {
        self.domain.lease::<A, _>(self.domain.buffer(64).unwrap(), duration).unwrap()
    }

    fn buffer(&self, text: &[u8]) -> Buffer<B> {
        let mut buffer = self.domain.buffer(64).unwrap();
        buffer.write(text).unwrap();
        buffer
    }

    /// The left side lends to the right side.
    fn lend(&mut self, duration: Duration) -> (Lent<B, RemoteWrite>, Granted<B, RemoteWrite>) {
        let lent = self.left.lending.lend(self.lease(duration)).unwrap();
        let right = self.right.lending.clone();
        let granted = self.run(async move { right.granted().await.unwrap().accept().unwrap() });
        (lent, granted)
    }
}

type HalvesOf<B> = (Sender<B>, Receiver<B>);

fn pairs<B: Brand>(domain: ProtectionDomain<B>) -> (ProtectionDomain<B>, Driver<B>, SharedPoller<B>, [HalvesOf<B>; 2]) {
    let Link { domain, poller, left, right, .. } = Link::new(domain, 16);
    let poller = SharedPoller::new(poller);
    let driver = poller.driver().unwrap();
    let pairs = [poller.split(left).unwrap(), poller.split(right).unwrap()];
    (domain, driver, poller, pairs)
}

macro_rules! domain {
    () => {
        context().checked_domain().unwrap()
    };
}

#[test]
fn lent_memory_comes_back_with_what_the_peer_wrote() {
    let mut peers = Peers::new(domain!(), &options());
    let (lent, granted) = peers.lend(LONG);
    assert_eq!((granted.len_bytes(), granted.is_over()), (64, false));
    let text = peers.buffer(b"for you");
    let written = granted.slice(8..64).unwrap().write(text).unwrap();
    drop(granted);
    let (memory, over) = peers.run(async { lent.ended().await.unwrap() });
    assert_eq!((&memory[8..15], over), (&b"for you"[..], Over::Returned));
    peers.run(async { written.await.unwrap() });
    let right = peers.right.lending.clone();
    peers.until(|| right.held() == 0); // the owner has confirmed
}

/// The return is fenced: it waits for the read.
#[test]
fn a_return_does_not_overtake_a_read() {
    if lacks_need(Need::ReadableMemoryBack) {
        return;
    }
    let mut peers = Peers::new(domain!(), &options());
    let lease = peers.domain.lease::<RemoteReadWrite, _>(vec![7_u64; 8], LONG).unwrap();
    let lent = peers.left.lending.lend(lease).unwrap();
    let right = peers.right.lending.clone();
    let buffer = peers.domain.buffer(64).unwrap();
    let (read, memory) = peers.run(async move {
        let granted: Granted<_, RemoteRead> = right.granted().await.unwrap().accept().unwrap();
        let read = granted.whole().read(buffer).unwrap();
        drop(granted);
        let (memory, _) = lent.ended().await.unwrap();
        (read.await.unwrap(), memory)
    });
    assert_eq!(read[..8], memory[0].to_ne_bytes());
}

/// The peer is silent. The memory comes back at the deadline, and a later write of the peer fails with a typed error.
#[test]
fn at_the_deadline_memory_comes_back_and_a_late_write_fails() {
    let mut peers = Peers::new(domain!(), &options());
    let before = Instant::now();
    let lent = peers.left.lending.lend(peers.lease::<RemoteWrite>(SHORT)).unwrap();
    // The peer uses only the record, which does not contain the deadline.
    let record = lent.remote();
    let (memory, over) = peers.run(async { lent.ended().await.unwrap() });
    assert_eq!(over, Over::Expired);
    assert!(before.elapsed() >= SHORT);
    let sender = peers.right.lending.sender().clone();
    let late = peers.buffer(b"too late");
    let written = peers.run(async move { sender.with(|sender| sender.write(late, &record)).unwrap().await });
    assert_refused(written);
    peers.settle();
    assert_eq!(memory[..8], [0; 8]);
}

#[test]
fn a_holder_refuses_to_post_after_the_deadline() {
    let mut peers = Peers::new(domain!(), &options());
    let (lent, granted) = peers.lend(SHORT);
    assert!(granted.remaining() <= SHORT - MARGIN);
    let nap = peers.poller.sleep(SHORT);
    peers.run(nap);
    let refused = granted.whole().write(peers.buffer(b"late")).unwrap_err();
    assert!(matches!(refused, UseError::Over(_)));
    assert_eq!(&refused.into_memory().unwrap()[..], b"late");
    assert!(granted.is_over() && granted.remaining().is_zero());
    assert_eq!(peers.run(async { lent.ended().await.unwrap() }).1, Over::Expired);
}

#[test]
fn a_grant_that_its_owner_ends_is_over_for_the_holder() {
    let mut peers = Peers::new(domain!(), &options());
    let (lent, granted) = peers.lend(LONG);
    assert_eq!(lent.end().unwrap().len(), 64);
    peers.until(|| granted.is_over());
    assert!(matches!(granted.whole().write(peers.buffer(b"late")), Err(UseError::Over(_))));
    // The owner has ended the grant, so the drop must send no return.
    drop(granted);
    peers.settle();
    assert_eq!((peers.left.lending.violations(), peers.right.lending.held()), (0, 0));
}

#[test]
fn memory_that_is_asked_for_is_granted_written_and_handed_over() {
    let mut peers = Peers::new(domain!(), &options());
    let (left, right, domain) = (peers.left.lending.clone(), peers.right.lending.clone(), peers.domain.clone());
    let text = peers.buffer(b"mine, now yours");
    let serves = async {
        let asked = right.asked().await.unwrap();
        assert_eq!((asked.len_bytes(), asked.duration()), (64, LONG));
        assert_eq!(asked.rights(), PeerRights { write: true, ..PeerRights::NONE });
        let lease = domain.lease::<RemoteWrite, _>(vec![0_u64; 8], asked.duration()).unwrap();
        let lent = asked.answer(lease).unwrap();
        assert_eq!(right.charged(), (64, 1));
        lent.ended().await.unwrap()
    };
    let asks = async {
        let granted = left.request::<RemoteWrite>(bytes(64), LONG).await.unwrap();
        granted.whole().write(text).unwrap().await.unwrap();
        granted.pass_on(17).confirmed().await
    };
    let ((memory, over), moved) = peers.run(both(serves, asks));
    assert_eq!((over, moved), (Over::PassedOn { to: 17 }, true));
    assert_eq!(memory[0].to_ne_bytes(), *b"mine, no");
    assert_eq!(peers.right.lending.charged(), (0, 0));
}

#[test]
fn a_quota_bounds_what_a_peer_asks_for_until_the_memory_is_deregistered() {
    let mut peers = Peers::new(domain!(), &options());
    let left = peers.left.lending.clone();
    let ask = |len| {
        let left = left.clone();
        async move { left.request::<RemoteWrite>(bytes(len), LONG).await.map(drop) }
    };
    assert_eq!(peers.run(ask(4097)), Err(AskError::Refused(Refusal::TooManyBytes)));
    let (right, domain) = (peers.right.lending.clone(), peers.domain.clone());
    let lent = |asked: interlock::aio::lend::Asked<_>| {
        asked.answer(domain.lease::<RemoteWrite, _>(vec![0_u64; 256], LONG).unwrap()).unwrap()
    };
    let serve = async { lent(right.asked().await.unwrap()) };
    let (mut first, answered) = peers.run(both(serve, ask(2048)));
    answered.unwrap();
    // The peer returned the memory at once. The memory still counts against the quota, because it is not deregistered
    // yet.
    assert_eq!(peers.run(first.over()), Over::Returned);
    assert_eq!(peers.run(ask(2049)), Err(AskError::Refused(Refusal::TooManyBytes)));
    let serve = async { lent(right.asked().await.unwrap()) };
    let (second, answered) = peers.run(both(serve, ask(2048)));
    answered.unwrap();
    assert_eq!(peers.run(ask(1)), Err(AskError::Refused(Refusal::TooManyGrants)));
    drop((first, second));
    assert_eq!(peers.right.lending.charged(), (0, 0));
    let declined = async { right.asked().await.unwrap().refuse() };
    assert_eq!(peers.run(both(declined, ask(4096))).1, Err(AskError::Refused(Refusal::Declined)));
}

#[test]
fn an_answer_must_be_as_much_as_was_asked_for() {
    let mut peers = Peers::new(domain!(), &options());
    let (left, right) = (peers.left.lending.clone(), peers.right.lending.clone());
    let (readable, small) = (peers.lease::<RemoteRead>(LONG), peers.lease::<RemoteWrite>(LONG));
    let serves = async {
        let error = right.asked().await.unwrap().answer(readable).unwrap_err();
        assert_eq!(error.why, LendFailure::TooLittle);
        assert_eq!(right.asked().await.unwrap().answer(small).unwrap_err().why, LendFailure::TooLittle);
    };
    let asks = async {
        let first = left.request::<RemoteWrite>(bytes(8), LONG).await.map(drop);
        (first, left.request::<RemoteWrite>(bytes(65), LONG).await.map(drop))
    };
    let declined = Err(AskError::Refused(Refusal::Declined));
    assert_eq!(peers.run(both(serves, asks)).1, (declined, declined));
}

/// Offers, requests and memory are dropped at each step. No memory stays lent, and no memory is lost.
#[test]
fn what_is_dropped_at_any_step_is_returned_or_ended() {
    let mut peers = Peers::new(domain!(), &options());
    // First, an offer is dropped before it is accepted.
    let lent = peers.left.lending.lend(peers.lease::<RemoteWrite>(LONG)).unwrap();
    let right = peers.right.lending.clone();
    drop(peers.run(right.granted()));
    assert_eq!(peers.run(async { lent.ended().await.unwrap() }).1, Over::Returned);
    // Then the future of a request is dropped before the answer.
    let left = peers.left.lending.clone();
    let mut asks = Box::pin(left.request::<RemoteWrite>(bytes(8), LONG));
    assert!(peers.run(poll_fn(|context| Poll::Ready(asks.as_mut().poll(context).is_pending()))));
    drop(asks);
    let domain = peers.domain.clone();
    let over = peers.run(async {
        let asked = right.asked().await.unwrap();
        let lease = domain.lease::<RemoteWrite, _>(vec![0_u64; 8], LONG).unwrap();
        asked.answer(lease).unwrap().ended().await.unwrap().1
    });
    assert_eq!(over, Over::Returned);
    // Then the future of a request is dropped after the answer has come, without another poll.
    let mut asks = Box::pin(left.request::<RemoteWrite>(bytes(8), LONG));
    assert!(peers.run(poll_fn(|context| Poll::Ready(asks.as_mut().poll(context).is_pending()))));
    let mut lent = peers.run(async {
        let lease = domain.lease::<RemoteWrite, _>(vec![0_u64; 8], LONG).unwrap();
        right.asked().await.unwrap().answer(lease).unwrap()
    });
    peers.settle();
    drop(asks);
    assert_eq!(peers.run(lent.over()), Over::Returned);
    drop(lent);
    // Finally, the owner drops the memory that it lends.
    let (lent, granted) = peers.lend(LONG);
    drop(lent);
    peers.until(|| granted.is_over());
    drop(granted);
    peers.until(|| [&left, &right].iter().all(|side| side.charged() == (0, 0) && side.held() == 0));
    peers.settle();
    for side in [&peers.left, &peers.right] {
        assert_eq!((side.lending.charged(), side.lending.held(), side.lending.violations()), ((0, 0), 0, 0));
    }
}

/// Forgetting a grant does not end it: the holder loses the grant at its deadline.
#[test]
fn a_grant_that_is_forgotten_ends_at_its_deadline() {
    let mut peers = Peers::new(domain!(), &options());
    let (lent, granted) = peers.lend(SHORT);
    mem::forget(granted);
    assert_eq!(peers.run(async { lent.ended().await.unwrap() }).1, Over::Expired);
    let right = peers.right.lending.clone();
    peers.until(|| right.held() == 0); // the owner tells the holder
}

/// Lent memory that the owner forgets stays usable for the peer, and is never freed.
#[test]
fn lent_memory_that_is_forgotten_is_still_there_for_the_peer() {
    let mut peers = Peers::new(domain!(), &options());
    let (lent, granted) = peers.lend(LONG);
    mem::forget(lent);
    let text = peers.buffer(b"anybody?");
    peers.run(async { granted.whole().write(text).unwrap().await.unwrap() });
}

#[test]
fn a_goodbye_ends_grants_and_requests_of_both_sides() {
    let mut peers = Peers::new(domain!(), &options());
    let (mut lent, granted) = peers.lend(LONG);
    let left = peers.left.lending.clone();
    let mut asks = Box::pin(left.request::<RemoteWrite>(bytes(8), LONG));
    assert!(peers.run(poll_fn(|context| Poll::Ready(asks.as_mut().poll(context).is_pending()))));
    peers.right.lending.say_goodbye();
    let left_sees_it = left.clone();
    peers.until(|| !left_sees_it.is_open());
    assert_eq!(peers.run(async { asks.await.map(drop) }), Err(AskError::Closed));
    assert_eq!(peers.run(lent.over()), Over::Closed);
    assert!(!peers.left.lending.is_open() && peers.run(async { left.granted().await.is_none() }));
    assert_eq!(peers.left.lending.lend(peers.lease::<RemoteWrite>(LONG)).unwrap_err().why, LendFailure::Closed);
    drop((granted, lent));
}

#[test]
fn a_connection_that_ends_gives_memory_back() {
    let mut peers = Peers::new(domain!(), &options());
    let (lent, granted) = peers.lend(LONG);
    drop(granted);
    peers.left.messages = None;
    assert_eq!(peers.run(async { lent.ended().await.unwrap() }).1, Over::Closed);
}

/// With an immediate as the mark, messages of the program pass, even those that look like control messages.
#[test]
fn messages_of_the_program_pass_by_the_control_messages() {
    if context().is_iwarp() {
        return; // no immediates
    }
    let options = LendingOptions { mark: Mark::Immediate(0xfeed), ..options() };
    let mut peers = Peers::new(domain!(), &options);
    let (lent, granted) = peers.lend(LONG);
    let mut messages = peers.right.messages.take().unwrap();
    // The program sends a message with the bytes of a valid goodbye, but without the immediate.
    let mut goodbye = peers.domain.buffer(CONTROL_BYTES).unwrap();
    let mut bye = [0; CONTROL_BYTES];
    bye[..4].copy_from_slice(b"IL\x01\x07");
    goodbye.write(&bye).unwrap();
    let sender = peers.left.lending.sender().clone();
    let sent = sender.with(|sender| sender.send(goodbye)).unwrap();
    let message = peers.run(async {
        let message = messages.next().await.unwrap().unwrap();
        sent.await.unwrap();
        message
    });
    assert_eq!(message.into_received().unwrap()[..4], *b"IL\x01\x07");
    assert!(peers.right.lending.is_open());
    peers.right.messages = Some(messages);
    drop(granted);
    assert_eq!(peers.run(async { lent.ended().await.unwrap() }).1, Over::Returned);
}

/// A peer that sends arbitrary messages. The left side uses the library.
struct Hostile<B: Brand> {
    peers: Peers<B>,
    sender: SharedSender<B>,
    receiver: Receiver<B>,
}

fn hostile<B: Brand>(domain: ProtectionDomain<B>) -> Hostile<B> {
    let (domain, driver, poller, [left, (sender, mut receiver)]) = pairs(domain);
    let sender = sender.into_shared();
    let (lending, mut messages) = Lending::start(&domain, &poller, left.0.into_shared(), left.1, &options()).unwrap();
    for buffer in domain.buffers(16, CONTROL_BYTES).unwrap() {
        messages.post_receive(buffer).unwrap();
    }
    for buffer in domain.buffers(16, CONTROL_BYTES).unwrap() {
        receiver.post_receive(buffer).unwrap();
    }
    let left = Side { lending: lending.clone(), messages: Some(messages) };
    let right = Side { lending, messages: None };
    Hostile { peers: Peers { domain, driver, poller, left, right }, sender, receiver }
}

impl<B: Brand> Hostile<B> {
    /// Sends bytes. The other side must report this violation; if it is `None`, no violation for a short time.
    #[track_caller]
    fn send(&mut self, bytes: &[u8], expected: Option<Violation>) {
        let before = self.peers.left.lending.violations();
        let buffer = self.peers.buffer(bytes);
        let sent = self.sender.with(|sender| sender.send(buffer)).unwrap();
        let mut messages = self.peers.left.messages.take().unwrap();
        // On iWARP a send completes before its message arrives, so an expected violation can come some time later.
        let nap = if expected.is_some() { PATIENCE } else { Duration::from_millis(5) };
        let nap = self.peers.poller.sleep(nap);
        let violation = self.peers.run(async {
            sent.await.unwrap();
            let (mut next, mut nap) = (pin!(messages.next()), nap);
            poll_fn(|context| match next.as_mut().poll(context) {
                Poll::Ready(Some(Err(MessageError::Peer(violation)))) => Poll::Ready(Some(violation)),
                Poll::Ready(_) => panic!("not a violation"),
                Poll::Pending => Pin::new(&mut nap).poll(context).map(|()| None),
            })
            .await
        });
        assert_eq!(violation, expected);
        assert_eq!(self.peers.left.lending.violations() - before, u64::from(violation.is_some()));
        self.peers.left.messages = Some(messages);
    }
}

/// A control message with this kind.
fn kind(kind: u8, edit: impl FnOnce(&mut [u8; CONTROL_BYTES])) -> [u8; CONTROL_BYTES] {
    let mut bytes = [0; CONTROL_BYTES];
    bytes[..4].copy_from_slice(&[b'I', b'L', 1, kind]);
    edit(&mut bytes);
    bytes
}

#[test]
fn a_hostile_peer_gets_typed_answers_and_nothing_else() {
    let mut hostile = hostile(domain!());
    let lent = hostile.peers.left.lending.lend(hostile.peers.lease::<RemoteWrite>(SHORT)).unwrap();
    hostile.send(b"", Some(Violation::Control(ControlError::Length { found: 0 })));
    hostile.send(&[0xff; CONTROL_BYTES], Some(Violation::Control(ControlError::Magic)));
    hostile.send(&kind(99, |_| ()), Some(Violation::Control(ControlError::Kind(99))));
    // The peer returns a grant that it never had, and then another grant twice.
    hostile.send(&kind(2, |bytes| bytes[15] = 9), Some(Violation::UnknownGrant));
    hostile.send(&kind(2, |bytes| bytes[15] = 1), None);
    hostile.send(&kind(2, |bytes| bytes[15] = 1), Some(Violation::Replayed));
    // The first return has ended the grant. But the program gets the memory back only from `ended`.
    assert_eq!(hostile.peers.run(async { lent.ended().await.unwrap() }).1, Over::Returned);
    // The peer answers requests that nobody made, and makes the same offer twice.
    let record = RemoteRegion::<RemoteWrite>::of_peer(8, 8, 1).unwrap().to_bytes();
    let grant = |id: u8, nonce: u8| {
        kind(1, |bytes| {
            (bytes[15], bytes[23]) = (id, nonce);
            bytes[40..].copy_from_slice(&record);
        })
    };
    hostile.send(&grant(1, 5), Some(Violation::UnknownRequest));
    hostile.send(&kind(6, |bytes| bytes[23] = 5), Some(Violation::UnknownRequest));
    hostile.send(&grant(2, 0), None);
    hostile.send(&grant(2, 0), Some(Violation::Replayed));
    // The peer sends a request beyond the quota, and then two requests with the same nonce.
    let ask = |nonce: u8, len: u8| kind(5, |bytes| (bytes[4], bytes[23], bytes[30]) = (2, nonce, len));
    hostile.send(&ask(1, 17), None);
    assert_eq!(hostile.peers.left.lending.charged(), (0, 0), "17 times 256 bytes are refused");
    hostile.send(&ask(2, 16), None);
    let left = hostile.peers.left.lending.clone();
    hostile.peers.until(|| left.charged() == (4096, 1));
    hostile.send(&ask(2, 1), Some(Violation::Replayed));
    drop(hostile.peers.run(async { left.asked().await.unwrap() }));
    assert_eq!(left.charged(), (0, 0));
    // The peer says goodbye, and sends another request after that.
    hostile.send(&kind(7, |_| ()), None);
    hostile.send(&ask(3, 1), Some(Violation::AfterGoodbye));
    // This count includes any violation that came after `send` had stopped waiting for one.
    assert_eq!(hostile.peers.left.lending.violations(), 10);
    drop(hostile.receiver);
}

/// The device does not deregister memory that the peer asked for. The memory stays lent, and counts against the quota.
#[test]
fn memory_that_is_not_deregistered_stays_lent_and_counts() {
    let (fabric, domain) = support::own_device!();
    let mut peers = Peers::new(domain, &options());
    let (left, right, domain) = (peers.left.lending.clone(), peers.right.lending.clone(), peers.domain.clone());
    let asks = async { left.request::<RemoteWrite>(bytes(64), SHORT).await.unwrap() };
    let serves = async {
        let lease = domain.lease::<RemoteWrite, _>(domain.buffer(64).unwrap(), SHORT).unwrap();
        right.asked().await.unwrap().answer(lease).unwrap()
    };
    let (granted, lent) = peers.run(both(asks, serves));
    let busy = Fault::VerbFails { verb: Verb::DeregMr, after: 0, count: 1, errno: 16 };
    fabric.inject(busy.clone());
    let error = peers.run(lent.ended()).unwrap_err();
    assert_eq!(error.source.errno(), 16);
    let lent = error.region;
    assert_eq!((lent.load(0).unwrap(), right.charged()), (0, (64, 1)));
    fabric.inject(Fault::VerbFails { verb: Verb::DeregMr, after: 0, count: 3, errno: 16 });
    drop(lent);
    assert_eq!(right.charged(), (64, 1), "the peer still reaches it");
    drop(granted);
}

/// The device refuses to deregister memory, and then does it when it is asked again. The memory counts no more.
#[test]
fn memory_that_is_deregistered_at_the_second_try_does_not_count() {
    let (fabric, domain) = support::own_device!();
    let mut peers = Peers::new(domain, &options());
    let (left, right, lease) =
        (peers.left.lending.clone(), peers.right.lending.clone(), peers.lease::<RemoteWrite>(LONG));
    let asks = async { left.request::<RemoteWrite>(bytes(64), LONG).await.unwrap() };
    let serves = async { right.asked().await.unwrap().answer(lease).unwrap() };
    let (granted, lent) = peers.run(both(asks, serves));
    fabric.inject(Fault::VerbFails { verb: Verb::DeregMr, after: 0, count: 1, errno: 16 });
    drop(lent);
    assert_eq!(right.charged(), (0, 0));
    drop(granted);
}

/// A waker that panics.
struct Panicking;

impl Wake for Panicking {
    fn wake(self: Arc<Self>) {
        panic!("this waker always panics");
    }
}

/// A task waits with a waker that panics while another one answers, asks, or returns a grant. The panic reaches that
/// one, and nothing stays behind: no grant of memory that is gone, and no request that nobody waits for.
#[test]
fn a_waker_that_panics_leaves_no_grant_and_no_request_behind() {
    let (_fabric, domain) = support::own_device!();
    let mut peers = Peers::new(domain, &options());
    let (left, right) = (peers.left.lending.clone(), peers.right.lending.clone());
    let panicking = Waker::from(Arc::new(Panicking));
    let waits = |lending: &Lending<_>| {
        let lending = lending.clone();
        let mut wait = Box::pin(async move { drop(lending.granted().await) });
        assert!(wait.as_mut().poll(&mut Context::from_waker(&panicking)).is_pending());
        wait
    };
    let mut request = Box::pin(left.request::<RemoteWrite>(bytes(64), LONG));
    assert!(request.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    let asked = peers.run(async { right.asked().await.unwrap() });
    let lease = peers.lease::<RemoteWrite>(LONG);
    let wait = waits(&right);
    assert!(catch_unwind(AssertUnwindSafe(|| drop(asked.answer(lease)))).is_err());
    drop(wait);
    assert_eq!(right.charged(), (0, 0));
    let refused = peers.run(request).unwrap_err();
    assert_eq!(refused, AskError::Refused(Refusal::Declined));

    let wait = waits(&left);
    let mut request = Box::pin(left.request::<RemoteWrite>(bytes(64), LONG));
    let polled =
        catch_unwind(AssertUnwindSafe(|| request.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending()));
    assert!(polled.is_err());
    drop((request, wait));
    let lease = peers.lease::<RemoteWrite>(LONG);
    let lent = peers.run(async { right.asked().await.unwrap().answer(lease).unwrap() });
    assert_eq!(peers.run(async { lent.ended().await.unwrap() }).1, Over::Returned);
    peers.until(|| left.held() == 0);
}

/// The violation wakes a task whose waker panics. The next call returns the violation.
#[test]
fn a_waker_that_panics_loses_no_violation() {
    let (_fabric, domain) = support::own_device!();
    let mut hostile = hostile(domain);
    let lending = hostile.peers.left.lending.clone();
    let panicking = Waker::from(Arc::new(Panicking));
    let mut wait = Box::pin(async move { drop(lending.granted().await) });
    assert!(wait.as_mut().poll(&mut Context::from_waker(&panicking)).is_pending());
    let garbage = hostile.peers.buffer(&[0xff; CONTROL_BYTES]);
    let sent = hostile.sender.with(|sender| sender.send(garbage)).unwrap();
    let mut messages = hostile.peers.left.messages.take().unwrap();
    hostile.peers.run(async { sent.await.unwrap() });
    let noop = &mut Context::from_waker(Waker::noop());
    catch_unwind(AssertUnwindSafe(|| pin!(messages.next()).poll(noop).is_ready())).unwrap_err();
    let noop = &mut Context::from_waker(Waker::noop());
    let Poll::Ready(Some(Err(MessageError::Peer(violation)))) = pin!(messages.next()).poll(noop) else {
        panic!("no violation")
    };
    assert_eq!(violation, Violation::Control(ControlError::Magic));
}

/// The first failed receive ends the lending, which wakes a task whose waker panics. Every receive comes out.
#[test]
fn a_waker_that_panics_loses_no_failed_receive() {
    let (_fabric, domain) = support::own_device!();
    let mut peers = Peers::new(domain, &options());
    let lending = peers.left.lending.clone();
    let panicking = Waker::from(Arc::new(Panicking));
    let waits = lending.clone();
    let mut wait = Box::pin(async move { drop(waits.granted().await) });
    assert!(wait.as_mut().poll(&mut Context::from_waker(&panicking)).is_pending());
    let mut messages = peers.left.messages.take().unwrap();
    lending.sender().with(|sender| sender.abort()).unwrap();
    let noop = &mut Context::from_waker(Waker::noop());
    catch_unwind(AssertUnwindSafe(|| pin!(messages.next()).poll(noop).is_ready())).unwrap_err();
    let noop = &mut Context::from_waker(Waker::noop());
    let mut count = 0;
    while let Poll::Ready(Some(Err(MessageError::Request(_)))) = pin!(messages.next()).poll(noop) {
        count += 1;
    }
    assert_eq!(count, 8);
}

#[test]
fn a_lease_is_held_for_as_long_as_a_future_runs_or_until_a_timeout() {
    let mut peers = Peers::new(domain!(), &options());
    let (first, second, third) =
        (peers.lease::<RemoteWrite>(LONG), peers.lease::<RemoteWrite>(LONG), peers.lease::<RemoteWrite>(SHORT));
    let record = second.remote();
    let poller = peers.poller.clone();
    let (output, _) = peers.run(async { first.hold(&poller, LONG, async { 7 }).await.unwrap() });
    assert_eq!(output, Some(7));
    let (output, memory) = peers.run(async { second.hold(&poller, SHORT, pending::<()>()).await.unwrap() });
    assert_eq!((output, memory.len()), (None, 64));
    let (output, _) = peers.run(async { third.hold(&poller, LONG, pending::<()>()).await.unwrap() });
    assert_eq!(output, None, "the lease's own deadline");
    let sender = peers.right.lending.sender().clone();
    let late = peers.buffer(b"too late");
    let written = peers.run(async move { sender.with(|sender| sender.write(late, &record)).unwrap().await });
    assert_refused(written);
    peers.settle();
    assert_eq!(memory[..8], [0; 8]);
}

#[test]
fn sleepers_wake_in_their_order_and_not_early() {
    let mut peers = Peers::new(domain!(), &options());
    let start = Instant::now();
    let [first, second, lost] = [10, 25, 5].map(|millis| peers.poller.sleep(Duration::from_millis(millis)));
    drop(lost);
    let (first, second) = peers.run(both(
        async {
            first.await;
            start.elapsed()
        },
        async {
            second.await;
            start.elapsed()
        },
    ));
    assert!(first >= Duration::from_millis(10) && second >= Duration::from_millis(25), "{first:?} {second:?}");
}

/// Checks that a write that came too late failed. On iWARP a write completes when it is sent, and the connection ends
/// later.
fn assert_refused<B>(written: Result<Buffer<B>, RequestError<B>>) {
    match written {
        Err(RequestError::Failed(failure)) => assert_eq!(failure.status, Status::RemoteAccess),
        Err(error) => panic!("{error}"),
        Ok(_) => assert!(context().is_iwarp(), "the write came through"),
    }
}

/// Runs both futures to their ends.
async fn both<F: Future, G: Future>(first: F, second: G) -> (F::Output, G::Output) {
    let (mut first, mut second) = (pin!(first), pin!(second));
    let (mut one, mut other) = (None, None);
    poll_fn(|context| {
        if one.is_none()
            && let Poll::Ready(output) = first.as_mut().poll(context)
        {
            one = Some(output);
        }
        if other.is_none()
            && let Poll::Ready(output) = second.as_mut().poll(context)
        {
            other = Some(output);
        }
        match (one.take(), other.take()) {
            (Some(one), Some(other)) => Poll::Ready((one, other)),
            (left, right) => {
                (one, other) = (left, right);
                Poll::Pending
            }
        }
    })
    .await
}

/// The answer of a request has come. The task that asked takes it, which wakes another task whose waker panics.
#[test]
fn a_waker_that_panics_loses_no_grant_that_was_asked_for() {
    let (_fabric, domain) = support::own_device!();
    let mut peers = Peers::new(domain, &options());
    let (left, right) = (peers.left.lending.clone(), peers.right.lending.clone());
    let mut request = Box::pin(left.request::<RemoteWrite>(bytes(64), LONG));
    assert!(request.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    let lease = peers.lease::<RemoteWrite>(LONG);
    let lent = peers.run(async { right.asked().await.unwrap().answer(lease).unwrap() });
    peers.settle();
    let panicking = Waker::from(Arc::new(Panicking));
    let mut wait = Box::pin(async { drop(left.granted().await) });
    assert!(wait.as_mut().poll(&mut Context::from_waker(&panicking)).is_pending());
    let noop = &mut Context::from_waker(Waker::noop());
    assert!(catch_unwind(AssertUnwindSafe(|| request.as_mut().poll(noop).is_ready())).is_err());
    drop((request, wait));
    assert_eq!(peers.run(async { lent.ended().await.unwrap() }).1, Over::Returned);
    peers.until(|| left.held() == 0);
}

/// A lease that is too small does not answer a request. Its error gives the lease back, and the drop of the request
/// wakes a task whose waker panics.
#[test]
fn a_waker_that_panics_leaks_no_lease_that_was_not_lent() {
    let (_fabric, domain) = support::own_device!();
    let mut peers = Peers::new(domain, &options());
    let (left, right) = (peers.left.lending.clone(), peers.right.lending.clone());
    let panicking = Waker::from(Arc::new(Panicking));
    for panics in [false, true] {
        let mut request = Box::pin(left.request::<RemoteWrite>(bytes(64), LONG));
        assert!(request.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        let asked = peers.run(async { right.asked().await.unwrap() });
        let freed = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let memory = interlock::memory::Foreign(support::Counted::new(4, &freed));
        let lease = peers.domain.lease::<RemoteWrite, _>(memory, LONG).unwrap();
        let mut wait = Box::pin(async { drop(right.granted().await) });
        if panics {
            assert!(wait.as_mut().poll(&mut Context::from_waker(&panicking)).is_pending());
        }
        let answered = catch_unwind(AssertUnwindSafe(|| drop(asked.answer(lease))));
        assert_eq!(answered.is_err(), panics);
        assert_eq!(freed.load(std::sync::atomic::Ordering::SeqCst), 1, "panics: {panics}; the peer keeps the access");
        drop((request, wait));
        peers.settle();
    }
}

/// `next` has a message, and ends its wait for room of a control message. That wakes the next one in the line,
/// whose waker panics.
#[test]
fn a_waker_that_panics_leaks_no_message() {
    for panics in [false, true] {
        let (_fabric, domain) = support::own_device!();
        let (domain, mut driver, poller, [left, (mut peer, _other)]) = pairs(domain);
        let options = LendingOptions { mark: Mark::Immediate(7), ..options() };
        let (lending, mut messages) = Lending::start(&domain, &poller, left.0.into_shared(), left.1, &options).unwrap();
        let sizes = vec![interlock::memory::SizeClass { len_bytes: 64, count: 1 }];
        let pool = interlock::memory::PoolOptions {
            classes: sizes,
            growth: interlock::memory::Growth::Never,
            ..interlock::memory::PoolOptions::default()
        };
        let pool = domain.pool(&pool).unwrap();
        messages.post_receive(pool.try_take(64).unwrap()).unwrap();
        let shared = lending.sender().clone();
        let noop = &mut Context::from_waker(Waker::noop());
        // The permits that are forgotten here keep all room of the sender.
        while let Poll::Ready(permit) = pin!(shared.room()).poll(noop) {
            mem::forget(permit.unwrap());
        }
        let lease = domain.lease::<RemoteWrite, _>(domain.buffer(64).unwrap(), LONG).unwrap();
        let _lent = lending.lend(lease).unwrap();
        let mut next = Box::pin(messages.next());
        assert!(next.as_mut().poll(noop).is_pending());
        let panicking = Waker::from(Arc::new(Panicking));
        let mut room = Box::pin(shared.room());
        let waker = if panics { &panicking } else { Waker::noop() };
        assert!(room.as_mut().poll(&mut Context::from_waker(waker)).is_pending());
        let mut text = domain.buffer(64).unwrap();
        text.write(b"text").unwrap();
        driver.block_on(peer.send(text).unwrap()).unwrap().unwrap();
        let polled = catch_unwind(AssertUnwindSafe(|| next.as_mut().poll(noop).is_ready()));
        assert_eq!(polled.is_err(), panics);
        drop((next, room));
        assert_eq!(pool.stats().classes[0].free, 1, "panics: {panics}");
    }
}
