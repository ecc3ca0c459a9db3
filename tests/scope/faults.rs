//! Devices that refuse a verb, release memory late, or fail with nothing left to release it. The memory comes back, or
//! leaks together with its domain.

use crate::broken::one_cut_off;
use crate::{DEPTH, SHORT, Wire, always, broken};
use interlock::error::{NamedDomainError, RegisterFailure};
use interlock::scope::InScopeError;
use interlock::soft::{Fabric, Fault, Verb};
use interlock::{Context, PostError, RemoteWrite};
use std::time::Duration;
use support::{PATIENCE, context};

fn fails(verb: Verb, errno: i32) -> Fault {
    Fault::VerbFails { verb, after: 0, count: 1, errno }
}

#[test]
fn a_refused_post_gives_the_memory_back() {
    let (fabric, mut wire) = wire!(Fabric::new());
    wire.peer_posts_receive(8);
    let bytes = [6_u8; 8];
    wire.exclusive
        .scope(PATIENCE, |scope| {
            fabric.inject(fails(Verb::PostSend, libc::ENOMEM));
            let error = scope.post_send(scope.lend(&bytes)?).unwrap_err();
            assert!(matches!(&error, PostError::Refused { request, .. } if request[..] == [6; 8]), "{error:?}");
            scope.wait(scope.post_send(error.into_request().unwrap())?)?;
            Ok::<_, InScopeError>(())
        })
        .unwrap()
        .unwrap();
    assert_eq!(wire.peer_received(), [6; 8]);
}

#[test]
fn a_full_queue_gives_the_memory_back() {
    let (fabric, mut wire) = wire!(Fabric::manual());
    let mut buffer = [0_u8; 8 * (DEPTH as usize + 1)];
    let ended = wire.exclusive.scope(Duration::ZERO, |scope| {
        let mut rest = scope.lend_mut(&mut buffer).unwrap();
        for _ in 0..DEPTH {
            let (part, after) = rest.split_at(8).unwrap();
            rest = after;
            drop(scope.post_receive(part).unwrap());
        }
        let error = scope.post_receive(rest).unwrap_err();
        assert!(matches!(&error, PostError::QueueFull(memory) if memory.capacity() == 8), "{error:?}");
    });
    assert_eq!(broken(ended), ("Reset", DEPTH, None));
    fabric.run();
}

#[test]
fn a_limit_of_locked_memory_is_a_typed_error() {
    let (fabric, mut wire) = wire!(Fabric::new());
    let bytes = vec![0_u8; 1 << 20];
    fabric.inject(Fault::LockedMemoryLimit { bytes: (1 << 20) - 1 });
    wire.exclusive
        .scope(PATIENCE, |scope| {
            let refused = scope.lend(&bytes).unwrap_err();
            let limited =
                matches!(refused, RegisterFailure::LockedMemoryLimit(ref limit) if limit.needed_bytes == 0x10_0000);
            assert!(limited || matches!(refused, RegisterFailure::Verb(_)), "{refused:?}");
            scope.lend(&bytes[..8]).unwrap();
        })
        .unwrap();
}

#[test]
fn a_registration_that_ends_late_is_waited_for() {
    let (fabric, mut wire) = wire!(Fabric::new());
    let (bytes, mut words) = ([0_u8; 8], [0_u64; 1]);
    wire.exclusive
        .scope(PATIENCE, |scope| {
            drop(scope.lend(&bytes).unwrap());
            drop(scope.grant::<RemoteWrite>(&mut words).unwrap());
            fabric.inject(Fault::VerbFails { verb: Verb::DeregMr, after: 0, count: 3, errno: libc::EBUSY });
        })
        .unwrap();
}

#[test]
fn a_private_registration_that_does_not_end_is_leaked_with_its_domain() {
    interlock::domain! { struct Leaky; }
    let fabric = Fabric::new();
    let context = Context::open_on(&fabric, "dev0").unwrap();
    let mut wire = Wire::new(context.named_domain(Leaky).unwrap());
    let bytes = vec![0_u8; 8];
    wire.exclusive
        .scope(PATIENCE, |scope| {
            drop(scope.lend(&bytes).unwrap());
            fabric.inject(always(Verb::DeregMr, libc::EBUSY));
        })
        .unwrap();
    fabric.heal();
    drop((bytes, wire));
    assert!(matches!(context.named_domain(Leaky), Err(NamedDomainError::Taken { .. })));
}

#[test]
fn a_domain_whose_scopes_are_over_is_freed() {
    interlock::domain! { struct Clean; }
    let context = context();
    let mut wire = Wire::new(context.named_domain(Clean).unwrap());
    let (bytes, mut buffer) = ([0_u8; 8], [0_u8; 8]);
    let ended = wire.exclusive.scope(Duration::ZERO, |scope| {
        let lent = scope.lend(&bytes).unwrap();
        drop(scope.post_receive(scope.lend_mut(&mut buffer).unwrap()).unwrap());
        drop(lent.slice(0..2));
    });
    one_cut_off(ended);
    drop(wire);
    context.named_domain(Clean).expect("nothing of the domain is left");
}

#[test]
fn a_device_that_goes_away_with_nothing_in_flight_ends_no_process() {
    let (fabric, mut wire) = wire!(Fabric::new());
    let bytes = [0_u8; 8];
    wire.exclusive
        .scope(SHORT, |scope| {
            drop(scope.lend(&bytes).unwrap());
            fabric.inject(Fault::DeviceRemoved { device: "dev0".to_owned() });
        })
        .unwrap();
}

#[test]
fn a_device_that_fails_but_lets_go_ends_no_process() {
    let (fabric, mut wire) = wire!(Fabric::new());
    let mut buffer = [0_u8; 8];
    let ended = wire.exclusive.scope(SHORT, |scope| {
        drop(scope.post_receive(scope.lend_mut(&mut buffer).unwrap()).unwrap());
        fabric.inject(Fault::DeviceFatal { device: "dev0".to_owned() });
    });
    assert!(ended.is_err());
}
