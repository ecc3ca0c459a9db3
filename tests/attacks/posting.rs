//! Posts and batches. If a post is refused, interrupted or uncertain, each buffer still belongs either to the device or
//! to the program.

use super::{DEPTH, LIMITS, all, assert_disjoint, fails, join, settle, small};
use interlock::error::{BatchError, PostAllError};
use interlock::queue::Posting;
use interlock::request::PostedMemory;
use interlock::soft::{Fault, Verb};
use interlock::{Limits, PostError, RemoteAll, RemoteRead, RemoteWrite, Status, WorkId, WorkRequest};
use std::panic::{AssertUnwindSafe, catch_unwind};
use support::Queues;

#[test]
fn what_a_panicking_batch_took_back_never_comes_out_of_the_poller() {
    let mut stage = stage!();
    stage.right.post_receive(small(&stage.domain)).unwrap();
    stage.left.post_send(small(&stage.domain)).unwrap();
    stage.fabric.run();
    let staged = stage.domain.buffers(2, 8).unwrap();
    let (left, poller) = (&mut stage.left, &mut stage.poller);
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let _ = left.batch(|batch| {
            for buffer in staged {
                batch.post(WorkRequest::send(buffer)).unwrap();
            }
            // The ledger now holds two requests that were never given to the device. The poller must return only the
            // receive and the send from before the batch.
            assert_eq!(all(poller).len(), 2);
            panic!("in the middle of a batch");
        });
    }));
    assert!(outcome.is_err());
    assert_eq!(stage.left.sends_in_flight(), 0);
    drop(stage.left);
    assert!(all(&mut stage.poller).is_empty(), "taken back, and given out once more");
}

#[test]
fn what_a_provider_refused_in_a_batch_never_comes_out_of_the_poller_too() {
    let mut stage = stage!();
    stage.right.post_receive(small(&stage.domain)).unwrap();
    stage.left.post_send(small(&stage.domain)).unwrap();
    stage.fabric.run();
    stage.fabric.inject(fails(Verb::PostSend));
    let staged = stage.domain.buffers(2, 8).unwrap();
    let poller = &mut stage.poller;
    let error: BatchError<_, _> = stage
        .left
        .batch(|batch| {
            for buffer in staged {
                batch.post(WorkRequest::send(buffer)).unwrap();
            }
            assert_eq!(all(poller).len(), 2);
        })
        .unwrap_err();
    let mut out: Vec<_> = error.refused.into_iter().filter_map(PostedMemory::into_buffer).collect();
    assert_eq!((error.posted, out.len()), (0, 2));
    drop(stage.left);
    let destroyed = all(&mut stage.poller).into_iter().map(|completion| completion.check().unwrap_err());
    out.extend(destroyed.filter_map(interlock::Failure::into_buffer));
    assert_disjoint(&out);
    assert_eq!(out.len(), 2, "each buffer once");
}

#[test]
fn a_batch_that_panics_after_a_doorbell_never_takes_back_what_was_rung() {
    let stage = stage!();
    let limits = Limits { sends: 40, receives: 1, ..Limits::default() };
    let (queue, mut poller) = stage.domain.queue(100).unwrap();
    let pair = stage.domain.reliable(&queue, &limits).unwrap().into_init(&stage.port).unwrap();
    let myself = pair.endpoint();
    let mut pair = pair.connect(&myself).unwrap();
    let region = stage.domain.register::<RemoteWrite, _>(vec![0_u64; 1]).unwrap();
    let buffers = stage.domain.buffers(35, 8).unwrap();
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let _ = pair.batch(|batch| {
            for buffer in buffers {
                batch.post(WorkRequest::write(buffer, &region.remote())).unwrap();
            }
            panic!("with 32 rung and 3 staged");
        });
    }));
    assert!(outcome.is_err());
    assert_eq!(pair.sends_in_flight(), 32);
    stage.fabric.run();
    for _ in 0..32 {
        poller.poll().unwrap().unwrap().check().unwrap();
    }
    // This request uses the slot of a request that was staged and taken back.
    pair.post_write(small(&stage.domain), &region.remote()).unwrap();
    stage.fabric.run();
    assert_eq!(all(&mut poller).len(), 1);
    assert_eq!(poller.unknown_completions(), 0);
}

#[test]
fn nested_batches_never_mix_their_requests() {
    let mut stage = stage!();
    let region = stage.domain.register::<RemoteWrite, _>(vec![0_u64; 1]).unwrap();
    let mut buffers = stage.domain.buffers(4, 8).unwrap().into_iter();
    let (left, right) = (&mut stage.left, &mut stage.right);
    let target = region.remote();
    let mut ids: [Vec<WorkId>; 2] = Default::default();
    left.batch(|outer| {
        ids[0].push(outer.post(WorkRequest::write(buffers.next().unwrap(), &target)).unwrap());
        right
            .batch(|inner| {
                ids[1].push(inner.post(WorkRequest::write(buffers.next().unwrap(), &target)).unwrap());
                ids[0].push(outer.post(WorkRequest::write(buffers.next().unwrap(), &target)).unwrap());
                ids[1].push(inner.post(WorkRequest::write(buffers.next().unwrap(), &target)).unwrap());
            })
            .unwrap();
    })
    .unwrap();
    let numbers = [stage.left.number(), stage.right.number()];
    let mut seen = 0;
    for completion in settle(&stage.fabric, &mut stage.poller) {
        let success = completion.check().unwrap();
        let of = numbers.iter().position(|&number| number == success.queue_pair()).unwrap();
        assert!(ids[of].contains(&success.id()));
        seen += 1;
    }
    assert_eq!(seen, 4);
}

#[test]
fn a_batch_that_ends_early_never_loses_what_it_was_given() {
    let mut stage = stage!();
    let region = stage.domain.register::<RemoteWrite, _>(vec![0_u64; 1]).unwrap();
    let target = region.remote();
    let mut buffers = stage.domain.buffers(6, 8).unwrap();
    let refused = stage
        .left
        .batch(|batch| {
            while let Some(buffer) = buffers.pop() {
                if let Err(PostError::QueueFull(request)) = batch.post(WorkRequest::write(buffer, &target)) {
                    return Some(request.into_memory());
                }
            }
            None
        })
        .unwrap();
    let mut out: Vec<_> =
        settle(&stage.fabric, &mut stage.poller).into_iter().filter_map(|c| c.check().unwrap().into_buffer()).collect();
    assert_eq!(out.len(), 4);
    out.extend(refused);
    out.append(&mut buffers);
    assert_eq!(out.len(), 6);
    assert_disjoint(&out);
}

/// S-1.
#[test]
fn s_1_an_empty_batch_never_reaches_the_provider() {
    let mut stage = stage!();
    stage.fabric.inject(fails(Verb::PostSend));
    stage.left.batch(|_| ()).unwrap();
    let refused = stage.left.post_send(small(&stage.domain));
    assert!(matches!(refused, Err(PostError::Refused { .. })), "the first call of the verb");
    assert_eq!(stage.left.sends_in_flight(), 0);
}

#[test]
fn a_refused_post_never_keeps_the_buffer() {
    let mut stage = stage!();
    let fabric = stage.fabric.clone();
    let mut buffer = small(&stage.domain);
    buffer.write(b"mine").unwrap();
    fabric.inject(fails(Verb::PostSend));
    let Err(PostError::Refused { request: buffer, .. }) = stage.left.post_send(buffer) else { panic!("refused") };
    assert_eq!(&buffer[..], b"mine");
    fabric.inject(fails(Verb::PostRecv));
    let Err(PostError::Refused { request: mut buffer, .. }) = stage.right.post_receive(buffer) else {
        panic!("refused")
    };
    buffer.write(b"still").unwrap();
    // A refused read has not filled its buffer.
    let region = stage.domain.register::<RemoteRead, _>(vec![0_u64; 1]).unwrap();
    fabric.inject(fails(Verb::PostSend));
    let Err(PostError::Refused { request: buffer, .. }) = stage.left.post_read(buffer, &region.remote()) else {
        panic!("refused")
    };
    assert_eq!(&buffer[..], b"still");
    let mut left = stage.left;
    fabric.inject(fails(Verb::PostSend));
    let error = left
        .batch(|batch| {
            batch.post(WorkRequest::read(buffer, &region.remote())).unwrap();
        })
        .unwrap_err();
    let buffer = error.refused.into_iter().next().and_then(PostedMemory::into_buffer).unwrap();
    assert_eq!(&buffer[..], b"still");
    drop(left);
    assert!(all(&mut stage.poller).is_empty());
}

#[test]
fn an_uncertain_send_never_comes_back_before_the_device_is_done_with_it() {
    let mut stage = stage!();
    stage.right.post_receive(small(&stage.domain)).unwrap();
    stage.fabric.inject(Fault::SendKept { errno: libc::EINVAL });
    let error = stage.left.post_send(small(&stage.domain)).unwrap_err();
    let PostError::Uncertain { id, .. } = error else { panic!("{error}") };
    assert_eq!(stage.left.sends_in_flight(), 1);
    assert!(matches!(stage.left.post_send(small(&stage.domain)), Err(PostError::Broken { first_failure: None, .. })));
    // The device has kept the request, but not executed it. The next transition makes the device execute it, as on
    // soft-RoCE.
    let left = stage.left.into_sqd().unwrap().into_error().unwrap();
    let out = stage.fabric.run();
    let completions = all(&mut stage.poller);
    assert!(completions.iter().any(|completion| completion.id() == id), "{out} units: {completions:?}");
    drop((left, completions));
    assert!(all(&mut stage.poller).iter().all(|completion| completion.id() != id), "once");
}

#[test]
fn an_uncertain_receive_never_comes_back_before_the_device_is_done_with_it() {
    let mut stage = stage!();
    stage.fabric.inject(Fault::ReceiveKept { errno: libc::EINVAL });
    let error = stage.right.post_receive(small(&stage.domain)).unwrap_err();
    let PostError::Uncertain { id, .. } = error else { panic!("{error}") };
    let mut message = small(&stage.domain);
    message.write(b"late").unwrap();
    stage.left.post_send(message).unwrap();
    let out = settle(&stage.fabric, &mut stage.poller);
    let received =
        out.into_iter().find(|completion| completion.id() == id).unwrap().check().unwrap().into_received().ok();
    assert_eq!(&received.unwrap()[..], b"late");
}

#[test]
fn an_uncertain_batch_never_gives_its_buffers_back() {
    let mut stage = stage!();
    let region = stage.domain.register::<RemoteWrite, _>(vec![0_u64; 2]).unwrap();
    stage.fabric.inject(Fault::SendKept { errno: libc::EIO });
    let buffers = stage.domain.buffers(3, 8).unwrap();
    let error = stage
        .left
        .batch(|batch| {
            for buffer in buffers {
                batch.post(WorkRequest::write(buffer, &region.remote())).unwrap();
            }
        })
        .unwrap_err();
    assert_eq!((error.posted, error.refused.len(), stage.left.sends_in_flight()), (0, 0, 3));
    let reset = stage.left.into_reset().unwrap();
    let out: Vec<_> = all(&mut stage.poller).into_iter().map(|c| c.check().unwrap_err()).collect();
    assert!(out.iter().all(|failure| failure.status == Status::Destroyed));
    assert_eq!(out.len(), 3);
    let buffers: Vec<_> = out.into_iter().filter_map(interlock::Failure::into_buffer).collect();
    assert_disjoint(&buffers);
    assert!(reset.into_init(&stage.port).is_ok(), "and the pair lives on");
}

/// One word records that a pair is broken, and its depth. However the program posts, a broken pair takes no request;
/// after a reset it takes its full depth.
#[test]
fn a_pair_that_broke_never_takes_a_request_by_any_way() {
    let stage = stage!();
    for (posting, in_flight) in
        [Posting::List, Posting::WorkRequestApi].into_iter().flat_map(|way| [(way, 0), (way, 1)])
    {
        let limits = Limits { posting, ..LIMITS };
        let (queue, mut poller) = stage.domain.queue(4 * DEPTH).unwrap();
        let [left, right] =
            [(); 2].map(|()| stage.domain.reliable(&queue, &limits).unwrap().into_init(&stage.port).unwrap());
        let (mut left, right) = join(left, right);
        for _ in 0..in_flight {
            left.post_receive(small(&stage.domain)).unwrap();
        }
        let region = stage.domain.register::<RemoteAll, _>(vec![0_u64; 1]).unwrap();
        let gone = region.remote();
        region.deregister().unwrap();
        let filled = || {
            let mut buffer = small(&stage.domain);
            buffer.fill(1);
            buffer
        };
        left.post(WorkRequest::write(filled(), &gone)).unwrap();
        stage.fabric.run();
        let failure = poller.poll().unwrap().unwrap().check().unwrap_err();
        assert_eq!(failure.status, Status::RemoteAccess);

        let broken = |refused: Option<PostError<_>>| {
            let Some(PostError::Broken { first_failure: Some(Status::RemoteAccess), .. }) = refused else {
                panic!("{posting:?}, {in_flight}: {refused:?}")
            };
        };
        broken(left.post_send(filled()).err().map(|error| error.map(drop)));
        broken(left.post(WorkRequest::send(filled()).unsignalled()).err().map(|error| error.map(drop)));
        broken(left.post_send(interlock::Inline(b"x")).err().map(|error| error.map(drop)));
        broken(left.post_receive(small(&stage.domain)).err().map(|error| error.map(drop)));
        left.batch(|batch| {
            broken(batch.post(WorkRequest::send(filled())).err().map(|error| error.map(drop)));
            broken(batch.post_each([WorkRequest::send(filled()); 1]).err().map(|error| error.map(drop)));
            let rest = batch.post_all(&mut vec![filled(), filled()], WorkRequest::send);
            broken(rest.err().map(|error| error.map(drop)));
        })
        .unwrap();
        match left.post_all(&mut vec![filled(), filled()], WorkRequest::send) {
            Err(PostAllError::Stopped(error)) => broken(Some(error.map(drop))),
            other => panic!("{other:?}"),
        }
        assert_eq!((left.sends_in_flight(), left.receives_in_flight()), (0, in_flight));

        let (left, right) = (left.into_reset().unwrap(), right.into_reset().unwrap());
        assert_eq!(all(&mut poller).len() as u32, in_flight);
        let (left, right) = join(left.into_init(&stage.port).unwrap(), right.into_init(&stage.port).unwrap());
        let ((mut sends, mut receives), _right) = (left.split(), right);
        for _ in 0..DEPTH {
            sends.post(WorkRequest::send(filled()).unsignalled()).unwrap();
            receives.post_receive(small(&stage.domain)).unwrap();
        }
        assert!(matches!(sends.post_send(filled()), Err(PostError::QueueFull(_))));
        assert!(matches!(receives.post_receive(filled()), Err(PostError::QueueFull(_))));
    }
}

support::also_extended![
    what_a_panicking_batch_took_back_never_comes_out_of_the_poller,
    what_a_provider_refused_in_a_batch_never_comes_out_of_the_poller_too,
    a_batch_that_panics_after_a_doorbell_never_takes_back_what_was_rung,
    nested_batches_never_mix_their_requests,
    a_batch_that_ends_early_never_loses_what_it_was_given,
    s_1_an_empty_batch_never_reaches_the_provider,
    a_refused_post_never_keeps_the_buffer,
    an_uncertain_send_never_comes_back_before_the_device_is_done_with_it,
    an_uncertain_receive_never_comes_back_before_the_device_is_done_with_it,
    an_uncertain_batch_never_gives_its_buffers_back,
    a_pair_that_broke_never_takes_a_request_by_any_way,
];
