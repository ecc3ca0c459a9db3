//! The last resort: if a device releases nothing, or if peers can still reach the memory, the process aborts. Each test
//! runs itself again as a child process.

use crate::{SHORT, always};
use interlock::RemoteWrite;
use interlock::soft::{Fabric, Fault, Verb};
use std::env;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;
use std::time::Duration;

/// Runs the test `name` again as a child process, which must abort with `message`. Returns whether this process is the
/// child.
fn is_to_abort(name: &str, message: &str) -> bool {
    const ABORTS: &str = "INTERLOCK_TEST_ABORTS";
    if env::var_os(ABORTS).is_some_and(|which| which == name) {
        return true;
    }
    let output = Command::new(env::current_exe().unwrap())
        .args(["--exact", &format!("last_resort::{name}"), "--nocapture", "--test-threads=1"])
        .env(ABORTS, name)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    let signal = std::os::unix::process::ExitStatusExt::signal(&output.status);
    assert_eq!(signal, Some(libc::SIGABRT), "{said}");
    assert!(said.contains("interlock: the memory of a scope is still in use: ") && said.contains(message), "{said}");
    assert!(!said.contains("got away"), "{said}");
    false
}

#[test]
#[cfg_attr(miri, ignore = "has no processes")]
fn a_device_that_lets_go_of_nothing_ends_the_process() {
    if !is_to_abort("a_device_that_lets_go_of_nothing_ends_the_process", "neither flushed nor ended") {
        return;
    }
    let (fabric, mut wire) = wire!(Fabric::manual());
    let mut buffer = [0_u8; 8];
    let ended = wire.exclusive.scope(Duration::ZERO, |scope| {
        drop(scope.post_receive(scope.lend_mut(&mut buffer).unwrap()).unwrap());
        fabric.inject(always(Verb::ModifyQp, libc::EIO));
        fabric.inject(always(Verb::DestroyQp, libc::EIO));
    });
    eprintln!("got away: {ended:?}");
}

#[test]
#[cfg_attr(miri, ignore = "has no processes")]
fn a_panic_over_a_device_that_lets_go_of_nothing_ends_the_process() {
    if !is_to_abort("a_panic_over_a_device_that_lets_go_of_nothing_ends_the_process", "neither flushed nor ended") {
        return;
    }
    let (fabric, mut wire) = wire!(Fabric::manual());
    let caught = catch_unwind(AssertUnwindSafe(|| {
        let mut buffer = [0_u8; 8];
        wire.exclusive.scope(Duration::ZERO, |scope| {
            drop(scope.post_receive(scope.lend_mut(&mut buffer).unwrap()).unwrap());
            fabric.inject(always(Verb::ModifyQp, libc::EIO));
            fabric.inject(always(Verb::DestroyQp, libc::EIO));
            panic!("in the closure");
        })
    }));
    eprintln!("got away: {caught:?}");
}

#[test]
#[cfg_attr(miri, ignore = "has no processes")]
fn a_device_that_is_pulled_out_with_requests_in_flight_ends_the_process() {
    if !is_to_abort("a_device_that_is_pulled_out_with_requests_in_flight_ends_the_process", "neither flushed nor ended")
    {
        return;
    }
    let (fabric, mut wire) = wire!(Fabric::new());
    let mut buffer = [0_u8; 8];
    let ended = wire.exclusive.scope(SHORT, |scope| {
        drop(scope.post_receive(scope.lend_mut(&mut buffer).unwrap()).unwrap());
        fabric.inject(Fault::DeviceRemoved { device: "dev0".to_owned() });
    });
    eprintln!("got away: {ended:?}");
}

#[test]
#[cfg_attr(miri, ignore = "has no processes")]
fn memory_that_peers_can_still_reach_ends_the_process() {
    if !is_to_abort("memory_that_peers_can_still_reach_ends_the_process", "peers can still reach it") {
        return;
    }
    let (fabric, mut wire) = wire!(Fabric::new());
    let mut words = [0_u64; 8];
    let ended = wire.exclusive.scope(SHORT, |scope| {
        drop(scope.grant::<RemoteWrite>(&mut words).unwrap());
        fabric.inject(always(Verb::DeregMr, libc::EBUSY));
    });
    eprintln!("got away: {ended:?}");
}

/// The device does not flush and does not reset the pair. Its first destroy fails, and the second one succeeds.
#[test]
fn a_destroy_that_fails_once_is_tried_again() {
    let (fabric, mut wire) = wire!(Fabric::manual());
    let mut buffer = [0_u8; 8];
    let ended = wire.exclusive.scope(Duration::ZERO, |scope| {
        drop(scope.post_receive(scope.lend_mut(&mut buffer).unwrap()).unwrap());
        fabric.inject(always(Verb::ModifyQp, libc::EIO));
        fabric.inject(Fault::VerbFails { verb: Verb::DestroyQp, after: 0, count: 1, errno: libc::EINTR });
    });
    assert!(ended.is_err(), "{ended:?}");
    assert_eq!(fabric.violations(), <Vec<String>>::new());
}
