//! Registrations of all kinds.

use super::*;
use crate::provider::soft::{Fault, Verb};
use ibv_access_flags as A;
use ibv_wc_status as S;

/// Registers the memory of `region` again, from `offset` on, with the address `iova` for the first byte. The caller
/// deregisters it.
fn register_iova(node: &Node, region: &Region, offset: usize, iova: u64, access: u32) -> Result<Region, Errno> {
    let start = region.words.cast::<u8>().wrapping_add(offset);
    let len = region.words.len() * 8 - offset;
    // SAFETY: the domain is alive. The memory is that of `region`. The node keeps the memory until the node is dropped,
    // and the test ends the new region before that.
    let mr = unsafe { Soft.reg_mr_iova(node.domain, start, len, iova, A(access)) }.map_err(|error| error.errno())?;
    Ok(Region { mr, words: region.words, live: true })
}

fn end(region: Region) {
    // SAFETY: the region is registered: no test deregisters a region twice.
    unsafe { Soft.dereg_mr(region.mr) }.unwrap();
}

#[test]
fn zero_based_regions_count_from_their_beginning() {
    let link = Link::automatic();
    let zero = A::IBV_ACCESS_ZERO_BASED.0;
    let (from, to) = (link.left.memory(2, zero), link.right.memory(2, ALL | zero));
    from.set(b"0123456789abcdef");
    let sge = ibv_sge { addr: 4, length: 8, lkey: from.lkey() };
    assert_eq!(link.status(Request::write(1, &[sge], &to, 0).at(3, to.rkey())), SUCCESS);
    assert_eq!(to.get(16), [&[0; 3][..], b"456789ab", &[0; 5]].concat());
    let counter = link.left.memory(1, LOCAL);
    assert_eq!(link.status(Request::add(2, &[counter.sge(0, 8)], &to, 0, 0).at(8, to.rkey())), SUCCESS);
    assert_eq!(counter.get(8), to.get(16)[8..]);
    // `to` is zero-based too, so a request must give an offset in `to`. This request gives the address of the memory.
    assert_eq!(link.status(Request::write(3, &[sge], &to, 0)), S::IBV_WC_REM_ACCESS_ERR);
}

#[test]
fn a_region_can_have_addresses_of_its_own() {
    let link = Link::automatic();
    let (from, memory) = (link.left.memory(2, 0), link.right.memory(4, 0));
    from.set(b"0123456789abcdef");
    let page = memory.addr() % 4096;
    let iova = 0x7000_0000_0000 + page;
    let to = register_iova(&link.right, &memory, 0, iova, ALL).unwrap();
    let write = |id, addr| link.status(Request::write(id, &[from.sge(0, 8)], &to, 0).at(addr, to.rkey()));
    assert_eq!(write(1, iova + 24), SUCCESS);
    assert_eq!(to.get(32)[24..], *b"01234567");
    link.right.receive(link.b, 2, &[ibv_sge { addr: iova, length: 8, lkey: to.lkey() }]);
    assert_eq!(link.status(Request::send(3, &[from.sge(8, 8)])), SUCCESS);
    assert_eq!(to.get(8), *b"89abcdef");
    assert_eq!(write(4, memory.addr()), S::IBV_WC_REM_ACCESS_ERR, "the address is not a name of it");
    end(to);
    assert_eq!(register_iova(&link.right, &memory, 0, iova + 8, ALL).map(|_| ()), Err(libc::EINVAL));
    // The addresses of a region can also be in the last page of the address space, if the address of its end fits a
    // `u64`.
    if page + 32 < 4096 {
        assert_eq!(register_iova(&link.right, &memory, 0, u64::MAX - 4095 + page, ALL).map(end), Ok(()));
    }
    let last = u64::MAX - 15;
    let aligned = last - last % 4096 + page;
    if aligned.checked_add(32).is_none() {
        assert_eq!(register_iova(&link.right, &memory, 0, aligned, ALL).map(|_| ()), Err(libc::EINVAL));
    }
}

#[test]
fn relaxed_ordering_is_accepted_and_ignored() {
    let link = Link::automatic();
    let relaxed = A::IBV_ACCESS_RELAXED_ORDERING.0;
    let (from, to) = (link.left.memory(1, relaxed), link.right.memory(1, ALL | relaxed));
    assert_eq!(link.status(Request::write(1, &[from.sge(0, 8)], &to, 0)), SUCCESS);
}

#[test]
fn what_this_device_has_not_it_says() {
    let node = Node::new(&Fabric::new(), "one");
    for access in [A::IBV_ACCESS_ON_DEMAND, A::IBV_ACCESS_HUGETLB] {
        assert_eq!(node.try_register(1, access.0).map(|_| ()), Err(libc::EOPNOTSUPP));
    }
    // SAFETY: the domain is alive. The device does not use the descriptor.
    let dmabuf = unsafe { Soft.reg_dmabuf_mr(node.domain, 0, 8, 0, -1, A(LOCAL)) };
    assert_eq!(dmabuf.unwrap_err().errno(), libc::EOPNOTSUPP);
}

#[test]
fn locked_memory_has_a_limit() {
    let fabric = Fabric::new();
    let node = Node::new(&fabric, "one");
    let first = node.memory(4, 0);
    fabric.inject(Fault::LockedMemoryLimit { bytes: 64 });
    let second = node.memory(4, 0);
    assert_eq!(node.try_register(1, 0).map(|_| ()), Err(libc::ENOMEM));
    node.deregister(&first).unwrap();
    assert!(node.try_register(4, 0).is_ok());
    assert_eq!(node.try_register(1, 0).map(|_| ()), Err(libc::ENOMEM));
    fabric.heal();
    assert!(node.try_register(1, 0).is_ok());
    node.deregister(&second).unwrap();
    // The fault makes only one call fail, so the second call succeeds.
    fabric.inject(Fault::VerbFails { verb: Verb::RegMrIova, after: 0, count: 1, errno: libc::ENOMEM });
    let memory = node.memory(1, 0);
    assert_eq!(register_iova(&node, &memory, 0, memory.addr(), 0).map(|_| ()), Err(libc::ENOMEM));
    assert_eq!(register_iova(&node, &memory, 0, memory.addr(), 0).map(end), Ok(()));
}

#[test]
fn the_device_says_what_it_has() {
    let node = Node::new(&Fabric::new(), "one");
    // SAFETY: the context is open.
    let device = unsafe { Soft.query_device(node.context) }.unwrap();
    let flags = ibv_device_cap_flags(device.device_cap_flags);
    for flag in [
        ibv_device_cap_flags::IBV_DEVICE_MEM_WINDOW,
        ibv_device_cap_flags::IBV_DEVICE_MEM_WINDOW_TYPE_2B,
        ibv_device_cap_flags::IBV_DEVICE_MEM_MGT_EXTENSIONS,
        ibv_device_cap_flags::IBV_DEVICE_SRQ_RESIZE,
    ] {
        assert_eq!(flags & flag, flag);
    }
    assert_eq!((flags & ibv_device_cap_flags::IBV_DEVICE_MEM_WINDOW_TYPE_2A).0, 0);
    let all = [device.max_srq, device.max_srq_wr, device.max_srq_sge, device.max_mw, device.max_ah, device.max_sge];
    assert!(all.iter().all(|&limit| limit > 0) && device.max_mcast_grp > 0);
}
