//! One workload, posted through `ibv_wr_*`: `rs-interlock-wr W1..W5 ITERATIONS`.
//!
//! Prints `NS <nanoseconds>`, the time of the iterations alone. Exit status 2: the workload is unknown.
#![forbid(unsafe_code)]

#[path = "../workloads.rs"]
mod workloads;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    workloads::main("rs-interlock-wr", interlock::queue::Posting::WorkRequestApi, interlock::completion::Polling::Array)
}
