//! How the completion queues of tests are polled, and tests that run once for each way.

use crate::{Need, lacks_need};
use interlock::completion::{CompletionChannel, CompletionQueueOptions, Polling};
use interlock::error::CompletionQueueError;
use interlock::{Brand, CompletionQueue, Poller, ProtectionDomain, VerbError};
use std::cell::Cell;
use std::env;
use std::process::Command;

/// The environment variable that chooses the kind of queue.
const VARIABLE: &str = "INTERLOCK_POLLING";

thread_local! {
    /// The kind of queue that [`Queues::queue`] makes on this thread: as `INTERLOCK_POLLING` says, until a test sets
    /// another.
    pub static POLLING: Cell<Polling> = Cell::new(match env::var(VARIABLE).as_deref() {
        Err(env::VarError::NotPresent) => Polling::Array,
        Ok("extended") => Polling::Extended,
        other => panic!("{VARIABLE} is {other:?}, which is not `extended`"),
    });
}

/// Domains and channels, which make completion queues.
pub trait Queues<B> {
    /// Makes a completion queue that is polled as [`POLLING`] says.
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

/// The options of an extended completion queue.
pub fn extended() -> CompletionQueueOptions {
    CompletionQueueOptions { polling: Polling::Extended, ..CompletionQueueOptions::default() }
}

fn verb(error: CompletionQueueError) -> VerbError {
    match error {
        CompletionQueueError::Verb(error) => error,
        other => panic!("{other}"),
    }
}

/// Runs tests of the calling module a second time, on extended completion queues: test `name` as `extended::name`.
///
/// The name of a protection domain can be used only once at a time in a process, and some tests keep theirs for ever.
/// So each second run is a process of its own: this program with `INTERLOCK_POLLING=extended` and the name of the test.
/// Miri cannot start processes, so it ignores these tests. Of extended queues it runs what the program `extended` has.
#[macro_export]
macro_rules! also_extended {
    ($($test:ident),+ $(,)?) => {
        mod extended {
            $(
                #[test]
                #[cfg_attr(miri, ignore = "Miri has no processes")]
                fn $test() {
                    let _: fn() = super::$test;
                    $crate::polling::run_extended(module_path!(), stringify!($test));
                }
            )+
        }
    };
}

/// Runs one test of this program again, in a process of its own with extended queues. `also_extended!` in `module`
/// names the test.
#[track_caller]
pub fn run_extended(module: &str, test: &str) {
    if lacks_need(Need::ExtendedQueues) {
        return;
    }
    // `module` is `program::modules::extended`. The name that `--exact` takes is `modules::test`.
    let path = module.split_once("::").map_or("", |(_program, path)| path);
    let outer = path.strip_suffix("extended").expect("the module that `also_extended!` makes");
    let name = format!("{outer}{test}");
    let mut child = Command::new(env::current_exe().unwrap());
    let output = child.args(["--exact", &name]).env(VARIABLE, "extended").output().unwrap();
    let [stdout, stderr] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    // If the filter matches no test, the program succeeds too. So check that one test has passed.
    let has_passed = output.status.success() && stdout.contains("test result: ok. 1 passed");
    assert!(has_passed, "{VARIABLE}=extended, {name}: {}\n{stdout}{stderr}", output.status);
}
