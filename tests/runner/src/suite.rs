//! The commands that a real device runs: built test programs, then examples and C programs.

use serde_json::Value;

use crate::programs::{PROGRAMS, Program, RXE_EXAMPLES};

/// An executable that cargo built.
struct Executable {
    /// The kind of the target: `lib`, `test`, `example`.
    kind: String,
    name: String,
    path: String,
}

/// Reads the messages of cargo with `--message-format=json`. For each target, the latest executable counts.
///
/// `cargo test` also builds the examples as test programs; those are left out.
fn executables(messages: &str) -> Result<Vec<Executable>, String> {
    let mut found = Vec::new();
    for line in messages.lines().filter(|line| line.starts_with('{')) {
        let message: Value = serde_json::from_str(line).map_err(|error| format!("a message of cargo: {error}"))?;
        let target = &message["target"];
        let (Some(kind), Some(name), Some(path)) =
            (target["kind"][0].as_str(), target["name"].as_str(), message["executable"].as_str())
        else {
            continue;
        };
        if message["profile"]["test"].as_bool() == Some(kind != "example") {
            found.push(Executable { kind: kind.to_owned(), name: name.to_owned(), path: path.to_owned() });
        }
    }
    Ok(found)
}

/// The latest executable of a target, as a word of the shell.
fn path(executables: &[Executable], kind: &str, name: &str) -> Result<String, String> {
    let is_meant = |executable: &&Executable| executable.kind == kind && executable.name == name;
    let found = executables.iter().rev().find(is_meant);
    found.map(|found| quote(&found.path)).ok_or_else(|| format!("cargo built no {kind} {name}"))
}

/// The scripts in `tests/rxe` in which examples and C programs connect by rdma_cm, each with its example.
const SCRIPTS: [(&str, &str); 5] = [
    ("rping", "rping"),
    ("peers", "cm_peers"),
    ("pingpong_by_cm", "rc_pingpong"),
    ("guide_by_cm", "guide_02_two_machines"),
    ("perf_by_cm", "perf"),
];

/// Whether the suites run a script of `tests/rxe`.
pub fn is_script(name: &str) -> bool {
    SCRIPTS.iter().any(|(script, _)| *script == name)
}

/// The commands of those scripts.
fn scripts(executables: &[Executable]) -> Result<Vec<String>, String> {
    let command = |(script, example)| {
        let script = quote(&format!(concat!(env!("CARGO_MANIFEST_DIR"), "/../rxe/{}"), script));
        Ok(format!("{script} {}", path(executables, "example", example)?))
    };
    SCRIPTS.into_iter().map(command).collect()
}

/// The list for `tests/rxe/suite` on soft-RoCE: the unit tests of the real device, the `programs`, and the scripts. If
/// `is_whole`, also the examples. `messages` is what cargo wrote while it built them.
///
/// # Errors
///
/// Names what cargo did not build.
pub fn suite(messages: &str, programs: &[&Program], is_whole: bool) -> Result<Vec<String>, String> {
    let executables = executables(messages)?;
    let path = |kind, name| path(&executables, kind, name);
    // These unit tests need a real device, so they are ignored in other runs.
    let mut list = vec![format!("{} rdma_core --ignored --test-threads=1", path("lib", "interlock")?)];
    for program in programs {
        list.push(program.line(&format!("{} --test-threads=1", path("test", program.name)?)));
    }
    if is_whole {
        for name in RXE_EXAMPLES {
            list.push(path("example", name)?);
        }
    }
    list.extend(scripts(&executables)?);
    Ok(list)
}

/// The list for `tests/rxe/suite` on soft iWARP: the scripts, the list of devices, and tests.
///
/// # Errors
///
/// Names what cargo did not build.
pub fn siw_suite(messages: &str) -> Result<Vec<String>, String> {
    let executables = executables(messages)?;
    let mut list = scripts(&executables)?;
    list.push(format!("{} -v", path(&executables, "example", "devices")?));
    // Pairs on soft iWARP connect only by address. Of the unit tests that need a real device, only this one connects
    // its pairs in that way.
    let lib = path(&executables, "lib", "interlock")?;
    list.push(format!("{lib} a_hostile_peer_over_rdma_core --ignored --test-threads=1"));
    for program in PROGRAMS {
        if let Some(arguments) = program.on_siw() {
            let path = path(&executables, "test", program.name)?;
            // Without `--exact`, a name also selects the tests whose names contain it.
            let exact = if arguments.is_empty() || arguments == ["--ignored"] { "" } else { "--exact " };
            list.push(program.line(&format!("{path} --test-threads=1 {exact}{}", arguments.join(" "))));
        }
    }
    Ok(list)
}

/// A path as one word of the shell.
fn quote(path: &str) -> String {
    let is_plain = |character: char| character.is_ascii_alphanumeric() || "/._-+".contains(character);
    if path.chars().all(is_plain) { path.to_owned() } else { format!("'{}'", path.replace('\'', r"'\''")) }
}
