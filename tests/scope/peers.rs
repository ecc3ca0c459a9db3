//! The caller's memory and peers' memory: writes, reads and atomics to a peer, and what peers may reach here during a
//! scope.

use interlock::access::ZeroBased;
use interlock::error::{RegisterFailure, RequestFlaw};
use interlock::scope::InScopeError;
use interlock::{PostError, RemoteAll, RemoteRead, RemoteReadWrite, RemoteRegion, RemoteWrite, Status, Work};
use support::{Need, PATIENCE, Promise, lacks, lacks_need};

#[test]
fn writes_reads_atomics_and_immediates_work_on_borrowed_memory() {
    if lacks_need(Need::Atomics) {
        return;
    }
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
        match wire.peers_poller.wait(PATIENCE).unwrap().check().unwrap().into_work() {
            Work::Received(received) => immediates.push(received.immediate.unwrap()),
            Work::WrittenWithImmediate(written) => immediates.push(written.immediate),
            _ => (),
        }
    }
    if lacks(Promise::Order) {
        immediates.sort();
    }
    assert_eq!((immediates, target.load(0).unwrap()), (vec![5, 6], 2));
}

#[test]
fn a_receive_says_what_a_write_with_immediate_wrote_elsewhere() {
    if lacks_need(Need::Immediates) {
        return;
    }
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
    if lacks_need(Need::Acknowledgements) {
        return;
    }
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
    if lacks_need(Need::ReadableMemoryBack) {
        let refused = wire.exclusive.scope(PATIENCE, |scope| scope.grant::<RemoteRead>(&mut words).map(drop)).unwrap();
        assert!(matches!(refused, Err(RegisterFailure::Unsupported { .. })));
        return;
    }
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
    if lacks_need(Need::ZeroBased) {
        return;
    }
    let mut wire = wire!();
    // The memory of a `ZeroBased` grant must consist of whole pages, and a page can have up to 64 kB.
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
