//! The table of test programs. A new file in `tests` needs a row here; stages that read the table refuse to run
//! without it.

use Fact::{
    Arm, Miri, MiriExtended, MiriIgnores, NoDevice, OwnProfile, PlainMemory, Rxe, Siw, StartsPrograms, Waits,
    WholeLists,
};
use Leaks::{Allowed, Refused};
use Part::{One, Two};
use Values::{Checked, Unchecked};

/// A test program: the file `tests/NAME.rs` or the folder `tests/NAME`.
#[derive(Debug)]
pub struct Program {
    pub name: &'static str,
    pub facts: &'static [Fact],
}

/// A fact about a test program that a stage must know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fact {
    /// Compiles or reads sources and uses no device: there is nothing to run on an adversary or under asan.
    NoDevice,
    /// Shows nothing more on another profile of soft devices: it chooses the profile, it counts the allocations of one
    /// profile, or it is about the options and tables of an example. So it does not run on adversaries.
    OwnProfile,
    /// Is about the programs that it starts: examples, C programs, or itself. So asan leaves it out.
    StartsPrograms,
    /// Uses memory only in ways that other programs use it, too, so neither Miri nor asan runs it.
    PlainMemory,
    /// Uses the device that `INTERLOCK_DEVICE` names, so a run on soft-RoCE shows something new.
    Rxe,
    /// Shows something on soft iWARP. The arguments of the program are the names of the tests that run there, none if
    /// all do, or `--ignored` if only that device runs them.
    Siw(&'static [&'static str]),
    /// Waits most of the time, and has no need of a quiet device. So a real device runs it beside the programs that
    /// follow.
    Waits,
    /// Relies on a post to queue its whole list, or else to report that. Soft devices that resemble soft iWARP may do
    /// neither.
    WholeLists,
    /// Is quick enough for qemu-user, which runs it on 64-bit Arm.
    Arm,
    /// Miri runs it. `only` has filters for its tests; without any, all tests run.
    Miri { part: Part, leaks: Leaks, values: Values, only: &'static [&'static str] },
    /// Some of its tests are ignored under Miri, so asan runs it, too.
    MiriIgnores,
    /// Miri runs it, with extended completion queues. Elsewhere `also_extended!` starts a process for that, which Miri
    /// cannot.
    MiriExtended,
}

/// Miri uses only one processor, so two parts run at the same time. Both take about as long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    One,
    Two,
}

/// Whether a leak of memory is an error under Miri.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Leaks {
    /// No test of the program leaks on purpose.
    Refused,
    /// Some tests leak memory that the device may still write to.
    Allowed,
}

/// Whether Miri checks each value that is copied or moved: is it a value of its type, and is all of it initialized?
///
/// That takes more than half of Miri's time. It finds something where values are made from raw bytes or in raw memory:
/// in the rings of entries, the records, the typed views. Some of the unit tests and of the programs run all of that,
/// so the others do without the check. (All other checks remain. For example, no run may branch on bytes that are not
/// initialized.)
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Values {
    Checked,
    Unchecked,
}

const fn miri(part: Part, leaks: Leaks, values: Values) -> Fact {
    Miri { part, leaks, values, only: &[] }
}

/// One row for each test program, in alphabetical order.
#[rustfmt::skip]
pub const PROGRAMS: &[Program] = &[
    // Miri runs only the tests whose names contain one of these strings. The random programs of `adversary` would take
    // it five minutes.
    Program { name: "adversary", facts: &[OwnProfile, Miri { part: Two, leaks: Allowed, values: Unchecked, only: &[
        "messages", "a_write_of_a_small", "a_number_that", "a_failure_that", "in_the_middle_of_a_poll", "scopes",
    ] }] },
    // Miri runs only these tests of `aio`. Most of the others have threads that poll again and again, which is slow
    // under Miri.
    Program { name: "aio", facts: &[Rxe, Siw(&[]), Miri { part: Two, leaks: Allowed, values: Unchecked, only: &[
        "forgotten", "polled_late", "that_is_dropped", "panics", "lose_nothing",
    ] }] },
    Program { name: "aio_connections", facts: &[PlainMemory, Rxe, Siw(&[])] },
    Program { name: "aio_kills", facts: &[StartsPrograms, Waits, Rxe, Siw(&[])] },
    // All of `aio_lending` would take Miri four minutes, so Miri runs only these tests. They cover memory that is still
    // lent, memory that has come back, and memory that was forgotten.
    Program { name: "aio_lending", facts: &[Rxe, Siw(&[]), Miri { part: Two, leaks: Allowed, values: Unchecked, only: &[
        "lent_memory_comes_back_with_what_the_peer_wrote",
        "a_grant_that_its_owner_ends_is_over_for_the_holder",
        "lent_memory_that_is_forgotten_is_still_there_for_the_peer",
        "memory_that_is_not_deregistered_stays_lent_and_counts",
    ] }] },
    Program { name: "aio_loss", facts: &[PlainMemory, Rxe, Siw(&[])] },
    Program { name: "aio_tokio", facts: &[PlainMemory, Rxe, Siw(&[])] },
    Program { name: "allocations", facts: &[OwnProfile, PlainMemory, Rxe] },
    Program { name: "alter", facts: &[PlainMemory, Rxe, Siw(&[])] },
    Program { name: "attacks", facts: &[miri(Two, Allowed, Unchecked), MiriIgnores] },
    // Miri runs only these tests of `batch_attacks`. The others would take it five minutes.
    Program { name: "batch_attacks", facts: &[Rxe, WholeLists, Siw(&[]), Miri {
        part: Two, leaks: Allowed, values: Unchecked, only: &[
        "a_longer_batch", "a_batch_within", "that_is_forgotten", "a_vector_of_nothings", "a_destroyed_pair",
    ] }] },
    Program { name: "bindings", facts: &[NoDevice] },
    // Miri does not run `checked`, which tests code without `unsafe`.
    Program { name: "checked", facts: &[PlainMemory, Rxe, Siw(&[]), Arm] },
    // Miri runs only these tests of `cm`. It does not support the epoll instance that `Channel::readiness` needs, and
    // it is too slow for some of the other tests.
    Program { name: "cm", facts: &[Rxe, Siw(&[]), Miri { part: One, leaks: Allowed, values: Checked, only: &[
        "a_client_that_ends", "outlives_its_listener", "identifiers_keep", "a_request_that_is_dropped",
        "flushes_the_receives",
    ] }] },
    Program { name: "cm_clock", facts: &[PlainMemory] },
    Program { name: "cm_datagrams", facts: &[PlainMemory, Rxe] },
    // Miri runs only these tests of `cm_faults`. The others would take it more than a minute.
    Program { name: "cm_faults", facts: &[
        Miri { part: One, leaks: Allowed, values: Unchecked, only: &[
            "comes_back", "vanishes", "removed_device", "changed_neighbour",
        ] },
    ] },
    Program { name: "cm_histories", facts: &[PlainMemory, Rxe, Siw(&[])] },
    Program { name: "cm_kills", facts: &[StartsPrograms, Waits, Rxe, Siw(&[])] },
    Program { name: "cm_loop", facts: &[PlainMemory, Rxe, Siw(&[])] },
    Program { name: "cm_network", facts: &[PlainMemory, Waits, Rxe, Siw(&[])] },
    Program { name: "cm_removal", facts: &[PlainMemory, Rxe] },
    Program { name: "conformance", facts: &[PlainMemory, Rxe] },
    Program { name: "device", facts: &[PlainMemory, Rxe, Siw(&[
        "a_port_that_is_not_there_has_no_keys",
        "a_vector_that_is_not_there_is_refused",
    ])] },
    Program { name: "events", facts: &[Rxe, Siw(&[])] },
    Program { name: "evidence", facts: &[NoDevice] },
    Program { name: "examples", facts: &[StartsPrograms, Rxe] },
    Program { name: "exchange", facts: &[Rxe, Siw(&[]), Arm, miri(One, Refused, Unchecked)] },
    Program { name: "extended", facts: &[Rxe, MiriExtended] },
    Program { name: "faults", facts: &[miri(One, Allowed, Unchecked)] },
    Program { name: "house", facts: &[NoDevice] },
    Program { name: "interop", facts: &[StartsPrograms, Rxe] },
    Program { name: "iwarp", facts: &[PlainMemory, Siw(&["--ignored"])] },
    Program { name: "kv_store", facts: &[StartsPrograms, Rxe] },
    Program { name: "leases", facts: &[Rxe, Siw(&[]), miri(Two, Allowed, Unchecked)] },
    Program { name: "lifecycle", facts: &[Rxe, Arm, miri(One, Allowed, Unchecked), Siw(&[])] },
    Program { name: "memory", facts: &[Rxe, Arm, miri(One, Allowed, Checked), MiriIgnores, Siw(&[])] },
    Program { name: "mutants", facts: &[NoDevice] },
    Program { name: "perf", facts: &[OwnProfile, StartsPrograms, Rxe] },
    Program { name: "pool", facts: &[Rxe, Arm, Siw(&[]), miri(Two, Allowed, Unchecked)] },
    // Miri runs only these tests of `posting`. It is too slow for the others.
    Program { name: "posting", facts: &[
        Rxe, WholeLists, Siw(&[]),
        Miri { part: Two, leaks: Allowed, values: Unchecked, only: &["items", "buffers_of_a_run"] },
    ] },
    Program { name: "random", facts: &[Rxe, WholeLists, Siw(&[])] },
    Program { name: "random_aio", facts: &[Rxe, Siw(&[]), miri(One, Allowed, Unchecked)] },
    Program { name: "random_cm", facts: &[Rxe, miri(One, Allowed, Unchecked), Siw(&[
        "every_history_is_one_that_the_model_allows",
        "data::whatever_two_sides_say_while_they_connect_arrives",
        "data::a_record_that_was_tampered_with_is_refused_or_understood",
    ])] },
    Program { name: "refusals", facts: &[PlainMemory, Rxe, Siw(&[])] },
    Program { name: "rpc_service", facts: &[StartsPrograms, Rxe, Siw(&[])] },
    Program { name: "scale", facts: &[PlainMemory] },
    Program { name: "scope", facts: &[Rxe, Siw(&[]), miri(One, Allowed, Unchecked), MiriIgnores] },
    Program { name: "sealed", facts: &[NoDevice] },
    Program { name: "shared", facts: &[Rxe, Siw(&[]), Arm, miri(One, Allowed, Unchecked)] },
    Program { name: "shared_attacks", facts: &[miri(Two, Allowed, Unchecked)] },
    Program { name: "shared_unreliable", facts: &[Rxe, miri(Two, Allowed, Unchecked)] },
    Program { name: "tracing", facts: &[PlainMemory, Rxe, Siw(&[])] },
    Program { name: "ui", facts: &[NoDevice] },
    Program { name: "unreliable", facts: &[Rxe, Arm] },
    Program { name: "window_attacks", facts: &[miri(Two, Allowed, Unchecked)] },
    Program { name: "windows", facts: &[Rxe, miri(Two, Allowed, Unchecked)] },
];

/// The examples that soft-RoCE runs after the tests, without arguments.
pub const RXE_EXAMPLES: [&str; 6] =
    ["devices", "rc_pingpong", "uc_pingpong", "ud_pingpong", "srq_pingpong", "kv_store"];

impl Program {
    pub fn has(&self, fact: Fact) -> bool {
        self.facts.contains(&fact)
    }

    /// The line for `tests/rxe/suite` that runs it by `command`.
    pub fn line(&self, command: &str) -> String {
        if self.has(Fact::Waits) { format!("beside {command}") } else { command.to_owned() }
    }

    /// Whether Miri runs all its tests.
    pub fn is_all_for_miri(&self) -> bool {
        self.is_unfiltered_for_miri() && !self.has(MiriIgnores)
    }

    /// Whether Miri runs it without a filter.
    pub fn is_unfiltered_for_miri(&self) -> bool {
        self.facts.iter().any(|fact| matches!(fact, Miri { only: [], .. }))
    }

    /// Its arguments on soft iWARP, if it runs there.
    pub fn on_siw(&self) -> Option<&'static [&'static str]> {
        self.facts.iter().find_map(|fact| if let Siw(arguments) = *fact { Some(arguments) } else { None })
    }
}
