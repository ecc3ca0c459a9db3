//! Processes that a test kills, and what the kernel keeps of them.
//!
//! Such a process is the test program again: its test `victim`, which is ignored otherwise. When it has reached the
//! step at which it is to be killed, it prints a line and waits.

use crate::{PATIENCE, eventually};
use std::env;
use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread;

/// A process that is to be killed.
#[derive(Debug)]
pub struct Victim {
    child: Child,
    says: BufReader<ChildStdout>,
}

impl Victim {
    /// Starts the test `victim` of this program, with these environment variables.
    pub fn start(variables: &[(&str, &str)]) -> Self {
        let mut command = Command::new(env::current_exe().unwrap());
        command.args(["--exact", "victim", "--ignored", "--nocapture"]).envs(variables.iter().copied());
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let says = BufReader::new(child.stdout.take().unwrap());
        Self { child, says }
    }

    /// The rest of the line that begins with `word`. Each wait of the victim has a limit, so the line arrives or the
    /// pipe ends.
    pub fn said(&mut self, word: &str) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            assert_ne!(self.says.read_line(&mut line).unwrap(), 0, "the victim has ended and did not say {word:?}");
            if let Some(rest) = line.strip_prefix(word) {
                return rest.trim().to_owned();
            }
        }
    }

    /// Kills the victim. Returns the number of the process.
    pub fn kill(mut self) -> u32 {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.child.id()
    }

    /// Kills the victim when it has [stopped](stop).
    pub fn kill_at_its_step(mut self) -> u32 {
        self.said("stopped");
        self.kill()
    }
}

/// Prints that the victim has reached its step, and waits to be killed.
pub fn stop() -> ! {
    println!("\nstopped");
    thread::sleep(2 * PATIENCE);
    panic!("nobody killed this process");
}

/// The objects that the kernel still has of these processes: identifiers, pairs and others. A list that cannot be made
/// is an entry, too: `rdma` fails if a device is removed meanwhile.
pub fn left_of(processes: &[u32]) -> Vec<String> {
    let mut found = Vec::new();
    for kind in ["cm_id", "qp", "cq", "mr", "pd"] {
        let listed = Command::new("rdma").args(["resource", "show", kind]).output().unwrap();
        if !listed.status.success() {
            found.push(format!("rdma resource show {kind}: {listed:?}"));
            continue;
        }
        let listed = String::from_utf8(listed.stdout).unwrap();
        let is_of_them = |line: &&str| {
            let mut words = line.split_whitespace().skip_while(|word| *word != "pid").skip(1);
            words.next().is_some_and(|pid| processes.iter().any(|killed| killed.to_string() == pid))
        };
        found.extend(listed.lines().filter(is_of_them).map(|line| format!("{kind} {line}")));
    }
    found
}

/// Waits until the kernel has nothing of these processes any more.
#[track_caller]
pub fn assert_nothing_is_left_of(processes: &[u32]) {
    let mut left = Vec::new();
    let is_so = eventually(|| {
        left = left_of(processes);
        left.is_empty()
    });
    assert!(is_so, "{left:#?}");
}
