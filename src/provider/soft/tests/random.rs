//! Random sequences of legal and illegal verbs, with faults.

use super::*;
use crate::provider::soft::{Fault, Verb};
use std::collections::HashMap;

/// A xorshift generator.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) % end
    }

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

/// Each request completes at most once, in the order of its queue, and never in a life of its pair in which it was not
/// posted.
#[test]
fn requests_complete_in_order_and_once() {
    let mut statuses: HashMap<u32, u32> = HashMap::new();
    let (seeds, steps) = if cfg!(miri) { (1, 300) } else { (30, 3000) };
    for seed in 1..=seeds {
        let mut random = Random(seed * 0x9e37_79b9);
        let fabric = if seed % 2 == 0 { Fabric::new() } else { Fabric::manual() };
        let nodes = [Node::with_depth(&fabric, "left", 256), Node::with_depth(&fabric, "right", 256)];
        let mut pairs: Vec<(usize, Pair)> = (0..4).map(|number| (number % 2, nodes[number % 2].pair())).collect();
        let regions: Vec<Region> =
            [0, LOCAL, READ, ALL].iter().flat_map(|access| nodes.iter().map(|node| node.memory(8, *access))).collect();
        // By number of the pair and side: the last id that completed. Ids only grow.
        let mut last: HashMap<(u32, bool), u64> = HashMap::new();
        let mut id = 0;
        for _ in 0..steps {
            let slot = random.below(4) as usize;
            let (number, pair) = pairs[slot];
            let (node, peer) = (&nodes[number], pairs[slot ^ 1].1);
            // Mostly the right ones, with all rights.
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
    // The sequences get somewhere: all that can happen does.
    let expected: &[u32] = if cfg!(miri) { &[0, 5] } else { &[0, 1, 4, 5, 8, 9, 10, 11, 12, 13] };
    assert!(expected.iter().all(|status| statuses.contains_key(status)), "{statuses:?}");
    assert!(statuses.keys().all(|status| expected.contains(status) || cfg!(miri)), "{statuses:?}");
}
