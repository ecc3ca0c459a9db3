//! Checks the structure of `src/`, read from the source: which floor uses which, which files use each other in a
//! circle, where `unsafe` is, and how many names are at the crate root.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::{env, fs};
use syn::visit::{self, Visit};
use syn::{Attribute, Item, ItemMod, ItemUse, Meta, UseTree};

/// The layers, from the lowest one up. A file may use its own layer and those before it.
const FLOORS: [&str; 11] =
    ["sys", "provider", "device", "domain", "memory", "inflight", "completion", "queue", "scope", "cm", "aio"];

/// Modules that every layer may use. They use only each other and `sys`.
const SERVICES: [&str; 7] = ["os", "readiness", "seal", "sync", "trace", "types", "verb_error"];

/// Files of one layer that use each other, with the reason why that is better than the alternatives. Files of the soft
/// device are not checked, because the device is one machine in many files.
const CIRCLES: [(&[&str], &str); 6] = [
    (
        &["aio/closing.rs", "aio/cm.rs", "aio/connection.rs", "aio/tcp.rs"],
        "each way to connect makes connections, and a connection keeps what it was made by, to close it",
    ),
    (&["completion/departing.rs", "completion/message.rs"], "a message carries a pair, which gives its places back"),
    (
        &["completion/poller.rs", "completion/poller/gone.rs", "completion/queue.rs"],
        "a poller keeps its queue, and the queue keeps what a dropped poller has left",
    ),
    (
        &["inflight/polling.rs", "inflight/raw_completion_queue.rs"],
        "the polling end keeps its queue, and making a queue returns that end",
    ),
    (&["scope/error.rs", "scope/ticket.rs"], "an error gives the ticket back"),
    (&["scope/exclusive.rs", "scope/section.rs"], "the one opens the other, and is kept by it"),
];

/// The greatest allowed number of `unsafe` blocks and implementations outside of the soft device, and of files with
/// them.
const MOST_UNSAFE: (usize, usize) = (236, 20);

/// The same for the soft device.
const MOST_UNSAFE_IN_SOFT: (usize, usize) = (119, 7);

/// The layers without `unsafe` code, in which the compiler refuses it.
const SAFE_FLOORS: [&str; 5] = ["device", "completion", "queue", "cm", "aio"];

/// The greatest allowed number of names at the crate root, not counting modules.
const MOST_NAMES: usize = 45;

/// One module: a file, or a `mod` with a body.
#[derive(Default)]
struct Module {
    /// Its path below `src/`.
    file: String,
    /// The names that it declares or imports for items of other modules: the local name, and the path from the crate
    /// root.
    imports: BTreeMap<String, Vec<String>>,
    /// The modules from which it imports everything.
    globs: Vec<Vec<String>>,
    /// All its paths to items of this crate, from the root.
    uses: Vec<Use>,
    /// The number of its `unsafe` blocks and implementations.
    unsafe_count: usize,
}

/// A mention of an item of this crate.
struct Use {
    path: Vec<String>,
    /// Whether the mention is only a `pub use`.
    is_reexport: bool,
}

/// All modules by their path from the root. The root's path is empty.
type Modules = BTreeMap<Vec<String>, Module>;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Whether the item exists only in tests or in documentation.
fn is_for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().filter(|attribute| attribute.path().is_ident("cfg")).any(|attribute| match &attribute.meta {
        Meta::List(list) => {
            let condition = list.tokens.to_string().replace(' ', "");
            let is = |word: &str| condition.split(['(', ')', ',']).any(|part| part == word);
            (is("test") || is("doc") || is("doctest"))
                && !condition.starts_with("not(")
                && !condition.starts_with("any(")
        }
        _ => false,
    })
}

/// Reads a file, and the files that it declares as modules.
fn read(file: &str, path: &[String], modules: &mut Modules) {
    let text = fs::read_to_string(root().join("src").join(file)).unwrap_or_else(|error| panic!("{file}: {error}"));
    let parsed = syn::parse_file(&text).unwrap_or_else(|error| panic!("{file}: {error}"));
    walk(file, path, &parsed.items, modules);
}

fn walk(file: &str, path: &[String], items: &[Item], modules: &mut Modules) {
    let mut reader = Reader { path: path.to_vec(), module: Module { file: file.to_owned(), ..Module::default() } };
    let mut children: Vec<&ItemMod> = Vec::new();
    for item in items {
        match item {
            Item::Mod(child) if is_for_tests(&child.attrs) => {}
            Item::Mod(child) => children.push(child),
            item => reader.visit_item(item),
        }
    }
    modules.insert(path.to_vec(), reader.module);
    for child in children {
        let name = child.ident.to_string();
        let below = [path, std::slice::from_ref(&name)].concat();
        match &child.content {
            Some((_, items)) => walk(file, &below, items, modules),
            None if below == ["sys", "bindings"] => {}
            None => {
                let folder = file.strip_suffix("mod.rs").or(file.strip_suffix("lib.rs")).map(str::to_owned);
                let folder = folder.unwrap_or_else(|| format!("{}/", file.trim_end_matches(".rs")));
                let [flat, nested] = [format!("{folder}{name}.rs"), format!("{folder}{name}/mod.rs")];
                let is_flat = root().join("src").join(&flat).exists();
                read(if is_flat { &flat } else { &nested }, &below, modules);
            }
        }
    }
}

/// Gathers the mentions of one module.
struct Reader {
    path: Vec<String>,
    module: Module,
}

impl Reader {
    /// The path from the crate root; `None` if it does not lead to an item of this crate.
    fn absolute(&self, segments: &[String]) -> Option<Vec<String>> {
        let mut base = self.path.clone();
        let mut rest = segments;
        match rest.first()?.as_str() {
            "crate" => base.clear(),
            "self" => {}
            "super" => {
                base.pop();
            }
            _ => return None,
        }
        rest = &rest[1..];
        while rest.first().is_some_and(|segment| segment == "super") {
            base.pop();
            rest = &rest[1..];
        }
        base.extend_from_slice(rest);
        Some(base)
    }

    fn mention(&mut self, segments: &[String], is_reexport: bool) {
        if let Some(path) = self.absolute(segments) {
            self.module.uses.push(Use { path, is_reexport });
        }
    }

    fn import(&mut self, tree: &UseTree, before: &[String], is_reexport: bool) {
        let with = |name: String| [before, &[name]].concat();
        match tree {
            UseTree::Path(path) => self.import(&path.tree, &with(path.ident.to_string()), is_reexport),
            UseTree::Group(group) => group.items.iter().for_each(|tree| self.import(tree, before, is_reexport)),
            UseTree::Glob(_) => {
                self.mention(before, is_reexport);
                self.module.globs.extend(self.absolute(before));
            }
            UseTree::Name(name) if name.ident == "self" => self.note(before.last().cloned(), before, is_reexport),
            UseTree::Name(name) => {
                self.note(Some(name.ident.to_string()), &with(name.ident.to_string()), is_reexport);
            }
            UseTree::Rename(rename) => {
                self.note(Some(rename.rename.to_string()), &with(rename.ident.to_string()), is_reexport);
            }
        }
    }

    fn note(&mut self, name: Option<String>, segments: &[String], is_reexport: bool) {
        // `absolute` knows only paths that begin with `crate`, `self` or `super`. Any other path is taken as one from
        // this module, because the `ring` in `use ring::Held;` can be a child of this module.
        let from_here = self.absolute(segments).unwrap_or_else(|| [&self.path, segments].concat());
        self.module.imports.extend(name.map(|name| (name, from_here)));
        self.mention(segments, is_reexport);
    }
}

impl<'ast> Visit<'ast> for Reader {
    fn visit_item(&mut self, item: &'ast Item) {
        let attributes: &[Attribute] = match item {
            Item::Const(item) => &item.attrs,
            Item::Fn(item) => &item.attrs,
            Item::Impl(item) => &item.attrs,
            Item::Struct(item) => &item.attrs,
            Item::Use(item) => &item.attrs,
            _ => &[],
        };
        if !is_for_tests(attributes) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_mod(&mut self, item: &'ast ItemMod) {
        if !is_for_tests(&item.attrs) {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        if !is_for_tests(&function.attrs) {
            visit::visit_impl_item_fn(self, function);
        }
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        let is_reexport = !matches!(item.vis, syn::Visibility::Inherited);
        self.import(&item.tree, &[], is_reexport);
    }

    /// The path in `pub(crate)` is not a mention.
    fn visit_visibility(&mut self, _: &'ast syn::Visibility) {}

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let segments: Vec<String> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        self.mention(&segments, false);
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        let tokens = call.tokens.to_string();
        for (at, _) in ["crate ::", "super ::"].iter().flat_map(|start| tokens.match_indices(start)) {
            // `super :: super ::` is one path: the second `super` does not begin another.
            if tokens[..at].ends_with(":: ") {
                continue;
            }
            let path =
                tokens[at..].split(" :: ").map(|part| part.split([' ', ',', '(', ')', ';', '<']).next().unwrap());
            self.mention(&path.map(str::to_owned).collect::<Vec<_>>(), false);
        }
        self.module.unsafe_count += tokens.matches("unsafe {").count();
        visit::visit_macro(self, call);
    }

    fn visit_expr_unsafe(&mut self, block: &'ast syn::ExprUnsafe) {
        self.module.unsafe_count += 1;
        visit::visit_expr_unsafe(self, block);
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        self.module.unsafe_count += usize::from(item.unsafety.is_some());
        visit::visit_item_impl(self, item);
    }
}

fn modules() -> Modules {
    let mut modules = Modules::new();
    read("lib.rs", &[], &mut modules);
    modules
}

/// The module that defines the item at `path`, however often the item is re-exported.
fn home(path: &[String], modules: &Modules, depth: usize) -> Vec<String> {
    let mut at: Vec<String> = Vec::new();
    for (index, segment) in path.iter().enumerate() {
        let below = [&at[..], std::slice::from_ref(segment)].concat();
        if modules.contains_key(&below) {
            at = below;
            continue;
        }
        let rest = &path[index + 1..];
        let Some(module) = modules.get(&at) else { break };
        if let Some(import) = module.imports.get(segment)
            && depth < 8
            && import != path
        {
            return home(&[import, rest].concat(), modules, depth + 1);
        }
        break;
    }
    at
}

/// Which file uses which file, with a path as evidence.
fn edges(modules: &Modules, with_reexports: bool) -> BTreeMap<(String, String), String> {
    let mut edges = BTreeMap::new();
    for module in modules.values() {
        for Use { path, is_reexport } in &module.uses {
            if *is_reexport && !with_reexports {
                continue;
            }
            let Some(target) = modules.get(&home(path, modules, 0)) else { continue };
            if target.file != module.file {
                edges.insert((module.file.clone(), target.file.clone()), path.join("::"));
            }
        }
    }
    edges
}

/// The layer or the service to which a file belongs.
fn room(file: &str) -> &str {
    file.split(['/', '.']).next().unwrap()
}

fn floor(file: &str) -> Option<usize> {
    FLOORS.iter().position(|floor| *floor == room(file))
}

#[test]
fn each_floor_uses_only_those_below_it() {
    let modules = modules();
    let mut wrong = BTreeSet::new();
    for ((from, to), path) in edges(&modules, true) {
        let allowed = match (room(&from), floor(&from), floor(&to)) {
            // `lib`, `verbs` and the modules of `front` are allowed to use every floor, to re-export from it.
            ("lib" | "front" | "verbs", ..) => true,
            (_, Some(from), Some(to)) => to <= from,
            (_, Some(_), None) => SERVICES.contains(&room(&to)),
            (room_of_user, None, _) => {
                assert!(SERVICES.contains(&room_of_user), "{from} is on no floor: name it in tests/house.rs");
                SERVICES.contains(&room(&to)) || room(&to) == "sys"
            }
        };
        if !allowed {
            wrong.insert(format!("src/{from} uses crate::{path} of src/{to}"));
        }
    }
    assert!(wrong.is_empty(), "against the order {}:\n{wrong:#?}", FLOORS.join(" -> "));
}

/// Groups of files in which each file uses every other, directly or indirectly.
fn circles(edges: &BTreeMap<(String, String), String>) -> BTreeSet<BTreeSet<String>> {
    let mut reaches: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (from, to) in edges.keys().filter(|(from, to)| room(from) == room(to) && !from.starts_with("provider/soft")) {
        reaches.entry(from).or_default().insert(to);
    }
    loop {
        let mut grown = reaches.clone();
        for (from, targets) in &reaches {
            let further: Vec<&str> = targets.iter().filter_map(|to| reaches.get(to)).flatten().copied().collect();
            grown.entry(from).or_default().extend(further);
        }
        if grown == reaches {
            break;
        }
        reaches = grown;
    }
    let back = |from: &str, to: &str| reaches.get(to).is_some_and(|targets| targets.contains(from));
    reaches
        .iter()
        .map(|(from, targets)| targets.iter().filter(|to| back(from, to)).map(|to| (*to).to_owned()).collect())
        .filter(|circle: &BTreeSet<String>| circle.len() > 1)
        .collect()
}

#[test]
fn files_that_use_each_other_are_few_and_named() {
    let found = circles(&edges(&modules(), false));
    let named: BTreeSet<BTreeSet<String>> =
        CIRCLES.iter().map(|(files, _)| files.iter().map(|file| (*file).to_owned()).collect()).collect();
    assert_eq!(found, named);
}

#[test]
fn unsafe_code_is_in_few_rooms() {
    let is_soft = |file: &str| file.starts_with("provider/soft");
    for (soft, (blocks, files)) in [(false, MOST_UNSAFE), (true, MOST_UNSAFE_IN_SOFT)] {
        let mut rooms: BTreeMap<String, usize> = BTreeMap::new();
        for module in modules().values().filter(|module| is_soft(&module.file) == soft) {
            *rooms.entry(module.file.clone()).or_default() += module.unsafe_count;
        }
        rooms.retain(|_, count| *count > 0);
        let total: usize = rooms.values().sum();
        assert!(
            total <= blocks && rooms.len() <= files,
            "{total} in {} files, and `MOST_UNSAFE` allows {blocks} in {files}: {rooms:#?}",
            rooms.len()
        );
    }
}

#[test]
fn layers_without_unsafe_code_forbid_it() {
    for floor in SAFE_FLOORS {
        let file = fs::read_to_string(root().join(format!("src/{floor}/mod.rs"))).unwrap();
        let forbids = ["#![forbid(unsafe_code)]", "#![cfg_attr(not(test), forbid(unsafe_code))]"];
        assert!(file.lines().any(|line| forbids.contains(&line)), "{floor}");
    }
}

#[test]
fn the_front_door_is_small() {
    let modules = modules();
    let is_module = |path: &Vec<String>| {
        modules.contains_key(&home(path, &modules, 0)) && {
            let last = path.last();
            home(path, &modules, 0).last() == last
        }
    };
    let names = modules[&Vec::new()].imports.iter().filter(|(_, path)| !is_module(path));
    let names: Vec<&String> = names.map(|(name, _)| name).collect();
    assert!(names.len() <= MOST_NAMES, "{} names at the crate root: {names:?}", names.len());
}

/// The page of the module `error` sorts its types by subject.
#[test]
fn the_list_of_errors_is_complete() {
    let text = fs::read_to_string(root().join("src/front/error.rs")).unwrap();
    let (documentation, exports) = text.split_once("\npub use").expect("the module is a list of exports");
    let is_type = |word: &&str| word.starts_with(|first: char| first.is_ascii_uppercase());
    let missing: Vec<_> = exports
        .split(|c: char| !c.is_alphanumeric())
        .filter(is_type)
        .filter(|name| !documentation.contains(&format!("[`{name}`]")))
        .collect();
    assert!(missing.is_empty(), "the documentation of src/front/error.rs does not name {missing:?}");
}

/// Whether a line is longer than the formatter's 120 columns. Tables, pictures, addresses and strings are exempt,
/// because they cannot be broken.
fn is_too_long(line: &str) -> bool {
    let text = line.trim_start().trim_start_matches(['/', '!']).trim_start();
    line.chars().count() > 120
        && !text.starts_with('|')
        && !text.contains("──▶")
        && !line.contains(['"', '\\'])
        && !line.contains("://")
}

#[test]
fn no_line_is_too_long() {
    let mut long = Vec::new();
    let mut folders = vec![root().to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if path.is_dir() && !name.starts_with('.') && !["target", "bindings", "ui-tests"].contains(&&*name) {
                folders.push(path);
            } else if name.ends_with(".rs") || name.ends_with(".md") {
                let text = fs::read_to_string(&path).unwrap();
                let lines = text.lines().enumerate().filter(|(_, line)| is_too_long(line));
                long.extend(lines.map(|(at, _)| format!("{}:{}", path.display(), at + 1)));
            }
        }
    }
    assert!(long.is_empty(), "{} lines are longer than 120 columns: {long:#?}", long.len());
}
