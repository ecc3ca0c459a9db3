use super::*;

/// Whether the channel's descriptor becomes readable within `timeout` milliseconds.
fn readable(node: &Node, timeout: i32) -> bool {
    // SAFETY: the channel is alive.
    let fd = unsafe { (*node.channel.as_ptr()).fd };
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: `poll` is one entry, and the count is 1.
    unsafe { libc::poll(&mut poll, 1, timeout) == 1 }
}

fn deliver(link: &Link, request: Request) {
    link.right.receive(link.b, 1, &[]);
    assert_eq!(link.status(request), SUCCESS);
}

#[test]
fn an_armed_queue_makes_one_event() {
    let link = Link::automatic();
    deliver(&link, Request::send(1, &[]));
    assert!(!link.right.take_event(), "not armed");
    link.right.arm(false);
    assert!(!link.right.take_event(), "what is there already makes no event");
    deliver(&link, Request::send(2, &[]));
    deliver(&link, Request::send(3, &[]));
    assert!(link.right.take_event());
    assert!(!link.right.take_event(), "one arm, one event");
    link.right.arm(false);
    deliver(&link, Request::send(4, &[]));
    assert!(link.right.take_event());
    assert_eq!(link.right.poll().len(), 4);
}

#[test]
fn a_solicited_arm_waits_for_solicited_or_failed() {
    let link = Link::automatic();
    link.right.arm(true);
    deliver(&link, Request::send(1, &[]));
    assert!(!link.right.take_event());
    deliver(&link, Request::send(2, &[]).flag(ibv_send_flags::IBV_SEND_SOLICITED));
    assert!(link.right.take_event());
    link.right.arm(true);
    link.right.arm(false);
    link.right.arm(true);
    deliver(&link, Request::send(3, &[]));
    assert!(link.right.take_event(), "any is wider, and stays");
    link.right.arm(true);
    link.right.receive(link.b, 1, &[]);
    link.b.enter(ERR).unwrap();
    assert!(link.right.take_event());
}

#[test]
fn events_of_a_destroyed_queue_vanish() {
    let link = Link::automatic();
    let node = &link.left;
    // SAFETY: the context is open.
    let cq = unsafe { Soft.create_cq(node.context, 4, node.channel, 0) }.unwrap();
    let other = cq.as_ptr();
    let qp = node.create(ibv_qp_init_attr { send_cq: other, recv_cq: other, ..node.init_attributes() }).unwrap();
    let pair = Pair { qp, ..link.a };
    pair.init().unwrap();
    node.receive(pair, 1, &[]);
    // SAFETY: the queue is alive.
    assert_eq!(unsafe { node.ops().req_notify_cq.unwrap()(other, 0) }, 0);
    pair.enter(ERR).unwrap();
    node.destroy(pair).unwrap();
    // SAFETY: the queue is alive, and nobody uses it any more.
    unsafe { Soft.destroy_cq(cq) }.unwrap();
    assert!(!node.take_event());
}

#[test]
#[cfg_attr(miri, ignore = "poll(2)")]
fn the_descriptor_is_readable_while_events_wait() {
    let link = Link::automatic();
    assert!(!readable(&link.right, 0));
    link.right.arm(false);
    deliver(&link, Request::send(1, &[]));
    assert!(readable(&link.right, 0));
    assert!(readable(&link.right, 0));
    assert!(link.right.take_event());
    assert!(!readable(&link.right, 0));
}

#[test]
#[cfg_attr(miri, ignore = "poll(2)")]
fn another_thread_wakes_a_waiter() {
    struct Both(Link);
    // SAFETY: below, the other thread uses only the left node, and this thread only the right one.
    unsafe impl Sync for Both {}
    let both = &Both(Link::automatic());
    let Link { right, b, .. } = &both.0;
    right.receive(*b, 1, &[]);
    right.arm(false);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let Link { left, a, .. } = &both.0;
            left.send(*a, Request::send(2, &[]));
        });
        assert!(readable(right, 20_000));
    });
    assert!(right.take_event());
    assert_eq!(right.completed(), [(1, SUCCESS)]);
}

#[test]
#[cfg_attr(miri, ignore = "poll(2)")]
fn a_waiter_learns_of_a_new_timer() {
    let link = Link::with(Fabric::new(), SETTINGS, Settings { min_rnr_timer: 31, ..SETTINGS });
    link.left.arm(false);
    assert_eq!(link.left.next_timer(), None);
    link.left.send(link.a, Request::send(1, &[]));
    assert!(readable(&link.left, 0), "there is no event, but a timer to wait for");
    assert!(!link.left.take_event());
    assert!(!readable(&link.left, 0));
    let next = link.left.next_timer().unwrap();
    assert!(next <= Duration::from_millis(492));
    link.right.receive(link.b, 2, &[]);
    link.fabric.advance(next);
    assert_eq!(link.left.completed(), [(1, SUCCESS)]);
    assert!(link.left.take_event());
    assert_eq!(link.left.next_timer(), None);
}
