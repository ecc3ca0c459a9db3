//! Runs the examples against `ibv_rc_pingpong` of rdma-core and its variants for UC, UD and shared receive queues, and
//! against each other in two processes.
//!
//! The C programs send from the buffer that they receive into, so they echo. Our side compares every byte that comes
//! back.

use interlock::Context;
use std::path::PathBuf;
use std::time::Duration;
use std::{env, thread};
use support::program::{Ended, Program, example, free_port};
use support::{context, on_hardware};

const ECHOED: &str = "every byte checked; the peer echoed";
const PLAYED: &str = "every byte checked; the peer sent the pattern of this program";

/// The devices of the two sides, each with a GID index, as arguments that both programs take.
struct Devices {
    server: [String; 4],
    client: [String; 4],
}

/// Returns the devices, or `None` if no other process can reach the device under test.
fn devices() -> Option<Devices> {
    let required = env::var("INTERLOCK_RXE").is_ok_and(|value| value == "1");
    let missing = ["rc", "uc", "ud"].map(theirs).into_iter().find(|path| !path.exists());
    if !on_hardware() || missing.is_some() {
        assert!(!required, "INTERLOCK_RXE=1, but there is no RDMA device, or missing is {missing:?}");
        println!("not covered here: needs an RDMA device (./x rxe), and ibv_rc_pingpong and its like");
        return None;
    }
    let here = context();
    // `tests/rxe/devices` makes two devices that are connected to each other. Any other device talks to itself.
    let there =
        if here.name() == "rxe0" { Context::open("rxe1").unwrap_or_else(|_| here.clone()) } else { here.clone() };
    Some(Devices { server: arguments(&here), client: arguments(&there) })
}

fn arguments(context: &Context) -> [String; 4] {
    let row = context.active_port().unwrap().gid().expect("a port with a GID").index();
    ["-d".to_owned(), context.name().to_owned(), "-g".to_owned(), row.to_string()]
}

/// The rdma-core program for a transport.
fn theirs(letters: &str) -> PathBuf {
    let name = format!("ibv_{letters}_pingpong");
    let path = env::var_os("PATH").unwrap_or_default();
    let found = env::split_paths(&path).map(|folder| folder.join(&name)).find(|path| path.exists());
    found.unwrap_or_else(|| name.into())
}

/// Our example for a transport.
fn ours(letters: &str) -> PathBuf {
    example(&format!("{letters}_pingpong"))
}

fn c_program() -> PathBuf {
    theirs("rc")
}

fn our_program() -> PathBuf {
    ours("rc")
}

/// Starts a server, waits until it listens, and starts a client.
fn start(devices: &Devices, server: (PathBuf, &[&str]), client: (PathBuf, &[&str])) -> (Program, Program) {
    let port = free_port();
    let number = port.to_string();
    let run = |(program, own): (PathBuf, &[&str]), device: &[String; 4], host: &[&str]| {
        let device = device.each_ref().map(String::as_str);
        Program::start(program, &[&device[..], &["-p", &number], own, host].concat())
    };
    let server = run(server, &devices.server, &[]).listens(port);
    (server, run(client, &devices.client, &["127.0.0.1"]))
}

/// Runs both programs to their end.
fn play(server: (PathBuf, &[&str]), client: (PathBuf, &[&str])) -> Option<(Ended, Ended)> {
    let (server, client) = start(&devices()?, server, client);
    let (client, server) = client.end_with(server);
    print!("{}\n{}\n{}\n{}", server.line, server.stdout, client.line, client.stdout);
    if !(server.status.success() && client.status.success()) {
        // The stderr of one side can explain why the other side failed.
        eprintln!("{server:#?}\n{client:#?}");
    }
    Some((server.succeeded(), client.succeeded()))
}

#[test]
fn our_server_plays_with_the_c_client() {
    if let Some((server, client)) = play((our_program(), &[]), (c_program(), &[])) {
        server.says("1000 iterations of 4096 bytes each way").says(ECHOED);
        client.says("1000 iters in ").says("8192000 bytes in ");
    }
}

#[test]
fn our_client_plays_with_the_c_server() {
    let arguments = ["-n", "200"];
    if let Some((server, client)) = play((c_program(), &arguments), (our_program(), &arguments)) {
        server.says("200 iters in ").says("1638400 bytes in ");
        client.says("200 iterations of 4096 bytes each way").says(ECHOED);
    }
}

#[test]
fn the_c_server_finds_our_data_valid() {
    let arguments = ["-c", "-n", "100", "-s", "20000"];
    if let Some((server, client)) = play((c_program(), &arguments), (our_program(), &arguments)) {
        assert!(!server.stdout.contains("invalid data"), "{server:#?}");
        client.says(ECHOED);
    }
    if let Some((server, client)) = play((our_program(), &arguments), (c_program(), &arguments)) {
        server.says(ECHOED);
        client.says("100 iters in ");
    }
}

#[test]
fn one_wrong_byte_is_noticed() {
    let Some(devices) = devices() else { return };
    // With -c, the C client sends 0 as the first byte of its first message. Our server runs without -c, so it expects
    // 0x7b there and reports an error.
    let (server, client) = start(&devices, (our_program(), &["-s", "4000"]), (c_program(), &["-s", "4000", "-c"]));
    server.end().failed("message 0 of the peer is not what was sent: byte 0 is 0x00 instead of 0x7b");
    drop(client);
}

#[test]
fn long_messages_and_short_ones_go_to_the_c_program_and_back() {
    for (size, mtu) in [("100001", "4096"), ("4097", "256"), ("64", "1024")] {
        let arguments = ["-n", "50", "-e", "-r", "500", "-s", size, "-m", mtu];
        if let Some((_, client)) = play((c_program(), &arguments), (our_program(), &arguments)) {
            client.says(ECHOED);
        }
        if let Some((server, _)) = play((our_program(), &arguments), (c_program(), &arguments)) {
            server.says(ECHOED);
        }
    }
}

#[test]
fn two_processes_of_ours_play() {
    for arguments in [&["-n", "200"] as &[&str], &["-n", "200", "-e"]] {
        if let Some((server, client)) = play((our_program(), arguments), (our_program(), arguments)) {
            server.says("200 iterations of 4096 bytes each way").says(PLAYED);
            client.says("200 iterations of 4096 bytes each way").says(PLAYED);
        }
    }
}

#[test]
fn pairs_on_shared_receive_queues_play_with_the_c_program() {
    let (c_program, ours) = (c_program().with_file_name("ibv_srq_pingpong"), example("srq_pingpong"));
    for (arguments, says) in [
        (&["-n", "300"] as &[&str], "300 messages of 4096 bytes each way on 16 queue pairs"),
        (&["-q", "5", "-r", "7", "-s", "20001", "-n", "100"], "100 messages of 20001 bytes each way on 5 queue pairs"),
    ] {
        // With -c, the C program checks the first byte of each page.
        let checks = [arguments, &["-c"]].concat();
        if let Some((server, client)) = play((c_program.clone(), &checks), (ours.clone(), arguments)) {
            assert!(!server.stdout.contains("invalid data"), "{server:#?}");
            client.says(says).says("every byte checked");
        }
        if let Some((server, client)) = play((ours.clone(), arguments), (c_program.clone(), &checks)) {
            assert!(!client.stdout.contains("invalid data"), "{client:#?}");
            server.says(says).says("every byte checked");
        }
        if let Some((server, client)) = play((ours.clone(), arguments), (ours.clone(), arguments)) {
            server.says(says);
            client.says(says);
        }
    }
}

#[test]
fn sides_that_disagree_about_the_size_say_so() {
    let Some(devices) = devices() else { return };
    let (server, client) = start(&devices, (our_program(), &["-s", "64"]), (our_program(), &["-s", "65"]));
    server.end().failed("a message longer than 64 bytes came: give both sides the same -s: Receive on queue pair 0x");
    client.end().failed("Send on queue pair 0x").failed("remote ");

    for client in [our_program(), c_program()] {
        let (server, client) = start(&devices, (our_program(), &["-s", "65"]), (client, &["-s", "64"]));
        server.end().failed("message 0 of the peer has 64 bytes instead of 65: give both sides the same -s");
        // Without its peer the C program might wait for ever, so the drop kills it.
        drop(client);
    }
}

#[test]
fn a_peer_that_is_killed_is_noticed() {
    let Some(devices) = devices() else { return };
    for server in [our_program(), c_program()] {
        let ours = ["-n", "1000000000", "-e", "--patience", "10"];
        let (server, client) = start(&devices, (server, &ours[..2]), (our_program(), &ours));
        let client = client.has_said("remote address");
        thread::sleep(Duration::from_secs(1));
        server.kill();
        // Which error the client reports depends on the moment of the kill and on the device.
        client.end().failed_for_a_dead_peer();
    }
}

/// Each program takes its turn as the server. The C server checks the bytes that arrive; our side checks every byte
/// that comes back.
#[test]
fn unreliable_transports_play_with_the_c_program() {
    for (letters, bytes) in [("uc", 1_638_400), ("ud", 409_600)] {
        // Two programs that poll without a pause are slow on few processors, so the number of messages is small.
        let (plain, checked) = (["-n", "200"], ["-n", "200", "-c"]);
        if let Some((server, client)) = play((ours(letters), &plain), (theirs(letters), &plain)) {
            server.says("200 iterations of ").says(ECHOED).says(&format!("as ibv_{letters}_pingpong does"));
            client.says("200 iters in ").says(&format!("{bytes} bytes in "));
        }
        if let Some((server, client)) = play((theirs(letters), &checked), (ours(letters), &checked)) {
            assert!(!server.stdout.contains("invalid data"), "{server:#?}");
            server.says("200 iters in ").says(&format!("{bytes} bytes in "));
            client.says("200 iterations of ").says(ECHOED);
        }
        if let Some((server, client)) = play((ours(letters), &checked), (theirs(letters), &checked)) {
            server.says(ECHOED);
            client.says("200 iters in ");
        }
    }
}

#[test]
fn unreliable_messages_of_any_size_go_to_the_c_program_and_back() {
    // A datagram is at most as long as the MTU, so none is longer than 4096 bytes. Over `uc` a message is lost if one
    // of its packets is lost, so even the long messages have no more than 25 packets.
    let sizes =
        [("uc", "100001", "4096"), ("uc", "4097", "256"), ("uc", "64", "1024"), ("ud", "4096", ""), ("ud", "64", "")];
    for (letters, size, mtu) in sizes {
        let all = ["-n", "50", "-e", "-r", "500", "-s", size, "-m", mtu];
        let arguments = if mtu.is_empty() { &all[..7] } else { &all };
        if let Some((_, client)) = play((theirs(letters), arguments), (ours(letters), arguments)) {
            client.says(&format!("50 iterations of {size} bytes each way")).says(ECHOED);
        }
        if let Some((server, _)) = play((ours(letters), arguments), (theirs(letters), arguments)) {
            server.says(&format!("50 iterations of {size} bytes each way")).says(ECHOED);
        }
    }
}

#[test]
fn two_processes_of_ours_play_unreliably() {
    for letters in ["uc", "ud"] {
        for arguments in [&["-n", "200"] as &[&str], &["-n", "200", "-e"]] {
            if let Some((server, client)) = play((ours(letters), arguments), (ours(letters), arguments)) {
                server.says("200 iterations of ").says(PLAYED);
                client.says("200 iterations of ").says(PLAYED);
            }
        }
    }
}

#[test]
fn an_unreliable_peer_that_is_killed_is_missed() {
    let Some(devices) = devices() else { return };
    for letters in ["uc", "ud"] {
        let arguments = ["-n", "1000000000", "-e", "--patience", "5"];
        let (server, client) = start(&devices, (theirs(letters), &arguments[..2]), (ours(letters), &arguments));
        let client = client.has_said("remote address");
        thread::sleep(Duration::from_secs(1));
        server.kill();
        // A slow client perhaps has not told the server yet that it is connected. Then it reports this error.
        let is_too_early = "cannot tell the peer";
        client
            .end()
            .failed_for_one_of(&["nothing happened for 5s, while waiting for message ", is_too_early])
            .failed_for_one_of(&["(a lost message is not sent again", is_too_early]);
    }
}

#[test]
fn unreliable_sides_that_disagree_about_the_size_say_so() {
    let Some(devices) = devices() else { return };
    for letters in ["uc", "ud"] {
        let (short, long) = (["-e", "-s", "64", "--patience", "5"], ["-e", "-s", "65", "--patience", "5"]);
        let patient = ["-e", "-s", "65", "--patience", "60"];
        let (server, client) = start(&devices, (ours(letters), &patient), (ours(letters), &short));
        server.end().failed("message 0 of the peer has 64 bytes instead of 65: give both sides the same -s");
        client
            .end()
            .failed("nothing happened for 5s, while waiting for message 0")
            .failed("give both sides the same -s");
        // Here the message is too long for the receive. The device either drops the message or reports an error.
        let (server, client) = start(&devices, (ours(letters), &short), (ours(letters), &long));
        server.end().failed_for_one_of(&["nothing happened for 5s", "a message longer than 64 bytes came"]);
        client.end().failed("nothing happened for 5s");
    }
}
