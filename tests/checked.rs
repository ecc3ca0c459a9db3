//! The run-time brand. It refuses at run time what other brands refuse at compile time: before anything happens, and
//! with every object given back. Each rule has the name of its case in `ui-tests`, if there is a case.

use interlock::access::Windowed;
use interlock::attributes::ConnectAttributes;
use interlock::error::{AddressError, CreateError, DrainFailure, PostAllError, RequestFlaw, WaitError};
use interlock::memory::{BufferList, Pages};
use interlock::number::Qkey;
use interlock::queue::Posting;
use interlock::request::Operation;
use interlock::scope::{Exclusive, InScopeError, SharedQueue};
use interlock::shared::SharedLimits;
use interlock::soft::{Fabric, Fault, Verb};
use interlock::window::{Type1, Type2};
use interlock::{
    Buffer, Checked, Context, Inline, Limits, LocalWrite, PostError, ProtectionDomain, RemoteAll, RemoteReadWrite,
    Status, Work, WorkRequest,
};
use std::time::Duration;
use std::{fmt, mem};
use support::{Link, Need, PATIENCE, context, is_of_a_destroyed_pair, lacks_need, next, ways};

type Domain = ProtectionDomain<Checked>;

const LIMITS: Limits = Limits { sends: 8, receives: 8, inline_bytes: 32, elements: 2, posting: Posting::List };

/// Runs `test` twice, with a domain and another one: first another domain of the same open device, then a domain of
/// another device.
fn with_others(test: impl Fn(&Domain, &Domain)) {
    let (one, other) = (context(), context());
    let here = one.checked_domain().unwrap();
    for context in [&one, &other] {
        test(&here, &context.checked_domain().unwrap());
    }
}

fn link(domain: &Domain, posting: Posting) -> Link<Checked> {
    // On rxe, `ibv_wr_*` (`Posting::WorkRequestApi`) takes only one element per request.
    let elements = if posting == Posting::List { 2 } else { 1 };
    Link::limited(domain.clone(), &Limits { posting, elements, ..LIMITS }, &ConnectAttributes::default())
}

fn filled(domain: &Domain, text: &[u8]) -> Buffer<Checked> {
    let mut buffer = domain.buffer(64).unwrap();
    buffer.write(text).unwrap();
    buffer
}

/// Returns the request of a post that was refused because its memory is of another domain.
fn refused<T: fmt::Debug, R>(posted: Result<T, PostError<R>>) -> R {
    match posted {
        Err(PostError::Flawed { request, flaw: RequestFlaw::OtherDomain }) => request,
        other => panic!("{:?}", other.map_err(|error| error.map(drop))),
    }
}

/// Sends `text` from left to right; returns the buffer that received it.
fn exchange(link: &mut Link<Checked>, text: &[u8]) -> Buffer<Checked> {
    link.right.post_receive(link.domain.buffer(64).unwrap()).unwrap();
    link.left.post_send(filled(&link.domain, text)).unwrap();
    let received: Vec<_> = (0..2).filter_map(|_| next(&mut link.poller).into_received().ok()).collect();
    let [buffer] = received.try_into().unwrap();
    assert_eq!(&buffer[..], text);
    buffer
}

#[test]
fn a_send_takes_memory_of_its_own_domain() {
    with_others(|here, other| {
        let (mut link, mut their) = (link(here, Posting::List), link(other, Posting::List));
        let region = here.register::<RemoteReadWrite, _>(vec![0_u64; 8]).unwrap();
        let target = region.remote();
        let mut buffer = filled(other, b"elsewhere");
        buffer = refused(link.left.post_send(buffer));
        buffer = refused(link.left.post_send_with_immediate(buffer, 7));
        buffer = refused(link.left.post_write(buffer, &target));
        buffer = refused(link.left.post_write_with_immediate(buffer, &target, 7));
        buffer = refused(link.left.post(WorkRequest::send(buffer).unsignalled().fenced())).into_memory();
        assert_eq!(&buffer[..], b"elsewhere", "what is filled is as it was");
        buffer = refused(link.left.post_read(buffer, &target.slice(0..16).unwrap()));
        assert_eq!(&buffer[..], b"elsewhere", "also after what would have filled it");
        assert_eq!((link.left.sends_in_flight(), link.left.first_failure()), (0, None));
        // Both links still work, and the buffer is accepted in its own domain.
        drop(exchange(&mut link, b"here"));
        their.right.post_receive(other.buffer(64).unwrap()).unwrap();
        their.left.post_send(buffer).unwrap();
        assert!(
            (0..2).any(|_| next(&mut their.poller).into_received().is_ok_and(|buffer| &buffer[..] == b"elsewhere"))
        );
        assert!((0..8).all(|word| region.load(8 * word).unwrap() == 0), "nothing was written");
    });
}

#[test]
fn an_atomic_takes_memory_of_its_own_domain() {
    if lacks_need(Need::Atomics) {
        return;
    }
    with_others(|here, other| {
        let mut link = link(here, Posting::List);
        let region = here.register::<RemoteAll, _>(vec![0_u64; 8]).unwrap();
        let target = region.remote();
        let buffer = refused(link.left.post_compare_and_swap(filled(other, b"elsewhere"), &target, 0, 1));
        let buffer = refused(link.left.post_fetch_and_add(buffer, &target, 1));
        assert_eq!((&buffer[..], link.left.sends_in_flight()), (&b"elsewhere"[..], 0));
        drop(exchange(&mut link, b"here"));
        assert_eq!(region.deregister().unwrap(), [0; 8], "nothing was changed");
    });
}

#[test]
fn a_receive_takes_memory_of_its_own_domain() {
    with_others(|here, other| {
        let mut link = link(here, Posting::List);
        let buffer = refused(link.right.post_receive(filled(other, b"as it was")));
        assert_eq!((&buffer[..], link.right.receives_in_flight()), (&b"as it was"[..], 0));
        let list = BufferList::new(vec![here.buffer(8).unwrap(), buffer]);
        let list = refused(link.right.post_receive(list));
        assert_eq!((list.len(), &list[1][..], link.right.receives_in_flight()), (2, &b"as it was"[..], 0));
        drop(exchange(&mut link, b"here"));
        assert_eq!(&list[1][..], b"as it was", "the message went to the other receive");
    });
}

#[test]
fn a_shared_buffer_is_sent_in_its_own_domain() {
    with_others(|here, other| {
        let mut link = link(here, Posting::List);
        let share = filled(other, b"shared").share();
        let back = refused(link.left.post_send(share.clone()));
        let fixed = refused(link.left.post_send(other.register_static(b"static").unwrap()));
        assert_eq!((&back[..], &fixed[..], link.left.sends_in_flight()), (&b"shared"[..], &b"static"[..], 0));
        drop(back);
        assert_eq!(&share.into_unique().unwrap()[..], b"shared", "no clone is in flight");
    });
}

#[test]
fn inline_bytes_are_of_every_domain() {
    let domain = context().checked_domain().unwrap();
    let mut link = link(&domain, Posting::List);
    link.right.post_receive(domain.buffer(64).unwrap()).unwrap();
    link.left.post_send(Inline(b"copied")).unwrap();
    assert!((0..2).any(|_| next(&mut link.poller).into_received().is_ok_and(|buffer| &buffer[..] == b"copied")));
}

/// A list can be built from any buffers and changed in place. Each post checks all its buffers.
#[test]
fn a_list_is_of_one_domain_whenever_it_is_posted() {
    with_others(|here, other| {
        let mut link = link(here, Posting::List);
        for foreign in 0..2 {
            let mut list = BufferList::new(here.buffers(2, 16).unwrap());
            let mut buffer = other.buffer(16).unwrap();
            buffer.fill(7);
            mem::swap(&mut list[foreign], &mut buffer);
            let mut list = refused(link.left.post_send(list));
            assert_eq!((&list[foreign][..], link.left.sends_in_flight()), (&[7; 16][..], 0));
            let region = here.register::<RemoteReadWrite, _>(vec![9_u64; 4]).unwrap();
            list = refused(link.left.post(WorkRequest::read_scattered(list, &region.remote()))).into_memory();
            assert_eq!(&list[foreign][..], [7; 16]);
            // After this swap, all buffers of the list are of one domain, so the list is posted.
            mem::swap(&mut list[foreign], &mut buffer);
            link.right.post_receive(here.buffer(64).unwrap()).unwrap();
            link.left.post_send(list).unwrap();
            for _ in 0..2 {
                next(&mut link.poller);
            }
            assert_eq!(&buffer[..], [7; 16]);
        }
    });
}

#[test]
fn a_batch_takes_memory_of_its_own_domain() {
    for posting in ways() {
        with_others(|here, other| {
            let mut link = link(here, posting);
            let mut buffer = refused(link.left.post_send(filled(other, b"elsewhere")));
            for _ in 0..4 {
                link.right.post_receive(here.buffer(64).unwrap()).unwrap();
            }
            // `post` and `post_each` of a batch refuse a request with a foreign buffer, and post the others.
            let mut rest =
                [filled(here, b"2"), filled(other, b"3"), filled(here, b"4")].into_iter().map(WorkRequest::send);
            let third = link
                .left
                .batch(|batch| {
                    batch.post(WorkRequest::send(filled(here, b"1"))).unwrap();
                    buffer = refused(batch.post(WorkRequest::send(mem::replace(&mut buffer, filled(here, b"")))))
                        .into_memory();
                    let third = refused(batch.post_each(&mut rest)).into_memory();
                    assert_eq!(batch.post_each(&mut rest).unwrap(), 1);
                    third
                })
                .unwrap();
            assert_eq!((&buffer[..], &third[..]), (&b"elsewhere"[..], &b"3"[..]));
            let mut texts = Vec::new();
            for _ in 0..6 {
                texts.extend(next(&mut link.poller).into_received().ok().map(|buffer| buffer.to_vec()));
            }
            assert_eq!(texts, [b"1", b"2", b"4"]);
        });
    }
}

#[test]
fn a_batch_of_all_items_takes_memory_of_its_own_domain() {
    for posting in ways() {
        with_others(|here, other| {
            let mut link = link(here, posting);
            let region = here.register::<RemoteReadWrite, _>(vec![0_u64; 4]).unwrap();
            let write = |buffer| WorkRequest::write(buffer, &region.remote());
            // The foreign buffer is the first, the second, or the third and last.
            for foreign in 0..3 {
                let of = |at| if at == foreign { other } else { here };
                let mut buffers: Vec<_> = (0..3).map(|at| filled(of(at), &[at as u8 + 1; 8])).collect();
                let posted = match link.left.post_all(&mut buffers, write) {
                    Err(PostAllError::Stopped(error)) => Err(*error),
                    posted => Ok(posted.unwrap()),
                };
                let back = refused(posted).into_memory();
                assert_eq!((back[0] as usize, buffers.len()), (foreign + 1, 2 - foreign));
                link.left.post_write(filled(here, b"end"), &region.remote()).unwrap();
                for _ in 0..=foreign {
                    assert_eq!(next(&mut link.poller).operation(), Operation::Write);
                }
                assert_eq!(link.left.sends_in_flight(), 0);
            }
        });
    }
}

#[test]
fn halves_take_memory_of_their_own_domain() {
    with_others(|here, other| {
        let link = link(here, Posting::List);
        let (mut sends, mut receives) = link.left.split();
        let buffer = refused(sends.post_send(filled(other, b"as it was")));
        let buffer = refused(sends.post(WorkRequest::send(buffer))).into_memory();
        let buffer = refused(receives.post_receive(buffer));
        assert_eq!(&buffer[..], b"as it was");
        assert_eq!(sends.join(receives).unwrap().sends_in_flight(), 0);
    });
}

#[test]
fn halves_of_different_domains_do_not_join() {
    with_others(|here, other| {
        let (link, their) = (link(here, Posting::List), link(other, Posting::List));
        let ((sends, receives), (their_sends, their_receives)) = (link.left.split(), their.left.split());
        let error = sends.join(their_receives).unwrap_err();
        drop(error.send.join(receives).unwrap());
        drop(their_sends.join(error.receive).unwrap());
    });
}

#[test]
fn a_queue_pair_completes_on_a_queue_of_its_own_domain() {
    with_others(|here, other| {
        let (ours, _poller) = here.completion_queue(16).unwrap();
        let (theirs, _poller) = other.completion_queue(16).unwrap();
        let (channel, limits) = (other.completion_channel().unwrap(), Limits::default());
        let (of_channel, _poller) = channel.completion_queue(16).unwrap();
        for queue in [&theirs, &of_channel] {
            let errors = [
                here.reliable(queue, &limits).map(drop),
                here.unreliable(queue, &limits).map(drop),
                here.datagram(queue, &limits).map(drop),
                here.unreliable_on(&ours, queue, &limits).map(drop),
                here.datagram_on(queue, &ours, &limits).map(drop),
                here.reliable(queue, &Limits { posting: Posting::WorkRequestApi, ..limits }).map(drop),
            ];
            for error in errors.map(Result::unwrap_err) {
                assert!(matches!(error, CreateError::OtherDomain { queue: named } if named == queue.id()), "{error}");
            }
            assert_eq!((ours.room(), queue.room()), (16, 16), "nothing is leased");
            drop(other.reliable(queue, &limits).unwrap());
        }
    });
}

#[test]
fn receives_complete_on_a_queue_of_the_same_domain_as_sends() {
    with_others(|here, other| {
        let (ours, _poller) = here.completion_queue(16).unwrap();
        let (theirs, _poller) = other.completion_queue(16).unwrap();
        for (sends, receives) in [(&ours, &theirs), (&theirs, &ours), (&theirs, &theirs)] {
            let error = here.reliable_on(sends, receives, &Limits::default()).unwrap_err();
            assert!(matches!(error, CreateError::OtherDomain { queue } if queue == theirs.id()), "{error}");
            assert!(error.to_string().contains("another protection domain"), "{error}");
            assert_eq!((ours.room(), theirs.room()), (16, 16), "nothing is leased");
        }
        drop(here.reliable_on(&ours, &ours, &Limits::default()).unwrap());
    });
}

#[test]
fn a_pair_on_a_shared_queue_completes_in_its_own_domain() {
    if lacks_need(Need::SharedReceives) {
        return;
    }
    with_others(|here, other| {
        let shared = here.shared_receive_queue(&SharedLimits::default()).unwrap();
        let (ours, _poller) = here.completion_queue(32).unwrap();
        let (theirs, _poller) = other.completion_queue(32).unwrap();
        let datagrams = here.shared_datagram_queue(&SharedLimits::default()).unwrap();
        let limits = Limits::default();
        for (sends, receives) in [(&ours, &theirs), (&theirs, &ours), (&theirs, &theirs)] {
            let errors = [
                shared.reliable_on(sends, receives, &limits).map(drop),
                shared.unreliable_on(sends, receives, &limits).map(drop),
                datagrams.datagram_on(sends, receives, &limits).map(drop),
            ];
            for error in errors.map(Result::unwrap_err) {
                assert!(matches!(error, CreateError::OtherDomain { queue } if queue == theirs.id()), "{error}");
            }
            assert_eq!((ours.room(), theirs.room()), (32, 32), "nothing is leased");
        }
        drop(shared.reliable(&ours, &Limits::default()).unwrap());
    });
}

#[test]
fn a_shared_receive_takes_memory_of_its_own_domain() {
    if lacks_need(Need::SharedReceives) {
        return;
    }
    with_others(|here, other| {
        let mut shared = here.shared_receive_queue(&SharedLimits::default()).unwrap();
        let buffer = refused(shared.post_receive(filled(other, b"as it was")));
        assert_eq!((&buffer[..], shared.in_flight()), (&b"as it was"[..], 0));
        shared.post_receive(here.buffer(64).unwrap()).unwrap();
        assert_eq!(shared.destroy().unwrap().len(), 1);
    });
}

#[test]
fn an_address_handle_of_another_domain_is_no_way() {
    if lacks_need(Need::UnreliableTransports) {
        return;
    }
    with_others(|here, other| {
        let port = here.context().active_port().unwrap();
        let (queue, mut poller) = here.completion_queue(LIMITS.completions()).unwrap();
        let mut pair = here.datagram(&queue, &LIMITS).unwrap().into_init(&port).unwrap().open().unwrap();
        let myself = here.recipient(&port, &pair.endpoint(), Qkey::USUAL).unwrap();
        let theirs = other.recipient(&port, &pair.endpoint(), Qkey::USUAL).unwrap();
        let buffer = refused(pair.post_send_to(filled(here, b"datagram"), &theirs));
        refused(pair.post_send_to(filled(other, b"datagram"), &myself));
        refused(pair.post_send_to(Inline(b"datagram"), &theirs));
        refused(pair.post_send_to(BufferList::new(here.buffers(2, 8).unwrap()), &theirs));
        let buffer = pair
            .batch(|batch| {
                let request = refused(batch.post(WorkRequest::send_to(buffer, &theirs))).into_memory();
                let mut requests = [WorkRequest::send_to(request.memory, &theirs)].into_iter();
                refused(batch.post_each(&mut requests)).into_memory().memory
            })
            .unwrap();
        assert_eq!((pair.sends_in_flight(), poller.poll().unwrap().is_none()), (0, true));
        pair.post_receive(here.buffer(40 + 64).unwrap()).unwrap();
        pair.post_send_to(buffer, &myself).unwrap();
        let came: Vec<_> = (0..2).map(|_| next(&mut poller).into_work()).collect();
        assert!(came.iter().any(|work| matches!(work, Work::Datagram(it) if it.message() == b"datagram")), "{came:?}");
    });
}

#[test]
fn a_drain_polls_a_queue_of_its_own_domain() {
    with_others(|here, other| {
        let (mut link, mut their) = (link(here, Posting::List), link(other, Posting::List));
        link.left.post_receive(here.buffer(64).unwrap()).unwrap();
        their.right.post_receive(other.buffer(64).unwrap()).unwrap();
        their.left.post_send(filled(other, b"theirs")).unwrap();
        let mut pair = link.left.into_error().unwrap();
        let error = pair.drain(&mut their.poller, PATIENCE, |completion| panic!("{completion:?}")).unwrap_err();
        assert!(matches!(error.source, Some(DrainFailure::OtherDomain)), "{error}");
        assert_eq!((error.sends, error.receives), (0, 1));
        let (_queue, mut second) = here.completion_queue(16).unwrap();
        for theirs_first in [false, true] {
            let pollers =
                if theirs_first { (&mut their.poller, &mut second) } else { (&mut second, &mut their.poller) };
            let error =
                pair.drain_on(pollers.0, pollers.1, PATIENCE, |completion| panic!("{completion:?}")).unwrap_err();
            assert!(matches!(error.source, Some(DrainFailure::OtherDomain)), "{error}");
        }
        // The refused drains took no completion from `their.poller`. A drain with the right poller succeeds.
        assert_eq!((0..2).map(|_| next(&mut their.poller)).count(), 2);
        let mut flushed = Vec::new();
        pair.drain(&mut link.poller, PATIENCE, |completion| flushed.extend(completion.check().err())).unwrap();
        assert_eq!(flushed.iter().map(|failure| failure.status).collect::<Vec<_>>(), [Status::Flushed]);
    });
}

#[test]
fn a_channel_waits_for_pollers_of_its_own_domain() {
    with_others(|here, other| {
        let (mut ours, theirs) = (here.completion_channel().unwrap(), other.completion_channel().unwrap());
        let mut pollers = [ours.completion_queue(4).unwrap().1, theirs.completion_queue(4).unwrap().1];
        let error = ours.wait_any(&mut pollers, PATIENCE).unwrap_err();
        assert!(matches!(error, WaitError::OtherChannel { index: 1 }), "{error}");
        assert!(ours.wait_any(&mut pollers[..1], Duration::ZERO).unwrap().is_none());
    });
}

#[test]
fn a_region_is_rejoined_with_a_buffer_of_its_own_domain() {
    with_others(|here, other| {
        let (rest, buffer) = here.register::<LocalWrite, _>(vec![1_u8; 64]).unwrap().split();
        let (their_rest, their_buffer) = other.register::<LocalWrite, _>(vec![2_u8; 64]).unwrap().split();
        let error = rest.rejoin(their_buffer).unwrap_err();
        assert_eq!(error.region.rejoin(buffer).unwrap().deregister().unwrap(), [1; 64]);
        assert_eq!(their_rest.rejoin(error.buffer).unwrap().deregister().unwrap(), [2; 64]);
    });
}

/// The two buffers are neighbours in memory, but were registered apart.
#[test]
fn buffers_of_different_domains_do_not_join() {
    with_others(|here, other| {
        let (low, high) = Box::leak(vec![0_u8; 64].into_boxed_slice()).split_at_mut(32);
        let (rest, left) = here.register::<LocalWrite, _>(low).unwrap().split();
        let (their_rest, right) = other.register::<LocalWrite, _>(high).unwrap().split();
        let error = left.join(right).unwrap_err();
        assert_eq!(rest.rejoin(error.left).unwrap().deregister().unwrap().len(), 32);
        assert_eq!(their_rest.rejoin(error.right).unwrap().deregister().unwrap().len(), 32);
    });
}

#[test]
fn a_pair_and_a_poller_of_different_domains_are_not_exclusive() {
    if lacks_need(Need::SelfConnection) {
        return;
    }
    with_others(|here, other| {
        let port = here.context().active_port().unwrap();
        let (queue, poller) = here.completion_queue(LIMITS.completions()).unwrap();
        let pair = here.reliable(&queue, &LIMITS).unwrap().into_init(&port).unwrap();
        let myself = pair.endpoint();
        let pair = pair.connect(&myself).unwrap();
        drop(queue);
        let error = Exclusive::new(pair, other.completion_queue(16).unwrap().1).unwrap_err();
        assert_eq!(error.reason, SharedQueue::OtherQueue);
        let mut exclusive = Exclusive::new(error.queue_pair, poller).unwrap();
        let buffer = refused(exclusive.post_receive(filled(other, b"as it was")));
        let buffer = refused(exclusive.post(WorkRequest::send(buffer))).into_memory();
        assert_eq!(&buffer[..], b"as it was");
        // A scope registers memory in the domain of its pair.
        let mut answer = [0; 8];
        let scope = exclusive.scope(PATIENCE, |scope| {
            let receive = scope.post_receive(scope.lend_mut(&mut answer)?)?;
            let send = scope.post_send(scope.lend(b"borrowed")?)?;
            scope.wait(send)?;
            scope.wait(receive)?;
            Ok::<_, InScopeError>(())
        });
        scope.unwrap().unwrap();
        assert_eq!(&answer, b"borrowed");
    });
}

#[test]
fn a_completed_buffer_keeps_its_domain() {
    with_others(|here, other| {
        let (mut link, mut their) = (link(here, Posting::List), link(other, Posting::List));
        let buffer = refused(their.left.post_send(exchange(&mut link, b"received")));
        // A buffer that comes back from a destroyed pair also keeps its domain.
        link.right.post_receive(buffer).unwrap();
        link.right.destroy().unwrap();
        let failure = link.poller.wait(PATIENCE).unwrap().check().unwrap_err();
        assert!(is_of_a_destroyed_pair(failure.status), "{failure}");
        refused(their.right.post_receive(failure.into_buffer().unwrap()));
        drop(exchange(&mut their, b"theirs"));
    });
}

/// A buffer keeps its domain alive, so no later domain can be mistaken for it.
#[test]
fn a_buffer_is_not_of_a_domain_that_came_later() {
    let context = context();
    let buffer = context.checked_domain().unwrap().buffer(64).unwrap();
    let mut left_over = Some(buffer);
    for _ in 0..20 {
        let mut link = link(&context.checked_domain().unwrap(), Posting::List);
        left_over = left_over.map(|buffer| refused(link.left.post_send(buffer)));
    }
    assert!(left_over.is_some());
}

#[test]
fn a_datagram_is_answered_in_the_domain_to_which_it_came() {
    if lacks_need(Need::UnreliableTransports) {
        return;
    }
    with_others(|here, other| {
        let port = here.context().active_port().unwrap();
        let (queue, mut poller) = here.completion_queue(LIMITS.completions()).unwrap();
        let mut pair = here.datagram(&queue, &LIMITS).unwrap().into_init(&port).unwrap().open().unwrap();
        pair.post_receive(here.buffer(40 + 64).unwrap()).unwrap();
        let myself = here.recipient(&port, &pair.endpoint(), Qkey::USUAL).unwrap();
        pair.post_send_to(filled(here, b"datagram"), &myself).unwrap();
        let came: Vec<_> = (0..2).map(|_| next(&mut poller).into_work()).collect();
        let datagram =
            came.iter().find_map(|work| if let Work::Datagram(it) = work { Some(it) } else { None }).unwrap();
        let error = other.sender(&port, datagram, Qkey::USUAL).unwrap_err();
        assert!(matches!(error, AddressError::OtherDomain), "{error}");
        assert_eq!(here.sender(&port, datagram, Qkey::USUAL).unwrap().queue_pair(), pair.number());
    });
}

/// A library that opens every device of the machine has many domains.
#[test]
fn any_number_of_domains_work_side_by_side() {
    let contexts = [context(), context()];
    let open = |number: usize| link(&contexts[number % 2].checked_domain().unwrap(), Posting::List);
    let mut links: Vec<_> = (0..8).map(open).collect();
    for round in 0..3 {
        for link in &mut links {
            drop(exchange(link, &[round; 24]));
        }
        links.rotate_left(3);
        links.remove(0);
        links.push(open(round.into()));
    }
    for from in 0..links.len() {
        let mut buffer = links[from].domain.buffer(8).unwrap();
        for (to, link) in links.iter_mut().enumerate() {
            if from != to {
                buffer = refused(link.left.post_send(buffer));
            }
        }
    }
}

#[test]
fn a_mix_up_does_not_reach_the_device() {
    let fabric = Fabric::new();
    let context = Context::open_on(&fabric, "dev0").unwrap();
    let (here, other) = (context.checked_domain().unwrap(), context.checked_domain().unwrap());
    let (mut ours, theirs) = (link(&here, Posting::List), other.completion_queue(16).unwrap().0);
    let mut shared = here.shared_receive_queue(&SharedLimits::default()).unwrap();
    let mut sessions = link(&here, Posting::WorkRequestApi);
    let verbs = [Verb::PostSend, Verb::PostRecv, Verb::PostSrqRecv, Verb::CreateQp];
    for verb in verbs {
        fabric.inject(Fault::VerbFails { verb, after: 0, count: 1, errno: libc::ENOMEM });
    }
    let mut buffer = refused(ours.left.post_send(other.buffer(8).unwrap()));
    buffer = refused(sessions.left.post_send(buffer));
    buffer = refused(ours.left.post_receive(buffer));
    buffer = refused(shared.post_receive(buffer));
    let buffers = other.buffers(2, 8).unwrap();
    ours.left.batch(|batch| assert!(batch.post_each(buffers.into_iter().map(WorkRequest::send)).is_err())).unwrap();
    assert!(matches!(here.reliable(&theirs, &LIMITS), Err(CreateError::OtherDomain { .. })));
    drop(buffer);
    // The refused calls above did not reach `verbs`, so the injected faults hit the calls below.
    let (queue, _poller) = here.completion_queue(16).unwrap();
    let own = || here.buffer(8).unwrap();
    assert!(matches!(ours.left.post_send(own()), Err(PostError::Refused { .. })));
    assert!(matches!(ours.left.post_receive(own()), Err(PostError::Refused { .. })));
    assert!(matches!(shared.post_receive(own()), Err(PostError::Refused { .. })));
    assert!(matches!(here.reliable(&queue, &LIMITS), Err(CreateError::Verb(_))));
}

#[test]
fn a_window_is_bound_over_memory_and_on_a_pair_of_its_own_domain() {
    if lacks_need(Need::Windows) {
        return;
    }
    with_others(|here, other| {
        let (mut link, mut their) = (link(here, Posting::List), link(other, Posting::List));
        let page = |domain: &Domain| {
            let region = domain.register::<Windowed<LocalWrite>, _>(Pages::new(4096).unwrap()).unwrap();
            region.split_bindable().1
        };
        // First the memory is foreign, then the window, then both.
        let (window, memory) =
            refused(link.right.post_bind::<RemoteReadWrite, _>(link.domain.window().unwrap(), page(&their.domain)));
        let (theirs, ours) =
            refused(link.right.post_bind::<RemoteReadWrite, _>(their.domain.window().unwrap(), page(&link.domain)));
        let (theirs, memory) = refused(link.right.post_bind::<RemoteReadWrite, Type1>(theirs, memory));
        // Each window is bound in its own domain.
        link.right.post_bind::<RemoteReadWrite, _>(window, ours).unwrap();
        their.right.post_bind::<RemoteReadWrite, _>(theirs, memory).unwrap();
        let Work::BoundType1(ours) = next(&mut link.poller).into_work() else { panic!("not a bind") };
        let Work::BoundType1(theirs) = next(&mut their.poller).into_work() else { panic!("not a bind") };
        let theirs = refused(link.right.post_revoke(theirs));
        let ours = refused(their.right.post_revoke(ours));
        let window = link.right.window().unwrap();
        let (window, _) = refused(their.right.post_bind::<RemoteReadWrite, Type2>(window, page(&their.domain)));
        drop((ours, theirs, window));
        exchange(&mut link, b"nothing has happened");
        exchange(&mut their, b"here neither");
    });
}
