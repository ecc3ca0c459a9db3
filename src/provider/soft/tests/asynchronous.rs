//! Asynchronous events, and several completion queues on one channel.

use super::*;
use crate::provider::soft::Fault;
use ibv_event_type as E;
use ibv_qp_attr_mask as M;
use ibv_wc_status as S;

/// Whether the descriptor of the asynchronous events is readable.
fn readable(node: &Node) -> bool {
    // SAFETY: the context is open.
    let fd = unsafe { (*node.context.as_ptr()).async_fd };
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: `poll` is one entry, and the count is 1.
    unsafe { libc::poll(&mut poll, 1, 0) == 1 }
}

fn drain(pair: Pair, notify: bool) {
    let attributes = ibv_qp_attr { qp_state: SQD, en_sqd_async_notify: u8::from(notify), ..ibv_qp_attr::default() };
    pair.modify(attributes, (M::IBV_QP_STATE | M::IBV_QP_EN_SQD_ASYNC_NOTIFY).0).unwrap();
}

#[test]
#[cfg_attr(miri, ignore = "poll(2)")]
fn the_descriptor_is_readable_while_events_wait() {
    let link = Link::automatic();
    assert!(!readable(&link.left) && link.left.take_async().is_none());
    drain(link.a, true);
    drain(link.b, true);
    assert!(readable(&link.left) && readable(&link.left));
    assert_eq!(link.left.events(), [(E::IBV_EVENT_SQ_DRAINED, link.a.qpn())]);
    assert!(!readable(&link.left) && readable(&link.right));
}

#[test]
fn drained_is_told_once_if_asked_for() {
    let link = Link::manual();
    drain(link.b, false);
    assert!(link.right.events().is_empty());
    link.left.send(link.a, Request::send(1, &[]));
    assert!(link.fabric.step());
    drain(link.a, true);
    assert_eq!((link.a.query().sq_draining, link.a.query().en_sqd_async_notify), (1, 1));
    assert!(link.left.events().is_empty(), "a request is under way");
    link.right.receive(link.b, 2, &[]);
    link.fabric.advance(Duration::from_millis(1));
    link.fabric.run();
    assert_eq!(link.left.completed(), [(1, SUCCESS)]);
    assert_eq!(link.left.events(), [(E::IBV_EVENT_SQ_DRAINED, link.a.qpn())]);
    link.a.enter(SQD).unwrap();
    assert!(link.left.events().is_empty());
    link.a.enter(RTS).unwrap();
    link.a.enter(SQD).unwrap();
    assert!(link.left.events().is_empty(), "not asked for this time");
}

#[test]
fn a_first_message_establishes_a_connection() {
    for transport in [RC, UC] {
        let settings = Settings { transport, ..SETTINGS };
        let fabric = Fabric::new();
        let (left, right) = (Node::new(&fabric, "left"), Node::new(&fabric, "right"));
        let (a, b) = (left.pair_with(settings), right.pair_with(settings));
        b.init().unwrap();
        b.rtr(a).unwrap();
        a.connect(b);
        for id in 0..2 {
            right.receive(b, id, &[]);
            left.send(a, Request::send(id, &[]));
        }
        assert_eq!(right.completed().len(), 2);
        assert_eq!(right.events(), [(E::IBV_EVENT_COMM_EST, b.qpn())]);
        // A new connection of the pair raises the event again.
        left.poll();
        for pair in [a, b] {
            pair.enter(RESET).unwrap();
        }
        b.init().unwrap();
        b.rtr(a).unwrap();
        a.connect(b);
        right.receive(b, 2, &[]);
        left.send(a, Request::send(2, &[]));
        assert_eq!(right.events(), [(E::IBV_EVENT_COMM_EST, b.qpn())]);
    }
    // In Ready To Send the first message raises no event: the program already knows that the pair is connected.
    let link = Link::automatic();
    assert!(link.works() && link.right.events().is_empty());
}

#[test]
fn a_responder_without_a_completion_learns_why_it_broke() {
    let after = |make: fn(&Link) -> Request| {
        let link = Link::automatic();
        let request = make(&link);
        assert_ne!(link.status(request), SUCCESS);
        (link.right.events(), link.b.qpn(), link.left.events())
    };
    let (events, qpn, left) =
        after(|link| Request::write(1, &[link.left.memory(1, 0).sge(0, 8)], &link.right.memory(1, READ), 0));
    assert_eq!((events, left), (vec![(E::IBV_EVENT_QP_ACCESS_ERR, qpn)], vec![]));
    let (events, qpn, _) =
        after(|link| Request::add(1, &[link.left.memory(1, LOCAL).sge(0, 8)], &link.right.memory(2, ALL), 4, 1));
    assert_eq!(events, [(E::IBV_EVENT_QP_REQ_ERR, qpn)]);
    let (events, ..) = after(|link| {
        link.right.receive(link.b, 1, &[]);
        Request::send(1, &[link.left.memory(1, 0).sge(0, 8)])
    });
    assert!(events.is_empty(), "the receive tells");
}

#[test]
fn an_overrun_is_fatal_to_queue_and_pairs() {
    let fabric = Fabric::new();
    let (left, right) = (Node::new(&fabric, "left"), Node::with_depth(&fabric, "right", 1));
    let (a, b) = (left.pair(), right.pair());
    let idle = right.pair();
    a.connect(b);
    b.connect(a);
    for id in 0..2 {
        right.receive(b, id, &[]);
        left.send(a, Request::send(id, &[]));
    }
    assert_eq!(right.events(), [(E::IBV_EVENT_CQ_ERR, 1), (E::IBV_EVENT_QP_FATAL, b.qpn())]);
    assert_eq!((b.state(), idle.state()), (ERR, RESET));
}

#[test]
fn events_of_a_destroyed_object_vanish() {
    let link = Link::automatic();
    let srq = link.left.shared(2);
    let mut attributes = ibv_srq_attr { max_wr: 0, max_sge: 0, srq_limit: 1 };
    // SAFETY: the shared queue is alive.
    unsafe { Soft.modify_srq(srq, &mut attributes, ibv_srq_attr_mask::IBV_SRQ_LIMIT) }.unwrap();
    drain(link.a, true);
    link.left.destroy(link.a).unwrap();
    let srq = link.left.queues.borrow_mut().pop().unwrap();
    // SAFETY: the shared queue is alive, and nobody uses it any more.
    unsafe { Soft.destroy_srq(srq) }.unwrap();
    assert!(link.left.take_async().is_none());
}

#[test]
fn a_port_goes_down_and_comes_back() {
    let link = Link::automatic();
    let second = Node::new(&link.fabric, "right");
    let state = |node: &Node| {
        // SAFETY: the context is open.
        unsafe { Soft.query_port(node.context, 1) }.unwrap().state
    };
    for _ in 0..2 {
        link.fabric.inject(Fault::PortDown { device: "right".into() });
    }
    assert_eq!(
        (state(&link.left), state(&link.right)),
        (ibv_port_state::IBV_PORT_ACTIVE, ibv_port_state::IBV_PORT_DOWN)
    );
    for node in [&link.right, &second] {
        assert_eq!(node.events(), [(E::IBV_EVENT_PORT_ERR, 1)], "each context, once");
    }
    link.right.receive(link.b, 1, &[]);
    assert_eq!(link.status(Request::send(2, &[])), S::IBV_WC_RETRY_EXC_ERR);
    assert!(link.right.poll().is_empty() && link.b.state() == RTS);
    link.fabric.heal();
    assert_eq!(state(&link.right), ibv_port_state::IBV_PORT_ACTIVE);
    assert_eq!(link.right.events(), [(E::IBV_EVENT_PORT_ACTIVE, 1)]);
    assert!(link.left.events().is_empty());
}

#[test]
fn nothing_leaves_a_port_that_is_down() {
    let link =
        Link::with(Fabric::new(), Settings { transport: UC, ..SETTINGS }, Settings { transport: UC, ..SETTINGS });
    link.right.receive(link.b, 1, &[]);
    link.fabric.inject(Fault::PortDown { device: "left".into() });
    assert_eq!(link.status(Request::send(2, &[])), SUCCESS);
    assert!(link.right.poll().is_empty());
    link.fabric.heal();
    assert_eq!(link.status(Request::send(3, &[])), SUCCESS);
    assert_eq!(link.right.completed(), [(1, SUCCESS)]);
}

#[test]
fn a_device_that_fails_can_be_cleaned_up() {
    let link = Link::automatic();
    link.right.receive(link.b, 1, &[]);
    link.right.arm(true);
    link.fabric.inject(Fault::DeviceFatal { device: "right".into() });
    assert_eq!(link.right.events(), [(E::IBV_EVENT_DEVICE_FATAL, 0)]);
    assert!(link.right.take_event());
    assert_eq!(link.right.completed(), [(1, FLUSHED)]);
    assert_eq!(link.right.poll_raw(1).unwrap().len(), 0);
    // SAFETY: the context is open.
    let query = unsafe { Soft.query_device(link.right.context) };
    assert_eq!(query.unwrap_err().errno(), libc::EIO);
    assert_eq!(link.right.try_register(1, 0).map(|_| ()), Err(libc::EIO));
    assert_eq!(link.right.try_receive(link.b, 2, &[]), libc::EIO);
    assert_eq!(link.b.enter(RESET), Err(libc::EIO));
    assert_eq!(link.status(Request::send(3, &[])), S::IBV_WC_RETRY_EXC_ERR);
    assert!(link.fabric.open("right").is_err());
    // All objects of a failed device can still be destroyed.
    let Link { fabric, left, right, .. } = link;
    drop((right, left));
    drop(fabric);
}

#[test]
fn a_removed_device_says_so() {
    let link = Link::automatic();
    link.fabric.inject(Fault::DeviceRemoved { device: "right".into() });
    assert_eq!(link.right.events(), [(E::IBV_EVENT_DEVICE_FATAL, 0)]);
    assert!(link.left.events().is_empty());
    link.fabric.heal();
}

/// A second completion queue on the channel of a node.
fn second_queue(node: &Node, depth: u32) -> NonNull<ibv_cq> {
    // SAFETY: the context is open, and the channel belongs to it.
    unsafe { Soft.create_cq(node.context, depth, node.channel, 0) }.unwrap()
}

fn take(node: &Node) -> Option<*mut ibv_cq> {
    // SAFETY: the channel is alive.
    unsafe { Soft.take_cq_event_of(node.channel) }.unwrap().map(NonNull::as_ptr)
}

#[test]
fn a_channel_says_which_queue_it_was() {
    let fabric = Fabric::new();
    let node = Node::new(&fabric, "one");
    let second = second_queue(&node, 8);
    let attributes = ibv_qp_init_attr { recv_cq: second.as_ptr(), ..node.init_attributes() };
    let qp = node.create(attributes).unwrap();
    let pair = Pair { qp, gid: node.gid(1), settings: SETTINGS };
    pair.connect(pair);
    let arm = |cq: *mut ibv_cq| {
        // SAFETY: the queue is alive.
        assert_eq!(unsafe { node.ops().req_notify_cq.unwrap()(cq, 0) }, 0);
    };
    arm(second.as_ptr());
    node.receive(pair, 1, &[]);
    node.send(pair, Request::send(2, &[]));
    assert_eq!((take(&node), take(&node)), (Some(second.as_ptr()), None));
    arm(node.cq.as_ptr());
    arm(second.as_ptr());
    node.receive(pair, 3, &[]);
    node.send(pair, Request::send(4, &[]));
    assert_eq!([take(&node), take(&node), take(&node)], [Some(second.as_ptr()), Some(node.cq.as_ptr()), None]);
    node.destroy(pair).unwrap();
    // SAFETY: the second queue is alive, and nobody uses it any more.
    unsafe { Soft.destroy_cq(second) }.unwrap();
}

#[test]
fn c130_a_queue_is_resized_and_keeps_what_it_has() {
    let fabric = Fabric::new();
    let node = Node::with_depth(&fabric, "one", 2);
    let pair = node.pair();
    pair.connect(pair);
    let write = |id| node.send(pair, Request::new(id, ibv_wr_opcode::IBV_WR_RDMA_WRITE, &[]));
    // SAFETY: the queue is alive.
    let resize = |depth| unsafe { Soft.resize_cq(node.cq, depth) }.map_err(|error| error.errno());
    // SAFETY: the queue is alive.
    let size = || unsafe { (*node.cq.as_ptr()).cqe };
    write(1);
    write(2);
    assert_eq!((resize(1), size()), (Err(libc::EINVAL), 2));
    assert_eq!(resize(0), Err(libc::EINVAL));
    assert_eq!(resize(u32::MAX), Err(libc::EINVAL));
    assert_eq!((resize(4), size()), (Ok(()), 4));
    write(3);
    write(4);
    assert_eq!(node.completed(), [1, 2, 3, 4].map(|id| (id, SUCCESS)));
    assert_eq!((resize(1), size()), (Ok(()), 1));
    write(5);
    assert_eq!(node.completed(), [(5, SUCCESS)]);
    write(6);
    write(7);
    assert_eq!(node.events()[0], (E::IBV_EVENT_CQ_ERR, 1), "the new size counts");
}
