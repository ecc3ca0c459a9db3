//! Latency and bandwidth of sends, writes and reads over a reliable connection, measured as perftest does.
//!
//! Without arguments both ends are in this process. Otherwise the peer is another `perf`: see `perf -h`.
//!
//! | here | perftest, with `-c RC -I 0` |
//! |---|---|
//! | `lat send`, `lat write`, `lat read` | `ib_send_lat`, `ib_write_lat`, `ib_read_lat`; p50 is its `t_typical` |
//! | `bw send`, `bw write`, `bw read` | `ib_send_bw`, `ib_write_bw`, `ib_read_bw` with `-l 16 -Q 16`: average |
#![forbid(unsafe_code)]

#[path = "../common/mod.rs"]
mod common;
mod line;
mod options;
mod plot;
mod report;
mod round;
#[cfg(feature = "tokio")]
mod tasks;
mod watch;

use common::fault::{Doing, Fault};
use common::{device, tcp};
use interlock::{Context, Port};
use line::{Line, OTHER_SIDE, Said, Task};
use options::{HELP, Options, Role};
use report::{Row, Setting};
use round::Place;
use std::fs::File;
use std::io::{self, Write};
use std::net::{IpAddr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;
use watch::{Manner, Progress};

interlock::domain! { pub(crate) struct Perf; }

fn main() -> ExitCode {
    match run(&mut io::stdout()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(fault) => {
            _ = writeln!(io::stderr(), "perf: {fault}");
            ExitCode::FAILURE
        }
    }
}

fn run(out: &mut impl Write) -> Result<(), Fault> {
    let Some(options) = options::parse()? else {
        return Ok(out.write_all(HELP.as_bytes())?);
    };
    let context = device::open(options.device.as_deref())?;
    let port = choose_port(&context, &options)?;
    let manner = Manner {
        event: options.event,
        futures: options.futures,
        yields: matches!(options.role, Role::Both),
        patience: options.patience,
    };
    let mut place = Place { domain: context.named_domain(Perf)?, port, manner, by_cm: None };
    if !options.quiet {
        describe(out, &context, &place.port)?;
    }
    match &options.role {
        Role::Server => serve(out, &place, &options),
        Role::Client(host) => {
            let mut line = Line::to_server(host, options.tcp_port, options.patience)?;
            place.by_cm = options.by_cm.then(|| line.peer()).transpose()?;
            ask(out, &place, &mut line, &options)
        }
        Role::Both => {
            let (mut line, mut other) = Line::pair(options.patience)?;
            place.by_cm = options.by_cm.then(|| address(&place.port)).transpose()?;
            let (asked, served) = thread::scope(|scope| {
                let server = scope.spawn(|| serve_one(&place, &mut other));
                let asked = ask(out, &place, &mut line, &options);
                (asked, server.join())
            });
            let served = served.unwrap_or_else(|_| Err(Fault::new("the server's thread panicked")));
            match (asked, served) {
                // The server's error caused the error of the client, so the server's error is the one to report.
                (Err(fault), served @ Err(_)) if fault.to_string().starts_with(OTHER_SIDE) => served,
                (asked, served) => asked.and(served),
            }
        }
    }
}

fn choose_port(context: &Context, options: &Options) -> Result<Port, Fault> {
    let name = context.name();
    if context.is_soft() && !matches!(options.role, Role::Both) {
        return Err(Fault::new(format!(
            "{name} is a soft device, which no other process reaches: both ends must be here"
        )));
    }
    if context.is_iwarp() && !options.by_cm && !matches!(options.role, Role::Server) {
        return Err(Fault::new(format!("{name} is an iWARP device, which needs rdma_cm to connect: give -R")));
    }
    let port = context.active_port().doing(format_args!("cannot use {name}"))?;
    match options.gid_row {
        Some(row) => port.with_gid(|entry| entry.index() == row).doing(format_args!("no GID at index {row}")),
        None => Ok(port),
    }
}

/// The address of the port, if its GID is one.
fn address(port: &Port) -> Result<IpAddr, Fault> {
    let found = port.gids().iter().find_map(|row| Ipv6Addr::from(row.gid.0).to_ipv4_mapped());
    found.map(IpAddr::V4).ok_or_else(|| {
        Fault::new("no GID of the port is an IPv4 address: start a server, and a client that names an address of it")
    })
}

fn describe(out: &mut impl Write, context: &Context, port: &Port) -> Result<(), Fault> {
    write!(out, "{} port {}", context.name(), port.number())?;
    if let Some(row) = port.gid() {
        write!(out, ", GID {} ({}, index {})", row.gid, row.kind, row.index())?;
    }
    writeln!(out, ", MTU {} bytes", port.active_mtu().bytes())?;
    if context.is_soft() {
        writeln!(out, "a soft device: these numbers say nothing about RDMA")?;
    }
    Ok(())
}

fn serve(out: &mut impl Write, place: &Place, options: &Options) -> Result<(), Fault> {
    let listener = tcp::listen(options.tcp_port)?;
    if !options.quiet {
        writeln!(out, "waiting for a client on TCP port {}", options.tcp_port)?;
    }
    let mut line = Line::to_client(&listener, options.patience)?;
    drop(listener);
    serve_one(place, &mut line)
}

fn serve_one(place: &Place, line: &mut Line) -> Result<(), Fault> {
    round::serve(place, line).inspect_err(|fault| line.complain(fault))
}

/// Runs the client, which makes all the measurements.
fn ask(out: &mut impl Write, place: &Place, line: &mut Line, options: &Options) -> Result<(), Fault> {
    // Files are opened before measuring, so that a wrong path does not waste the measurement.
    let create = |path: &Option<PathBuf>| {
        let open = |path: &Path| File::create(path).doing(format_args!("cannot write {}", path.display()));
        path.as_deref().map(open).transpose()
    };
    let asked = (|| {
        let files = [create(&options.csv)?, create(&options.json)?, create(&options.svg)?];
        let rows = measure(out, place, line, options)?;
        line.say(Said::End)?;
        let setting = Setting {
            device: place.domain.context().name().to_owned(),
            path_mtu: place.port.active_mtu().bytes(),
            both_ends_here: matches!(options.role, Role::Both),
            event: options.event,
            futures: options.futures,
            depth: options.depth,
            inline: options.inline,
        };
        for (file, form) in files.into_iter().zip([report::csv, report::json, plot::svg]) {
            if let Some(mut file) = file {
                file.write_all(form(&setting, &rows).as_bytes()).doing("cannot write the results")?;
            }
        }
        Ok(())
    })();
    asked.inspect_err(|fault| line.complain(fault))
}

fn measure(out: &mut impl Write, place: &Place, line: &mut Line, options: &Options) -> Result<Vec<Row>, Fault> {
    let mut rows = Vec::new();
    for &measure in &options.measures {
        for &action in &options.actions {
            if !options.quiet {
                out.write_all(report::heading(measure, action).as_bytes())?;
            }
            for &size in &options.sizes {
                let task = Task { measure, action, size, depth: options.depth, inline: options.inline };
                let name = format!("{measure} {action}, {size} bytes");
                let mut progress = Progress::new(name.clone(), options.quiet);
                let figures = round::ask(place, line, task, options.until, &mut progress).doing(name)?;
                drop(progress);
                let row = Row { measure, action, size, figures };
                if !options.quiet {
                    out.write_all(row.line().as_bytes())?;
                    out.flush()?;
                }
                rows.push(row);
            }
        }
    }
    Ok(rows)
}
