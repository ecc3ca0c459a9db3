//! Tests what only extended completion queues do. The other programs test what both kinds do: they run each test that
//! `also_extended!` names once for each kind.

use interlock::attributes::ConnectAttributes;
use interlock::completion::{CompletionQueueOptions, Polling};
use interlock::error::{CompletionQueueError, PollError};
use interlock::number::Qkey;
use interlock::queue::Posting;
use interlock::soft::{Fabric, Fault, Profile, Verb};
use interlock::{Completion, Context, Limits, RemoteWrite, Status, Work, WorkRequest};
use support::{Link, Need, PATIENCE, POLLING, Promise, Queues, context, extended, lacks, lacks_need, ways};

/// More completions than one call of the poller takes out.
const MANY: u32 = 40;

/// The shared code of the test programs makes the kind of completion queue that `INTERLOCK_POLLING` names.
#[test]
fn a_test_gets_the_kind_of_queue_that_the_environment_names() {
    let is_extended = std::env::var_os("INTERLOCK_POLLING").is_some();
    let fabric = Fabric::manual();
    interlock::domain! { struct Test; }
    let domain = Context::open_on(&fabric, "one").unwrap().named_domain(Test).unwrap();
    fabric.inject(Fault::VerbFails { verb: Verb::CreateCq, after: 0, count: 2, errno: libc::ENOMEM });
    let verb = if is_extended { "ibv_create_cq_ex" } else { "ibv_create_cq" };
    assert_eq!(domain.queue(8).unwrap_err().verb(), verb);
    POLLING.set(Polling::Extended);
    assert_eq!(domain.queue(8).unwrap_err().verb(), "ibv_create_cq_ex");
}

support::also_extended![a_test_gets_the_kind_of_queue_that_the_environment_names];

#[test]
fn a_device_without_them_says_what_to_do() {
    interlock::domain! { struct Test; }
    for errno in [libc::EOPNOTSUPP, libc::ENOSYS] {
        let fabric = Fabric::new();
        let domain = Context::open_on(&fabric, "one").unwrap().named_domain(Test).unwrap();
        let channel = domain.completion_channel().unwrap();
        fabric.inject(Fault::VerbFails { verb: Verb::CreateCq, after: 0, count: 2, errno });
        for error in [
            domain.completion_queue_with(8, &extended()).unwrap_err(),
            channel.completion_queue_with(8, &extended()).unwrap_err(),
        ] {
            assert!(matches!(error, CompletionQueueError::NotExtended(source) if source.errno() == errno), "{error:?}");
            assert!(error.to_string().contains("with `Polling::Array`"), "{error}");
        }
        domain.completion_queue_with(8, &CompletionQueueOptions::default()).unwrap();
        domain.completion_queue_with(8, &extended()).unwrap();
    }
}

#[test]
fn a_provider_that_was_not_reviewed_for_them_is_not_asked() {
    interlock::domain! { struct Test; }
    for profile in [Profile::Siw, Profile::Hns, Profile::Efa, Profile::Adversary(0)] {
        let fabric = Fabric::with_profile(profile);
        let domain = Context::open_on(&fabric, "one").unwrap().named_domain(Test).unwrap();
        let error = domain.completion_queue_with(8, &extended()).unwrap_err();
        assert!(matches!(error, CompletionQueueError::NotExtended(_)), "{profile:?}: {error:?}");
        domain.completion_queue_with(8, &CompletionQueueOptions::default()).unwrap();
    }
}

#[test]
fn an_empty_queue_says_so_before_and_after() {
    if lacks_need(Need::ExtendedQueues) {
        return;
    }
    interlock::domain! { struct Test; }
    POLLING.set(Polling::Extended);
    let mut link = Link::new(context().named_domain(Test).unwrap(), 4);
    let is_empty = |link: &mut Link<Test>| (0..3).all(|_| link.poller.poll().unwrap().is_none());
    assert!(is_empty(&mut link));
    link.right.post_receive(link.domain.buffer(8).unwrap()).unwrap();
    link.left.post_send(link.domain.buffer(8).unwrap()).unwrap();
    for _ in 0..2 {
        link.poller.wait(PATIENCE).unwrap().check().unwrap();
    }
    assert!(is_empty(&mut link));
}

#[test]
fn more_than_one_look_takes_comes_whole_and_in_order() {
    if lacks_need(Need::ExtendedQueues) {
        return;
    }
    interlock::domain! { struct Test; }
    POLLING.set(Polling::Extended);
    let mut link = Link::new(context().named_domain(Test).unwrap(), MANY);
    // Each way takes Miri ten seconds, so Miri runs only the first.
    for posting in ways().into_iter().take(if cfg!(miri) { 1 } else { usize::MAX }) {
        let limits = Limits { sends: MANY, receives: MANY, posting, ..Limits::default() };
        if posting != Posting::List {
            drop((link.left, link.right));
            link = Link::limited(link.domain, &limits, &ConnectAttributes::default());
        }
        let receives = (0..MANY).map(|_| link.right.post_receive(link.domain.buffer(8).unwrap()).unwrap());
        let receives: Vec<_> = receives.collect();
        for at in 0..MANY {
            let mut message = link.domain.buffer(8).unwrap();
            message.copy_from_slice(&u64::from(at).to_le_bytes());
            // Every fourth message is signalled, and every second one has an immediate.
            let request = WorkRequest::send(message);
            let request = if at % 4 == 3 { request } else { request.unsignalled() };
            if at % 2 == 0 {
                link.left.post(request.with_immediate(at)).unwrap();
            } else {
                link.left.post(request).unwrap();
            }
        }
        let (mut sent, mut received) = (0, 0);
        while sent + received < 2 * MANY {
            let success = link.poller.wait(PATIENCE).unwrap().check().unwrap();
            let id = success.id();
            match success.into_work() {
                Work::Received(message) => {
                    let at = u64::from_le_bytes(message.buffer[..].try_into().unwrap()) as u32;
                    assert!(at == received || lacks(Promise::Order), "in order");
                    assert_eq!(id, receives[at as usize]);
                    assert_eq!(message.immediate, at.is_multiple_of(2).then_some(at));
                    received += 1;
                }
                Work::Sent(_) => sent += 1,
                other => panic!("{other:?}"),
            }
        }
        assert_eq!((sent, received, link.poller.unknown_completions()), (MANY, MANY, 0));
    }
}

#[test]
fn a_pair_may_complete_on_one_of_each_kind() {
    if lacks_need(Need::ExtendedQueues) || lacks_need(Need::TwoQueues) {
        return;
    }
    interlock::domain! { struct Test; }
    let domain = context().named_domain(Test).unwrap();
    let port = domain.context().active_port().unwrap();
    let plain = || domain.completion_queue_with(16, &CompletionQueueOptions::default()).unwrap();
    let other = || domain.completion_queue_with(16, &extended()).unwrap();
    for ((sends, mut sent), (receives, mut received)) in [(plain(), other()), (other(), plain())] {
        let pair = domain.reliable_on(&sends, &receives, &Limits::default()).unwrap().into_init(&port).unwrap();
        let myself = pair.endpoint();
        let mut pair = pair.connect(&myself).unwrap();
        let region = domain.register::<RemoteWrite, _>(vec![0_u64; 4]).unwrap();
        for _ in 0..2 {
            pair.post_receive(domain.buffer(8).unwrap()).unwrap();
        }
        pair.post_send_with_immediate(domain.buffer(8).unwrap(), 5).unwrap();
        pair.post_write_with_immediate(domain.buffer(8).unwrap(), &region.remote(), 6).unwrap();
        for _ in 0..2 {
            sent.wait(PATIENCE).unwrap().check().unwrap();
        }
        for at in 0..2 {
            let was_second = match received.wait(PATIENCE).unwrap().check().unwrap().into_work() {
                Work::Received(message) => {
                    assert_eq!((message.buffer.len(), message.immediate), (8, Some(5)));
                    false
                }
                Work::WrittenWithImmediate(written) => {
                    assert_eq!((written.written_bytes, written.immediate), (8, 6));
                    true
                }
                other => panic!("{other:?}"),
            };
            assert!(was_second == (at == 1) || lacks(Promise::Order), "in order");
        }
        pair.post_receive(domain.buffer(8).unwrap()).unwrap();
        let mut pair = pair.into_error().unwrap();
        let mut flushed = 0;
        let mut take =
            |completion: Completion<_>| flushed += u32::from(completion.check().unwrap_err().status == Status::Flushed);
        pair.drain_on(&mut sent, &mut received, PATIENCE, &mut take).unwrap();
        assert_eq!(flushed, 1);
    }
}

/// A queue is told that it serves datagrams when the first datagram pair is attached.
#[test]
fn the_sender_of_a_datagram_is_known_beside_connections_that_were_there_first() {
    if lacks_need(Need::ExtendedQueues) || lacks_need(Need::Resize) {
        return;
    }
    interlock::domain! { struct Test; }
    POLLING.set(Polling::Extended);
    let mut link = Link::new(context().named_domain(Test).unwrap(), 8);
    let exchange = |link: &mut Link<Test>| {
        link.right.post_receive(link.domain.buffer(8).unwrap()).unwrap();
        link.left.post_send(link.domain.buffer(8).unwrap()).unwrap();
        for _ in 0..2 {
            link.poller.wait(PATIENCE).unwrap().check().unwrap();
        }
    };
    exchange(&mut link);
    link.poller.resize(2 * 16 + 2 * 8).unwrap();
    let mut ends = [(); 2].map(|()| {
        let pair = link.domain.datagram(&link.queue, &Limits::default()).unwrap();
        pair.into_init(&link.port).unwrap().open().unwrap()
    });
    for _ in 0..2 {
        exchange(&mut link);
        let to = link.domain.recipient(&link.port, &ends[1].endpoint(), Qkey::USUAL).unwrap();
        let [from, at] = &mut ends;
        at.post_receive(link.domain.buffer(64).unwrap()).unwrap();
        from.post_send_to(link.domain.buffer(8).unwrap(), &to).unwrap();
        let mut found = None;
        for _ in 0..2 {
            if let Work::Datagram(datagram) = link.poller.wait(PATIENCE).unwrap().check().unwrap().into_work() {
                found = Some((datagram.sender, datagram.message().len()));
            }
        }
        assert_eq!(found, Some((from.number(), 8)));
    }
}

/// Completions from before the failure still come out, as from other queues.
#[test]
fn a_queue_that_fails_in_the_middle_gives_out_what_came_before() {
    interlock::domain! { struct Test; }
    for options in [extended(), CompletionQueueOptions { polling: Polling::Array, ..extended() }] {
        let fabric = Fabric::new();
        let domain = Context::open_on(&fabric, "one").unwrap().named_domain(Test).unwrap();
        let port = domain.context().active_port().unwrap();
        let (queue, mut poller) = domain.completion_queue_with(8, &options).unwrap();
        let pair = domain.reliable(&queue, &Limits::default()).unwrap().into_init(&port).unwrap();
        let myself = pair.endpoint();
        let mut pair = pair.connect(&myself).unwrap();
        pair.post_receive(domain.buffer(8).unwrap()).unwrap();
        pair.post_send(domain.buffer(8).unwrap()).unwrap();
        fabric.inject(Fault::Overrun { device: "one".to_owned() });
        for _ in 0..2 {
            poller.poll().unwrap().unwrap().check().unwrap();
        }
        assert!(matches!(poller.poll(), Err(PollError::Failed)));
    }
}
