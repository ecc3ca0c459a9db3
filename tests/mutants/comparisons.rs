//! Comparisons of domains at run time: without one of them, the tests that rest on it fail, and no others.

use super::{change, copy_package};
use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A mutant without one comparison of domains, and the tests of `tests/checked.rs` that must fail.
pub(super) struct Unchecked {
    pub(super) without: &'static str,
    pub(super) changes: &'static [(&'static str, &'static str, &'static str)],
    tests: &'static [&'static str],
}

pub(super) const UNCHECKED: &[Unchecked] = &[
    Unchecked {
        without: "any comparison of domains",
        changes: &[("domain/brand.rs", "const CHECKED: bool = true;", "const CHECKED: bool = false;")],
        // The list has no tests of functions that also compare other things, such as `join`. These functions refuse an
        // object of another domain even in this mutant.
        tests: &[
            "a_batch_of_all_items_takes_memory_of_its_own_domain",
            "a_batch_takes_memory_of_its_own_domain",
            "a_buffer_is_not_of_a_domain_that_came_later",
            "a_completed_buffer_keeps_its_domain",
            "a_datagram_is_answered_in_the_domain_to_which_it_came",
            "a_drain_polls_a_queue_of_its_own_domain",
            "a_list_is_of_one_domain_whenever_it_is_posted",
            "a_mix_up_does_not_reach_the_device",
            "a_pair_and_a_poller_of_different_domains_are_not_exclusive",
            "a_pair_on_a_shared_queue_completes_in_its_own_domain",
            "a_queue_pair_completes_on_a_queue_of_its_own_domain",
            "a_receive_takes_memory_of_its_own_domain",
            "a_send_takes_memory_of_its_own_domain",
            "a_shared_buffer_is_sent_in_its_own_domain",
            "a_shared_receive_takes_memory_of_its_own_domain",
            "a_window_is_bound_over_memory_and_on_a_pair_of_its_own_domain",
            "an_address_handle_of_another_domain_is_no_way",
            "an_atomic_takes_memory_of_its_own_domain",
            "any_number_of_domains_work_side_by_side",
            "halves_take_memory_of_their_own_domain",
            "receives_complete_on_a_queue_of_the_same_domain_as_sends",
        ],
    },
    Unchecked {
        without: "the buffers of a list after the first",
        changes: &[("memory/list.rs", ".all(|part| part.is_of(domain))", ".take(1).all(|part| part.is_of(domain))")],
        tests: &["a_list_is_of_one_domain_whenever_it_is_posted", "a_receive_takes_memory_of_its_own_domain"],
    },
    Unchecked {
        without: "the recipient of a datagram",
        changes: &[("queue/datagram.rs", " && self.recipient.handle.inner.domain() == domain", "")],
        tests: &["an_address_handle_of_another_domain_is_no_way"],
    },
    Unchecked {
        without: "the queue of the receives",
        changes: &[("queue/create.rs", "for queue in [sends, receives] {", "for queue in [sends] {")],
        tests: &[
            "a_pair_on_a_shared_queue_completes_in_its_own_domain",
            "a_queue_pair_completes_on_a_queue_of_its_own_domain",
            "receives_complete_on_a_queue_of_the_same_domain_as_sends",
        ],
    },
    Unchecked {
        without: "the domain of a window",
        changes: &[("inflight/windows.rs", "if B::CHECKED && window.domain() != self.domain() {", "if false {")],
        tests: &["a_window_is_bound_over_memory_and_on_a_pair_of_its_own_domain"],
    },
    Unchecked {
        without: "the domain of what a window is bound over",
        changes: &[("inflight/windows.rs", "if B::CHECKED && !memory.is_of(domain) {", "if false {")],
        tests: &["a_window_is_bound_over_memory_and_on_a_pair_of_its_own_domain"],
    },
];

#[test]
#[ignore = "builds the library once per mutant, some minutes in all: cargo test --test mutants -- --ignored"]
fn without_its_comparison_each_mix_up_passes() {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("unchecked");
    let library = folder.join("library");
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    for Unchecked { without, changes, tests } in UNCHECKED {
        copy_package(&root, &library);
        change(&library, without, changes);
        let output = Command::new(env::var_os("CARGO").unwrap_or("cargo".into()))
            .args(["test", "--offline", "--quiet", "--no-default-features", "--features", "soft", "--test", "checked"])
            .args(["--", "--format=pretty", "--test-threads=1"])
            .current_dir(&library)
            // The target folder of this program already contains the built dependencies of the library.
            .env("CARGO_TARGET_DIR", target)
            .env("INTERLOCK_DEVICE", "soft0")
            // The mutants differ only in a few lines, so incremental builds save time.
            .env("CARGO_INCREMENTAL", "1")
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        let ended = |how: &str| {
            let names = text.lines().filter_map(|line| line.strip_prefix("test ")?.strip_suffix(how));
            names.map(str::to_owned).collect::<Vec<_>>()
        };
        assert!(!ended(" ... ok").is_empty(), "without {without}: {}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(ended(" ... FAILED"), *tests, "without {without}");
        println!("without {without}: {} tests fail", tests.len());
    }
}
