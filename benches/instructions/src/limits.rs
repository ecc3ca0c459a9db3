//! The limits. This is the only file to edit when a limit changes.

/// A workload whose instructions are counted.
pub struct Workload {
    pub name: &'static str,
    /// What one iteration of the loop does.
    pub what: &'static str,
    /// The number of requests in one iteration.
    pub requests: u32,
    /// The most instructions per request. It is about a tenth above the count with rustc 1.95 on x86-64. A change that
    /// lowers the count should lower the limit.
    pub limit: f64,
}

/// The workloads in the program `streams`. They have a program of their own, because a second use of an operation in
/// one program changes what the compiler inlines.
pub const STREAMS: [&str; 4] = ["stream", "awaited_stream", "many_writes", "shared_writes"];

#[rustfmt::skip]
pub const WORKLOADS: [Workload; 22] = [
    Workload { name: "send", what: "a send, polled (W1)", requests: 1, limit: 100.0 },
    Workload { name: "checked", what: "the same with the run-time brand, which compares domains", requests: 1, limit: 107.0 },
    Workload { name: "write", what: "a write, polled (W2)", requests: 1, limit: 111.0 },
    Workload { name: "batch_all", what: "`post_all` of 32 writes, `into_buffers` (W3)", requests: 32, limit: 42.0 },
    Workload { name: "batch", what: "`post_each` of 31 unsignalled writes, a last one, `poll_retired`", requests: 32, limit: 54.0 },
    Workload { name: "inline", what: "an inline send, polled (W4)", requests: 1, limit: 102.0 },
    Workload { name: "receive", what: "a send to itself, both completions, the receive posted again (W5)", requests: 2, limit: 107.0 },
    Workload { name: "send_extended", what: "a send, polled from an extended queue", requests: 1, limit: 143.0 },
    Workload { name: "receive_extended", what: "a send to itself and the receive posted again, likewise", requests: 2, limit: 152.0 },
    Workload { name: "read", what: "a read, polled", requests: 1, limit: 129.0 },
    Workload { name: "atomic", what: "a fetch-and-add, polled", requests: 1, limit: 135.0 },
    Workload { name: "share", what: "a send of a shared buffer, polled", requests: 1, limit: 103.0 },
    Workload { name: "batch_post", what: "a batch of 32 times `post`, the last signalled, `poll_each`", requests: 32, limit: 110.0 },
    Workload { name: "unsignalled", what: "32 times `post` without a batch, the last signalled, `poll_each`", requests: 32, limit: 124.0 },
    Workload { name: "awaited_write", what: "a write, awaited", requests: 1, limit: 228.0 },
    Workload { name: "awaited_batch", what: "`post_all` of 32 writes, awaited as one", requests: 32, limit: 48.0 },
    Workload { name: "awaited_receive", what: "a send to itself, both awaited, the receive posted again", requests: 2, limit: 226.0 },
    Workload { name: "stream", what: "a message that has come, polled, the receive posted again", requests: 1, limit: 104.0 },
    Workload { name: "awaited_stream", what: "the same, awaited", requests: 1, limit: 225.0 },
    Workload { name: "many_writes", what: "16 writes, polled by `poll_each`", requests: 16, limit: 118.0 },
    Workload { name: "shared_writes", what: "a write of each of 16 tasks that share a sender: permit, write, await", requests: 16, limit: 340.0 },
    Workload { name: "pool", what: "a buffer taken from a pool and dropped", requests: 1, limit: 80.0 },
];

/// Functions of the hot path that are called through pointers only.
pub const POINTED: [&str; 2] = ["interlock::inflight::polling::poll", "interlock::inflight::polling::poll_singly"];

/// Functions off the hot path: a part of each name, and when the function runs. They may allocate and lock.
pub const COLD: [(&str, &str); 19] = [
    ("poller::PollState>::poll_with_mail", "a pair was made or has gone since the device was last polled"),
    ("poller::PollState>::resolve_unmatched", "a completion is of a pair that was made since, or of no request"),
    ("poller::PollState>::move_to_single", "a completion came before those of earlier requests, for the first time"),
    ("work_queue::WorkQueue<V>>::error_and_bad", "the provider refused the request"),
    ("completion::Ended::failure_of", "the request failed"),
    ("work_queue::WorkQueue<V>>::refused_or_uncertain", "the provider refused the request"),
    ("raw_batch::RawBatch<B>::refused", "the provider refused a request of the batch"),
    ("post_all::boxed", "one of all items cannot be posted"),
    ("post_all::failed", "the provider refused one of all items"),
    ("post_all::uncertain", "the provider failed with all of them"),
    ("pending_posts::PendingPosts::abandon", "the program's closure panicked, or one of all items cannot be posted"),
    ("raw_batch::RawBatch<B>::into_error", "a batch of which a request was refused ends"),
    (
        "retired::Retirement::drop_before_last",
        "the program did not take the memory of unsignalled requests, so it is given up",
    ),
    ("window::WindowInner::drop_raw", "a memory window in a request is given up"),
    ("entry::Entry::into_unsettled", "the program asks for the memory of a request about a memory window"),
    ("pool::PoolInner::take_slowly", "all buffers of the class are taken, or somebody waits for one"),
    ("part::put_in_turn", "somebody waits for a buffer, or the pool is gone or being trimmed"),
    ("part::free", "the buffer is not of a pool, or the pool is gone"),
    ("work::Work<B>::of_window", "the request was one about a memory window"),
];
