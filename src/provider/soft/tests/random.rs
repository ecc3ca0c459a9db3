//! Random sequences of legal and illegal verbs, with faults.

use super::*;
use crate::provider::soft::{Fault, Verb, random::Random};
use std::collections::HashMap;

impl Random {
    fn pick<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }
}

fn fault(random: &mut Random) -> Fault {
    let verb = random.pick(&[Verb::ModifyQp, Verb::PostSend, Verb::PostRecv, Verb::PollCq, Verb::RegMr]);
    match random.below(6) {
        0 => Fault::VerbFails { verb, after: random.below(3) as u32, count: 1, errno: libc::ENOMEM },
        1 => Fault::SendKept { errno: libc::EINVAL },
        2 => Fault::ReceiveKept { errno: libc::EINVAL },
        3 => Fault::RequestsLost { count: random.below(6) as u32 },
        4 => Fault::AnswersLost { count: random.below(6) as u32 },
        _ => Fault::FlushWithheld,
    }
}

/// A request completes at most once, in the order of its queue. It never completes after a later reset of its pair.
#[test]
fn requests_complete_in_order_and_once() {
    let mut statuses: HashMap<u32, u32> = HashMap::new();
    let (seeds, steps) = if cfg!(miri) { (1, 300) } else { (30, 3000) };
    for seed in 1..=seeds {
        let mut random = Random::new(seed);
        let fabric = if seed % 2 == 0 { Fabric::new() } else { Fabric::manual() };
        let nodes = [Node::with_depth(&fabric, "left", 256), Node::with_depth(&fabric, "right", 256)];
        let mut pairs: Vec<(usize, Pair)> = (0..4).map(|number| (number % 2, nodes[number % 2].pair())).collect();
        let regions: Vec<Region> =
            [0, LOCAL, READ, ALL].iter().flat_map(|access| nodes.iter().map(|node| node.memory(8, *access))).collect();
        // The id of the last completion of each work queue. The key is the number of the pair (with the node in the
        // highest byte), and whether the queue is the send queue. A later request has a greater id, so the ids of a
        // queue must increase.
        let mut last: HashMap<(u32, bool), u64> = HashMap::new();
        let mut id = 0;
        for _ in 0..steps {
            let slot = random.below(4) as usize;
            let (number, pair) = pairs[slot];
            let (node, peer) = (&nodes[number], pairs[slot ^ 1].1);
            // Picks a region. In 8 of 10 cases the region is on the node `side` and has all rights.
            let mut region = |side| match random.below(10) {
                0 => random.pick(&regions),
                1 => regions[4 + side],
                _ => regions[6 + side],
            };
            let (own, other) = (region(number), region(1 - number));
            id += 1;
            match random.below(16) {
                0 => drop(pair.enter(random.pick(&[RESET, INIT, RTR, RTS, SQD, ERR]))),
                1 | 2 => {
                    _ = pair.enter(RESET);
                    _ = pair.init();
                    _ = pair.rtr(peer);
                    _ = pair.rts();
                }
                3 if random.below(8) == 0 => {
                    node.destroy(pair).unwrap();
                    pairs[slot].1 = node.pair();
                }
                4 if random.below(4) == 0 => fabric.inject(fault(&mut random)),
                5 => fabric.heal(),
                6 | 7 => drop(node.try_receive(pair, id << 1, &[own.sge(random.below(65), random.below(60) as u32)])),
                8..=11 => {
                    let sge = own.sge(random.below(50), random.below(20) as u32);
                    let request = match random.below(6) {
                        0 => Request::send(id << 1 | 1, &[sge]),
                        1 => Request::send(id << 1 | 1, &[sge, sge]).immediate(5),
                        2 => Request::write(id << 1 | 1, &[sge], &other, random.below(50)),
                        3 => Request::write(id << 1 | 1, &[sge], &other, 0).immediate(6),
                        4 => Request::read(id << 1 | 1, &[sge], &other, random.below(50)),
                        _ => Request::add(id << 1 | 1, &[sge], &other, 8 * random.below(9), 1),
                    };
                    _ = node.try_send(pair, if random.below(3) == 0 { request.unsignaled() } else { request });
                }
                12 => fabric.advance(Duration::from_micros(random.below(5000))),
                13 => drop(fabric.step()),
                14 => drop(fabric.run()),
                _ => node.arm(random.below(2) == 0),
            }
            if random.below(3) == 0 {
                for wc in node.poll_raw(16).unwrap_or_default() {
                    let send = wc.wr_id & 1 == 1;
                    let before = last.insert((wc.qp_num | (number as u32) << 24, send), wc.wr_id);
                    assert!(before < Some(wc.wr_id), "seed {seed}: {} after {before:?}", wc.wr_id);
                    *statuses.entry(wc.status.0).or_default() += 1;
                }
                node.take_event();
            }
        }
        fabric.heal();
    }
    // The sequences are long enough to reach each of these statuses. Except under Miri, they must reach no other.
    let expected: &[u32] = if cfg!(miri) { &[0, 5] } else { &[0, 1, 4, 5, 8, 9, 10, 11, 12, 13] };
    assert!(expected.iter().all(|status| statuses.contains_key(status)), "{statuses:?}");
    assert!(statuses.keys().all(|status| expected.contains(status) || cfg!(miri)), "{statuses:?}");
}

/// A pair of some transport, and its shared receive queue, if it has one.
struct Player {
    node: usize,
    pair: Pair,
    srq: Option<NonNull<ibv_srq>>,
}

/// The same as the test above, for all transports, with shared queues, windows, groups, and ports that go down.
#[test]
fn requests_of_all_transports_complete_in_order_and_once() {
    const RAW: [u8; 16] = [0xff, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9];
    const GROUP: ibv_gid = ibv_gid { raw: RAW };
    let mut statuses: HashMap<u32, u32> = HashMap::new();
    let mut events: HashMap<u32, u32> = HashMap::new();
    let (seeds, steps) = if cfg!(miri) { (1, 300) } else { (30, 3000) };
    for seed in 1..=seeds {
        let mut random = Random::new(seed);
        let fabric = if seed % 2 == 0 { Fabric::new() } else { Fabric::manual() };
        let nodes = [Node::with_depth(&fabric, "left", 512), Node::with_depth(&fabric, "right", 512)];
        let shared = [nodes[0].shared(16), nodes[1].shared(16)];
        let players: Vec<Player> = (0..12)
            .map(|number| {
                let (node, transport) = (number % 2, [RC, UC, UD][number / 2 % 3]);
                let settings = Settings { transport, ..SETTINGS };
                let srq = (number >= 6).then_some(shared[node]);
                let pair = match srq {
                    Some(srq) => nodes[node].pair_on(srq, settings),
                    None => nodes[node].pair_with(settings),
                };
                Player { node, pair, srq }
            })
            .collect();
        let regions = [nodes[0].memory(16, ALL | 16), nodes[1].memory(16, ALL | 16)];
        let windows = nodes.each_ref().map(|node| node.window(ibv_mw_type::IBV_MW_TYPE_2));
        let addresses: Vec<_> = (0..4_usize)
            .map(|number| nodes[number % 2].address(if number < 2 { nodes[1 - number].gid(1) } else { RAW }))
            .collect();
        // The id of the last completion of each work queue. The key is the node, the number of the pair (0 for a shared
        // receive queue), and whether the queue is a send queue. A later request has a greater id, so the ids of a
        // queue must increase.
        let mut last: HashMap<(usize, u32, bool), u64> = HashMap::new();
        let mut id = 0;
        for _ in 0..steps {
            let slot = random.below(12) as usize;
            let (Player { node: number, pair, srq }, peer) = (&players[slot], players[slot ^ 1].pair);
            let (node, own, other) = (&nodes[*number], &regions[*number], &regions[1 - *number]);
            id += 1;
            let sge = own.sge(random.below(125), random.below(30) as u32);
            match random.below(20) {
                0 => drop(pair.enter(random.pick(&[RESET, INIT, RTR, RTS, SQD, ERR]))),
                1..=3 => {
                    // SAFETY: the pair is alive. (The query fails on a device that has failed.)
                    let state = unsafe { Soft.query_qp(pair.qp, ibv_qp_attr_mask::IBV_QP_STATE) }
                        .map_or(ERR, |now| now.qp_state);
                    if state == SQE {
                        _ = pair.enter(RTS);
                    } else if state != RTS {
                        _ = pair.enter(RESET);
                        _ = pair.init();
                        _ = pair.rtr(peer);
                        _ = pair.rts();
                    }
                }
                4 if random.below(40) == 0 => {
                    let device = random.pick(&["left", "right"]).to_owned();
                    fabric.inject(if random.below(2) == 0 {
                        Fault::PortDown { device }
                    } else {
                        Fault::DeviceFatal { device }
                    });
                }
                4 if random.below(4) == 0 => fabric.inject(fault(&mut random)),
                5 => fabric.heal(),
                6..=9 => {
                    let sges = [own.sge(8 * random.below(5), 40), sge];
                    match srq {
                        Some(srq) => drop(node.share(*srq, id << 1, &sges)),
                        None => drop(node.try_receive(*pair, id << 1, &sges)),
                    }
                }
                10..=15 => {
                    let window = windows[*number];
                    let key = super::support::rkey_of(windows[1 - *number]);
                    let request = match random.below(8) {
                        0 | 1 => Request::send(id << 1 | 1, &[sge]),
                        2 => Request::send(id << 1 | 1, &[sge, sge]).immediate(5),
                        3 => Request::write(id << 1 | 1, &[sge], other, random.below(100)).immediate(6),
                        4 => Request::write(id << 1 | 1, &[sge], other, 8).at(other.addr() + 8, key),
                        5 => Request::send(id << 1 | 1, &[]).invalidating(key),
                        6 => Request::invalidate(id << 1 | 1, super::support::rkey_of(window)),
                        _ => {
                            let info = super::support::bind_info(own, 8 * random.below(10), 40, READ | WRITE);
                            Request::bind(id << 1 | 1, window, info)
                        }
                    };
                    let request = if pair.settings.transport != UD {
                        request
                    } else if random.below(4) == 0 {
                        request.to(addresses[2 + *number], 0xff_ffff, SETTINGS.qkey)
                    } else {
                        request.to(addresses[*number], peer.qpn(), SETTINGS.qkey + random.below(8) as u32 / 7)
                    };
                    _ = node.try_send(*pair, if random.below(3) == 0 { request.unsignaled() } else { request });
                }
                16 => fabric.advance(Duration::from_micros(random.below(5000))),
                17 => drop(fabric.run()),
                18 => {
                    let mut limit = ibv_srq_attr { max_wr: 0, max_sge: 0, srq_limit: random.below(17) as u32 };
                    let srq = shared[*number];
                    // SAFETY: the shared queue is alive.
                    _ = unsafe { Soft.modify_srq(srq, &mut limit, ibv_srq_attr_mask::IBV_SRQ_LIMIT) };
                }
                _ if pair.settings.transport == UD && random.below(2) == 0 => {
                    // SAFETY: the pair is alive. (The call can be refused.)
                    _ = unsafe { Soft.attach_mcast(pair.qp, &GROUP, 0) };
                }
                _ if pair.settings.transport == UD => {
                    // SAFETY: the pair is alive. (The call can be refused.)
                    _ = unsafe { Soft.detach_mcast(pair.qp, &GROUP, 0) };
                }
                _ => drop(fabric.step()),
            }
            if random.below(3) == 0 {
                for wc in node.poll_raw(16).unwrap_or_default() {
                    let send = wc.wr_id & 1 == 1;
                    let owner = players.iter().find(|player| player.node == *number && player.pair.qpn() == wc.qp_num);
                    let shared = !send && owner.is_some_and(|owner| owner.srq.is_some());
                    let before = last.insert((*number, if shared { 0 } else { wc.qp_num }, send), wc.wr_id);
                    assert!(before < Some(wc.wr_id), "seed {seed}: {} after {before:?}", wc.wr_id);
                    *statuses.entry(wc.status.0).or_default() += 1;
                }
                for (event, _) in node.events() {
                    *events.entry(event.0).or_default() += 1;
                }
            }
        }
        fabric.heal();
        for player in &players {
            // SAFETY: the pair is alive. If it is in no group, the call is refused.
            _ = unsafe { Soft.detach_mcast(player.pair.qp, &GROUP, 0) };
        }
    }
    // The sequences are long enough to reach each of these statuses. Except under Miri, 8 and 11 are the only other
    // statuses that they may reach.
    let expected: &[u32] = if cfg!(miri) { &[0, 5] } else { &[0, 1, 2, 4, 5, 6, 9, 10, 12, 13] };
    assert!(expected.iter().all(|status| statuses.contains_key(status)), "{statuses:?}");
    assert!(
        statuses.keys().all(|status| expected.contains(status) || [8, 11].contains(status) || cfg!(miri)),
        "{statuses:?}"
    );
    let told = [3, 8, 9, 10, 15, 16];
    assert!(cfg!(miri) || told.iter().all(|event| events.contains_key(event)), "{events:?}");
}
