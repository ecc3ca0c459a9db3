//! Every way of posting does the same: each operation, over each way that the device has.

mod common;

use common::{Link, PATIENCE, context, on_hardware};
use interlock::{
    Buffer, BufferList, Carries, CreateError, Inline, Limits, Operation, Poller, PostAllError, PostError, PostedMemory,
    Posting, ProtectionDomain, Qkey, QueuePair, ReliableConnection, RemoteAll, RemoteWrite, RequestFlaw, SendMemory,
    Status, Success, Work, WorkId, WorkRequest,
};
use std::panic::{AssertUnwindSafe, catch_unwind};

const WAYS: [Posting; 2] = [Posting::List, Posting::WorkRequestApi];
const INLINE: u32 = 32;

/// Two connected pairs that post by `posting`; `None` where the device does not take that. Both may have 32 bytes inline.
fn link<B: interlock::Brand>(domain: &ProtectionDomain<B>, depth: u32, posting: Posting) -> Option<Link<B>> {
    link_with(domain, Limits { sends: depth, receives: depth, inline_bytes: INLINE, elements: 1, posting })
}

fn link_with<B: interlock::Brand>(domain: &ProtectionDomain<B>, limits: Limits) -> Option<Link<B>> {
    let Limits { sends: depth, posting, elements, .. } = limits;
    let port = domain.context().active_port().unwrap();
    let (queue, poller) = domain.completion_queue(4 * depth).unwrap();
    let room = queue.room();
    let pair = || domain.reliable(&queue, &limits);
    let left = match pair() {
        Err(error @ CreateError::NoWorkRequestApi(_)) => {
            assert_eq!(posting, Posting::WorkRequestApi);
            assert!(error.to_string().contains("Posting::List"), "{error}");
            assert_eq!(queue.room(), room, "the lease came back");
            // Its providers have it, but many are wrong about lists.
            assert!(elements > 1 || !domain.context().name().starts_with("rxe"), "rxe has it: {error}");
            return None;
        }
        left => left.unwrap().into_init(&port).unwrap(),
    };
    assert_eq!(left.limits().posting, posting);
    let right = pair().unwrap().into_init(&port).unwrap();
    let (to_left, to_right) = (left.endpoint(), right.endpoint());
    let (left, right) = (left.connect(&to_right).unwrap(), right.connect(&to_left).unwrap());
    Some(Link { domain: domain.clone(), port, queue, poller, left, right })
}

/// Posts all of `items`, in a batch or without.
fn post_all<B: interlock::Brand, X, M: SendMemory<B>, K>(
    pair: &mut QueuePair<B>,
    in_batch: bool,
    items: &mut Vec<X>,
    make: impl FnMut(X) -> WorkRequest<M, K>,
) -> Result<usize, PostError<WorkRequest<M, K>>>
where
    ReliableConnection: Carries<K>,
{
    if in_batch {
        return pair.batch(|batch| batch.post_all(items, make)).unwrap();
    }
    pair.post_all(items, make).map_err(|error| match error {
        PostAllError::Stopped(error) => *error,
        error => panic!("{error}"),
    })
}

fn next<B: interlock::Brand>(poller: &mut Poller<B>) -> Success<B> {
    poller.wait(PATIENCE).unwrap().check().unwrap()
}

/// The success of `id`; others are dropped.
fn success_of<B: interlock::Brand>(poller: &mut Poller<B>, id: WorkId) -> Success<B> {
    loop {
        let success = next(poller);
        if success.id() == id {
            return success;
        }
    }
}

fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|at| (at as u8).wrapping_mul(31).wrapping_add(seed)).collect()
}

fn filled<B: interlock::Brand>(domain: &ProtectionDomain<B>, bytes: &[u8]) -> Buffer<B> {
    let mut buffer = domain.buffer(bytes.len().max(1)).unwrap();
    buffer.write(bytes).unwrap();
    buffer.set_len(bytes.len()).unwrap();
    buffer
}

#[test]
fn the_work_request_api_is_there_or_is_refused() {
    interlock::domain! { struct Test; }
    let domain = context().named_domain(Test).unwrap();
    // `link` holds rxe to it.
    assert!(link(&domain, 4, Posting::WorkRequestApi).is_some() || on_hardware());
    assert_eq!(link(&domain, 4, Posting::List).unwrap().left.limits().posting, Posting::default());
}

#[test]
fn messages_of_many_lengths_arrive_as_they_were_sent() {
    interlock::domain! { struct Test; }
    let domain = context().named_domain(Test).unwrap();
    for mut link in WAYS.into_iter().filter_map(|way| link(&domain, 4, way)) {
        for (round, len) in [0, 1, 63, 64, 4095, 4096, 4097, 20_000].into_iter().enumerate() {
            let bytes = pattern(len, round as u8);
            for form in 0..3 {
                let receive = link.right.post_receive(domain.buffer(20_000).unwrap()).unwrap();
                let message = filled(&domain, &bytes);
                let immediate = (form == 2).then_some(0x0102_0304);
                match form {
                    0 => link.left.post_send(message).unwrap(),
                    1 => link.left.post_send(message.share()).unwrap(),
                    _ => link.left.post(WorkRequest::send(message).with_immediate(0x0102_0304).solicited()).unwrap(),
                };
                let Work::Received(received) = success_of(&mut link.poller, receive).work() else {
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
    interlock::domain! { struct Test; }
    let domain = context().named_domain(Test).unwrap();
    for mut link in WAYS.into_iter().filter_map(|way| link(&domain, 4, way)) {
        let region = domain.register::<RemoteAll, _>(vec![0_u64; 8]).unwrap();
        for (round, len) in [0, 1, 7, INLINE as usize].into_iter().enumerate() {
            let receive = link.right.post_receive(domain.buffer(64).unwrap()).unwrap();
            let mut bytes = pattern(len, round as u8);
            link.left.post_send(Inline(&bytes)).unwrap();
            let sent = bytes.clone();
            bytes.fill(0xee);
            let received = success_of(&mut link.poller, receive).received().unwrap();
            assert_eq!(received[..], sent[..]);

            bytes.copy_from_slice(&sent);
            let id = link.left.post(WorkRequest::write(Inline(&bytes), &region.remote()).unsignalled()).unwrap();
            bytes.fill(0xee);
            let target = region.remote().slice(40..64).unwrap();
            let last = link.left.post_write(Inline(&[round as u8; 24]), &target).unwrap();
            let first = next(&mut link.poller);
            // The send may come out before.
            let first = if first.id() == id { first } else { success_of(&mut link.poller, id) };
            assert!(matches!(first.work(), Work::Written(PostedMemory::Inline)));
            success_of(&mut link.poller, last);
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
    interlock::domain! { struct Test; }
    let domain = context().named_domain(Test).unwrap();
    for mut link in WAYS.into_iter().filter_map(|way| link(&domain, 8, way)) {
        let region = domain.register::<RemoteAll, _>(vec![0_u64; 64]).unwrap();
        let mut expected = vec![0; 512];
        let bytes = pattern(100, 3);

        let target = region.remote().slice(24..200).unwrap();
        let id = link.left.post_write(filled(&domain, &bytes), &target).unwrap();
        let Work::Written(PostedMemory::Unique(back)) = success_of(&mut link.poller, id).work() else {
            panic!("a write")
        };
        assert_eq!(back[..], bytes[..]);
        expected[24..124].copy_from_slice(&bytes);

        let receive = link.right.post_receive(domain.buffer(16).unwrap()).unwrap();
        let target = region.remote().slice(300..320).unwrap();
        link.left.post_write_with_immediate(filled(&domain, &bytes[..17]), &target, 77).unwrap();
        let Work::WrittenWithImmediate(written) = success_of(&mut link.poller, receive).work() else {
            panic!("a write")
        };
        assert_eq!((written.immediate, written.written_bytes), (77, 17));
        expected[300..317].copy_from_slice(&bytes[..17]);

        // A write of nothing, and a read that is shorter than its buffer.
        link.left.post_write(filled(&domain, &[]), &region.remote()).unwrap();
        let source = region.remote().slice(20..130).unwrap();
        let id = link.left.post(WorkRequest::read(domain.buffer(150).unwrap(), &source).fenced()).unwrap();
        let Work::Read(read) = success_of(&mut link.poller, id).work() else { panic!("a read") };
        assert_eq!(read[..], expected[20..130]);
        let nothing = region.remote().slice(20..20).unwrap();
        let id = link.left.post_read(domain.buffer(8).unwrap(), &nothing).unwrap();
        let Work::Read(read) = success_of(&mut link.poller, id).work() else { panic!("a read") };
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
            let Work::Atomic { original, .. } = success_of(&mut link.poller, id).work() else { panic!("an atomic") };
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
fn batches_of_up_to_three_doorbells_arrive_whole() {
    interlock::domain! { struct Test; }
    let domain = context().named_domain(Test).unwrap();
    const LEN: usize = 40;
    for mut link in WAYS.into_iter().filter_map(|way| link(&domain, 128, way)) {
        for (round, count) in [1, 31, 32, 33, 80].into_iter().enumerate() {
            let region = domain.register::<RemoteAll, _>(vec![0_u64; 80 * LEN / 8]).unwrap();
            let bytes = |at: usize| pattern(LEN, (at + 7 * round) as u8);
            let target = |at: usize| region.remote().slice((at * LEN) as u64..((at + 1) * LEN) as u64).unwrap();
            let mut requests =
                (0..count).map(|at| WorkRequest::write(filled(&domain, &bytes(at)), &target(at)).unsignalled());
            let last = link
                .left
                .batch(|batch| {
                    // One by one, then all but the last, which is signalled.
                    let first = requests.by_ref().take((count - 1) / 2);
                    first.for_each(|request| _ = batch.post(request).unwrap());
                    let rest = count - 1 - (count - 1) / 2;
                    assert_eq!(batch.post_each(requests.by_ref().take(rest)).unwrap(), rest);
                    let at = count - 1;
                    batch.post(WorkRequest::write(filled(&domain, &bytes(at)), &target(at))).unwrap()
                })
                .unwrap();
            for at in 0..count {
                let success = next(&mut link.poller);
                assert_eq!(success.id() == last, at == count - 1, "in order");
                assert_eq!(success.into_buffer().unwrap()[..], bytes(at)[..]);
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

/// What completions bring back, until it is `count` buffers; says how many requests each retired.
fn take_all<B: interlock::Brand>(poller: &mut Poller<B>, count: usize) -> (Vec<Buffer<B>>, Vec<usize>) {
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
    interlock::domain! { struct Test; }
    let domain = context().named_domain(Test).unwrap();
    const LEN: usize = 24;
    for (depth, in_batch) in [(40, true), (128, true), (40, false), (128, false)] {
        for mut link in WAYS.into_iter().filter_map(|way| link(&domain, depth, way)) {
            // Less than a row of the ledger, over its end, more than a doorbell, nothing.
            let counts: &[usize] = if cfg!(miri) { &[1, 33, 20] } else { &[1, 31, 32, 0, 33, 7, 40, 20, 30, 1] };
            for (round, &count) in counts.iter().enumerate() {
                let region = domain.register::<RemoteAll, _>(vec![0_u64; 40 * LEN / 8]).unwrap();
                let bytes = |at: usize| pattern(LEN, (at + 5 * round) as u8);
                let mut items: Vec<_> = (0..count)
                    .map(|at| {
                        let target = region.remote().slice((at * LEN) as u64..((at + 1) * LEN) as u64).unwrap();
                        (filled(&domain, &bytes(at)), target)
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
    interlock::domain! { struct Test; }
    let domain = context().named_domain(Test).unwrap();
    let links = WAYS.into_iter().flat_map(|way| [(way, true), (way, false)]);
    for (mut link, in_batch) in links.filter_map(|(way, in_batch)| Some((link(&domain, 4, way)?, in_batch))) {
        let region = domain.register::<RemoteAll, _>(vec![0_u64; 8]).unwrap();
        let word = |at: usize| region.remote().slice(8 * at as u64..8 * at as u64 + 8).unwrap();
        let item = |at: usize, len: usize| (filled(&domain, &vec![at as u8 + 1; len]), at);
        let write = |(from, at): (Buffer<Test>, usize)| WorkRequest::write(from, &word(at));
        // The third is too long.
        let mut items: Vec<_> = [8, 8, 9, 8].into_iter().enumerate().map(|(at, len)| item(at, len)).collect();
        let Err(PostError::Flawed { request, flaw }) = post_all(&mut link.left, in_batch, &mut items, write) else {
            panic!("too long")
        };
        assert_eq!(
            (flaw, request.into_memory()[..] == [3; 9]),
            (RequestFlaw::TooLong { len_bytes: 9, within: 8 }, true)
        );
        assert_eq!(items.len(), 1);
        // Two, unsignalled, are posted; the fourth, which is left, retires them.
        assert_eq!(post_all(&mut link.left, in_batch, &mut items, write).unwrap(), 1);
        let (buffers, runs) = take_all(&mut link.poller, 3);
        assert_eq!((buffers.iter().map(|buffer| buffer[0]).collect::<Vec<_>>(), runs), (vec![1, 2, 4], vec![3]));
        // Four fit: the fourth is signalled, the others stay. Then none fits. As many as fit go in one piece.
        for count in [6, 4, 5] {
            let mut items: Vec<_> = (0..count).map(|at| item(at, 8)).collect();
            assert_eq!(post_all(&mut link.left, in_batch, &mut items, write).unwrap(), 4);
            assert!(items.iter().map(|(_, at)| *at).eq(4..count));
            assert_eq!(post_all(&mut link.left, in_batch, &mut items, write).unwrap(), 0);
            assert!(items.iter().map(|(_, at)| *at).eq(4..count));
            assert_eq!(take_all(&mut link.poller, 4).1, [4]);
        }
        // Only the last makes a completion, whatever they ask for, and whatever they are.
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
        // Items of no size are as good as others.
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

#[test]
fn a_panic_while_items_become_requests_leaves_the_others_in_their_vector() {
    interlock::domain! { struct Test; }
    let domain = context().named_domain(Test).unwrap();
    for mut link in WAYS.into_iter().filter_map(|way| link(&domain, 64, way)) {
        let region = domain.register::<RemoteAll, _>(vec![0_u64; 8]).unwrap();
        let word = region.remote().slice(0..8).unwrap();
        // Those of 32 are what goes through a session in one piece.
        let places =
            [(0, 5), (3, 5), (4, 5), (0, 32), (15, 32), (16, 17), (35, 50), (49, 50), (0, 1), (16, 32), (31, 32)];
        for (bad, count) in places.into_iter().skip(if cfg!(miri) { 6 } else { 0 }) {
            let mut items: Vec<_> = (0..count).map(|at| (filled(&domain, &[at; 8]), at)).collect();
            let write = |(from, at)| {
                assert_ne!(at, bad, "in the program's code");
                WorkRequest::write(from, &word)
            };
            // Caught inside, the batch goes on with what it has.
            let caught = link
                .left
                .batch(|batch| catch_unwind(AssertUnwindSafe(|| batch.post_all(&mut items, write).map(drop))))
                .unwrap();
            assert!(caught.is_err());
            assert!(items.iter().map(|(_, at)| *at).eq(bad + 1..count), "{bad} of {count}");
            let id = link.left.post_write(filled(&domain, &[0xee; 8]), &word).unwrap();
            let mut before = 0;
            while next(&mut link.poller).id() != id {
                before += 1;
            }
            assert_eq!(before, bad);
            // Else it is given up, but for what was handed over.
            for in_batch in [true, false] {
                let mut items: Vec<_> = (0..count).map(|at| (filled(&domain, &[at; 8]), at)).collect();
                let panicked = catch_unwind(AssertUnwindSafe(|| {
                    drop(post_all(&mut link.left, in_batch, &mut items, write));
                }));
                assert!(panicked.is_err());
                assert!(items.iter().map(|(_, at)| *at).eq(bad + 1..count), "{bad} of {count}");
                let id = link.left.post_write(filled(&domain, &[0xdd; 8]), &word).unwrap();
                let mut before = 0;
                while next(&mut link.poller).id() != id {
                    before += 1;
                }
                assert_eq!(before, bad / 32 * 32);
            }
        }
    }
}

#[test]
fn the_buffers_of_a_run_come_back_whatever_is_among_them_and_however_it_ended() {
    interlock::domain! { struct Test; }
    let domain = context().named_domain(Test).unwrap();
    for mut link in WAYS.into_iter().filter_map(|way| link(&domain, 16, way)) {
        let region = domain.register::<RemoteAll, _>(vec![0_u64; 8]).unwrap();
        let remote = region.remote();
        // Around the end of the ledger, with and without others among the buffers, the last among them.
        for (round, others) in [vec![], vec![3], vec![9], vec![0, 1, 2], vec![], vec![8, 9]].into_iter().enumerate() {
            link.left
                .batch(|batch| {
                    for at in 0..10 {
                        let last = at == 9;
                        let posted = if others.contains(&at) {
                            let share = filled(&domain, &[at as u8; 4]).share();
                            let request = WorkRequest::write(share, &remote);
                            batch.post(if last { request } else { request.unsignalled() }).map_err(drop)
                        } else {
                            let request = WorkRequest::write(filled(&domain, &[at as u8; 4]), &remote);
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
        // A receive has a length.
        link.right.post_receive(domain.buffer(16).unwrap()).unwrap();
        link.left.post_send(Inline(b"hello")).unwrap();
        let (buffers, _) = take_all(&mut link.poller, 1);
        assert_eq!(&buffers[0][..], b"hello");
        // A write past the end fails; those before it succeeded.
        let gone = {
            let region = domain.register::<RemoteWrite, _>(vec![0_u64; 8]).unwrap();
            region.remote()
        };
        let mut items: Vec<_> = (0..5).map(|at| filled(&domain, &[at; 8])).collect();
        link.left
            .batch(|batch| {
                batch.post_all(&mut items, |from| WorkRequest::write(from, &remote)).unwrap();
                batch.post(WorkRequest::write(filled(&domain, &[5; 8]), &gone)).unwrap();
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
        link.left
            .batch(|batch| {
                batch.post(WorkRequest::send(filled(&domain, &one)).unsignalled()).unwrap();
                batch.post(WorkRequest::write(Inline(&short), &word(0)).unsignalled()).unwrap();
                batch.post(WorkRequest::fetch_and_add(domain.buffer(8).unwrap(), &word(1), 2)).unwrap();
                batch.post(WorkRequest::send(Inline(&two)).with_immediate(6)).unwrap();
                batch.post(WorkRequest::read(domain.buffer(16).unwrap(), &word(0)).fenced()).unwrap();
                batch.post(WorkRequest::write(filled(&domain, &[]).share(), &word(2)).with_immediate(8)).unwrap();
                batch.post(WorkRequest::compare_and_swap(domain.buffer(8).unwrap(), &word(1), 7, 1)).unwrap();
            })
            .unwrap();
        let (mut received, mut done) = (0, 0);
        while (received, done) != (3, 7) {
            let success = next(&mut link.poller);
            let of_receive = receives.iter().position(|&id| id == success.id());
            match (of_receive, success.work()) {
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
                    match (done, work) {
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
        let region = domain.register::<RemoteAll, _>(vec![0_u64; 8]).unwrap();
        let word = |at: u64| region.remote().slice(8 * at..8 * at + 8).unwrap();
        for round in 0..10 {
            let panicked = catch_unwind(AssertUnwindSafe(|| {
                link.left.batch(|batch| {
                    for at in 0..4 {
                        batch.post(WorkRequest::write(filled(&domain, &[0xff; 8]), &word(at))).unwrap();
                    }
                    let requests = (0..4).map(|at| {
                        assert!(at < 2 || round % 2 == 0, "in the iterator");
                        WorkRequest::write(filled(&domain, &[0xff; 8]), &word(at))
                    });
                    batch.post_each(requests).unwrap();
                    panic!("in the closure");
                })
            }));
            assert!(panicked.is_err());
            assert_eq!(link.left.sends_in_flight(), 0);
            // What is posted next is all that arrives, in its own slot.
            let id = link.left.post_write(filled(&domain, &[1; 8]), &word(7)).unwrap();
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
        let region = domain.register::<RemoteAll, _>(vec![0_u64; 100]).unwrap();
        let word = |at: usize| region.remote().slice(8 * at as u64..8 * at as u64 + 8).unwrap();
        let request =
            |at: usize| WorkRequest::write(filled(&domain, &(at as u64 + 1).to_ne_bytes()), &word(at)).unsignalled();
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
                        // All that was posted is with the device, so its completions come.
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
        // The last ones are unsignalled: a signalled one after them.
        let mut end = Some(WorkRequest::write(filled(&domain, &100_u64.to_ne_bytes()), &word(99)));
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
fn lists_are_gathered_and_scattered() {
    interlock::domain! { struct Test; }
    let domain = context().named_domain(Test).unwrap();
    let limits = |posting| Limits { elements: 3, posting, ..Limits::default() };
    for mut link in WAYS.into_iter().filter_map(|way| link_with(&domain, limits(way))) {
        let region = domain.register::<RemoteAll, _>(vec![0_u64; 8]).unwrap();
        let parts = [pattern(10, 1), Vec::new(), pattern(23, 2)];
        let list = || parts.iter().map(|bytes| filled(&domain, bytes)).collect::<BufferList<_>>();
        let receive = link.right.post_receive(domain.buffer(64).unwrap()).unwrap();
        link.left.post_send(list()).unwrap();
        let received = success_of(&mut link.poller, receive).received().unwrap();
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
    interlock::domain! { struct Test; }
    let domain = context().named_domain(Test).unwrap();
    let port = domain.context().active_port().unwrap();
    let way_is_there = |way| link(&domain, 1, way).is_some();
    for posting in WAYS.into_iter().filter(|&way| way_is_there(way)) {
        let limits = Limits { inline_bytes: INLINE, posting, ..Limits::default() };
        let (queue, mut poller) = domain.completion_queue(3 * limits.completions()).unwrap();
        let region = domain.register::<RemoteAll, _>(vec![0_u64; 8]).unwrap();

        let left = domain.unreliable(&queue, &limits).unwrap().into_init(&port).unwrap();
        let right = domain.unreliable(&queue, &limits).unwrap().into_init(&port).unwrap();
        let (to_left, to_right) = (left.endpoint(), right.endpoint());
        let (mut left, mut right) = (left.connect(&to_right).unwrap(), right.connect(&to_left).unwrap());
        let receive = right.post_receive(domain.buffer(64).unwrap()).unwrap();
        left.batch(|batch| {
            batch.post(WorkRequest::write(filled(&domain, &pattern(64, 5)), &region.remote()).unsignalled()).unwrap();
            batch.post(WorkRequest::send(filled(&domain, &pattern(30, 6))).with_immediate(3)).unwrap();
        })
        .unwrap();
        let Work::Received(message) = success_of(&mut poller, receive).work() else { panic!("a message") };
        assert_eq!((&message.buffer[..], message.immediate), (&pattern(30, 6)[..], Some(3)));
        let mut seen = vec![0; 64];
        region.read_into(0, &mut seen).unwrap();
        assert_eq!(seen, pattern(64, 5));

        let mut alone = domain.datagram(&queue, &limits).unwrap().into_init(&port).unwrap().open().unwrap();
        let myself = domain.recipient(&port, &alone.endpoint(), Qkey::USUAL).unwrap();
        let receives = [(); 3].map(|()| alone.post_receive(domain.buffer(40 + 64).unwrap()).unwrap());
        alone.post_send_to(filled(&domain, &pattern(64, 7)), &myself).unwrap();
        let short = pattern(20, 9);
        alone
            .batch(|batch| {
                batch.post(WorkRequest::send_to(filled(&domain, &pattern(9, 8)), &myself)).unwrap();
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
            let Work::Datagram(datagram) = success.work() else { panic!("a datagram") };
            let (len, seed) = [(64, 7), (9, 8), (20, 9)][at];
            assert_eq!((datagram.message(), datagram.sender), (&pattern(len, seed)[..], alone.number()));
            assert_eq!(datagram.immediate, (at == 2).then_some(4));
            received += 1;
        }
        while others < 3 {
            // Those of the pair that sends; what the unreliable connection sent may be among them.
            others += 1;
            next(&mut poller);
        }
    }
}

/// Two pairs with atomic writes; `None` where the device has none. Rxe has them.
fn with_atomic_writes<B: interlock::Brand>(domain: &ProtectionDomain<B>) -> Option<Link<B>> {
    let port = domain.context().active_port().unwrap();
    let limits = Limits { posting: Posting::AtomicWrites, ..Limits::default() };
    let (queue, poller) = domain.completion_queue(2 * limits.completions()).unwrap();
    let left = match domain.reliable(&queue, &limits) {
        Err(CreateError::NoAtomicWrites(error)) => {
            let name = domain.context().name().to_owned();
            let has_them = name.starts_with("rxe") && common::is_linux_6_12() || name.starts_with("soft");
            assert!(!has_them, "{name} has them: {error}");
            return None;
        }
        pair => pair.unwrap().into_init(&port).unwrap(),
    };
    let right = domain.reliable(&queue, &limits).unwrap().into_init(&port).unwrap();
    let (to_left, to_right) = (left.endpoint(), right.endpoint());
    let (left, right) = (left.connect(&to_right).unwrap(), right.connect(&to_left).unwrap());
    Some(Link { domain: domain.clone(), port, queue, poller, left, right })
}

#[test]
fn an_atomic_write_changes_its_word_and_no_other() {
    interlock::domain! { struct Test; }
    let domain = context().named_domain(Test).unwrap();
    let Some(mut link) = with_atomic_writes(&domain) else { return };
    let region = domain.register::<RemoteWrite, _>(vec![7_u64; 4]).unwrap();
    let word = region.remote().word(8).unwrap();
    assert_eq!((word.len(), word.address()), (8, region.remote().address() + 8));

    let id = link.left.post_atomic_write(&word, 0x0102_0304_0506_0708).unwrap();
    let success = next(&mut link.poller);
    assert_eq!((success.id(), success.operation()), (id, Operation::AtomicWrite));
    assert!(matches!(success.work(), Work::Written(PostedMemory::Inline)));
    assert_eq!(region.load(8).unwrap(), 0x0102_0304_0506_0708);

    // In a batch, the last of many counts; and by a half.
    let ids = link.left.batch(|batch| {
        for value in 1..=3 {
            batch.post(WorkRequest::atomic_write(&word, value).unsignalled()).unwrap();
        }
        batch.post(WorkRequest::atomic_write(&word, 4).fenced()).unwrap()
    });
    while next(&mut link.poller).id() != *ids.as_ref().unwrap() {}
    assert_eq!(region.load(8).unwrap(), 4);
    let (mut sends, _receives) = link.left.split();
    sends.post(WorkRequest::atomic_write(&word, 5)).unwrap();
    next(&mut link.poller);
    // Other requests go the same way.
    sends.post(WorkRequest::write(filled(&domain, &[1; 8]), &region.remote().slice(24..32).unwrap())).unwrap();
    next(&mut link.poller);
    assert_eq!(region.deregister().unwrap(), [7, 5, 7, u64::from_ne_bytes([1; 8])]);
}

#[test]
fn an_atomic_write_to_memory_that_is_gone_fails() {
    interlock::domain! { struct Test; }
    let domain = context().named_domain(Test).unwrap();
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
    interlock::domain! { struct Test; }
    let domain = context().named_domain(Test).unwrap();
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
    interlock::domain! { struct Test; }
    let domain = context().named_domain(Test).unwrap();
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
    interlock::domain! { struct Test; }
    let domain = context().named_domain(Test).unwrap();
    let region = domain.register::<RemoteAll, _>(vec![0_u64; 2]).unwrap();
    let remote = region.remote();
    for offset in [4, 9, 16, 1 << 40, u64::MAX, u64::MAX - 7] {
        let error = remote.word(offset).unwrap_err();
        assert!(error.to_string().contains("a word is 8 bytes at a multiple of 8"), "{error}");
    }
    let mut link = Link::new(domain.clone(), 4);
    let result = domain.buffer(8).unwrap();
    link.left.post_fetch_and_add(result, &remote.word(8).unwrap(), 5).unwrap();
    next(&mut link.poller);
    assert_eq!(region.deregister().unwrap(), [0, 5]);
}

#[test]
fn requests_without_completions_come_back_by_a_drain() {
    interlock::domain! { struct Test; }
    let domain = context().named_domain(Test).unwrap();
    for mut link in WAYS.into_iter().filter_map(|way| link(&domain, 4, way)) {
        let region = domain.register::<RemoteWrite, _>(vec![0_u64; 1]).unwrap();
        let ids = [1_u8, 2, 3].map(|byte| {
            let request = WorkRequest::write(filled(&domain, &[byte; 8]), &region.remote());
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
        let _left = left.into_reset().unwrap().into_init(&link.port).unwrap();
    }
}
