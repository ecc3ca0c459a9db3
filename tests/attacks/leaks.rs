//! Objects that are dropped in any order, forgotten, made only in part, or not released by the device. Memory that the
//! device may still use stays allocated; nothing else is leaked.

use super::{DEPTH, LIMITS, Stage, all, fails, fails_for_ever, settle, small};
use interlock::error::{CreateError, NamedDomainError};
use interlock::soft::{Fabric, Fault, Verb};
use interlock::{Context, LocalWrite, QueuePair, Reset, Work};
use std::mem;
use support::Queues;

#[test]
fn a_name_is_never_free_while_a_completion_queue_bears_it() {
    interlock::domain! { struct Test; }
    let (one, other) = (Fabric::manual(), Fabric::manual());
    let domain = Context::open_on(&one, "dev").unwrap().named_domain(Test).unwrap();
    let (queue, poller) = domain.queue(16).unwrap();
    drop(domain);
    match Context::open_on(&other, "dev").unwrap().named_domain(Test) {
        Err(error) => assert!(matches!(error, NamedDomainError::Taken { .. }), "{error}"),
        // If this succeeded, a pair of one device could use a completion queue of another.
        Ok(domain) => panic!("a second domain of that name: {:?}", domain.reliable(&queue, &LIMITS)),
    }
    drop(queue);
    assert!(Context::open_on(&other, "dev").unwrap().named_domain(Test).is_err(), "the poller bears it too");
    drop(poller);
    assert!(Context::open_on(&other, "dev").unwrap().named_domain(Test).is_ok());
}

#[test]
fn forgetting_a_completion_leaks_and_never_frees_in_flight_memory() {
    let mut stage = stage!();
    let halves = stage.domain.buffer(16).unwrap().into_chunks(8);
    for buffer in halves {
        stage.right.post_receive(buffer).unwrap();
    }
    stage.left.post_send(small(&stage.domain)).unwrap();
    for completion in settle(&stage.fabric, &mut stage.poller) {
        mem::forget(completion);
    }
    // The other half of the buffer is still in flight. The device writes the next message to it.
    stage.left.post_send(small(&stage.domain)).unwrap();
    assert_eq!(settle(&stage.fabric, &mut stage.poller).len(), 2);
}

#[test]
fn a_forgotten_pair_never_lets_its_memory_go() {
    let mut stage = stage!();
    stage.right.post_receive(small(&stage.domain)).unwrap();
    mem::forget(stage.right);
    let buffer = small(&stage.domain);
    stage.left.post_send(buffer).unwrap();
    drop((stage.poller, stage.queue, stage.domain));
    // The device delivers the message, although nobody is left to poll for its completion.
    stage.fabric.run();
    drop(stage.left);
    stage.fabric.run();
}

#[test]
fn a_forgotten_half_never_ends_the_pair_under_the_device() {
    let mut stage = stage!();
    let (send, mut receive) = stage.right.split();
    receive.post_receive(small(&stage.domain)).unwrap();
    mem::forget(send);
    drop(receive);
    stage.left.post_send(small(&stage.domain)).unwrap();
    stage.fabric.run();
    let out: Vec<_> = all(&mut stage.poller).into_iter().map(|completion| completion.check().unwrap()).collect();
    assert_eq!(out.len(), 2, "the message arrived");
}

#[test]
fn a_pair_that_cannot_be_destroyed_never_lets_its_memory_go() {
    interlock::domain! { struct Test; }
    let fabric = Fabric::manual();
    let context = Context::open_on(&fabric, "dev").unwrap();
    let mut stage = Stage::new(fabric, context.named_domain(Test).unwrap());
    stage.right.post_receive(small(&stage.domain)).unwrap();
    stage.fabric.inject(fails_for_ever(Verb::DestroyQp));
    let error = stage.right.destroy().unwrap_err();
    assert_eq!(error.source.errno(), libc::EBUSY);
    drop(error);
    assert!(all(&mut stage.poller).is_empty(), "not given back by a destroy that failed");
    stage.left.post_send(small(&stage.domain)).unwrap();
    // The pair that was not destroyed still receives.
    let out: Vec<_> = settle(&stage.fabric, &mut stage.poller)
        .into_iter()
        .map(|completion| completion.check().unwrap().into_work())
        .collect();
    assert!(out.iter().any(|work| matches!(work, Work::Received(_))));
    stage.fabric.heal();
    drop((stage.left, stage.poller, stage.queue, stage.domain, out));
    assert!(context.named_domain(Test).is_err(), "its name stays taken with it");
}

#[test]
fn what_fails_half_way_never_leaves_anything_behind() {
    interlock::domain! { struct Test; }
    let fabric = Fabric::manual();
    fabric.inject(fails(Verb::OpenDevice));
    assert!(Context::open_on(&fabric, "dev").is_err());
    let context = Context::open_on(&fabric, "dev").unwrap();
    fabric.inject(fails(Verb::AllocPd));
    assert!(matches!(context.named_domain(Test), Err(NamedDomainError::Verb(_))));
    let domain = context.named_domain(Test).expect("the name was given back");
    for verb in [Verb::CreateCompChannel, Verb::CreateCq] {
        fabric.inject(fails(verb));
        assert!(domain.queue(16).is_err(), "{verb:?}");
    }
    let (queue, _poller) = domain.queue(16).unwrap();
    fabric.inject(fails(Verb::CreateQp));
    assert!(matches!(domain.reliable(&queue, &LIMITS), Err(CreateError::Verb(_))));
    assert_eq!(queue.room(), 16, "the lease was given back");
    fabric.inject(fails(Verb::RegMr));
    let error = domain.register::<LocalWrite, _>(vec![7_u8; 3]).unwrap_err();
    assert_eq!(error.memory, [7; 3]);
    // The calls that failed have left no objects behind: only the completion queue that was made exists.
    assert!(format!("{fabric:?}").contains("regions: 0, completion_queues: 1, queue_pairs: 0"), "{fabric:?}");
    drop((domain, queue, _poller));
    assert!(context.named_domain(Test).is_ok());
}

#[test]
fn a_domain_that_cannot_be_deallocated_never_frees_its_name() {
    interlock::domain! { struct Test; }
    let fabric = Fabric::manual();
    let context = Context::open_on(&fabric, "dev").unwrap();
    let domain = context.named_domain(Test).unwrap();
    fabric.inject(fails(Verb::DeallocPd));
    drop(domain);
    assert!(matches!(context.named_domain(Test), Err(NamedDomainError::Taken { .. })));
}

/// J-2: the handles keep each other alive, whichever is dropped or forgotten first.
#[test]
fn j_2_a_region_never_outlives_its_device() {
    let stage = stage!();
    let region = stage.domain.register::<LocalWrite, _>(vec![1_u8; 8]).unwrap();
    mem::forget(stage.domain.clone());
    drop((stage.left, stage.right, stage.poller, stage.queue, stage.domain, stage.port, stage.fabric));
    assert_eq!(region.deregister().unwrap(), [1; 8]);
}

/// J-4: the pair is forgotten and its completion queue is dropped.
#[test]
fn j_4_a_queue_never_ends_under_a_forgotten_pair() {
    let mut stage = stage!();
    stage.right.post_receive(small(&stage.domain)).unwrap();
    mem::forget((stage.right, stage.poller));
    drop(stage.queue);
    stage.left.post_send(small(&stage.domain)).unwrap();
    stage.fabric.run();
}

#[test]
fn a_device_that_is_gone_never_gives_back_what_it_may_still_hold() {
    let mut stage = stage!();
    stage.right.post_receive(small(&stage.domain)).unwrap();
    stage.fabric.inject(Fault::DeviceRemoved { device: "dev".into() });
    assert!(stage.poller.poll().is_err());
    let error = stage.right.destroy().unwrap_err();
    assert_eq!(error.source.errno(), libc::EIO);
    drop((error, stage.left, stage.poller, stage.queue));
    assert!(stage.domain.buffer(8).is_err());
}

#[test]
fn a_queue_that_cannot_be_destroyed_never_keeps_the_buffers() {
    interlock::domain! { struct Test; }
    let fabric = Fabric::manual();
    let domain = Context::open_on(&fabric, "dev").unwrap().named_domain(Test).unwrap();
    let mut stage = Stage::new(fabric, domain);
    let region = stage.domain.register::<LocalWrite, _>(vec![0_u8; 8]).unwrap();
    stage.right.post_receive(region.split().1).unwrap();
    stage.fabric.inject(fails_for_ever(Verb::DestroyCq));
    drop((stage.left, stage.right, stage.poller, stage.queue));
    assert!(format!("{:?}", stage.fabric).contains("regions: 0"), "{:?}", stage.fabric);
}

/// A drop reports an error to standard error when the reader has gone, as in `program 2>&1 | head`.
#[test]
#[cfg_attr(miri, ignore = "has no processes")]
fn a_drop_never_panics_for_want_of_standard_error() {
    use std::io::Read;
    use std::process::{Command, Stdio};
    if std::env::var_os("INTERLOCK_TEST_CHILD").is_some() {
        // Wait until the parent has closed the other ends of the pipes.
        std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
        let mut stage = stage!();
        stage.right.post_receive(small(&stage.domain)).unwrap();
        stage.fabric.inject(fails_for_ever(Verb::DestroyQp));
        drop(stage.right);
        stage.fabric.heal();
        stage.left.post_send(small(&stage.domain)).unwrap();
        assert_eq!(settle(&stage.fabric, &mut stage.poller).len(), 2, "the pair that was not destroyed lives on");
        return;
    }
    // The path of this test without the name of the program.
    let name = concat!(module_path!(), "::a_drop_never_panics_for_want_of_standard_error").split_once("::").unwrap().1;
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([name, "--exact", "--nocapture"])
        .env("INTERLOCK_TEST_CHILD", "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop((child.stderr.take(), child.stdin.take()));
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}

/// The address handle of a datagram in flight. The program has dropped every object that refers to it.
#[test]
fn an_address_handle_never_ends_before_its_requests_nor_outlives_their_queues() {
    interlock::domain! { struct Test; }
    for order in ["poll", "reset", "pair, poller", "poller, pair"] {
        let fabric = Fabric::manual();
        let handles =
            |count: u32| assert!(format!("{fabric:?}").contains(&format!("address_handles: {count}")), "{order}");
        let domain = Context::open_on(&fabric, "dev").unwrap().named_domain(Test).unwrap();
        let (port, (queue, mut poller)) = (domain.context().active_port().unwrap(), domain.queue(4 * DEPTH).unwrap());
        let open = |pair: QueuePair<_, Reset, _>| pair.into_init(&port).unwrap().open().unwrap();
        let mut pair = open(domain.datagram(&queue, &LIMITS).unwrap());
        let send = |pair: &mut QueuePair<_, _, _>| {
            let myself = domain.recipient(&port, &pair.endpoint(), interlock::number::Qkey::USUAL).unwrap();
            let _ = pair.post_send_to(small(&domain), &myself).unwrap();
        };
        send(&mut pair);
        send(&mut pair);
        handles(2);
        match order {
            "poll" => {
                pair.destroy().unwrap();
                // The address handles end with the pair, although the poller has not learned yet that the pair is
                // destroyed.
                handles(0);
                assert_eq!(all(&mut poller).len(), 2, "destroyed");
                drop(poller);
            }
            "reset" => {
                let pair = pair.into_reset().unwrap();
                handles(2);
                assert_eq!(all(&mut poller).len(), 2, "of the life before");
                let mut pair = open(pair);
                (0..DEPTH).for_each(|_| send(&mut pair));
                // The new requests have taken the slots of the old ones. That has ended the address handles of the old
                // ones.
                handles(DEPTH);
                assert_eq!(settle(&fabric, &mut poller).len() as u32, DEPTH);
                drop(poller);
            }
            "pair, poller" => {
                drop(pair);
                handles(0);
                drop(poller);
            }
            _ => drop((poller, pair)),
        }
        drop(queue);
        drop(domain);
        drop(port);
        handles(0);
        assert!(format!("{fabric:?}").contains("regions: 0, completion_queues: 0, queue_pairs: 0"), "{fabric:?}");
    }
}

support::also_extended![
    a_name_is_never_free_while_a_completion_queue_bears_it,
    forgetting_a_completion_leaks_and_never_frees_in_flight_memory,
    a_forgotten_pair_never_lets_its_memory_go,
    a_forgotten_half_never_ends_the_pair_under_the_device,
    a_pair_that_cannot_be_destroyed_never_lets_its_memory_go,
    what_fails_half_way_never_leaves_anything_behind,
    a_domain_that_cannot_be_deallocated_never_frees_its_name,
    j_2_a_region_never_outlives_its_device,
    j_4_a_queue_never_ends_under_a_forgotten_pair,
    a_device_that_is_gone_never_gives_back_what_it_may_still_hold,
    a_queue_that_cannot_be_destroyed_never_keeps_the_buffers,
    a_drop_never_panics_for_want_of_standard_error,
    an_address_handle_never_ends_before_its_requests_nor_outlives_their_queues,
];
