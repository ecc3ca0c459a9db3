//! Checks the documents against the project: the tests that they name exist, and no case is left out.
//!
//! A document names a test in backticks, as `tests/faults.rs::name`, and a program that must not compile by its file in
//! `ui-tests`.

mod rust;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;

use rust::Body;

/// The ids of the hazard log.
const HAZARDS: [(&str, usize); 2] = [("HZ", 25), ("AH", 5)];

/// How many cases docs/conformance.md has.
const CASES: usize = 186;

/// How many cases of connections by address the document has besides: those with a number after `CM`.
const CASES_BY_ADDRESS: usize = 49;

/// The test programs that run each of their tests a second time, on extended completion queues.
const EXTENDED: [&str; 10] = [
    "attacks",
    "events",
    "exchange",
    "faults",
    "lifecycle",
    "shared",
    "shared_attacks",
    "shared_unreliable",
    "unreliable",
    "windows",
];

/// The soundness holes of earlier libraries.
const HOLES: [&str; 28] = [
    "J-1", "J-2", "J-3", "J-4", "J-5", "R-1", "R-2", "R-3", "R-4", "R-5", "R-6", "R-7", "S-1", "S-2", "S-3", "S-4",
    "S-5", "S-6", "S-7", "A-1", "A-2", "A-3", "A-4", "rdma-io", "rrddmma", "Nugine", "ruapc-1", "ruapc-2",
];

/// The public interface of async-rdma 0.5: types, and functions that have no other name in another type.
const ASYNC_RDMA: [&str; 109] = [
    "RdmaBuilder",
    "Rdma",
    "RdmaListener",
    "DeviceList",
    "Device",
    "Guid",
    "Gid",
    "AccessFlag",
    "ConnectionType",
    "PollingTriggerType",
    "ManualTrigger",
    "LocalMr",
    "LocalMrSlice",
    "LocalMrSliceMut",
    "LocalMrReadAccess",
    "LocalMrWriteAccess",
    "RemoteMr",
    "RemoteMrSlice",
    "RemoteMrSliceMut",
    "RemoteMrReadAccess",
    "RemoteMrWriteAccess",
    "MrToken",
    "MRManageStrategy",
    "QueuePairEndpoint",
    "MTU",
    "QueuePairState",
    "build",
    "connect",
    "listen",
    "bind",
    "accept",
    "cm_connect",
    "ibv_connect",
    "new_connect",
    "get_qp_endpoint",
    "get_cur_qp_state",
    "query_qp_state",
    "get_last_ibv_event_type",
    "set_dev",
    "set_cq_size",
    "set_max_cqe",
    "set_gid_index",
    "set_port_num",
    "set_conn_type",
    "set_raw",
    "set_qp_max_send_wr",
    "set_qp_max_recv_wr",
    "set_qp_max_send_sge",
    "set_qp_max_recv_sge",
    "set_qp_access",
    "set_mr_access",
    "set_mr_strategy",
    "set_max_message_length",
    "set_max_rmr_access",
    "set_max_dest_rd_atomic",
    "set_min_rnr_timer",
    "set_rq_psn",
    "set_max_rd_atomic",
    "set_retry_cnt",
    "set_rnr_retry",
    "set_sq_psn",
    "set_timeout",
    "set_service_level",
    "set_src_path_bits",
    "set_static_rate",
    "set_flow_label",
    "set_hop_limit",
    "set_traffic_class",
    "set_pkey_index",
    "set_mtu",
    "set_imm_flag_in_wc",
    "set_cc_evnet_timeout",
    "set_polling_trigger",
    "set_new_qp_access",
    "set_new_max_rmr_access",
    "set_new_port_num",
    "set_new_pd",
    "alloc_local_mr",
    "alloc_local_mr_uninit",
    "alloc_local_mr_with_access",
    "send",
    "send_raw",
    "send_with_imm",
    "send_raw_with_imm",
    "receive",
    "receive_raw",
    "receive_with_imm",
    "receive_raw_with_imm",
    "receive_raw_fn",
    "receive_raw_with_imm_fn",
    "receive_write_imm",
    "read",
    "write",
    "write_with_imm",
    "atomic_cas",
    "request_remote_mr",
    "request_remote_mr_with_timeout",
    "send_local_mr",
    "send_local_mr_with_timeout",
    "send_remote_mr",
    "receive_local_mr",
    "receive_remote_mr",
    "poll",
    "get_manual_trigger",
    "pull",
    "get",
    "get_mut",
    "get_unchecked",
    "timeout_check",
];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn text(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn documents() -> Vec<String> {
    let docs = fs::read_dir(root().join("docs")).unwrap().map(|entry| entry.unwrap().file_name());
    let mut all: Vec<String> = docs.map(|name| format!("docs/{}", name.to_str().unwrap())).collect();
    all.extend(["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"].map(str::to_owned));
    all
}

/// The texts in backticks outside of code blocks.
fn quoted(document: &str) -> Vec<&str> {
    let prose = document.split("\n```").step_by(2);
    prose.flat_map(|part| part.split('`').skip(1).step_by(2)).collect()
}

/// The texts in backticks that name a test, or a program that must not compile.
fn named_tests(document: &str) -> Vec<&str> {
    let is_test = |name: &&str| name.contains(".rs::") || (name.starts_with("ui-tests/") && name.ends_with(".rs"));
    quoted(document).into_iter().filter(is_test).collect()
}

/// Those texts in `quoted` that name a script in which programs of other projects take part.
fn named_scripts(document: &str) -> Vec<&str> {
    quoted(document).into_iter().filter(|name| name.starts_with("tests/rxe/")).collect()
}

/// The reason why the name of a test is wrong; `None` if it is right.
fn flaw(name: &str) -> Option<String> {
    let Some((file, function)) = name.split_once("::") else {
        let case = root().join(name);
        let kept = case.with_extension("stderr");
        return (!case.is_file() || !kept.is_file()).then(|| format!("{name}: no such case, or no message of it"));
    };
    if !root().join(file).is_file() {
        return Some(format!("{name}: no such file"));
    }
    let Some(test) = rust::tests(&rust::parse(file)).into_iter().find(|test| test.name == function) else {
        return Some(format!("{name}: no such test"));
    };
    // An ignored test shows something only if `./x` runs it on soft-RoCE. `./x` runs those that are in `rdma_core/` or
    // have `rdma_core` in their name.
    let is_run = !test.is_ignored || file.starts_with("src/provider/rdma_core/") || function.contains("rdma_core");
    (!is_run).then(|| format!("{name}: an ignored test"))
}

/// The sections of the hazard log: id, status, text.
fn hazards() -> Vec<(String, String, String)> {
    let log = text("docs/hazards.md");
    let sections = log.split("\n## ").skip(1).map(|section| {
        let id = section.split_once(' ').unwrap().0.to_owned();
        let status = section.lines().find_map(|line| line.strip_prefix("Status: "));
        (id.clone(), status.unwrap_or_else(|| panic!("{id} has no status")).to_owned(), section.to_owned())
    });
    sections.collect()
}

#[test]
fn each_item_of_async_rdma_has_a_place_here() {
    let page = text("docs/from-async-rdma.md");
    let rows = page.lines().filter(|line| line.starts_with("| `") || line.starts_with("| the ")).count();
    let first =
        page.lines().filter_map(|line| line.strip_prefix("| ")?.split(" | ").next()).collect::<Vec<_>>().join(" ");
    let named: BTreeSet<&str> = first.split(|c: char| !c.is_alphanumeric() && c != '_').collect();
    let missing: Vec<&str> = ASYNC_RDMA.into_iter().filter(|item| !named.contains(item)).collect();
    assert!(missing.is_empty() && rows > 50, "{missing:?}, {rows} rows");
}

/// Whether a file of `src` is for tests only.
fn is_unit_test(file: &str) -> bool {
    file.ends_with("/tests.rs") || file.ends_with("/models.rs") || file.contains("/tests/")
}

/// The Rust files of a folder and of the folders in it, with their text.
fn rust_files(folder: &str) -> BTreeMap<String, String> {
    let (mut folders, mut all) = (vec![PathBuf::from(folder)], BTreeMap::new());
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(root().join(&folder)).unwrap() {
            let path = folder.join(entry.unwrap().file_name());
            if root().join(&path).is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|found| found == "rs") {
                let name = path.to_str().unwrap().to_owned();
                all.insert(name.clone(), text(&name));
            }
        }
    }
    all
}

#[test]
fn each_hazard_is_listed_once() {
    let expected: Vec<String> =
        HAZARDS.iter().flat_map(|(kind, count)| (1..=*count).map(move |number| format!("{kind}-{number}"))).collect();
    let listed: Vec<String> = hazards().into_iter().map(|(id, ..)| id.replace("-0", "-")).collect();
    assert_eq!(listed, expected);
}

#[test]
fn each_status_has_what_it_needs() {
    let mut summary: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (id, status, section) in hazards() {
        let (tests, missing) = (named_tests(&section).len(), section.contains("\nMissing: "));
        match status.as_str() {
            "covered" => assert!(tests > 0 && !missing, "{id} is not covered"),
            "partly" => assert!(tests > 0 && missing, "{id}: which tests, and what is missing?"),
            "not yet" => assert!(missing, "{id}: what is missing?"),
            "integrator" => assert!(section.contains("Duty: "), "{id}: what is the duty?"),
            other => panic!("{id} has the status {other:?}"),
        }
        summary.entry(status).or_default().push(id);
    }
    let log = text("docs/hazards.md");
    for (status, ids) in summary {
        let row = format!("| {status} | {} |", ids.join(", "));
        assert!(log.contains(&row), "the table at the top should say: {row}");
    }
}

/// The sections of docs/failures.md that explain a failure: the heading as links spell it, and the names in the first
/// sentence. The text of such a section begins with the name of the failure in code.
fn sections_on_failures() -> BTreeMap<String, Vec<String>> {
    let page = text("docs/failures.md");
    let sections = page.split("\n### ").skip(1).map(|section| section.split_once("\n\n").expect("a text"));
    let failures = sections.filter(|(_, text)| text.starts_with('`'));
    let names = |text: &str| {
        let (first, _) = text.split_once("`. ").or_else(|| text.split_once("`.\n")).unwrap_or((text, ""));
        first.split('`').skip(1).step_by(2).map(str::to_owned).collect()
    };
    failures.map(|(heading, text)| (heading.to_lowercase().replace(' ', "-"), names(text))).collect()
}

fn headings_of_failures() -> BTreeSet<String> {
    sections_on_failures().into_keys().collect()
}

#[test]
fn each_error_text_leads_to_a_heading_and_each_heading_has_an_error_text() {
    let mut named = BTreeSet::new();
    for (file, source) in rust_files("src") {
        for rest in source.split("docs/failures.md#").skip(1) {
            let end = rest.find(|at: char| !at.is_ascii_alphanumeric() && at != '-').expect("the end of a text");
            assert!(headings_of_failures().contains(&rest[..end]), "{file}: no heading #{}", &rest[..end]);
            named.insert(rest[..end].to_owned());
        }
    }
    assert_eq!(named, headings_of_failures(), "each failure of docs/failures.md is named by the text of an error");
}

#[test]
fn each_section_on_failures_begins_with_the_errors_whose_texts_name_it() {
    let mut named: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (file, _) in rust_files("src") {
        for (name, text) in rust::error_texts(&rust::parse(&file)) {
            for rest in text.split("docs/failures.md#").skip(1) {
                let end = rest.find(|at: char| !at.is_ascii_alphanumeric() && at != '-').expect("the end of a text");
                named.entry(rest[..end].to_owned()).or_default().push(name.clone());
            }
        }
    }
    let sections = sections_on_failures();
    for (heading, mut errors) in named {
        // A section can also begin with variants of `PostError`, whose texts are not in attributes, and with modules,
        // whose names are in lower case. These are not compared.
        let is_error = |name: &&String| {
            !name.starts_with("PostError::")
                && name.rsplit("::").next().is_some_and(|last| last.starts_with(char::is_uppercase))
        };
        let written: Vec<&String> = sections[&heading].iter().filter(is_error).collect();
        for name in &written {
            let at = errors.iter().position(|error| name.ends_with(&**error));
            errors.remove(at.unwrap_or_else(|| panic!("the text of {name} does not name #{heading}")));
        }
        assert!(errors.is_empty(), "#{heading} does not begin with {errors:?}");
    }
}

#[test]
fn each_hole_of_earlier_libraries_is_listed_once() {
    let list = text("docs/peer-holes.md");
    for hole in HOLES {
        let rows: Vec<&str> = list.lines().filter(|line| line.starts_with(&format!("| {hole} |"))).collect();
        let [row] = rows[..] else { panic!("{hole} has {} rows", rows.len()) };
        assert!(!named_tests(row).is_empty() || row.contains("| does not apply: "), "{hole}: refused by what?");
    }
    for case in fs::read_dir(root().join("ui-tests/peer_holes")).unwrap().map(|entry| entry.unwrap().file_name()) {
        let case = case.to_str().unwrap();
        let named = !case.ends_with(".rs") || list.contains(&format!("`ui-tests/peer_holes/{case}`"));
        assert!(named, "{case} is of no hole in the list");
    }
}

/// The rows with `columns` cells whose first cell is the number of a conformance case.
fn cases(document: &str, columns: usize) -> Vec<Vec<&str>> {
    let rows = document.lines().filter(|line| line.starts_with("| C") && line.ends_with(" |"));
    let cells = rows.map(|row| row.trim_matches('|').split('|').map(str::trim).collect::<Vec<_>>());
    cells
        .filter(|cells| cells.len() == columns && cells[0].trim_start_matches(['C', 'M']).parse::<u16>().is_ok())
        .collect()
}

/// The two tables of docs/conformance.md: the deviations of soft-RoCE, and the cases.
fn conformance(document: &str) -> (Vec<Vec<&str>>, Vec<Vec<&str>>) {
    let cases_begin = document.find("\n## States").expect("the cases");
    let (differences, table) = document.split_at(cases_begin);
    (cases(differences, 4), cases(table, 4))
}

/// The body of a named test.
fn body(name: &str) -> Body {
    let (file, function) = name.split_once("::").unwrap();
    let test = rust::tests(&rust::parse(file)).into_iter().find(|test| test.name == function);
    test.unwrap_or_else(|| panic!("{name}: no such test")).body
}

#[test]
fn each_case_of_conformance_is_listed_once() {
    let document = text("docs/conformance.md");
    let listed: Vec<&str> = conformance(&document).1.iter().map(|row| row[0]).collect();
    let by_address = (1..=CASES_BY_ADDRESS).map(|number| format!("CM{number:03}"));
    assert_eq!(listed, (1..=CASES).map(|number| format!("C{number:03}")).chain(by_address).collect::<Vec<_>>());
}

#[test]
fn each_case_of_conformance_says_what_shows_it() {
    let document = text("docs/conformance.md");
    let programs = runner::names(|program| program.has(runner::Fact::Rxe));
    for row in conformance(&document).1 {
        let [case, what, expected, by] = row[..] else { unreachable!("cells") };
        assert!(!what.is_empty() && !expected.is_empty(), "{case}");
        let tests = named_tests(by);
        if by.starts_with("not applicable: ") || by.starts_with("NOT COVERED: ") {
            assert!(tests.is_empty(), "{case}: shown or not?");
            continue;
        }
        let scripts = named_scripts(by);
        let is_run = |script: &&str| runner::is_script(script.trim_start_matches("tests/rxe/"));
        assert!(scripts.iter().all(is_run), "{case}: the suite does not run {scripts:?}");
        let shown = tests.len() + scripts.len() == quoted(by).len() && !quoted(by).is_empty();
        assert!(shown, "{case}: by what? {by}");
        let on_soft = |test: &str| by.find(" on soft `").is_some_and(|from| by.find(test).unwrap() > from);
        for test in &tests {
            let Some(file) = test.strip_prefix("tests/") else { continue };
            let body = body(test);
            let program = file.split(['/', '.']).next().unwrap();
            let has_own_device =
                body.names.contains("Fabric") || body.macros.contains("own_device") || body.macros.contains("soft");
            let only_soft = has_own_device || body.calls("soft") || !programs.contains(&program);
            assert_eq!(only_soft, on_soft(test), "{case}: {test} runs on which devices?");
            // A test is allowed to end early if the device deviates or lacks a promise, because by then it has tested
            // what such a device does. `with_atomic_writes` checks that a device without atomic writes is known to
            // have none. `lacks_need` prints why a test does not apply to the device, so the table counts the test as
            // not applicable.
            let known = ["lacks_need", "deviates", "with_atomic_writes", "lacks", "unless_refused"];
            let is_checked = known.iter().any(|known| body.calls(known));
            assert!(!body.may_end_early || is_checked, "{case}: {test} may end before it has shown anything");
        }
        let real = |test: &&str| !test.starts_with("src/provider/soft/") && !on_soft(test);
        let soft = |test: &&str| !test.starts_with("src/provider/rdma_core/");
        assert!(
            tests.iter().any(real) || !scripts.is_empty() || by.contains("; not on rxe: "),
            "{case}: why not on rxe?"
        );
        assert!(tests.iter().any(soft) || by.contains("; not on soft: "), "{case}: why not on soft?");
    }
}

/// A log as cargo would write it for the tests of the cases. `outcome` says how a test ended; `None` if it did not run.
fn written_log(outcome: impl Fn(&str) -> Option<&'static str>) -> String {
    let document = text("docs/conformance.md");
    let tests: BTreeSet<&str> = conformance(&document).1.iter().flat_map(|row| named_tests(row[3])).collect();
    let mut log =
        "     Running tests/ui.rs (target/debug/deps/ui-0)\ntest illegal_programs_do_not_compile ... ok\n".to_owned();
    for script in conformance(&document).1.iter().flat_map(|row| named_scripts(row[3])) {
        let (name, Some(outcome)) = (script.trim_start_matches("tests/rxe/"), outcome(script)) else { continue };
        log += &format!("-- /x/{script} /x/examples/{name}\ntest {name} ... {outcome}\n");
    }
    for test in tests {
        let (Some((file, name)), Some(outcome)) = (test.split_once(".rs::"), outcome(test)) else { continue };
        let (program, path) = match file.split_once('/').unwrap() {
            ("tests", path) => path.split_once('/').unwrap_or((path, "")),
            (_, path) => ("interlock", path),
        };
        let path = [path.split('/').collect(), vec![name]].concat().join("::");
        let path = path.trim_start_matches("::");
        // The output of a test can come between its name and its result.
        log += &format!("     Running {file}.rs (target/debug/deps/{program}-0f)\ntest {path} ... said\n{outcome}\n");
    }
    log
}

/// The numbers that tests/conformance/report counts for `device`: covered, not applicable, not covered, failed. Also
/// whether the report succeeds.
fn counted(logs: [&str; 3], device: &str) -> ([usize; 4], bool) {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let arguments = ["soft", "rxe", "siw"].into_iter().zip(logs).map(|(device, log)| {
        let file = folder.join(format!("conformance-{device}.log"));
        fs::write(&file, log).unwrap();
        format!("{device}={}", file.display())
    });
    let mut report = Command::new(root().join("tests/conformance/report"));
    let output = report.args(arguments).arg(root().join("docs/conformance.md")).output().expect("awk");
    let table = String::from_utf8(output.stdout).unwrap();
    let line = table.lines().rev().find(|line| line.trim_start().starts_with(device)).expect("counts");
    let counts: Vec<usize> = line.split_whitespace().skip(1).map(|count| count.parse().unwrap()).collect();
    (counts.try_into().unwrap(), output.status.success())
}

#[test]
fn the_table_of_conformance_counts_what_ran() {
    let all = written_log(|_| Some("ok"));
    for device in ["soft", "rxe"] {
        let ([covered, not_applicable, not_covered, failed], success) = counted([&all; 3], device);
        assert_eq!((covered + not_applicable + not_covered, failed, success), (CASES + CASES_BY_ADDRESS, 0, true));
        for (outcome, expected) in [(None, [1, 0]), (Some("FAILED"), [0, 1])] {
            let but_one =
                written_log(
                    |test| if test.ends_with("::a_read_brings_what_the_peer_has") { outcome } else { Some("ok") },
                );
            let (counts, success) = counted([&but_one; 3], device);
            assert_eq!(counts, [covered - 1, not_applicable, not_covered + expected[0], expected[1]]);
            assert!(!success, "{outcome:?}");
        }
    }
    // On soft iWARP, a test that did not run counts as not applicable. A test that prints `not applicable` counts as
    // not applicable on any device.
    let ([covered, not_applicable, not_covered, failed], _) = counted([&all; 3], "siw");
    assert_eq!((covered + not_applicable + not_covered, failed), (CASES + CASES_BY_ADDRESS, 0));
    let lacking = "not applicable: needs what there is not\nok";
    for (outcome, of_siw) in [(None, [1, 0]), (Some(lacking), [1, 0]), (Some("FAILED"), [0, 1])] {
        let read = |test: &str| if test.ends_with("::a_read_brings_what_the_peer_has") { outcome } else { Some("ok") };
        let (counts, success) = counted([&all, &all, &written_log(read)], "siw");
        assert_eq!(counts, [covered - 1, not_applicable + of_siw[0], not_covered, of_siw[1]]);
        assert_eq!(success, outcome != Some("FAILED"));
    }
    let nothing = counted([""; 3], "soft");
    assert_eq!((nothing.0[0], nothing.1), (0, false));
}

/// A stage of `x` fails if its first command fails, even if its last command succeeds.
#[test]
fn a_stage_fails_with_any_of_its_commands() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("stages");
    fs::create_dir_all(&folder).unwrap();
    let (commands, rest) =
        text("x").split_once("# ---- Which command").map(|(a, b)| (a.to_owned(), b.to_owned())).unwrap();
    for (first, success) in [("true", true), ("false", false), ("false | cat", false)] {
        let stage = format!(
            "need_rust() {{ :; }}\nneed() {{ :; }}\nstage_loom() {{ inner; true; }}\ninner() {{ {first}; true; }}\n"
        );
        fs::write(folder.join("x"), format!("{commands}{stage}{rest}")).unwrap();
        let output = Command::new("bash").arg(folder.join("x")).args(["test", "loom"]).output().expect("bash");
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(said.contains("loom "), "{said}{}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(output.status.success(), success, "{first}: {said}");
    }
}

#[test]
fn each_difference_of_soft_roce_is_known_to_the_tests() {
    let document = text("docs/conformance.md");
    let known = rust::strings_of_constant(&rust::parse("tests/support/src/device.rs"), "RXE_DEVIATIONS");
    let mut asked = BTreeSet::new();
    for row in conformance(&document).0 {
        for test in named_tests(row[3]).into_iter().filter(|test| test.starts_with("tests/")) {
            assert!(body(test).calls_with("deviates", row[0]), "{test} does not ask for {}", row[0]);
            asked.insert(row[0].to_owned());
        }
    }
    assert_eq!(asked, known);
}

#[test]
fn each_named_test_exists_and_is_not_ignored() {
    let mut flaws = Vec::new();
    for document in documents() {
        let text = text(&document);
        flaws.extend(named_tests(&text).into_iter().filter_map(flaw).map(|flaw| format!("{document}: {flaw}")));
    }
    assert_eq!(flaws, <Vec<String>>::new());
}

/// A program that runs tests a second time on extended queues does so with every test.
#[test]
fn each_test_of_such_a_program_runs_on_extended_queues_too() {
    let mut programs: BTreeMap<String, Vec<(String, Rc<syn::File>)>> = BTreeMap::new();
    for file in rust_files("tests").into_keys().filter(|file| !file.starts_with("tests/support/")) {
        let program = file.split(['/', '.']).nth(1).unwrap().to_owned();
        programs.entry(program).or_default().push((file.clone(), rust::parse(&file)));
    }
    let mut again = BTreeSet::new();
    // `extended` is left out. Its tests make extended queues anyway, so its `also_extended!` names only one test: the
    // one that depends on `INTERLOCK_POLLING`.
    for (program, files) in programs.into_iter().filter(|(program, _)| program != "extended") {
        if files.iter().all(|(_, file)| rust::also_extended(file).is_none()) {
            continue;
        }
        for (path, file) in files {
            let tests: BTreeSet<String> = rust::tests(&file).into_iter().map(|test| test.name).collect();
            assert_eq!(
                rust::also_extended(&file).unwrap_or_default(),
                tests,
                "{path}: `also_extended!` must name each test"
            );
        }
        again.insert(program);
    }
    assert_eq!(again, EXTENDED.map(str::to_owned).into());
}

#[test]
fn each_named_file_exists() {
    for document in documents() {
        let text = text(&document);
        let folder = root().join(&document).parent().unwrap().to_owned();
        for link in text.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(link, _)| link) {
            let local = !link.contains("://") && !link.starts_with('#');
            let (file, _heading) = link.split_once('#').unwrap_or((link, ""));
            assert!(!local || folder.join(file).exists(), "{document}: {link}");
        }
        let parts = ["src/", "tests/", "docs/", "examples/"];
        for name in quoted(&text).into_iter().filter(|name| parts.iter().any(|part| name.starts_with(part))) {
            let file = name.split("::").next().unwrap();
            assert!(root().join(file).exists(), "{document}: {file}");
        }
    }
}

/// Each row of docs/walks.md names a file and what in it does the step.
#[test]
fn each_step_of_the_walks_is_in_its_file() {
    let document = text("docs/walks.md");
    let rows = document.lines().filter(|line| line.starts_with("| ") && line.contains("`src/"));
    let steps = rows.map(|row| {
        let cells: Vec<&str> = row.trim_matches('|').split('|').collect();
        let [_, file, names] = cells[..] else { panic!("three cells: {row}") };
        (quoted(file)[0], quoted(names))
    });
    let mut count = 0;
    for (file, names) in steps {
        let source = text(file);
        for name in names {
            let is_there = ["fn ", "enum ", "trait ", "pub(crate) "].iter().any(|before| {
                source.match_indices(&format!("{before}{name}")).any(|(at, found)| {
                    source[at + found.len()..].starts_with(|c: char| !c.is_alphanumeric() && c != '_')
                })
            });
            assert!(is_there, "docs/walks.md: {file} has no `{name}`");
            count += 1;
        }
    }
    assert!(count > 50, "{count}");
}

/// The files with unsafe code, as the trust model lists them.
fn listed_as_unsafe(model: &str) -> BTreeSet<&str> {
    let section = model.split("## Where `unsafe` lives").nth(1).expect("a list");
    quoted(section).into_iter().filter(|name| name.starts_with("src/")).collect()
}

#[test]
fn unsafe_code_is_where_the_trust_model_says() {
    let model = text("docs/trust-model.md");
    let files = rust_files("src").into_keys().filter(|file| !is_unit_test(file));
    let found: BTreeSet<String> = files.filter(|file| rust::has_unsafe(&rust::parse(file))).collect();
    assert_eq!(listed_as_unsafe(&model), found.iter().map(String::as_str).collect());
}

/// A rule of the trust model names its modules in the parentheses behind its title: files of `src`, and folders with a
/// `/` at the end. The calls of C below the argument are left to the assumptions.
#[test]
fn each_file_with_unsafe_code_is_named_by_a_rule_of_the_trust_model() {
    let model = text("docs/trust-model.md");
    let (_, rules) = model.split_once("## The argument, rule by rule").expect("the rules");
    let (rules, _) = rules.split_once("\n## ").expect("a section after the rules");
    let titles = rules.split("\n\n").filter(|rule| rule.starts_with("**")).filter_map(|rule| rule.split(')').next());
    let is_module = |name: &&str| name.ends_with(".rs") || name.ends_with('/');
    let modules: BTreeSet<&str> = titles.flat_map(quoted).filter(is_module).collect();
    let missing: Vec<_> = modules.iter().filter(|module| !root().join("src").join(module).exists()).collect();
    assert_eq!(missing, Vec::<&&str>::new(), "there are no such modules");
    let files = listed_as_unsafe(&model).into_iter().map(|file| file.strip_prefix("src/").unwrap());
    let is_below = |file: &&str| ["sys/", "provider/", "os.rs"].iter().any(|below| file.starts_with(below));
    let is_named =
        |file: &str| modules.iter().any(|&module| file == module || module.ends_with('/') && file.starts_with(module));
    let unnamed: Vec<_> = files.filter(|file| !is_below(file) && !is_named(file)).collect();
    assert_eq!(unnamed, Vec::<&str>::new(), "no rule names these");
}

/// The public functions that take two objects of one brand, each as file and name.
fn meetings() -> BTreeSet<(String, String)> {
    let files = rust_files("src").into_keys();
    let files = files.filter(|file| !is_unit_test(file) && !file.starts_with("src/provider/"));
    let of_file = |file: String| rust::meetings(&rust::parse(&file)).into_iter().map(move |name| (file.clone(), name));
    files.flat_map(of_file).collect()
}

/// With the run-time brand, objects of two domains are told apart where a function takes both. The trust model lists
/// each such function, and what it compares.
#[test]
fn where_objects_of_domains_meet_is_in_the_trust_model() {
    let model = text("docs/trust-model.md");
    let table = model.split("| where they meet |").nth(1).expect("a table").split("\n\n").next().unwrap();
    let mut listed = BTreeSet::new();
    for row in table.lines().filter(|row| row.starts_with("| `src/")) {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let [_, file, functions, compared, _] = cells[..] else { panic!("{row}") };
        assert!(!compared.is_empty(), "{row}");
        listed.extend(quoted(functions).into_iter().map(|name| (file.trim_matches('`').to_owned(), name.to_owned())));
    }
    assert_eq!(meetings(), listed);
}

#[test]
fn each_assumption_in_the_code_is_in_the_trust_model() {
    let model = text("docs/trust-model.md");
    for (file, source) in rust_files("src") {
        assert!(!source.contains("ASSUMPTION") || model.contains(&format!("`{file}`")), "{file} assumes something");
    }
    let rows: Vec<&str> = model.lines().filter(|line| line.starts_with("| T") && line.contains("`src/")).collect();
    assert!(rows.len() > 15, "{rows:?}");
    for row in rows {
        let relied_on_by = row.split(" | ").nth(2).and_then(|cell| cell.split(';').next()).unwrap();
        for file in quoted(relied_on_by) {
            assert!(text(file).contains("ASSUMPTION"), "{file} says nothing of {row}");
        }
    }
}

#[test]
fn the_readme_shows_what_the_compiler_says_of_its_program() {
    let readme = text("README.md");
    let blocks: Vec<&str> = readme.split("```").skip(1).step_by(2).collect();
    let at = blocks.iter().position(|block| block.starts_with("rust,compile_fail")).expect("an illegal program");
    let (head, program) = blocks[at].split_once('\n').unwrap();
    let message = blocks[at + 1].strip_prefix("text\n").expect("the message, as text");
    let code = head.rsplit(',').next().unwrap();
    assert!(message.starts_with(&format!("error[{code}]: ")), "another error than {code}");
    let program: Vec<&str> = program.lines().collect();
    let mut shown = 0;
    for (number, line) in message.lines().filter_map(|line| line.split_once(" | ")) {
        let Ok(number) = number.trim().parse::<usize>() else { continue };
        assert_eq!(program.get(number - 1), Some(&line), "line {number} of the program");
        shown += 1;
    }
    assert!(shown > 0, "the message shows no line of the program");
}
