//! Moves data from one pair to another with every operation. The same tests run on every device.

use interlock::attributes::ConnectAttributes;
use interlock::completion::Scattered;
use interlock::error::RequestFlaw;
use interlock::memory::BufferList;
use interlock::number::RnrRetry;
use interlock::request::PostedMemory;
use interlock::state::DeviceState;
use interlock::{
    Brand, Buffer, Completion, LocalRead, Poller, PostError, ProtectionDomain, RemoteAll, RemoteAtomic, RemoteRead,
    RemoteReadWrite, RemoteRegion, RemoteWrite, Status, Work, WorkId, WorkRequest,
};
use std::time::Duration;
use support::{Link, Need, PATIENCE, Queues, connect_to_each_other, context, deviates, failure, lacks_need, next};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Waits for the completion of request `id`, and drops other completions.
fn completion_of<B: Brand>(poller: &mut Poller<B>, id: WorkId) -> Completion<B> {
    loop {
        let completion = poller.wait(PATIENCE).unwrap();
        if completion.id() == id {
            return completion;
        }
    }
}

fn filled<B: Brand>(mut buffer: Buffer<B>, seed: u8) -> Buffer<B> {
    for (at, byte) in buffer.iter_mut().enumerate() {
        *byte = (at as u8).wrapping_mul(31).wrapping_add(seed);
    }
    buffer
}

#[test]
fn messages_of_many_lengths_arrive_as_they_were_sent() {
    interlock::domain! { struct Test; }
    let mut link = Link::new(context().named_domain(Test).unwrap(), 4);
    let lengths = if cfg!(miri) { &[0, 1, 64, 4097][..] } else { &[0, 1, 63, 64, 4095, 4096, 4097, 1 << 20] };
    let longest = lengths[lengths.len() - 1];
    for (round, &len) in lengths.iter().enumerate() {
        let receive = link.right.post_receive(link.domain.buffer(longest).unwrap()).unwrap();
        let mut message = filled(link.domain.buffer(len.max(1)).unwrap(), round as u8);
        message.set_len(len).unwrap();
        let expected = message.to_vec();
        link.left.post_send(message).unwrap();
        let received = completion_of(&mut link.poller, receive).check().unwrap().into_received().unwrap();
        assert_eq!(received.len(), len);
        assert!(received[..] == expected[..], "{len} bytes");
    }
}

#[test]
fn an_immediate_arrives_in_host_byte_order() {
    if lacks_need(Need::Immediates) {
        return;
    }
    interlock::domain! { struct Test; }
    let mut link = Link::new(context().named_domain(Test).unwrap(), 4);
    let receive = link.right.post_receive(link.domain.buffer(8).unwrap()).unwrap();
    link.left.post_send_with_immediate(link.domain.buffer(8).unwrap(), 0x0102_0304).unwrap();
    match completion_of(&mut link.poller, receive).check().unwrap().into_work() {
        Work::Received(received) => assert_eq!(received.immediate, Some(0x0102_0304)),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_write_arrives_and_takes_no_receive() {
    interlock::domain! { struct Test; }
    let mut link = Link::new(context().named_domain(Test).unwrap(), 4);
    let region = link.domain.register::<RemoteWrite, _>(vec![0_u64; 512]).unwrap();
    let target = RemoteRegion::<RemoteWrite>::from_bytes(&region.remote().to_bytes()).unwrap();
    let message = filled(link.domain.buffer(1000).unwrap(), 3);
    let expected = message.to_vec();
    link.left.post_write(message, &target.slice(24..2000).unwrap()).unwrap();
    let Work::Written(PostedMemory::Unique(back)) = next(&mut link.poller).into_work() else { panic!("a write") };
    assert_eq!(back[..], expected[..]);
    let mut seen = vec![0; 1000];
    region.read_into(24, &mut seen).unwrap();
    assert_eq!(seen, expected);
    assert_eq!(region.load(16).unwrap(), 0, "before the target");
    // `deregister` returns the memory as the type that was registered.
    let words: Vec<u64> = region.deregister().unwrap();
    assert_eq!(&words.as_bytes()[24..1024], expected);
}

#[test]
fn a_write_with_immediate_gives_the_receive_back_unfilled() {
    if lacks_need(Need::Immediates) {
        return;
    }
    interlock::domain! { struct Test; }
    let mut link = Link::new(context().named_domain(Test).unwrap(), 4);
    let region = link.domain.register::<RemoteWrite, _>(vec![0_u64; 8]).unwrap();
    let receive = link.right.post_receive(link.domain.buffer(16).unwrap()).unwrap();
    let message = filled(link.domain.buffer(40).unwrap(), 9);
    link.left.post_write_with_immediate(message, &region.remote(), 77).unwrap();
    match completion_of(&mut link.poller, receive).check().unwrap().into_work() {
        Work::WrittenWithImmediate(written) => {
            assert_eq!((written.immediate, written.written_bytes), (77, 40));
            assert!(written.buffer.is_empty());
            assert_eq!(written.buffer.capacity(), 16);
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_read_brings_what_the_peer_has() {
    interlock::domain! { struct Test; }
    let mut link = Link::new(context().named_domain(Test).unwrap(), 4);
    let mut region = link.domain.register::<RemoteRead, _>(vec![0_u64; 16]).unwrap();
    region.write_from(3, b"what the peer has").unwrap();
    assert_eq!(&region.as_bytes()[3..20], b"what the peer has");
    let source = region.remote().slice(3..20).unwrap();
    link.left.post_read(link.domain.buffer(64).unwrap(), &source).unwrap();
    let Work::Read(buffer) = next(&mut link.poller).into_work() else { panic!("a read") };
    assert_eq!(&buffer[..], b"what the peer has");
}

#[test]
fn atomics_give_the_original_and_change_the_word() {
    if lacks_need(Need::Atomics) {
        return;
    }
    interlock::domain! { struct Test; }
    let mut link = Link::new(context().named_domain(Test).unwrap(), 4);
    let mut region = link.domain.register::<RemoteAtomic, _>(vec![0_u64; 2]).unwrap();
    region.store(8, 41).unwrap();
    let word = region.remote().slice(8..16).unwrap();
    let mut result = link.domain.buffer(8).unwrap();
    let mut original = |link: &mut Link<Test>, post: &mut dyn FnMut(&mut Link<Test>, Buffer<Test>)| {
        let buffer = std::mem::replace(&mut result, link.domain.buffer(8).unwrap());
        post(link, buffer);
        match next(&mut link.poller).into_work() {
            Work::Atomic { original, buffer } => {
                assert_eq!(buffer.len(), 8);
                original
            }
            other => panic!("{other:?}"),
        }
    };
    let mut add = |link: &mut Link<Test>, by| {
        original(link, &mut |link, buffer| {
            link.left.post_fetch_and_add(buffer, &word, by).unwrap();
        })
    };
    assert_eq!(add(&mut link, 1), 41);
    assert_eq!(add(&mut link, u64::MAX), 42, "wraps");
    let mut swap = |link: &mut Link<Test>, compare, swap| {
        original(link, &mut |link, buffer| {
            link.left.post_compare_and_swap(buffer, &word, compare, swap).unwrap();
        })
    };
    assert_eq!(swap(&mut link, 41, 7), 41, "equal");
    assert_eq!(swap(&mut link, 41, 9), 7, "not equal");
    assert_eq!(region.load(8).unwrap(), 7);
    assert_eq!(region.load(0).unwrap(), 0, "the word before");
}

#[test]
fn a_pair_may_be_connected_to_itself() {
    if lacks_need(Need::SelfConnection) {
        return;
    }
    interlock::domain! { struct Test; }
    let domain = context().named_domain(Test).unwrap();
    let port = domain.context().active_port().unwrap();
    let (queue, mut poller) = domain.queue(16).unwrap();
    let pair = domain.reliable(&queue, &Default::default()).unwrap().into_init(&port).unwrap();
    let myself = pair.endpoint();
    let mut pair = pair.connect(&myself).unwrap();
    let receive = pair.post_receive(domain.buffer(8).unwrap()).unwrap();
    let mut message = domain.buffer(8).unwrap();
    message.write(b"echo").unwrap();
    pair.post_send(message).unwrap();
    let received = completion_of(&mut poller, receive).check().unwrap().into_received().unwrap();
    assert_eq!(&received[..], b"echo");
}

#[test]
fn a_share_is_in_flight_many_times_and_unique_again_after() {
    interlock::domain! { struct Test; }
    let mut link = Link::new(context().named_domain(Test).unwrap(), 4);
    let mut news = link.domain.buffer(16).unwrap();
    news.write(b"to all").unwrap();
    let news = news.share();
    for _ in 0..3 {
        link.right.post_receive(link.domain.buffer(16).unwrap()).unwrap();
        link.left.post_send(news.clone()).unwrap();
    }
    let news = news.into_unique().expect_err("clones are in flight").share;
    let (mut sent, mut received) = (0, 0);
    while (sent, received) != (3, 3) {
        match next(&mut link.poller).into_work() {
            Work::Sent(PostedMemory::Shared(share)) => {
                assert_eq!(&share[..], b"to all");
                sent += 1;
            }
            Work::Received(message) => {
                assert_eq!(&message.buffer[..], b"to all");
                received += 1;
            }
            other => panic!("{other:?}"),
        }
    }
    let mut news = news.into_unique().expect("the clones are gone");
    news.write(b"mine again").unwrap();
}

#[test]
fn memory_without_local_write_can_be_sent_from() {
    interlock::domain! { struct Test; }
    let mut link = Link::new(context().named_domain(Test).unwrap(), 4);
    let share = link.domain.register::<LocalRead, _>(b"fixed".to_vec()).unwrap().share();
    let receive = link.right.post_receive(link.domain.buffer(16).unwrap()).unwrap();
    link.left.post_send(share.clone()).unwrap();
    let received = completion_of(&mut link.poller, receive).check().unwrap().into_received().unwrap();
    assert_eq!(&received[..], b"fixed");
    assert!(share.into_unique().is_err(), "the device may not write there");
}

#[test]
fn unsignalled_requests_come_out_in_order_before_the_signalled_one() {
    // On a device that completes requests in any order, the library signals each request.
    if lacks_need(Need::Order) {
        return;
    }
    interlock::domain! { struct Test; }
    let mut link = Link::new(context().named_domain(Test).unwrap(), 8);
    let region = link.domain.register::<RemoteWrite, _>(vec![0_u64; 8]).unwrap();
    let buffers = link.domain.buffers(4, 8).unwrap();
    let mut ids = Vec::new();
    for (number, buffer) in buffers.into_iter().enumerate() {
        let request = WorkRequest::write(buffer, &region.remote());
        let request = if number < 3 { request.unsignalled() } else { request };
        ids.push(link.left.post(request).unwrap());
    }
    let out: Vec<WorkId> = (0..4).map(|_| next(&mut link.poller).id()).collect();
    assert_eq!(out, ids);
    assert!(link.poller.poll().unwrap().is_none());
}

#[test]
fn the_last_free_slot_is_signalled_so_that_the_queue_cannot_lock_up() {
    interlock::domain! { struct Test; }
    let mut link = Link::new(context().named_domain(Test).unwrap(), 4);
    let region = link.domain.register::<RemoteWrite, _>(vec![0_u64; 8]).unwrap();
    for round in 0..5 {
        for _ in 0..4 {
            let request = WorkRequest::write(link.domain.buffer(8).unwrap(), &region.remote()).unsignalled();
            link.left.post(request).unwrap_or_else(|error| panic!("round {round}: {error}"));
        }
        for _ in 0..4 {
            next(&mut link.poller);
        }
    }
}

#[test]
fn a_full_queue_gives_the_request_back() {
    interlock::domain! { struct Test; }
    let mut link = Link::new(context().named_domain(Test).unwrap(), 2);
    for _ in 0..2 {
        link.right.post_receive(link.domain.buffer(8).unwrap()).unwrap();
    }
    let mut third = link.domain.buffer(8).unwrap();
    third.write(b"third").unwrap();
    let Err(PostError::QueueFull(third)) = link.right.post_receive(third) else { panic!("a full queue") };
    assert_eq!(&third[..], b"third");
    let region = link.domain.register::<RemoteWrite, _>(vec![0_u64; 8]).unwrap();
    for _ in 0..2 {
        link.left.post_write(link.domain.buffer(8).unwrap(), &region.remote()).unwrap();
    }
    let Err(PostError::QueueFull(third)) = link.left.post_write(third, &region.remote()) else {
        panic!("a full queue")
    };
    // Poll both completions: the device may complete the second write first, but only the completion of the first write
    // makes room.
    for _ in 0..2 {
        next(&mut link.poller);
    }
    link.left.post_write(third, &region.remote()).unwrap();
}

#[test]
fn a_flawed_request_comes_back_before_the_verb() {
    interlock::domain! { struct Test; }
    let mut link = Link::new(context().named_domain(Test).unwrap(), 4);
    let region = link.domain.register::<RemoteReadWrite, _>(vec![0_u64; 8]).unwrap();
    let remote = region.remote();
    let buffer = link.domain.buffer(65).unwrap();
    let Err(PostError::Flawed { request: buffer, .. }) = link.left.post_write(buffer, &remote) else {
        panic!("too long")
    };
    let short = link.domain.buffer(63).unwrap();
    assert!(matches!(link.left.post_read(short, &remote), Err(PostError::Flawed { .. })), "too short");
    assert_eq!(buffer.len(), 65);
    assert!(link.poller.poll().unwrap().is_none());
}

#[test]
fn an_atomic_on_what_is_not_a_word_comes_back_before_the_verb() {
    if lacks_need(Need::Atomics) {
        return;
    }
    interlock::domain! { struct Test; }
    let mut link = Link::new(context().named_domain(Test).unwrap(), 4);
    let region = link.domain.register::<RemoteAll, _>(vec![0_u64; 8]).unwrap();
    let odd = region.remote().slice(4..12).unwrap();
    let buffer = link.domain.buffer(65).unwrap();
    let Err(PostError::Flawed { request, .. }) = link.left.post_fetch_and_add(buffer, &odd, 1) else { panic!("odd") };
    assert_eq!(request.len(), 65);
    assert!(link.poller.poll().unwrap().is_none());
}

#[test]
fn a_batch_rings_once_and_all_of_it_arrives() {
    interlock::domain! { struct Test; }
    let count = if cfg!(miri) { 16 } else { 64 };
    let mut link = Link::new(context().named_domain(Test).unwrap(), count);
    let region = link.domain.register::<RemoteWrite, _>(vec![0_u64; count as usize]).unwrap();
    let mut buffers = link.domain.buffers(count as usize, 8).unwrap();
    let posted = link
        .left
        .batch(|batch| {
            for (at, mut buffer) in buffers.drain(..).enumerate() {
                buffer.copy_from_slice(&(at as u64 + 1).to_ne_bytes());
                let target = region.remote().slice(8 * at as u64..8 * at as u64 + 8).unwrap();
                batch.post(WorkRequest::write(buffer, &target).unsignalled()).unwrap();
            }
            count
        })
        .unwrap();
    for _ in 0..posted {
        next(&mut link.poller);
    }
    for at in 0..count as usize {
        assert_eq!(region.load(8 * at).unwrap(), at as u64 + 1);
    }
}

#[test]
fn typed_views_are_the_bytes_that_arrived() {
    #[derive(Clone, Copy, PartialEq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
    #[repr(C)]
    struct Reading {
        sensor: u32,
        value: u32,
    }
    interlock::domain! { struct Test; }
    let mut link = Link::new(context().named_domain(Test).unwrap(), 4);
    let sent = Reading { sensor: 3, value: 99 };
    let receive = link.right.post_receive(link.domain.buffer(64).unwrap()).unwrap();
    let mut message = link.domain.buffer(8).unwrap();
    *message.view_mut::<Reading>().unwrap() = sent;
    link.left.post_send(message).unwrap();
    let received = completion_of(&mut link.poller, receive).check().unwrap().into_received().unwrap();
    assert_eq!(received.view::<Reading>().unwrap(), &sent);
    assert_eq!(received.view_slice::<u32>().unwrap(), [3, 99]);
    assert!(received.view::<u64>().is_ok() && received.view::<[u8; 9]>().is_err());
}

#[test]
fn two_halves_of_a_pair_work_on_two_threads() {
    interlock::domain! { struct Test; }
    let messages: u32 = if cfg!(miri) { 20 } else { 500 };
    let link = Link::new(context().named_domain(Test).unwrap(), 8);
    let Link { domain, mut poller, left, right, .. } = link;
    let (mut sender, left_receiver) = left.split();
    let (right_sender, mut receiver) = right.split();
    let mut spare = domain.buffers(8, 4).unwrap();
    for buffer in domain.buffers(8, 4).unwrap() {
        receiver.post_receive(buffer).unwrap();
    }
    std::thread::scope(|scope| {
        let (free, pool) = std::sync::mpsc::channel();
        spare.drain(..).for_each(|buffer| free.send(buffer).unwrap());
        let sending = scope.spawn(move || {
            for number in 0..messages {
                let mut buffer: Buffer<Test> = pool.recv().unwrap();
                buffer.copy_from_slice(&number.to_ne_bytes());
                let mut buffer = Some(buffer);
                while let Some(again) = buffer.take() {
                    // On a device that completes requests in any order, a buffer can come back while an older request
                    // is still in flight. Then the queue is still full.
                    match sender.post_send(again) {
                        Ok(_) => {}
                        Err(PostError::QueueFull(back)) => buffer = Some(back),
                        Err(error) => panic!("{error}"),
                    }
                }
            }
            sender
        });
        let mut expected = 0_u32;
        let mut sent = 0;
        // On an iWARP device, a send completes before the message has arrived. So a buffer goes back to the sending
        // thread only when a receive for the next message is posted, too.
        let (mut back, mut reposted) = (Vec::new(), 0);
        while expected < messages || sent < messages {
            match poller.wait(PATIENCE).unwrap().check().unwrap().into_work() {
                Work::Sent(memory) => {
                    sent += 1;
                    back.push(memory.into_buffer().unwrap());
                }
                Work::Received(message) => {
                    assert_eq!(message.buffer[..], expected.to_ne_bytes());
                    expected += 1;
                    receiver.post_receive(message.buffer).unwrap();
                    reposted += 1;
                }
                other => panic!("{other:?}"),
            }
            while reposted > 0
                && let Some(buffer) = back.pop()
            {
                reposted -= 1;
                // If the thread `sending` has ended, `send` fails. Ignore that: nobody needs the buffer any more.
                let _ = free.send(buffer);
            }
        }
        let sender = sending.join().unwrap();
        let pair = sender.join(left_receiver).unwrap();
        assert!(pair.first_failure().is_none());
        assert!(right_sender.join(receiver).is_ok());
    });
}

#[test]
fn one_queue_serves_many_pairs() {
    interlock::domain! { struct Test; }
    let domain = context().named_domain(Test).unwrap();
    let port = domain.context().active_port().unwrap();
    let pairs = if cfg!(miri) { 4 } else { 32 };
    let (queue, mut poller) = domain.queue(pairs * 4).unwrap();
    let limits = interlock::Limits { sends: 1, receives: 1, ..Default::default() };
    let mut links = Vec::new();
    for _ in 0..pairs {
        let left = domain.reliable(&queue, &limits).unwrap().into_init(&port).unwrap();
        let right = domain.reliable(&queue, &limits).unwrap().into_init(&port).unwrap();
        links.push(connect_to_each_other(&domain, left, right, &Default::default()));
    }
    assert_eq!(queue.room(), 0);
    assert!(matches!(domain.reliable(&queue, &limits), Err(interlock::error::CreateError::NoRoom(_))));
    for (number, (left, right)) in links.iter_mut().enumerate() {
        right.post_receive(domain.buffer(8).unwrap()).unwrap();
        let mut message = domain.buffer(8).unwrap();
        message.write(&(number as u64).to_ne_bytes()).unwrap();
        left.post_send(message).unwrap();
    }
    let mut seen = vec![false; links.len()];
    for _ in 0..2 * pairs {
        let success = next(&mut poller);
        let from = success.queue_pair();
        let Work::Received(message) = success.into_work() else { continue };
        let number = u64::from_ne_bytes(message.buffer[..].try_into().unwrap()) as usize;
        assert_eq!(from, links[number].1.number());
        assert!(!std::mem::replace(&mut seen[number], true), "{number} came twice");
    }
    assert!(seen.iter().all(|&seen| seen));
}

#[test]
fn a_write_beyond_what_was_granted_fails_and_changes_nothing() {
    if lacks_need(Need::Acknowledgements) {
        return;
    }
    interlock::domain! { struct Test; }
    let mut link = Link::new(context().named_domain(Test).unwrap(), 4);
    let region = link.domain.register::<RemoteReadWrite, _>(vec![0_u64; 4]).unwrap();
    // The record claims that the region has 40 bytes, but it has 32.
    let mut record = region.remote().to_bytes();
    record[23] = 40;
    let lie = RemoteRegion::<RemoteWrite>::from_bytes(&record).unwrap();
    let receive = link.right.post_receive(link.domain.buffer(8).unwrap()).unwrap();
    link.left.post_write(filled(link.domain.buffer(40).unwrap(), 1), &lie).unwrap();
    // The peer's pair breaks too, so its receive is flushed.
    for _ in 0..2 {
        let failure = failure(&mut link.poller);
        if failure.id == receive {
            assert_eq!(failure.status, Status::Flushed);
        } else {
            assert_eq!(failure.status, Status::RemoteAccess, "{failure}");
            assert!(failure.to_string().contains("remote access error"));
            assert_eq!(failure.into_buffer().unwrap().len(), 40);
        }
    }
    for at in [0, 8, 16, 24] {
        assert_eq!(region.load(at).unwrap(), 0);
    }
    assert!(matches!(link.left.post_send(link.domain.buffer(8).unwrap()), Err(PostError::Broken { .. })));
}

#[test]
fn a_deregistered_region_is_beyond_the_peers_reach() {
    if lacks_need(Need::Acknowledgements) {
        return;
    }
    interlock::domain! { struct Test; }
    let mut link = Link::new(context().named_domain(Test).unwrap(), 4);
    let region = link.domain.register::<RemoteReadWrite, _>(vec![5_u64; 4]).unwrap();
    let stale = region.remote();
    let memory = region.deregister().unwrap();
    link.left.post_write(filled(link.domain.buffer(8).unwrap(), 1), &stale).unwrap();
    assert_eq!(failure(&mut link.poller).status, Status::RemoteAccess);
    assert_eq!(memory, [5; 4]);
}

#[test]
fn a_message_too_long_for_its_receive_fails_on_both_sides() {
    if lacks_need(Need::Acknowledgements) {
        return;
    }
    interlock::domain! { struct Test; }
    let mut link = Link::new(context().named_domain(Test).unwrap(), 4);
    let receive = link.right.post_receive(link.domain.buffer(8).unwrap()).unwrap();
    let send = link.left.post_send(link.domain.buffer(9).unwrap()).unwrap();
    let mut statuses = [None, None];
    for _ in 0..2 {
        let failure = failure(&mut link.poller);
        let at = usize::from(failure.id == send);
        assert!(failure.id == send || failure.id == receive);
        statuses[at] = Some(failure.status);
    }
    let expected = match deviates("C096") {
        false => [Status::LocalLength, Status::RemoteInvalidRequest],
        true => [Status::LocalQueuePairOperation, Status::RemoteOperation],
    };
    assert_eq!(statuses, expected.map(Some));
}

#[test]
fn a_message_waits_for_a_receive_that_comes_late() {
    // On iWARP, a message does not wait until a receive is posted.
    if lacks_need(Need::Waiting) {
        return;
    }
    interlock::domain! { struct Test; }
    let mut link = Link::new(context().named_domain(Test).unwrap(), 4);
    let mut message = link.domain.buffer(8).unwrap();
    message.write(b"patient").unwrap();
    link.left.post_send(message).unwrap();
    assert!(link.poller.wait(Duration::from_millis(50)).is_err(), "nobody is ready to receive");
    let receive = link.right.post_receive(link.domain.buffer(8).unwrap()).unwrap();
    let received = completion_of(&mut link.poller, receive).check().unwrap().into_received().unwrap();
    assert_eq!(&received[..], b"patient");
}

#[test]
fn a_message_without_a_receive_fails_where_no_retry_is_allowed() {
    // On iWARP, a message without a receive ends the connection, and no status says why.
    if lacks_need(Need::Waiting) {
        return;
    }
    interlock::domain! { struct Test; }
    let attr = ConnectAttributes { rnr_retry: RnrRetry::new(0).unwrap(), ..Default::default() };
    let mut link = Link::with(context().named_domain(Test).unwrap(), 4, &attr);
    link.left.post_send(link.domain.buffer(8).unwrap()).unwrap();
    assert_eq!(failure(&mut link.poller).status, Status::RnrRetryExceeded);
    assert_eq!(link.right.query_state().unwrap(), DeviceState::ReadyToSend, "the peer goes on");
}

#[test]
fn two_devices_reach_each_other() {
    if lacks_need(Need::TwoDevices) {
        return;
    }
    interlock::domain! {
        struct Here;
        struct There;
    }
    let here = context();
    // `soft0` and `soft1` are on one network, and so are `rxe0` and `rxe1`.
    let name = here.name().replace('0', "1");
    let Ok(there) = interlock::Context::open(&name) else {
        println!("not covered here: there is no second device {name}");
        assert!(std::env::var_os("INTERLOCK_RXE").is_none(), "the rxe lane has two devices");
        return;
    };
    let (here, there) = (here.named_domain(Here).unwrap(), there.named_domain(There).unwrap());
    let (here_port, there_port) = (here.context().active_port().unwrap(), there.context().active_port().unwrap());
    assert_ne!(here_port.gid().unwrap().gid, there_port.gid().unwrap().gid);
    let (here_queue, mut here_poller) = here.queue(8).unwrap();
    let (there_queue, mut there_poller) = there.queue(8).unwrap();
    let left = here.reliable(&here_queue, &Default::default()).unwrap().into_init(&here_port).unwrap();
    let right = there.reliable(&there_queue, &Default::default()).unwrap().into_init(&there_port).unwrap();
    let (to_left, to_right) = (left.endpoint(), right.endpoint());
    let (mut left, mut right) = (left.connect(&to_right).unwrap(), right.connect(&to_left).unwrap());
    right.post_receive(there.buffer(64).unwrap()).unwrap();
    let mut message = here.buffer(64).unwrap();
    message.write(b"over there").unwrap();
    left.post_send(message).unwrap();
    assert_eq!(&next(&mut there_poller).into_received().unwrap()[..], b"over there");
    assert!(matches!(next(&mut here_poller).into_work(), Work::Sent(_)));
}

fn list_of<B: Brand>(domain: &ProtectionDomain<B>, parts: &[&[u8]]) -> BufferList<B> {
    let fill = |part: &&[u8]| {
        let mut buffer = domain.buffer(part.len().max(1)).unwrap();
        buffer.write(part).unwrap();
        buffer
    };
    parts.iter().map(fill).collect()
}

fn listed<B: Brand>(domain: ProtectionDomain<B>) -> Link<B> {
    let limits = interlock::Limits { sends: 4, receives: 4, elements: 3, ..Default::default() };
    Link::limited(domain, &limits, &interlock::attributes::ConnectAttributes::default())
}

#[test]
fn a_list_is_gathered_on_one_side_and_scattered_on_the_other() {
    interlock::domain! { struct Test; }
    let mut link = listed(context().named_domain(Test).unwrap());
    // An empty buffer in the middle of the list adds nothing to the message.
    let message = list_of(&link.domain, &[b"head", b"", b"and body"]);
    let into: BufferList<_> = [5, 3, 100].map(|len| link.domain.buffer(len).unwrap()).into_iter().collect();
    link.right.post_receive(into).unwrap();
    link.left.post_send(message).unwrap();
    for _ in 0..2 {
        match next(&mut link.poller).into_work() {
            Work::Sent(PostedMemory::List(list)) => assert_eq!((&list[0][..], list.filled_bytes()), (&b"head"[..], 12)),
            Work::Scattered(Scattered { list, written_bytes: None, immediate: None, .. }) => {
                let parts: Vec<&[u8]> = list.iter().map(|buffer| &buffer[..]).collect();
                assert_eq!(parts, [&b"heada"[..], b"nd ", b"body"]);
                assert_eq!(list.into_buffers().len(), 3);
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn memory_of_the_peer_is_read_into_a_list_and_written_from_one() {
    if lacks_need(Need::ListReads) {
        return;
    }
    interlock::domain! { struct Test; }
    let mut link = listed(context().named_domain(Test).unwrap());
    let mut theirs = link.domain.register::<RemoteReadWrite, _>(vec![0_u64; 2]).unwrap();
    theirs.write_from(0, b"0123456789abcdef").unwrap();
    let remote = theirs.remote();
    let list = list_of(&link.domain, &[b"three", b"and", b"a lot more"]);
    link.left.post(WorkRequest::read_scattered(list, &remote.slice(0..10).unwrap())).unwrap();
    let Work::ReadScattered(list) = next(&mut link.poller).into_work() else { panic!("a read") };
    let parts: Vec<&[u8]> = list.iter().map(|buffer| &buffer[..]).collect();
    assert_eq!(parts, [&b"01234"[..], b"567", b"89"]);
    link.left.post_write(list, &remote.slice(6..16).unwrap()).unwrap();
    let Work::Written(PostedMemory::List(_)) = next(&mut link.poller).into_work() else { panic!("a write") };
    let mut bytes = [0; 16];
    theirs.read_into(0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"0123450123456789");
}

/// C065: the list has more buffers than the pair takes.
#[test]
fn a_list_has_as_many_buffers_as_the_pair_takes() {
    interlock::domain! { struct Test; }
    let mut link = listed(context().named_domain(Test).unwrap());
    let four = || list_of(&link.domain, &[b"1", b"2", b"3", b"4"]);
    let (send, receive) = (four(), four());
    for error in [link.left.post_send(send).unwrap_err(), link.left.post_receive(receive).unwrap_err()] {
        let PostError::Flawed { request, flaw: RequestFlaw::TooManyElements { elements: 4, most: 3 } } = error else {
            panic!("{error}")
        };
        assert_eq!(request.len(), 4);
    }
}

/// C047: the write does not use the memory of the receive.
#[test]
fn a_write_with_immediate_from_a_list_takes_a_receive_without_memory() {
    if lacks_need(Need::Immediates) {
        return;
    }
    interlock::domain! { struct Test; }
    let mut link = listed(context().named_domain(Test).unwrap());
    let theirs = link.domain.register::<RemoteReadWrite, _>(vec![0_u64; 1]).unwrap();
    link.right.post_receive(BufferList::new(Vec::new())).unwrap();
    link.left.post_write_with_immediate(list_of(&link.domain, &[b"to", b"them"]), &theirs.remote(), 3).unwrap();
    let works = [next(&mut link.poller).into_work(), next(&mut link.poller).into_work()];
    let told = works.iter().find_map(|work| match work {
        Work::Scattered(scattered) => Some((scattered.written_bytes, scattered.immediate, scattered.list.len())),
        _ => None,
    });
    assert_eq!(told, Some((Some(6), Some(3), 0)));
}

support::also_extended![
    messages_of_many_lengths_arrive_as_they_were_sent,
    an_immediate_arrives_in_host_byte_order,
    a_write_arrives_and_takes_no_receive,
    a_write_with_immediate_gives_the_receive_back_unfilled,
    a_read_brings_what_the_peer_has,
    atomics_give_the_original_and_change_the_word,
    a_pair_may_be_connected_to_itself,
    a_share_is_in_flight_many_times_and_unique_again_after,
    memory_without_local_write_can_be_sent_from,
    unsignalled_requests_come_out_in_order_before_the_signalled_one,
    the_last_free_slot_is_signalled_so_that_the_queue_cannot_lock_up,
    a_full_queue_gives_the_request_back,
    a_flawed_request_comes_back_before_the_verb,
    an_atomic_on_what_is_not_a_word_comes_back_before_the_verb,
    a_batch_rings_once_and_all_of_it_arrives,
    typed_views_are_the_bytes_that_arrived,
    two_halves_of_a_pair_work_on_two_threads,
    one_queue_serves_many_pairs,
    a_write_beyond_what_was_granted_fails_and_changes_nothing,
    a_deregistered_region_is_beyond_the_peers_reach,
    a_message_too_long_for_its_receive_fails_on_both_sides,
    a_message_waits_for_a_receive_that_comes_late,
    a_message_without_a_receive_fails_where_no_retry_is_allowed,
    two_devices_reach_each_other,
    a_list_is_gathered_on_one_side_and_scattered_on_the_other,
    memory_of_the_peer_is_read_into_a_list_and_written_from_one,
    a_list_has_as_many_buffers_as_the_pair_takes,
    a_write_with_immediate_from_a_list_takes_a_receive_without_memory,
];
