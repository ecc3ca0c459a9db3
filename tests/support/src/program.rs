//! Programs that tests start. A program is killed when its test ends, or when it takes too long.

use std::env;
use std::fmt;
use std::fs;
use std::io::Read;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Longer than any of these programs takes on the slowest machine.
const LIMIT: Duration = Duration::from_secs(180);

/// The path of an example that was built with the tests: they are neighbours in the target folder, also in a virtual
/// machine.
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
    stdout: Pipe,
    stderr: Pipe,
}

/// The bytes that a program has written to a pipe so far, and the thread that reads the rest.
struct Pipe {
    said: Arc<Mutex<Vec<u8>>>,
    listener: Option<JoinHandle<()>>,
}

/// A program that has ended.
pub struct Ended {
    pub line: String,
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
}

impl Program {
    pub fn start(program: impl Into<PathBuf>, arguments: &[&str]) -> Self {
        Self::start_with(program, arguments, &[])
    }

    /// Runs a program to its end, on soft devices that resemble soft iWARP.
    pub fn run_on_soft_iwarp(program: impl Into<PathBuf>, arguments: &[&str]) -> Ended {
        let variables = [("INTERLOCK_DEVICE", "soft0"), ("INTERLOCK_SOFT_PROFILE", "siw")];
        Self::start_with(program, arguments, &variables).end()
    }

    fn start_with(program: impl Into<PathBuf>, arguments: &[&str], variables: &[(&str, &str)]) -> Self {
        let program = program.into();
        let line = format!("{} {}", program.display(), arguments.join(" "));
        let mut command = Command::new(&program);
        // The program must open the same device as `context()`. If `INTERLOCK_DEVICE` is not set, `context()` opens
        // `soft0`, but an example would prefer a real device.
        if env::var_os("INTERLOCK_DEVICE").is_none() {
            command.env("INTERLOCK_DEVICE", "soft0");
        }
        command.envs(variables.iter().copied());
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{line}: {error}"));
        let stdout = Pipe::new(child.stdout.take().unwrap());
        let stderr = Pipe::new(child.stderr.take().unwrap());
        Self { child, line, stdout, stderr }
    }

    /// Runs a program to its end.
    pub fn run(program: impl Into<PathBuf>, arguments: &[&str]) -> Ended {
        Self::start(program, arguments).end()
    }

    /// Waits for the end of the program.
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

    /// Waits until both programs have ended. If one fails, the other one is killed.
    pub fn end_with(mut self, mut other: Self) -> (Ended, Ended) {
        let deadline = Instant::now() + LIMIT;
        while Instant::now() < deadline {
            match [&mut self, &mut other].map(|program| program.child.try_wait().unwrap()) {
                [Some(_), Some(_)] => break,
                [Some(status), _] | [_, Some(status)] if !status.success() => break,
                _ => thread::sleep(Duration::from_millis(5)),
            }
        }
        (self.kill(), other.kill())
    }

    /// Kills the program, as if its machine had failed.
    pub fn kill(mut self) -> Ended {
        _ = self.child.kill();
        let status = self.child.wait().unwrap();
        Ended { line: self.line.clone(), status, stdout: self.stdout.rest(), stderr: self.stderr.rest() }
    }

    /// Waits until the program listens on a TCP port.
    pub fn listens(self, port: u16) -> Self {
        self.until(&format!("listen on port {port}"), |_| is_listened_on(port))
    }

    /// Waits until the program has written `what` to stdout.
    pub fn has_said(self, what: &str) -> Self {
        self.until(&format!("say {what:?}"), |this| this.stdout.so_far().contains(what))
    }

    fn until(mut self, what: &str, mut is_so: impl FnMut(&Self) -> bool) -> Self {
        let deadline = Instant::now() + LIMIT;
        while !is_so(&self) {
            if self.child.try_wait().unwrap().is_some() || Instant::now() > deadline {
                panic!("it does not {what}: {:#?}", self.kill());
            }
            thread::sleep(Duration::from_millis(5));
        }
        self
    }
}

impl Pipe {
    fn new(mut pipe: impl Read + Send + 'static) -> Self {
        let said = Arc::new(Mutex::new(Vec::new()));
        let ours = Arc::clone(&said);
        let listener = thread::spawn(move || {
            let mut chunk = [0; 4096];
            while let Ok(count @ 1..) = pipe.read(&mut chunk) {
                ours.lock().unwrap().extend_from_slice(&chunk[..count]);
            }
        });
        Self { said, listener: Some(listener) }
    }

    fn so_far(&self) -> String {
        String::from_utf8_lossy(&self.said.lock().unwrap()).into_owned()
    }

    fn rest(&mut self) -> String {
        if let Some(listener) = self.listener.take() {
            listener.join().unwrap();
        }
        self.so_far()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

/// What the program wrote to stderr comes first, because a summary shows only the first lines of a panic.
impl fmt::Debug for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { line, status, stdout, stderr } = self;
        write!(f, "{line}: {status}\n-- stderr:\n{stderr}\n-- stdout:\n{stdout}")
    }
}

impl Ended {
    #[track_caller]
    pub fn succeeded(self) -> Self {
        assert!(self.status.success() && self.stderr.is_empty(), "{self:?}");
        self
    }

    /// Checks that the program failed with one line on stderr, which contains `why`.
    #[track_caller]
    pub fn failed(self, why: &str) -> Self {
        self.failed_for_one_of(&[why])
    }

    /// [`failed`](Self::failed), because the peer was killed. The reason depends on the moment: the kernel takes down
    /// the memory and the queue pair of a dead program one after the other, and a message may arrive between the two.
    /// A slow program may not even be connected yet.
    #[track_caller]
    pub fn failed_for_a_dead_peer(self) -> Self {
        self.failed_for_one_of(&[
            "closed the connection",
            "no session",
            "cannot talk to",
            "cannot tell the peer",
            "cannot reach",
            "Connection reset",
            "Broken pipe",
            "nothing happened",
            "no completion within",
            "retry count exceeded",
            "remote operation error",
            "remote access error",
            "remote invalid request",
        ])
    }

    /// [`failed`](Self::failed) for one of several reasons; which one depends on the moment or on the device.
    #[track_caller]
    pub fn failed_for_one_of(self, reasons: &[&str]) -> Self {
        let is_one_line = self.stderr.lines().count() == 1 && self.stderr.ends_with('\n');
        let is_error = self.status.code() == Some(1) && !self.stderr.contains("panicked");
        let has_reason = reasons.iter().any(|why| self.stderr.contains(why));
        assert!(is_one_line && is_error && has_reason, "no line that says {reasons:?}: {self:?}");
        self
    }

    #[track_caller]
    pub fn says(self, what: &str) -> Self {
        assert!(self.stdout.contains(what), "does not say {what:?}: {self:?}");
        self
    }
}

/// A TCP port that nobody uses.
pub fn free_port() -> u16 {
    TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port()
}

/// Whether a program listens on this port. This asks the kernel, because the program would take a connection attempt
/// for its client.
fn is_listened_on(port: u16) -> bool {
    let (suffix, listening) = (format!(":{port:04X}"), "0A");
    ["/proc/net/tcp", "/proc/net/tcp6"].iter().any(|table| {
        fs::read_to_string(table).unwrap_or_default().lines().any(|line| {
            let mut columns = line.split_whitespace().skip(1);
            columns.next().is_some_and(|local| local.ends_with(&suffix)) && columns.nth(1) == Some(listening)
        })
    })
}
