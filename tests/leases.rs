//! Memory that peers may use for a limited time. The same tests run on every device.

use interlock::error::RegisterFailure;
use interlock::memory::{Foreign, Pages};
use interlock::soft::{Fabric, Fault, Verb};
use interlock::{
    Brand, Buffer, Context, LocalWrite, Poller, ProtectionDomain, RemoteRead, RemoteReadWrite, RemoteWrite, Status,
    Work, WorkRequest,
};
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use support::{Counted, Link, Need, PATIENCE, context, failure, filled, lacks_need, moved};

/// A deadline that no test reaches.
const LONG: Duration = Duration::from_secs(3600);

fn succeeded<B: Brand>(poller: &mut Poller<B>) -> Work<B> {
    poller.wait(PATIENCE).unwrap().check().unwrap().into_work()
}

fn counted<B: Brand>(domain: &ProtectionDomain<B>, freed: &Arc<AtomicUsize>) -> Buffer<B> {
    let words = Counted::new(64, freed);
    domain.register::<LocalWrite, _>(Foreign(words)).unwrap().split().1
}

#[test]
fn a_peer_writes_to_leased_memory_until_the_lease_ends() {
    if lacks_need(Need::Acknowledgements) {
        return;
    }
    let mut link = Link::new(context().checked_domain().unwrap(), 4);
    let buffer = link.domain.buffer(4096).unwrap();
    let (before, rest) = buffer.split_at(64).unwrap();
    let (part, after) = rest.split_at(128).unwrap();
    let lease = link.domain.lease::<RemoteWrite, _>(part, LONG).unwrap();
    let remote = lease.remote();
    assert_eq!((remote.len(), lease.len(), lease.has_expired()), (128, 128, false));
    link.left.post_write(filled(&link.domain, 7, 16), &remote.slice(112..128).unwrap()).unwrap();
    succeeded(&mut link.poller);
    // While the memory is leased, the program can load words of it.
    assert_eq!((lease.load(112).unwrap(), lease.load(104).unwrap()), (0x0707_0707_0707_0707, 0));
    let mut part = lease.end().unwrap();
    assert_eq!((&part[..112], &part[112..]), (&[0; 112][..], &[7; 16][..]));
    // The memory belongs to the program again, and can be posted.
    part.fill(9);
    link.right.post_receive(before).unwrap();
    link.left.post_send(part.split_at(64).unwrap().0).unwrap();
    for _ in 0..2 {
        if let Work::Received(received) = succeeded(&mut link.poller) {
            assert_eq!(received.buffer[..], [9; 64]);
        }
    }
    link.left.post_write(filled(&link.domain, 1, 8), &remote).unwrap();
    assert_eq!(failure(&mut link.poller).status, Status::RemoteAccess);
    assert_eq!(after.len(), 4096 - 192);
}

#[test]
fn a_peer_does_not_reach_what_lies_around_leased_memory() {
    if lacks_need(Need::Acknowledgements) {
        return;
    }
    let domain = context().checked_domain().unwrap();
    for by in [-8, 64, -64, 120] {
        let mut link = Link::new(domain.clone(), 4);
        let (before, rest) = link.domain.buffer(4096).unwrap().split_at(64).unwrap();
        let (part, after) = rest.split_at(64).unwrap();
        let lease = link.domain.lease::<RemoteReadWrite, _>(part, LONG).unwrap();
        link.left.post_write(filled(&link.domain, 7, 8), &moved(&lease.remote(), by)).unwrap();
        assert_eq!(failure(&mut link.poller).status, Status::RemoteAccess, "{by}");
        let part = lease.end().unwrap();
        assert!([before, part, after].iter().all(|part| part.iter().all(|&byte| byte == 0)));
    }
}

#[test]
fn an_expired_lease_is_ended_by_the_program() {
    if lacks_need(Need::Acknowledgements) {
        return;
    }
    let mut link = Link::new(context().checked_domain().unwrap(), 4);
    let mut lease = link.domain.lease::<RemoteWrite, _>(Pages::new(4096).unwrap(), Duration::ZERO).unwrap();
    assert!(lease.has_expired() && lease.remaining().is_zero());
    let remote = lease.remote();
    // The lease has expired, but nobody has ended it, so the peer still writes.
    link.left.post_write(filled(&link.domain, 7, 8), &remote).unwrap();
    succeeded(&mut link.poller);
    lease.renew(LONG);
    assert!(!lease.has_expired() && lease.remaining() > LONG / 2 && lease.remaining() <= LONG);
    lease.renew(Duration::MAX);
    assert_eq!(lease.remaining(), Duration::MAX, "never");
    lease.store(8, 5).unwrap();
    let pages: Pages = lease.end().unwrap();
    assert_eq!((pages[0], pages[8..16].to_vec()), (7, 5_u64.to_ne_bytes().to_vec()));
    link.left.post_write(filled(&link.domain, 8, 8), &remote).unwrap();
    assert_eq!((failure(&mut link.poller).status, pages[0]), (Status::RemoteAccess, 7));
}

#[test]
fn a_lease_that_is_dropped_ends() {
    if lacks_need(Need::Acknowledgements) {
        return;
    }
    let (mut link, freed) = (Link::new(context().checked_domain().unwrap(), 4), Arc::default());
    let lease = link.domain.lease::<RemoteWrite, _>(counted(&link.domain, &freed), LONG).unwrap();
    let remote = lease.remote();
    drop(lease);
    assert_eq!(freed.load(Ordering::Relaxed), 1);
    link.left.post_write(filled(&link.domain, 7, 8), &remote).unwrap();
    assert_eq!(failure(&mut link.poller).status, Status::RemoteAccess);
}

#[test]
fn a_forgotten_lease_leaves_its_memory_to_the_peer_for_good() {
    let (mut link, freed) = (Link::new(context().checked_domain().unwrap(), 4), Arc::default());
    let (part, rest) = counted(&link.domain, &freed).split_at(64).unwrap();
    let lease = link.domain.lease::<RemoteReadWrite, _>(part, Duration::ZERO).unwrap();
    let remote = lease.remote();
    mem::forget(lease);
    // The program drops the part that is not leased. The memory is not freed, because the forgotten lease keeps it.
    drop(rest);
    link.left.post_write(filled(&link.domain, 7, 8), &remote).unwrap();
    succeeded(&mut link.poller);
    link.left.post_read(link.domain.buffer(64).unwrap(), &remote).unwrap();
    let Work::Read(read) = succeeded(&mut link.poller) else { panic!("not a read") };
    assert_eq!((&read[..8], freed.load(Ordering::Relaxed)), (&[7; 8][..], 0));
}

#[test]
fn what_peers_only_read_is_a_slice_meanwhile() {
    let mut link = Link::new(context().checked_domain().unwrap(), 4);
    let mut buffer = link.domain.buffer(64).unwrap();
    buffer.fill(3);
    let lease = link.domain.lease::<RemoteRead, _>(buffer, LONG).unwrap();
    let bytes = lease.as_bytes();
    link.left.post_read(link.domain.buffer(64).unwrap(), &lease.remote()).unwrap();
    let Work::Read(read) = succeeded(&mut link.poller) else { panic!("not a read") };
    assert_eq!((&read[..], bytes), (bytes, &[3; 64][..]));
    if !lacks_need(Need::ReadableMemoryBack) {
        let mut buffer = lease.end().unwrap();
        buffer.fill(4);
    }
}

#[test]
fn memory_is_leased_again_and_in_another_domain() {
    interlock::domain! { struct Other; }
    let mut link = Link::new(context().checked_domain().unwrap(), 4);
    let other = link.domain.context().named_domain(Other).unwrap();
    let mut buffer = other.buffer(64).unwrap();
    drop(other);
    for round in 1..=3 {
        let lease = link.domain.lease::<RemoteWrite, _>(buffer, LONG).unwrap();
        link.left.post(WorkRequest::write(filled(&link.domain, round, 8), &lease.remote())).unwrap();
        succeeded(&mut link.poller);
        buffer = lease.end().unwrap();
        assert_eq!(buffer[..8], [round; 8]);
    }
    // After the leases have ended, the same memory can be registered as an ordinary region, without rights for peers.
    let (rest, again) = link.domain.register::<LocalWrite, _>(buffer).unwrap().split();
    link.right.post_receive(link.domain.buffer(64).unwrap()).unwrap();
    link.left.post_send(again).unwrap();
    for _ in 0..2 {
        if let Work::Received(received) = succeeded(&mut link.poller) {
            assert_eq!(received.buffer[..8], [3; 8]);
        }
    }
    drop(rest);
}

#[test]
fn memory_that_is_not_of_whole_words_is_not_leased() {
    let domain = context().checked_domain().unwrap();
    for (mid, len) in [(60, 4036), (4, 4092)] {
        let (left, right) = domain.buffer(4096).unwrap().split_at(mid).unwrap();
        for part in [left, right] {
            let (addr, capacity) = (part.as_ptr().addr(), part.capacity());
            let error = domain.lease::<RemoteRead, _>(part, LONG).unwrap_err();
            let RegisterFailure::NotInWords { address, len_bytes } = error.source else { panic!("{error}") };
            assert_eq!((address, len_bytes, error.memory.capacity()), (addr, capacity, capacity));
        }
        assert_eq!(mid + len, 4096);
    }
}

/// C148: a key reaches nothing after its region is dropped.
#[test]
fn c148_the_key_of_a_region_that_was_dropped_reaches_nothing() {
    if lacks_need(Need::Acknowledgements) {
        return;
    }
    let mut link = Link::new(context().checked_domain().unwrap(), 4);
    let region = link.domain.register::<RemoteReadWrite, _>(vec![5_u64; 4]).unwrap();
    let stale = region.remote();
    drop(region);
    link.left.post_write(filled(&link.domain, 7, 8), &stale).unwrap();
    assert_eq!(failure(&mut link.poller).status, Status::RemoteAccess);
}

#[test]
fn a_lease_that_the_device_does_not_end_comes_back_exposed() {
    let fabric = Fabric::new();
    let mut link = Link::new(Context::open_on(&fabric, "dev0").unwrap().checked_domain().unwrap(), 4);
    let freed = Arc::default();
    let lease = link.domain.lease::<RemoteWrite, _>(counted(&link.domain, &freed), LONG).unwrap();
    let remote = lease.remote();
    let busy = |count| Fault::VerbFails { verb: Verb::DeregMr, after: 0, count, errno: libc::EBUSY };
    fabric.inject(busy(1));
    let error = lease.end().unwrap_err();
    assert_eq!((error.source.verb(), error.source.errno()), ("ibv_dereg_mr", libc::EBUSY));
    let lease = error.region;
    assert!(!lease.has_expired());
    link.left.post_write(filled(&link.domain, 7, 8), &remote).unwrap();
    succeeded(&mut link.poller);
    assert_eq!(lease.load(0).unwrap(), 0x0707_0707_0707_0707);
    // If the device refuses to end a dropped lease, the lease leaks together with its memory.
    fabric.inject(busy(1));
    drop(lease);
    link.left.post_write(filled(&link.domain, 8, 8), &remote).unwrap();
    succeeded(&mut link.poller);
    assert_eq!(freed.load(Ordering::Relaxed), 0);
}
