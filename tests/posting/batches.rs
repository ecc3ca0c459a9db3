//! Many requests in one call: what a batch hands over, what it gives back, and in which order.

use super::{WAYS, link, pattern, post_all, success_of};
use interlock::error::RequestFlaw;
use interlock::request::Operation;
use interlock::{
    Brand, Buffer, Inline, Poller, PostError, RemoteAll, RemoteReadWrite, RemoteWrite, Work, WorkId, WorkRequest,
};
use std::panic::{AssertUnwindSafe, catch_unwind};
use support::{Link, Need, PATIENCE, Promise, context, lacks, lacks_need, message, next};

#[test]
fn batches_of_up_to_three_doorbells_arrive_whole() {
    interlock::domain! { struct Test; }
    let domain = context().named_domain(Test).unwrap();
    const LEN: usize = 40;
    for mut link in WAYS.into_iter().filter_map(|way| link(&domain, 128, way)) {
        for (round, count) in [1, 31, 32, 33, 80].into_iter().enumerate() {
            let region = domain.register::<RemoteReadWrite, _>(vec![0_u64; 80 * LEN / 8]).unwrap();
            let bytes = |at: usize| pattern(LEN, (at + 7 * round) as u8);
            let target = |at: usize| region.remote().slice((at * LEN) as u64..((at + 1) * LEN) as u64).unwrap();
            let mut requests =
                (0..count).map(|at| WorkRequest::write(message(&domain, &bytes(at)), &target(at)).unsignalled());
            let last = link
                .left
                .batch(|batch| {
                    // Post the first half one by one, and the others except the last in one call. Then post the last
                    // one, signalled.
                    let first = requests.by_ref().take((count - 1) / 2);
                    first.for_each(|request| _ = batch.post(request).unwrap());
                    let rest = count - 1 - (count - 1) / 2;
                    assert_eq!(batch.post_each(requests.by_ref().take(rest)).unwrap(), rest);
                    let at = count - 1;
                    batch.post(WorkRequest::write(message(&domain, &bytes(at)), &target(at))).unwrap()
                })
                .unwrap();
            let mut came: Vec<_> = (0..count)
                .map(|_| next(&mut link.poller))
                .map(|success| (success.id(), success.into_buffer().unwrap()))
                .collect();
            if lacks(Promise::Order) {
                came.sort_by_key(|(_, buffer)| (0..count).position(|at| bytes(at) == buffer[..]));
            }
            for (at, (id, buffer)) in came.into_iter().enumerate() {
                assert_eq!(id == last, at == count - 1, "in order");
                assert_eq!(buffer[..], bytes(at)[..]);
            }
            assert!(link.poller.poll().unwrap().is_none());
            let mut seen = vec![0; 80 * LEN];
            region.read_into(0, &mut seen).unwrap();
            let mut expected: Vec<u8> = (0..count).flat_map(bytes).collect();
            expected.resize(80 * LEN, 0);
            assert!(seen == expected, "{count} writes");
        }
    }
}

/// Polls until `count` buffers came back. Returns them, and how many requests each completion retired.
fn take_all<B: Brand>(poller: &mut Poller<B>, count: usize) -> (Vec<Buffer<B>>, Vec<usize>) {
    let (mut buffers, mut runs, start) = (Vec::new(), Vec::new(), std::time::Instant::now());
    while buffers.len() < count {
        assert!(start.elapsed() < PATIENCE, "{} of {count}", buffers.len());
        poller
            .poll_retired(|retired| {
                runs.push(retired.len());
                retired.into_buffers(&mut buffers).unwrap();
            })
            .unwrap();
    }
    (buffers, runs)
}

#[test]
fn all_items_go_with_one_completion_and_their_buffers_come_back_in_order() {
    // On a device that completes requests in any order, each item has a completion of its own.
    if lacks_need(Need::Order) {
        return;
    }
    interlock::domain! { struct Test; }
    let domain = context().named_domain(Test).unwrap();
    const LEN: usize = 24;
    let depths: &[u32] = if cfg!(miri) { &[40] } else { &[40, 128] };
    for (depth, in_batch) in depths.iter().flat_map(|&depth| [(depth, true), (depth, false)]) {
        for mut link in WAYS.into_iter().filter_map(|way| link(&domain, depth, way)) {
            // Some rounds have few items, some none, and some more than the 32 that go with one doorbell. In some
            // rounds, the items go past the end of the ledger's ring.
            let counts: &[usize] = if cfg!(miri) { &[1, 33] } else { &[1, 31, 32, 0, 33, 7, 40, 20, 30, 1] };
            for (round, &count) in counts.iter().enumerate() {
                let region = domain.register::<RemoteReadWrite, _>(vec![0_u64; 40 * LEN / 8]).unwrap();
                let bytes = |at: usize| pattern(LEN, (at + 5 * round) as u8);
                let mut items: Vec<_> = (0..count)
                    .map(|at| {
                        let target = region.remote().slice((at * LEN) as u64..((at + 1) * LEN) as u64).unwrap();
                        (message(&domain, &bytes(at)), target)
                    })
                    .collect();
                let Link { left, poller, .. } = &mut link;
                let posted = post_all(left, in_batch, &mut items, |(from, to)| WorkRequest::write(from, &to)).unwrap();
                assert_eq!((posted, items.len()), (count, 0));
                let (buffers, runs) = take_all(poller, count);
                assert_eq!(runs.iter().sum::<usize>(), count);
                assert!(runs.len() <= 1, "one completion: {runs:?}, {depth}");
                assert!(poller.poll().unwrap().is_none());
                let mut seen = vec![0; count * LEN];
                region.read_into(0, &mut seen).unwrap();
                for (at, buffer) in buffers.iter().enumerate() {
                    assert_eq!(buffer[..], bytes(at)[..], "in order");
                    assert_eq!(seen[at * LEN..][..LEN], bytes(at)[..], "{at} of {count}");
                }
            }
        }
    }
}

#[test]
fn what_a_batch_cannot_take_of_all_items_stays_in_their_vector() {
    // On a device that completes requests in any order, each item has a completion of its own.
    if lacks_need(Need::Order) {
        return;
    }
    interlock::domain! { struct Test; }
    let domain = context().named_domain(Test).unwrap();
    let links = WAYS.into_iter().flat_map(|way| [(way, true), (way, false)]);
    for (mut link, in_batch) in links.filter_map(|(way, in_batch)| Some((link(&domain, 4, way)?, in_batch))) {
        let region = domain.register::<RemoteReadWrite, _>(vec![0_u64; 8]).unwrap();
        let word = |at: usize| region.remote().slice(8 * at as u64..8 * at as u64 + 8).unwrap();
        let item = |at: usize, len: usize| (message(&domain, &vec![at as u8 + 1; len]), at);
        let write = |(from, at): (Buffer<Test>, usize)| WorkRequest::write(from, &word(at));
        // The third item is too long.
        let mut items: Vec<_> = [8, 8, 9, 8].into_iter().enumerate().map(|(at, len)| item(at, len)).collect();
        let Err(PostError::Flawed { request, flaw }) = post_all(&mut link.left, in_batch, &mut items, write) else {
            panic!("too long")
        };
        assert_eq!(
            (flaw, request.into_memory()[..] == [3; 9]),
            (RequestFlaw::TooLong { len_bytes: 9, within: 8 }, true)
        );
        assert_eq!(items.len(), 1);
        // The first two items were posted unsignalled, and the fourth is still in the vector. The next call posts it
        // signalled, and the completion of the fourth also retires the first two.
        assert_eq!(post_all(&mut link.left, in_batch, &mut items, write).unwrap(), 1);
        let (buffers, runs) = take_all(&mut link.poller, 3);
        assert_eq!((buffers.iter().map(|buffer| buffer[0]).collect::<Vec<_>>(), runs), (vec![1, 2, 4], vec![3]));
        // The first call posts the four items that fit, with one doorbell, and signals the fourth. The other items stay
        // in the vector. The second call posts none, because the queue is full.
        for count in [6, 4, 5] {
            let mut items: Vec<_> = (0..count).map(|at| item(at, 8)).collect();
            assert_eq!(post_all(&mut link.left, in_batch, &mut items, write).unwrap(), 4);
            assert!(items.iter().map(|(_, at)| *at).eq(4..count));
            assert_eq!(post_all(&mut link.left, in_batch, &mut items, write).unwrap(), 0);
            assert!(items.iter().map(|(_, at)| *at).eq(4..count));
            assert_eq!(take_all(&mut link.poller, 4).1, [4]);
        }
        // Each of these inline requests asks for a completion, but `post_all` signals only the last one. When that one
        // completes, `next` returns the completions of all three, one by one.
        let mut lengths = vec![0, 8, 1];
        let bytes = [7; 8];
        let inline = |len| WorkRequest::write(Inline(&bytes[..len]), &word(0)).fenced();
        let posted = post_all(&mut link.left, in_batch, &mut lengths, inline).unwrap();
        assert_eq!((posted, next(&mut link.poller).operation()), (3, Operation::Write));
        let mut rest = Vec::new();
        while rest.len() < 2 {
            rest.push(next(&mut link.poller).id());
        }
        assert!(link.poller.poll().unwrap().is_none());
        // The items can be of a type of size 0.
        let mut nothings = vec![(); 3];
        let empty = |()| WorkRequest::write(Inline(&bytes[..2]), &word(1));
        assert_eq!(post_all(&mut link.left, in_batch, &mut nothings, empty).unwrap(), 3);
        assert_eq!(nothings.len(), 0);
        let mut out = 0;
        while out < 3 {
            out += link.poller.poll_retired(|retired| retired.into_buffers(&mut Vec::new()).unwrap()).unwrap();
        }
    }
}

/// Takes out all writes of the left pair, of which `last` is the last one. Returns how many others there are.
fn take_writes<B: Brand>(link: &mut Link<B>, last: WorkId) -> u32 {
    let others = link.left.sends_in_flight() - 1;
    let came: Vec<_> = (0..=others).map(|_| next(&mut link.poller).id()).collect();
    assert_eq!(came.iter().filter(|&&id| id == last).count(), 1);
    assert!(lacks(Promise::Order) || came.last() == Some(&last), "in order");
    assert_eq!(link.left.sends_in_flight(), 0);
    others
}

#[test]
fn a_panic_while_items_become_requests_leaves_the_others_in_their_vector() {
    interlock::domain! { struct Test; }
    let domain = context().named_domain(Test).unwrap();
    for mut link in WAYS.into_iter().filter_map(|way| link(&domain, 64, way)) {
        let region = domain.register::<RemoteReadWrite, _>(vec![0_u64; 8]).unwrap();
        // These messages are longer than 32 bytes: after a hundred shorter ones, soft iWARP can break the pair.
        let target = region.remote().slice(0..40).unwrap();
        // Each tuple is the number of the item that panics, and the number of items. One doorbell posts up to 32
        // requests, so `post_all` needs a second one for the items after the first 32.
        let places =
            [(0, 5), (3, 5), (4, 5), (0, 32), (15, 32), (16, 17), (35, 50), (49, 50), (0, 1), (16, 32), (31, 32)];
        for (bad, count) in places.into_iter().skip(if cfg!(miri) { 9 } else { 0 }) {
            let mut items: Vec<_> = (0..count).map(|at| (message(&domain, &[at; 40]), at)).collect();
            let write = |(from, at)| {
                assert_ne!(at, bad, "in the program's code");
                WorkRequest::write(from, &target)
            };
            // If the panic is caught inside the batch, the batch goes on with the requests that it has.
            let caught = link
                .left
                .batch(|batch| catch_unwind(AssertUnwindSafe(|| batch.post_all(&mut items, write).map(drop))))
                .unwrap();
            assert!(caught.is_err());
            assert!(items.iter().map(|(_, at)| *at).eq(bad + 1..count), "{bad} of {count}");
            let last = link.left.post_write(message(&domain, &[0xee; 40]), &target).unwrap();
            assert_eq!(take_writes(&mut link, last), bad.into());
            // Now the panic is not caught within the batch, so the batch is aborted. The device carries out only the
            // requests that it already has: those of earlier doorbells, 32 each.
            for in_batch in [true, false] {
                let mut items: Vec<_> = (0..count).map(|at| (message(&domain, &[at; 40]), at)).collect();
                let panicked = catch_unwind(AssertUnwindSafe(|| {
                    drop(post_all(&mut link.left, in_batch, &mut items, write));
                }));
                assert!(panicked.is_err());
                assert!(items.iter().map(|(_, at)| *at).eq(bad + 1..count), "{bad} of {count}");
                let last = link.left.post_write(message(&domain, &[0xdd; 40]), &target).unwrap();
                assert_eq!(take_writes(&mut link, last), u32::from(bad) / 32 * 32);
            }
        }
    }
}

#[test]
fn the_buffers_of_a_run_come_back_whatever_is_among_them_and_however_it_ended() {
    // On a device that completes requests in any order, each request is a run of its own.
    if lacks_need(Need::Order) {
        return;
    }
    interlock::domain! { struct Test; }
    let domain = context().named_domain(Test).unwrap();
    for mut link in WAYS.into_iter().filter_map(|way| link(&domain, 16, way)) {
        let region = domain.register::<RemoteReadWrite, _>(vec![0_u64; 8]).unwrap();
        let remote = region.remote();
        // Some of these batches go past the end of the ledger's ring. In some batches, the requests whose numbers are
        // in `others` write from a share instead of a unique buffer. The last request, which is signalled, can be one
        // of these.
        for (round, others) in [vec![], vec![3], vec![9], vec![0, 1, 2], vec![], vec![8, 9]].into_iter().enumerate() {
            link.left
                .batch(|batch| {
                    for at in 0..10 {
                        let last = at == 9;
                        let posted = if others.contains(&at) {
                            let share = message(&domain, &[at as u8; 4]).share();
                            let request = WorkRequest::write(share, &remote);
                            batch.post(if last { request } else { request.unsignalled() }).map_err(drop)
                        } else {
                            let request = WorkRequest::write(message(&domain, &[at as u8; 4]), &remote);
                            batch.post(if last { request } else { request.unsignalled() }).map_err(drop)
                        };
                        posted.unwrap();
                    }
                })
                .unwrap();
            let (buffers, runs) = take_all(&mut link.poller, 10 - others.len());
            assert_eq!(runs, [10], "{round}");
            let expected: Vec<_> = (0..10).filter(|at| !others.contains(at)).map(|at| at as u8).collect();
            assert_eq!(buffers.iter().map(|buffer| buffer[0]).collect::<Vec<_>>(), expected, "{round}");
        }
        // The buffer of a receive comes back with the length of its message.
        link.right.post_receive(domain.buffer(16).unwrap()).unwrap();
        link.left.post_send(Inline(b"hello")).unwrap();
        let (buffers, _) = take_all(&mut link.poller, 1);
        assert_eq!(&buffers[0][..], b"hello");
        // A write to a region that is gone fails. The writes before it have succeeded.
        let gone = {
            let region = domain.register::<RemoteWrite, _>(vec![0_u64; 8]).unwrap();
            region.remote()
        };
        let mut items: Vec<_> = (0..5).map(|at| message(&domain, &[at; 8])).collect();
        link.left
            .batch(|batch| {
                batch.post_all(&mut items, |from| WorkRequest::write(from, &remote)).unwrap();
                batch.post(WorkRequest::write(message(&domain, &[5; 8]), &gone)).unwrap();
            })
            .unwrap();
        let (mut buffers, mut failures) = (Vec::new(), Vec::new());
        while failures.is_empty() {
            link.poller.poll_retired(|retired| failures.extend(retired.into_buffers(&mut buffers).err())).unwrap();
        }
        assert_eq!(buffers.iter().map(|buffer| buffer[0]).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
        assert_eq!(failures.pop().unwrap().memory.into_buffer().unwrap()[..], [5; 8]);
    }
}

#[test]
fn a_batch_of_all_operations_keeps_them_apart() {
    if lacks_need(Need::Atomics) {
        return;
    }
    interlock::domain! { struct Test; }
    let domain = context().named_domain(Test).unwrap();
    for mut link in WAYS.into_iter().filter_map(|way| link(&domain, 8, way)) {
        let region = domain.register::<RemoteAll, _>(vec![5_u64; 8]).unwrap();
        let word = |at: u64| region.remote().slice(8 * at..8 * at + 8).unwrap();
        let (one, two) = (pattern(10, 1), pattern(12, 2));
        let mut receives = Vec::new();
        for _ in 0..3 {
            receives.push(link.right.post_receive(domain.buffer(16).unwrap()).unwrap());
        }
        let short = [0xab; 8];
        let ids = link
            .left
            .batch(|batch| {
                [
                    batch.post(WorkRequest::send(message(&domain, &one)).unsignalled()).unwrap(),
                    batch.post(WorkRequest::write(Inline(&short), &word(0)).unsignalled()).unwrap(),
                    batch.post(WorkRequest::fetch_and_add(domain.buffer(8).unwrap(), &word(1), 2)).unwrap(),
                    batch.post(WorkRequest::send(Inline(&two)).with_immediate(6)).unwrap(),
                    batch.post(WorkRequest::read(domain.buffer(16).unwrap(), &word(0)).fenced()).unwrap(),
                    batch.post(WorkRequest::write(message(&domain, &[]).share(), &word(2)).with_immediate(8)).unwrap(),
                    batch.post(WorkRequest::compare_and_swap(domain.buffer(8).unwrap(), &word(1), 7, 1)).unwrap(),
                ]
            })
            .unwrap();
        let (mut received, mut done) = (0, 0);
        while (received, done) != (3, 7) {
            let success = next(&mut link.poller);
            let of_receive = receives.iter().position(|&id| id == success.id());
            let of_send = ids.iter().position(|&id| id == success.id());
            assert!(of_send.is_none_or(|at| at == done) || lacks(Promise::Order), "in order");
            match (of_receive, success.into_work()) {
                (Some(0), Work::Received(message)) => {
                    assert_eq!((&message.buffer[..], message.immediate), (&one[..], None))
                }
                (Some(1), Work::Received(message)) => {
                    assert_eq!((&message.buffer[..], message.immediate), (&two[..], Some(6)));
                }
                (Some(2), Work::WrittenWithImmediate(written)) => {
                    assert_eq!((written.immediate, written.written_bytes), (8, 0));
                }
                (None, work) => {
                    match (of_send.unwrap(), work) {
                        (2, Work::Atomic { original, .. }) => assert_eq!(original, 5),
                        (4, Work::Read(buffer)) => assert_eq!(buffer[..], short),
                        (6, Work::Atomic { original, .. }) => assert_eq!(original, 7),
                        (0 | 3, Work::Sent(_)) | (1 | 5, Work::Written(_)) => {}
                        (at, other) => panic!("{at}: {other:?}"),
                    }
                    done += 1;
                }
                (at, other) => panic!("receive {at:?}: {other:?}"),
            }
            received += u32::from(of_receive.is_some());
        }
        let words = [u64::from_ne_bytes(short), 1, 5, 5, 5, 5, 5, 5];
        for (at, word) in words.into_iter().enumerate() {
            assert_eq!(region.load(8 * at).unwrap(), word, "word {at}");
        }
    }
}

#[test]
fn an_abandoned_batch_reaches_nobody() {
    interlock::domain! { struct Test; }
    let domain = context().named_domain(Test).unwrap();
    for mut link in WAYS.into_iter().filter_map(|way| link(&domain, 32, way)) {
        let region = domain.register::<RemoteReadWrite, _>(vec![0_u64; 8]).unwrap();
        let word = |at: u64| region.remote().slice(8 * at..8 * at + 8).unwrap();
        for round in 0..10 {
            let panicked = catch_unwind(AssertUnwindSafe(|| {
                link.left.batch(|batch| {
                    for at in 0..4 {
                        batch.post(WorkRequest::write(message(&domain, &[0xff; 8]), &word(at))).unwrap();
                    }
                    let requests = (0..4).map(|at| {
                        assert!(at < 2 || round % 2 == 0, "in the iterator");
                        WorkRequest::write(message(&domain, &[0xff; 8]), &word(at))
                    });
                    batch.post_each(requests).unwrap();
                    panic!("in the closure");
                })
            }));
            assert!(panicked.is_err());
            assert_eq!(link.left.sends_in_flight(), 0);
            // Only the request that is posted next arrives. It takes the slot that the aborted batch would have used.
            let id = link.left.post_write(message(&domain, &[1; 8]), &word(7)).unwrap();
            assert_eq!(success_of(&mut link.poller, id).into_buffer().unwrap()[..], [1; 8]);
            assert!(link.poller.poll().unwrap().is_none());
            for at in 0..7 {
                assert_eq!(region.load(8 * at).unwrap(), 0, "word {at}");
            }
        }
    }
}

#[test]
fn a_full_queue_gives_the_request_back_and_a_batch_goes_on_after_polling() {
    interlock::domain! { struct Test; }
    let domain = context().named_domain(Test).unwrap();
    for mut link in WAYS.into_iter().filter_map(|way| link(&domain, 4, way)) {
        let region = domain.register::<RemoteReadWrite, _>(vec![0_u64; 100]).unwrap();
        let word = |at: usize| region.remote().slice(8 * at as u64..8 * at as u64 + 8).unwrap();
        let request =
            |at: usize| WorkRequest::write(message(&domain, &(at as u64 + 1).to_ne_bytes()), &word(at)).unsignalled();
        for at in 0..4 {
            link.left.post(request(at)).unwrap();
        }
        let Err(PostError::QueueFull(fifth)) = link.left.post(request(4)) else { panic!("a full queue") };
        for _ in 0..4 {
            next(&mut link.poller);
        }
        link.left.post(fifth).unwrap();

        let Link { left, poller, .. } = &mut link;
        let mut out = 0;
        left.batch(|batch| {
            let mut at = 5;
            while at < 100 {
                let mut requests = (at..100).map(request);
                match batch.post_each(&mut requests) {
                    Ok(posted) => at += posted,
                    Err(PostError::QueueFull(full)) => {
                        // The device already has all requests that were posted, so their completions will come.
                        let mut full = Some(full);
                        while let Some(request) = full.take() {
                            next(poller);
                            out += 1;
                            match batch.post(request) {
                                Ok(_) => {}
                                Err(PostError::QueueFull(request)) => full = Some(request),
                                Err(error) => panic!("{error}"),
                            }
                        }
                        at = 100 - requests.len();
                    }
                    Err(error) => panic!("{error}"),
                }
            }
        })
        .unwrap();
        // The last requests were unsignalled. They complete with the signalled request that is posted here.
        let mut end = Some(WorkRequest::write(message(&domain, &100_u64.to_ne_bytes()), &word(99)));
        let end = loop {
            match left.post(end.take().unwrap()) {
                Ok(id) => break id,
                Err(PostError::QueueFull(request)) => {
                    next(poller);
                    end = Some(request);
                }
                Err(error) => panic!("{error}"),
            }
        };
        success_of(poller, end);
        assert!(out > 50, "{out}");
        for at in 0..100 {
            assert_eq!(region.load(8 * at).unwrap(), at as u64 + 1);
        }
    }
}

#[test]
fn requests_without_completions_come_back_by_a_drain() {
    // On a device that completes requests in any order, each request has a completion of its own.
    if lacks_need(Need::Order) {
        return;
    }
    interlock::domain! { struct Test; }
    let domain = context().named_domain(Test).unwrap();
    for mut link in WAYS.into_iter().filter_map(|way| link(&domain, 4, way)) {
        let region = domain.register::<RemoteWrite, _>(vec![0_u64; 1]).unwrap();
        let ids = [1_u8, 2, 3].map(|byte| {
            let request = WorkRequest::write(message(&domain, &[byte; 8]), &region.remote());
            link.left.post(request.unsignalled()).unwrap()
        });
        while region.load(0).unwrap() != u64::from_ne_bytes([3; 8]) {
            assert!(link.poller.wait_for(std::time::Duration::from_millis(5)).unwrap().is_none());
        }
        let mut left = link.left.into_error().unwrap();
        let mut out = Vec::new();
        left.drain(&mut link.poller, PATIENCE, |completion| out.push(completion.id())).unwrap();
        assert_eq!(out, ids);
        assert_eq!((left.sends_in_flight(), link.poller.unknown_completions()), (0, 0));
        if domain.context().promises().pairs_can_be_reset() {
            let _left = left.into_reset().unwrap().into_init(&link.port).unwrap();
        }
    }
}
