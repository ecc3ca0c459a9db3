//! Requests with more than one entry, and the rarer operations.

use super::*;
use ibv_wc_status as S;

/// A link whose pairs take up to `sges` entries in a request.
fn wide(sges: u32) -> Link {
    let link = Link::automatic();
    let make = |node: &Node| {
        let cap = ibv_qp_cap { max_send_sge: sges, max_recv_sge: sges, ..CAP };
        let qp = node.create(ibv_qp_init_attr { cap, ..node.init_attributes() }).unwrap();
        Pair { qp, gid: node.gid(1), settings: SETTINGS }
    };
    let (a, b) = (make(&link.left), make(&link.right));
    a.connect(b);
    b.connect(a);
    Link { a, b, ..link }
}

#[test]
fn as_many_entries_as_the_device_says() {
    let limit = 32;
    let link = wide(limit);
    let (from, to) = (link.left.memory(32, 0), link.right.memory(32, ALL));
    from.set(&(0..=255).collect::<Vec<u8>>());
    let entries = |region: &Region, count: u64| -> Vec<ibv_sge> {
        // Each entry has four bytes. The addresses of the entries go down.
        (0..count).map(|entry| region.sge(4 * 31_u64.saturating_sub(entry), 4)).collect()
    };
    // Repeat the requests: the device reuses the vectors that hold long lists of entries, and a reused vector must hold
    // no old entry.
    for round in 0..3 {
        to.set(&[0; 256]);
        link.right.receive(link.b, 1, &entries(&to, 32));
        assert_eq!(link.status(Request::send(2, &entries(&from, 32))), SUCCESS);
        assert_eq!(link.right.completed(), [(1, SUCCESS)]);
        assert_eq!(to.get(128), from.get(128), "round {round}");
        link.right.receive(link.b, 3, &[to.sge(128, 20)]);
        assert_eq!(link.status(Request::send(4, &entries(&from, 5))), SUCCESS);
        assert_eq!(link.right.completed(), [(3, SUCCESS)]);
        assert_eq!(to.get(132)[128..], from.get(128)[124..]);
    }
    // Reads and writes take many entries too.
    let back = link.left.memory(32, LOCAL);
    assert_eq!(link.status(Request::read(5, &entries(&back, 32), &to, 0)), SUCCESS);
    let forward: Vec<u8> = to.get(128).chunks(4).rev().flatten().copied().collect();
    assert_eq!(back.get(128), forward);
    assert_eq!(link.status(Request::write(6, &entries(&from, 32), &to, 0)), SUCCESS);
    let forward: Vec<u8> = from.get(128).chunks(4).rev().flatten().copied().collect();
    assert_eq!(to.get(128), forward);
    assert_eq!(link.left.try_send(link.a, Request::send(7, &entries(&from, 33))), libc::EINVAL);
    assert_eq!(link.right.try_receive(link.b, 7, &entries(&to, 33)), libc::EINVAL);
}

#[test]
fn a_flush_gives_lists_back_too() {
    let link = wide(8);
    let sges: Vec<_> = (0..8).map(|entry| link.left.memory(1, LOCAL).sge(0, entry)).collect();
    for _ in 0..2 {
        for id in 0..3 {
            link.left.receive(link.a, id, &sges);
        }
        link.a.enter(ERR).unwrap();
        link.left.send(link.a, Request::send(3, &sges));
        assert_eq!(link.left.completed(), [0, 1, 2, 3].map(|id| (id, FLUSHED)));
        link.a.enter(RESET).unwrap();
        link.a.connect(link.b);
    }
}

#[test]
fn inline_data_is_gathered_and_no_key_is_looked_at() {
    let link = Link::automatic();
    let to = link.right.memory(2, ALL);
    let mut data = *b"inline data";
    let addr = data.as_mut_ptr().expose_provenance() as u64;
    let sges = [(6, 5), (0, 0), (0, 6)].map(|(offset, length)| ibv_sge { addr: addr + offset, length, lkey: 0xbad });
    let inline = Request::write(1, &sges, &to, 1).flag(ibv_send_flags::IBV_SEND_INLINE);
    assert_eq!(link.status(inline), SUCCESS);
    assert_eq!(to.get(12)[1..], *b" datainline");
    let zero = Request::write(2, &[], &to, 0).flag(ibv_send_flags::IBV_SEND_INLINE);
    assert_eq!(link.status(zero), SUCCESS);
}

#[test]
fn c062_a_fenced_request_waits_for_the_read_before_it() {
    let link = Link::automatic();
    let (data, remote, echo) = (link.left.memory(1, LOCAL), link.right.memory(1, READ), link.right.memory(1, LOCAL));
    remote.set(&[5; 8]);
    link.right.receive(link.b, 1, &[echo.sge(0, 8)]);
    let mut first = [data.sge(0, 8)];
    let mut second = [data.sge(0, 8)];
    let send = Request::send(3, &second).flag(ibv_send_flags::IBV_SEND_FENCE);
    let mut wrs = [Request::read(2, &first, &remote, 0).raw(&mut first), send.raw(&mut second)];
    assert_eq!(link.left.post_send(link.a, &mut wrs), (0, None));
    assert_eq!(link.left.completed(), [(2, SUCCESS), (3, SUCCESS)]);
    assert_eq!(echo.get(8), [5; 8]);
}

#[test]
fn solicited_is_for_what_takes_a_receive() {
    let solicited = ibv_send_flags::IBV_SEND_SOLICITED;
    let link = Link::automatic();
    let to = link.right.memory(1, ALL);
    for (request, event) in [
        (Request::write(1, &[], &to, 0).immediate(3).flag(solicited), true),
        (Request::send(1, &[]).immediate(3).flag(solicited), true),
        (Request::write(1, &[], &to, 0).immediate(3), false),
        (Request::send(1, &[]).immediate(3), false),
        (Request::write(1, &[], &to, 0).flag(solicited), false),
    ] {
        link.right.arm(true);
        link.right.receive(link.b, 2, &[]);
        assert_eq!(link.status(request), SUCCESS);
        assert_eq!(link.right.take_event(), event);
        link.right.poll();
    }
}

fn atomic_write(id: u64, sge: ibv_sge, to: &Region, offset: u64) -> Request {
    Request::new(id, ibv_wr_opcode::IBV_WR_ATOMIC_WRITE, &[sge]).at(to.addr() + offset, to.rkey())
}

#[test]
fn c064_an_atomic_write_writes_eight_bytes() {
    let link = Link::automatic();
    let (from, to) = (link.left.memory(2, 0), link.right.memory(2, ALL));
    from.set(b"01234567");
    link.left.send(link.a, atomic_write(1, from.sge(0, 8), &to, 8));
    let wc = link.left.poll()[0];
    assert_eq!((wc.status, wc.opcode), (SUCCESS, ibv_wc_opcode::IBV_WC_ATOMIC_WRITE));
    assert_eq!(to.get(16), [&[0; 8][..], b"01234567"].concat());
    let mut data = *b"abcdefgh";
    let sge = ibv_sge { addr: data.as_mut_ptr().expose_provenance() as u64, length: 8, lkey: 0 };
    let inline = atomic_write(2, sge, &to, 0).flag(ibv_send_flags::IBV_SEND_INLINE);
    assert_eq!(link.status(inline), SUCCESS);
    assert_eq!(to.get(8), *b"abcdefgh");
}

#[test]
fn an_atomic_write_has_rules() {
    let outcome = |a: Settings, b: Settings, make: fn(&Link) -> Request| {
        let link = Link::with(Fabric::new(), a, b);
        let request = make(&link);
        (link.status(request), link.b.state())
    };
    let plain = |link: &Link| atomic_write(1, link.left.memory(2, 0).sge(0, 8), &link.right.memory(2, ALL), 0);
    let none = Settings { max_dest_rd_atomic: 0, ..SETTINGS };
    assert_eq!(outcome(SETTINGS, none, plain), (S::IBV_WC_REM_INV_REQ_ERR, ERR));
    let none = Settings { max_rd_atomic: 0, ..SETTINGS };
    assert_eq!(outcome(none, SETTINGS, plain), (S::IBV_WC_LOC_QP_OP_ERR, RTS));
    let none = Settings { access: ALL & !WRITE, ..SETTINGS };
    assert_eq!(outcome(SETTINGS, none, plain), (S::IBV_WC_REM_INV_REQ_ERR, ERR));
    let misaligned = |link: &Link| atomic_write(1, link.left.memory(2, 0).sge(0, 8), &link.right.memory(2, ALL), 4);
    assert_eq!(outcome(SETTINGS, SETTINGS, misaligned), (S::IBV_WC_REM_INV_REQ_ERR, ERR));
    let outside = |link: &Link| atomic_write(1, link.left.memory(2, 0).sge(0, 8), &link.right.memory(2, ALL), 16);
    assert_eq!(outcome(SETTINGS, SETTINGS, outside), (S::IBV_WC_REM_ACCESS_ERR, ERR));
    let short = |link: &Link| atomic_write(1, link.left.memory(2, 0).sge(0, 7), &link.right.memory(2, ALL), 0);
    assert_eq!(outcome(SETTINGS, SETTINGS, short), (S::IBV_WC_LOC_LEN_ERR, RTS));
    let no_right = |link: &Link| atomic_write(1, link.left.memory(2, 0).sge(0, 8), &link.right.memory(2, READ), 0);
    assert_eq!(outcome(SETTINGS, SETTINGS, no_right), (S::IBV_WC_REM_ACCESS_ERR, ERR));
}

#[test]
fn a_lost_answer_does_not_write_twice() {
    let link = Link::manual();
    let (from, to) = (link.left.memory(1, 0), link.right.memory(1, ALL));
    from.set(b"01234567");
    link.fabric.inject(crate::provider::soft::Fault::AnswersLost { count: 1 });
    link.left.send(link.a, atomic_write(1, from.sge(0, 8), &to, 0));
    link.fabric.run();
    to.set(&[0; 8]);
    link.fabric.advance(link.fabric.next_timer().unwrap());
    link.fabric.run();
    assert_eq!((link.left.completed(), to.get(8)), (vec![(1, SUCCESS)], vec![0; 8]));
}
