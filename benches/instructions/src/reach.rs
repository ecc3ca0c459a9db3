//! Finds what the machine code of each probe can reach.

use crate::listing::{Flow, Listing, Slot};
use crate::{Verdict, have, limits, sibling};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::error::Error;
use std::path::Path;
use std::process::Command;

const PANIC: &str = "panic";

/// The kinds of code that must not be on the hot path. Each is recognized by parts of function names.
#[rustfmt::skip]
const KINDS: [(&str, &[&str]); 4] = [
    // A mutex guard calls `is_zero_slow_path` to see whether its thread is panicking.
    ("lock", &["futex", "Mutex", "pthread_mutex", "syscall", "panic_count::is_zero_slow_path"]),
    (PANIC, &[
        "core::panicking", "core::option::unwrap_failed", "core::option::expect_failed", "core::result::unwrap_failed",
        "core::slice::index", "thread::local::panic_access_error", "core::str::slice_error", "core::cell::panic", "handle_alloc_error", "capacity_overflow",
        "raw_vec::handle_error", "std::panicking", "rust_panic", "__rust_start_panic", "rust_begin_unwind",
        "_Unwind_RaiseException", "abort",
    ]),
    ("formatting", &["core::fmt", "alloc::fmt"]),
    ("heap", &[
        "__rust_alloc", "__rust_realloc", "__rust_dealloc", "__rdl_", "alloc::raw_vec", "malloc", "calloc", "realloc",
        "posix_memalign", "aligned_alloc", "free@", "::drop_slow",
    ]),
];

fn kind_of(name: &str) -> Option<&'static str> {
    // The name of a drop function contains the name of the dropped type, and the name of a type says nothing about the
    // code. So return `None`: then the walk enters the function.
    if name.starts_with("core::ptr::drop_in_place<") {
        return None;
    }
    KINDS.iter().find(|kind| kind.1.iter().any(|part| name.contains(part))).map(|kind| kind.0)
}

/// Everything that the code of a function can reach.
#[derive(Default)]
struct Reach {
    functions: usize,
    faults: Vec<Fault>,
    /// Cold functions that the walk did not enter: their addresses, and their indices in the list.
    cold: BTreeMap<u64, usize>,
    /// Calls through a register or memory: to the device, and to closures behind a pointer.
    indirect: usize,
    /// The number of instructions with a lock prefix.
    locked: usize,
    /// For each function, the functions that it calls only while a panic unwinds.
    pads: BTreeMap<String, BTreeSet<String>>,
}

struct Fault {
    kind: &'static str,
    /// The functions on the way to the forbidden code. The last one is that code.
    path: Vec<String>,
    /// The addresses of the calls, the last one first.
    calls: Vec<u64>,
}

pub fn check() -> Result<Verdict, Box<dyn Error>> {
    if !cfg!(target_arch = "x86_64") {
        println!("SKIPPED: machine code is read on x86-64 only");
        return Ok(None);
    }
    if !have("objdump")? {
        println!("SKIPPED: what the code can reach needs objdump, which is not installed");
        return Ok(None);
    }
    let program = sibling("probes")?;
    let listing = Listing::of(&program)?;
    control(&listing)?;
    let mut whole = Reach::default();
    println!("What the code of each operation can reach, the device apart:\n");
    println!(
        "| operation | functions | calls through pointers | locked instructions | {} |",
        KINDS.map(|kind| kind.0).join(", ")
    );
    println!("|---|---:|---:|---:|---|");
    let probes = String::from_utf8(Command::new(&program).output()?.stdout)?;
    let probes = probes.lines().map(|name| (name, format!("probes::{name}")));
    let pointed = limits::POINTED.map(|symbol| (symbol.trim_start_matches("interlock::inflight::"), symbol.to_owned()));
    for (name, symbol) in probes.chain(pointed) {
        let reach = walk(&listing, function(&listing, &symbol)?, &limits::COLD);
        let verdict = if reach.faults.is_empty() { "none" } else { "**see below**" };
        println!("| {name} | {} | {} | {} | {verdict} |", reach.functions, reach.indirect, reach.locked);
        whole.faults.extend(reach.faults);
        whole.cold.extend(reach.cold);
        for (function, called) in reach.pads {
            whole.pads.entry(function).or_default().extend(called);
        }
    }
    // Many probes can reach the same forbidden call. Report that call once.
    let mut faults = BTreeMap::<_, (String, BTreeSet<String>)>::new();
    for Fault { kind, path, calls } in &whole.faults {
        let end = path[path.len() - 2..].to_owned();
        let (_, from) =
            faults.entry((kind, end, place(&program, calls))).or_insert((path.join(" -> "), BTreeSet::new()));
        from.insert(path[0].clone());
    }
    for ((kind, _, place), (path, from)) in &faults {
        println!("\n**{kind}** at {place}: {path}");
        if from.len() > 1 {
            println!("(from {})", Vec::from_iter(from.iter().map(String::as_str)).join(", "));
        }
    }
    println!("\nNot looked into, since off the hot path:");
    for (number, (name, when)) in limits::COLD.iter().enumerate() {
        let met = whole.cold.iter().find(|cold| *cold.1 == number);
        println!("- {name}: {when}{}", if met.is_some() { "" } else { " (not met: inlined, or needed no more)" });
        let faults = met.map_or(Vec::new(), |(&start, _)| walk(&listing, start, &[]).faults);
        for Fault { path, calls, .. } in faults.iter().filter(|fault| fault.kind == PANIC) {
            println!("    can panic at {}: {}", place(&program, calls), path.join(" -> "));
        }
    }
    println!("\nCalled only while a panic of the program's own closure passes through:");
    for (function, called) in whole.pads {
        println!("- {function}: {}", called.into_iter().collect::<Vec<_>>().join(", "));
    }
    println!();
    Ok(Some(whole.faults.is_empty()))
}

/// Returns the address of a function.
fn function(listing: &Listing, symbol: &str) -> Result<u64, String> {
    let found = listing.functions.iter().find(|(_, function)| function.name == symbol);
    found.map(|found| *found.0).ok_or_else(|| format!("{symbol} is not in the program"))
}

/// Tests the check itself: the control function contains every kind of forbidden code, and the walk must find each.
fn control(listing: &Listing) -> Result<(), String> {
    let found = walk(listing, function(listing, "probes::control")?, &[]).faults;
    match KINDS.iter().find(|kind| found.iter().all(|fault| fault.kind != kind.0)) {
        Some((kind, _)) => Err(format!("the check is blind: it does not find {kind} in the control")),
        None => Ok(()),
    }
}

/// Walks through all functions that the root calls or jumps to, the nearest first. It does not enter the functions in
/// `cold`.
fn walk(listing: &Listing, root: u64, cold: &[(&str, &str)]) -> Reach {
    let mut reach = Reach::default();
    // The caller of each function, and the address of the call.
    let mut callers = BTreeMap::new();
    let mut queue = VecDeque::from([root]);
    while let Some(start) = queue.pop_front() {
        let function = &listing.functions[&start];
        reach.functions += 1;
        let tables = listing.jump_targets(function);
        let passed =
            listing.passes(start, function, |flow| callee(listing, flow).is_some_and(|callee| callee.never_returns()));
        for (&address, instruction) in &function.code {
            let callee = callee(listing, instruction.flow);
            let unknown = callee.is_none();
            let callee = callee.filter(|callee| callee.start != Some(start));
            if !passed.contains(&address) {
                if let Some(callee) = callee {
                    reach.pads.entry(function.name.clone()).or_default().insert(callee.name.to_owned());
                }
                continue;
            }
            let mnemonic = instruction.text.split(' ').next().unwrap_or_default();
            reach.locked += usize::from(mnemonic == "lock" || mnemonic == "xchg" && instruction.text.contains('('));
            let elsewhere = match instruction.flow {
                Flow::CallAnywhere => true,
                Flow::JumpAnywhere => tables.is_empty(),
                // A call of a function without a name counts as a call through a pointer.
                Flow::Call(_) | Flow::CallSlot(_) | Flow::JumpSlot(_) => unknown,
                _ => false,
            };
            reach.indirect += usize::from(elsewhere);
            let Some(callee) = callee else { continue };
            if let Some(number) = cold.iter().position(|cold| callee.name.contains(cold.0)) {
                reach.cold.insert(callee.start.unwrap_or_default(), number);
            } else if let Some(kind) = kind_of(callee.name) {
                let (mut path, mut calls) = (vec![callee.name.to_owned(), function.name.clone()], vec![address]);
                let mut at = start;
                while let Some(&(caller, call)) = callers.get(&at) {
                    at = caller;
                    path.push(listing.functions[&caller].name.clone());
                    calls.push(call);
                }
                path.reverse();
                reach.faults.push(Fault { kind, path, calls });
            } else if let Some(next) = callee.start
                && next != root
                && !callers.contains_key(&next)
            {
                callers.insert(next, (start, address));
                queue.push_back(next);
            }
        }
    }
    reach
}

/// A function that some code calls or jumps to.
struct Callee<'l> {
    name: &'l str,
    /// Its address, or `None` if it is in another library.
    start: Option<u64>,
}

impl Callee<'_> {
    /// Whether the function never returns, so that the instruction after the call does not run.
    fn never_returns(&self) -> bool {
        kind_of(self.name) == Some(PANIC) || self.name.contains("_Unwind_Resume")
    }
}

/// Returns the function that control goes to, if that is known.
fn callee(listing: &Listing, flow: Flow) -> Option<Callee<'_>> {
    let here = |address| {
        let (start, function) = listing.function_at(address)?;
        Some(Callee { name: &function.name, start: Some(start) })
    };
    match flow {
        Flow::Call(to) | Flow::Jump(to) | Flow::Branch(to) => here(to),
        Flow::CallSlot(slot) | Flow::JumpSlot(slot) => match listing.slots.get(&slot)? {
            Slot::Symbol(name) => Some(Callee { name, start: None }),
            Slot::Address(address) => here(*address),
        },
        _ => None,
    }
}

/// Returns the source lines of the last call that the library makes. The code of each line is inlined into the next
/// line.
fn place(program: &Path, calls: &[u64]) -> String {
    let lines = |call: &u64| {
        let output = Command::new("addr2line").arg("-ie").arg(program).arg(format!("{call:#x}")).output();
        let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
        let ours = text.lines().filter_map(|line| {
            let (before, path) = line.rsplit_once("/src/")?;
            let ours = !before.starts_with("/rustc/") && !before.contains("/library/") && !path.starts_with("bin/");
            ours.then(|| format!("src/{}", path.split(' ').next().unwrap_or_default()))
        });
        ours.take(3).collect::<Vec<_>>()
    };
    let found = calls.iter().map(lines).find(|lines| !lines.is_empty());
    found.map_or_else(|| "an unknown line".to_owned(), |lines| lines.join(" in "))
}
