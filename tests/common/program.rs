//! Programs that tests start. None of them outlives its test or its time.
#![allow(dead_code, unreachable_pub, reason = "each test file uses a part")]

use std::env;
use std::fs;
use std::io::Read;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// More than any program here takes, on the slowest machine.
const LIMIT: Duration = Duration::from_secs(180);

/// An example that was built with the tests.
pub fn example(name: &str) -> PathBuf {
    let test = env::current_exe().unwrap();
    let path = test.parent().and_then(|deps| deps.parent()).unwrap().join("examples").join(name);
    assert!(path.exists(), "{} is not there: cargo build --examples", path.display());
    path
}

/// A program that runs.
pub struct Program {
    child: Child,
    line: String,
    stdout: Option<JoinHandle<String>>,
    stderr: Option<JoinHandle<String>>,
}

/// A program that has ended.
#[derive(Debug)]
pub struct Ended {
    pub line: String,
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
}

impl Program {
    pub fn start(program: impl Into<PathBuf>, arguments: &[&str]) -> Self {
        let program = program.into();
        let line = format!("{} {}", program.display(), arguments.join(" "));
        let mut command = Command::new(&program);
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{line}: {error}"));
        let stdout = child.stdout.take().map(collect);
        let stderr = child.stderr.take().map(collect);
        Self { child, line, stdout, stderr }
    }

    /// Runs it to its end.
    pub fn run(program: impl Into<PathBuf>, arguments: &[&str]) -> Ended {
        Self::start(program, arguments).end()
    }

    /// Waits for its end.
    pub fn end(mut self) -> Ended {
        let deadline = Instant::now() + LIMIT;
        while self.child.try_wait().unwrap().is_none() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(5));
        }
        let late = self.child.try_wait().unwrap().is_none();
        let ended = self.kill();
        assert!(!late, "not at its end after {LIMIT:?}: {ended:#?}");
        ended
    }

    /// Ends it, as if its machine had gone.
    pub fn kill(mut self) -> Ended {
        _ = self.child.kill();
        let status = self.child.wait().unwrap();
        let text = |collector: &mut Option<JoinHandle<String>>| collector.take().unwrap().join().unwrap();
        Ended { line: self.line.clone(), status, stdout: text(&mut self.stdout), stderr: text(&mut self.stderr) }
    }

    /// Waits until it listens on a TCP port.
    pub fn listens(mut self, port: u16) -> Self {
        let deadline = Instant::now() + LIMIT;
        while !is_listened_on(port) {
            if self.child.try_wait().unwrap().is_some() || Instant::now() > deadline {
                panic!("does not listen on port {port}: {:#?}", self.kill());
            }
            thread::sleep(Duration::from_millis(5));
        }
        self
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

impl Ended {
    #[track_caller]
    pub fn succeeded(self) -> Self {
        assert!(self.status.success() && self.stderr.is_empty(), "{self:#?}");
        self
    }

    /// It failed as it should: with one line on stderr that says `why`.
    #[track_caller]
    pub fn failed(self, why: &str) -> Self {
        let is_one_line = self.stderr.lines().count() == 1 && self.stderr.ends_with('\n');
        let is_error = self.status.code() == Some(1) && !self.stderr.contains("panicked");
        assert!(is_one_line && is_error && self.stderr.contains(why), "no line that says {why:?}: {self:#?}");
        self
    }

    #[track_caller]
    pub fn says(self, what: &str) -> Self {
        assert!(self.stdout.contains(what), "does not say {what:?}: {self:#?}");
        self
    }
}

fn collect(mut pipe: impl Read + Send + 'static) -> JoinHandle<String> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        _ = pipe.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// A TCP port that nobody uses.
pub fn free_port() -> u16 {
    TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port()
}

/// Looks without connecting: who listens would take that for its client.
fn is_listened_on(port: u16) -> bool {
    let (suffix, listening) = (format!(":{port:04X}"), "0A");
    ["/proc/net/tcp", "/proc/net/tcp6"].iter().any(|table| {
        fs::read_to_string(table).unwrap_or_default().lines().any(|line| {
            let mut columns = line.split_whitespace().skip(1);
            columns.next().is_some_and(|local| local.ends_with(&suffix)) && columns.nth(1) == Some(listening)
        })
    })
}
