//! Random programs: lists of steps that `proptest` makes, and reduces when one fails.
//!
//! A program is generated from a seed, so the seed repeats it. The test of a program may panic; [`check`] then looks
//! for a smaller program that panics too, and prints it. A step holds a call, and a number from which the test derives
//! everything else: lengths, flags, objects. So a step does the same, as far as it can, even if the steps before it are
//! removed.

use crate::Random;
use proptest::collection::vec;
use proptest::strategy::{Just, Strategy, Union};
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};
use std::any::Any;
use std::cell::Cell;
use std::fmt;
use std::panic::{self, AssertUnwindSafe, catch_unwind};
use std::sync::Once;
use std::time::Duration;

/// One step of a program.
#[derive(Clone, Copy, Debug)]
pub struct Step<C> {
    /// The call that the step makes.
    pub call: C,
    /// The index of the object that the call uses; each test says which objects it numbers.
    pub place: usize,
    /// The number from which the step's other values are derived.
    pub chance: u16,
}

impl<C> Step<C> {
    /// Random numbers that depend only on this step.
    pub fn random(&self) -> Random {
        Random::new(self.chance.into())
    }
}

/// A program.
#[derive(Clone)]
pub struct Program<C> {
    /// The steps, in chunks: when a program is reduced, a chunk that does not matter is removed as a whole.
    chunks: Vec<Vec<Step<C>>>,
    /// The number from which the values after the last step are derived.
    end: u16,
}

impl<C> Program<C> {
    /// The steps in order.
    pub fn steps(&self) -> impl Iterator<Item = &Step<C>> {
        self.chunks.iter().flatten()
    }

    /// Random numbers for the part of the test after the last step.
    pub fn random_after(&self) -> Random {
        Random::new(u64::from(self.end) + (1 << 16))
    }
}

impl<C: fmt::Debug> fmt::Debug for Program<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, Step { call, place, chance }) in self.steps().enumerate() {
            writeln!(f, "{number:6}: {call:?}, place {place}, chance {chance}")?;
        }
        write!(f, "   end: chance {}", self.end)
    }
}

/// Programs of up to about `most` steps; short ones are as likely as long ones. `calls` are the possible calls, each
/// with its relative frequency. When a program is reduced, later calls are replaced by earlier ones. There are `places`
/// places.
pub fn programs<C>(calls: &[(u32, C)], places: usize, most: usize) -> impl Strategy<Value = Program<C>> + use<C>
where
    C: Copy + fmt::Debug + 'static,
{
    const LONGEST_CHUNK: usize = 80;
    let call = Union::new_weighted(calls.iter().map(|&(weight, call)| (weight, Just(call))).collect());
    let step = (call, 0..places, 0..=u16::MAX).prop_map(|(call, place, chance)| Step { call, place, chance });
    let chunk = most.min(LONGEST_CHUNK);
    // A chunk is half full on average. So the longest list of chunks has about `most` steps.
    let chunks = vec(vec(step, 0..=chunk), 0..=2 * most / chunk);
    (chunks, 0..=u16::MAX).prop_map(|(chunks, end)| Program { chunks, end })
}

/// The payload of the panic of [`give_up`].
struct GivenUp;

/// Ends the test of a program that cannot show anything, without a failure. A program that failed before may still hold
/// something that this program needs, such as the name of a domain.
pub fn give_up() -> ! {
    panic::panic_any(GivenUp)
}

/// Tests the program that `strategy` makes of `seed`. If it fails, panics with a smaller program that also fails. The
/// message begins with `name`, which says how to repeat the test. The search for the smaller program takes about `time`
/// at most.
pub fn check<S: Strategy>(name: &str, seed: u64, strategy: &S, time: Duration, test: impl Fn(&S::Value)) {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&Random::new(seed).next().to_le_bytes());
    bytes[8..].copy_from_slice(&Random::new(!seed).next().to_le_bytes());
    let config = Config {
        failure_persistence: None,
        max_shrink_iters: if time.is_zero() { 0 } else { 20_000 },
        max_shrink_time: time.as_millis() as u32,
        ..Config::default()
    };
    let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::XorShift, &bytes));
    let tree = strategy.new_tree(&mut runner).unwrap();
    let has_failed = Cell::new(false);
    let outcome = runner.run_one(tree, |program| {
        // Only the first panic is printed, since the search for a smaller program causes many.
        let ended = if has_failed.get() { quietly(|| test(&program)) } else { caught(|| test(&program)) };
        ended.map_err(|panic| {
            has_failed.set(true);
            if panic.is::<GivenUp>() {
                return TestCaseError::reject("given up");
            }
            TestCaseError::fail(message(&*panic).to_owned())
        })
    });
    match outcome {
        Ok(_) => (),
        Err(TestError::Abort(reason)) => panic!("{name}: {reason}"),
        Err(TestError::Fail(reason, program)) => {
            // Run the smallest program again, so that its panic message and backtrace are printed just before the text
            // of the program.
            let again = caught(|| test(&program));
            let this_time = if again.is_ok() { " (not the last time)" } else { "" };
            panic!("{name}: a small program that fails{this_time}:\n{program:?}\nIt fails with: {reason}");
        }
    }
}

fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("a panic without a message")
}

type Ended = Result<(), Box<dyn Any + Send>>;

fn caught(run: impl FnOnce()) -> Ended {
    catch_unwind(AssertUnwindSafe(run))
}

/// Runs `run`, and prints nothing if it panics on this thread.
fn quietly(run: impl FnOnce()) -> Ended {
    thread_local! {
        static IS_QUIET: Cell<bool> = const { Cell::new(false) };
    }
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !IS_QUIET.get() {
                before(info);
            }
        }));
    });
    IS_QUIET.set(true);
    let ended = caught(run);
    IS_QUIET.set(false);
    ended
}
