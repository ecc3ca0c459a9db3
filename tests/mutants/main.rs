//! Shows that each type-level mechanism is the reason why its illegal programs do not compile: without it, they
//! compile.
//!
//! A mutant is a copy of the library without one mechanism. The cases of `ui-tests` that rest on the mechanism must
//! compile against the mutant. A case that still fails is refused for another reason than the one that it names.
//!
//! The run-time brand compares domains instead. Without one of its comparisons, the tests that rest on that comparison
//! must fail, and no others.

mod aio;
mod cm;
mod comparisons;
mod memory;
mod queue;

use comparisons::UNCHECKED;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::{env, fs, os::unix, thread};

struct Mutant {
    without: &'static str,
    /// File, text and replacement. Every occurrence in the file is replaced.
    changes: &'static [(&'static str, &'static str, &'static str)],
    /// The cases that compile against the mutant.
    cases: &'static [&'static str],
}

/// All mutants, by the layer of their mechanism.
const MUTANTS: [&[Mutant]; 4] = [memory::MUTANTS, queue::MUTANTS, cm::MUTANTS, aio::MUTANTS];

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        if from.is_dir() {
            copy(&from, &to);
        } else {
            fs::copy(from, to).unwrap();
        }
    }
}

/// Copies the package to `library`.
fn copy_package(root: &Path, library: &Path) {
    let _ = fs::remove_dir_all(library);
    copy(&root.join("src"), &library.join("src"));
    // The rest of the package is needed, because the manifest names some of its files. It is unchanged, so links to it
    // are enough.
    for entry in fs::read_dir(root).unwrap().map(Result::unwrap) {
        if !["src", "target", ".git"].map(Into::into).contains(&entry.file_name()) {
            unix::fs::symlink(entry.path(), library.join(entry.file_name())).unwrap();
        }
    }
}

/// Applies `changes` to the copy in `library`.
fn change(library: &Path, without: &str, changes: &[(&str, &str, &str)]) {
    for change in changes {
        fs::write(library.join("src").join(change.0), changed(library, without, change)).unwrap();
    }
}

/// Returns the text of the file with the change applied.
fn changed(package: &Path, without: &str, (file, from, to): &(&str, &str, &str)) -> String {
    let text = fs::read_to_string(package.join("src").join(file)).unwrap_or_else(|error| panic!("{file}: {error}"));
    assert!(text.contains(from), "no mutant without {without}: {file} has no `{from}`");
    text.replace(from, to)
}

/// Mutants that are built as one copy of the library, without the mechanisms of all of them: at most one mutant of each
/// layer. What one layer refuses, the others do not look at. So a case that compiles does so because its own mechanism
/// is missing.
///
/// With `MUTANTS_APART=1`, each mutant is built alone, which also shows that. It takes three times as long.
fn groups() -> Vec<Vec<&'static Mutant>> {
    if env::var_os("MUTANTS_APART").is_some() {
        return MUTANTS.into_iter().flatten().map(|mutant| vec![mutant]).collect();
    }
    let most = MUTANTS.iter().map(|layer| layer.len()).max().unwrap_or_default();
    (0..most).map(|at| MUTANTS.iter().filter_map(|layer| layer.get(at)).collect()).collect()
}

/// Writes the library without the mechanisms of a group to `folder/library`, and a package of its cases to
/// `folder/cases`.
fn write(group: &[&Mutant], root: &Path, folder: &Path) {
    let (library, cases) = (folder.join("library"), folder.join("cases"));
    copy_package(root, &library);
    fs::create_dir_all(&cases).unwrap();
    let mut manifest = String::from(
        "[package]\nname = 'cases'\nedition = '2024'\n\n[dependencies]\n\
         zerocopy = { version = '0.8', features = ['derive'] }\n\
         rdma-interlock = { path = '../library', default-features = false, features = ['soft', 'aio'] }\n\n[workspace]\n",
    );
    for mutant in group {
        change(&library, mutant.without, mutant.changes);
        for case in mutant.cases {
            let (name, path) = (case.replace('/', "_"), root.join("ui-tests").join(case).with_extension("rs"));
            manifest += &format!("\n[[bin]]\nname = '{name}'\npath = '{}'\n", path.display());
        }
    }
    fs::write(cases.join("Cargo.toml"), manifest).unwrap();
    fs::copy(root.join("Cargo.lock"), cases.join("Cargo.lock")).unwrap();
}

/// Fails as soon as a change to the library breaks a mutant, without building the mutants.
#[test]
fn what_a_mutant_changes_is_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let of_types = MUTANTS.into_iter().flatten().map(|mutant| (mutant.without, mutant.changes));
    let of_comparisons = UNCHECKED.iter().map(|mutant| (mutant.without, mutant.changes));
    for (without, changes) in of_types.chain(of_comparisons) {
        changes.iter().for_each(|change| drop(changed(root, without, change)));
    }
}

/// What the compiler says of the cases of a group whose mechanisms are missing, if it still refuses one; `None` if all
/// compile.
fn refusal(group: &[&Mutant], root: &Path, folder: &Path) -> Option<String> {
    write(group, root, folder);
    let output = Command::new(env::var_os("CARGO").unwrap_or("cargo".into()))
        .args(["check", "--offline", "--keep-going", "--message-format=short", "--quiet"])
        .current_dir(folder.join("cases"))
        .env("CARGO_TARGET_DIR", folder.join("target"))
        // The copies differ only in a few lines, so incremental builds save time.
        .env("CARGO_INCREMENTAL", "1")
        .output()
        .unwrap();
    let result = if output.status.success() { "all cases compile" } else { "a case is still refused" };
    let without: Vec<_> = group.iter().map(|mutant| mutant.without).collect();
    let without = without.join("; ");
    println!("without {without}: {result}");
    if output.status.success() {
        return None;
    }
    let text = String::from_utf8_lossy(&output.stderr);
    let errors = text.lines().filter(|line| line.contains("error")).collect::<Vec<_>>().join("\n");
    Some(format!("without {without}:\n{errors}"))
}

#[test]
#[ignore = "builds the library once per group of mutants, a minute in all: cargo test --test mutants -- --ignored"]
fn without_its_mechanism_each_case_compiles() {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("mutants");
    let groups = Mutex::new(groups().into_iter());
    let survivors = Mutex::new(Vec::new());
    // The compiler needs only one processor to check a library, so one lane for each processor keeps all of them busy.
    let lanes = thread::available_parallelism().map_or(1, NonZero::get);
    thread::scope(|scope| {
        for lane in 0..lanes {
            let (root, folder) = (&root, folder.join(lane.to_string()));
            let (groups, survivors) = (&groups, &survivors);
            scope.spawn(move || {
                let next = || groups.lock().unwrap().next();
                while let Some(group) = next() {
                    // The compiler works before `survivors` is locked. In one statement with `extend`, the lock would
                    // be held while the compiler works.
                    let refusal = refusal(&group, root, &folder);
                    survivors.lock().unwrap().extend(refusal);
                }
            });
        }
    });
    let survivors = survivors.into_inner().unwrap();
    assert!(survivors.is_empty(), "cases that are refused for another reason:\n{}", survivors.join("\n"));
}
