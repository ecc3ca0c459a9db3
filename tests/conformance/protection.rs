//! Tests that a peer cannot do what it may not do. A peer's record of granted memory is plain bytes, so it can claim
//! anything.

use crate::{failure, from, message, next, sending};
use interlock::access::Exposed;
use interlock::attributes::{ConnectAttributes, InitAttributes, PeerRights};
use interlock::number::Psn;
use interlock::state::DeviceState;
use interlock::{
    Brand, Limits, RemoteAll, RemoteAtomic, RemoteRead, RemoteReadWrite, RemoteRegion, RemoteWrite, Status,
};
use std::time::{Duration, Instant};
use support::{Link, PATIENCE, deviates, eventually};

/// Returns the record of `region` with byte `at` changed.
fn forged<A: Exposed, B: Exposed>(
    region: &RemoteRegion<A>,
    at: usize,
    change: impl FnOnce(&mut u8),
) -> RemoteRegion<B> {
    let mut record = region.to_bytes();
    change(&mut record[at]);
    RemoteRegion::from_bytes(&record).unwrap()
}

/// Offsets in a record: the rights, the lowest byte of the key, and the lowest byte of the length.
const RIGHTS: usize = 3;
const KEY: usize = 7;
const LENGTH: usize = 23;
/// All rights in the encoding of a record.
const ALL: u8 = 0b1110;

/// Checks that the write to `target` fails with a remote access error, that the peer's pair breaks, and that the peer's
/// receive is flushed.
fn is_refused<B: Brand>(link: &mut Link<B>, len: usize, target: &RemoteRegion<RemoteWrite>) {
    let receive = link.right.post_receive(link.domain.buffer(8).unwrap()).unwrap();
    let write = link.left.post_write(message(&link.domain, &vec![0xff; len]), target).unwrap();
    for _ in 0..2 {
        let failure = failure(&mut link.poller);
        let expected = if failure.id == write { Status::RemoteAccess } else { Status::Flushed };
        assert!(failure.id == write || failure.id == receive);
        assert_eq!(failure.status, expected);
    }
    assert_eq!(link.right.query_state().unwrap(), DeviceState::Error);
}

#[test]
fn c097_a_key_of_nothing_reaches_nothing() {
    let mut link = link!(4);
    let region = link.domain.register::<RemoteWrite, _>(vec![0_u64; 4]).unwrap();
    let lie = forged(&region.remote(), KEY, |byte| *byte ^= 0x55);
    is_refused(&mut link, 8, &lie);
    assert_eq!(region.to_vec(0..32).unwrap(), [0; 32]);
}

#[test]
fn c098_one_byte_too_many_writes_none() {
    let mut link = link!(4);
    let region = link.domain.register::<RemoteReadWrite, _>(vec![0_u64; 4]).unwrap();
    let lie = forged(&region.remote(), LENGTH, |byte| *byte += 1);
    is_refused(&mut link, 33, &lie);
    assert_eq!(region.to_vec(0..32).unwrap(), [0; 32]);
}

#[test]
fn c099_memory_of_another_domain_is_not_reached() {
    interlock::domain! { struct Other; }
    let mut link = link!(4);
    let other = link.domain.context().named_domain(Other).unwrap();
    let region = other.register::<RemoteWrite, _>(vec![0_u64; 4]).unwrap();
    is_refused(&mut link, 8, &region.remote());
    assert_eq!(region.to_vec(0..32).unwrap(), [0; 32]);
}

#[test]
fn c100_memory_to_read_is_not_written() {
    let mut link = link!(4);
    let region = link.domain.register::<RemoteRead, _>(vec![0_u64; 4]).unwrap();
    let lie = forged(&region.remote(), RIGHTS, |byte| *byte = ALL);
    is_refused(&mut link, 8, &lie);
    assert_eq!(region.as_bytes(), [0; 32]);
}

#[test]
fn c104_memory_to_write_takes_no_atomics() {
    let mut link = link!(4);
    let region = link.domain.register::<RemoteReadWrite, _>(vec![5_u64; 4]).unwrap();
    let lie: RemoteRegion<RemoteAtomic> = forged(&region.remote(), RIGHTS, |byte| *byte = ALL);
    link.left.post_fetch_and_add(link.domain.buffer(8).unwrap(), &lie.slice(0..8).unwrap(), 1).unwrap();
    assert_eq!(failure(&mut link.poller).status, Status::RemoteAccess);
    assert_eq!(region.load(0).unwrap(), 5);
}

/// A peer needs the rights of the pair as well as those of the memory. Devices refuse with one of two statuses.
#[test]
fn c101_c102_a_pair_permits_only_what_it_was_given() {
    for reads in [false, true] {
        let domain = domain!();
        let port = domain.context().active_port().unwrap();
        let (queue, mut poller) = domain.completion_queue(16).unwrap();
        let rights = PeerRights { read: !reads, write: reads, atomic: true };
        let closed = InitAttributes { peer_rights: rights, ..InitAttributes::from(&port) };
        let left = domain.reliable(&queue, &Limits::default()).unwrap().into_init(&port).unwrap();
        let right = domain.reliable(&queue, &Limits::default()).unwrap().into_init(closed).unwrap();
        let (to_left, to_right) = (left.endpoint(), right.endpoint());
        let (mut left, right) = (left.connect(&to_right).unwrap(), right.connect(&to_left).unwrap());
        let region = domain.register::<RemoteAll, _>(vec![0_u64; 1]).unwrap();
        let buffer = message(&domain, &[0xff; 8]);
        if reads {
            left.post_read(buffer, &region.remote()).unwrap();
        } else {
            left.post_write(buffer, &region.remote()).unwrap();
        }
        let status = failure(&mut poller).status;
        assert!(matches!(status, Status::RemoteInvalidRequest | Status::RemoteAccess), "{status}");
        // The device that refuses may tell its peer a moment before its own pair is in Error.
        assert!(eventually(|| right.query_state().unwrap() == DeviceState::Error));
        assert_eq!(region.load(0).unwrap(), 0);
    }
}

#[test]
fn c103_a_peer_that_serves_no_reads_refuses_them() {
    let domain = domain!();
    let port = domain.context().active_port().unwrap();
    let (queue, mut poller) = domain.completion_queue(16).unwrap();
    let left = domain.reliable(&queue, &Limits::default()).unwrap().into_init(&port).unwrap();
    let right = domain.reliable(&queue, &Limits::default()).unwrap().into_init(&port).unwrap();
    let mut left = left.connect(&right.endpoint()).unwrap();
    let none =
        interlock::attributes::RtrAttributes { responder_depth: 0.try_into().unwrap(), ..from(&left.endpoint()) };
    let _right = right.into_rtr(&none).unwrap();
    let region = domain.register::<RemoteRead, _>(vec![0_u64; 1]).unwrap();
    left.post_read(domain.buffer(8).unwrap(), &region.remote()).unwrap();
    assert_eq!(failure(&mut poller).status, Status::RemoteInvalidRequest);
}

#[test]
fn c109_a_receive_that_comes_a_second_late_is_waited_for() {
    // The peer answers receiver-not-ready, so the sender waits for the receive. The ACK timeout is long, so that a slow
    // machine does not exceed it.
    let slow = ConnectAttributes { timeout: 18.try_into().unwrap(), ..ConnectAttributes::default() };
    let mut link = link!(4, slow);
    link.left.post_send(message(&link.domain, b"patient")).unwrap();
    let early = link.poller.wait_for(Duration::from_secs(1)).unwrap().map(|completion| completion.check());
    if deviates("C109") {
        assert_eq!(early.unwrap().unwrap_err().status, Status::RetryExceeded);
        return;
    }
    assert!(early.is_none(), "{early:?}");
    link.right.post_receive(link.domain.buffer(8).unwrap()).unwrap();
    let received = (0..2).find_map(|_| next(&mut link.poller).into_received().ok()).unwrap();
    assert_eq!(&received[..], b"patient");
}

/// The device tries 4 times for 67 ms each, and may take up to four times as long. The upper limit leaves time for a
/// busy machine.
#[test]
fn c110_a_peer_that_is_gone_is_given_up_in_time() {
    let attr = ConnectAttributes {
        retry_count: 3.try_into().unwrap(),
        timeout: 14.try_into().unwrap(),
        ..ConnectAttributes::default()
    };
    let mut link = link!(4, attr);
    link.right.destroy().unwrap();
    let start = Instant::now();
    link.left.post_send(link.domain.buffer(8).unwrap()).unwrap();
    assert_eq!(failure(&mut link.poller).status, Status::RetryExceeded);
    let took = start.elapsed();
    assert!(took >= Duration::from_millis(200) && took < PATIENCE / 6, "{took:?}");
}

/// One side sends with another first packet number than the other side expects.
#[test]
fn c111_packet_numbers_that_do_not_match_are_given_up() {
    let domain = domain!();
    let port = domain.context().active_port().unwrap();
    let (queue, mut poller) = domain.completion_queue(16).unwrap();
    let left = domain.reliable(&queue, &Limits::default()).unwrap().into_init(&port).unwrap();
    let mut right = domain.reliable(&queue, &Limits::default()).unwrap().into_init(&port).unwrap();
    right.post_receive(domain.buffer(8).unwrap()).unwrap();
    let psn = left.psn();
    let mut left = left.into_rtr(&from(&right.endpoint())).unwrap().into_rts(&sending(psn)).unwrap();
    let other = Psn::new(psn.value().wrapping_sub(100) & 0xff_ffff).unwrap();
    let attr = interlock::attributes::RtrAttributes { receive_psn: other, ..from(&left.endpoint()) };
    let right = right.into_rtr(&attr).unwrap();
    left.post_send(domain.buffer(8).unwrap()).unwrap();
    assert_eq!(failure(&mut poller).status, Status::RetryExceeded);
    assert_eq!(right.query_state().unwrap(), DeviceState::ReadyToReceive);
    assert!(eventually(|| right.receives_in_flight() == 1));
}
