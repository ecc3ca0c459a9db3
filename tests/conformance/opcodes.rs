//! Operations.

use crate::{WHILE, message, next};
use interlock::attributes::ConnectAttributes;
use interlock::error::RequestFlaw;
use interlock::memory::BufferList;
use interlock::{Limits, PostError, RemoteAtomic, RemoteRead, RemoteWrite, Work, WorkRequest};
use support::{Link, Need, PATIENCE, Promise, deviates, lacks, lacks_need};

/// An atomic needs a buffer of exactly 8 bytes for its result.
#[test]
fn c056_an_atomic_answers_in_eight_bytes() {
    let mut link = link!(4);
    let region = link.domain.register::<RemoteAtomic, _>(vec![41_u64; 1]).unwrap();
    let short = link.left.post_fetch_and_add(link.domain.buffer(7).unwrap(), &region.remote(), 1);
    let Err(PostError::Flawed { request, flaw: RequestFlaw::NotAWord { len_bytes: 7, .. } }) = short else {
        panic!("{short:?}")
    };
    assert_eq!(request.capacity(), 7);
    let long = message(&link.domain, &[0xaa; 24]);
    link.left.post_fetch_and_add(long, &region.remote(), 1).unwrap();
    let Work::Atomic { original: 41, mut buffer } = next(&mut link.poller).into_work() else { panic!("an atomic") };
    assert_eq!(buffer.len(), 8);
    buffer.set_len(24).unwrap();
    assert_eq!(buffer[8..], [0xaa; 16], "beyond the answer");
}

/// A message of no bytes needs no memory.
#[test]
fn c057_an_empty_message_needs_no_memory() {
    let limits = Limits { elements: 2, ..Limits::default() };
    let mut link = Link::limited(domain!(), &limits, &ConnectAttributes::default());
    let receive = link.right.post_receive(BufferList::new(Vec::new())).unwrap();
    link.left.post_send(BufferList::new(Vec::new())).unwrap();
    for _ in 0..2 {
        let success = next(&mut link.poller);
        let id = success.id();
        if let Work::Scattered(scattered) = success.into_work() {
            assert_eq!((id, scattered.list.len(), scattered.written_bytes), (receive, 0, None));
        }
    }
}

/// A fenced send starts only after the read before it is done, so its message never arrives before the data of the
/// read.
#[test]
fn c062_a_fenced_send_waits_for_the_read_before_it() {
    const LEN: usize = 256 * 1024;
    let mut link = link!(4);
    let mut region = link.domain.register::<RemoteRead, _>(vec![0_u64; LEN / 8]).unwrap();
    let mut buffer = link.domain.buffer(LEN).unwrap();
    for round in 1..=10_u8 {
        region.write_from(0, &vec![round; LEN]).unwrap();
        link.right.post_receive(link.domain.buffer(8).unwrap()).unwrap();
        link.left.post_read(buffer, &region.remote()).unwrap();
        link.left.post(WorkRequest::send(message(&link.domain, b"done")).fenced()).unwrap();
        // Both sides complete on one queue, so the order of the completions shows what happened first.
        let Work::Read(read) = next(&mut link.poller).into_work() else { panic!("the read comes first") };
        assert!(read[..] == vec![round; LEN][..]);
        let received = (0..2).filter_map(|_| next(&mut link.poller).into_received().ok()).count();
        assert_eq!(received, 1);
        buffer = read;
    }
}

/// A fenced send waits for the reads before it, but not for a later read. On soft-RoCE, a fenced send that is retried
/// does wait for the later read, which in turn waits for the send; only Error ends that.
#[test]
fn c062_a_fenced_send_does_not_wait_for_the_read_after_it() {
    let domain = domain!();
    let mut pause = WHILE;
    loop {
        let mut link = Link::new(domain.clone(), 4);
        let region = link.domain.register::<RemoteRead, _>(vec![7_u64; 8]).unwrap();
        let read = |link: &mut Link<_>| {
            let buffer = link.domain.buffer(64).unwrap();
            link.left.post_read(buffer, &region.remote()).unwrap();
        };
        read(&mut link);
        link.left.post(WorkRequest::send(message(&link.domain, b"late")).fenced()).unwrap();
        read(&mut link);
        assert!(matches!(next(&mut link.poller).into_work(), Work::Read(_)));
        // The peer has no receive for the send yet. While this thread sleeps, the peer answers the send with
        // receiver-not-ready, perhaps several times.
        std::thread::sleep(pause);
        link.right.post_receive(link.domain.buffer(8).unwrap()).unwrap();
        if !deviates("C062") {
            for _ in 0..3 {
                next(&mut link.poller);
            }
            break;
        }
        let Some(first) = link.poller.wait_for(10 * WHILE).unwrap() else {
            let mut left = link.left.into_error().unwrap();
            left.drain(&mut link.poller, PATIENCE, |completion| assert!(completion.check().is_err())).unwrap();
            break;
        };
        // Perhaps the peer was slow, and had not answered the send before the receive was there.
        first.check().unwrap();
        for _ in 0..2 {
            next(&mut link.poller);
        }
        pause *= 2;
        assert!(pause < PATIENCE, "the device does not deviate");
    }
}

/// After a reset during a read, a pair obeys fences as a new pair does.
#[test]
fn c017_c062_a_pair_that_was_reset_fences_again() {
    if lacks_need(Need::Reset) {
        return;
    }
    let Link { domain, port, mut poller, mut left, right, .. } = link!(4);
    let region = domain.register::<RemoteRead, _>(vec![7_u64; 8]).unwrap();
    // Move the peer to Reset, so that nobody answers the reads below.
    let right = right.into_reset().unwrap();
    for _ in 0..2 {
        left.post_read(domain.buffer(64).unwrap(), &region.remote()).unwrap();
    }
    std::thread::sleep(WHILE / 10);
    let left = left.into_reset().unwrap();
    while poller.poll().unwrap().is_some() {}
    let (left, mut right) = (left.into_init(&port).unwrap(), right.into_init(&port).unwrap());
    right.post_receive(domain.buffer(8).unwrap()).unwrap();
    let (to_left, to_right) = (left.endpoint(), right.endpoint());
    let (mut left, _right) = (left.connect(&to_right).unwrap(), right.connect(&to_left).unwrap());
    for _ in 0..2 {
        left.post_read(domain.buffer(64).unwrap(), &region.remote()).unwrap();
    }
    left.post(WorkRequest::send(message(&domain, b"done")).fenced()).unwrap();
    for _ in 0..2 {
        assert!(matches!(next(&mut poller).into_work(), Work::Read(_)));
    }
    let received = (0..2).filter_map(|_| next(&mut poller).into_received().ok()).count();
    assert_eq!(received, 1);
}

/// A bad request in a list comes back by itself. The requests before it run, and none after it does.
#[test]
fn c066_a_list_stops_at_its_bad_request() {
    let mut link = link!(4);
    let region = link.domain.register::<RemoteWrite, _>(vec![0_u64; 3]).unwrap();
    let word = |at: u64| region.remote().slice(8 * at..8 * at + 8).unwrap();
    let requests = [8, 9, 8].map(|len| message(&link.domain, &vec![1; len]));
    let refused = link
        .left
        .batch(|batch| {
            for (at, buffer) in requests.into_iter().enumerate() {
                if let Err(error) = batch.post(WorkRequest::write(buffer, &word(at as u64))) {
                    return Some((at, error));
                }
            }
            None
        })
        .unwrap();
    let Some((1, PostError::Flawed { request, flaw })) = refused else { panic!("{refused:?}") };
    assert_eq!((request.into_memory().len(), flaw), (9, RequestFlaw::TooLong { len_bytes: 9, within: 8 }));
    next(&mut link.poller);
    assert!(link.poller.wait_for(crate::WHILE).unwrap().is_none());
    assert_eq!(
        (region.load(0).unwrap(), region.load(8).unwrap(), region.load(16).unwrap()),
        (0x0101_0101_0101_0101, 0, 0)
    );
}

/// A completion has an immediate if and only if the immediate was sent.
#[test]
fn c122_an_immediate_is_there_if_it_was_sent() {
    let mut link = link!(4);
    for immediate in [None, Some(0), Some(u32::MAX)] {
        link.right.post_receive(link.domain.buffer(8).unwrap()).unwrap();
        let request = WorkRequest::send(message(&link.domain, b"text")).unsignalled();
        link.left.post(if let Some(value) = immediate { request.with_immediate(value) } else { request }).unwrap();
        let received = loop {
            match next(&mut link.poller).into_work() {
                Work::Received(received) => break received,
                // On some devices, each send has a completion of its own.
                Work::Sent(_) => assert!(lacks(Promise::Order)),
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(received.immediate, immediate);
    }
}
