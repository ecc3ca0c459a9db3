//! Tests that illegal programs fail to compile for the right reason, and that their legal twins compile.
//!
//! Each `ui-tests/<module>/<rule>.rs` breaks one rule. Its first line names the rule in the words of the library's
//! documentation. Its second line names the compiler's error: a code, or the text if there is no code.
//! `ui-tests/pass/<module>/<rule>.rs` is the legal twin, which differs only in the offending lines. The twins are
//! modules of this program.
//!
//! The compiler's message for each case is kept next to it as `.stderr`, for one version of the compiler. When messages
//! change, `TRYBUILD=overwrite cargo test --test ui` rewrites them; read the difference as a user would. Other compiler
//! versions compare only the pinned error.

#[path = "../ui-tests/pass/mod.rs"]
#[allow(dead_code, clippy::all, reason = "they need only compile")]
mod pass;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// The compiler whose messages are kept.
const PINNED_COMPILER: &str = "rustc 1.95.";

/// A twin and its case may each have at most this many lines that the other lacks.
const MOST_CHANGED_LINES: usize = 5;

/// Names the folder of the cases if it is not `ui-tests`. This program sets it when it runs itself.
const ELSEWHERE: &str = "INTERLOCK_UI_TESTS";

fn root() -> PathBuf {
    env::var_os(ELSEWHERE).map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("ui-tests"), PathBuf::from)
}

/// Lists the files `<module>/<name>.<extension>` below `folder`, without their extension.
fn files(folder: &Path, extension: &str) -> BTreeSet<PathBuf> {
    let entries = |folder: &Path| fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect::<Vec<_>>();
    entries(folder)
        .iter()
        .filter(|module| module.is_dir() && !module.ends_with("pass"))
        .flat_map(|module| entries(module))
        .filter(|file| file.extension().is_some_and(|found| found == extension) && !file.ends_with("mod.rs"))
        .map(|file| file.strip_prefix(folder).unwrap().with_extension(""))
        .collect()
}

fn text(folder: &Path, name: &Path, extension: &str) -> String {
    let file = folder.join(name).with_extension(extension);
    fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

/// Returns the compiler's error that the second line of a case names.
fn pinned_error(case: &str) -> String {
    let error =
        case.lines().nth(1).and_then(|line| line.strip_prefix("//! Error: ")).expect("a second line `//! Error: `");
    let is_code = error.len() == 5 && error.starts_with('E') && error[1..].bytes().all(|byte| byte.is_ascii_digit());
    if is_code { format!("error[{error}]: ") } else { format!("error: {error}\n") }
}

/// Lists the cases of `folder` whose kept message lacks the pinned error.
fn cases_with_another_error(folder: &Path) -> Vec<PathBuf> {
    let differs = |name: &PathBuf| {
        let error = pinned_error(&text(folder, name, "rs"));
        !text(folder, name, "stderr").contains(&error)
    };
    files(folder, "rs").into_iter().filter(differs).collect()
}

#[test]
fn illegal_programs_do_not_compile() {
    let compiler = Command::new("rustc").arg("--version").output().expect("a compiler").stdout;
    let compiler = String::from_utf8(compiler).unwrap();
    if compiler.starts_with(PINNED_COMPILER) || env::var_os(ELSEWHERE).is_some() {
        let cases = trybuild::TestCases::new();
        for name in files(&root(), "rs") {
            cases.compile_fail(root().join(name).with_extension("rs"));
        }
        return;
    }
    println!("the whole messages are compared on {PINNED_COMPILER}x only, and this is {compiler}");
    // Copy the cases without their messages. trybuild then writes the messages of this compiler into the copy, and the
    // pinned errors are looked up there.
    let copies = Path::new(env!("CARGO_TARGET_TMPDIR")).join("ui-tests");
    let _ = fs::remove_dir_all(&copies);
    for name in files(&root(), "rs") {
        let copy = copies.join(&name).with_extension("rs");
        fs::create_dir_all(copy.parent().unwrap()).unwrap();
        fs::write(copy, text(&root(), &name, "rs")).unwrap();
    }
    let status = Command::new(env::current_exe().unwrap())
        .args(["--exact", "illegal_programs_do_not_compile", "--nocapture"])
        .envs([(ELSEWHERE, copies.as_os_str()), ("TRYBUILD", "overwrite".as_ref())])
        .status()
        .unwrap();
    assert!(status.success(), "a case compiles");
    assert_eq!(cases_with_another_error(&copies), <Vec<PathBuf>>::new(), "fail with another error");
}

#[test]
fn each_case_fails_with_the_error_that_it_names() {
    assert_eq!(cases_with_another_error(&root()), <Vec<PathBuf>>::new());
}

#[test]
fn each_case_has_a_twin_and_a_message() {
    let cases = files(&root(), "rs");
    let twins = files(&root().join("pass"), "rs");
    assert!(cases.len() >= 400, "{} cases", cases.len());
    assert_eq!(cases.symmetric_difference(&twins).collect::<Vec<_>>(), <Vec<&PathBuf>>::new(), "without a twin");
    let messages = files(&root(), "stderr");
    assert_eq!(cases.symmetric_difference(&messages).collect::<Vec<_>>(), <Vec<&PathBuf>>::new(), "without a message");
}

#[test]
fn each_twin_is_compiled() {
    let pass = root().join("pass");
    let listed = |list: PathBuf, name: &str| {
        fs::read_to_string(&list).unwrap().lines().any(|line| line == format!("mod {name};"))
    };
    for twin in files(&pass, "rs") {
        let (module, name) = (twin.parent().unwrap().to_str().unwrap(), twin.file_name().unwrap().to_str().unwrap());
        assert!(listed(pass.join("mod.rs"), module), "`mod {module};` is missing");
        assert!(listed(pass.join(module).join("mod.rs"), name), "`mod {name};` is missing in {module}");
    }
}

#[test]
fn a_twin_differs_by_the_offending_lines() {
    for name in files(&root(), "rs") {
        let (case, twin) = (text(&root(), &name, "rs"), text(&root().join("pass"), &name, "rs"));
        assert!(case.starts_with("//! Rule ") || case.starts_with("//! Hole "), "{}: no rule", name.display());
        assert_eq!(case.lines().next(), twin.lines().next(), "{}: another rule", name.display());
        assert!(!case.contains("unsafe"), "{}: only safe programs count", name.display());
        let code = |text: &str| text.lines().filter(|line| !line.starts_with("//!")).collect::<Vec<_>>().join("\n");
        let (case, twin) = (code(&case), code(&twin));
        assert_ne!(case.trim(), twin.trim(), "{}: the twin is the same", name.display());
        for lines in [only_in(&case, &twin), only_in(&twin, &case)] {
            assert!(lines.len() <= MOST_CHANGED_LINES, "{}: too many changed lines: {lines:#?}", name.display());
        }
    }
}

/// Collects the rules that the library's documentation lists in the form `Q3: a send ...`.
fn documented_rules(folder: &Path) -> BTreeSet<String> {
    let mut rules = BTreeSet::new();
    for entry in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        if entry.is_dir() {
            rules.extend(documented_rules(&entry));
        } else {
            let text = fs::read_to_string(entry).unwrap();
            let items = text.lines().filter_map(|line| line.strip_prefix("/// - ").or(line.strip_prefix("//! - ")));
            rules.extend(items.filter(|item| is_rule(item)).map(str::to_owned));
        }
    }
    rules
}

/// Whether `item` starts as a rule does: a capital letter, a number and a colon.
fn is_rule(item: &str) -> bool {
    let id = item.split_once(": ").map_or("", |(id, _)| id);
    let number = id.strip_prefix(|first: char| first.is_ascii_uppercase());
    number.is_some_and(|number| number.parse::<u8>().is_ok())
}

#[test]
fn each_rule_is_documented_and_has_a_case() {
    let documented = documented_rules(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"));
    let first_lines = files(&root(), "rs").iter().map(|name| text(&root(), name, "rs")).collect::<Vec<_>>();
    let rule = |case: &String| Some(case.lines().next()?.strip_prefix("//! Rule ")?.to_owned());
    let cited: BTreeSet<String> = first_lines.iter().filter_map(rule).collect();
    assert_eq!(cited.symmetric_difference(&documented).collect::<Vec<_>>(), <Vec<&String>>::new(), "only on one side");
}

/// Returns the lines of code that are in `one` but not in `other`. `use` lists do not count.
fn only_in<'text>(one: &'text str, other: &str) -> Vec<&'text str> {
    let mut others: Vec<&str> = other.lines().collect();
    let is_new = |line: &&str| match others.iter().position(|other| other == line) {
        Some(at) => {
            others.swap_remove(at);
            false
        }
        None => true,
    };
    one.lines().filter(is_new).filter(|line| !line.starts_with("use ")).collect()
}
