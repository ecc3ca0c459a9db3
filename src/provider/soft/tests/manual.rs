use super::*;
use ibv_wc_status as S;

#[test]
fn nothing_moves_without_a_step() {
    let link = Link::manual();
    let (from, to) = (link.left.memory(1, 0), link.right.memory(1, ALL));
    from.set(&[7; 8]);
    assert!(!link.fabric.step());
    link.left.send(link.a, Request::write(1, &[from.sge(0, 8)], &to, 0));
    assert!(link.left.poll().is_empty());
    assert_eq!(to.get(8), [0; 8]);
    // The first step carries the request to the peer, and the second step brings the answer back.
    assert!(link.fabric.step());
    assert_eq!(to.get(8), [7; 8]);
    assert!(link.left.poll().is_empty());
    assert!(link.fabric.step());
    assert_eq!(link.left.completed(), [(1, SUCCESS)]);
    assert!(!link.fabric.step());
}

#[test]
fn a_request_that_was_executed_may_be_flushed() {
    let link = Link::manual();
    link.right.receive(link.b, 1, &[]);
    link.left.send(link.a, Request::send(2, &[]));
    assert!(link.fabric.step());
    link.a.enter(ERR).unwrap();
    assert_eq!(link.fabric.run(), 1);
    assert_eq!(link.left.completed(), [(2, FLUSHED)]);
    assert_eq!(link.right.completed(), [(1, SUCCESS)]);
}

#[test]
fn flushes_are_steps() {
    let link = Link::manual();
    link.left.receive(link.a, 1, &[]);
    link.left.receive(link.a, 2, &[]);
    link.a.enter(ERR).unwrap();
    assert!(link.left.poll().is_empty());
    assert!(link.fabric.step());
    assert_eq!(link.left.completed(), [(1, FLUSHED)]);
    assert_eq!(link.fabric.run(), 1);
    assert_eq!(link.left.completed(), [(2, FLUSHED)]);
}

#[test]
fn retries_take_their_time() {
    let link = Link::manual();
    link.right.destroy(link.b).unwrap();
    link.left.send(link.a, Request::send(1, &[]));
    let timeout = Duration::from_nanos(4096 << SETTINGS.timeout);
    for _ in 0..=SETTINGS.retry_cnt {
        assert_eq!(link.fabric.run().min(1), 1);
        assert!(link.left.poll().is_empty());
        assert_eq!(link.fabric.next_timer(), Some(timeout));
        // Only the program moves the clock of a manual fabric, so the device never tells a waiting thread when to wake
        // up.
        assert_eq!(link.left.next_timer(), None);
        link.fabric.advance(timeout - Duration::from_nanos(1));
        assert_eq!(link.fabric.run(), 0);
        link.fabric.advance(Duration::from_nanos(1));
    }
    link.fabric.run();
    assert_eq!(link.left.completed(), [(1, S::IBV_WC_RETRY_EXC_ERR)]);
    assert_eq!(link.fabric.next_timer(), None);
}

#[test]
fn timeout_0_waits_for_ever() {
    let link = Link::with(Fabric::manual(), Settings { timeout: 0, ..SETTINGS }, SETTINGS);
    link.right.destroy(link.b).unwrap();
    link.left.send(link.a, Request::send(1, &[]));
    link.fabric.run();
    link.fabric.advance(Duration::from_secs(100_000));
    assert_eq!((link.fabric.run(), link.fabric.next_timer()), (0, None));
    link.a.enter(ERR).unwrap();
    link.fabric.run();
    assert_eq!(link.left.completed(), [(1, FLUSHED)]);
}

#[test]
fn a_receiver_that_is_not_ready_names_the_delay() {
    for (code, micros) in [(0, 655_360), (1, 10), (14, 1280), (31, 491_520)] {
        let link = Link::with(Fabric::manual(), SETTINGS, Settings { min_rnr_timer: code, ..SETTINGS });
        link.left.send(link.a, Request::send(1, &[]));
        for _ in 0..SETTINGS.rnr_retry {
            link.fabric.run();
            assert_eq!(link.fabric.next_timer(), Some(Duration::from_micros(micros)));
            link.fabric.advance(Duration::from_micros(micros));
        }
        link.fabric.run();
        assert_eq!(link.left.completed(), [(1, S::IBV_WC_RNR_RETRY_EXC_ERR)]);
        assert_eq!(link.b.state(), RTS);
    }
}

#[test]
fn rnr_retry_7_is_for_ever() {
    let link = Link::with(Fabric::manual(), Settings { rnr_retry: 7, ..SETTINGS }, SETTINGS);
    link.left.send(link.a, Request::send(1, &[]));
    for _ in 0..500 {
        link.fabric.run();
        link.fabric.advance(Duration::from_millis(1));
    }
    assert!(link.left.poll().is_empty());
    link.right.receive(link.b, 2, &[]);
    link.fabric.run();
    assert_eq!((link.left.completed(), link.right.completed()), (vec![(1, SUCCESS)], vec![(2, SUCCESS)]));
}

#[test]
fn pairs_take_turns() {
    let fabric = Fabric::manual();
    let node = Node::new(&fabric, "one");
    let pairs = [node.pair(), node.pair()];
    for (number, pair) in (0..).zip(pairs) {
        pair.connect(pair);
        for id in 0..2 {
            node.send(pair, Request::new(10 * number + id, ibv_wr_opcode::IBV_WR_RDMA_WRITE, &[]));
        }
    }
    assert_eq!(fabric.run(), 8);
    assert_eq!(node.completed(), [0, 10, 1, 11].map(|id| (id, SUCCESS)));
}

#[test]
fn an_automatic_clock_can_run_ahead() {
    let link = Link::with(Fabric::new(), Settings { timeout: 31, ..SETTINGS }, SETTINGS);
    link.right.destroy(link.b).unwrap();
    link.left.send(link.a, Request::send(1, &[]));
    for _ in 0..4 {
        assert!(link.left.poll().is_empty());
        link.fabric.advance(Duration::from_secs(9000));
    }
    assert_eq!(link.left.completed(), [(1, S::IBV_WC_RETRY_EXC_ERR)]);
}

#[test]
fn a_region_deregistered_under_a_posted_request_is_not_touched() {
    let link = Link::manual();
    let (from, to) = (link.left.memory(1, 0), link.right.memory(1, LOCAL));
    link.right.receive(link.b, 1, &[to.sge(0, 8)]);
    link.left.send(link.a, Request::send(2, &[from.sge(0, 8)]));
    link.right.deregister(&to).unwrap();
    link.fabric.run();
    assert_eq!(link.left.completed(), [(2, S::IBV_WC_REM_OP_ERR)]);
    assert_eq!(link.right.completed(), [(1, S::IBV_WC_LOC_PROT_ERR)]);
}
