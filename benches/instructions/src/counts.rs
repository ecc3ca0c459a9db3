//! Counts the instructions per request and compares them with the limits.

use crate::callgrind::{Edge, edges};
use crate::limits::{STREAMS, WORKLOADS, Workload};
use crate::{Verdict, have, sibling};
use std::error::Error;
use std::ops::Sub;
use std::process::{Command, Stdio};

/// Functions whose names begin with one of these belong to the device.
const DEVICE: [&str; 2] = ["interlock::provider::soft::data_path::", "interlock::provider::soft::polling::"];
/// Each workload runs with both numbers of iterations. The difference of the costs contains no set-up.
const ITERATIONS: (u32, u32) = (100, 300);

/// The cost of one run of a workload.
struct Cost {
    /// The instructions of the loop, less those of the device. It can be below 0, because the device's instructions of
    /// the set-up are subtracted too.
    net: i64,
    /// The number of calls into the device.
    device_calls: i64,
}

impl Sub for Cost {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        Self { net: self.net - other.net, device_calls: self.device_calls - other.device_calls }
    }
}

pub fn check() -> Result<Verdict, Box<dyn Error>> {
    if !have("valgrind")? {
        println!("SKIPPED: the instruction counts need valgrind, which is not installed");
        return Ok(None);
    }
    println!("Instructions per request: the library's and the workload's own, without the device's.\n");
    println!("| workload | one iteration | calls into the device | net instructions per request | limit |");
    println!("|---|---|---:|---:|---:|");
    let mut passed = true;
    for workload in &WORKLOADS {
        let Workload { name, what, requests, limit } = *workload;
        let cost = measure(name, ITERATIONS.1)? - measure(name, ITERATIONS.0)?;
        let iterations = f64::from(ITERATIONS.1 - ITERATIONS.0);
        let (calls, net) = (cost.device_calls as f64 / iterations, cost.net as f64 / iterations / f64::from(requests));
        let remark = match net {
            _ if net > limit => " **over the limit**",
            _ if net < 0.8 * limit => " (lower the limit)",
            _ => "",
        };
        println!("| {name} | {what} | {calls} | {net:.1} | {limit}{remark} |");
        passed &= net <= limit;
    }
    println!();
    Ok(Some(passed))
}

/// Runs a workload under callgrind.
fn measure(name: &str, iterations: u32) -> Result<Cost, Box<dyn Error>> {
    let source = if STREAMS.contains(&name) { "streams" } else { "workloads" };
    let program = sibling(source)?;
    let profile = program.with_file_name(format!("callgrind.{}", std::process::id()));
    let output = Command::new("valgrind")
        .args(["-q", "--tool=callgrind", "--compress-strings=no", "--compress-pos=no"])
        .arg(format!("--callgrind-out-file={}", profile.display()))
        .arg(program)
        .args([name, &iterations.to_string()])
        .stdout(Stdio::null())
        .output()?;
    let text = std::fs::read_to_string(&profile);
    let _ = std::fs::remove_file(&profile);
    if !output.status.success() {
        return Err(format!("valgrind on {name}: {}", String::from_utf8_lossy(&output.stderr)).into());
    }
    // An `_extended` workload runs the same loop on another kind of queue, so its function has no such suffix.
    cost(&edges(&text?)?, &format!("{source}::{}", name.trim_end_matches("_extended")))
}

fn cost(edges: &[Edge<'_>], workload: &str) -> Result<Cost, Box<dyn Error>> {
    let (mut whole, mut device, mut device_calls) = (0, 0, 0);
    for edge in edges {
        if edge.callee == workload {
            whole += edge.cost;
        }
        // `device` and `device_calls` include the set-up of the workload. `check` subtracts the cost of one run from
        // that of another. The set-up is the same in both, so it cancels out.
        let is_device = |function: &str| DEVICE.iter().any(|device| function.starts_with(device));
        if is_device(edge.callee) && !is_device(edge.caller) {
            device += edge.cost;
            device_calls += edge.calls;
        }
    }
    if whole == 0 || device == 0 {
        return Err(format!("{workload} or {DEVICE:?} is not in the profile: was it inlined, or renamed?").into());
    }
    Ok(Cost { net: whole - device, device_calls })
}
