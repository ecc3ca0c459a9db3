//! The checked-in bindings match the installed headers, or differ only in ways that are safe with newer headers.
#![cfg(feature = "bindgen")]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

const FRESH_PATH: &str = concat!(env!("OUT_DIR"), "/bindings.rs");
const FRESH: &str = include_str!(concat!(env!("OUT_DIR"), "/bindings.rs"));
#[cfg(target_arch = "aarch64")]
const CHECKED_IN: &str = include_str!("../src/sys/bindings/aarch64.rs");
#[cfg(target_arch = "x86_64")]
const CHECKED_IN: &str = include_str!("../src/sys/bindings/x86_64.rs");

/// How a struct may grow in newer headers. It depends on who owns the memory; `src/sys/mod.rs` says why each way is
/// safe.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Growth {
    /// Not at all: the program owns the memory, and libibverbs is not told its size.
    No,
    /// At the end: the program owns the memory and passes its size or a mask of members, or libibverbs owns the memory.
    AtTheEnd,
    /// At the start: libibverbs owns the memory and counts from the end.
    AtTheStart,
}

fn growth(name: &str) -> Growth {
    match name {
        "verbs_context" => Growth::AtTheStart,
        // The program passes the size of each of these structs, so libibverbs writes no more bytes than that.
        "ibv_device_attr_ex" | "ibv_gid_entry" | "ibv_port_attr" => Growth::AtTheEnd,
        // `comp_mask` says which members are valid, so libibverbs reads no others.
        "ibv_cq_init_attr_ex" | "ibv_qp_init_attr_ex" => Growth::AtTheEnd,
        // libibverbs allocates this struct. The program reads only the members that it knows, which come first.
        "ibv_qp_ex" => Growth::AtTheEnd,
        _ => Growth::No,
    }
}

/// Returns the line that names the version of the headers.
fn version(bindings: &str) -> &str {
    bindings.lines().find(|line| line.starts_with("// libibverbs ")).expect("a version")
}

/// Removes comments and white space, which differ between formatters.
fn squeeze(bindings: &str) -> String {
    bindings.lines().filter(|line| !line.starts_with("//")).flat_map(str::split_whitespace).collect()
}

/// Finds each text between `start` and the next `end`, and splits it at `middle` into a key and a value.
fn items<'text>(squeezed: &'text str, start: &str, middle: &str, end: &str) -> BTreeMap<&'text str, &'text str> {
    let item = |rest: &'text str| rest.split_once(end)?.0.split_once(middle);
    squeezed.split(start).skip(1).filter_map(item).collect()
}

/// Returns the members of structs and unions with their types. No type in them contains braces.
fn members(squeezed: &str) -> BTreeMap<&str, &str> {
    let mut all = items(squeezed, "pubstruct", "{", "}");
    all.extend(items(squeezed, "pubunion", "{", "}"));
    all
}

/// Returns the numbers in the layout assertions, such as `Sizeofibv_sge` and `Offsetoffield:ibv_sge::length`.
fn layouts(squeezed: &str) -> BTreeMap<&str, usize> {
    items(squeezed, "[\"", "\"]", "usize]")
        .into_iter()
        .filter_map(|(name, text)| Some((name, text.rsplit_once('-')?.1.parse().ok()?)))
        .collect()
}

/// Lists what the newer headers lack or change although the library relies on it.
fn differences(old: &str, new: &str) -> Vec<String> {
    let (old, new) = (squeeze(old), squeeze(new));
    let mut found = Vec::new();
    let (was, is) = (members(&old), members(&new));
    for (name, members) in &was {
        let same = match (is.get(name), growth(name)) {
            (None, _) => false,
            (Some(now), Growth::No) => now == members,
            (Some(now), Growth::AtTheEnd) => now.starts_with(members),
            (Some(now), Growth::AtTheStart) => now.ends_with(members),
        };
        if !same {
            found.push(format!("members of {name}"));
        }
    }
    let (was, is) = (layouts(&old), layouts(&new));
    for (name, number) in &was {
        let about =
            name.trim_start_matches("Offsetoffield:").trim_start_matches("Sizeof").trim_start_matches("Alignmentof");
        let structure = about.split("::").next().unwrap_or_default();
        let size = format!("Sizeof{structure}");
        let same = match (is.get(name), growth(structure)) {
            (None, _) => false,
            (Some(now), Growth::No) => now == number,
            (Some(now), Growth::AtTheEnd) => now == number || *name == size && now > number,
            (Some(now), Growth::AtTheStart) => match (was.get(&*size), is.get(&*size)) {
                (Some(_), Some(_)) if *name == size => now >= number,
                (Some(before), Some(after)) if name.starts_with("Offset") => before - number == after - now,
                _ => now == number,
            },
        };
        if !same {
            found.push(format!("{name} {number}"));
        }
    }
    for (start, middle) in [("pubconst", "="), ("pubfn", "("), ("pubtype", "=")] {
        let (was, is) = (items(&old, start, middle, ";"), items(&new, start, middle, ";"));
        assert!(was.len() > 5, "{} of {start}", was.len());
        for (name, text) in was {
            if is.get(name) != Some(&text) {
                found.push(format!("{start} {name}"));
            }
        }
    }
    found
}

#[test]
fn checked_in_bindings_agree_with_the_installed_headers() {
    if version(FRESH) == version(CHECKED_IN) {
        let same = squeeze(FRESH) == squeeze(CHECKED_IN);
        assert!(same, "copy {FRESH_PATH} over src/sys/bindings/{}.rs", std::env::consts::ARCH);
        return;
    }
    assert!(layouts(&squeeze(CHECKED_IN)).len() > 300);
    assert!(members(&squeeze(CHECKED_IN)).len() > 50);
    let found = differences(CHECKED_IN, FRESH);
    assert!(found.is_empty(), "differ between {} and {}: {found:#?}", version(CHECKED_IN), version(FRESH));
}

/// The bindings of librdmacm are the same on each architecture.
#[cfg(feature = "cm")]
#[test]
fn checked_in_bindings_of_librdmacm_agree_with_the_installed_headers() {
    const OURS: &str = include_str!("../src/sys/bindings/rdmacm.rs");
    let path = Path::new(FRESH_PATH).with_file_name("rdmacm.rs");
    // Without librdmacm, the build makes no fresh bindings to compare with.
    let Ok(fresh) = fs::read_to_string(&path) else { return };
    let release = |bindings: &str| bindings.lines().find(|line| line.starts_with("// librdmacm ")).map(str::to_owned);
    if release(&fresh) == release(OURS) {
        assert!(squeeze(&fresh) == squeeze(OURS), "copy {} over src/sys/bindings/rdmacm.rs", path.display());
        return;
    }
    let (was, is) = (squeeze(OURS), squeeze(&fresh));
    let (was, is) = ((members(&was), layouts(&was)), (members(&is), layouts(&is)));
    assert!(was.1.len() > 60);
    assert_eq!(was, is, "{:?} and {:?}", release(OURS), release(&fresh));
}

/// Replaces one text in `bindings`, which must contain it.
fn with(bindings: &str, from: &str, to: &str) -> String {
    assert!(bindings.contains(from), "{from}");
    bindings.replacen(from, to, 1)
}

#[test]
fn growth_is_allowed_where_the_size_is_known_and_nowhere_else() {
    let squeezed = squeeze(CHECKED_IN);
    assert_eq!(differences(&squeezed, &squeezed), Vec::<String>::new());
    let grown = |name: &str, larger: usize| {
        let size = layouts(&squeezed)[&*format!("Sizeof{name}")];
        let (start, assertion) = (format!("pubstruct{name}{{"), format!("size_of::<{name}>()-"));
        let end = format!("{}{}", start, members(&squeezed)[name]);
        let text = with(&squeezed, &end, &format!("{end}pubnewer:u64,"));
        with(&text, &format!("{assertion}{size}usize"), &format!("{assertion}{}usize", size + larger))
    };
    assert_eq!(differences(&squeezed, &grown("ibv_port_attr", 8)), Vec::<String>::new());
    assert_eq!(differences(&squeezed, &grown("ibv_qp_ex", 8)), Vec::<String>::new());
    for name in ["ibv_wc", "ibv_device_attr", "ibv_qp_attr", "ibv_srq_attr", "ibv_async_event"] {
        let found = differences(&squeezed, &grown(name, 8));
        assert_eq!(
            found,
            [format!("members of {name}"), format!("Sizeof{name} {}", layouts(&squeezed)[&*format!("Sizeof{name}")])]
        );
    }
    // `verbs_context` grows at its start; growth at its end is refused.
    assert!(!differences(&squeezed, &grown("verbs_context", 8)).is_empty());
}

#[test]
fn a_moved_member_another_constant_and_another_signature_are_found() {
    let squeezed = squeeze(CHECKED_IN);
    let found = |from: &str, to: &str| differences(&squeezed, &with(&squeezed, from, to));
    assert_eq!(found("publkey:u32,}", "publkey:i32,}"), ["members of ibv_sge"]);
    let (from, to) = ("offset_of!(ibv_port_attr,state)-0usize", "offset_of!(ibv_port_attr,state)-4usize");
    assert_eq!(found(from, to), ["Offsetoffield:ibv_port_attr::state 0"]);
    let (from, to) = ("IBV_WC_SEND:ibv_wc_opcode=ibv_wc_opcode(0)", "IBV_WC_SEND:ibv_wc_opcode=ibv_wc_opcode(9)");
    assert_eq!(found(from, to), ["pubconst IBV_WC_SEND:ibv_wc_opcode"]);
    assert_eq!(found("pubfnibv_dereg_mr(", "pubfnibv_dereg_mr(flags:u32,"), ["pubfn ibv_dereg_mr"]);
}
