//! Unreliable connections.

use super::*;
use ibv_wc_status as S;

const UNRELIABLE: Settings = Settings { transport: UC, ..SETTINGS };

fn link() -> Link {
    Link::with(Fabric::new(), UNRELIABLE, UNRELIABLE)
}

#[test]
fn sends_and_writes_arrive() {
    let link = link();
    let (from, to) = (link.left.memory(4, 0), link.right.memory(8, ALL));
    from.set(b"hello, unreliable world");
    link.right.receive(link.b, 1, &[to.sge(0, 32)]);
    assert_eq!(link.status(Request::send(2, &[from.sge(0, 5), from.sge(5, 18)]).immediate(7)), SUCCESS);
    let received = link.right.poll()[0];
    assert_eq!((received.wr_id, received.status, received.byte_len), (1, SUCCESS, 23));
    assert_eq!(received.wc_flags, ibv_wc_flags::IBV_WC_WITH_IMM.0);
    assert_eq!(to.get(23), b"hello, unreliable world");
    assert_eq!(link.status(Request::write(3, &[from.sge(0, 5)], &to, 32)), SUCCESS);
    assert_eq!(to.get(37)[32..], *b"hello");
    link.right.receive(link.b, 4, &[]);
    assert_eq!(link.status(Request::write(5, &[from.sge(0, 5)], &to, 40).immediate(1)), SUCCESS);
    let received = link.right.poll()[0];
    assert_eq!((received.opcode, received.byte_len), (ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM, 5));
    assert_eq!((link.a.state(), link.b.state()), (RTS, RTS));
}

#[test]
fn row_29_what_does_not_fit_is_dropped_without_a_word() {
    let link = link();
    let (from, to) = (link.left.memory(1, 0), link.right.memory(1, LOCAL | READ));
    from.set(&[1; 8]);
    assert_eq!(link.status(Request::send(1, &[])), SUCCESS, "no receive");
    assert_eq!(link.status(Request::write(2, &[from.sge(0, 8)], &to, 0)), SUCCESS, "no right");
    assert_eq!(link.status(Request::write(3, &[from.sge(0, 8)], &to, 0).at(0, 1)), SUCCESS, "no such key");
    assert_eq!(link.status(Request::write(4, &[], &to, 0).immediate(1)), SUCCESS, "no receive");
    link.right.receive(link.b, 5, &[]);
    assert_eq!(link.status(Request::write(6, &[from.sge(0, 8)], &to, 0).immediate(1)), SUCCESS, "no right");
    assert!(link.right.poll().is_empty());
    assert_eq!((to.get(8), link.b.state()), (vec![0; 8], RTS));
    // The receive was not consumed: the next message that fits takes it.
    assert_eq!(link.status(Request::send(7, &[])), SUCCESS);
    assert_eq!(link.right.completed(), [(5, SUCCESS)]);
    assert!(link.right.events().is_empty());
}

#[test]
fn a_pair_that_permits_no_writes_gets_none() {
    let link = Link::with(Fabric::new(), UNRELIABLE, Settings { access: READ, ..UNRELIABLE });
    let (from, to) = (link.left.memory(1, 0), link.right.memory(1, ALL));
    from.set(&[1; 8]);
    assert_eq!(link.status(Request::write(1, &[from.sge(0, 8)], &to, 0)), SUCCESS);
    assert_eq!((to.get(8), link.b.state()), (vec![0; 8], RTS));
}

#[test]
fn row_30_a_receive_at_fault_breaks_the_responder() {
    for small in [true, false] {
        let link = link();
        let to = link.right.memory(1, if small { LOCAL } else { 0 });
        link.right.receive(link.b, 1, &[to.sge(0, if small { 4 } else { 8 })]);
        link.right.receive(link.b, 2, &[]);
        assert_eq!(link.status(Request::send(3, &[link.left.memory(1, 0).sge(0, 8)])), SUCCESS);
        let fault = if small { S::IBV_WC_LOC_LEN_ERR } else { S::IBV_WC_LOC_PROT_ERR };
        assert_eq!(link.right.completed(), [(1, fault), (2, FLUSHED)]);
        assert_eq!((link.a.state(), link.b.state()), (RTS, ERR));
    }
}

#[test]
fn a_failed_send_stops_sending_and_not_receiving() {
    let link = link();
    let bad = ibv_sge { addr: 8, length: 8, lkey: 1 };
    assert_eq!(link.status(Request::send(1, &[bad])), S::IBV_WC_LOC_PROT_ERR);
    assert_eq!(link.a.state(), SQE);
    link.left.send(link.a, Request::send(2, &[]).unsignaled());
    assert_eq!(link.left.completed(), [(2, FLUSHED)]);
    link.left.receive(link.a, 3, &[]);
    link.right.send(link.b, Request::send(4, &[]));
    assert_eq!(link.left.completed(), [(3, SUCCESS)]);
    // From Send Queue Error the pair can go to Ready To Send, but not to Send Queue Drain.
    assert_eq!(link.a.enter(SQD), Err(libc::EINVAL));
    link.a.enter(RTS).unwrap();
    link.right.poll();
    assert!(link.works());
    assert_eq!(link.a.enter(SQE), Err(libc::EINVAL), "only the device does that");
}

#[test]
fn what_was_posted_before_a_failure_was_known_is_flushed() {
    let link = Link::with(Fabric::manual(), UNRELIABLE, UNRELIABLE);
    link.right.receive(link.b, 9, &[]);
    let bad = ibv_sge { addr: 8, length: 8, lkey: 1 };
    for request in [Request::send(1, &[bad]), Request::send(2, &[]), Request::send(3, &[]).unsignaled()] {
        link.left.send(link.a, request);
    }
    assert!(link.fabric.step() && link.fabric.step());
    assert_eq!(link.a.state(), SQE);
    // Requests 2 and 3 are not flushed yet. When the pair enters Ready To Send again, the device flushes them instead
    // of sending them.
    link.a.enter(RTS).unwrap();
    link.left.send(link.a, Request::send(4, &[]));
    link.fabric.run();
    assert_eq!(link.left.completed(), [(1, S::IBV_WC_LOC_PROT_ERR), (2, FLUSHED), (3, FLUSHED), (4, SUCCESS)]);
    assert_eq!(link.right.completed(), [(9, SUCCESS)]);
}

#[test]
fn from_a_send_error_there_are_ways_out() {
    for (way, end) in [(ERR, ERR), (RESET, RESET)] {
        let link = link();
        link.left.receive(link.a, 1, &[]);
        link.status(Request::send(2, &[ibv_sge { addr: 8, length: 8, lkey: 1 }]));
        link.a.enter(way).unwrap();
        assert_eq!(link.a.state(), end);
        assert_eq!(link.left.completed(), vec![(1, FLUSHED); usize::from(way == ERR)]);
    }
}

#[test]
fn lost_messages_are_lost() {
    let link = link();
    link.right.receive(link.b, 1, &[]);
    link.fabric.inject(crate::provider::soft::Fault::RequestsLost { count: 1 });
    assert_eq!(link.status(Request::send(2, &[])), SUCCESS);
    assert!(link.right.poll().is_empty());
    assert_eq!(link.status(Request::send(3, &[])), SUCCESS);
    assert_eq!(link.right.completed(), [(1, SUCCESS)]);
    link.right.destroy(link.b).unwrap();
    assert_eq!(link.status(Request::send(4, &[])), SUCCESS);
    assert_eq!(link.fabric.next_timer(), None);
}

#[test]
fn packets_of_another_size_are_dropped_and_other_numbers_are_not() {
    let link = Link::with(Fabric::new(), UNRELIABLE, Settings { mtu: ibv_mtu::IBV_MTU_256, ..UNRELIABLE });
    let (from, to) = (link.left.memory(250, 0), link.right.memory(250, LOCAL));
    link.right.receive(link.b, 1, &[to.sge(0, 2000)]);
    assert_eq!(link.status(Request::send(2, &[from.sge(0, 2000)])), SUCCESS);
    assert!(link.right.poll().is_empty());
    assert_eq!(link.b.state(), RTS);
    let link = Link::with(Fabric::new(), UNRELIABLE, Settings { rq_psn: 77, ..UNRELIABLE });
    assert!(link.works());
    assert_eq!(link.b.query().rq_psn, 0xff_ffff);
}

#[test]
fn operations_that_need_an_answer_are_refused() {
    let link = link();
    let (local, remote) = (link.left.memory(1, LOCAL), link.right.memory(1, ALL));
    let sges = [local.sge(0, 8)];
    for request in [
        Request::read(1, &sges, &remote, 0),
        Request::add(1, &sges, &remote, 0, 1),
        Request::swap(1, &sges, &remote, 0, 1),
        Request::new(1, ibv_wr_opcode::IBV_WR_ATOMIC_WRITE, &sges),
    ] {
        assert_eq!(link.left.try_send(link.a, request), libc::EINVAL);
    }
    assert!(link.works());
}

#[test]
fn pairs_of_two_transports_do_not_meet() {
    let link = Link::with(Fabric::new(), UNRELIABLE, SETTINGS);
    link.right.receive(link.b, 1, &[]);
    assert_eq!(link.status(Request::send(2, &[])), SUCCESS);
    assert!(link.right.poll().is_empty());
}
