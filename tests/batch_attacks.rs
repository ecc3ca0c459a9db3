//! Attacks on batches of whole vectors, and on the ways that their buffers come back. The program never holds a buffer
//! while the device has it, and no buffer comes back twice.

use interlock::attributes::ConnectAttributes;
use interlock::completion::{Polling, Retired};
use interlock::error::{CreateError, PostAllError};
use interlock::queue::Posting;
use interlock::{
    Brand, Buffer, Inline, Limits, Poller, PostError, ProtectionDomain, QueuePair, RemoteReadWrite, WorkRequest,
};
use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Instant;
use std::{mem, thread};
use support::{
    Link, Need, PATIENCE, POLLING, Promise, context, has_extended_queues, lacks, lacks_need, promises_everything,
};

interlock::domain! {
    struct Nested;
    struct Longer;
    struct Forgotten;
    struct Disturbed;
    struct Stopped;
    struct Endless;
    struct Broken;
    struct Apart;
    struct Destroyed;
}

const WAYS: [Posting; 2] = [Posting::List, Posting::WorkRequestApi];

/// Makes two pairs of this depth that post this way, or returns `None` if the device does not support it.
fn link<B: Brand>(domain: &ProtectionDomain<B>, depth: u32, posting: Posting) -> Option<Link<B>> {
    let limits = Limits { sends: depth, receives: 1, inline_bytes: 8, posting, ..Limits::default() };
    let (queue, _) = domain.completion_queue(limits.completions()).unwrap();
    if let Err(CreateError::NoWorkRequestApi(_)) = domain.reliable(&queue, &limits) {
        assert!(!promises_everything());
        return None;
    }
    Some(Link::limited(domain.clone(), &limits, &ConnectAttributes::default()))
}

/// Adds the buffers of the completed requests to `back`, failed ones included. Returns whether all of them succeeded.
fn take_back<B: Brand>(poller: &mut Poller<B>, back: &mut Vec<Buffer<B>>) -> bool {
    let mut all_succeeded = true;
    poller
        .poll_retired(|retired| {
            if let Err(failure) = retired.into_buffers(back) {
                all_succeeded = false;
                back.extend(failure.into_buffer());
            }
        })
        .unwrap();
    all_succeeded
}

fn addresses<B: interlock::Brand>(buffers: &[Buffer<B>]) -> HashSet<usize> {
    buffers.iter().map(|buffer| buffer.as_ptr().addr()).collect()
}

/// A longer list uses links of the stage that the shorter list before it did not use. Miri checks that the device may
/// follow each link.
#[test]
fn a_longer_batch_follows_a_shorter_one() {
    static BYTES: [u8; 3] = [7, 8, 9];
    let domain = context().named_domain(Longer).unwrap();
    let limits = Limits { sends: 8, receives: 8, inline_bytes: 8, ..Limits::default() };
    let Link { mut left, mut right, mut poller, .. } =
        Link::limited(domain.clone(), &limits, &ConnectAttributes::default());
    for count in [1, 3, 2, 3] {
        for _ in 0..count {
            right.post_receive(domain.buffer(8).unwrap()).unwrap();
        }
        let bytes = &BYTES[..count];
        left.batch(|batch| {
            for byte in bytes.chunks(1) {
                batch.post(WorkRequest::send(Inline(byte))).unwrap();
            }
        })
        .unwrap();
        let mut received = Vec::new();
        while received.len() < count {
            let success = poller.wait(PATIENCE).unwrap().check().unwrap();
            received.extend(success.into_received().ok().map(|message| message[0]));
        }
        assert_eq!(received, bytes);
    }
}

/// Each thread has only one stage for batches. If a closure of one batch starts a batch on another pair, the inner
/// batch takes no request of the outer one, even if the inner one panics. The outer batch continues with its own
/// requests.
#[test]
fn a_batch_within_the_making_of_another_takes_nothing_of_it() {
    let domain = context().named_domain(Nested).unwrap();
    // One doorbell posts at most 32 requests. So 40 requests need two doorbells, and 32 need exactly one.
    let ways = [Posting::List, Posting::WorkRequestApi].into_iter().flat_map(|way| [(way, 40_u8), (way, 32)]);
    let cases = ways.flat_map(|(way, count)| [(way, count, false), (way, count, true)]);
    // Each case takes Miri five seconds, so Miri runs only one of them.
    for (posting, count, panics) in cases.filter(|case| !cfg!(miri) || *case == (Posting::List, 40, true)) {
        let limits = Limits { sends: 64, receives: 64, posting, ..Limits::default() };
        let (queue, _) = domain.completion_queue(128).unwrap();
        if let Err(CreateError::NoWorkRequestApi(_)) = domain.reliable(&queue, &limits) {
            assert!(!promises_everything());
            continue;
        }
        let Link { mut left, mut right, mut poller, .. } =
            Link::limited(domain.clone(), &limits, &ConnectAttributes::default());
        let region = domain.register::<RemoteReadWrite, _>(vec![0_u64; 2]).unwrap();
        let [outer, inner] = [0, 8].map(|at| region.remote().slice(at..at + 8).unwrap());
        let fresh = |value: u8| {
            let mut buffer = domain.buffer(8).unwrap();
            buffer.fill(value);
            buffer
        };
        let (mut items, mut others): (Vec<_>, Vec<_>) =
            ((0..count).map(fresh).collect(), (100..100 + count).map(fresh).collect());
        let all: HashSet<usize> = addresses(&items).union(&addresses(&others)).copied().collect();
        let mut made = 0;
        let write = |buffer| {
            made += 1;
            if made == 20 {
                let ended = catch_unwind(AssertUnwindSafe(|| {
                    right.batch(|within| {
                        within.post_all(&mut others, |buffer| WorkRequest::write(buffer, &inner)).unwrap();
                        assert!(!panics, "in the program's code");
                    })
                }));
                assert_eq!(ended.is_err(), panics);
            }
            WorkRequest::write(buffer, &outer)
        };
        assert_eq!(left.post_all(&mut items, write).unwrap(), count.into());
        // If `panics` is true, the requests of `right` that the device has not got are dropped. The completion of
        // `last` retires the others.
        let last = fresh(0xff);
        let last_address = last.as_ptr().addr();
        right.post_write(last, &inner).unwrap();
        let (mut back, start) = (Vec::new(), Instant::now());
        let is_last = |buffer: &Buffer<_>| buffer.as_ptr().addr() == last_address;
        while !(back.iter().any(is_last) && left.sends_in_flight() == 0) {
            poller.poll_retired(|retired| retired.into_buffers(&mut back).unwrap()).unwrap();
            assert!(start.elapsed() < PATIENCE, "{} came back", back.len());
        }
        assert_eq!((left.sends_in_flight(), right.sends_in_flight()), (0, 0));
        let seen = addresses(&back);
        assert_eq!(seen.len(), back.len(), "a buffer came back twice");
        assert!(back.iter().all(|buffer| all.contains(&buffer.as_ptr().addr()) || is_last(buffer)));
        let (count, rung) = (usize::from(count), usize::from(count - 1) / 32 * 32);
        assert_eq!(back.len(), count + if panics { rung } else { count } + 1);
        // Each buffer still holds the bytes that were sent from it: nobody wrote to it meanwhile.
        assert!(back.iter().all(|buffer| buffer.iter().all(|&byte| byte == buffer[0])));
        assert_eq!(
            [region.load(0).unwrap(), region.load(8).unwrap()],
            [u64::from_ne_bytes([count as u8 - 1; 8]), u64::MAX]
        );
    }
}

/// If the program forgets a run of retired requests in the middle, or panics there, no slot is freed before its buffer
/// is out, and no buffer is returned twice.
#[test]
fn a_run_that_is_forgotten_gives_each_buffer_once() {
    let domain = context().named_domain(Forgotten).unwrap();
    let Link { mut left, right: _peer, mut poller, .. } = Link::new(domain.clone(), 8);
    let region = domain.register::<RemoteReadWrite, _>(vec![0_u64; 1]).unwrap();
    let word = region.remote();
    let rounds: Vec<u32> = if cfg!(miri) { (0..4).chain(8..12).collect() } else { (0..16).collect() };
    for round in rounds {
        let mut items = domain.buffers(6, 8).unwrap();
        let all = addresses(&items);
        // In half of the rounds, `post` posts the first buffer alone, before `post_all` posts the others.
        if round >= 8 {
            let _ = left.post(WorkRequest::write(items.remove(0), &word).unsignalled()).unwrap();
        }
        left.post_all(&mut items, |buffer| WorkRequest::write(buffer, &word)).unwrap();
        let (mut back, mut disturbed, start) = (Vec::new(), false, Instant::now());
        while left.sends_in_flight() > 0 {
            assert!(start.elapsed() < PATIENCE);
            let polled = catch_unwind(AssertUnwindSafe(|| {
                poller.poll_retired(|mut retired| {
                    if !mem::replace(&mut disturbed, true) {
                        match round % 4 {
                            0 => return mem::forget(retired),
                            1 => {
                                retired.take_buffers(&mut back);
                                return mem::forget(retired);
                            }
                            2 => panic!("in the program's code"),
                            _ => (),
                        }
                    }
                    retired.into_buffers(&mut back).unwrap();
                })
            }));
            if let Ok(polled) = polled {
                polled.unwrap();
            }
        }
        let seen = addresses(&back);
        assert_eq!(seen.len(), back.len(), "a buffer came back twice");
        assert!(seen.is_subset(&all), "a buffer that nobody posted");
    }
    assert_eq!(poller.unknown_completions(), 0);
}

/// An action of the program while it takes a run of retired requests.
#[derive(Clone, Copy, Debug)]
enum Deed {
    Posts,
    Destroys,
    Resets,
    Panics,
    Forgets,
}

/// How the program takes the run.
#[derive(Clone, Copy, Debug)]
enum Taking {
    OneByOne,
    InARow,
    Buffers,
    Last,
}

/// Takes a part of a run, calls `deed`, and then takes the rest, or forgets it if `deed` returns true.
fn take(
    mut retired: Retired<'_, Disturbed>,
    taking: Taking,
    back: &mut Vec<Buffer<Disturbed>>,
    mut deed: impl FnMut() -> bool,
) {
    let forgets = match taking {
        Taking::OneByOne => {
            back.extend(retired.unsignalled().take(2).filter_map(|success| success.into_buffer()));
            deed()
        }
        Taking::InARow => {
            let (mut count, mut forgets) = (0, false);
            retired.unsignalled().for_each(|success| {
                back.extend(success.into_buffer());
                count += 1;
                forgets |= count == 2 && deed();
            });
            forgets
        }
        Taking::Buffers => {
            retired.take_buffers(back);
            deed()
        }
        Taking::Last if deed() => true,
        Taking::Last => return back.extend(retired.into_completion().check().unwrap().into_buffer()),
    };
    if forgets {
        return mem::forget(retired);
    }
    back.extend(retired.unsignalled().take(1).filter_map(|success| success.into_buffer()));
    retired.into_buffers(back).unwrap();
}

/// While the program takes a run, it posts to the pair, destroys or resets the pair, panics, or forgets the run. A slot
/// becomes free only after its value is out. No value is returned twice, once by the run and once among the leftovers
/// of the pair.
#[test]
fn a_pair_that_ends_while_its_run_is_taken_gives_each_buffer_once() {
    // Each deed happens in the middle of a run. On a device that lacks `Need::Order` there is no middle: each run is
    // one request.
    if lacks_need(Need::Order) {
        return;
    }
    const DEPTH: u32 = 6;
    let domain = context().named_domain(Disturbed).unwrap();
    let region = domain.register::<RemoteReadWrite, _>(vec![0_u64; 1]).unwrap();
    let word = region.remote();
    let limits = Limits { sends: DEPTH, receives: 1, inline_bytes: 8, ..Limits::default() };
    // The ring has 8 slots. With these shifts, runs begin at several places of the ring.
    let shifts: &[u32] = if cfg!(miri) { &[5] } else { &[0, 3, 5, 7] };
    let kinds =
        [(Polling::Array, false), (Polling::Extended, true), (Polling::Array, true), (Polling::Extended, false)];
    let kinds = if cfg!(miri) { &kinds[..2] } else { &kinds[..] };
    let has_extended = has_extended_queues();
    let kinds: Vec<_> = kinds.iter().filter(|(polling, _)| has_extended || *polling == Polling::Array).collect();
    let deeds = [Deed::Posts, Deed::Destroys, Deed::Resets, Deed::Panics, Deed::Forgets];
    let takings = [Taking::OneByOne, Taking::InARow, Taking::Buffers, Taking::Last];
    for (deed, taking) in deeds.into_iter().flat_map(|deed| takings.map(|taking| (deed, taking))) {
        for (&shift, &&(polling, is_mixed)) in
            shifts.iter().flat_map(|shift| kinds.iter().map(move |kind| (shift, kind)))
        {
            let case = format!("{deed:?} {taking:?} {shift} {is_mixed} {polling:?}");
            POLLING.set(polling);
            let Link { mut left, right, mut poller, queue, .. } =
                Link::limited(domain.clone(), &limits, &Default::default());
            for _ in 0..shift {
                left.post_write(domain.buffer(8).unwrap(), &word).unwrap();
                drop(poller.wait(PATIENCE).unwrap().check().unwrap());
            }
            let (mut all, mut back) = (HashSet::new(), Vec::new());
            let mut post = |left: &mut QueuePair<Disturbed>, last: bool| {
                let buffer = domain.buffer(8).unwrap();
                let address = buffer.as_ptr().addr();
                let write = WorkRequest::write(buffer, &word);
                let posted = left.post(if last { write } else { write.unsignalled() });
                all.extend(posted.is_ok().then_some(address));
                posted.is_ok() || !matches!(posted, Err(PostError::QueueFull(_)))
            };
            for at in 1..=DEPTH {
                if is_mixed && at % 3 == 0 && at != DEPTH {
                    left.post(WorkRequest::write(Inline(&[1; 8]), &word).unsignalled()).unwrap();
                } else {
                    assert!(post(&mut left, at == DEPTH));
                }
            }
            let (mut left, mut kept, mut posted, start) = (Some(left), None, 0, Instant::now());
            while left.is_some() && start.elapsed() < PATIENCE {
                let polled = catch_unwind(AssertUnwindSafe(|| {
                    poller.poll_retired(|retired| {
                        take(retired, taking, &mut back, || {
                            let Some(mut pair) = left.take() else { return false };
                            match deed {
                                Deed::Posts => {
                                    while posted < 2 * DEPTH && post(&mut pair, true) {
                                        posted += 1;
                                    }
                                    drop(pair);
                                }
                                Deed::Destroys => pair.destroy().unwrap(),
                                Deed::Resets => match pair.into_reset() {
                                    Ok(pair) => drop(pair),
                                    Err(error) => assert!(!domain.context().promises().pairs_can_be_reset(), "{error}"),
                                },
                                Deed::Panics => panic!("in the program's code"),
                                Deed::Forgets => kept = Some(pair),
                            }
                            kept.is_some()
                        });
                    })
                }));
                assert!(polled.is_ok() || matches!(deed, Deed::Panics), "{case}");
            }
            drop((left, kept, right));
            while queue.room() < queue.capacity() {
                assert!(start.elapsed() < PATIENCE, "{case}");
                while let Some(completion) = poller.poll().unwrap() {
                    back.extend(match completion.check() {
                        Ok(success) => success.into_buffer(),
                        Err(failure) => failure.memory.into_buffer(),
                    });
                }
            }
            let seen = addresses(&back);
            assert_eq!(seen.len(), back.len(), "a buffer came back twice: {case}");
            assert!(seen.is_subset(&all), "a buffer that nobody posted: {case}");
            // `Taking::Last` takes only the last buffer of each run, and drops the others. A panic drops the buffers
            // that were being taken.
            let gone = matches!(taking, Taking::Last) || matches!(deed, Deed::Panics);
            assert!(gone || seen == all, "{} of {}: {case}", seen.len(), all.len());
            assert_eq!(poller.unknown_completions(), 0, "{case}");
        }
    }
}

/// What happens at one item of the vector.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Event {
    Nothing,
    /// The item becomes a malformed request.
    Flaw,
    Panic,
    /// The request has no bytes, so it does not take the fast path.
    NoBytes,
    /// Completions are polled while the item becomes a request, so room appears in the middle of the vector.
    Poll,
}

/// A vector may be stopped at any item: no buffer is lost, returned twice or returned out of order. The queue never
/// stays full of requests without a completion: the next signalled request brings everything back.
#[test]
fn whatever_stops_a_vector_the_queue_goes_on() {
    // The messages are longer than 32 bytes, because soft iWARP can break a pair after a hundred shorter ones that are
    // not inline (docs/providers.md).
    const BYTES: usize = 64;
    const EVENTS: [Event; 5] = [Event::Nothing, Event::Flaw, Event::Panic, Event::NoBytes, Event::Poll];
    let domain = context().named_domain(Stopped).unwrap();
    let region = domain.register::<RemoteReadWrite, _>(vec![0_u64; BYTES / 8]).unwrap();
    let (whole, half) = (region.remote(), region.remote().slice(0..BYTES as u64 / 2).unwrap());
    // The depths are one slot, powers of two, other numbers, and numbers around the size of a stage (32 requests).
    let depths: &[u32] = if cfg!(miri) { &[1, 5] } else { &[1, 2, 3, 5, 31, 32, 33, 64, 70] };
    for (&depth, way) in depths.iter().flat_map(|depth| WAYS.map(|way| (depth, way))) {
        let Some(mut link) = link(&domain, depth, way) else { continue };
        let room = depth as usize;
        let mut counts = vec![1, room, room + 1, 2 * room + 3];
        counts.extend((room > 2).then_some(room - 1));
        for (event, count) in EVENTS.into_iter().flat_map(|event| counts.iter().map(move |&count| (event, count))) {
            let mut places =
                if cfg!(miri) { vec![count / 2] } else { vec![0, count / 2, count - 1, 32.min(count - 1)] };
            places.dedup();
            for at in places {
                let case = format!("{way:?}, {depth} deep, {count} items, {event:?} at {at}");
                let items: Vec<_> = domain.buffers(count, BYTES).unwrap();
                let all: Vec<usize> = items.iter().map(|buffer| buffer.as_ptr().addr()).collect();
                let (mut items, mut back) = (items.into_iter().enumerate().collect::<Vec<_>>(), Vec::new());
                let Link { left, poller, .. } = &mut link;
                let posted = catch_unwind(AssertUnwindSafe(|| {
                    left.post_all(&mut items, |(number, mut buffer)| {
                        match event {
                            Event::Poll if number >= at => _ = take_back(poller, &mut back),
                            Event::Flaw if number == at => return WorkRequest::write(buffer, &half),
                            Event::NoBytes if number == at => buffer.set_len(0).unwrap(),
                            Event::Panic => assert_ne!(number, at, "in the program's code"),
                            _ => {}
                        }
                        WorkRequest::write(buffer, &whole)
                    })
                }));
                let (rest, in_flight) = (items.len(), left.sends_in_flight() as usize);
                assert!(items.iter().map(|(number, _)| *number).eq(count - rest..count), "{case}");
                // Post one more unsignalled request. If the queue is full, poll until there is room.
                let (mut last, start) =
                    (Some(WorkRequest::write(Inline(&[1; 8]), &whole).unsignalled()), Instant::now());
                while let Some(request) = last.take() {
                    match left.post(request) {
                        Err(PostError::QueueFull(request)) => last = Some(request),
                        posted => drop(posted.unwrap()),
                    }
                    take_back(poller, &mut back);
                    assert!(start.elapsed() < PATIENCE, "nothing completes: {case}");
                }
                left.post(WorkRequest::write(Inline(&[1; 8]), &whole)).map(drop).unwrap_or_else(|error| {
                    assert!(matches!(error, PostError::QueueFull(_)), "{error}: {case}");
                });
                while left.sends_in_flight() != 0 {
                    take_back(poller, &mut back);
                    assert!(start.elapsed() < PATIENCE, "nothing completes: {case}");
                }
                // The requests that the device got come back, in order if the device keeps it.
                let mut seen: Vec<usize> = back.iter().map(|buffer| buffer.as_ptr().addr()).collect();
                if lacks(Promise::Order) {
                    seen.sort_by_key(|address| all.iter().position(|other| other == address));
                }
                assert_eq!(seen, all[..seen.len()], "{case}");
                match posted {
                    Ok(Ok(posted)) => {
                        assert_eq!((posted, rest), (seen.len(), count - posted), "{case}");
                        assert!(posted == count.min(room) || event == Event::Poll && posted >= room, "{case}");
                    }
                    Ok(Err(PostAllError::Stopped(error))) => {
                        assert!(matches!(*error, PostError::Flawed { .. }), "{error}: {case}");
                        let request = error.into_request().unwrap().into_memory();
                        assert_eq!(
                            (request.as_ptr().addr(), seen.len(), rest),
                            (all[at], at, count - at - 1),
                            "{case}"
                        );
                    }
                    Ok(Err(error)) => panic!("{error}: {case}"),
                    // The closure panicked, so the requests that the device had not got were dropped.
                    Err(_) => assert_eq!((seen.len(), rest), (at / 32 * 32, count - at - 1), "{in_flight}: {case}"),
                }
                assert_eq!((poller.poll().unwrap().is_none(), poller.unknown_completions()), (true, 0), "{case}");
            }
        }
    }
}

/// A vector of zero-sized items can be longer than the address space.
#[test]
fn a_vector_of_nothings_is_as_long_as_it_says() {
    let domain = context().named_domain(Endless).unwrap();
    let region = domain.register::<RemoteReadWrite, _>(vec![0_u64; 1]).unwrap();
    let word = region.remote();
    for (mut link, in_batch) in WAYS
        .into_iter()
        .flat_map(|way| [(way, true), (way, false)])
        .filter_map(|(way, in_batch)| Some((link(&domain, 4, way)?, in_batch)))
    {
        let (mut nothings, start) = (Vec::from([(); usize::MAX]), Instant::now());
        let write = |()| WorkRequest::write(Inline(&[1; 8]), &word);
        let posted = if in_batch {
            link.left.batch(|batch| batch.post_all(&mut nothings, write).unwrap()).unwrap()
        } else {
            link.left.post_all(&mut nothings, write).unwrap()
        };
        assert_eq!((posted, nothings.len()), (4, usize::MAX - 4));
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            while link.left.sends_in_flight() != 0 {
                take_back(&mut link.poller, &mut Vec::new());
                assert!(start.elapsed() < PATIENCE);
            }
            let mut made = 0;
            let bad = |()| {
                made += 1;
                assert_ne!(made, 2, "in the program's code");
                write(())
            };
            drop(link.left.post_all(&mut nothings, bad));
        }));
        assert!(panicked.is_err());
        assert_eq!(nothings.len(), usize::MAX - 6);
    }
}

/// The pair fails while a vector is half posted, and the poller reports it. The requests staged so far come back, the
/// remaining items stay in the vector, and a request off the fast path finds the slot that was reserved for it.
#[test]
fn a_pair_that_breaks_while_a_vector_is_posted_gives_each_buffer_once() {
    if lacks_need(Need::Acknowledgements) {
        return;
    }
    let domain = context().named_domain(Broken).unwrap();
    let counts: &[usize] = if cfg!(miri) { &[5] } else { &[2, 5, 31, 40, 80] };
    for (&count, way) in counts.iter().flat_map(|count| WAYS.map(|way| (count, way))) {
        for (breaks, empty) in [(0, 0), (0, 1), (count / 2, count / 2), (count / 2, count - 1), (count - 1, count - 1)]
        {
            let case = format!("{way:?}, {count} items, breaks at {breaks}, nothing at {empty}");
            let Some(Link { mut left, right: _peer, mut poller, .. }) = link(&domain, 64, way) else { continue };
            let region = domain.register::<RemoteReadWrite, _>(vec![0_u64; 2]).unwrap();
            let (word, beyond) = (region.remote().slice(0..8).unwrap(), region.remote());
            drop(region);
            let mut items: Vec<_> = domain.buffers(count, 8).unwrap().into_iter().enumerate().collect();
            let all: HashSet<usize> = items.iter().map(|(_, buffer)| buffer.as_ptr().addr()).collect();
            let (mut back, start) = (Vec::new(), Instant::now());
            // The region is deregistered, so this write fails and breaks the pair.
            left.post(WorkRequest::write(Inline(&[1; 8]), &beyond)).unwrap();
            let posted = left.post_all(&mut items, |(number, mut buffer)| {
                while number == breaks && take_back(&mut poller, &mut back) {
                    assert!(start.elapsed() < PATIENCE, "{case}");
                }
                if number == empty {
                    buffer.set_len(0).unwrap();
                }
                WorkRequest::write(buffer, &word)
            });
            match posted {
                Ok(posted) => assert_eq!((posted, items.len()), (count.min(63), count - posted), "{case}"),
                Err(PostAllError::Stopped(error)) => {
                    assert!(matches!(*error, PostError::Broken { .. }), "{error}: {case}");
                    back.extend(error.into_request().map(WorkRequest::into_memory));
                }
                Err(error) => panic!("{error}: {case}"),
            }
            let later = left.post_all(&mut items, |(_, buffer)| WorkRequest::write(buffer, &word));
            if let Err(PostAllError::Stopped(error)) = later {
                back.extend(error.into_request().map(WorkRequest::into_memory));
            }
            while left.sends_in_flight() != 0 {
                take_back(&mut poller, &mut back);
                assert!(start.elapsed() < PATIENCE, "{case}");
            }
            back.extend(items.into_iter().map(|(_, buffer)| buffer));
            assert_eq!((back.len(), addresses(&back)), (count, all), "{case}");
            assert_eq!(poller.unknown_completions(), 0, "{case}");
        }
    }
}

/// One thread posts vectors without a pause while another one polls. The pair fails at some moment.
#[test]
fn a_pair_that_breaks_under_two_threads_gives_each_buffer_once() {
    if lacks_need(Need::Acknowledgements) {
        return;
    }
    const BUFFERS: usize = 48;
    let domain = context().named_domain(Apart).unwrap();
    let rounds = if cfg!(miri) { 60 } else { 3000 };
    for way in WAYS {
        let Some(Link { left, right: _peer, mut poller, .. }) = link(&domain, 21, way) else { continue };
        let region = domain.register::<RemoteReadWrite, _>(vec![0_u64; 1]).unwrap();
        let gone = domain.register::<RemoteReadWrite, _>(vec![0_u64; 1]).unwrap();
        let (word, nowhere) = (region.remote(), gone.remote());
        drop(gone);
        let (mut half, receives) = left.split();
        let items = domain.buffers(BUFFERS, 8).unwrap();
        let all = addresses(&items);
        let is_over = AtomicBool::new(false);
        let (give, take) = mpsc::channel();
        let start = Instant::now();
        let (mut back, (left_over, half, take)) = thread::scope(|scope| {
            let (mut items, mut made, is_over_now) = (items, 0, &is_over);
            let sending = scope.spawn(move || {
                loop {
                    let posted = half.post_all(&mut items, |buffer| {
                        made += 1;
                        WorkRequest::write(buffer, if made == rounds { &nowhere } else { &word })
                    });
                    items.extend(take.try_iter());
                    assert!(start.elapsed() < PATIENCE);
                    match posted {
                        Ok(_) => thread::yield_now(),
                        Err(PostAllError::Stopped(error)) => {
                            assert!(matches!(*error, PostError::Broken { .. }), "{error}");
                            items.extend(error.into_request().map(WorkRequest::into_memory));
                            is_over_now.store(true, Ordering::Release);
                            return (items, half, take);
                        }
                        Err(error) => panic!("{error}"),
                    }
                }
            });
            let mut back = Vec::new();
            while !is_over.load(Ordering::Acquire) {
                assert!(start.elapsed() < PATIENCE);
                take_back(&mut poller, &mut back);
                back.drain(..).for_each(|buffer| drop(give.send(buffer)));
            }
            (back, sending.join().unwrap())
        });
        back.extend(left_over);
        back.extend(take.try_iter());
        let left = half.join(receives).unwrap();
        while left.sends_in_flight() != 0 {
            take_back(&mut poller, &mut back);
            assert!(start.elapsed() < PATIENCE);
        }
        assert_eq!((back.len(), addresses(&back)), (BUFFERS, all));
    }
}

/// One call returns everything that is left of a pair, although the device reports nothing about it. The same holds for
/// a pair that ends while the last completion is being returned.
#[test]
fn what_is_left_of_a_destroyed_pair_comes_in_one_call() {
    let domain = context().named_domain(Destroyed).unwrap();
    // If a pair does not end at once, the device flushes what is left, and may report it in several polls.
    let in_one_call = domain.context().promises().pairs_end_at_once(false);
    for each in [true, false] {
        let Link { left, mut right, mut poller, .. } = Link::new(domain.clone(), 4);
        let fill = |pair: &mut QueuePair<Destroyed>| {
            for buffer in domain.buffers(3, 8).unwrap() {
                pair.post_receive(buffer).unwrap();
            }
        };
        fill(&mut right);
        let (mut ends, mut given, start) = (Some(left), 0, Instant::now());
        right.destroy().unwrap();
        let mut end = |number| {
            if number == 3
                && let Some(mut pair) = ends.take()
            {
                fill(&mut pair);
                pair.destroy().unwrap();
            }
        };
        for wanted in [3, 6] {
            while given < wanted {
                let before = given;
                let count = if each {
                    poller.poll_each(|completion| {
                        given += 1;
                        assert!(completion.check().is_err());
                        end(given);
                    })
                } else {
                    poller.poll_retired(|retired| {
                        given += 1;
                        assert!(retired.into_buffers(&mut Vec::new()).is_err());
                        end(given);
                    })
                };
                assert_eq!(count.unwrap(), given - before);
                assert!(!in_one_call || given == before || given == wanted, "{given}");
                assert!(start.elapsed() < PATIENCE);
            }
            assert_eq!(given, wanted);
        }
    }
}
