//! Tests what a device reports about itself, on the soft device or on the device that `INTERLOCK_DEVICE` names.

use interlock::completion::{CompletionQueueOptions, Polling};
use interlock::device::ForkSupport;
use interlock::error::{CompletionQueueError, CreateError, OpenError};
use interlock::number::{Pkey, PortNumber};
use interlock::shared::SharedLimits;
use interlock::{Context, Device, Limits};
use std::{env, process::Command};
use support::{PATIENCE, context, has_extended_queues};

#[test]
fn a_port_is_in_the_default_partition() {
    let context = context();
    let port = context.active_port().unwrap();
    let keys = context.partition_keys(port.number()).unwrap();
    assert!(keys.contains(&(0, Pkey::DEFAULT)), "{keys:?}");
    assert!(keys.iter().all(|(_, key)| key.is_valid()));
    assert!(Pkey::DEFAULT.is_full() && !Pkey(0x7fff).is_full() && !Pkey(0x8000).is_valid());
}

#[test]
fn a_port_that_is_not_there_has_no_keys() {
    let error = context().partition_keys(PortNumber::new(99).unwrap()).unwrap_err();
    assert_eq!(error.errno(), libc::EINVAL);
}

fn on(vector: u32) -> CompletionQueueOptions {
    CompletionQueueOptions { vector, ..CompletionQueueOptions::default() }
}

#[test]
fn a_completion_queue_wakes_on_each_vector() {
    interlock::domain! { struct Test; }
    let context = context();
    let domain = context.named_domain(Test).unwrap();
    let port = context.active_port().unwrap();
    assert!(context.completion_vectors() >= 1);
    for vector in 0..context.completion_vectors() {
        let (queue, mut poller) =
            domain.completion_queue_with(2 * Limits::default().completions(), &on(vector)).unwrap();
        let mut pair = domain.datagram(&queue, &Limits::default()).unwrap().into_init(&port).unwrap().open().unwrap();
        let to = domain.recipient(&port, &pair.endpoint(), interlock::number::Qkey::USUAL).unwrap();
        pair.post_receive(domain.buffer(64).unwrap()).unwrap();
        pair.post_send_to(domain.buffer(8).unwrap(), &to).unwrap();
        for _ in 0..2 {
            poller.wait(PATIENCE).unwrap().check().unwrap();
        }
    }
}

#[test]
fn a_vector_that_is_not_there_is_refused() {
    interlock::domain! { struct Test; }
    let context = context();
    let domain = context.named_domain(Test).unwrap();
    for vector in [context.completion_vectors(), u32::MAX] {
        let error = domain.completion_queue_with(16, &on(vector)).unwrap_err();
        assert!(matches!(error, CompletionQueueError::Verb(error) if error.errno() == libc::EINVAL), "{error:?}");
        let error = domain.completion_channel().unwrap().completion_queue_with(16, &on(vector)).unwrap_err();
        assert!(error.to_string().contains("no such completion vector?"), "{error}");
    }
}

#[test]
fn a_device_says_what_it_can_do() {
    let attributes = context().attributes().unwrap();
    for most in [
        attributes.max_queue_pairs(),
        attributes.max_queue_depth(),
        attributes.max_elements(),
        attributes.max_completion_queues(),
        attributes.max_completion_entries(),
        attributes.max_domains(),
        attributes.max_regions(),
        attributes.max_address_handles(),
        attributes.max_multicast_groups(),
        attributes.max_queue_pairs_per_group(),
        attributes.max_shared_receive_queues(),
        attributes.max_shared_receive_depth(),
        attributes.max_shared_receive_elements(),
        attributes.max_windows(),
    ] {
        assert_ne!(most, 0, "{attributes:?}");
    }
}

#[test]
fn fork_support_is_there_for_who_asks() {
    match interlock::device::enable_fork_support() {
        Ok(support) => assert!(matches!(support, ForkSupport::Enabled | ForkSupport::Unneeded), "{support:?}"),
        // Another test of this process has already used a device, so this call comes too late.
        Err(error) => assert_eq!((error.verb(), error.errno()), ("ibv_fork_init", libc::EINVAL)),
    }
}

/// `INTERLOCK_DEVICE` is set for tests, so this test runs itself again in a process without the variable.
#[test]
fn the_default_device_is_not_a_simulation_unless_it_is_named() {
    if env::var_os("INTERLOCK_DEVICE").is_some() {
        let mut alone = Command::new(env::current_exe().unwrap());
        alone.args(["--exact", "the_default_device_is_not_a_simulation_unless_it_is_named"]);
        let ended = alone.env_remove("INTERLOCK_DEVICE").output().unwrap();
        let said = String::from_utf8_lossy(&ended.stdout);
        assert!(ended.status.success() && said.contains("test result: ok. 1 passed"), "{said}");
        return;
    }
    let unusable = match Context::open_default() {
        Ok(context) => return assert!(!context.is_soft(), "{context:?}"),
        Err(OpenError::NoHardware { unusable }) => unusable,
        Err(error) => panic!("{error}"),
    };
    let hardware = interlock::devices().unwrap().into_iter().filter(|device| !Device::is_soft(device)).count();
    assert_eq!(unusable.len(), hardware, "{unusable:?}");
    let text = OpenError::NoHardware { unusable }.to_string();
    let checks: &[&str] = if cfg!(feature = "rdma-core") {
        &["kernel module", "ibv_devices", "/dev/infiniband/uverbs", "INTERLOCK_DEVICE=soft0"]
    } else {
        &["without the feature `rdma-core`", "INTERLOCK_DEVICE=soft0"]
    };
    for what in checks {
        assert!(text.contains(what), "{text}");
    }
    assert!(Context::open("soft0").unwrap().is_soft());
}

#[test]
fn the_simulation_is_the_default_device_where_it_is_named() {
    if env::var("INTERLOCK_DEVICE").is_ok_and(|name| name == "soft0") {
        assert_eq!(Context::open_default().unwrap().name(), "soft0");
        return;
    }
    let mut alone = Command::new(env::current_exe().unwrap());
    alone.args(["--exact", "the_simulation_is_the_default_device_where_it_is_named"]);
    let ended = alone.env("INTERLOCK_DEVICE", "soft0").output().unwrap();
    let said = String::from_utf8_lossy(&ended.stdout);
    assert!(ended.status.success() && said.contains("test result: ok. 1 passed"), "{said}");
}

/// In these environments providers hide failures, leave out locks or misplace data. The test runs itself again in
/// each: once with the variable set from the start, and once with the variable set after the device was opened.
#[test]
fn an_environment_in_which_providers_lie_is_refused() {
    const NAME: &str = "an_environment_in_which_providers_lie_is_refused";
    const LATE: &str = "INTERLOCK_TEST_LATE";
    let variables = [
        "RDMAV_ALLOW_DISASSOC_DESTROY",
        "MLX4_DEVICE_FATAL_CLEANUP",
        "MLX5_SINGLE_THREADED",
        "MLX4_SINGLE_THREADED",
        "MLX5_CQE_SIZE",
    ];
    let is_refused = |name: &str| {
        let refused = Context::open("soft0").unwrap_err();
        assert!(matches!(refused, OpenError::ForbiddenEnvironment { variable } if variable == name), "{refused}");
        // Without `INTERLOCK_DEVICE`, `Channel::open_default` opens no device, so it must check the environment itself.
        #[cfg(feature = "cm")]
        assert!(matches!(interlock::cm::Channel::open_default().unwrap_err(), interlock::cm::CmError::Open(_)));
    };
    if let Some(late) = env::var_os(LATE) {
        let name = late.to_str().unwrap();
        let domain = context().checked_domain().unwrap();
        let (queue, _poller) = domain.completion_queue(8).unwrap();
        let has_extended = has_extended_queues();
        // SAFETY: no other thread of this process uses the environment: the process runs only this test, which has
        // already opened its device.
        unsafe { env::set_var(name, "1") };
        let refused = domain.completion_queue(8).unwrap_err();
        assert_eq!((refused.verb(), refused.errno()), ("ibv_create_cq", libc::EPERM));
        assert!(refused.to_string().ends_with("docs/failures.md#forbidden-environment)"), "{refused}");
        let is_forbidden = |error: CreateError| matches!(error, CreateError::Verb(verb) if verb.errno() == libc::EPERM);
        assert!(is_forbidden(domain.reliable(&queue, &Limits::default()).unwrap_err()));
        if domain.context().promises().shared_receive_queues() {
            assert!(is_forbidden(domain.shared_receive_queue(&SharedLimits::default()).unwrap_err()));
        }
        let extended = CompletionQueueOptions { polling: Polling::Extended, ..CompletionQueueOptions::default() };
        let refused = domain.completion_queue_with(8, &extended).unwrap_err();
        match refused {
            CompletionQueueError::NotExtended(_) => assert!(!has_extended),
            CompletionQueueError::Verb(verb) if verb.errno() == libc::EPERM => {}
            other => panic!("{other}"),
        }
        #[cfg(feature = "cm")]
        assert!(matches!(interlock::cm::Channel::open(&domain.context()), Err(interlock::cm::CmError::Open(_))));
        // SAFETY: the process still runs only this test, so no other thread of it uses the environment.
        unsafe { env::remove_var(name) };
        assert!(domain.completion_queue(8).is_err(), "the provider may have read it meanwhile");
        return is_refused(name);
    }
    if let Some(name) = variables.into_iter().find(|name| env::var_os(name).is_some()) {
        return is_refused(name);
    }
    for name in variables {
        for (variable, value) in [(name, "1"), (LATE, name)] {
            let mut alone = Command::new(env::current_exe().unwrap());
            alone.args(["--exact", NAME]).env_remove("INTERLOCK_DEVICE");
            let ended = alone.env(variable, value).output().unwrap();
            let said = String::from_utf8_lossy(&ended.stdout);
            assert!(ended.status.success() && said.contains("test result: ok. 1 passed"), "{said}");
        }
    }
}
