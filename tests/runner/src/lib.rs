//! Which test programs a stage of `./x` runs.
//!
//! [`PROGRAMS`] says what each test program needs. The functions here turn that into arguments for cargo, or into the
//! list of commands that `tests/rxe/suite` runs.

mod programs;
mod suite;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use serde_json::Value;

pub use programs::{Fact, Leaks, PROGRAMS, Part, Program, Values};
pub use suite::{is_script, siw_suite, suite};

/// The names of the programs for which `chosen` is true.
pub fn names(chosen: impl Fn(&Program) -> bool) -> Vec<&'static str> {
    PROGRAMS.iter().filter(|program| chosen(program)).map(|program| program.name).collect()
}

/// The programs that `cargo test` is given in a stage: `adversary`, `iwarp` (soft devices of that kind), `asan`, `arm`,
/// `rxe`, or `siw`.
pub fn programs_of(stage: &str) -> Option<Vec<&'static str>> {
    Some(match stage {
        "adversary" => names(|program| !program.has(Fact::NoDevice) && !program.has(Fact::OwnProfile)),
        "iwarp" => names(|program| program.on_siw() == Some(&[]) && !program.has(Fact::WholeLists)),
        // Miri finds all that asan finds, so asan runs only programs that Miri does not run in full. Besides these,
        // asan runs all unit tests.
        "asan" => names(|program| {
            ![Fact::NoDevice, Fact::StartsPrograms, Fact::PlainMemory].iter().any(|fact| program.has(*fact))
                && !program.is_all_for_miri()
        }),
        "arm" => names(|program| program.has(Fact::Arm)),
        "rxe" => names(|program| program.has(Fact::Rxe)),
        "siw" => names(|program| program.on_siw().is_some()),
        _ => return None,
    })
}

/// Names as arguments of `cargo test`.
pub fn as_arguments(names: &[&str]) -> Vec<String> {
    names.iter().flat_map(|name| ["--test".to_owned(), (*name).to_owned()]).collect()
}

/// One run of `cargo miri test`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MiriRun {
    pub leaks: Leaks,
    pub values: Values,
    /// Whether completion queues are extended ones.
    pub extended: bool,
    pub arguments: Vec<String>,
}

/// The runs of one part of Miri. Programs with the same needs share a run.
pub fn miri(part: Part) -> Vec<MiriRun> {
    let run = |leaks, values, arguments| MiriRun { leaks, values, extended: false, arguments };
    let mut runs = Vec::new();
    if part == Part::One {
        // No unit test leaks on purpose, so leaks are refused. Miri takes too long for the tests of three modules,
        // which run under asan instead. Two of the modules, `cm` and `aio`, forbid unsafe code. The third is the soft
        // device, which Miri still runs in the programs of `tests`. A filter matches anywhere in a name, so `cm::` also
        // skips the tests of `queue::by_cm`, which has no unsafe code either.
        let skipped = ["cm::", "aio::", "provider::soft::tests::"];
        // The modules that make values from raw memory.
        let raw = ["sys::", "domain::", "memory::", "inflight::"];
        let skip = |names: &[&str]| {
            names.iter().flat_map(|name| ["--skip".to_owned(), (*name).to_owned()]).collect::<Vec<_>>()
        };
        let unit_tests = || ["--lib".to_owned(), "--".to_owned()].into_iter().chain(skip(&skipped));
        let of_raw = unit_tests().chain(raw.map(str::to_owned));
        runs.push(run(Leaks::Refused, Values::Checked, of_raw.collect()));
        runs.push(run(Leaks::Refused, Values::Unchecked, unit_tests().chain(skip(&raw)).collect()));
        let extended = as_arguments(&names(|program| program.has(Fact::MiriExtended)));
        runs.push(MiriRun { extended: true, ..run(Leaks::Allowed, Values::Checked, extended) });
    }
    for leaks in [Leaks::Refused, Leaks::Allowed] {
        for values in [Values::Checked, Values::Unchecked] {
            let shared = names(|program| program.has(Fact::Miri { part, leaks, values, only: &[] }));
            runs.push(run(leaks, values, as_arguments(&shared)));
        }
    }
    // A filter applies to all programs of a run, so a program with filters gets a run of its own.
    for program in PROGRAMS {
        for fact in program.facts {
            if let Fact::Miri { part: its_part, leaks, values, only: only @ [_, ..] } = *fact
                && its_part == part
            {
                let mut arguments = as_arguments(&[program.name]);
                arguments.push("--".to_owned());
                arguments.extend(only.iter().map(|&filter| filter.to_owned()));
                runs.push(run(leaks, values, arguments));
            }
        }
    }
    runs.retain(|run| !run.arguments.is_empty());
    runs
}

/// The test programs that the cases of docs/conformance.md name, in alphabetical order.
pub fn named_in_cases(document: &str) -> BTreeSet<&str> {
    let rows = document.lines().filter(|line| line.starts_with("| C"));
    let files = rows.flat_map(|row| row.split("`tests/").skip(1));
    files.map(|file| file.split(['/', '.', '`']).next().unwrap_or_default()).collect()
}

/// Compares the table with the test programs that `cargo metadata` lists.
///
/// # Errors
///
/// Names the programs without a row, and the rows without a program.
pub fn check_table(metadata: &str) -> Result<(), String> {
    let metadata: Value = serde_json::from_str(metadata).map_err(|error| format!("cargo metadata: {error}"))?;
    let packages = metadata["packages"].as_array().into_iter().flatten();
    let library = packages.filter(|package| package["name"] == "rdma-interlock");
    let targets = library.flat_map(|package| package["targets"].as_array().into_iter().flatten());
    let tests = targets.filter(|target| target["kind"][0] == "test");
    let built: BTreeSet<&str> = tests.filter_map(|target| target["name"].as_str()).collect();
    let listed: BTreeSet<&str> = names(|_| true).into_iter().collect();
    if built == listed {
        return Ok(());
    }
    let missing: Vec<_> = built.difference(&listed).collect();
    let stale: Vec<_> = listed.difference(&built).collect();
    Err(format!("tests/runner/src/programs.rs: no row for {missing:?}; no test program for {stale:?}"))
}
