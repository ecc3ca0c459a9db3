//! One workload, posted by linked lists: `rs-interlock W1..W5 ITERATIONS`.
//!
//! Prints `NS <nanoseconds>`, the time of the iterations alone. Exit status 2: the workload is unknown.
#![forbid(unsafe_code)]

#[path = "../workloads.rs"]
mod workloads;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    workloads::main("rs-interlock", interlock::queue::Posting::List, interlock::completion::Polling::Array)
}
