//! Runs the examples as programs, and checks their output and their failures. They use the device under test.

use interlock::Device;
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use support::program::{Ended, Program, example, free_port};
use support::{Need, context, lacks_need, on_hardware};

fn pingpong(arguments: &[&str]) -> Ended {
    Program::run(example("rc_pingpong"), arguments)
}

/// The programs of the guide, and a line that each prints.
const GUIDE: [(&str, &str); 14] = [
    ("01_hello", "hello"),
    ("02_two_machines", "welcome: hello from the server"),
    ("03_one_sided", "2 lines: \"first line\", \"second line\""),
    ("04_rpc", "8 clients had 100 answers each"),
    ("05_threads", "8 threads played 4 games of 500 rounds"),
    ("06_event_loop", "a message: from the event loop"),
    ("07_recovery", "receives of 64 bytes: it has arrived"),
    ("08_memory", "scope: by scope"),
    ("09_lending", "window: by window"),
    ("10_from_c", "from C to here"),
    ("11_records", "heard: hello from the server"),
    ("12_async", "the answer: hello by a task"),
    ("13_async_server", "a client has gone: the peer has closed the connection"),
    ("14_async_many_clients", "and 16 of 16 buffers are home"),
];

#[test]
fn each_program_of_the_guide_runs_to_its_end() {
    for (name, says) in GUIDE {
        if name.contains("async") && !cfg!(feature = "tokio") {
            continue;
        }
        let ended = Program::run(example(&format!("guide_{name}")), &[]);
        if name.starts_with("14") && !context().promises().shared_receive_queues() {
            let says = "shared receive queues cannot be used";
            assert!(!ended.status.success() && ended.stderr.contains(says), "{ended:#?}");
            continue;
        }
        ended.succeeded().says(says);
    }
}

#[test]
fn each_program_of_the_guide_is_a_chapter_of_it() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let index = fs::read_to_string(root.join("docs/guide.md")).unwrap();
    let programs = fs::read_dir(root.join("examples/guide")).unwrap();
    let mut programs: Vec<_> = programs.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    programs.sort();
    assert_eq!(programs, GUIDE.map(|(name, _)| format!("{name}.rs")));
    for name in programs {
        assert!(index.contains(&format!("](../examples/guide/{name})")), "{name}");
        let program = fs::read_to_string(root.join("examples/guide").join(&name)).unwrap();
        assert!(program.lines().count() < 80, "{name} is too long to be typed in");
    }
}

#[cfg(feature = "tokio")]
#[test]
fn memory_of_the_server_is_written_by_the_client_and_handed_over() {
    if context().is_iwarp() {
        return; // iWARP needs rdma_cm, which this example does not use
    }
    Program::run(example("remote_memory"), &[]).succeeded().says("Returned: hello, memory of the server");
}

#[test]
fn pingpong_without_arguments_plays_on_the_device_there_is() {
    let name = context().name().to_owned();
    pingpong(&[])
        .succeeded()
        .says(&format!("{name} port 1, GID "))
        .says("8192000 bytes in ")
        .says("every byte checked");
}

#[test]
fn pingpong_connects_by_rdma_cm() {
    pingpong(&["-b", "-R", "-n", "50"]).succeeded().says("by rdma_cm").says("every byte checked");
    pingpong(&["-b", "-R", "-m", "1024"]).failed("rc_pingpong: -R takes no -m: rdma_cm chooses the path");
    pingpong(&["-b", "-R", "nowhere"]).failed("rc_pingpong: nowhere is no address");
    Program::run(example("uc_pingpong"), &["-R"]).failed("uc_pingpong: invalid option '-R'");
}

#[test]
fn an_iwarp_device_plays_by_rdma_cm_only() {
    let play = |name, arguments: &[&str]| Program::run_on_soft_iwarp(example(name), arguments);
    let refusal = "soft0 is an iWARP device, which needs rdma_cm to connect";
    play("rc_pingpong", &["-b"]).failed(refusal).failed("give both sides -R");
    play("uc_pingpong", &[]).failed(refusal);
    play("rc_pingpong", &["-b", "-R", "-n", "50"]).succeeded().says("every byte checked");
    play("perf", &["-n", "10"]).failed(refusal).failed("give -R");
    play("perf", &["-R", "lat", "write", "read", "-n", "10"]).succeeded().says("lat read");
}

#[test]
fn pingpong_takes_any_size_and_sleeps_if_told() {
    for size in ["1", "7", "64", "4095", "100000"] {
        pingpong(&["-b", "-e", "-n", "5", "-r", "3", "-s", size]).succeeded().says("every byte checked");
    }
    pingpong(&["-b", "-c", "-n", "5", "-r", "1", "-m", "256", "-l", "3"]).succeeded().says("path MTU 256");
}

#[test]
fn pingpong_on_shared_receive_queues_plays_on_the_device_there_is() {
    if lacks_need(Need::SharedReceives) {
        return;
    }
    let play = |arguments: &[&str]| Program::run(example("srq_pingpong"), arguments);
    play(&["-n", "100"])
        .succeeded()
        .says("100 messages of 4096 bytes each way on 16 queue pairs")
        .says("every byte checked");
    play(&["-q", "3", "-r", "3", "-s", "9000", "-n", "50"]).succeeded().says("every byte checked");
    play(&["-q", "3", "-r", "2"]).failed("-r takes at least as many receives as -q has pairs");
}

#[test]
fn unreliable_pingpongs_play_too() {
    for (name, sizes) in [("uc_pingpong", ["1", "4095", "100000"]), ("ud_pingpong", ["1", "64", "1024"])] {
        Program::run(example(name), &[]).succeeded().says("1000 iterations of ").says("every byte checked");
        for size in sizes {
            let arguments = ["-b", "-e", "-n", "5", "-r", "3", "-s", size];
            Program::run(example(name), &arguments).succeeded().says("every byte checked");
        }
        Program::run(example(name), &["-h"]).succeeded().says(&format!("  {name} HOST "));
        Program::run(example(name), &["-d", "soft0"]).failed(&format!("{name}: soft0 is a soft device"));
    }
    // A datagram can be at most as long as the MTU.
    let ended = Program::run(example("ud_pingpong"), &["-s", "4097"]);
    ended.failed("ud_pingpong: a datagram of 4097 bytes is more than the ").failed("give a lesser -s");
    Program::run(example("ud_pingpong"), &["-m", "256"]).failed("ud_pingpong: invalid option '-m'");
}

#[test]
fn help_is_no_error() {
    pingpong(&["-h"]).succeeded().says("--gid-idx");
    Program::run(example("devices"), &["--help"]).succeeded().says("--verbose");
}

#[test]
fn a_bad_argument_is_one_line() {
    for (arguments, why) in [
        (&["-z"] as &[&str], "invalid option '-z' (-h"),
        (&["--quick"], "invalid option '--quick' (-h"),
        (&["one", "two"], "unexpected argument \"two\" (-h"),
        (&["-d"], "missing argument for option '-d'"),
        (&["-s", "many"], "-s takes a number from 1 to 2147483648, not \"many\""),
        (&["-s", "0"], "-s takes a number from 1"),
        (&["-n", "0"], "-n takes a number from 1"),
        (&["-p", "65536"], "-p takes a number from 1 to 65535"),
        (&["-i", "0"], "-i takes a number from 1"),
        (&["-g", "-1"], "-g takes a number from 0 to 255"),
        (&["-l", "16"], "-l takes a number from 0 to 15"),
        (&["-m", "1000"], "-m takes 256, 512, 1024, 2048 or 4096, not 1000"),
        (&["-b", "somewhere"], "--both takes no host"),
    ] {
        pingpong(arguments).failed(&format!("rc_pingpong: {why}"));
    }
    Program::run(example("devices"), &["-z"]).failed("devices: invalid option '-z'");
}

#[test]
fn what_the_device_does_not_have_is_one_line() {
    let name = context().name().to_owned();
    pingpong(&["-d", "mlx9_9"]).failed("no RDMA device has the name \"mlx9_9\" (available: ").failed("soft0");
    pingpong(&["-b", "-g", "251"]).failed("no GID at index 251: no GID of port 1 fits what the program asked for");
    pingpong(&["-b", "-i", "77"]).failed(&format!("port 77 of {name}: ibv_query_port failed"));
    // Some devices can hold that many receives, so both results are correct.
    let many_receives = pingpong(&["-b", "-r", "40000", "-s", "1"]);
    if !many_receives.status.success() {
        many_receives.failed("completion queue");
    }
}

#[test]
fn a_soft_device_has_no_peer_elsewhere() {
    for arguments in [&["-d", "soft0"] as &[&str], &["-d", "soft0", "127.0.0.1"]] {
        pingpong(arguments).failed("soft0 is a soft device, which no other process reaches");
    }
}

#[test]
fn devices_shows_the_one_that_is_used() {
    let name = context().name().to_owned();
    for arguments in [&[] as &[&str], &["-v"]] {
        let ended =
            Program::run(example("devices"), arguments).succeeded().says(&format!("{name}  GUID 0x")).says("soft1 ");
        assert_eq!(on_hardware(), !ended.stdout.contains("rdma link add"), "{ended:#?}");
        assert_eq!(arguments.contains(&"-v"), ended.stdout.contains("GID index "), "{ended:#?}");
    }
}

/// Whether another process can reach the device, which the tests below need.
fn another_process_reaches_it() -> bool {
    if !on_hardware() {
        println!("not covered here: needs an RDMA device (./x rxe)");
    }
    on_hardware()
}

/// A server, connected to this test as its client.
fn server_and_stream(patience: &str) -> (Program, TcpStream) {
    let (name, port) = (context().name().to_owned(), free_port());
    let arguments = ["-d", &name, "-p", &port.to_string(), "--patience", patience];
    let server = Program::start(example("rc_pingpong"), &arguments).listens(port);
    (server, TcpStream::connect(("127.0.0.1", port)).unwrap())
}

/// A client, connected to this test as its server.
fn client_and_stream(patience: &str) -> (Program, TcpStream) {
    let (name, listener) = (context().name().to_owned(), TcpListener::bind(("127.0.0.1", 0)).unwrap());
    let port = listener.local_addr().unwrap().port().to_string();
    let arguments = ["-d", &name, "-p", &port, "--patience", patience, "127.0.0.1"];
    let client = Program::start(example("rc_pingpong"), &arguments);
    (client, listener.accept().unwrap().0)
}

/// The address of a queue pair that does not exist, behind a port that exists.
fn address_of_nobody() -> String {
    let port = context().active_port().unwrap();
    let gid = u128::from_be_bytes(port.gid().unwrap().gid.0);
    format!("{:04x}:{:06x}:{:06x}:{gid:032x}\0", port.lid(), 0xff_0000, 1)
}

/// Reads the address that the other side sends, which has 52 bytes.
fn hear_address(stream: &mut TcpStream) -> String {
    let mut bytes = [0; 52];
    stream.read_exact(&mut bytes).unwrap();
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn no_server_is_one_line() {
    if another_process_reaches_it() {
        let (name, port) = (context().name().to_owned(), free_port().to_string());
        pingpong(&["-d", &name, "-p", &port, "127.0.0.1"])
            .failed(&format!("cannot reach 127.0.0.1 on TCP port {port}: Connection refused"));
        pingpong(&["-d", &name, "-p", &port, "no such host"]).failed("cannot reach no such host on TCP port");
    }
}

#[test]
fn a_taken_tcp_port_is_one_line() {
    if another_process_reaches_it() {
        let listener = TcpListener::bind(("0.0.0.0", 0)).unwrap();
        let port = listener.local_addr().unwrap().port().to_string();
        // The program tries to listen on `[::]` and then on `0.0.0.0`. Both fail, because the listener above has the
        // port.
        let name = context().name().to_owned();
        pingpong(&["-d", &name, "-p", &port])
            .failed(&format!("cannot listen on TCP port {port}: Address already in use"));
    }
}

#[test]
fn a_peer_that_sends_rubbish_is_one_line() {
    if another_process_reaches_it() {
        let rubbish =
            ["GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nUser-Agent: none at all", &"0".repeat(52), &":".repeat(52)];
        for rubbish in rubbish {
            let (server, mut stream) = server_and_stream("60");
            stream.write_all(&rubbish.as_bytes()[..52]).unwrap();
            server.end().failed("the peer sent no address of a queue pair, but \"");
            let (client, mut stream) = client_and_stream("60");
            hear_address(&mut stream);
            stream.write_all(&rubbish.as_bytes()[..52]).unwrap();
            client.end().failed("the peer sent no address of a queue pair, but \"");
        }
        // A program of rdma-core that runs without -g sends a GID of zeros.
        let (server, mut stream) = server_and_stream("60");
        stream.write_all(format!("0000:000011:000001:{:032x}\0", 0).as_bytes()).unwrap();
        server.end().failed("the peer named no GID");
    }
}

#[test]
fn a_peer_that_goes_away_is_one_line() {
    if another_process_reaches_it() {
        let (server, mut stream) = server_and_stream("60");
        stream.write_all(b"0000:0000").unwrap();
        drop(stream);
        server.end().failed("waited for the peer's address: the peer closed the connection");

        let (server, mut stream) = server_and_stream("60");
        stream.write_all(address_of_nobody().as_bytes()).unwrap();
        hear_address(&mut stream);
        drop(stream);
        server.end().failed("waited for the peer to say that it is connected: ");

        let (client, stream) = client_and_stream("60");
        drop(stream);
        client.end().failed("waited for the peer's address: ");
    }
}

#[test]
fn a_peer_that_says_nothing_is_one_line() {
    if another_process_reaches_it() {
        let (server, stream) = server_and_stream("1");
        server.end().failed("waited for the peer's address: the peer says nothing");
        drop(stream);
        let (client, stream) = client_and_stream("1");
        client.end().failed("waited for the peer's address: the peer says nothing");
        drop(stream);
    }
}

#[test]
fn a_peer_that_does_not_play_is_one_line() {
    if another_process_reaches_it() {
        let (server, mut stream) = server_and_stream("10");
        stream.write_all(address_of_nobody().as_bytes()).unwrap();
        hear_address(&mut stream);
        stream.write_all(b"done\0").unwrap();
        server.end().failed("nothing happened for 10s, while waiting for message 0 of 1000 from the peer");

        let (client, mut stream) = client_and_stream("60");
        hear_address(&mut stream);
        stream.write_all(address_of_nobody().as_bytes()).unwrap();
        client.end().failed("retry count exceeded: the peer does not answer");

        // On a slow machine the client can fail for another reason first: it runs out of retries, or this test sends
        // the address too late. So try several times.
        let why = "nothing happened for 1s, while waiting for the acknowledgement of message 0 of 1000";
        let runs_out = (0..10).any(|_| {
            let (client, mut stream) = client_and_stream("1");
            hear_address(&mut stream);
            _ = stream.write_all(address_of_nobody().as_bytes());
            let ended = client.end().failed_for_one_of(&[why, "retry count exceeded", "the peer says nothing"]);
            ended.stderr.contains(why)
        });
        assert!(runs_out, "never {why:?}");
    }
}

#[test]
fn without_hardware_an_example_says_in_one_line_that_it_simulates() {
    let path = example("rc_pingpong").into_os_string().into_string().unwrap();
    let ended = Program::run("env", &["-u", "INTERLOCK_DEVICE", &path]).says("every byte checked");
    assert!(ended.status.success(), "{ended:#?}");
    // On a machine with RDMA hardware, the program uses either the hardware or the simulation. Its output says which.
    let is_simulated = ended.stdout.contains("soft0 port 1");
    assert!(is_simulated || !interlock::devices().unwrap().iter().all(Device::is_soft), "{ended:#?}");
    assert_eq!(ended.stderr.lines().count(), usize::from(is_simulated), "{ended:#?}");
    assert_eq!(
        ended.stderr.contains("no usable RDMA device: this runs on soft0, a simulated one"),
        is_simulated,
        "{ended:#?}"
    );
}
