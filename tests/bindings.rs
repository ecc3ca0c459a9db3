//! The checked-in bindings, which builds without the feature `rdma-core` use, are those of the installed headers.
#![cfg(feature = "rdma-core")]

const FRESH: &str = include_str!(concat!(env!("OUT_DIR"), "/bindings.rs"));
const CHECKED_IN: &str = include_str!("../src/sys/bindings.rs");

/// The line that names the headers that bindings were made from.
fn version(bindings: &str) -> &str {
    bindings.lines().find(|line| line.starts_with("// libibverbs ")).expect("a version")
}

/// Layout assertions, one a line, without the white space that differs between formatters.
fn layouts(bindings: &str) -> Vec<String> {
    let squeezed: String = bindings.split_whitespace().collect();
    squeezed
        .split(';')
        .filter_map(|item| item.split_once("[\"").map(|(_, rest)| rest.to_owned()))
        .filter(|item| item.starts_with("Sizeof") || item.starts_with("Alignment") || item.starts_with("Offset"))
        .collect()
}

#[test]
fn checked_in_bindings_agree_with_the_installed_headers() {
    if version(FRESH) == version(CHECKED_IN) {
        let squeeze = |bindings: &str| bindings.split_whitespace().collect::<String>();
        assert!(squeeze(FRESH) == squeeze(CHECKED_IN), "copy the fresh bindings over src/sys/bindings.rs");
        return;
    }
    // Newer headers have more; what there was must lie where it lay.
    let fresh = layouts(FRESH);
    let old = layouts(CHECKED_IN);
    assert!(old.len() > 300, "{} assertions", old.len());
    let grown = ["verbs_context", "ibv_qp_attr", "ibv_qp_init_attr_ex"];
    for layout in old {
        let may_grow = grown.iter().any(|name| layout.contains(name));
        assert!(may_grow || fresh.contains(&layout), "moved since {}: {layout}", version(CHECKED_IN));
    }
}
