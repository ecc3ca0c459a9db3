//! Each operation of each transport, one request at a time or in a batch.

use super::{INLINE, WAYS, link, link_with, pattern, success_of};
use interlock::memory::BufferList;
use interlock::number::Qkey;
use interlock::queue::Posting;
use interlock::request::PostedMemory;
use interlock::{Inline, Limits, PostError, RemoteAll, RemoteReadWrite, Work, WorkRequest};
use support::{Need, Promise, context, lacks, lacks_need, message, next, promises_everything};

#[test]
fn the_work_request_api_is_there_or_is_refused() {
    let domain = context().checked_domain().unwrap();
    // A real device can lack this way of posting, but soft-RoCE has it: `link` panics if soft-RoCE refuses it.
    assert!(link(&domain, 4, Posting::WorkRequestApi).is_some() || !promises_everything());
    assert_eq!(link(&domain, 4, Posting::List).unwrap().left.limits().posting, Posting::default());
}

#[test]
fn messages_of_many_lengths_arrive_as_they_were_sent() {
    if lacks_need(Need::Immediates) {
        return;
    }
    let domain = context().checked_domain().unwrap();
    for mut link in WAYS.into_iter().filter_map(|way| link(&domain, 4, way)) {
        for (round, len) in [0, 1, 63, 64, 4095, 4096, 4097, 20_000].into_iter().enumerate() {
            let bytes = pattern(len, round as u8);
            for form in 0..3 {
                let receive = link.right.post_receive(domain.buffer(20_000).unwrap()).unwrap();
                let message = message(&domain, &bytes);
                let immediate = (form == 2).then_some(0x0102_0304);
                match form {
                    0 => link.left.post_send(message).unwrap(),
                    1 => link.left.post_send(message.share()).unwrap(),
                    _ => link.left.post(WorkRequest::send(message).with_immediate(0x0102_0304).solicited()).unwrap(),
                };
                let Work::Received(received) = success_of(&mut link.poller, receive).into_work() else {
                    panic!("a message")
                };
                assert!(received.buffer[..] == bytes[..], "{len} bytes, form {form}");
                assert_eq!(received.immediate, immediate);
            }
        }
    }
}

#[test]
fn inline_bytes_arrive_and_stay_the_programs() {
    let domain = context().checked_domain().unwrap();
    for mut link in WAYS.into_iter().filter_map(|way| link(&domain, 4, way)) {
        let region = domain.register::<RemoteReadWrite, _>(vec![0_u64; 8]).unwrap();
        for (round, len) in [0, 1, 7, INLINE as usize].into_iter().enumerate() {
            let receive = link.right.post_receive(domain.buffer(64).unwrap()).unwrap();
            let mut bytes = pattern(len, round as u8);
            link.left.post_send(Inline(&bytes)).unwrap();
            let sent = bytes.clone();
            bytes.fill(0xee);
            let received = success_of(&mut link.poller, receive).into_received().unwrap();
            assert_eq!(received[..], sent[..]);

            bytes.copy_from_slice(&sent);
            let id = link.left.post(WorkRequest::write(Inline(&bytes), &region.remote()).unsignalled()).unwrap();
            bytes.fill(0xee);
            let target = region.remote().slice(40..64).unwrap();
            let last = link.left.post_write(Inline(&[round as u8; 24]), &target).unwrap();
            // The completion of the send above comes here too, unless `success_of` has already dropped it. Skip it.
            let mut left = vec![id, last];
            while !left.is_empty() {
                let success = next(&mut link.poller);
                if left.contains(&success.id()) {
                    assert!(success.id() == left[0] || lacks(Promise::Order), "in order");
                    left.retain(|&id| id != success.id());
                    assert!(matches!(success.into_work(), Work::Written(PostedMemory::Inline)));
                }
            }
            let mut seen = vec![0; 64];
            region.read_into(0, &mut seen).unwrap();
            assert_eq!(seen[..len], sent[..]);
            assert_eq!(seen[40..], [round as u8; 24]);
        }
        let long = [0; INLINE as usize + 1];
        assert!(matches!(link.left.post_send(Inline(&long)), Err(PostError::Flawed { .. })));
    }
}

#[test]
fn writes_reads_and_atomics_touch_what_they_name_and_nothing_else() {
    if lacks_need(Need::Atomics) {
        return;
    }
    let domain = context().checked_domain().unwrap();
    for mut link in WAYS.into_iter().filter_map(|way| link(&domain, 8, way)) {
        let region = domain.register::<RemoteAll, _>(vec![0_u64; 64]).unwrap();
        let mut expected = vec![0; 512];
        let bytes = pattern(100, 3);

        let target = region.remote().slice(24..200).unwrap();
        let id = link.left.post_write(message(&domain, &bytes), &target).unwrap();
        let Work::Written(PostedMemory::Unique(back)) = success_of(&mut link.poller, id).into_work() else {
            panic!("a write")
        };
        assert_eq!(back[..], bytes[..]);
        expected[24..124].copy_from_slice(&bytes);

        let receive = link.right.post_receive(domain.buffer(16).unwrap()).unwrap();
        let target = region.remote().slice(300..320).unwrap();
        link.left.post_write_with_immediate(message(&domain, &bytes[..17]), &target, 77).unwrap();
        let Work::WrittenWithImmediate(written) = success_of(&mut link.poller, receive).into_work() else {
            panic!("a write")
        };
        assert_eq!((written.immediate, written.written_bytes), (77, 17));
        expected[300..317].copy_from_slice(&bytes[..17]);

        // Post a write of 0 bytes, and a read that is shorter than its buffer.
        link.left.post_write(message(&domain, &[]), &region.remote()).unwrap();
        let source = region.remote().slice(20..130).unwrap();
        let id = link.left.post(WorkRequest::read(domain.buffer(150).unwrap(), &source).fenced()).unwrap();
        let Work::Read(read) = success_of(&mut link.poller, id).into_work() else { panic!("a read") };
        assert_eq!(read[..], expected[20..130]);
        let nothing = region.remote().slice(20..20).unwrap();
        let id = link.left.post_read(domain.buffer(8).unwrap(), &nothing).unwrap();
        let Work::Read(read) = success_of(&mut link.poller, id).into_work() else { panic!("a read") };
        assert!(read.is_empty());

        let word = region.remote().slice(400..408).unwrap();
        const SWAPPED: u64 = 0x0102_0304_0506_0708;
        let result = || domain.buffer(8).unwrap();
        let atomics = [
            (WorkRequest::fetch_and_add(result(), &word, 41), 0),
            (WorkRequest::fetch_and_add(result(), &word, u64::MAX), 41),
            (WorkRequest::compare_and_swap(result(), &word, 40, SWAPPED), 40),
            (WorkRequest::compare_and_swap(result(), &word, 40, 9), SWAPPED),
        ];
        for (request, before) in atomics {
            let id = link.left.post(request).unwrap();
            let Work::Atomic { original, .. } = success_of(&mut link.poller, id).into_work() else {
                panic!("an atomic")
            };
            assert_eq!(original, before);
        }
        let now = SWAPPED;
        expected[400..408].copy_from_slice(&now.to_ne_bytes());
        let mut seen = vec![0; 512];
        region.read_into(0, &mut seen).unwrap();
        assert_eq!(seen, expected);
    }
}

#[test]
fn lists_are_gathered_and_scattered() {
    if lacks_need(Need::ListReads) {
        return;
    }
    let domain = context().checked_domain().unwrap();
    let limits = |posting| Limits { elements: 3, posting, ..Limits::default() };
    for mut link in WAYS.into_iter().filter_map(|way| link_with(&domain, limits(way))) {
        let region = domain.register::<RemoteReadWrite, _>(vec![0_u64; 8]).unwrap();
        let parts = [pattern(10, 1), Vec::new(), pattern(23, 2)];
        let list = || parts.iter().map(|bytes| message(&domain, bytes)).collect::<BufferList<_>>();
        let receive = link.right.post_receive(domain.buffer(64).unwrap()).unwrap();
        link.left.post_send(list()).unwrap();
        let received = success_of(&mut link.poller, receive).into_received().unwrap();
        assert_eq!(received[..], parts.concat());
        let last = link
            .left
            .batch(|batch| {
                let target = region.remote().slice(8..64).unwrap();
                batch.post(WorkRequest::write(list(), &target).unsignalled()).unwrap();
                let source = region.remote().slice(8..41).unwrap();
                let into = [20, 8, 16].map(|len| domain.buffer(len).unwrap());
                batch.post(WorkRequest::read_scattered(into.into_iter().collect(), &source).fenced()).unwrap()
            })
            .unwrap();
        let PostedMemory::List(read) = success_of(&mut link.poller, last).into_memory() else { panic!("a list") };
        let read: Vec<Vec<u8>> = read.into_buffers().iter().map(|buffer| buffer.to_vec()).collect();
        assert_eq!(read.iter().map(Vec::len).collect::<Vec<_>>(), [20, 8, 5]);
        assert_eq!(read.concat(), parts.concat());
    }
}

#[test]
fn unreliable_transports_post_either_way() {
    if lacks_need(Need::UnreliableTransports) {
        return;
    }
    let domain = context().checked_domain().unwrap();
    let port = domain.context().active_port().unwrap();
    let way_is_there = |way| link(&domain, 1, way).is_some();
    for posting in WAYS.into_iter().filter(|&way| way_is_there(way)) {
        let limits = Limits { inline_bytes: INLINE, posting, ..Limits::default() };
        let (queue, mut poller) = domain.completion_queue(3 * limits.completions()).unwrap();
        let region = domain.register::<RemoteReadWrite, _>(vec![0_u64; 8]).unwrap();

        let left = domain.unreliable(&queue, &limits).unwrap().into_init(&port).unwrap();
        let right = domain.unreliable(&queue, &limits).unwrap().into_init(&port).unwrap();
        let (to_left, to_right) = (left.endpoint(), right.endpoint());
        let (mut left, mut right) = (left.connect(&to_right).unwrap(), right.connect(&to_left).unwrap());
        let receive = right.post_receive(domain.buffer(64).unwrap()).unwrap();
        left.batch(|batch| {
            batch.post(WorkRequest::write(message(&domain, &pattern(64, 5)), &region.remote()).unsignalled()).unwrap();
            batch.post(WorkRequest::send(message(&domain, &pattern(30, 6))).with_immediate(3)).unwrap();
        })
        .unwrap();
        let Work::Received(received) = success_of(&mut poller, receive).into_work() else { panic!("a message") };
        assert_eq!((&received.buffer[..], received.immediate), (&pattern(30, 6)[..], Some(3)));
        let mut seen = vec![0; 64];
        region.read_into(0, &mut seen).unwrap();
        assert_eq!(seen, pattern(64, 5));

        let mut alone = domain.datagram(&queue, &limits).unwrap().into_init(&port).unwrap().open().unwrap();
        let myself = domain.recipient(&port, &alone.endpoint(), Qkey::USUAL).unwrap();
        let receives = [(); 3].map(|()| alone.post_receive(domain.buffer(40 + 64).unwrap()).unwrap());
        alone.post_send_to(message(&domain, &pattern(64, 7)), &myself).unwrap();
        let short = pattern(20, 9);
        alone
            .batch(|batch| {
                batch.post(WorkRequest::send_to(message(&domain, &pattern(9, 8)), &myself)).unwrap();
                batch.post(WorkRequest::send_to(Inline(&short), &myself).with_immediate(4)).unwrap();
            })
            .unwrap();
        drop(myself);
        let (mut received, mut others) = (0, 0);
        while received < 3 {
            let success = next(&mut poller);
            let Some(at) = receives.iter().position(|&id| id == success.id()) else {
                others += 1;
                continue;
            };
            let Work::Datagram(datagram) = success.into_work() else { panic!("a datagram") };
            let (len, seed) = [(64, 7), (9, 8), (20, 9)][at];
            assert_eq!((datagram.message(), datagram.sender), (&pattern(len, seed)[..], alone.number()));
            assert_eq!(datagram.immediate, (at == 2).then_some(4));
            received += 1;
        }
        while others < 3 {
            // These are completions of sends: of `alone`, or of the unreliable connection above.
            others += 1;
            next(&mut poller);
        }
    }
}
