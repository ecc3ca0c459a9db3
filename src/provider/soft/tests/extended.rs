use super::*;

const ALL_FIELDS: u64 = 0x7f;

/// Replaces the completion queue of a node by an extended one.
fn extend(node: &mut Node, depth: u32) -> NonNull<ibv_cq_ex> {
    let mut attributes = attributes(node, depth, ALL_FIELDS);
    // SAFETY: the context is open, and the channel belongs to it.
    let cq = unsafe { Soft.create_cq_ex(node.context, &mut attributes) }.unwrap();
    let old = std::mem::replace(&mut node.cq, cq.cast());
    // SAFETY: the old queue is alive, and nothing uses it yet.
    unsafe { Soft.destroy_cq(old) }.unwrap();
    cq
}

fn attributes(node: &Node, cqe: u32, wc_flags: u64) -> ibv_cq_init_attr_ex {
    ibv_cq_init_attr_ex { cqe, channel: node.channel.as_ptr(), wc_flags, ..Default::default() }
}

fn start(cq: NonNull<ibv_cq_ex>) -> Errno {
    // SAFETY: each test keeps the node of the queue alive, and polls the queue on one thread only.
    unsafe { inline::ibv_start_poll(cq.as_ptr(), &mut ibv_poll_cq_attr::default()) }
}

fn next(cq: NonNull<ibv_cq_ex>) -> Errno {
    // SAFETY: each test keeps the node of the queue alive, and polls the queue on one thread only.
    unsafe { inline::ibv_next_poll(cq.as_ptr()) }
}

fn end(cq: NonNull<ibv_cq_ex>) {
    // SAFETY: each test keeps the node of the queue alive, and polls the queue on one thread only.
    unsafe { inline::ibv_end_poll(cq.as_ptr()) };
}

/// The id and the status of the current completion.
fn current(cq: NonNull<ibv_cq_ex>) -> (u64, ibv_wc_status) {
    // SAFETY: each test keeps the node of the queue alive, and polls the queue on one thread only.
    let cq = unsafe { cq.as_ref() };
    (cq.wr_id, cq.status)
}

/// A node with an extended queue, and a pair that is connected to itself.
fn alone(fabric: &Fabric, depth: u32) -> (Node, NonNull<ibv_cq_ex>, Pair) {
    let mut node = Node::new(fabric, "one");
    let cq = extend(&mut node, depth);
    let pair = node.pair();
    pair.connect(pair);
    (node, cq, pair)
}

#[test]
fn completions_come_one_by_one_and_as_they_are_polled_otherwise() {
    let (node, cq, pair) = alone(&Fabric::new(), 64);
    assert_eq!(start(cq), libc::ENOENT);
    for id in 0..3 {
        node.receive(pair, 10 + id, &[]);
        node.send(pair, Request::send(id, &[]));
    }
    let mut seen = Vec::new();
    assert_eq!(start(cq), 0);
    for _ in 0..4 {
        seen.push(current(cq));
        assert_eq!(next(cq), 0);
    }
    seen.push(current(cq));
    end(cq);
    // `start` and `next` have taken five of the six completions. The sixth is still in the queue.
    let rest = node.completed();
    assert_eq!((seen.len(), rest.len()), (5, 1));
    seen.extend(rest);
    seen.sort_unstable_by_key(|(id, _)| *id);
    assert_eq!(seen, [0, 1, 2, 10, 11, 12].map(|id| (id, SUCCESS)));
    assert_eq!((start(cq), start(cq)), (libc::ENOENT, libc::ENOENT));
}

#[test]
fn functions_are_there_for_the_fields_that_were_asked_for() {
    let node = Node::new(&Fabric::new(), "one");
    for wc_flags in [0, 1, 2, 0x40, ALL_FIELDS] {
        // SAFETY: the context is open, and the channel belongs to it.
        let cq = unsafe { Soft.create_cq_ex(node.context, &mut attributes(&node, 4, wc_flags)) }.unwrap();
        // SAFETY: the queue is alive.
        let has = unsafe { cq.as_ref() };
        assert!(has.read_opcode.is_some() && has.read_vendor_err.is_some() && has.read_wc_flags.is_some());
        assert_eq!(has.read_byte_len.is_some(), wc_flags & 1 != 0);
        assert_eq!(has.read_imm_data.is_some(), wc_flags & 2 != 0);
        assert_eq!(has.read_dlid_path_bits.is_some(), wc_flags & 0x40 != 0);
        // SAFETY: the queue is alive, and nothing uses it.
        unsafe { Soft.destroy_cq(cq.cast()) }.unwrap();
    }
    for (wc_flags, comp_mask) in [(0x80, 0), (1 << 40, 0), (0, 1)] {
        let mut attributes = ibv_cq_init_attr_ex { comp_mask, ..attributes(&node, 4, wc_flags) };
        // SAFETY: the context is open, and the channel is alive.
        let error = unsafe { Soft.create_cq_ex(node.context, &mut attributes) }.unwrap_err();
        assert_eq!((error.verb(), error.errno()), ("ibv_create_cq_ex", libc::EOPNOTSUPP));
    }
    // SAFETY: the context is open, and the channel is alive.
    let error = unsafe { Soft.create_cq_ex(node.context, &mut attributes(&node, 0, 0)) }.unwrap_err();
    assert_eq!(error.errno(), libc::EINVAL);
}

#[test]
fn a_look_that_is_not_ended_holds_the_queue() {
    let (node, cq, pair) = alone(&Fabric::new(), 64);
    node.receive(pair, 1, &[]);
    node.send(pair, Request::send(2, &[]));
    assert_eq!(next(cq), libc::EINVAL, "not started");
    assert_eq!((start(cq), start(cq)), (0, libc::EDEADLK));
    end(cq);
    assert_eq!(start(cq), 0);
    end(cq);
    end(cq);
    assert_eq!(start(cq), libc::EDEADLK, "ended twice");
}

#[test]
fn a_queue_that_overran_fails_after_what_it_has() {
    let (node, cq, pair) = alone(&Fabric::new(), 2);
    for id in 0..2 {
        node.receive(pair, 10 + id, &[]);
        node.send(pair, Request::send(id, &[]));
    }
    assert_eq!((start(cq), next(cq), next(cq)), (0, 0, libc::EIO));
    end(cq);
    assert_eq!(start(cq), libc::EIO);
}
