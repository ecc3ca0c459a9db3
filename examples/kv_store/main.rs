//! A key-value store whose clients read and write the server's table by RDMA. The server's processor takes no part in
//! it.
//!
//! Each slot of the table has a version. With it, readers detect an update in between, and writers exclude each other:
//! see `table.rs`. The server breaks the locks of clients that die: see `server.rs`. The client for tasks of tokio is
//! in `tasks.rs`. `kv_store -h` lists the commands.
#![forbid(unsafe_code)]

mod bench;
mod client;
#[path = "../common/mod.rs"]
mod common;
mod control;
mod exposure;
mod options;
mod remote;
mod server;
mod table;
#[cfg(feature = "tokio")]
mod tasks;

use client::{Address, Client};
use common::fault::{Doing, Fault};
use common::{device, tcp};
use interlock::{Brand, Context, Port, ProtectionDomain};
use options::{Command, HELP, Options};
use remote::Place;
use server::{Closing, serve};
use std::io::{self, Read, Write};
use std::net::TcpListener;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use table::{Key, Slot, Value};
#[cfg(feature = "tokio")]
use tasks::TaskClient;

interlock::domain! {
    /// The protection domain of a server.
    pub(crate) struct Serving;
}
interlock::domain! {
    /// The protection domain of clients.
    pub(crate) struct Asking;
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(fault) => {
            _ = writeln!(io::stderr(), "kv_store: {fault}");
            ExitCode::FAILURE
        }
    }
}

/// Prints a line of progress. A closed pipe must not stop a server, so errors are ignored.
fn say(line: impl AsRef<str>) {
    _ = writeln!(io::stdout(), "{}", line.as_ref());
}

/// Prints the result of a command.
fn answer(text: impl AsRef<str>) -> Result<(), Fault> {
    Ok(writeln!(io::stdout(), "{}", text.as_ref())?)
}

fn run() -> Result<(), Fault> {
    let Some(options) = options::parse()? else {
        return answer(HELP.trim_end());
    };
    let context = device::open(options.device.as_deref())?;
    let name = context.name();
    let port = context.active_port().doing(format_args!("cannot use {name}"))?;
    let all_here = matches!(options.command, Command::Demo | Command::Bench { server_is_here: true });
    if context.is_soft() && !all_here {
        return Err(Fault::new(format!(
            "{name} is a soft device, which no other process reaches: server and clients must be here"
        )));
    }
    if !context.attributes()?.has_atomics() {
        return Err(Fault::new(format!("{name} has no atomics, by which clients keep each other out")));
    }
    let asking = || -> Result<_, Fault> { Ok(place(context.named_domain(Asking)?, &port, &options)) };
    #[cfg(feature = "tokio")]
    if options.as_tasks {
        let run = |server: &Address| tasks::block_on(run_tasks(&asking()?, server, &options))?;
        return match &options.command {
            Command::Bench { server_is_here: true } => with_server(&context, &port, &options, run),
            _ => run(&options.server),
        };
    }
    match &options.command {
        Command::Demo => with_server(&context, &port, &options, |server| demo(&asking()?, server)),
        Command::Bench { server_is_here: true } => {
            with_server(&context, &port, &options, |server| answer(options.bench().run(&asking()?, server)?))
        }
        Command::Bench { server_is_here: false } => answer(options.bench().run(&asking()?, &options.server)?),
        Command::Serve => {
            let listener = tcp::listen(options.server.port)?;
            say(format!("{} slots on {name}, TCP port {}", options.slots, options.server.port));
            serve_until_closed(&place(context.named_domain(Serving)?, &port, &options), &listener, &options)
        }
        Command::Get(key) => {
            let mut client = Client::connect(&asking()?, &options.server)?;
            let value = client.with(|table| table.get(key))?;
            client.bye()?;
            answer(value.ok_or_else(|| Fault::new(format!("there is no \"{key}\"")))?.to_string())
        }
        Command::Put(key, value) => {
            let mut client = Client::connect(&asking()?, &options.server)?;
            client.with(|table| table.update(key, |_| *value))?;
            client.bye().map(drop)
        }
        Command::Hold(key) => {
            let mut client = Client::connect(&asking()?, &options.server)?;
            let _lock = client.with(|table| table.lock(key))?;
            say(format!("session {} holds the lock of \"{key}\" until it is killed", client.owner()));
            client.stay()
        }
    }
}

/// Runs the command with clients that are tasks.
#[cfg(feature = "tokio")]
async fn run_tasks(place: &Place<Asking>, server: &Address, options: &Options) -> Result<(), Fault> {
    match &options.command {
        Command::Get(key) => {
            let mut client = TaskClient::connect(place, server).await?;
            let value = client.get(key).await?;
            client.bye().await?;
            answer(value.ok_or_else(|| Fault::new(format!("there is no \"{key}\"")))?.to_string())
        }
        Command::Put(key, value) => {
            let mut client = TaskClient::connect(place, server).await?;
            client.update(key, |_| *value).await?;
            client.bye().await.map(drop)
        }
        _ => answer(options.bench().run_tasks(place, server).await?),
    }
}

fn place<B: Brand>(domain: ProtectionDomain<B>, port: &Port, options: &Options) -> Place<B> {
    Place { domain, port: port.clone(), patience: options.patience }
}

/// Serves until standard input ends, or until `--clients` sessions have ended.
fn serve_until_closed(place: &Place<Serving>, listener: &TcpListener, options: &Options) -> Result<(), Fault> {
    // `closing` is an `Arc`, because the thread below can outlive this function: perhaps its read blocks for ever.
    let closing = Arc::new(Closing::after(options.clients.map(|count| count as u64)));
    if options.clients.is_none() {
        let closing = closing.clone();
        thread::spawn(move || {
            _ = io::stdin().lock().read_to_end(&mut Vec::new());
            closing.close();
        });
    }
    show(&serve(place, listener, (options.slots, options.lease), &closing, &say)?);
    Ok(())
}

/// Runs clients with a server in this process.
fn with_server(
    context: &Context,
    port: &Port,
    options: &Options,
    clients: impl FnOnce(&Address) -> Result<(), Fault>,
) -> Result<(), Fault> {
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    let server = Address { host: "127.0.0.1".to_owned(), port: listener.local_addr()?.port() };
    let serving = place(context.named_domain(Serving)?, port, options);
    say(format!("{} slots on {}", options.slots, context.name()));
    let closing = Closing::default();
    let (asked, served) = thread::scope(|scope| {
        let house = scope.spawn(|| serve(&serving, &listener, (options.slots, options.lease), &closing, &say));
        let asked = clients(&server);
        closing.close();
        (asked, house.join())
    });
    // If the server failed, its error caused the errors of the clients. So its error is returned first.
    show(&served.unwrap_or_else(|_| Err(Fault::new("the server's thread panicked")))?);
    asked
}

/// Prints the table, which belongs to the program again.
fn show(table: &[Slot]) {
    let entries = || table.iter().filter_map(|slot| slot.content().map(|entry| (slot.word, entry)));
    say(format!(
        "the table at the end, {} of {} slots:",
        entries().filter(|(_, entry)| entry.is_some()).count(),
        table.len()
    ));
    for (word, entry) in entries() {
        if let Some(entry) = entry {
            say(format!("  {} = {} (update {})", entry.key, entry.value, word.version() / 2));
        }
    }
    let torn = table.iter().filter(|slot| slot.content().is_none()).count();
    let locked = table.iter().filter(|slot| slot.word.is_locked()).count();
    if torn + locked != 0 {
        say(format!("  and {torn} torn, {locked} locked"));
    }
}

fn demo(place: &Place<Asking>, server: &Address) -> Result<(), Fault> {
    let word = |text: &str| Value::new(text.as_bytes()).ok_or_else(|| Fault::new("a word that is too long"));
    let color = Key::new(b"color").ok_or_else(|| Fault::new("a word that is too long"))?;
    let mut writer = Client::connect(place, server)?;
    let mut reader = Client::connect(place, server)?;
    for value in ["red", "blue"] {
        let value = word(value)?;
        writer.with(|table| table.update(&color, |_| value))?;
        let read = reader.with(|table| table.get(&color))?;
        say(format!("session {} put {value}; session {} reads {}", writer.owner(), reader.owner(), shown(read)));
    }

    let mut mortal = Client::connect(place, server)?;
    let _lock = mortal.with(|table| table.lock(&color))?;
    let (dead, read) = (mortal.owner(), reader.with(|table| table.get(&color))?);
    say(format!("session {dead} has locked it and dies; session {} still reads {}", reader.owner(), shown(read)));
    drop(mortal);
    let value = word("green")?;
    writer.with(|table| table.update(&color, |_| value))?;
    say(format!("session {} put {value}, once the server had broken the lock", writer.owner()));
    reader.bye()?;
    writer.bye()?;

    let bench = bench::Bench { clients: 4, keys: 1, until: bench::Until::Operations(200) };
    say(bench.run(place, server)?);
    Ok(())
}

fn shown(value: Option<Value>) -> String {
    value.map_or_else(|| "nothing".to_owned(), |value| value.to_string())
}
