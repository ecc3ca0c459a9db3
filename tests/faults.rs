//! Tests what the library does when verbs fail, on soft devices with injected faults.

use interlock::error::{CreateError, NamedDomainError, OpenError, PollError, PostAllError, WaitError};
use interlock::soft::{Fabric, Fault, Profile, Verb};
use interlock::{Context, Limits, LocalWrite, PostError, RemoteWrite, Status, Work, WorkRequest};
use std::time::Duration;
use support::{Link, Queues, own_device};

const SHORT: Duration = Duration::from_millis(50);

fn fails(verb: Verb, errno: i32) -> Fault {
    Fault::VerbFails { verb, after: 0, count: 1, errno }
}

fn always(verb: Verb, errno: i32) -> Fault {
    Fault::VerbFails { verb, after: 0, count: u32::MAX, errno }
}

#[test]
fn a_failed_destroy_gives_the_pair_back_and_its_buffers_stay_away() {
    let (fabric, domain) = own_device!(Fabric::new());
    let mut link = Link::new(domain, 2);
    link.right.post_receive(link.domain.buffer(8).unwrap()).unwrap();
    fabric.inject(fails(Verb::DestroyQp, libc::EBUSY));
    let error = link.right.destroy().unwrap_err();
    assert_eq!((error.source.verb(), error.source.errno()), ("ibv_destroy_qp", libc::EBUSY));
    assert!(link.poller.poll().unwrap().is_none(), "nothing comes back: the device may still write to it");
    // The pair still works, and the second attempt to destroy it succeeds.
    link.left.post_send(link.domain.buffer(8).unwrap()).unwrap();
    for _ in 0..2 {
        link.poller.wait(SHORT).unwrap().check().unwrap();
    }
    error.queue_pair.destroy().unwrap();
}

#[test]
fn a_drop_that_cannot_destroy_leaks_the_pair_with_all_that_it_needs() {
    let (fabric, domain) = own_device!(Fabric::new());
    let mut link = Link::new(domain, 2);
    link.right.post_receive(link.domain.buffer(8).unwrap()).unwrap();
    fabric.inject(fails(Verb::DestroyQp, libc::EBUSY));
    drop(link.right);
    all_gone_but_the_leak(&mut link.poller);
    // The leaked pair still receives. Its buffer comes back with the completion, and not before.
    link.left.post_send(link.domain.buffer(8).unwrap()).unwrap();
    let mut received = 0;
    for _ in 0..2 {
        received +=
            usize::from(matches!(link.poller.wait(SHORT).unwrap().check().unwrap().into_work(), Work::Received(_)));
    }
    assert_eq!(received, 1);
    let context = link.domain.context();
    let before = link.queue.room();
    drop((link.left, link.domain));
    while link.poller.poll().unwrap().is_some() {}
    assert_eq!(link.queue.room(), before + 4, "the lease of the leaked pair stays");
    drop((link.poller, link.queue));
    drop(context);
}

fn all_gone_but_the_leak<B: interlock::Brand>(poller: &mut interlock::Poller<B>) {
    assert!(poller.poll().unwrap().is_none());
}

#[test]
fn a_region_that_cannot_be_deregistered_comes_back_and_a_dropped_one_leaks() {
    interlock::domain! { struct Test; }
    let fabric = Fabric::new();
    let domain = Context::open_on(&fabric, "dev0").unwrap().named_domain(Test).unwrap();
    let name_again = |context: &Context| context.named_domain(Test);
    let region = domain.register::<LocalWrite, _>(vec![3_u8; 16]).unwrap();
    fabric.inject(fails(Verb::DeregMr, libc::EBUSY));
    let error = region.deregister().unwrap_err();
    assert_eq!(error.source.errno(), libc::EBUSY);
    assert_eq!(error.region.deregister().unwrap(), [3; 16]);
    let region = domain.register::<RemoteWrite, _>(vec![3_u64; 16]).unwrap();
    fabric.inject(fails(Verb::DeregMr, libc::EBUSY));
    drop(region);
    // The leaked region keeps its domain, and the domain keeps its name, so no other domain can take the name.
    let context = domain.context();
    drop(domain);
    assert!(matches!(name_again(&context), Err(NamedDomainError::Taken { .. })));
}

#[test]
fn a_domain_that_cannot_be_freed_keeps_its_name() {
    interlock::domain! { struct Kept; }
    let fabric = Fabric::new();
    let context = Context::open_on(&fabric, "dev0").unwrap();
    let domain = context.named_domain(Kept).unwrap();
    fabric.inject(fails(Verb::DeallocPd, libc::EBUSY));
    drop(domain);
    assert!(matches!(context.named_domain(Kept), Err(NamedDomainError::Taken { name: "Kept" })));
}

#[test]
fn a_name_is_free_when_its_domain_could_not_be_made() {
    interlock::domain! { struct Free; }
    let fabric = Fabric::new();
    let context = Context::open_on(&fabric, "dev0").unwrap();
    fabric.inject(fails(Verb::AllocPd, libc::ENOMEM));
    assert!(matches!(context.named_domain(Free), Err(NamedDomainError::Verb(_))));
    assert!(context.named_domain(Free).is_ok());
}

#[test]
fn a_half_built_object_is_taken_down_again() {
    let (fabric, domain) = own_device!(Fabric::new());
    let (queue, mut poller) = domain.queue(8).unwrap();
    fabric.inject(fails(Verb::CreateQp, libc::ENOMEM));
    assert!(matches!(domain.reliable(&queue, &Limits::default()), Err(CreateError::Verb(_))));
    assert_eq!(queue.room(), 8, "the lease went back");
    assert!(poller.poll().unwrap().is_none());
    assert_eq!(queue.room(), 8, "the lease went back");
    fabric.inject(fails(Verb::CreateCq, libc::ENOMEM));
    assert!(domain.queue(8).is_err());
    fabric.inject(fails(Verb::CreateCompChannel, libc::EMFILE));
    assert!(domain.queue(8).is_err());
    fabric.inject(fails(Verb::RegMr, libc::ENOMEM));
    let error = domain.register::<LocalWrite, _>(vec![1_u8, 2]).unwrap_err();
    assert_eq!(error.memory, [1, 2]);
}

#[test]
fn a_refused_post_that_names_itself_gives_its_buffer_back() {
    let (fabric, domain) = own_device!(Fabric::new());
    let mut link = Link::new(domain, 2);
    let mut message = link.domain.buffer(8).unwrap();
    message.write(b"back").unwrap();
    fabric.inject(fails(Verb::PostSend, libc::ENOMEM));
    let Err(PostError::Refused { request, source }) = link.left.post_send(message) else { panic!("refused") };
    assert_eq!((&request[..], source.errno()), (&b"back"[..], libc::ENOMEM));
    fabric.inject(fails(Verb::PostRecv, libc::ENOMEM));
    let Err(PostError::Refused { request, .. }) = link.right.post_receive(request) else { panic!("refused") };
    // The refused posts have not broken the pairs.
    link.right.post_receive(request).unwrap();
    link.left.post_send(link.domain.buffer(8).unwrap()).unwrap();
    for _ in 0..2 {
        link.poller.wait(SHORT).unwrap().check().unwrap();
    }
}

#[test]
fn a_refused_post_that_may_be_queued_keeps_its_buffer_until_it_completes() {
    let (fabric, domain) = own_device!(Fabric::new());
    let mut link = Link::new(domain, 4);
    link.right.post_receive(link.domain.buffer(8).unwrap()).unwrap();
    link.right.post_receive(link.domain.buffer(8).unwrap()).unwrap();
    fabric.inject(Fault::SendKept { errno: libc::EINVAL });
    let error = link.left.post_send(link.domain.buffer(8).unwrap()).unwrap_err();
    assert!(matches!(error, PostError::Uncertain { .. }), "{error:?}");
    assert!(error.into_request().is_none());
    let next = link.left.post_send(link.domain.buffer(8).unwrap()).unwrap_err();
    assert!(matches!(next, PostError::Broken { first_failure: None, .. }), "{next:?}");
    drop(next);
    link.left.destroy().unwrap();
    let mut out = 0;
    while let Some(completion) = link.poller.poll().unwrap() {
        out += 1;
        drop(completion);
    }
    assert!(out >= 1, "the buffer came out, completed or destroyed");
}

#[test]
fn a_refused_receive_that_may_be_queued_keeps_its_buffer() {
    let (fabric, domain) = own_device!(Fabric::new());
    let mut link = Link::new(domain, 4);
    fabric.inject(Fault::ReceiveKept { errno: libc::EINVAL });
    let error = link.right.post_receive(link.domain.buffer(8).unwrap()).unwrap_err();
    assert!(matches!(error, PostError::Uncertain { .. }), "{error:?}");
    link.right.destroy().unwrap();
    assert_eq!(link.poller.poll().unwrap().unwrap().check().unwrap_err().status, Status::Destroyed);
}

#[test]
fn a_partly_refused_batch_says_what_was_posted_and_gives_back_the_rest() {
    let (fabric, domain) = own_device!(Fabric::new());
    let mut link = Link::new(domain, 4);
    let region = link.domain.register::<RemoteWrite, _>(vec![0_u64; 4]).unwrap();
    fabric.inject(fails(Verb::PostSend, libc::ENOMEM));
    let buffers = link.domain.buffers(3, 8).unwrap();
    let error = link
        .left
        .batch(|batch| {
            for (at, mut buffer) in buffers.into_iter().enumerate() {
                buffer.fill(at as u8);
                batch.post(WorkRequest::write(buffer, &region.remote())).unwrap();
            }
        })
        .unwrap_err();
    let back: Vec<u8> = error.refused.into_iter().map(|memory| memory.into_buffer().unwrap()[0]).collect();
    assert_eq!((error.posted, back), (0, vec![0, 1, 2]));
    assert_eq!(link.left.sends_in_flight(), 0);
    link.left.post_write(link.domain.buffer(8).unwrap(), &region.remote()).unwrap();
    link.poller.wait(SHORT).unwrap().check().unwrap();
}

#[test]
fn a_batch_whose_closure_panics_posts_nothing_of_what_it_staged() {
    let (_fabric, domain) = own_device!(Fabric::new());
    let mut link = Link::new(domain, 4);
    let region = link.domain.register::<RemoteWrite, _>(vec![0_u64; 4]).unwrap();
    let buffer = link.domain.buffer(8).unwrap();
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        link.left.batch(|batch| {
            batch.post(WorkRequest::write(buffer, &region.remote())).unwrap();
            panic!("in the closure");
        })
    }));
    assert!(panicked.is_err());
    assert_eq!(link.left.sends_in_flight(), 0);
    assert!(link.poller.poll().unwrap().is_none());
    link.left.post_write(link.domain.buffer(8).unwrap(), &region.remote()).unwrap();
    link.poller.wait(SHORT).unwrap().check().unwrap();
}

#[test]
fn a_withheld_flush_comes_with_the_next_kick_of_the_drain() {
    let (fabric, domain) = own_device!(Fabric::new());
    let mut link = Link::new(domain, 4);
    link.right.post_receive(link.domain.buffer(8).unwrap()).unwrap();
    fabric.inject(Fault::FlushWithheld);
    let mut broken = link.right.into_error().unwrap();
    assert!(link.poller.poll().unwrap().is_none());
    let mut flushed = 0;
    broken
        .drain(&mut link.poller, Duration::from_secs(5), |completion| {
            assert_eq!(completion.check().unwrap_err().status, Status::Flushed);
            flushed += 1;
        })
        .unwrap();
    assert_eq!(flushed, 1);
}

#[test]
fn a_drain_that_does_not_end_says_what_is_left_and_reset_brings_it_back() {
    let (_fabric, domain) = own_device!(Fabric::manual());
    let mut link = Link::new(domain, 4);
    link.right.post_receive(link.domain.buffer(8).unwrap()).unwrap();
    let mut broken = link.right.into_error().unwrap();
    // The fabric is not stepped, so nothing is flushed.
    let error = broken.drain(&mut link.poller, SHORT, drop).unwrap_err();
    assert_eq!((error.sends, error.receives), (0, 1));
    let _reset = broken.into_reset().unwrap();
    assert_eq!(link.poller.poll().unwrap().unwrap().check().unwrap_err().status, Status::Destroyed);
}

#[test]
fn a_failed_poll_is_neither_empty_nor_a_completion() {
    let (fabric, domain) = own_device!(Fabric::new());
    let mut link = Link::new(domain, 4);
    link.right.post_receive(link.domain.buffer(8).unwrap()).unwrap();
    fabric.inject(fails(Verb::PollCq, libc::EIO));
    assert_eq!(link.poller.poll().unwrap_err(), PollError::Failed);
    // After a failed poll, every later poll fails too, because completions are perhaps lost.
    assert_eq!(link.poller.poll().unwrap_err(), PollError::Failed);
    assert!(matches!(link.poller.wait(SHORT), Err(WaitError::Poll(PollError::Failed))));
}

/// A queue that has failed fails again at each poll.
#[test]
fn a_poller_that_failed_does_not_keep_a_channel_from_the_others() {
    let (fabric, domain) = own_device!(Fabric::new());
    let port = domain.context().active_port().unwrap();
    let channel = domain.completion_channel().unwrap();
    let (_broken, first) = channel.queue(4).unwrap();
    let (queue, second) = channel.queue(16).unwrap();
    let limits = Limits { sends: 4, receives: 4, ..Limits::default() };
    let pair = domain.reliable(&queue, &limits).unwrap().into_init(&port).unwrap();
    let itself = pair.endpoint();
    let mut pair = pair.connect(&itself).unwrap();
    pair.post_receive(domain.buffer(8).unwrap()).unwrap();
    pair.post_send(domain.buffer(8).unwrap()).unwrap();
    fabric.inject(fails(Verb::PollCq, libc::EIO));
    let (mut channel, mut pollers, mut completed) = (channel, [first, second], 0);
    for round in 0..4 {
        match channel.wait_any(&mut pollers, SHORT) {
            Err(WaitError::OfPoller { index: 0, source }) => {
                assert_eq!(round % 2, 0);
                assert!(matches!(*source, WaitError::Poll(PollError::Failed)));
            }
            found => {
                let (index, completion) = found.unwrap().unwrap();
                completion.check().unwrap();
                completed += 1;
                assert_eq!((round % 2, index), (1, 1));
            }
        }
    }
    assert_eq!(completed, 2);
}

#[test]
fn in_flight_memory_is_freed_neither_by_drops_nor_by_forgetting() {
    let (fabric, domain) = own_device!(Fabric::manual());
    let mut link = Link::new(domain, 4);
    link.right.post_receive(link.domain.buffer(64).unwrap()).unwrap();
    let mut message = link.domain.buffer(64).unwrap();
    message.write(b"late").unwrap();
    link.left.post_send(message).unwrap();
    // While both requests are in flight, the program forgets the pairs, and drops the domain and the completion queue.
    // Then the device runs.
    std::mem::forget(link.left);
    std::mem::forget(link.right);
    drop((link.domain, link.queue));
    fabric.run();
    let mut received = None;
    while let Some(completion) = link.poller.poll().unwrap() {
        received = received.or(completion.check().unwrap().into_received().ok());
    }
    assert_eq!(&received.unwrap()[..], b"late");
}

#[test]
fn a_destroyed_pair_is_out_of_the_devices_reach() {
    let (fabric, domain) = own_device!(Fabric::manual());
    let mut link = Link::new(domain, 4);
    link.right.post_receive(link.domain.buffer(64).unwrap()).unwrap();
    let mut message = link.domain.buffer(64).unwrap();
    message.write(b"too late").unwrap();
    link.left.post_send(message).unwrap();
    link.right.destroy().unwrap();
    let mut mine = link.poller.poll().unwrap().unwrap().check().unwrap_err().into_buffer().unwrap();
    mine.fill(7);
    fabric.run();
    assert!(mine.iter().all(|&byte| byte == 7));
}

#[test]
fn a_removed_device_ends_in_errors_and_not_in_panics() {
    let (fabric, domain) = own_device!(Fabric::new());
    let mut link = Link::new(domain, 4);
    link.right.post_receive(link.domain.buffer(8).unwrap()).unwrap();
    let spare = link.domain.buffer(8).unwrap();
    fabric.inject(Fault::DeviceRemoved { device: "dev0".to_owned() });
    assert!(link.domain.context().attributes().is_err());
    let posted = link.left.post_send(spare);
    assert!(posted.is_err(), "{posted:?}");
    assert!(link.poller.poll().is_err());
    drop(link);
}

#[test]
fn a_device_that_does_not_open_says_why() {
    let fabric = Fabric::new();
    fabric.inject(always(Verb::OpenDevice, libc::EACCES));
    let error = Context::open_on(&fabric, "dev0").unwrap_err();
    assert!(matches!(&error, OpenError::Refused { source, .. } if source.errno() == libc::EACCES), "{error}");
    assert!(error.to_string().contains("/dev/infiniband"), "{error}");
    let error = Context::open("mlx9_9").unwrap_err();
    assert!(error.to_string().starts_with("no RDMA device has the name \"mlx9_9\" (available: "), "{error}");
    assert!(error.to_string().contains("soft0"), "{error}");
}

/// Vendor and part of a device name its provider, and some providers need precautions. So a device that cannot be
/// queried is not opened.
#[test]
fn a_device_that_cannot_be_queried_is_not_opened() {
    let fabric = Fabric::new();
    fabric.inject(Fault::VerbFails { verb: Verb::QueryDevice, after: 0, count: 1, errno: libc::ENOMEM });
    let error = Context::open_on(&fabric, "dev0").unwrap_err();
    assert!(matches!(&error, OpenError::Refused { source, .. } if source.errno() == libc::ENOMEM), "{error}");
    assert!(Context::open_on(&fabric, "dev0").is_ok());
}

#[test]
fn a_refused_batch_gives_back_what_its_closure_returned_too() {
    let (fabric, domain) = own_device!(Fabric::new());
    let mut link = Link::new(domain, 80);
    let region = link.domain.register::<RemoteWrite, _>(vec![0_u64; 4]).unwrap();
    fabric.inject(Fault::VerbFails { verb: Verb::PostSend, after: 1, count: 1, errno: libc::ENOMEM });
    let mut buffers = link.domain.buffers(70, 8).unwrap().into_iter();
    let error = link
        .left
        .batch(|batch| {
            for buffer in buffers.by_ref() {
                batch.post(WorkRequest::write(buffer, &region.remote()))?;
            }
            Ok::<_, PostError<_>>(())
        })
        .unwrap_err();
    let in_result = error.result.unwrap_err().into_request().map_or(0, |_| 1);
    assert_eq!((error.posted, error.refused.len(), in_result, buffers.len()), (32, 32, 1, 5));
    assert_eq!(error.uncertain, 0);
}

#[test]
fn what_is_refused_of_all_items_comes_back() {
    for (count, posted, refused, left) in [(32, 0, 32, 0), (70, 0, 32, 37)] {
        let (fabric, domain) = own_device!(Fabric::new());
        let mut link = Link::new(domain, 80);
        let region = link.domain.register::<RemoteWrite, _>(vec![0_u64; 4]).unwrap();
        fabric.inject(Fault::VerbFails { verb: Verb::PostSend, after: 0, count: 1, errno: libc::ENOMEM });
        let mut buffers = link.domain.buffers(count, 8).unwrap();
        let error = link.left.post_all(&mut buffers, |from| WorkRequest::write(from, &region.remote())).unwrap_err();
        let PostAllError::Failed(error) = error else { panic!("{error}") };
        assert_eq!((error.posted, error.refused.len(), error.uncertain, buffers.len()), (posted, refused, 0, left));
        // The provider refuses the first 32 requests together. If there are more items, the next one comes back in
        // `error.result`, and the others stay in the vector.
        let stopped = matches!(error.result, Err(PostError::Refused { .. }));
        assert_eq!((stopped, link.left.sends_in_flight()), (count > 32, 0));
        assert_eq!(link.left.post_all(&mut buffers, |from| WorkRequest::write(from, &region.remote())).unwrap(), left);
    }
}

#[test]
fn a_batch_of_which_nothing_is_known_says_so() {
    let (fabric, domain) = own_device!(Fabric::new());
    let mut link = Link::new(domain, 8);
    let region = link.domain.register::<RemoteWrite, _>(vec![0_u64; 4]).unwrap();
    fabric.inject(Fault::SendKept { errno: libc::EINVAL });
    let buffers = link.domain.buffers(5, 8).unwrap();
    let error = link
        .left
        .batch(|batch| {
            for buffer in buffers {
                batch.post(WorkRequest::write(buffer, &region.remote())).unwrap();
            }
        })
        .unwrap_err();
    assert_eq!((error.posted, error.refused.len(), error.uncertain), (0, 0, 5));
    assert!(error.to_string().contains("perhaps 5 more"), "{error}");
    let next = link.left.post_write(link.domain.buffer(8).unwrap(), &region.remote()).unwrap_err();
    assert!(matches!(next, PostError::Broken { .. }), "{next:?}");
}

/// A fault may be injected with a number that is not an `errno`. Even then a failed poll gives no completions.
#[test]
fn a_fault_without_an_errno_never_makes_completions() {
    for errno in [0, -1, -16, i32::MIN] {
        let (fabric, domain) = own_device!(Fabric::manual());
        let mut link = Link::new(domain, 4);
        // The id of this first request is 0. A completion entry that the device never wrote has the id 0 too. The
        // failed poll must not take such an entry for the completion of the request.
        link.left.post_send(link.domain.buffer(8).unwrap()).unwrap();
        fabric.inject(Fault::VerbFails { verb: Verb::PollCq, after: 0, count: 1, errno });
        assert!(link.poller.poll().is_err());
        assert_eq!(link.left.sends_in_flight(), 1);
    }
}

#[test]
fn a_clock_at_its_end_lets_no_run_go_on_for_ever() {
    let (fabric, domain) = own_device!(Fabric::manual());
    let mut link = Link::new(domain, 2);
    // There is no receive, so the device sends the message again each time its timer expires.
    link.left.post_send(link.domain.buffer(8).unwrap()).unwrap();
    fabric.run();
    fabric.advance(Duration::MAX);
    for _ in 0..3 {
        assert!(fabric.run() < 100);
    }
    link.right.post_receive(link.domain.buffer(8).unwrap()).unwrap();
    while fabric.step() {}
    link.poller.poll().unwrap().unwrap().check().unwrap();
}

/// A registered buffer may be registered again, and the new region then owns the buffer. The length of such a chain is
/// limited: otherwise the drop of a long chain would overflow the stack.
#[test]
fn a_buffer_is_not_registered_without_end() {
    interlock::domain! { struct Test; }
    let domain = Context::open("soft0").unwrap().named_domain(Test).unwrap();
    let mut buffer = domain.buffer(64).unwrap();
    buffer.fill(7);
    let mut registrations = 0;
    let error = loop {
        match domain.register::<LocalWrite, _>(buffer) {
            Ok(region) => buffer = region.split().1,
            Err(error) => break error,
        }
        registrations += 1;
        assert!(registrations < 100);
    };
    assert!(matches!(error.source, interlock::error::RegisterFailure::TooDeep { .. }), "{}", error.source);
    assert_eq!(error.memory[..], [7; 64], "it comes back");
    drop(error);
    // The drop of the error has ended all registrations, and the domain still works.
    domain.buffer(64).unwrap();
}

/// If the provider may have a receive, that receive stays uncertain until a reset, whatever happens to the sends.
#[test]
fn poison_of_a_receive_outlives_the_resume_of_the_sends() {
    interlock::domain! { struct Test; }
    let fabric = Fabric::new();
    let domain = Context::open_on(&fabric, "dev0").unwrap().named_domain(Test).unwrap();
    let limits = Limits { inline_bytes: 32, ..Limits::default() };
    let port = domain.context().active_port().unwrap();
    let (queue, mut poller) = domain.queue(2 * limits.completions()).unwrap();
    let [left, right] = [(); 2].map(|()| domain.unreliable(&queue, &limits).unwrap().into_init(&port).unwrap());
    let (to_left, to_right) = (left.endpoint(), right.endpoint());
    let (mut left, _right) = (left.connect(&to_right).unwrap(), right.connect(&to_left).unwrap());

    fabric.inject(Fault::RequestsFail { count: 1 });
    left.post_send(interlock::Inline(b"fails")).unwrap();
    drop(poller.wait(support::PATIENCE).unwrap().check().unwrap_err());
    fabric.inject(Fault::ReceiveKept { errno: libc::EIO });
    let error = left.post_receive(domain.buffer(8).unwrap()).unwrap_err();
    assert!(matches!(error, PostError::Uncertain { .. }), "{error}");
    let error = left.into_sqe().unwrap().resume().unwrap_err();
    assert!(matches!(error.source, interlock::error::TransitionFailure::Uncertain), "{error}");
    assert!(error.queue_pair.is_broken());
    // A reset ends the uncertainty.
    let left = error.queue_pair.into_reset().unwrap();
    assert_eq!(poller.wait(support::PATIENCE).unwrap().check().unwrap_err().status, Status::Destroyed);
    assert!(poller.poll().unwrap().is_none());
    let mut left = left.into_init(&port).unwrap();
    left.post_receive(domain.buffer(8).unwrap()).unwrap();
}

/// The library resets a pair twice, because soft-RoCE keeps requests after one reset.
#[test]
fn a_device_that_is_reset_may_refuse_to_be_reset_again() {
    let (fabric, domain) = own_device!(Fabric::new());
    let mut link = Link::new(domain, 2);
    link.right.post_receive(link.domain.buffer(8).unwrap()).unwrap();
    fabric.inject(Fault::VerbFails { verb: Verb::ModifyQp, after: 1, count: 1, errno: libc::EINVAL });
    let right = link.right.into_reset().unwrap();
    assert_eq!(link.poller.wait(SHORT).unwrap().check().unwrap_err().status, Status::Destroyed);
    assert!(link.poller.poll().unwrap().is_none());
    drop(right.into_init(&link.port).unwrap());
    // `into_reset` moves the pair to Reset twice. If the first move fails, so does `into_reset`.
    fabric.inject(fails(Verb::ModifyQp, libc::EINVAL));
    let error = link.left.into_reset().unwrap_err();
    assert_eq!(error.queue_pair.query_state().unwrap(), interlock::state::DeviceState::ReadyToSend);
}

/// The packet sequence numbers of the next connection must lie ahead of those that the device has used. A pair whose
/// numbers are unknown could take packets of its last connection for new ones.
#[test]
fn a_pair_is_not_reset_without_its_sequence_number() {
    let (fabric, domain) = own_device!(Fabric::new());
    let link = Link::new(domain, 2);
    fabric.inject(fails(Verb::QueryQp, libc::EINTR));
    let error = link.left.into_reset().unwrap_err();
    assert_eq!(error.queue_pair.query_state().unwrap(), interlock::state::DeviceState::ReadyToSend);
    drop(error.queue_pair.into_reset().unwrap());
}

/// If soft-RoCE refuses the second reset, the type of the pair keeps its state, but the device has the pair in Reset.
#[test]
fn a_reset_that_came_half_way_is_asked_for_again() {
    let (fabric, domain) = own_device!(Fabric::with_profile(Profile::Rxe));
    let mut link = Link::new(domain, 2);
    link.left.post_receive(link.domain.buffer(8).unwrap()).unwrap();
    fabric.inject(Fault::VerbFails { verb: Verb::ModifyQp, after: 1, count: 1, errno: libc::ENOMEM });
    let left = link.left.into_reset().unwrap_err().queue_pair;
    fabric.heal();
    assert_eq!(left.query_state().unwrap(), interlock::state::DeviceState::Reset);
    assert!(link.poller.poll().unwrap().is_none(), "nothing comes back before the device is done with all");
    // The device moves no pair from Reset to Error.
    let left = left.into_error().unwrap_err().queue_pair;
    let left = left.into_reset().unwrap();
    assert_eq!(link.poller.wait(SHORT).unwrap().check().unwrap_err().status, Status::Destroyed);
    assert!(link.poller.poll().unwrap().is_none());
    drop(left.into_init(&link.port).unwrap());
}

/// A drain posts a marker request. The marker's completion must not count as the success of an earlier send that the
/// device may not have.
#[test]
fn a_drain_makes_no_success_of_an_uncertain_send() {
    interlock::domain! { struct Test; }
    let fabric = Fabric::new();
    let domain = Context::open_on(&fabric, "dev0").unwrap().named_domain(Test).unwrap();
    let mut link = Link::new(domain, 4);
    fabric.inject(Fault::SendKept { errno: libc::EIO });
    let error = link.left.post_send(link.domain.buffer(8).unwrap()).unwrap_err();
    assert!(matches!(error, PostError::Uncertain { .. }), "{error}");
    let mut left = link.left.into_error().unwrap();
    let mut statuses = Vec::new();
    let _ = left.drain(&mut link.poller, Duration::from_millis(200), |completion| {
        statuses.push(completion.check().map(drop).map_err(|failure| failure.status));
    });
    assert!(!statuses.contains(&Ok(())), "{statuses:?}");
}

/// The marker of a drain that timed out stays with the poller, and no buffer comes back through it.
#[test]
fn a_drain_that_timed_out_leaves_each_buffer_with_one_owner() {
    let (fabric, domain) = own_device!(Fabric::manual());
    let mut link = Link::new(domain, 4);
    let buffer = link.domain.buffer(8).unwrap();
    let address = buffer.as_ptr().addr();
    link.left.post(WorkRequest::send(buffer).unsignalled()).unwrap();
    let mut left = link.left.into_error().unwrap();
    // The fabric is not stepped: the flush does not come, and the marker of the drain stays in flight.
    let undrained = left.drain(&mut link.poller, Duration::from_millis(150), |_| panic!("nothing")).unwrap_err();
    assert!(undrained.sends >= 1);
    std::mem::forget(left.into_reset().unwrap());
    while fabric.step() {}
    let mut owners = 0;
    while let Some(completion) = link.poller.poll().unwrap() {
        let failure = completion.check().unwrap_err();
        assert_eq!(failure.status, Status::Destroyed);
        owners += usize::from(failure.into_buffer().is_some_and(|buffer| buffer.as_ptr().addr() == address));
    }
    assert_eq!((owners, link.poller.unknown_completions()), (1, 0));
}

support::also_extended![
    a_failed_destroy_gives_the_pair_back_and_its_buffers_stay_away,
    a_drop_that_cannot_destroy_leaks_the_pair_with_all_that_it_needs,
    a_region_that_cannot_be_deregistered_comes_back_and_a_dropped_one_leaks,
    a_domain_that_cannot_be_freed_keeps_its_name,
    a_name_is_free_when_its_domain_could_not_be_made,
    a_half_built_object_is_taken_down_again,
    a_refused_post_that_names_itself_gives_its_buffer_back,
    a_refused_post_that_may_be_queued_keeps_its_buffer_until_it_completes,
    a_refused_receive_that_may_be_queued_keeps_its_buffer,
    a_partly_refused_batch_says_what_was_posted_and_gives_back_the_rest,
    a_batch_whose_closure_panics_posts_nothing_of_what_it_staged,
    a_withheld_flush_comes_with_the_next_kick_of_the_drain,
    a_drain_that_does_not_end_says_what_is_left_and_reset_brings_it_back,
    a_failed_poll_is_neither_empty_nor_a_completion,
    a_poller_that_failed_does_not_keep_a_channel_from_the_others,
    in_flight_memory_is_freed_neither_by_drops_nor_by_forgetting,
    a_destroyed_pair_is_out_of_the_devices_reach,
    a_removed_device_ends_in_errors_and_not_in_panics,
    a_device_that_does_not_open_says_why,
    a_device_that_cannot_be_queried_is_not_opened,
    a_refused_batch_gives_back_what_its_closure_returned_too,
    what_is_refused_of_all_items_comes_back,
    a_batch_of_which_nothing_is_known_says_so,
    a_fault_without_an_errno_never_makes_completions,
    a_clock_at_its_end_lets_no_run_go_on_for_ever,
    a_buffer_is_not_registered_without_end,
    poison_of_a_receive_outlives_the_resume_of_the_sends,
    a_device_that_is_reset_may_refuse_to_be_reset_again,
    a_pair_is_not_reset_without_its_sequence_number,
    a_reset_that_came_half_way_is_asked_for_again,
    a_drain_makes_no_success_of_an_uncertain_send,
    a_drain_that_timed_out_leaves_each_buffer_with_one_owner,
];
