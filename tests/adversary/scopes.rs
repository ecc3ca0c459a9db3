//! Scopes on every profile: whatever the closure does, nothing changes borrowed memory once its scope is over.
use super::profiles;
use interlock::attributes::ConnectAttributes;
use interlock::queue::Posting;
use interlock::scope::{Exclusive, InScopeError};
use interlock::soft::{Fabric, Fault, Profile, Verb};
use interlock::{AnyQueuePair, Context, Inline, Limits, RemoteAll};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;
use support::Random;

const LIMITS: Limits = Limits { sends: 4, receives: 4, inline_bytes: 16, elements: 2, posting: Posting::List };

#[test]
fn nothing_changes_what_was_lent_once_its_scope_is_over() {
    for profile in profiles() {
        let fabric = Fabric::with_profile(profile);
        let context = Context::open_on(&fabric, "dev0").unwrap();
        let port = context.active_port().unwrap();
        let domain = context.checked_domain().unwrap();
        let region = domain.register::<RemoteAll, _>(vec![0x1111_u64; 8]).unwrap();
        let remote = region.remote();
        let mut old: Vec<(Vec<u8>, u8)> = Vec::new();
        let mut dice = Random::new(7);
        for round in 0..if cfg!(miri) { 1 } else { 24 } {
            let (queue, poller) = domain.completion_queue(32).unwrap();
            let (others, mut peers) = domain.completion_queue(32).unwrap();
            let left = domain.reliable(&queue, &LIMITS).unwrap().into_init(&port).unwrap();
            drop(queue);
            let right = domain.reliable(&others, &LIMITS).unwrap().into_init(&port).unwrap();
            let (to_left, to_right) = (left.endpoint(), right.endpoint());
            let attr = ConnectAttributes::default();
            let left = left.connect_with(&to_right, &attr).unwrap();
            let mut right = Some(right.connect_with(&to_left, &attr).unwrap());
            for _ in 0..3 {
                let _ = right.as_mut().unwrap().post_receive(domain.buffer(24).unwrap());
            }
            let mut exclusive = Exclusive::new(left, poller).unwrap();
            let _ = exclusive.post_receive(domain.buffer(24).unwrap());
            for turn in 0..3 {
                let mut memory: Vec<Vec<u8>> = (0..5).map(|at| vec![at as u8; 24]).collect();
                let mut words = [0_u64; 4];
                let result = catch_unwind(AssertUnwindSafe(|| {
                    let mut lent = memory.iter_mut();
                    let words = &mut words;
                    exclusive.scope(Duration::from_millis(dice.below(20) as u64), |scope| {
                        let granted = scope.grant::<RemoteAll>(words).ok();
                        for _ in 0..5 {
                            let Some(bytes) = lent.next() else { break };
                            let Ok(mine) = scope.lend_mut(bytes) else { continue };
                            let ticket = match dice.below(4) {
                                0 | 1 => scope.post_receive(mine),
                                2 => scope.post_read(mine, &remote.slice(0..24).unwrap()),
                                _ => scope.post_send(mine),
                            };
                            if let Some(right) = &mut right {
                                let _ = right.post_send(Inline(b"for whom it may be"));
                                if let Some(granted) = &granted
                                    && let Ok(mut buffer) = domain.buffer(8)
                                {
                                    buffer.fill(3);
                                    let _ = right.post_write(buffer, &granted.remote());
                                }
                            }
                            drop(peers.poll());
                            let Ok(ticket) = ticket else { continue };
                            match dice.below(4) {
                                0 => std::mem::forget(ticket),
                                1 => drop(ticket),
                                2 => drop(scope.wait_for(ticket, Duration::from_millis(1)).map_err(|_| ())),
                                _ => match scope.wait_for(ticket, Duration::ZERO) {
                                    Ok(done) => std::mem::forget(done.memory),
                                    Err(error) => std::mem::forget(error),
                                },
                            }
                        }
                        if dice.below(4) == 0 {
                            panic!("out of the scope");
                        }
                        Ok::<(), InScopeError>(())
                    })
                }));
                drop(result);
                let words_now = words;
                // The scope is over, so the memory belongs to the program again.
                for bytes in &mut memory {
                    bytes.fill(0x77);
                    old.push((bytes.clone(), 0x77));
                }
                let keep: Vec<_> = memory.iter().map(|bytes| bytes.as_ptr()).collect();
                if turn == 1 {
                    drop(right.take());
                }
                if let Some(right) = &mut right {
                    for _ in 0..3 {
                        let _ = right.post_send(Inline(b"late"));
                    }
                }
                while let Ok(Some(completion)) = exclusive.poll() {
                    drop(completion);
                }
                while let Ok(Some(completion)) = peers.poll() {
                    drop(completion);
                }
                fabric.run();
                assert!(
                    memory.iter().all(|bytes| bytes.iter().all(|byte| *byte == 0x77)),
                    "{profile:?}, round {round}: changed"
                );
                assert_eq!(words, words_now, "{profile:?}");
                assert_eq!(keep, memory.iter().map(|bytes| bytes.as_ptr()).collect::<Vec<_>>());
                for completion in exclusive.poll().into_iter().flatten() {
                    drop(completion);
                }
            }
            let parts = exclusive.into_parts();
            for completion in &parts.completions {
                let _ = completion.id();
            }
            drop(parts);
        }
        assert!(old.iter().all(|(bytes, mark)| bytes.iter().all(|byte| byte == mark)));
        let violations = fabric.violations();
        assert_eq!(violations, <Vec<String>>::new(), "{profile:?}");
    }
}

/// The pair of a scope cannot be moved to Error, so it is destroyed with requests in flight. On some providers a poll
/// after that would read what the destroy has freed. But another pair has departed and waits for completions on the
/// same queue, so the drop of the queue would poll.
#[test]
fn scopes_end_without_a_poll_after_a_destroy_with_requests_in_flight() {
    // One poll takes 16 completions. The rest are still in the queue when the pair is destroyed.
    const MANY: usize = if cfg!(miri) { 20 } else { 40 };
    let faults = [
        Fault::DeviceFatal { device: "dev0".into() },
        Fault::VerbFails { verb: Verb::ModifyQp, after: 0, count: 9, errno: libc::EIO },
    ];
    let (faults, profiles) = if cfg!(miri) { (&faults[..1], vec![Profile::Irdma]) } else { (&faults[..], profiles()) };
    for (profile, fault) in profiles.into_iter().flat_map(|profile| faults.iter().map(move |fault| (profile, fault))) {
        let fabric = Fabric::with_profile(profile);
        let context = Context::open_on(&fabric, "dev0").unwrap();
        let port = context.active_port().unwrap();
        let domain = context.checked_domain().unwrap();
        let limits = Limits { receives: MANY as u32, ..LIMITS };
        let (queue, poller) = domain.completion_queue(4 * MANY as u32).unwrap();
        let [pair, mut departed] =
            [(); 2].map(|()| domain.reliable(&queue, &limits).unwrap().into_init(&port).unwrap());
        let to_itself = pair.endpoint();
        let pair = pair.connect(&to_itself).unwrap();
        let _ = departed.post_receive(domain.buffer(8).unwrap());
        drop((queue, departed));
        let mut exclusive = Exclusive::new(pair, poller).unwrap();
        let mut memory = vec![[0_u8; 8]; MANY];
        let mut lent = memory.iter_mut();
        let ended = exclusive.scope(Duration::ZERO, |scope| {
            for bytes in &mut lent {
                let Ok(bytes) = scope.lend_mut(bytes) else { continue };
                let _ = scope.post_receive(bytes).map(std::mem::forget);
            }
            fabric.inject(fault.clone());
        });
        assert!(ended.is_err(), "{profile:?}");
        let parts = exclusive.into_parts();
        if !context.promises().pairs_end_at_once(false) {
            assert!(
                matches!(parts.queue_pair, AnyQueuePair::Vacant) && parts.poller.is_none(),
                "{profile:?}: {parts:?}"
            );
        }
        drop(parts);
        assert_eq!(fabric.violations(), <Vec<String>>::new(), "{profile:?}, {fault:?}");
    }
}
