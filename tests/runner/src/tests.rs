use crate::{Fact, Leaks, Values};
use crate::{PROGRAMS, Part, check_table, miri, named_in_cases, programs_of, siw_suite, suite};
use std::fs;
use std::path::Path;

fn metadata(names: &[&str]) -> String {
    let targets: Vec<String> =
        names.iter().map(|name| format!(r#"{{"kind":["test"],"name":"{name}","test":true}}"#)).collect();
    let targets = targets.join(",");
    format!(
        r#"{{"packages":[{{"name":"other","targets":[{{"kind":["test"],"name":"no_concern"}}]}},
            {{"name":"rdma-interlock","targets":[{{"kind":["lib"],"name":"interlock"}},{targets}]}}]}}"#
    )
}

#[test]
fn the_table_is_in_order_without_doubles() {
    assert!(PROGRAMS.is_sorted_by(|a, b| a.name < b.name));
}

#[test]
fn a_program_without_a_row_and_a_row_without_a_program_are_named() {
    let names = crate::names(|_| true);
    assert_eq!(check_table(&metadata(&names)), Ok(()));
    let error = check_table(&metadata(&[&names[1..], &["newcomer"]].concat())).unwrap_err();
    assert!(error.contains(r#"no row for ["newcomer"]; no test program for ["adversary"]"#), "{error}");
    assert!(check_table("{}").is_err());
    assert!(check_table("not JSON").is_err());
}

#[test]
fn no_program_has_facts_that_contradict_each_other() {
    for program in PROGRAMS.iter().filter(|program| program.has(Fact::NoDevice)) {
        assert_eq!(program.facts, [Fact::NoDevice], "{}", program.name);
    }
    for program in PROGRAMS.iter().filter(|program| program.has(Fact::PlainMemory)) {
        assert!(!program.facts.iter().any(|fact| matches!(fact, Fact::Miri { .. })), "{}", program.name);
    }
}

#[test]
fn each_stage_runs_something_and_unknown_stages_are_refused() {
    for stage in ["adversary", "asan", "arm", "rxe"] {
        assert!(programs_of(stage).is_some_and(|programs| programs.len() > 5), "{stage}");
    }
    assert!(programs_of("siw").is_some_and(|programs| programs.contains(&"iwarp")));
    assert_eq!(programs_of("check"), None);
}

#[test]
fn each_program_for_miri_is_in_one_run_and_once_more_if_extended() {
    let runs = [miri(Part::One), miri(Part::Two)].concat();
    for program in PROGRAMS {
        let count = |extended| {
            let runs = runs.iter().filter(|run| run.extended == extended);
            runs.flat_map(|run| &run.arguments).filter(|argument| *argument == program.name).count()
        };
        let is_listed = program.facts.iter().any(|fact| matches!(fact, Fact::Miri { .. }));
        assert_eq!(count(false), usize::from(is_listed), "{}", program.name);
        assert_eq!(count(true), usize::from(program.has(Fact::MiriExtended)), "{}", program.name);
    }
    let unit_tests = runs.iter().filter(|run| run.arguments.contains(&"--lib".to_owned()));
    assert_eq!(
        unit_tests.map(|run| (run.leaks, run.values)).collect::<Vec<_>>(),
        [(Leaks::Refused, Values::Checked), (Leaks::Refused, Values::Unchecked)]
    );
}

/// The arguments after `--` filter the tests of all programs in a run, so programs with different filters cannot share
/// it.
#[test]
fn a_run_with_filters_has_one_program() {
    for run in [miri(Part::One), miri(Part::Two)].concat() {
        if run.arguments.contains(&"--".to_owned()) {
            assert_eq!(
                run.arguments.iter().filter(|argument| *argument == "--test" || *argument == "--lib").count(),
                1,
                "{run:?}"
            );
        }
    }
}

#[test]
fn cases_name_programs_in_files_and_folders() {
    let document = "`tests/none.rs::x`\n| C001 | a | b | `tests/two/part.rs::x`, on soft `tests/one.rs::y` |\n\
        | C002 | a | b | `src/types.rs::x`, `tests/two/other.rs::z` |\n";
    assert_eq!(named_in_cases(document).into_iter().collect::<Vec<_>>(), ["one", "two"]);
}

/// The message of cargo about a target. `path` is JSON: a string, or `null` for a target without an executable.
fn artifact(kind: &str, name: &str, test: bool, path: &str) -> String {
    let target = format!(r#"{{"kind":["{kind}"],"name":"{name}"}}"#);
    let profile = format!(r#"{{"test":{test}}}"#);
    format!(r#"{{"reason":"compiler-artifact","target":{target},"profile":{profile},"executable":{path}}}"#)
}

/// The examples that the scripts of `tests/rxe` take.
const SCRIPT_EXAMPLES: [&str; 5] = ["rping", "cm_peers", "rc_pingpong", "guide_02_two_machines", "perf"];

#[test]
fn the_suite_has_unit_tests_then_tests_then_examples() {
    let mut messages = vec![
        r#"{"reason":"build-script-executed","package_id":"x"}"#.to_owned(),
        artifact("lib", "interlock", false, "null"),
        artifact("lib", "interlock", true, r#""/t/interlock-0a""#),
        artifact("test", "ui", true, r#""/t/ui-0b""#),
        artifact("test", "memory", true, r#""/a folder/memory-0c""#),
        artifact("example", "kv_store", true, r#""/t/kv_store-0d""#),
    ];
    for name in SCRIPT_EXAMPLES {
        messages.push(artifact("example", name, false, &format!(r#""/t/examples/{name}""#)));
    }
    let text = |messages: &[String]| messages.join("\n") + "\nsomething that is not JSON\n";
    let expected = ["/t/interlock-0a rdma_core --ignored --test-threads=1", "'/a folder/memory-0c' --test-threads=1"];
    let [memory, shared] =
        ["memory", "shared"].map(|name| PROGRAMS.iter().find(|program| program.name == name).unwrap());
    let list = suite(&text(&messages), &[memory], false).unwrap();
    assert_eq!((&list[..2], list.len()), (&expected.map(str::to_owned)[..], 7));
    assert_eq!(suite(&text(&messages), &[shared], false).unwrap_err(), "cargo built no test shared");
    assert_eq!(suite(&text(&messages), &[], true).unwrap_err(), "cargo built no example devices");
    for name in crate::programs::RXE_EXAMPLES {
        messages.push(artifact("example", name, false, &format!(r#""/t/examples/{name}""#)));
    }
    let list = suite(&text(&messages), &[memory], true).unwrap();
    assert_eq!(list[..2], expected);
    assert_eq!(list[2], "/t/examples/devices");
    assert!(list[8].ends_with("/rxe/rping /t/examples/rping") && list[9].ends_with("/rxe/peers /t/examples/cm_peers"));
    assert!(list[10].ends_with("/rxe/pingpong_by_cm /t/examples/rc_pingpong"));
    assert!(list[12].ends_with("/rxe/perf_by_cm /t/examples/perf"));
    assert_eq!(list.len(), 13);
}

/// A program would not complain of a name that no test has.
#[test]
fn the_tests_for_soft_iwarp_exist() {
    for program in PROGRAMS {
        let arguments = program.on_siw().unwrap_or_default();
        for name in arguments.iter().filter(|name| !name.starts_with("--")) {
            // A test program is a file, or a folder with a file for each module.
            let (module, test) = name.split_once("::").unwrap_or(("main", name));
            let program = format!("{}/../{}", env!("CARGO_MANIFEST_DIR"), program.name);
            let files = [format!("{program}.rs"), format!("{program}/{module}.rs")];
            let source = files.iter().find_map(|file| fs::read_to_string(file).ok()).unwrap();
            assert!(source.contains(&format!("\nfn {test}() {{")), "{program}: {name}");
        }
    }
}

#[test]
fn soft_iwarp_runs_the_scripts_the_devices_and_chosen_tests() {
    let mut messages = vec![
        artifact("example", "devices", false, r#""/t/examples/devices""#),
        artifact("lib", "interlock", true, r#""/t/interlock-0a""#),
    ];
    for name in SCRIPT_EXAMPLES {
        messages.push(artifact("example", name, false, &format!(r#""/t/examples/{name}""#)));
    }
    for name in programs_of("siw").unwrap() {
        messages.push(artifact("test", name, true, &format!(r#""/t/{name}-0a""#)));
    }
    let list = siw_suite(&messages.join("\n")).unwrap();
    assert!(list[0].ends_with("/rxe/rping /t/examples/rping") && list[5] == "/t/examples/devices -v", "{list:?}");
    assert!(list[6].starts_with("/t/interlock-0a a_hostile_peer"), "{list:?}");
    assert!(list.contains(&"/t/iwarp-0a --test-threads=1 --ignored".to_owned()), "{list:?}");
    assert!(list.contains(&"beside /t/cm_network-0a --test-threads=1 ".to_owned()), "{list:?}");
    assert!(list.iter().any(|line| line.starts_with("/t/device-0a --test-threads=1 --exact a_port")), "{list:?}");
    assert_eq!(siw_suite(&messages[1..].join("\n")).unwrap_err(), "cargo built no example devices");
}

/// If Miri runs a program without a filter and ignores a test of it, asan runs that test. (Both may leave out the
/// second runs that `also_extended!` makes.)
#[test]
fn asan_runs_what_miri_ignores() {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    for program in PROGRAMS.iter().filter(|program| program.is_unfiltered_for_miri()) {
        let (file, folder) = (tests.join(format!("{}.rs", program.name)), tests.join(program.name));
        let files: Vec<_> = if file.exists() {
            vec![file]
        } else {
            fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_file()).collect()
        };
        let ignores = files.iter().any(|file| fs::read_to_string(file).unwrap().contains("cfg_attr(miri, ignore"));
        assert_eq!(ignores, program.has(Fact::MiriIgnores), "{}", program.name);
    }
}
