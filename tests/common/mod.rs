//! What the tests of data exchange share. They run on the soft device, or on the one that `INTERLOCK_DEVICE` names.
#![allow(dead_code, reason = "each test file uses a part")]

use interlock::{
    Brand, Completion, CompletionChannel, CompletionQueue, CompletionQueueError, CompletionQueueOptions,
    ConnectAttributes, Context, Limits, Poller, Polling, Port, ProtectionDomain, QueuePair, ReadyToSend,
    TransitionError, TransitionFailure, VerbError,
};
use std::cell::Cell;
use std::time::{Duration, Instant};

/// More than any exchange here takes, on the slowest machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// The device to test on.
pub(crate) fn context() -> Context {
    let opened = match std::env::var_os("INTERLOCK_DEVICE") {
        Some(_) => Context::open_default(),
        None => Context::open("soft0"),
    };
    opened.expect("a device to test on")
}

/// Whether the device is not the soft one.
pub(crate) fn on_hardware() -> bool {
    !context().name().starts_with("soft")
}

/// The device that faces the one to test on, if there is one: the other soft one, or the other end of the cable.
pub(crate) fn another_device() -> Option<String> {
    let name = context().name().to_owned();
    let kind = name.trim_end_matches(|last: char| last.is_ascii_digit()).to_owned();
    let names = interlock::devices().unwrap().into_iter().map(|device| device.name().to_owned());
    names.into_iter().find(|other| *other != name && other.starts_with(&kind))
}

thread_local! {
    /// How the completion queues of tests are polled: as most programs do, or in `tests/extended.rs` and its like, which are
    /// made of others, as extended ones.
    pub(crate) static POLLING: Cell<Polling> = const {
        match env!("CARGO_CRATE_NAME").as_bytes() {
            b"extended" | b"extended_events" => Cell::new(Polling::Extended),
            _ => Cell::new(Polling::Array),
        }
    };
}

/// What makes completion queues.
pub(crate) trait Queues<B> {
    /// One that is polled as tests are to.
    fn queue(&self, entries: u32) -> Result<(CompletionQueue<B>, Poller<B>), VerbError>;
}

impl<B: Brand> Queues<B> for ProtectionDomain<B> {
    fn queue(&self, entries: u32) -> Result<(CompletionQueue<B>, Poller<B>), VerbError> {
        match POLLING.get() {
            Polling::Extended => self.completion_queue_with(entries, &extended()).map_err(verb),
            _ => self.completion_queue(entries),
        }
    }
}

impl<B: Brand> Queues<B> for CompletionChannel<B> {
    fn queue(&self, entries: u32) -> Result<(CompletionQueue<B>, Poller<B>), VerbError> {
        match POLLING.get() {
            Polling::Extended => self.completion_queue_with(entries, &extended()).map_err(verb),
            _ => self.completion_queue(entries),
        }
    }
}

pub(crate) fn extended() -> CompletionQueueOptions {
    CompletionQueueOptions { polling: Polling::Extended, ..CompletionQueueOptions::default() }
}

fn verb(error: CompletionQueueError) -> VerbError {
    match error {
        CompletionQueueError::Verb(error) => error,
        other => panic!("{other}"),
    }
}

/// Two connected pairs on one completion queue.
pub(crate) struct Link<B> {
    pub(crate) domain: ProtectionDomain<B>,
    pub(crate) port: Port,
    pub(crate) queue: CompletionQueue<B>,
    pub(crate) poller: Poller<B>,
    pub(crate) left: QueuePair<B, ReadyToSend>,
    pub(crate) right: QueuePair<B, ReadyToSend>,
}

impl<B: Brand> Link<B> {
    pub(crate) fn new(domain: ProtectionDomain<B>, depth: u32) -> Self {
        Self::with(domain, depth, &ConnectAttributes::default())
    }

    pub(crate) fn with(domain: ProtectionDomain<B>, depth: u32, attr: &ConnectAttributes) -> Self {
        Self::limited(domain, &Limits { sends: depth, receives: depth, ..Limits::default() }, attr)
    }

    pub(crate) fn limited(domain: ProtectionDomain<B>, limits: &Limits, attr: &ConnectAttributes) -> Self {
        let port = domain.context().active_port().unwrap();
        let (queue, poller) = domain.queue(2 * limits.completions()).unwrap();
        let left = domain.reliable(&queue, limits).unwrap().into_init(&port).unwrap();
        let right = domain.reliable(&queue, limits).unwrap().into_init(&port).unwrap();
        let (to_left, to_right) = (left.endpoint(), right.endpoint());
        let left = left.connect_with(&to_right, attr).unwrap();
        let right = right.connect_with(&to_left, attr).unwrap();
        Self { domain, port, queue, poller, left, right }
    }
}

/// The cases of docs/conformance.md in which soft-RoCE does other than the specification says; the list there says what.
pub(crate) const RXE_DEVIATIONS: [(&str, Kernels); 10] = [
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

/// The kernels that deviate. Seen on Linux 6.1 and 6.12; what is between them counts as older.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kernels {
    All,
    /// Before 6.12.
    Older,
    /// From 6.12 on.
    Newer,
}

/// Whether the device is soft-RoCE, which deviates in this case.
pub(crate) fn deviates(case: &str) -> bool {
    let known = RXE_DEVIATIONS.iter().find(|(known, _)| *known == case);
    let (_, kernels) = known.unwrap_or_else(|| panic!("{case} is not in the list of deviations"));
    let does = match kernels {
        Kernels::All => true,
        Kernels::Older => !is_linux_6_12(),
        Kernels::Newer => is_linux_6_12(),
    };
    let is_rxe = context().name().starts_with("rxe");
    // Soft-RoCE deviates there; adversaries may.
    let of_windows = ["C082", "C088", "C089"].contains(&case) && lacks(Promise::Windows);
    of_windows || does && is_rxe
}

/// Whether the kernel is Linux 6.12 or newer.
pub(crate) fn is_linux_6_12() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(['.', '-']).map_while(|number| number.parse::<u32>().ok());
    (numbers.next(), numbers.next()) >= (Some(6), Some(12))
}

/// What not every provider promises, and many tests rely on. The library refuses what relies on a promise that is not there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Promise {
    /// Reset ends what is in flight.
    Reset,
    /// Pairs on shared receive queues are destroyed at any time; elsewhere their poller does it.
    EndAtOnce,
    /// Windows permit what they were bound for, to whom they were bound.
    Windows,
    /// An event means that there is something.
    Events,
}

/// Whether the device does not promise this, as the library has it. That devices promise what they do, the conformance tests on the
/// specification's own profile and on soft-RoCE see.
pub(crate) fn lacks(promise: Promise) -> bool {
    let context = context();
    let promises = context.promises();
    match promise {
        Promise::Reset => !promises.reset_is_a_barrier(),
        Promise::EndAtOnce => !promises.pairs_end_at_once(true),
        // Soft-RoCE does, but for bounds and what is under way.
        Promise::Windows => !on_hardware() && !context.windows_are_barriers(),
        Promise::Events => promises.provider() == "adversary",
    }
}

/// A pair that was reset. None where its device does not promise enough for that: it is refused then.
pub(crate) fn unless_refused<P, Q>(reset: Result<P, TransitionError<Q>>) -> Option<P> {
    match reset {
        Ok(pair) => Some(pair),
        Err(TransitionError { source, .. }) => {
            let is_known = match source {
                TransitionFailure::ResetInFlight { .. } => lacks(Promise::Reset),
                TransitionFailure::ResetShared { .. } => lacks(Promise::Reset) || lacks(Promise::EndAtOnce),
                _ => false,
            };
            assert!(is_known, "{source}");
            None
        }
    }
}

/// Polls until all pairs that were dropped are destroyed, and gives what came.
pub(crate) fn see_off<B: Brand>(queue: &CompletionQueue<B>, poller: &mut Poller<B>) -> Vec<Completion<B>> {
    let mut out = Vec::new();
    let is_over = eventually(|| {
        while let Some(completion) = poller.poll().unwrap() {
            out.push(completion);
        }
        queue.room() == queue.capacity()
    });
    assert!(is_over);
    out
}

/// Waits until `is_so`, which the device may take a moment for.
pub(crate) fn eventually(mut is_so: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        if Instant::now() > deadline {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    true
}
