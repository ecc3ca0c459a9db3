//! Memory windows.

use super::{
    support::{bind_info, rkey_of},
    *,
};
use ibv_wc_status as S;

const ONE: ibv_mw_type = ibv_mw_type::IBV_MW_TYPE_1;
const TWO: ibv_mw_type = ibv_mw_type::IBV_MW_TYPE_2;
const BIND: u32 = ibv_access_flags::IBV_ACCESS_MW_BIND.0;
const ZERO: u32 = ibv_access_flags::IBV_ACCESS_ZERO_BASED.0;

/// Binds a window of the right node, of either type, and returns the status of the bind.
fn bound(link: &Link, window: NonNull<ibv_mw>, info: ibv_mw_bind_info) -> S {
    // SAFETY: the window is alive: no test uses a window that it has freed.
    if unsafe { (*window.as_ptr()).type_ } == ONE {
        assert_eq!(link.b.bind(70, window, info), 0);
    } else {
        link.right.send(link.b, Request::bind(70, window, info));
    }
    link.fabric.run();
    let completed = link.right.poll();
    assert_eq!((completed.len(), completed[0].wr_id), (1, 70));
    if completed[0].status == SUCCESS {
        assert_eq!(completed[0].opcode, ibv_wc_opcode::IBV_WC_BIND_MW);
    }
    completed[0].status
}

/// Writes `len` bytes to `addr` under `rkey`, and returns the status.
fn write(link: &Link, rkey: u32, addr: u64, len: u32) -> S {
    let from = link.left.memory(4, 0);
    from.set(&[9; 32]);
    link.status(Request::new(1, ibv_wr_opcode::IBV_WR_RDMA_WRITE, &[from.sge(0, len)]).at(addr, rkey))
}

#[test]
fn c083_a_window_lets_a_peer_write_within_it_and_nowhere_else() {
    for kind in [ONE, TWO] {
        for (offset, len, fits) in [(8, 16, true), (9, 15, true), (7, 1, false), (8, 17, false), (24, 1, false)] {
            let link = Link::automatic();
            // The region itself gives the peer no right.
            let region = link.right.memory(4, LOCAL | BIND);
            let window = link.right.window(kind);
            assert_eq!(bound(&link, window, bind_info(&region, 8, 16, WRITE)), SUCCESS);
            let status = write(&link, rkey_of(window), region.addr() + offset, len);
            assert_eq!(status == SUCCESS, fits, "{offset}, {len}");
            let written = region.get(32).iter().filter(|&&byte| byte == 9).count();
            assert_eq!(written, if fits { len as usize } else { 0 });
            if !fits {
                assert_eq!((status, link.b.state()), (S::IBV_WC_REM_ACCESS_ERR, ERR));
            }
        }
    }
}

#[test]
fn m5_a_window_permits_what_it_was_bound_for() {
    let read = |link: &Link, region: &Region, rkey: u32| {
        let to = link.left.memory(1, LOCAL);
        link.status(Request::read(1, &[to.sge(0, 8)], region, 0).at(region.addr(), rkey))
    };
    let add = |link: &Link, region: &Region, rkey: u32| {
        let to = link.left.memory(1, LOCAL);
        link.status(Request::add(1, &[to.sge(0, 8)], region, 0, 1).at(region.addr(), rkey))
    };
    let store = |link: &Link, region: &Region, rkey: u32| write(link, rkey, region.addr(), 8);
    type Try<'a> = &'a dyn Fn(&Link, &Region, u32) -> S;
    let all: [(u32, Try); 3] = [(READ, &read), (WRITE, &store), (ATOMIC, &add)];
    for (granted, _) in all {
        for (needed, attempt) in all {
            let link = Link::automatic();
            let region = link.right.memory(1, LOCAL | BIND);
            let window = link.right.window(TWO);
            assert_eq!(bound(&link, window, bind_info(&region, 0, 8, granted)), SUCCESS);
            let expected = if granted == needed { SUCCESS } else { S::IBV_WC_REM_ACCESS_ERR };
            assert_eq!(attempt(&link, &region, rkey_of(window)), expected);
        }
    }
}

#[test]
fn m1_each_bind_of_type_1_has_the_next_key() {
    let link = Link::automatic();
    let region = link.right.memory(4, LOCAL | BIND);
    let window = link.right.window(ONE);
    let first = rkey_of(window);
    assert_eq!(write(&link, first, region.addr(), 8), S::IBV_WC_REM_ACCESS_ERR, "bound to nothing");
    let link = Link::automatic();
    let region = link.right.memory(4, LOCAL | BIND);
    let window = link.right.window(ONE);
    let first = rkey_of(window);
    assert_eq!(bound(&link, window, bind_info(&region, 0, 8, WRITE)), SUCCESS);
    assert_eq!(rkey_of(window), inline::ibv_inc_rkey(first));
    // The window is bound a second time without an invalidation, over other bytes and with another key.
    assert_eq!(bound(&link, window, bind_info(&region, 16, 8, WRITE)), SUCCESS);
    let second = rkey_of(window);
    assert_eq!(second & 0xff, first.wrapping_add(2) & 0xff);
    assert_eq!(write(&link, second, region.addr() + 16, 8), SUCCESS);
    assert_eq!(write(&link, inline::ibv_inc_rkey(first), region.addr(), 8), S::IBV_WC_REM_ACCESS_ERR, "the old key");
    assert_eq!(inline::ibv_inc_rkey(0x1234_56ff), 0x1234_5600);
}

#[test]
fn m4_no_bytes_unbind_type_1() {
    let link = Link::automatic();
    let region = link.right.memory(4, LOCAL | BIND);
    let window = link.right.window(ONE);
    assert_eq!(bound(&link, window, bind_info(&region, 0, 8, WRITE)), SUCCESS);
    assert_eq!(link.right.deregister(&region), Err(libc::EBUSY));
    let nothing = ibv_mw_bind_info { mr: ptr::null_mut(), addr: 0, length: 0, mw_access_flags: 0 };
    assert_eq!(bound(&link, window, nothing), SUCCESS);
    assert_eq!(write(&link, rkey_of(window), region.addr(), 8), S::IBV_WC_REM_ACCESS_ERR);
    assert_eq!(link.right.deregister(&region), Ok(()));
}

#[test]
fn m2_m3_what_cannot_be_bound() {
    let refused = |make: &dyn Fn(&Link, NonNull<ibv_mw>) -> ibv_mw_bind_info, kinds: &[ibv_mw_type]| {
        for &kind in kinds {
            let link = Link::automatic();
            let window = link.right.window(kind);
            let info = make(&link, window);
            assert_eq!(bound(&link, window, info), S::IBV_WC_MW_BIND_ERR);
            assert_eq!(link.b.state(), ERR);
        }
    };
    let both = [ONE, TWO];
    refused(&|link, _| bind_info(&link.right.memory(2, LOCAL), 0, 8, WRITE), &both);
    refused(&|link, _| bind_info(&link.right.memory(2, BIND), 0, 8, WRITE), &both);
    refused(&|link, _| bind_info(&link.right.memory(2, BIND | READ), 0, 8, ATOMIC), &both);
    refused(&|link, _| bind_info(&link.right.memory(2, LOCAL | BIND), 8, 16, WRITE), &both);
    refused(&|link, _| bind_info(&link.right.memory(2, LOCAL | BIND), u64::MAX - 3, 8, WRITE), &both);
    refused(&|link, _| bind_info(&link.right.memory(2, LOCAL | BIND), 0, 0, WRITE), &[TWO]);
    // A window must consist of whole aligned words if its region has no remote rights.
    refused(&|link, _| bind_info(&link.right.memory(2, LOCAL | BIND), 4, 8, WRITE), &both);
    refused(&|link, _| bind_info(&link.right.memory(2, LOCAL | BIND), 0, 12, WRITE), &both);
    // A window of type 2 must be invalidated before it is bound again.
    let bound_once = |link: &Link, window: NonNull<ibv_mw>| {
        let region = link.right.memory(2, LOCAL | BIND);
        assert_eq!(bound(link, window, bind_info(&region, 0, 8, WRITE)), SUCCESS);
        bind_info(&region, 8, 8, WRITE)
    };
    refused(&bound_once, &[TWO]);
    // A bind must name a key of its own window.
    let link = Link::automatic();
    let (region, window) = (link.right.memory(1, LOCAL | BIND), link.right.window(TWO));
    let mut request = Request::bind(1, window, bind_info(&region, 0, 8, READ));
    request.bind.as_mut().unwrap().rkey = rkey_of(link.right.window(TWO));
    link.right.send(link.b, request);
    assert_eq!(link.right.completed(), [(1, S::IBV_WC_MW_BIND_ERR)]);
    // The window is freed before the bind is executed, and another window gets the same index. The bind must not bind
    // that other window.
    let link = Link::manual();
    let (region, window) = (link.right.memory(1, LOCAL | BIND), link.right.window(TWO));
    link.right.send(link.b, Request::bind(1, window, bind_info(&region, 0, 8, READ)));
    let window = link.right.windows.borrow_mut().pop().unwrap();
    // SAFETY: the window is alive. The request in flight names the window only by its number.
    unsafe { Soft.dealloc_mw(window) }.unwrap();
    link.right.window(TWO);
    link.fabric.run();
    assert_eq!(link.right.completed(), [(1, S::IBV_WC_MW_BIND_ERR)]);
    // The region is deregistered before the bind is executed, and another region gets the same index, but another key.
    // The bind must not use that other region.
    let link = Link::manual();
    let (region, window) = (link.right.memory(1, LOCAL | BIND), link.right.window(TWO));
    link.right.send(link.b, Request::bind(1, window, bind_info(&region, 0, 8, READ)));
    link.right.deregister(&region).unwrap();
    // SAFETY: the domain is alive. The node keeps the memory of `region` until the node is dropped, and the new region
    // ends before that.
    let again = unsafe { Soft.reg_mr(link.right.domain, region.words.cast(), 8, ibv_access_flags(LOCAL | BIND)) };
    link.fabric.run();
    assert_eq!(link.right.completed(), [(1, S::IBV_WC_MW_BIND_ERR)]);
    // SAFETY: the region is registered.
    unsafe { Soft.dereg_mr(again.unwrap()) }.unwrap();
}

#[test]
fn exposed_regions_are_bound_by_the_byte() {
    let link = Link::automatic();
    let region = link.right.memory(4, ALL | BIND);
    let window = link.right.window(TWO);
    assert_eq!(bound(&link, window, bind_info(&region, 3, 5, WRITE)), SUCCESS);
    assert_eq!(write(&link, rkey_of(window), region.addr() + 3, 5), SUCCESS);
    assert_eq!(region.get(9), [0, 0, 0, 9, 9, 9, 9, 9, 0]);
    assert_eq!(write(&link, rkey_of(window), region.addr() + 3, 6), S::IBV_WC_REM_ACCESS_ERR);
}

#[test]
fn m3_windows_regions_and_pairs_are_of_one_domain() {
    for kind in [ONE, TWO] {
        for of_window in [false, true] {
            let link = Link::automatic();
            // SAFETY: the context is open.
            let domain = unsafe { Soft.alloc_pd(link.right.context) }.unwrap();
            let (window, region) = if of_window {
                let region = link.right.memory(1, LOCAL | BIND);
                (link.right.window_in(domain, kind), region)
            } else {
                (link.right.window(kind), link.right.register_in(domain, 1, LOCAL | BIND).unwrap())
            };
            let info = bind_info(&region, 0, 8, READ);
            if kind == ONE {
                assert_eq!(link.b.bind(70, window, info), libc::EPERM, "seen when it is posted");
            } else {
                assert_eq!(bound(&link, window, info), S::IBV_WC_MW_BIND_ERR);
            }
            // SAFETY: the domain is alive. The call is refused while the domain has a child.
            assert_eq!(unsafe { Soft.dealloc_pd(domain) }.unwrap_err().errno(), libc::EBUSY);
            if of_window {
                let window = link.right.windows.borrow_mut().pop().unwrap();
                // SAFETY: the window is alive, and nobody uses it any more.
                unsafe { Soft.dealloc_mw(window) }.unwrap();
            } else {
                link.right.deregister(&region).unwrap();
            }
            // SAFETY: the domain is alive, and nobody uses it any more.
            unsafe { Soft.dealloc_pd(domain) }.unwrap();
        }
    }
}

#[test]
fn binds_are_refused_when_posted_if_they_can_never_be_done() {
    let link = Link::automatic();
    let region = link.right.memory(1, LOCAL | BIND);
    let (one, two) = (link.right.window(ONE), link.right.window(TWO));
    let info = bind_info(&region, 0, 8, READ);
    assert_eq!(link.b.bind(1, two, info), libc::EINVAL);
    assert_eq!(link.right.try_send(link.b, Request::bind(1, one, info)), libc::EINVAL);
    let key = rkey_of(one);
    assert_eq!(link.b.bind(1, one, bind_info(&region, 0, 8, LOCAL)), libc::EINVAL, "no such right of a window");
    let no_region = ibv_mw_bind_info { mr: ptr::null_mut(), ..info };
    assert_eq!(link.b.bind(1, one, no_region), libc::EINVAL);
    let below = link.right.pair();
    assert_eq!(below.bind(1, one, info), libc::EINVAL);
    assert_eq!(rkey_of(one), key);
    for _ in 0..CAP.max_send_wr {
        assert_eq!(link.b.bind(1, one, info), 0);
    }
    assert_eq!(link.b.bind(1, one, info), libc::ENOMEM);
    // SAFETY: the domain is alive.
    let other = unsafe { Soft.alloc_mw(link.right.domain, ibv_mw_type(3)) };
    assert_eq!(other.unwrap_err().errno(), libc::EINVAL);
}

#[test]
fn m6_a_window_of_type_2_serves_one_pair() {
    for (kind, served) in [(ONE, SUCCESS), (TWO, S::IBV_WC_REM_ACCESS_ERR)] {
        let link = Link::automatic();
        let region = link.right.memory(1, LOCAL | BIND);
        let window = link.right.window(kind);
        let other = link.right.pair();
        other.connect(other);
        assert_eq!(bound(&link, window, bind_info(&region, 0, 8, WRITE)), SUCCESS);
        let from = link.right.memory(1, 0);
        let request = Request::write(5, &[from.sge(0, 8)], &region, 0).at(region.addr(), rkey_of(window));
        link.right.send(other, request);
        // The pair is its own peer. If the pair refuses the write as the responder, it enters Error, and its own write
        // is flushed.
        let expected = if served == SUCCESS { SUCCESS } else { FLUSHED };
        assert_eq!(link.right.completed(), [(5, expected)]);
    }
}

#[test]
fn m8_c088_local_invalidation_ends_a_binding() {
    let link = Link::automatic();
    let region = link.right.memory(2, LOCAL | BIND);
    let window = link.right.window(TWO);
    assert_eq!(bound(&link, window, bind_info(&region, 0, 8, WRITE)), SUCCESS);
    let key = rkey_of(window);
    link.right.send(link.b, Request::invalidate(1, key));
    let wc = link.right.poll()[0];
    assert_eq!((wc.status, wc.opcode), (SUCCESS, ibv_wc_opcode::IBV_WC_LOCAL_INV));
    // The window can be bound again with a new key, and the old key is invalid.
    assert_eq!(bound(&link, window, bind_info(&region, 8, 8, WRITE)), SUCCESS);
    assert_eq!(write(&link, rkey_of(window), region.addr() + 8, 8), SUCCESS);
    assert_eq!(write(&link, key, region.addr(), 8), S::IBV_WC_REM_ACCESS_ERR);
}

#[test]
fn m10_row_25_what_cannot_be_invalidated() {
    let refused = |make: fn(&Link) -> u32| {
        let link = Link::automatic();
        let rkey = make(&link);
        link.right.send(link.b, Request::invalidate(1, rkey));
        assert_eq!(link.right.completed(), [(1, S::IBV_WC_LOC_QP_OP_ERR)]);
        assert_eq!(link.b.state(), ERR);
    };
    refused(|_| 0xdead);
    refused(|link| link.right.memory(1, ALL | BIND).rkey());
    refused(|link| rkey_of(link.right.window(TWO)));
    refused(|link| {
        let window = link.right.window(ONE);
        assert_eq!(bound(link, window, bind_info(&link.right.memory(1, LOCAL | BIND), 0, 8, READ)), SUCCESS);
        rkey_of(window)
    });
    // A window cannot be invalidated a second time.
    refused(|link| {
        let window = link.right.window(TWO);
        assert_eq!(bound(link, window, bind_info(&link.right.memory(1, LOCAL | BIND), 0, 8, READ)), SUCCESS);
        link.right.send(link.b, Request::invalidate(2, rkey_of(window)));
        assert_eq!(link.right.completed(), [(2, SUCCESS)]);
        rkey_of(window)
    });
}

#[test]
fn c089_a_send_invalidates_the_peers_window() {
    for transport in [RC, UC] {
        let settings = Settings { transport, ..SETTINGS };
        let link = Link::with(Fabric::new(), settings, settings);
        let (region, to) = (link.right.memory(2, LOCAL | BIND), link.right.memory(1, LOCAL));
        let window = link.right.window(TWO);
        assert_eq!(bound(&link, window, bind_info(&region, 0, 8, WRITE)), SUCCESS);
        let key = rkey_of(window);
        link.right.receive(link.b, 1, &[to.sge(0, 8)]);
        let from = link.left.memory(1, 0);
        from.set(b"finished");
        assert_eq!(link.status(Request::send(2, &[from.sge(0, 8)]).invalidating(key)), SUCCESS);
        let wc = link.right.poll()[0];
        assert_eq!((wc.status, wc.opcode, wc.byte_len), (SUCCESS, ibv_wc_opcode::IBV_WC_RECV, 8));
        assert_eq!(wc.wc_flags, ibv_wc_flags::IBV_WC_WITH_INV.0);
        // SAFETY: the completion has an invalidated key, as its flag says (checked above).
        assert_eq!(unsafe { wc.__bindgen_anon_1.invalidated_rkey }, key);
        assert_eq!(to.get(8), b"finished");
        assert_eq!(link.right.deregister(&region), Ok(()), "bound no more");
    }
}

#[test]
fn row_24_a_send_that_invalidates_what_it_cannot() {
    let link = Link::automatic();
    let (region, to) = (link.right.memory(1, ALL), link.right.memory(1, LOCAL));
    link.right.receive(link.b, 1, &[to.sge(0, 8)]);
    let from = link.left.memory(1, 0);
    from.set(&[1; 8]);
    let request = Request::send(2, &[from.sge(0, 8)]).invalidating(region.rkey());
    assert_eq!(link.status(request), S::IBV_WC_REM_INV_REQ_ERR);
    assert_eq!(link.right.completed(), [(1, S::IBV_WC_LOC_QP_OP_ERR)]);
    assert_eq!((link.a.state(), link.b.state(), to.get(8)), (ERR, ERR, vec![0; 8]));
    // On a transport without acknowledgements the refused message is dropped silently.
    let settings = Settings { transport: UC, ..SETTINGS };
    let link = Link::with(Fabric::new(), settings, settings);
    link.right.receive(link.b, 1, &[]);
    assert_eq!(link.status(Request::send(2, &[]).invalidating(5)), SUCCESS);
    assert!(link.right.poll().is_empty());
    assert_eq!(link.b.state(), RTS);
}

#[test]
fn a_lost_answer_does_not_invalidate_twice() {
    let link = Link::automatic();
    let (region, window) = (link.right.memory(1, LOCAL | BIND), link.right.window(TWO));
    assert_eq!(bound(&link, window, bind_info(&region, 0, 8, WRITE)), SUCCESS);
    link.right.receive(link.b, 1, &[]);
    link.fabric.inject(crate::provider::soft::Fault::AnswersLost { count: 1 });
    assert_eq!(link.status(Request::send(2, &[]).invalidating(rkey_of(window))), SUCCESS);
    assert_eq!(link.right.completed(), [(1, SUCCESS)]);
}

#[test]
fn m11_m12_binding_holds_the_region_and_not_the_window_or_the_pair() {
    for kind in [ONE, TWO] {
        let link = Link::automatic();
        let region = link.right.memory(2, LOCAL | BIND);
        let window = link.right.window(kind);
        assert_eq!(bound(&link, window, bind_info(&region, 0, 8, WRITE)), SUCCESS);
        assert_eq!(link.right.deregister(&region), Err(libc::EBUSY));
        let key = rkey_of(window);
        let window = link.right.windows.borrow_mut().pop().unwrap();
        // SAFETY: the window is alive. Freeing it ends its binding.
        unsafe { Soft.dealloc_mw(window) }.unwrap();
        assert_eq!(write(&link, key, region.addr(), 8), S::IBV_WC_REM_ACCESS_ERR);
        assert_eq!(link.right.deregister(&region), Ok(()));
    }
    let link = Link::automatic();
    let region = link.right.memory(2, LOCAL | BIND);
    let window = link.right.window(TWO);
    assert_eq!(bound(&link, window, bind_info(&region, 0, 8, WRITE)), SUCCESS);
    link.right.destroy(link.b).unwrap();
    assert_eq!(link.right.deregister(&region), Ok(()), "it served that pair alone");
}

#[test]
fn zero_based_windows_count_from_their_beginning() {
    let link = Link::automatic();
    let region = link.right.memory(4, LOCAL | BIND);
    let window = link.right.window(TWO);
    assert_eq!(bound(&link, window, bind_info(&region, 8, 16, WRITE | ZERO)), SUCCESS);
    assert_eq!(write(&link, rkey_of(window), 1, 3), SUCCESS);
    assert_eq!(region.get(13), [&[0; 9][..], &[9; 3], &[0]].concat());
    assert_eq!(write(&link, rkey_of(window), 0, 17), S::IBV_WC_REM_ACCESS_ERR);
}

#[test]
fn a_bind_and_the_send_of_its_key_stay_in_order() {
    let link = Link::manual();
    let region = link.right.memory(1, LOCAL | BIND);
    let window = link.right.window(ONE);
    assert_eq!(link.b.bind(1, window, bind_info(&region, 0, 8, WRITE)), 0);
    let note = link.right.memory(1, 0);
    note.set(&rkey_of(window).to_ne_bytes());
    let told = link.left.memory(1, LOCAL);
    link.left.receive(link.a, 2, &[told.sge(0, 4)]);
    link.right.send(link.b, Request::send(3, &[note.sge(0, 4)]).flag(ibv_send_flags::IBV_SEND_FENCE));
    link.fabric.run();
    assert_eq!(link.right.completed(), [(1, SUCCESS), (3, SUCCESS)]);
    link.left.poll();
    let key = u32::from_ne_bytes(told.get(4).try_into().unwrap());
    let from = link.left.memory(1, 0);
    link.left.send(link.a, Request::write(4, &[from.sge(0, 8)], &region, 0).at(region.addr(), key));
    link.fabric.run();
    assert_eq!(link.left.completed(), [(4, SUCCESS)]);
}

#[test]
fn what_a_window_covers_is_touched_by_whole_words() {
    // The window covers the first entry of the receive, covers nothing of the second, and begins inside the third. Miri
    // checks these accesses for data races.
    let link = Link::automatic();
    let region = link.right.memory(4, LOCAL | BIND);
    let window = link.right.window(ONE);
    assert_eq!(bound(&link, window, bind_info(&region, 8, 16, READ | WRITE)), SUCCESS);
    let own = link.left.memory(4, LOCAL);
    own.set(&[7; 32]);
    link.right.receive(link.b, 1, &[region.sge(9, 3), region.sge(1, 3), region.sge(6, 4)]);
    assert_eq!(link.status(Request::send(2, &[own.sge(0, 10)])), SUCCESS);
    link.left.receive(link.a, 3, &[own.sge(0, 32)]);
    link.right.send(link.b, Request::send(4, &[region.sge(0, 32)]));
    let mut expected = [0; 32];
    for place in [1, 2, 3, 6, 7, 8, 9, 10, 11] {
        expected[place] = 7;
    }
    assert_eq!(own.get(32), expected);
}
