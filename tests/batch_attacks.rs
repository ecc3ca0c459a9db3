//! Attacks on batches of whole vectors and on what brings their buffers back: no buffer is the program's while the device has it, and
//! none comes back twice.

mod common;

use common::{Link, PATIENCE, POLLING, context, on_hardware};
use interlock::{
    Buffer, ConnectAttributes, CreateError, Inline, Limits, Polling, PostError, Posting, QueuePair, RemoteAll, Retired,
    WorkRequest,
};
use std::collections::HashSet;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

interlock::domain! {
    struct Nested;
    struct Forgotten;
    struct Disturbed;
}

fn addresses<B: interlock::Brand>(buffers: &[Buffer<B>]) -> HashSet<usize> {
    buffers.iter().map(|buffer| buffer.as_ptr().addr()).collect()
}

/// The thread lends one stage. A batch within the closure that makes another's requests, on another pair, panics or not, gets none of
/// it, and the outer one goes on with its own.
#[test]
fn a_batch_within_the_making_of_another_takes_nothing_of_it() {
    let domain = context().named_domain(Nested).unwrap();
    // More than what is handed over at once, and as much, which goes through a session in one piece.
    let ways = [Posting::List, Posting::WorkRequestApi].into_iter().flat_map(|way| [(way, 40_u8), (way, 32)]);
    for (posting, count, panics) in ways.flat_map(|(way, count)| [(way, count, false), (way, count, true)]) {
        let limits = Limits { sends: 64, receives: 64, posting, ..Limits::default() };
        let (queue, _) = domain.completion_queue(128).unwrap();
        if let Err(CreateError::NoWorkRequestApi(_)) = domain.reliable(&queue, &limits) {
            assert!(on_hardware());
            continue;
        }
        let Link { mut left, mut right, mut poller, .. } =
            Link::limited(domain.clone(), &limits, &ConnectAttributes::default());
        let region = domain.register::<RemoteAll, _>(vec![0_u64; 2]).unwrap();
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
        // What was given up in the inner batch had not been handed over, and is gone; one more retires the rest.
        let last = fresh(0xff);
        let last_address = last.as_ptr().addr();
        right.post_write(last, &inner).unwrap();
        let (mut back, start) = (Vec::new(), Instant::now());
        while !(addresses(&back).contains(&last_address) && left.sends_in_flight() == 0) {
            poller.poll_retired(|retired| retired.into_buffers(&mut back).unwrap()).unwrap();
            assert!(start.elapsed() < PATIENCE, "{} came back", back.len());
        }
        assert_eq!((left.sends_in_flight(), right.sends_in_flight()), (0, 0));
        let seen = addresses(&back);
        assert_eq!(seen.len(), back.len(), "a buffer came back twice");
        assert!(
            back.iter().all(|buffer| all.contains(&buffer.as_ptr().addr()) || buffer.as_ptr().addr() == last_address)
        );
        let (count, rung) = (usize::from(count), usize::from(count - 1) / 32 * 32);
        assert_eq!(back.len(), count + if panics { rung } else { count } + 1);
        // Each still holds what was sent from it: nobody wrote to it meanwhile.
        assert!(back.iter().all(|buffer| buffer.iter().all(|&byte| byte == buffer[0])));
        assert_eq!(
            [region.load(0).unwrap(), region.load(8).unwrap()],
            [u64::from_ne_bytes([count as u8 - 1; 8]), u64::MAX]
        );
    }
}

/// What is forgotten, or panics, in the middle of a run neither frees a slot whose buffer is out nor gives a buffer twice.
#[test]
fn a_run_that_is_forgotten_gives_each_buffer_once() {
    let domain = context().named_domain(Forgotten).unwrap();
    let Link { mut left, right: _peer, mut poller, .. } = Link::new(domain.clone(), 8);
    let region = domain.register::<RemoteAll, _>(vec![0_u64; 1]).unwrap();
    let word = region.remote();
    for round in 0..12 {
        let mut items = domain.buffers(6, 8).unwrap();
        let all = addresses(&items);
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

/// What the program does while it takes a run.
#[derive(Clone, Copy, Debug)]
enum Deed {
    Posts,
    Destroys,
    Resets,
    Panics,
    Forgets,
}

/// How it takes the run.
#[derive(Clone, Copy, Debug)]
enum Taking {
    OneByOne,
    InARow,
    Buffers,
    Last,
}

/// Takes a run, and does something, by `deed`, when a part of it has been taken; forgets the rest if that says so.
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
        Taking::Last => return back.extend(retired.completion().check().unwrap().into_buffer()),
    };
    if forgets {
        return mem::forget(retired);
    }
    back.extend(retired.unsignalled().take(1).filter_map(|success| success.into_buffer()));
    retired.into_buffers(back).unwrap();
}

/// While a run is being taken its pair is posted to, destroyed or reset, or the program panics or forgets the run. A slot is free when its
/// value is out and not before, and no value is given twice: by the run, and as what was left of the pair.
#[test]
fn a_pair_that_ends_while_its_run_is_taken_gives_each_buffer_once() {
    const DEPTH: u32 = 6;
    let domain = context().named_domain(Disturbed).unwrap();
    let region = domain.register::<RemoteAll, _>(vec![0_u64; 1]).unwrap();
    let word = region.remote();
    let limits = Limits { sends: DEPTH, receives: 1, inline_bytes: 8, ..Limits::default() };
    // So that runs begin at several places of the ring, which has 8.
    let shifts: &[u32] = if cfg!(miri) { &[5] } else { &[0, 3, 5, 7] };
    let kinds =
        [(Polling::Array, false), (Polling::Extended, true), (Polling::Array, true), (Polling::Extended, false)];
    let kinds = if cfg!(miri) { &kinds[..2] } else { &kinds[..] };
    let deeds = [Deed::Posts, Deed::Destroys, Deed::Resets, Deed::Panics, Deed::Forgets];
    let takings = [Taking::OneByOne, Taking::InARow, Taking::Buffers, Taking::Last];
    for (deed, taking) in deeds.into_iter().flat_map(|deed| takings.map(|taking| (deed, taking))) {
        for (&shift, &(polling, is_mixed)) in
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
                                Deed::Resets => drop(pair.into_reset().unwrap()),
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
            // What is before the last is dropped by who asks for the last; and what was being taken, by who panics.
            let gone = matches!(taking, Taking::Last) || matches!(deed, Deed::Panics);
            assert!(gone || seen == all, "{} of {}: {case}", seen.len(), all.len());
            assert_eq!(poller.unknown_completions(), 0, "{case}");
        }
    }
}
