//! Taking completions out of a queue.

use crate::PATIENCE;
use interlock::error::WaitError;
use interlock::{Brand, Completion, CompletionQueue, Failure, Poller, Success};
use std::time::{Duration, Instant};

/// How long a test waits for a completion that must not come.
const A_WHILE: Duration = Duration::from_millis(200);

/// More completions than any test has in flight. This limit ends a test if a ledger with a wrong count returns
/// completions for ever.
const MANY: usize = 100_000;

/// Waits for the next completion, which must be a success.
#[track_caller]
pub fn next<B>(poller: &mut Poller<B>) -> Success<B> {
    poller.wait(PATIENCE).unwrap().check().unwrap()
}

/// Waits for the next completion, which must be a failure.
#[track_caller]
pub fn failure<B>(poller: &mut Poller<B>) -> Failure<B> {
    poller.wait(PATIENCE).unwrap().check().unwrap_err()
}

/// Takes out all completions that are in the queue now.
pub fn all<B>(poller: &mut Poller<B>) -> Vec<Completion<B>> {
    let completions: Vec<_> = std::iter::from_fn(|| poller.poll().unwrap()).take(MANY).collect();
    assert!(completions.len() < MANY, "the completions do not end");
    completions
}

/// Waits a while for a completion that must not come.
#[track_caller]
pub fn nothing_comes<B>(poller: &mut Poller<B>) {
    match poller.wait(A_WHILE) {
        Err(WaitError::TimedOut(_)) => {}
        came => panic!("{came:?}"),
    }
}

/// Polls until each dropped pair is destroyed, and returns the completions.
pub fn see_off<B: Brand>(queue: &CompletionQueue<B>, poller: &mut Poller<B>) -> Vec<Completion<B>> {
    let mut out = Vec::new();
    let is_over = eventually(|| {
        out.extend(all(poller));
        queue.room() == queue.capacity()
    });
    assert!(is_over);
    out
}

/// Waits until `is_so` is true, since a device may take a moment. Returns whether it became true in time.
pub fn eventually(mut is_so: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        if Instant::now() > deadline {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    true
}
