//! Shared receive queues.

use super::*;
use ibv_event_type as E;
use ibv_srq_attr_mask as M;
use ibv_wc_status as S;

fn modify(srq: NonNull<ibv_srq>, max_wr: u32, srq_limit: u32, mask: M) -> Result<ibv_srq_attr, Errno> {
    let mut attributes = ibv_srq_attr { max_wr, max_sge: 77, srq_limit };
    // SAFETY: the shared queue is alive: no test uses a shared queue that it has destroyed.
    unsafe { Soft.modify_srq(srq, &mut attributes, mask) }.map_err(|error| error.errno())?;
    Ok(attributes)
}

fn limit(srq: NonNull<ibv_srq>, limit: u32) -> Result<(), Errno> {
    modify(srq, 0, limit, M::IBV_SRQ_LIMIT).map(|_| ())
}

fn query(srq: NonNull<ibv_srq>) -> (u32, u32, u32) {
    // SAFETY: the shared queue is alive: no test uses a shared queue that it has destroyed.
    let ibv_srq_attr { max_wr, max_sge, srq_limit } = unsafe { Soft.query_srq(srq) }.unwrap();
    (max_wr, max_sge, srq_limit)
}

/// Two pairs on the left, connected to two pairs on the right that share a receive queue.
struct Star {
    fabric: Fabric,
    left: Node,
    right: Node,
    out: [Pair; 2],
    into: [Pair; 2],
    srq: NonNull<ibv_srq>,
}

impl Star {
    fn new(depth: u32, settings: Settings) -> Self {
        let fabric = Fabric::new();
        let (left, right) = (Node::new(&fabric, "left"), Node::new(&fabric, "right"));
        let srq = right.shared(depth);
        let out = [left.pair_with(settings), left.pair_with(settings)];
        let into = [right.pair_on(srq, settings), right.pair_on(srq, settings)];
        for (a, b) in out.into_iter().zip(into) {
            a.connect(b);
            b.connect(a);
        }
        Self { fabric, left, right, out, into, srq }
    }

    fn send(&self, from: usize, id: u64) {
        self.left.send(self.out[from], Request::send(id, &[]));
        assert_eq!(self.left.wait(), [(id, SUCCESS)]);
    }

    /// The id and the queue pair number of each message that was received.
    fn received(&self) -> Vec<(u64, u32)> {
        self.right.poll().iter().map(|wc| (wc.wr_id, wc.qp_num)).collect()
    }
}

#[test]
fn c150_pairs_take_from_one_queue_in_turn() {
    for transport in [RC, UC] {
        let star = Star::new(8, Settings { transport, ..SETTINGS });
        for id in 1..=3 {
            assert_eq!(star.right.share(star.srq, id, &[]), 0);
        }
        for (from, id) in [(0, 10), (1, 11), (0, 12)] {
            star.send(from, id);
        }
        let [b, c] = star.into.map(Pair::qpn);
        assert_eq!(star.received(), [(1, b), (2, c), (3, b)]);
    }
}

#[test]
fn data_goes_to_memory_of_the_queues_domain() {
    let star = Star::new(8, SETTINGS);
    let (from, to) = (star.left.memory(2, 0), star.right.memory(2, LOCAL));
    from.set(b"shared");
    star.right.share(star.srq, 1, &[to.sge(0, 2), to.sge(8, 8)]);
    star.left.send(star.out[1], Request::send(2, &[from.sge(0, 6)]).immediate(3));
    assert_eq!(star.right.poll()[0].byte_len, 6);
    assert_eq!(to.get(12), b"sh\0\0\0\0\0\0ared");

    // The shared queue and its pair belong to different domains. The receives use memory of the queue's domain.
    let node = Node::new(&star.fabric, "other");
    // SAFETY: the context is open.
    let domain = unsafe { Soft.alloc_pd(node.context) }.unwrap();
    let srq = node.shared(4);
    let attributes = ibv_qp_init_attr { srq: srq.as_ptr(), ..node.init_attributes() };
    let mut attributes = attributes;
    // SAFETY: the domain and the queues in the attributes are alive.
    let qp = unsafe { Soft.create_qp(domain, &mut attributes) }.unwrap();
    let pair = Pair { qp, gid: node.gid(1), settings: SETTINGS };
    pair.connect(pair);
    let region = node.memory(1, LOCAL);
    let own = node.register_in(domain, 1, 0).unwrap();
    assert_eq!(node.share(srq, 1, &[region.sge(0, 8)]), 0);
    node.send(pair, Request::send(2, &[own.sge(0, 8)]));
    assert_eq!(node.completed(), [(1, SUCCESS), (2, SUCCESS)]);
    // SAFETY: the pair is alive, and nobody uses it any more.
    unsafe { Soft.destroy_qp(qp) }.unwrap();
    node.deregister(&own).unwrap();
    // SAFETY: the domain is alive, and nobody uses it any more.
    unsafe { Soft.dealloc_pd(domain) }.unwrap();
}

#[test]
fn datagrams_use_it_too() {
    let fabric = Fabric::new();
    let node = Node::new(&fabric, "one");
    let srq = node.shared(4);
    let pair = node.pair_on(srq, Settings { transport: UD, ..SETTINGS });
    pair.connect(pair);
    node.share(srq, 1, &[node.memory(8, LOCAL).sge(0, 64)]);
    let ah = node.address(pair.gid);
    node.send(pair, Request::send(2, &[]).to(ah, pair.qpn(), SETTINGS.qkey));
    assert_eq!(node.completed(), [(1, SUCCESS), (2, SUCCESS)]);
    node.send(pair, Request::send(3, &[]).to(ah, pair.qpn(), SETTINGS.qkey));
    assert_eq!(node.completed(), [(3, SUCCESS)], "dropped");
}

#[test]
fn an_empty_queue_makes_the_peer_wait() {
    let fabric = Fabric::manual();
    let (left, right) = (Node::new(&fabric, "left"), Node::new(&fabric, "right"));
    let srq = right.shared(4);
    let (a, b) = (left.pair(), right.pair_on(srq, SETTINGS));
    a.connect(b);
    b.connect(a);
    left.send(a, Request::send(1, &[]));
    fabric.run();
    assert!(left.poll().is_empty() && fabric.next_timer().is_some());
    right.share(srq, 2, &[]);
    fabric.advance(fabric.next_timer().unwrap());
    fabric.run();
    assert_eq!((left.completed(), right.completed()), (vec![(1, SUCCESS)], vec![(2, SUCCESS)]));
}

#[test]
fn a_slot_is_free_when_its_completion_was_polled() {
    let star = Star::new(2, SETTINGS);
    for id in 0..2 {
        assert_eq!(star.right.share(star.srq, id, &[]), 0);
    }
    assert_eq!(star.right.share(star.srq, 2, &[]), libc::ENOMEM);
    star.send(0, 10);
    star.send(1, 11);
    assert_eq!(star.right.share(star.srq, 2, &[]), libc::ENOMEM, "completed, not polled");
    assert_eq!(star.right.poll_raw(1).unwrap().len(), 1);
    assert_eq!(star.right.share(star.srq, 2, &[]), 0);
    assert_eq!(star.right.share(star.srq, 3, &[]), libc::ENOMEM);
    // Polling a completion frees the slot of its receive even after the pair is destroyed.
    star.right.destroy(star.into[1]).unwrap();
    assert_eq!(star.right.poll_raw(1).unwrap().len(), 1);
    assert_eq!(star.right.share(star.srq, 3, &[]), 0);
}

#[test]
fn c152_the_limit_makes_one_event() {
    let star = Star::new(8, SETTINGS);
    for id in 0..4 {
        star.right.share(star.srq, id, &[]);
    }
    limit(star.srq, 3).unwrap();
    assert_eq!((star.right.events(), query(star.srq)), (vec![], (8, 4, 3)));
    star.send(0, 10);
    assert!(star.right.events().is_empty(), "three are not fewer than three");
    star.send(1, 11);
    assert_eq!(star.right.events(), [(E::IBV_EVENT_SRQ_LIMIT_REACHED, 0)]);
    assert_eq!(query(star.srq).2, 0);
    star.send(0, 12);
    assert!(star.right.events().is_empty(), "once");
    limit(star.srq, 2).unwrap();
    assert_eq!(star.right.events(), [(E::IBV_EVENT_SRQ_LIMIT_REACHED, 0)], "one is fewer than two already");
}

#[test]
fn c153_a_pair_in_error_leaves_the_queue_alone() {
    let star = Star::new(8, SETTINGS);
    star.right.share(star.srq, 1, &[]);
    star.into[0].enter(ERR).unwrap();
    assert_eq!(star.right.events(), [(E::IBV_EVENT_QP_LAST_WQE_REACHED, star.into[0].qpn())]);
    star.into[0].enter(ERR).unwrap();
    assert!(star.right.events().is_empty() && star.right.poll().is_empty());
    star.send(1, 10);
    assert_eq!(star.received(), [(1, star.into[1].qpn())]);
    // A reset raises no event: only Error does.
    star.into[1].enter(RESET).unwrap();
    assert!(star.right.events().is_empty());
}

#[test]
fn a_receive_at_fault_breaks_the_pair_that_took_it() {
    let star = Star::new(8, SETTINGS);
    star.right.share(star.srq, 1, &[star.right.memory(1, LOCAL).sge(0, 4)]);
    star.right.share(star.srq, 2, &[]);
    star.left.send(star.out[0], Request::send(3, &[star.left.memory(1, 0).sge(0, 8)]));
    assert_eq!(star.left.wait(), [(3, S::IBV_WC_REM_INV_REQ_ERR)]);
    let failed = star.right.poll();
    assert_eq!((failed.len(), failed[0].wr_id, failed[0].status), (1, 1, S::IBV_WC_LOC_LEN_ERR));
    assert_eq!(star.right.events(), [(E::IBV_EVENT_QP_LAST_WQE_REACHED, star.into[0].qpn())]);
    assert_eq!(star.into.map(Pair::state), [ERR, RTS]);
    star.send(1, 4);
    assert_eq!(star.received(), [(2, star.into[1].qpn())]);
}

#[test]
fn c154_c155_sizes_and_limits_have_limits() {
    let star = Star::new(4, SETTINGS);
    assert_eq!(limit(star.srq, 5), Err(libc::EINVAL));
    assert_eq!(modify(star.srq, 0, 0, M(4)).map(|_| ()), Err(libc::EINVAL));
    for id in 0..4 {
        star.right.share(star.srq, id, &[]);
    }
    let sized = |max_wr| modify(star.srq, max_wr, 99, M::IBV_SRQ_MAX_WR).map(|now| now.max_wr);
    assert_eq!((sized(3), sized(0), query(star.srq)), (Err(libc::EINVAL), Err(libc::EINVAL), (4, 4, 0)));
    assert_eq!((sized(6), query(star.srq)), (Ok(6), (6, 4, 0)));
    assert_eq!((star.right.share(star.srq, 4, &[]), star.right.share(star.srq, 5, &[])), (0, 0));
    assert_eq!(star.right.share(star.srq, 6, &[]), libc::ENOMEM);
    // Size and limit change together, or neither changes.
    let both = M::IBV_SRQ_MAX_WR | M::IBV_SRQ_LIMIT;
    assert_eq!(modify(star.srq, 7, 8, both).map(|_| ()), Err(libc::EINVAL));
    assert_eq!(query(star.srq), (6, 4, 0));
    assert!(modify(star.srq, 7, 6, both).is_ok());
    assert_eq!(query(star.srq), (7, 4, 6));

    let node = &star.right;
    // SAFETY: the context is open.
    let limits = unsafe { Soft.query_device(node.context) }.unwrap();
    let create = |max_wr: i32, max_sge: i32| {
        let attr = ibv_srq_attr { max_wr: max_wr as u32, max_sge: max_sge as u32, srq_limit: 5 };
        let mut attributes = ibv_srq_init_attr { attr, ..ibv_srq_init_attr::default() };
        // SAFETY: the domain is alive.
        let srq = unsafe { Soft.create_srq(node.domain, &mut attributes) }.map_err(|error| error.errno())?;
        node.queues.borrow_mut().push(srq);
        Ok(query(srq))
    };
    assert_eq!(create(1, 0), Ok((1, 0, 0)), "the limit is not for creation");
    assert!(create(limits.max_srq_wr, limits.max_srq_sge).is_ok());
    for (wr, sge) in [(0, 1), (limits.max_srq_wr + 1, 1), (1, limits.max_srq_sge + 1)] {
        assert_eq!(create(wr, sge), Err(libc::EINVAL));
    }
}

#[test]
fn c151_c137_a_pair_with_a_shared_queue_has_none_of_its_own() {
    let star = Star::new(4, SETTINGS);
    assert_eq!(star.right.try_receive(star.into[0], 1, &[]), libc::EINVAL);
    let cap = star.into[0].query().cap;
    assert_eq!((cap.max_recv_wr, cap.max_recv_sge, cap.max_send_wr), (0, 0, CAP.max_send_wr));
    // SAFETY: the shared queue is alive. The call is refused while a pair uses the queue.
    assert_eq!(unsafe { Soft.destroy_srq(star.srq) }.unwrap_err().errno(), libc::EBUSY);
    let many = vec![star.right.memory(1, LOCAL).sge(0, 1); 5];
    assert_eq!(star.right.share(star.srq, 1, &many), libc::EINVAL, "one entry more than it takes");
    let stranger = Node::new(&star.fabric, "right");
    let attributes = ibv_qp_init_attr { srq: star.srq.as_ptr(), ..stranger.init_attributes() };
    assert_eq!(stranger.create(attributes).map(|_| ()), Err(libc::EINVAL), "another context's queue");
    let lone = star.right.shared(2);
    assert_eq!(star.right.share(lone, 1, &[]), 0);
    let lone = star.right.queues.borrow_mut().pop().unwrap();
    // SAFETY: the shared queue is alive, and nobody uses it any more. The device drops the receives in it.
    unsafe { Soft.destroy_srq(lone) }.unwrap();
}

#[test]
fn a_list_stops_at_its_first_bad_receive() {
    let star = Star::new(3, SETTINGS);
    let mut wrs: Vec<_> = (0..5).map(|id| receive_wr(id, &mut [])).collect();
    let mut first = ptr::null_mut();
    for wr in wrs.iter_mut().rev() {
        wr.next = first;
        first = wr;
    }
    let mut bad = ptr::null_mut::<ibv_recv_wr>();
    let post = star.right.ops().post_srq_recv.unwrap();
    // SAFETY: the shared queue is alive, and `first` is a list of requests.
    let errno = unsafe { post(star.srq.as_ptr(), first, &mut bad) };
    // SAFETY: the list has five receives, and the queue has room for three. So the device refuses the fourth, whose id
    // is 3, and `bad` points to it.
    assert_eq!((errno, unsafe { (*bad).wr_id }), (libc::ENOMEM, 3));
    for (id, turn) in [(10, 0), (11, 1), (12, 0)] {
        star.send(turn, id);
    }
    assert_eq!(star.received().len(), 3);
}
