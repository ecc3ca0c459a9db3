//! Answers a question of `./x`: which test programs does a stage run?
//!
//! ```text
//! interlock-runner tests adversary|iwarp|asan|arm|rxe|siw|conformance    arguments for cargo test, one a line
//! interlock-runner miri one|two                  one run a line: leaks, values, kind of completion queue, arguments
//! interlock-runner suite rxe|siw|conformance     the list for tests/rxe/suite, from the messages of cargo on stdin
//! ```

use std::io::Read;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::{env, fs, io};

use runner::{Fact, Leaks, PROGRAMS, Part, Values};

const USAGE: &str = "usage: interlock-runner tests STAGE | miri one|two | suite rxe|siw|conformance";

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match answer(&arguments) {
        Ok(lines) => {
            lines.iter().for_each(|line| println!("{line}"));
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("runner: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The lines to print.
fn answer(arguments: &[&str]) -> Result<Vec<String>, String> {
    runner::check_table(&metadata()?)?;
    match *arguments {
        // For some cases, the evidence is a program that must not compile. The test `ui` checks all such programs.
        ["tests", "conformance"] => {
            let document = conformance()?;
            let named = runner::named_in_cases(&document).into_iter().chain(["ui"]).collect::<Vec<_>>();
            Ok(runner::as_arguments(&named))
        }
        ["tests", stage] => {
            let programs = runner::programs_of(stage).ok_or_else(|| format!("no stage {stage}"))?;
            Ok(runner::as_arguments(&programs))
        }
        ["miri", part @ ("one" | "two")] => {
            let runs = runner::miri(if part == "one" { Part::One } else { Part::Two });
            Ok(runs.iter().map(line).collect())
        }
        ["suite", "siw"] => runner::siw_suite(&messages_of_cargo()?),
        ["suite", which @ ("rxe" | "conformance")] => {
            let messages = messages_of_cargo()?;
            let is_whole = which == "rxe";
            let mut programs: Vec<_> = PROGRAMS.iter().filter(|program| program.has(Fact::Rxe)).collect();
            if !is_whole {
                let document = conformance()?;
                let named = runner::named_in_cases(&document);
                programs.retain(|program| named.contains(program.name));
            }
            runner::suite(&messages, &programs, is_whole)
        }
        _ => Err(USAGE.to_owned()),
    }
}

fn messages_of_cargo() -> Result<String, String> {
    let mut messages = String::new();
    io::stdin().read_to_string(&mut messages).map_err(|error| format!("stdin: {error}"))?;
    Ok(messages)
}

fn line(run: &runner::MiriRun) -> String {
    let leaks = match run.leaks {
        Leaks::Refused => "refused",
        Leaks::Allowed => "allowed",
    };
    let values = match run.values {
        Values::Checked => "checked",
        Values::Unchecked => "unchecked",
    };
    let queues = if run.extended { "extended" } else { "array" };
    format!("{leaks} {values} {queues} {}", run.arguments.join(" "))
}

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

fn conformance() -> Result<String, String> {
    let path = root().join("docs/conformance.md");
    fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))
}

/// The targets of the workspace, as cargo lists them.
fn metadata() -> Result<String, String> {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["metadata", "--no-deps", "--format-version", "1"]).current_dir(root());
    let output = command.output().map_err(|error| format!("cargo metadata: {error}"))?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    String::from_utf8(output.stdout).map_err(|error| format!("cargo metadata: {error}"))
}
