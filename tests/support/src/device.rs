//! The device under test, and how devices differ.

use crate::polling::extended;
use interlock::error::{CompletionQueueError, CreateError, TransitionError, TransitionFailure};
use interlock::queue::Posting;
use interlock::{Context, Limits, Status};
use std::env;
use std::sync::LazyLock;
use std::time::Duration;

/// Longer than any exchange of the tests takes on the slowest machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Opens the device under test: the soft one, or the one that `INTERLOCK_DEVICE` names.
pub fn context() -> Context {
    let opened = match std::env::var_os("INTERLOCK_DEVICE") {
        Some(_) => Context::open_default(),
        None => Context::open("soft0"),
    };
    opened.expect("a device to test on")
}

/// Whether the device under test is not a soft one.
pub fn on_hardware() -> bool {
    static ANSWER: LazyLock<bool> = LazyLock::new(|| !context().name().starts_with("soft"));
    *ANSWER
}

/// Whether the device under test is the soft one without a profile, which has everything and promises everything. So no
/// test may skip anything on it.
pub fn promises_everything() -> bool {
    context().is_soft() && env::var_os("INTERLOCK_SOFT_PROFILE").is_none()
}

/// The ways of posting that the device under test has for requests of one element.
pub fn ways() -> Vec<Posting> {
    let made = context().with_domain(|domain| {
        let limits = Limits { posting: Posting::WorkRequestApi, ..Limits::default() };
        let (queue, _poller) = domain.completion_queue(limits.completions()).unwrap();
        domain.reliable(&queue, &limits).map(drop)
    });
    match made.expect("a domain") {
        Ok(()) => vec![Posting::List, Posting::WorkRequestApi],
        Err(CreateError::NoWorkRequestApi(_)) => {
            assert!(!promises_everything(), "the soft device has the work request API");
            vec![Posting::List]
        }
        Err(error) => panic!("{error}"),
    }
}

/// Whether completion queues of the device under test can be polled through `ibv_start_poll`.
pub fn has_extended_queues() -> bool {
    let context = context();
    let made = context.with_domain(|domain| domain.completion_queue_with(4, &extended()).map(drop));
    match made.expect("a domain") {
        Ok(()) => true,
        Err(CompletionQueueError::NotExtended(_)) => {
            assert!(!promises_everything() && !context.name().starts_with("rxe"), "the device has extended queues");
            false
        }
        Err(error) => panic!("{error}"),
    }
}

/// The name of a second device of the same kind, if there is one: the other soft device, or the device at the other end
/// of the cable.
pub fn another_device() -> Option<String> {
    let name = context().name().to_owned();
    let kind = name.trim_end_matches(|last: char| last.is_ascii_digit()).to_owned();
    let names = interlock::devices().unwrap().into_iter().map(|device| device.name().to_owned());
    // The rest of the name must be a number: `rxespare0`, which a test removes, begins with `rxe` too.
    let is_number = |rest: &str| rest.bytes().all(|byte| byte.is_ascii_digit());
    names.into_iter().find(|other| *other != name && other.strip_prefix(&*kind).is_some_and(is_number))
}

/// The cases of docs/conformance.md in which soft-RoCE deviates from the specification. The document describes each.
const RXE_DEVIATIONS: [(&str, Kernels); 10] = [
    ("C015", Kernels::Newer),
    ("C062", Kernels::All),
    ("C082", Kernels::All),
    ("C088", Kernels::All),
    ("C089", Kernels::All),
    ("C096", Kernels::All),
    ("C109", Kernels::Older),
    ("C129", Kernels::All),
    ("C153", Kernels::Older),
    ("C158", Kernels::All),
];

/// The kernels whose soft-RoCE deviates. Linux 6.1 and 6.12 were tested; a kernel between the two counts as older.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kernels {
    All,
    /// Before 6.12.
    Older,
    /// 6.12 and newer.
    Newer,
}

/// Whether the device under test deviates from the specification in this case of docs/conformance.md.
pub fn deviates(case: &str) -> bool {
    let known = RXE_DEVIATIONS.iter().find(|(known, _)| *known == case);
    let (_, kernels) = known.unwrap_or_else(|| panic!("{case} is not in the list of deviations"));
    let does = match kernels {
        Kernels::All => true,
        Kernels::Older => !is_linux_6_12(),
        Kernels::Newer => is_linux_6_12(),
    };
    let is_rxe = context().name().starts_with("rxe");
    // These three cases are about windows. In them, a soft device that lacks `Promise::Windows` is allowed to deviate
    // as soft-RoCE does.
    let is_of_windows = ["C082", "C088", "C089"].contains(&case) && lacks(Promise::Windows);
    is_of_windows || does && is_rxe
}

/// Whether the kernel is Linux 6.12 or newer.
pub fn is_linux_6_12() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(['.', '-']).map_while(|number| number.parse::<u32>().ok());
    (numbers.next(), numbers.next()) >= (Some(6), Some(12))
}

/// A promise that many tests rely on and that some providers do not make. Where a provider does not make it, the
/// library refuses the call that would rely on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Promise {
    /// A pair on a shared receive queue can be destroyed at any time. Elsewhere the poller of the pair destroys it.
    EndAtOnce,
    /// A window permits its peer to reach the bytes over which it was bound, and permits nothing else.
    Windows,
    /// An event comes when there is a completion, and only then.
    Events,
    /// A connect that fails without a TCP stream leaves its pair in Init. Elsewhere than on iWARP, that is always so.
    SparedPairs,
    /// The requests of a work queue complete in the order in which they were posted.
    Order,
}

/// Whether the library says that the provider of the device under test does not make this promise.
///
/// The conformance tests check that the library is right about that for the specification's own profile and for
/// soft-RoCE.
pub fn lacks(promise: Promise) -> bool {
    let context = context();
    let promises = context.promises();
    match promise {
        Promise::EndAtOnce => !promises.pairs_end_at_once(true),
        // Only a device in the process (`soft0`) counts as lacking this promise. On soft-RoCE, `windows_are_barriers`
        // is false too, but only because of the deviations C082, C088 and C089.
        Promise::Windows => !on_hardware() && !context.promises().windows_are_barriers(),
        Promise::Events => promises.provider() == "adversary" || !promises.are_reviewed(),
        // If sends may be unsignalled, the completion of a send also completes the sends before it, so sends complete
        // in order. Otherwise the library makes no promise about the order.
        Promise::Order => context.is_iwarp() || !promises.sends_may_be_unsignalled(),
        Promise::SparedPairs => context.is_iwarp() && !promises.failed_connects_spare_pairs(),
    }
}

/// Whether a request that was in flight on a pair ends with this status when the pair is destroyed. A provider that
/// destroys a pair at once does not flush its requests first, except on iWARP.
pub fn is_of_a_destroyed_pair(status: Status) -> bool {
    let context = context();
    let is_flushed = context.is_iwarp() || !context.promises().pairs_end_at_once(false);
    status == Status::Destroyed || is_flushed && status == Status::Flushed
}

/// The pair on a shared receive queue that was reset, or `None` if the library refused the reset because the provider
/// does not promise enough for such pairs.
pub fn unless_refused<P, Q>(reset: Result<P, TransitionError<Q>>) -> Option<P> {
    match reset {
        Ok(pair) => Some(pair),
        Err(TransitionError { source, .. }) => {
            let is_known = match source {
                TransitionFailure::ResetShared { .. } => lacks(Promise::EndAtOnce),
                _ => false,
            };
            assert!(is_known, "{source}");
            None
        }
    }
}
