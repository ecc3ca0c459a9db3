//! Checks without a clock what the data path costs and what its code can reach. README.md explains the checks.
//!
//! ```text
//! instructions           runs both checks
//! instructions counts    counts instructions per request with valgrind, and compares them with the limits
//! instructions code      finds what the machine code of each operation can reach, with objdump
//! ```
//!
//! Exit status 1: a check failed. 77: a required tool is missing (with `CI=true`, that is a failure).
#![forbid(unsafe_code)]

mod callgrind;
mod counts;
mod limits;
mod listing;
mod reach;

use std::error::Error;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};

/// Whether a check passed; `None` if it could not run.
type Verdict = Option<bool>;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match run(arguments.first().map(String::as_str)) {
        Ok(Some(true)) => ExitCode::SUCCESS,
        Ok(Some(false)) => ExitCode::FAILURE,
        Ok(None) => ExitCode::from(77),
        Err(error) => {
            eprintln!("instructions: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(which: Option<&str>) -> Result<Verdict, Box<dyn Error>> {
    match which {
        None => {
            let verdicts = [counts::check()?, reach::check()?];
            Ok(if verdicts.contains(&Some(false)) { Some(false) } else { verdicts[0].and(verdicts[1]) })
        }
        Some("counts") => counts::check(),
        Some("code") => reach::check(),
        Some(_) => Err("usage: instructions [counts | code]".into()),
    }
}

/// Returns the path of a program that was built next to this one.
fn sibling(name: &str) -> std::io::Result<PathBuf> {
    std::env::current_exe().map(|program| program.with_file_name(name))
}

/// Whether `tool` is installed. In CI, a missing tool is an error.
fn have(tool: &str) -> Result<bool, Box<dyn Error>> {
    let found = Command::new(tool).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    if found.is_ok_and(|status| status.success()) {
        return Ok(true);
    }
    if std::env::var("CI").is_ok_and(|ci| ci == "true") {
        return Err(format!("there is no {tool}, which CI must have").into());
    }
    Ok(false)
}
