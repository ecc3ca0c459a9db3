//! A program cannot implement the sealed traits of this library, whatever it puts in their parameters.
//!
//! Rust lets a program write `impl Trait<Local> for Ours<Local>` if `Local` is the program's own type, unless a private
//! supertrait with the same parameters prevents that. This test finds the public traits in the source and tries to
//! implement each one.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};
use syn::{GenericParam, Generics, Item, Visibility};

/// Traits that a program may implement, or that every suitable type has by a blanket implementation.
const OPEN: [(&str, &str); 3] = [
    ("ForeignMemory", "an unsafe trait, whose implementations are reviewed"),
    ("Plain", "each type has it whose bytes are plain"),
    ("Viewable", "each type has it whose bytes can be looked at"),
];

/// Traits without parameters that `domain!` implements for a program's types. An implementation by hand does no harm.
const NAMES: [&str; 1] = ["Named"];

/// The compiler's errors where a seal holds: the private supertrait is missing, or the implementation overlaps a
/// blanket one.
const REFUSALS: [&str; 3] = ["[E0277]", "[E0119]", "[E0117]"];

/// The public modules that hold types and traits.
const MODULES: [&str; 19] = [
    "aio",
    "access",
    "attributes",
    "cm",
    "completion",
    "datagram",
    "device",
    "domain",
    "error",
    "event",
    "memory",
    "number",
    "queue",
    "request",
    "scope",
    "shared",
    "state",
    "transport",
    "window",
];

const ELSEWHERE: &str = "INTERLOCK_SEALED";

/// The public traits and types of the crate, with their parameters.
#[derive(Default)]
struct Found {
    traits: BTreeMap<String, Vec<Kind>>,
    types: BTreeMap<String, Vec<Kind>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Lifetime,
    Type,
    Number,
}

fn kinds(generics: &Generics) -> Vec<Kind> {
    let kind = |parameter: &GenericParam| match parameter {
        GenericParam::Lifetime(_) => Kind::Lifetime,
        GenericParam::Type(_) => Kind::Type,
        GenericParam::Const(_) => Kind::Number,
    };
    generics.params.iter().map(kind).collect()
}

impl Found {
    fn look(&mut self, folder: &Path) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.ends_with("sys/bindings") {
                continue;
            }
            if path.is_dir() {
                self.look(&path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let file = syn::parse_file(&fs::read_to_string(&path).unwrap()).unwrap();
                file.items.iter().for_each(|item| self.note(item));
            }
        }
    }

    /// Items of a module inside a file are skipped: such modules are private and hold the seals.
    fn note(&mut self, item: &Item) {
        let (visibility, name, generics, found) = match item {
            Item::Trait(item) => (&item.vis, &item.ident, &item.generics, &mut self.traits),
            Item::Struct(item) => (&item.vis, &item.ident, &item.generics, &mut self.types),
            Item::Enum(item) => (&item.vis, &item.ident, &item.generics, &mut self.types),
            _ => return,
        };
        if matches!(visibility, Visibility::Public(_)) {
            found.insert(name.to_string(), kinds(generics));
        }
    }
}

/// `Name<'static, Local, 1>`, with as many arguments as there are parameters.
fn filled(name: &str, kinds: &[Kind]) -> String {
    let argument = |kind: &Kind| match kind {
        Kind::Lifetime => "'static",
        Kind::Type => "Local",
        Kind::Number => "1",
    };
    let arguments: Vec<&str> = kinds.iter().map(argument).collect();
    if arguments.is_empty() { name.to_owned() } else { format!("{name}<{}>", arguments.join(", ")) }
}

/// The line of the first implementation in the generated program.
const FIRST: usize = 6;

/// Implementations of each trait, none of which a program may make.
fn attempts() -> BTreeMap<String, Vec<String>> {
    let mut found = Found::default();
    found.look(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"));
    // The public items are those that `lib.rs`, the modules in `MODULES` and the files in `src/front` export.
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let floors = MODULES.map(|module| source.join(module).join("mod.rs")).into_iter().filter(|file| file.exists());
    let doors = floors.chain([source.join("lib.rs")]).chain(files(&source.join("front")));
    let library: String = doors.map(|door| fs::read_to_string(door).unwrap()).collect();
    let exports = library
        .split("pub use ")
        .skip(1)
        .filter_map(|list| list.split(';').next())
        .filter(|list| !list.contains("soft"));
    let exports: Vec<&str> = exports.flat_map(|list| list.split(|c: char| !c.is_alphanumeric())).collect();
    // If two modules have a type of the same name, the name alone does not say which type is meant. Such names are left
    // out.
    let of = |module: &str| fs::read_to_string(source.join(module).join("mod.rs")).unwrap();
    let [of_cm, of_aio] = ["cm", "aio"].map(|module| {
        let text = of(module);
        let lists = text.split("pub use ").skip(1).filter_map(|list| list.split(';').next());
        lists.flat_map(|list| list.split(|c: char| !c.is_alphanumeric())).map(str::to_owned).collect::<Vec<_>>()
    });
    // Each of these names is in two modules: in `scope` and `aio::lend`, or in `cm` and `aio::cm`.
    let in_two_modules = ["Granted", "Lent", "Failed"];
    let is_ambiguous =
        |name: &String| in_two_modules.contains(&name.as_str()) || of_cm.contains(name) && of_aio.contains(name);
    let is_ours = |name: &String| exports.contains(&name.as_str()) && !is_ambiguous(name);
    let ours: Vec<_> = found.types.iter().filter(|(name, _)| is_ours(name)).collect();
    let traits = found.traits.iter().filter(|(name, _)| !OPEN.iter().any(|(open, _)| open == name));
    let attempt = |(name, parameters): (&String, &Vec<Kind>)| {
        let of_local = filled(name, parameters);
        let implementations = if parameters.contains(&Kind::Type) {
            ours.iter().map(|(ours, kinds)| format!("impl {of_local} for {} {{}}", filled(ours, kinds))).collect()
        } else {
            vec![format!("impl {of_local} for Local {{}}")]
        };
        (name.clone(), implementations)
    };
    traits.filter(|(name, _)| !NAMES.contains(&name.as_str())).map(attempt).collect()
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let all = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    all.filter(|path| path.extension().is_some_and(|extension| extension == "rs")).collect()
}

/// Returns those of the implementations that the compiler refuses because of a seal.
fn refused(implementations: &[(String, String)]) -> HashSet<String> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("sealed");
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    let lines: Vec<&str> = implementations.iter().map(|(_, implementation)| implementation.as_str()).collect();
    let program = format!(
        "#![allow(unused_imports)]\nuse interlock::*;\nuse interlock::{{{}::*}};\nstruct Local;\n\n{}\n\n\
         fn main() {{}}\n",
        MODULES.join("::*, "),
        lines.join("\n")
    );
    fs::write(folder.join("attempts.rs"), program).unwrap();
    // trybuild fails if the program compiles. It writes the compiler's errors otherwise.
    let output = Command::new(env::current_exe().unwrap())
        .args(["--exact", "each_trait_is_sealed_in_each_parameter", "--nocapture"])
        .envs([(ELSEWHERE, folder.as_os_str()), ("TRYBUILD", "overwrite".as_ref())])
        .output()
        .unwrap();
    assert!(output.status.success(), "all of it compiles:\n{}", String::from_utf8_lossy(&output.stderr));
    let message = format!("\n{}", fs::read_to_string(folder.join("attempts.stderr")).unwrap());
    // Skip errors that do not come from a seal, such as a missing item.
    let is_seal = |error: &&str| REFUSALS.iter().any(|code| error.starts_with(code));
    let places = message.split("\nerror").filter(is_seal).filter_map(|error| error.split("attempts.rs:").nth(1));
    let numbers = places.filter_map(|place| place.split(':').next()?.parse::<usize>().ok());
    numbers.filter_map(|line| Some((*lines.get(line.checked_sub(FIRST)?)?).to_owned())).collect()
}

#[test]
fn each_trait_is_sealed_in_each_parameter() {
    if let Some(folder) = env::var_os(ELSEWHERE) {
        let cases = trybuild::TestCases::new();
        files(Path::new(&folder)).iter().for_each(|file| cases.compile_fail(file));
        return;
    }
    let attempts = attempts();
    for (named, ours) in
        [("FillMemory", "SharedBuffer<Local>"), ("Carries", "ReliableConnection"), ("Serves", "Messages")]
    {
        let end = format!(" for {ours} {{}}");
        assert!(attempts[named].iter().any(|line| line.ends_with(&end)), "{named} for {ours}");
    }
    let mut left: Vec<(String, String)> = attempts
        .into_iter()
        .flat_map(|(name, all)| all.into_iter().map(move |implementation| (name.clone(), implementation)))
        .collect();
    // The compiler reports some kinds of errors only if there are none of other kinds. So repeat with the
    // implementations that it has not refused yet.
    while !left.is_empty() {
        let refused = refused(&left);
        assert!(!refused.is_empty(), "not sealed: {left:#?}");
        left.retain(|(_, implementation)| !refused.contains(implementation));
    }
}
