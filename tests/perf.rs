//! The example `perf` as a program: its output and its failures. It uses the device that the other tests use.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::{env, fs, process};
use support::program::{Ended, Program, example, free_port};
use support::{Need, context, lacks_need, on_hardware};

fn perf(arguments: &[&str]) -> Ended {
    Program::run(example("perf"), arguments)
}

/// A temporary file that is deleted when this value is dropped.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        Self(env::temp_dir().join(format!("interlock-perf-{}-{name}", process::id())))
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }

    fn text(&self) -> String {
        fs::read_to_string(&self.0).unwrap()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        _ = fs::remove_file(&self.0);
    }
}

/// Returns the rest of `text` after one JSON value.
fn after_value(text: &str) -> Option<&str> {
    let text = text.trim_start();
    match text.chars().next()? {
        '{' => after_list(&text[1..], '}', |text| after_value(after_string(text)?.trim_start().strip_prefix(':')?)),
        '[' => after_list(&text[1..], ']', after_value),
        '"' => after_string(text),
        _ => {
            let end = text.find([',', '}', ']', '\n', ' ']).unwrap_or(text.len());
            let is_value = ["true", "false", "null"].contains(&&text[..end])
                || (text.starts_with(|first: char| first == '-' || first.is_ascii_digit())
                    && text[..end].parse::<f64>().is_ok());
            is_value.then_some(&text[end..])
        }
    }
}

fn after_string(text: &str) -> Option<&str> {
    let text = text.trim_start().strip_prefix('"')?;
    let end = text.find(['"', '\\', '\n']).filter(|end| text[*end..].starts_with('"'))?;
    Some(&text[end + 1..])
}

fn after_list(mut text: &str, end: char, item: impl Fn(&str) -> Option<&str>) -> Option<&str> {
    if let Some(rest) = text.trim_start().strip_prefix(end) {
        return Some(rest);
    }
    loop {
        text = item(text)?.trim_start();
        match text.strip_prefix(end) {
            Some(rest) => return Some(rest),
            None => text = text.strip_prefix(',')?,
        }
    }
}

#[test]
fn the_json_check_knows_json() {
    assert_eq!(after_value(r#" {"a": [1, 2.5e3, {}], "b": "x", "c": null} "#), Some(" "));
    for wrong in [r#"{"a": }"#, r#"{"a" 1}"#, "[1,]", "[1 2]", "{1: 2}", "[", "", "nan", r#"{"a": 1"#] {
        assert_eq!(after_value(wrong), None, "{wrong}");
    }
}

#[test]
fn without_arguments_everything_is_measured_here() {
    if lacks_need(Need::TwoQueues) {
        return;
    }
    let name = context().name().to_owned();
    let ended = perf(&["-n", "20"]).succeeded().says(&format!("{name} port 1, GID "));
    for measure in ["lat send: half", "lat write: half", "lat read: time", "bw send: in", "bw write: in", "bw read: in"]
    {
        assert!(ended.stdout.contains(measure), "{ended:#?}");
    }
    let rows = |size: &str| ended.stdout.lines().filter(|line| line.trim_start().starts_with(size)).count();
    assert_eq!((rows("64 "), rows("4096 "), rows("65536 ")), (6, 6, 6), "{ended:#?}");
    assert_eq!(on_hardware(), !ended.stdout.contains("say nothing about RDMA"), "{ended:#?}");
}

#[test]
fn it_connects_by_rdma_cm() {
    if lacks_need(Need::TwoQueues) {
        return;
    }
    let ended = perf(&["-R", "lat", "send", "bw", "write", "-n", "50", "-s", "64"]);
    ended.succeeded().says("lat send").says("bw write");
}

#[test]
fn files_hold_what_the_table_shows() {
    if lacks_need(Need::TwoQueues) {
        return;
    }
    let (json, csv, svg) = (Scratch::new("json"), Scratch::new("csv"), Scratch::new("svg"));
    let arguments =
        ["-n", "10", "-s", "2,1000", "--json", json.path(), "--csv", csv.path(), "--svg", svg.path(), "--quiet"];
    let ended = perf(&arguments).succeeded();
    assert_eq!(ended.stdout, "");

    let text = csv.text();
    let mut lines = text.lines();
    let header: Vec<_> = lines.next().unwrap().split(',').collect();
    assert_eq!(header[..6], ["device", "measure", "operation", "size_bytes", "iterations", "min_us"]);
    assert_eq!(header[header.len() - 2..], ["gigabits_per_second", "million_messages_per_second"]);
    let rows: Vec<Vec<_>> = lines.map(|line| line.split(',').collect()).collect();
    assert_eq!(rows.len(), 12, "{text}");
    for row in &rows {
        assert_eq!(row.len(), header.len(), "{text}");
        assert_eq!((row[0], row[4]), (context().name(), "10"), "{text}");
        let of = |name: &str| row[header.iter().position(|column| *column == name).unwrap()].parse::<f64>();
        if row[1] == "lat" {
            let order = ["min_us", "p50_us", "p90_us", "p99_us", "p99_9_us", "p99_99_us", "max_us"]
                .map(|name| of(name).unwrap());
            assert!(order.is_sorted() && order[0] > 0.0 && of("seconds").is_err(), "{text}");
        } else {
            assert!(of("mebibytes_per_second").unwrap() > 0.0 && of("p50_us").is_err(), "{text}");
        }
    }

    let text = json.text();
    assert_eq!(after_value(&text).map(str::trim), Some(""), "{text}");
    assert_eq!(text.matches("\"size_bytes\": 1000").count(), 6, "{text}");

    let text = svg.text();
    assert!(text.starts_with("<svg ") && text.ends_with("</svg>\n"), "{text}");
    assert_eq!(text.matches("<g ").count(), text.matches("</g>").count(), "{text}");
    assert_eq!(text.matches("<text ").count(), text.matches("</text>").count(), "{text}");
    assert!(text.matches("<polyline ").count() == 9 && !text.contains("NaN") && !text.contains("inf"), "{text}");
    assert!(["send p50", "read p99", "message size, bytes"].iter().all(|label| text.contains(label)), "{text}");
}

#[test]
fn any_size_depth_and_manner_of_waiting_will_do() {
    if lacks_need(Need::TwoQueues) {
        return;
    }
    perf(&["lat", "-s", "1,7,8,9,4097,100000", "-n", "5", "--event"]).succeeded();
    perf(&["bw", "-s", "1,4097,100000", "-n", "33", "-t", "1"]).succeeded();
    perf(&["bw", "-s", "9", "-n", "100", "-t", "7", "--event"]).succeeded();
    // Messages of at most 32 bytes are sent inline here.
    perf(&["-s", "1,32,33", "-n", "40", "-t", "9", "-I", "32"]).succeeded();
    let ended = perf(&["bw", "write", "-n", "1", "-a", "--patience", "60"]).succeeded();
    assert_eq!(ended.stdout.lines().filter(|line| line.ends_with(char::is_numeric)).count(), 23, "{ended:#?}");
}

/// The client's requests are awaited. Each line of the table stands for as many messages as the server has counted.
#[test]
#[cfg(feature = "tokio")]
fn a_client_may_await_its_requests() {
    if lacks_need(Need::TwoQueues) {
        return;
    }
    for manner in [&["--futures"] as &[&str], &["--futures", "--event"]] {
        let with = |arguments: &[&str]| perf(&[manner, arguments].concat()).succeeded();
        let ended = with(&["-n", "20", "-s", "1,64,5000"]);
        assert_eq!(ended.stdout.lines().filter(|line| line.ends_with(char::is_numeric)).count(), 18, "{ended:#?}");
        with(&["-s", "32,33", "-n", "40", "-t", "9", "-I", "32"]);
        with(&["bw", "-s", "64", "-n", "33", "-t", "1"]);
        with(&["-R", "lat", "bw", "send", "-s", "64", "-n", "20"]);
    }
    with_a_duration(&["--futures"]);
}

fn with_a_duration(manner: &[&str]) {
    perf(&[manner, &["lat", "send", "-s", "8", "-D", "1"]].concat()).succeeded().says("lat send");
    perf(&[manner, &["bw", "read", "-s", "8", "-D", "1"]].concat()).succeeded().says("bw read");
}

#[test]
fn a_duration_ends_by_itself() {
    if lacks_need(Need::TwoQueues) {
        return;
    }
    with_a_duration(&[]);
}

#[test]
fn help_is_no_error() {
    perf(&["-h"]).succeeded().says("--duration");
}

#[test]
fn a_bad_argument_is_one_line() {
    for (arguments, why) in [
        (&["-z"] as &[&str], "invalid option '-z' (-h"),
        (&["one", "two"], "unexpected argument \"two\" (-h"),
        (
            &["lat", "frob"],
            "\"frob\" is neither lat, bw, send, write, read nor server, and no host of that name is known: ",
        ),
        #[cfg(feature = "tokio")]
        (&["server", "--futures"], "--futures is for the client"),
        #[cfg(not(feature = "tokio"))]
        (&["--futures"], "--futures needs tokio"),
        (&["server", "lat"], "a server does what its client asks for"),
        (&["-s", "64,"], "-s takes numbers of bytes from 1 to 1073741824, separated by commas, not \"64,\""),
        (&["-I", "5000"], "-I takes a number from 0 to 4096"),
        (&["-s", "0"], "-s takes numbers of bytes from 1"),
        (&["-n", "0"], "-n takes a number from 1"),
        (&["-D", "0"], "-D takes a number from 1"),
        (&["-t", "0"], "-t takes a number from 1 to 32768"),
        (&["-p", "65536"], "-p takes a number from 1 to 65535"),
        (&["-g", "-1"], "-g takes a number from 0 to 255"),
        (&["-d", "mlx9_9"], "no RDMA device has the name \"mlx9_9\" (available: "),
        (&["-g", "251"], "no GID at index 251: "),
        (&["-n", "1", "--csv", "/nowhere/at/all"], "cannot write /nowhere/at/all: "),
    ] {
        perf(arguments).failed(&format!("perf: {why}"));
    }
    if on_hardware() {
        perf(&["-n", "1", "127.0.0.1", "-p", &free_port().to_string()]).failed("cannot reach 127.0.0.1 on TCP port ");
    } else {
        for arguments in [&["server"] as &[&str], &["127.0.0.1"]] {
            perf(arguments).failed("is a soft device, which no other process reaches");
        }
    }
}

/// Whether another process can reach the device, which the following tests need.
fn another_process_reaches_it() -> bool {
    if !on_hardware() {
        println!("not covered here: needs an RDMA device (./x rxe)");
    }
    on_hardware()
}

/// Starts a server; returns it with its port when it listens.
fn server() -> (Program, String) {
    let port = free_port();
    let number = port.to_string();
    let server = Program::start(example("perf"), &["server", "-p", &number, "--patience", "60"]).listens(port);
    (server, number)
}

#[test]
fn two_processes_measure_everything() {
    if !another_process_reaches_it() {
        return;
    }
    for manner in [&[] as &[&str], &["--event"]] {
        let (server, port) = server();
        let arguments = [&["-p", &port, "-s", "8,5000", "-n", "50", "127.0.0.1"], manner].concat();
        let ended = perf(&arguments).succeeded();
        assert_eq!(ended.stdout.lines().filter(|line| line.trim_start().starts_with("5000 ")).count(), 6, "{ended:#?}");
        server.end().succeeded();
    }
}

/// The version of the records that the two ends of `perf` exchange.
const VERSION: u8 = 3;

#[test]
fn a_server_refuses_rubbish_in_one_line() {
    if !another_process_reaches_it() {
        return;
    }
    let head = |version: u8, kind: u8| [&b"IPRF"[..], &[version, kind, 0, 0], &[0; 8]].concat();
    for (bytes, why) in [
        (
            b"GET / HTTP/1.1\r\n\r\n".to_vec(),
            "the other side is no perf of this library: it said \"GET / HTTP/1.1\\r\\n\"",
        ),
        (head(9, 1), "the other side talks version 9; this one talks 3"),
        (head(VERSION, 77), "the other side sent a record of unknown kind 77"),
        (head(VERSION, 2)[..9].to_vec(), "waited for what to measure: the other side closed the connection"),
        ([head(VERSION, 1), vec![0xff; 12]].concat(), "the other side asks for what this one does not know"),
        (
            [head(VERSION, 1), vec![0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 1], vec![0; 58]].concat(),
            "the other side's queue pair: ",
        ),
        (head(VERSION, 4), "the other side speaks out of turn"),
    ] {
        let (server, port) = server();
        let mut stream = TcpStream::connect(("127.0.0.1", port.parse().unwrap())).unwrap();
        stream.write_all(&bytes).unwrap();
        drop(stream);
        server.end().failed(why);
    }
}

#[test]
fn a_client_refuses_rubbish_and_passes_complaints_on() {
    if !another_process_reaches_it() {
        return;
    }
    let complaint = [&b"IPRF"[..], &[VERSION, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7], b"no\nluck"].concat();
    for (bytes, why) in [
        (b"220 mail.example ready\r\n".to_vec(), "the other side is no perf of this library"),
        (complaint, "the other side failed: no luck"),
        (Vec::new(), "the other side says nothing"),
    ] {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port().to_string();
        let patience = if bytes.is_empty() { "1" } else { "60" };
        let client = Program::start(example("perf"), &["lat", "-p", &port, "--patience", patience, "127.0.0.1"]);
        let mut stream = listener.accept().unwrap().0;
        stream.write_all(&bytes).unwrap();
        client.end().failed(why);
        _ = stream.read(&mut [0]);
    }
}

#[test]
fn an_end_that_is_killed_is_noticed() {
    if !another_process_reaches_it() {
        return;
    }
    for measure in ["lat", "bw"] {
        let (server, port) = server();
        let arguments = [measure, "send", "-p", &port, "-D", "1000", "--patience", "3", "127.0.0.1"];
        let client = Program::start(example("perf"), &arguments).has_said(measure);
        std::thread::sleep(std::time::Duration::from_secs(1));
        server.kill();
        client.end().failed_for_a_dead_peer();
    }
}
