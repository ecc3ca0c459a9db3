use super::*;
use crate::provider::soft::{Fault, Verb};
use ibv_wc_status as S;

fn fails(verb: Verb, after: u32) -> Fault {
    Fault::VerbFails { verb, after, count: 1, errno: libc::ENOMEM }
}

#[test]
fn the_nth_call_of_a_verb_fails() {
    let fabric = Fabric::new();
    fabric.inject(fails(Verb::OpenDevice, 0));
    assert_eq!(fabric.open("one").unwrap_err().errno(), libc::ENOMEM);
    let node = Node::new(&fabric, "one");
    fabric.inject(fails(Verb::RegMr, 2));
    let results: Vec<_> = (0..4).map(|_| node.try_register(1, 0).map(|_| ())).collect();
    assert_eq!(results, [Ok(()), Ok(()), Err(libc::ENOMEM), Ok(())]);
    fabric.inject(Fault::VerbFails { verb: Verb::CreateQp, after: 0, count: u32::MAX, errno: -3 });
    for _ in 0..3 {
        assert_eq!(node.create(node.init_attributes()).map(|_| ()), Err(libc::EIO));
    }
    fabric.heal();
    node.pair();
}

#[test]
fn a_verb_that_fails_does_nothing() {
    let link = Link::automatic();
    let region = link.left.memory(1, 0);
    link.fabric.inject(fails(Verb::DeregMr, 0));
    assert_eq!(link.left.deregister(&region), Err(libc::ENOMEM));
    link.fabric.inject(fails(Verb::DestroyQp, 0));
    assert_eq!(link.left.destroy(link.a), Err(libc::ENOMEM));
    link.fabric.inject(fails(Verb::ModifyQp, 0));
    assert_eq!(link.a.enter(ERR), Err(libc::ENOMEM));
    assert_eq!(link.a.state(), RTS);
    assert!(link.works());
    // The deregistration that failed did not end the region: the key of the region still works.
    link.right.receive(link.b, 1, &[link.right.memory(1, LOCAL).sge(0, 8)]);
    assert_eq!(link.status(Request::send(2, &[region.sge(0, 8)])), SUCCESS);
}

#[test]
fn posts_and_polls_fail_too() {
    let link = Link::automatic();
    link.fabric.inject(fails(Verb::PostSend, 0));
    let mut wrs = [Request::send(5, &[]).raw(&mut []), Request::send(6, &[]).raw(&mut [])];
    assert_eq!(link.left.post_send(link.a, &mut wrs), (libc::ENOMEM, Some(5)));
    link.fabric.inject(fails(Verb::PostRecv, 0));
    assert_eq!(link.right.post_receives(link.b, &mut [receive_wr(7, &mut [])]), (libc::ENOMEM, Some(7)));
    link.fabric.inject(fails(Verb::PollCq, 0));
    assert_eq!(link.left.poll_raw(1).map(|_| ()), Err(libc::ENOMEM));
    assert!(link.works());
}

#[test]
fn verbs_of_all_objects_fail() {
    let fabric = Fabric::new();
    let node = Node::new(&fabric, "one");
    let (srq, window) = (node.shared(2), node.window(ibv_mw_type::IBV_MW_TYPE_1));
    let pair = node.pair_with(Settings { transport: UD, ..SETTINGS });
    let (reliable, region) = (node.pair(), node.memory(1, LOCAL | 16));
    reliable.connect(reliable);
    let group = ibv_gid { raw: [0xff; 16] };
    let errno =
        |result: Result<(), crate::verb_error::VerbError>| result.map_err(|error| (error.verb(), error.errno()));
    let fail = |verb| fabric.inject(fails(verb, 0));
    let expect = |result, verb| assert_eq!(errno(result), Err((verb, libc::ENOMEM)));
    fail(Verb::AllocMw);
    // SAFETY: here and below, all objects are alive. A verb that fails destroys no object.
    expect(unsafe { Soft.alloc_mw(node.domain, ibv_mw_type::IBV_MW_TYPE_2) }.map(|_| ()), "ibv_alloc_mw");
    fail(Verb::DeallocMw);
    // SAFETY: the window is alive.
    expect(unsafe { Soft.dealloc_mw(window) }, "ibv_dealloc_mw");
    fail(Verb::CreateAh);
    assert_eq!(node.try_address([1; 16], 1).map(|_| ()), Err(libc::ENOMEM));
    fail(Verb::DestroyAh);
    // SAFETY: the address handle is alive.
    expect(unsafe { Soft.destroy_ah(node.address([1; 16])) }, "ibv_destroy_ah");
    fail(Verb::CreateSrq);
    // SAFETY: the domain is alive.
    expect(unsafe { Soft.create_srq(node.domain, &mut ibv_srq_init_attr::default()) }.map(|_| ()), "ibv_create_srq");
    fail(Verb::ModifySrq);
    // SAFETY: the shared queue is alive.
    expect(unsafe { Soft.modify_srq(srq, &mut ibv_srq_attr::default(), ibv_srq_attr_mask(0)) }, "ibv_modify_srq");
    fail(Verb::QuerySrq);
    // SAFETY: the shared queue is alive.
    expect(unsafe { Soft.query_srq(srq) }.map(|_| ()), "ibv_query_srq");
    fail(Verb::DestroySrq);
    // SAFETY: the shared queue is alive.
    expect(unsafe { Soft.destroy_srq(srq) }, "ibv_destroy_srq");
    fail(Verb::ResizeCq);
    // SAFETY: the queue is alive.
    expect(unsafe { Soft.resize_cq(node.cq, 99) }, "ibv_resize_cq");
    fail(Verb::AttachMcast);
    // SAFETY: the pair is alive.
    expect(unsafe { Soft.attach_mcast(pair.qp, &group, 0) }, "ibv_attach_mcast");
    // SAFETY: the pair is alive.
    unsafe { Soft.attach_mcast(pair.qp, &group, 0) }.unwrap();
    fail(Verb::DetachMcast);
    // SAFETY: the pair is alive.
    expect(unsafe { Soft.detach_mcast(pair.qp, &group, 0) }, "ibv_detach_mcast");
    // SAFETY: the pair is alive.
    unsafe { Soft.detach_mcast(pair.qp, &group, 0) }.unwrap();
    fail(Verb::QueryPkey);
    // SAFETY: the context is open.
    expect(unsafe { Soft.query_pkey(node.context, 1, 0) }.map(|_| ()), "ibv_query_pkey");
    fail(Verb::GetAsyncEvent);
    // SAFETY: the context is open.
    expect(unsafe { Soft.take_async_event(node.context) }.map(|_| ()), "ibv_get_async_event");
    fail(Verb::PostSrqRecv);
    assert_eq!((node.share(srq, 1, &[]), node.share(srq, 1, &[])), (libc::ENOMEM, 0));
    fail(Verb::BindMw);
    let info = super::support::bind_info(&region, 0, 8, READ);
    assert_eq!(reliable.bind(1, window, info), libc::ENOMEM);
    assert_eq!(reliable.bind(1, window, info), 0);
}

#[test]
fn requests_kept_by_a_refused_post_run_later() {
    let link = Link::automatic();
    link.right.receive(link.b, 11, &[]);
    link.right.receive(link.b, 12, &[]);
    link.fabric.inject(Fault::SendKept { errno: libc::EINVAL });
    assert_eq!(link.left.post_send(link.a, &mut [Request::send(1, &[]).raw(&mut [])]), (libc::EINVAL, None));
    assert!(link.left.poll().is_empty());
    link.left.send(link.a, Request::send(2, &[]));
    assert_eq!(link.left.completed(), [(1, SUCCESS), (2, SUCCESS)]);
}

#[test]
fn requests_kept_below_ready_to_send_run_there() {
    let fabric = Fabric::new();
    let node = Node::new(&fabric, "one");
    let pair = node.pair();
    fabric.inject(Fault::ReceiveKept { errno: libc::EINVAL });
    fabric.inject(Fault::SendKept { errno: libc::EINVAL });
    assert_eq!(node.post_receives(pair, &mut [receive_wr(1, &mut [])]), (libc::EINVAL, None));
    assert_eq!(node.post_send(pair, &mut [Request::send(2, &[]).raw(&mut [])]), (libc::EINVAL, None));
    pair.init().unwrap();
    pair.rtr(pair).unwrap();
    assert!(node.poll().is_empty());
    pair.rts().unwrap();
    assert_eq!(node.completed(), [(1, SUCCESS), (2, SUCCESS)]);
}

#[test]
fn kept_requests_end_with_reset_and_are_flushed_in_error() {
    let fabric = Fabric::new();
    let node = Node::new(&fabric, "one");
    for (state, completions) in [(RESET, 0), (ERR, 1)] {
        let pair = node.pair();
        pair.init().unwrap();
        fabric.inject(Fault::SendKept { errno: libc::EINVAL });
        assert_eq!(node.try_send(pair, Request::send(1, &[])), libc::EINVAL);
        pair.enter(state).unwrap();
        assert_eq!(node.completed(), vec![(1, FLUSHED); completions]);
    }
}

#[test]
fn lost_requests_are_retried() {
    let link = Link::manual();
    link.right.receive(link.b, 1, &[]);
    link.fabric.inject(Fault::RequestsLost { count: 2 });
    link.left.send(link.a, Request::send(2, &[]));
    link.fabric.run();
    assert!(link.right.poll().is_empty());
    for _ in 0..2 {
        link.fabric.advance(link.fabric.next_timer().unwrap());
        link.fabric.run();
    }
    assert_eq!((link.left.completed(), link.right.completed()), (vec![(2, SUCCESS)], vec![(1, SUCCESS)]));
}

#[test]
fn a_silent_peer_executes_once_and_the_request_fails() {
    let link = Link::automatic();
    let word = link.right.memory(1, ALL);
    link.right.receive(link.b, 1, &[]);
    link.right.receive(link.b, 2, &[]);
    link.fabric.inject(Fault::AnswersLost { count: u32::MAX });
    assert_eq!(link.status(Request::send(3, &[])), S::IBV_WC_RETRY_EXC_ERR);
    assert_eq!(link.right.completed(), [(1, SUCCESS)]);
    assert_eq!((link.a.state(), link.b.state()), (ERR, RTS));

    let link = Link::automatic();
    link.fabric.inject(Fault::AnswersLost { count: u32::MAX });
    let counter = link.right.memory(1, ALL);
    let result = link.left.memory(1, LOCAL);
    result.set(&[0xee; 8]);
    let request = Request::add(1, &[result.sge(0, 8)], &counter, 0, 1);
    assert_eq!(link.status(request), S::IBV_WC_RETRY_EXC_ERR);
    assert_eq!((counter.get(8), result.get(8)), (1_u64.to_ne_bytes().to_vec(), vec![0xee; 8]));
    assert_eq!(word.get(8), [0; 8]);
}

#[test]
fn a_lost_answer_is_repeated_and_nothing_is_done_twice() {
    let link = Link::automatic();
    let (local, remote) = (link.left.memory(2, LOCAL), link.right.memory(2, ALL));
    link.fabric.inject(Fault::AnswersLost { count: 2 });
    assert_eq!(link.status(Request::add(1, &[local.sge(0, 8)], &remote, 0, 5)), SUCCESS);
    assert_eq!((remote.get(8), local.get(8)), (5_u64.to_ne_bytes().to_vec(), vec![0; 8]));
    link.fabric.inject(Fault::AnswersLost { count: 1 });
    assert_eq!(link.status(Request::read(2, &[local.sge(8, 8)], &remote, 0)), SUCCESS);
    assert_eq!(local.get(16)[8..], 5_u64.to_ne_bytes());
    link.fabric.inject(Fault::AnswersLost { count: 1 });
    link.right.receive(link.b, 3, &[]);
    link.right.receive(link.b, 4, &[]);
    assert_eq!(link.status(Request::send(5, &[])), SUCCESS);
    assert_eq!(link.right.completed(), [(3, SUCCESS)]);
    // The packet numbers of both sides still match, so the next request succeeds.
    link.left.send(link.a, Request::send(6, &[]));
    assert_eq!((link.left.completed(), link.right.completed()), (vec![(6, SUCCESS)], vec![(4, SUCCESS)]));
}

#[test]
fn a_lost_refusal_looks_like_a_dead_peer() {
    let link = Link::automatic();
    link.fabric.inject(Fault::AnswersLost { count: 1 });
    let request = Request::write(1, &[link.left.memory(1, 0).sge(0, 8)], &link.right.memory(1, READ), 0);
    assert_eq!(link.status(request), S::IBV_WC_RETRY_EXC_ERR);
    assert_eq!(link.b.state(), ERR);
}

#[test]
fn a_withheld_flush_comes_with_the_second_error_or_with_healing() {
    let link = Link::automatic();
    link.fabric.inject(Fault::FlushWithheld);
    link.left.receive(link.a, 1, &[]);
    link.right.receive(link.b, 2, &[]);
    link.a.enter(ERR).unwrap();
    link.b.enter(ERR).unwrap();
    link.left.receive(link.a, 3, &[]);
    assert!(link.left.poll().is_empty() && link.right.poll().is_empty());
    link.a.enter(ERR).unwrap();
    assert_eq!(link.left.completed(), [(1, FLUSHED), (3, FLUSHED)]);
    link.left.receive(link.a, 4, &[]);
    assert!(link.left.poll().is_empty(), "each needs its kick");
    link.fabric.heal();
    assert_eq!((link.left.completed(), link.right.completed()), (vec![(4, FLUSHED)], vec![(2, FLUSHED)]));
    link.left.receive(link.a, 5, &[]);
    assert_eq!(link.left.completed(), [(5, FLUSHED)]);
}

#[test]
fn a_removed_device_answers_eio_and_completes_nothing() {
    let link = Link::automatic();
    link.right.receive(link.b, 1, &[]);
    link.right.arm(true);
    link.fabric.inject(Fault::DeviceRemoved { device: "right".into() });
    let errno = |result: Result<(), crate::verb_error::VerbError>| result.map_err(|error| error.errno());
    assert!(link.fabric.open("right").is_err());
    // SAFETY: the context is open.
    assert_eq!(errno(unsafe { Soft.query_device(link.right.context) }.map(|_| ())), Err(libc::EIO));
    assert_eq!(link.right.try_register(1, 0).map(|_| ()), Err(libc::EIO));
    assert_eq!(link.right.destroy(link.b), Err(libc::EIO));
    assert_eq!(link.right.post_receives(link.b, &mut [receive_wr(3, &mut [])]), (libc::EIO, Some(3)));
    assert_eq!(link.right.poll_raw(1).map(|_| ()), Err(libc::EIO));
    assert_eq!(link.status(Request::send(2, &[])), S::IBV_WC_RETRY_EXC_ERR, "the peer sees a dead link");
    link.fabric.heal();
    assert!(link.right.take_event(), "who waited was told");
    assert_eq!(link.b.state(), ERR);
    assert_eq!(link.right.completed(), [(1, FLUSHED)]);
}
