//! Atomic writes, on devices that have them.

use super::{WAYS, link};
use interlock::error::{CreateError, RequestFlaw};
use interlock::queue::Posting;
use interlock::request::{Operation, PostedMemory};
use interlock::{Brand, Limits, PostError, ProtectionDomain, RemoteAll, RemoteWrite, Status, Work, WorkRequest};
use support::{Link, Need, PATIENCE, Promise, connect_to_each_other, context, lacks, lacks_need, message, next};

/// Two pairs with atomic writes; `None` if the device has none. Soft-RoCE of Linux 6.12 has them.
fn with_atomic_writes<B: Brand>(domain: &ProtectionDomain<B>) -> Option<Link<B>> {
    let port = domain.context().active_port().unwrap();
    let limits = Limits { posting: Posting::AtomicWrites, ..Limits::default() };
    let (queue, poller) = domain.completion_queue(2 * limits.completions()).unwrap();
    let left = match domain.reliable(&queue, &limits) {
        Err(CreateError::NoAtomicWrites(error)) => {
            let name = domain.context().name().to_owned();
            let has_them = name.starts_with("rxe") && support::is_linux_6_12() || name.starts_with("soft");
            assert!(!has_them, "{name} has them: {error}");
            return None;
        }
        // Atomic writes are posted by `ibv_wr_*`.
        Err(CreateError::NoWorkRequestApi(_)) => {
            assert!(lacks_need(Need::WorkRequestApi));
            return None;
        }
        pair => pair.unwrap().into_init(&port).unwrap(),
    };
    let right = domain.reliable(&queue, &limits).unwrap().into_init(&port).unwrap();
    let (left, right) = connect_to_each_other(domain, left, right, &Default::default());
    Some(Link { domain: domain.clone(), port, queue, poller, left, right })
}

#[test]
fn an_atomic_write_changes_its_word_and_no_other() {
    if lacks_need(Need::Atomics) {
        return;
    }
    let domain = context().checked_domain().unwrap();
    let Some(mut link) = with_atomic_writes(&domain) else { return };
    let region = domain.register::<RemoteWrite, _>(vec![7_u64; 4]).unwrap();
    let word = region.remote().word(8).unwrap();
    assert_eq!((word.len(), word.address()), (8, region.remote().address() + 8));

    let id = link.left.post_atomic_write(&word, 0x0102_0304_0506_0708).unwrap();
    let success = next(&mut link.poller);
    assert_eq!((success.id(), success.operation()), (id, Operation::AtomicWrite));
    assert!(matches!(success.into_work(), Work::Written(PostedMemory::Inline)));
    assert_eq!(region.load(8).unwrap(), 0x0102_0304_0506_0708);

    // After a batch of several writes to one word, the word has the value of the last write.
    let ids = link.left.batch(|batch| {
        for value in 1..=3 {
            batch.post(WorkRequest::atomic_write(&word, value).unsignalled()).unwrap();
        }
        batch.post(WorkRequest::atomic_write(&word, 4).fenced()).unwrap()
    });
    let last = ids.unwrap();
    while link.left.sends_in_flight() > 0 {
        let success = next(&mut link.poller);
        assert!(success.id() != last || link.left.sends_in_flight() == 0 || lacks(Promise::Order), "in order");
    }
    assert_eq!(region.load(8).unwrap(), 4);
    let (mut sends, _receives) = link.left.split();
    sends.post(WorkRequest::atomic_write(&word, 5)).unwrap();
    next(&mut link.poller);
    // A pair with atomic writes can also post other writes.
    sends.post(WorkRequest::write(message(&domain, &[1; 8]), &region.remote().slice(24..32).unwrap())).unwrap();
    next(&mut link.poller);
    assert_eq!(region.deregister().unwrap(), [7, 5, 7, u64::from_ne_bytes([1; 8])]);
}

#[test]
fn an_atomic_write_to_memory_that_is_gone_fails() {
    if lacks_need(Need::Atomics) {
        return;
    }
    let domain = context().checked_domain().unwrap();
    let Some(mut link) = with_atomic_writes(&domain) else { return };
    let region = domain.register::<RemoteWrite, _>(vec![7_u64; 4]).unwrap();
    let word = region.remote().word(0).unwrap();
    region.deregister().unwrap();
    link.left.post_atomic_write(&word, 1).unwrap();
    let failure = link.poller.wait(PATIENCE).unwrap().check().unwrap_err();
    assert_eq!((failure.status, failure.operation), (Status::RemoteAccess, Operation::AtomicWrite));
    assert!(matches!(failure.memory, PostedMemory::Inline));
    let Err(PostError::Broken { request: 2, .. }) = link.left.post_atomic_write(&word, 2) else { panic!("broken") };
}

#[test]
fn an_atomic_write_that_cannot_be_is_refused_with_its_value() {
    if lacks_need(Need::Atomics) {
        return;
    }
    let domain = context().checked_domain().unwrap();
    let region = domain.register::<RemoteWrite, _>(vec![7_u64; 4]).unwrap();
    for way in WAYS {
        let Some(mut link) = link(&domain, 4, way) else { continue };
        match link.left.post_atomic_write(&region.remote(), 3) {
            Err(PostError::Flawed { request: 3, flaw: flaw @ RequestFlaw::NoAtomicWrites }) => {
                assert!(flaw.to_string().contains("Posting::AtomicWrites"), "{flaw}");
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(link.left.sends_in_flight(), 0);
    }
    let Some(mut link) = with_atomic_writes(&domain) else { return };
    for range in [4..12, 8..12, 0..0] {
        let target = region.remote().slice(range).unwrap();
        match link.left.post_atomic_write(&target, 3) {
            Err(PostError::Flawed { request: 3, flaw: RequestFlaw::NotAWord { address, len_bytes } }) => {
                assert_eq!((address, len_bytes), (target.address(), target.len()));
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(region.deregister().unwrap(), [7; 4]);
}

#[test]
fn transports_without_atomic_writes_are_not_made_for_them() {
    if lacks_need(Need::Atomics) || lacks_need(Need::WorkRequestApi) {
        return;
    }
    let domain = context().checked_domain().unwrap();
    let limits = Limits { posting: Posting::AtomicWrites, ..Limits::default() };
    let (queue, _poller) = domain.completion_queue(64).unwrap();
    let room = queue.room();
    assert!(matches!(domain.unreliable(&queue, &limits), Err(CreateError::NoAtomicWrites(_))));
    let error = domain.datagram(&queue, &limits).unwrap_err();
    assert!(matches!(error, CreateError::NoAtomicWrites(_)) && error.to_string().contains("Posting"), "{error}");
    assert_eq!(queue.room(), room, "the leases came back");
}

#[test]
fn a_word_of_the_peer_is_whole() {
    if lacks_need(Need::Atomics) {
        return;
    }
    let domain = context().checked_domain().unwrap();
    let region = domain.register::<RemoteAll, _>(vec![0_u64; 2]).unwrap();
    let remote = region.remote();
    for offset in [4, 9, 16, 1 << 40, u64::MAX, u64::MAX - 7] {
        let error = remote.word(offset).unwrap_err();
        assert!(error.to_string().contains("a word is 8 bytes at an address that is a multiple of 8"), "{error}");
    }
    let mut link = Link::new(domain.clone(), 4);
    let result = domain.buffer(8).unwrap();
    link.left.post_fetch_and_add(result, &remote.word(8).unwrap(), 5).unwrap();
    next(&mut link.poller);
    assert_eq!(region.deregister().unwrap(), [0, 5]);
}
