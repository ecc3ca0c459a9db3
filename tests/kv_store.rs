//! Tests the example `kv_store`: its table under torn reads, and the program on the device under test.

#[path = "../examples/kv_store/table.rs"]
#[allow(dead_code, reason = "the program uses the rest")]
mod table;

use interlock::Context;
use std::io::Write;
use std::net::TcpStream;
use std::thread;
use std::time::Duration;
use support::program::{Ended, Program, example, free_port};
use support::{context, on_hardware};
use table::{Cell, Entry, Key, Owner, Slot, Value, Word};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

type Words = [u64; size_of::<Slot>() / 8];

fn words(slot: Slot) -> Words {
    Words::read_from_bytes(slot.as_bytes()).unwrap()
}

fn slot(words: Words) -> Slot {
    Slot::read_from_bytes(words.as_bytes()).unwrap()
}

fn entry(number: u64) -> Entry {
    // The value of each `number` is different, because it ends with `number`. The repeated word varies its length.
    let value = format!("{}{number}", "value ".repeat(number as usize % 8));
    Entry { key: Key::new(b"key").unwrap(), value: Value::new(value.as_bytes()).unwrap() }
}

/// Returns every state of a slot during `updates` updates that write it word by word. Each state comes with the number
/// of finished updates.
fn history(updates: u64) -> Vec<(u64, Words)> {
    let mut now = words(Slot::new_zeroed());
    let mut history = vec![(0, now)];
    for number in 1..=updates {
        let locked = slot(now).word.locked_by(Owner::new(9).unwrap());
        now[0] = locked.0;
        history.push((number - 1, now));
        let word = locked.updated();
        let cell = Cell::new(word.version(), entry(number));
        let start = Slot::cell_offset(word.version()) as usize / 8;
        for (at, bytes) in cell.as_bytes().chunks(8).enumerate() {
            now[start + at] = u64::from_ne_bytes(bytes.try_into().unwrap());
            history.push((number - 1, now));
        }
        now[0] = word.0;
        history.push((number, now));
    }
    history
}

#[test]
fn a_slot_is_whole_at_every_step_of_an_update() {
    for (finished, words) in history(20) {
        let content = slot(words).content().expect("whole");
        assert_eq!(content, (finished != 0).then(|| entry(finished)), "{finished}");
    }
}

/// A device may read the words of a slot at different times and in any order.
#[test]
fn words_of_different_times_do_not_pass_for_a_value() {
    let history = history(30);
    let mut chance = 1_u64;
    let mut below = |limit: usize| {
        chance = chance.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        (chance >> 33) as usize % limit
    };
    let (mut whole, mut torn) = (0, 0);
    for _ in 0..60_000 {
        // The read sees words of up to 80 successive states. One update makes 14 states.
        let span = 1 + below(80);
        let start = below(history.len() - span);
        let mut seen = history[start].1;
        for (at, word) in seen.iter_mut().enumerate() {
            *word = history[start + below(span)].1[at];
        }
        let seen = slot(seen);
        match seen.content() {
            Some(content) => {
                let number = seen.word.version() / 2;
                assert_eq!(content, (number != 0).then(|| entry(number)));
                whole += 1;
            }
            None => torn += 1,
        }
    }
    assert!(whole > 1000 && torn > 1000, "{whole} whole, {torn} torn: this shows nothing");
}

#[test]
fn a_lock_that_is_broken_leaves_the_value_of_before() {
    for (finished, mut words) in history(20) {
        let before = slot(words);
        words[0] = before.word.unlocked().0;
        let after = slot(words);
        assert!(!after.word.is_locked());
        assert_eq!((after.content(), after.word.version() / 2), (before.content(), finished));
        assert_eq!(before.word.owner().is_some(), before.word.is_locked());
    }
}

#[test]
fn versions_begin_anew_after_the_last() {
    let last = Word((1 << 48) - 2);
    let locked = last.locked_by(Owner::MAX);
    assert_eq!((locked.version(), locked.owner()), (last.0, Some(Owner::MAX)));
    assert_eq!((locked.unlocked(), locked.updated().owner()), (last, None));
    // The new version is not 0, because 0 means an empty slot. The new version names the other cell, because the update
    // must not overwrite the cell that is currently valid.
    assert_ne!(locked.updated().version(), 0);
    assert_ne!(Slot::cell_of(locked.updated().version()), Slot::cell_of(last.version()));
}

fn kv_store(arguments: &[&str]) -> Ended {
    Program::run(example("kv_store"), arguments)
}

#[test]
fn the_demo_survives_a_client_that_dies() {
    for arguments in [&[] as &[&str], &["demo", "--slots", "2"]] {
        kv_store(arguments)
            .succeeded()
            .says("session 3 has locked it and dies; session 2 still reads blue")
            .says("session 3 died; locks of it that were broken: 1")
            .says("session 1 put green")
            .says("no value was torn, none went back, no update was lost")
            .says("color = green (update 3)");
    }
}

#[test]
fn many_clients_tear_nothing() {
    for (clients, keys) in [("4", "1"), ("2", "50")] {
        let bench = ["bench", "--patience", "60", "--operations", "150"];
        let arguments = [&bench[..], &["--clients", clients, "--keys", keys]].concat();
        let ended = kv_store(&arguments).succeeded().says(&format!(" puts by {clients} clients in "));
        ended.says("no value was torn, none went back, no update was lost");
    }
}

#[cfg(feature = "tokio")]
#[test]
fn many_clients_that_are_tasks_tear_nothing() {
    for (clients, keys) in [("4", "1"), ("2", "50")] {
        let bench = ["bench", "--async", "--patience", "60", "--operations", "150"];
        let arguments = [&bench[..], &["--clients", clients, "--keys", keys]].concat();
        let ended = kv_store(&arguments).succeeded().says(&format!(" puts by {clients} clients in "));
        ended.says("no value was torn, none went back, no update was lost");
    }
    let ended =
        kv_store(&["bench", "--async", "--slots", "2", "--keys", "3", "--operations", "50", "--patience", "60"]);
    ended.failed("kv_store: the table is full");
}

#[test]
fn a_full_table_is_one_line() {
    let ended = kv_store(&["bench", "--slots", "2", "--keys", "3", "--operations", "50", "--patience", "60"]);
    ended.failed("kv_store: the table is full");
}

#[test]
fn a_bad_argument_is_one_line() {
    kv_store(&["-h"]).succeeded().says("kv_store put KEY VALUE");
    for (arguments, why) in [
        (&["-z"] as &[&str], "invalid option '-z' (-h"),
        (&["take", "it"], "\"take\" is no command (-h"),
        (&["get"], "get takes one KEY (-h"),
        (&["hold", "one", "two"], "hold takes one KEY (-h"),
        (&["put", "key"], "put takes a KEY and a VALUE (-h"),
        (&["serve", "it"], "serve stands alone, without \"it\" (-h"),
        (&["get", "a key of more than 24 bytes"], "a key has up to 24 bytes, \"a key of more than 24 bytes\" has 27"),
        (&["put", "key", "123456789 123456789 123456789 123456789 123456789"], "a value has up to 48 bytes"),
        (&["bench", "--clients", "0"], "--clients takes a number from 1 to 1000"),
        (&["bench", "--seconds", "soon"], "--seconds takes a number from 1 to 86400, not \"soon\""),
        (
            &["hold", "key", "--async"],
            match cfg!(feature = "tokio") {
                true => "--async goes with get, put or bench (-h",
                false => "--async needs a build with --features tokio",
            },
        ),
        (&["serve", "-p", "0"], "-p takes a number from 1"),
        (&["serve", "--lease", "0"], "--lease takes a number from 1 to 86400"),
        (&["-d", "mlx9_9"], "no RDMA device has the name \"mlx9_9\""),
        (&["-d", "soft0", "serve"], "soft0 is a soft device, which no other process reaches"),
        (&["-d", "soft0", "bench", "--at", "localhost"], "soft0 is a soft device"),
    ] {
        kv_store(arguments).failed(&format!("kv_store: {why}"));
    }
}

/// A server on this device. Clients use the device that faces it, or the same device if there is none.
struct Served {
    server: Program,
    port: u16,
    device: String,
}

impl Served {
    /// Returns `None` if no other process can reach the device.
    fn new(sessions: &str) -> Option<Self> {
        Self::with(&["--clients", sessions])
    }

    fn with(options: &[&str]) -> Option<Self> {
        if !on_hardware() {
            println!("not covered here: needs an RDMA device (./x rxe)");
            return None;
        }
        let here = context().name().to_owned();
        let there = if here == "rxe0" && Context::open("rxe1").is_ok() { "rxe1".to_owned() } else { here.clone() };
        let port = free_port();
        let port_text = port.to_string();
        let arguments = [&["serve", "-d", &here, "-p", &port_text, "--patience", "60"], options].concat();
        let server = Program::start(example("kv_store"), &arguments).listens(port);
        Some(Self { server, port, device: there })
    }

    /// A client that waits for longer than by default, unless the arguments say how long.
    fn client(&self, arguments: &[&str]) -> Program {
        let port = self.port.to_string();
        let patience: &[&str] = if arguments.contains(&"--patience") { &[] } else { &["--patience", "60"] };
        Program::start(example("kv_store"), &[arguments, &["-d", &self.device, "-p", &port], patience].concat())
    }

    fn run(&self, arguments: &[&str]) -> Ended {
        self.client(arguments).end()
    }
}

#[test]
fn processes_share_a_table() {
    let Some(served) = Served::new("5") else { return };
    served.run(&["get", "color"]).failed("kv_store: there is no \"color\"");
    for value in ["red", "blue"] {
        served.run(&["put", "color", value]).succeeded();
    }
    assert_eq!(served.run(&["get", "color"]).succeeded().stdout, "blue\n");
    // The server ends after its fifth client, which is this one. The client that found nothing counts too, because it
    // also said bye.
    served.run(&["put", "", "of the empty key"]).succeeded();
    let server = served.server.end().succeeded();
    server.says("session 5 said bye").says("2 of 64 slots").says("  color = blue (update 2)");
}

/// Clients of both kinds, which speak to the same server.
#[cfg(feature = "tokio")]
#[test]
fn tasks_and_threads_share_a_table() {
    let Some(served) = Served::new("17") else { return };
    served.run(&["get", "color", "--async"]).failed("kv_store: there is no \"color\"");
    served.run(&["put", "color", "red"]).succeeded();
    assert_eq!(served.run(&["get", "color", "--async"]).succeeded().stdout, "red\n");
    served.run(&["put", "color", "blue", "--async"]).succeeded();
    assert_eq!(served.run(&["get", "color"]).succeeded().stdout, "blue\n");
    let bench = ["bench", "--at", "127.0.0.1", "--clients", "4", "--keys", "2", "--operations", "100"];
    let as_tasks = served.client(&[&bench[..], &["--async"]].concat());
    as_tasks.end().succeeded().says("no value was torn, none went back, no update was lost");
    served.run(&bench).succeeded().says("no value was torn, none went back, no update was lost");
    let server = served.server.end().succeeded();
    server.says("session 17 said bye").says("3 of 64 slots").says("  color = blue (update 2)");
}

#[cfg(feature = "tokio")]
#[test]
fn a_task_does_not_wait_for_a_lock_for_ever() {
    let Some(served) = Served::new("4") else { return };
    served.run(&["put", "color", "red", "--async"]).succeeded();
    let holder = served.client(&["hold", "color"]).has_said("session 2 holds the lock of \"color\"");
    served
        .run(&["put", "color", "early", "--async", "--patience", "10"])
        .failed("\"color\" was locked by session 2 for more than 10s");
    let waiting = served.client(&["put", "color", "blue", "--async"]);
    thread::sleep(Duration::from_millis(300));
    holder.kill();
    waiting.end().succeeded();
    let server = served.server.end().succeeded();
    server.says("session 2 died; locks of it that were broken: 1").says("  color = blue (update 2)");
}

/// The client watches its TCP connection, so it learns of the end before a request fails.
#[cfg(feature = "tokio")]
#[test]
fn a_task_notices_that_the_server_is_killed() {
    let Some(served) = Served::new("100") else { return };
    let client = served.client(&["bench", "--at", "127.0.0.1", "--async", "--seconds", "1000", "--patience", "60"]);
    let client = client.has_said("client 1 begins");
    thread::sleep(Duration::from_secs(1));
    let Served { server, .. } = served;
    server.kill();
    client.end().failed_for_a_dead_peer();
}

#[test]
fn a_client_that_is_killed_keeps_no_lock() {
    let Some(served) = Served::new("5") else { return };
    served.run(&["put", "color", "red"]).succeeded();
    let holder = served.client(&["hold", "color"]).has_said("session 2 holds the lock of \"color\"");
    assert_eq!(served.run(&["get", "color"]).succeeded().stdout, "red\n");
    served
        .run(&["put", "color", "early", "--patience", "10"])
        .failed("\"color\" was locked by session 2 for more than 10s");
    let waiting = served.client(&["put", "color", "blue"]);
    thread::sleep(Duration::from_millis(300));
    holder.kill();
    waiting.end().succeeded();
    let server = served.server.end().succeeded();
    server.says("session 2 died; locks of it that were broken: 1").says("  color = blue (update 2)");
}

#[test]
fn many_clients_of_another_process_tear_nothing() {
    let Some(served) = Served::new("12") else { return };
    let arguments = ["bench", "--at", "127.0.0.1", "--clients", "4", "--keys", "2", "--operations", "100"];
    // The second run continues with the table of the first. Each run connects six clients: four that work, one that
    // counts the updates before, and one that counts them after.
    for _ in 0..2 {
        served.run(&arguments).succeeded().says("no value was torn, none went back, no update was lost");
    }
    served.server.end().succeeded().says("2 of 64 slots");
}

#[test]
fn a_server_that_is_killed_is_noticed() {
    let Some(served) = Served::new("100") else { return };
    let client = served.client(&["bench", "--at", "127.0.0.1", "--seconds", "1000"]);
    let client = client.has_said("client 1 begins");
    thread::sleep(Duration::from_secs(1));
    let Served { server, .. } = served;
    server.kill();
    client.end().failed_for_a_dead_peer();
}

#[test]
fn a_server_goes_on_after_a_stranger() {
    let Some(served) = Served::new("2") else { return };
    let mut stranger = TcpStream::connect(("127.0.0.1", served.port)).unwrap();
    stranger.write_all(b"GET / HTTP/1.1\r\n").unwrap();
    let served = Served { server: served.server.has_said("session 1 failed: the other side is no kv_store"), ..served };
    served.run(&["put", "color", "red"]).succeeded();
    served.server.end().succeeded().says("  color = red (update 1)");
}

#[test]
fn a_server_ends_with_the_lease_of_its_table() {
    let Some(served) = Served::with(&["--clients", "100", "--lease", "30"]) else { return };
    served.run(&["put", "color", "red"]).succeeded();
    served.server.end().succeeded().says("  color = red (update 1)");
}

#[test]
fn a_server_ends_with_its_input() {
    if on_hardware() {
        // The standard input of the server is empty, so the server ends at once, before anybody writes to the table.
        let port = free_port().to_string();
        kv_store(&["serve", "-p", &port]).succeeded().says("the table at the end, 0 of 64 slots:");
    }
}
