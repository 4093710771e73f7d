//! A plugin that panics, fails or talks nonsense weakens the dump and never loses it; erasing fails closed.

use coresift_tests::vmcores::KDUMP_6_1;
use coresift_tests::{Run, coresift, kdump::Kdump, peers, scratch};
use serde_json::Value;

/// A PFN of 6.1 that holds a page that is not zero (makedumpfile keeps it), and the length of the run tested.
const FIRST: u64 = 0x10400;
const PAGES: u64 = 64;

/// Dumps 6.1 with the unruly filter in this mode.
fn with_mode(folder: &std::path::Path, mode: &str, extra: &str) -> Run {
    let profile = folder.join("unruly.toml");
    let text = format!(
        "extends = \"kdump\"\n[[filter]]\nplugin = \"unruly\"\nmode = \"{mode}\"\nfirst = {FIRST}\npages = {PAGES}\n{extra}\n[[filter]]\nplugin = \"zero\"\n"
    );
    std::fs::write(&profile, text).unwrap();
    let (input, out) = (KDUMP_6_1.path(), folder.join("out"));
    let args = ["dump".as_ref(), "--json".as_ref(), "--force".as_ref(), "--strict-exit".as_ref(), "--profile".as_ref()];
    coresift(args.into_iter().chain([profile.as_os_str(), input.as_os_str(), out.as_os_str()]))
}

fn class<'a>(report: &'a Value, name: &str) -> &'a Value {
    let found = report["classes"].as_array().unwrap().iter().find(|c| c["class"] == name);
    found.map_or(&Value::Null, |c| &c["pages"])
}

#[test]
fn a_filter_that_panics_or_fails_keeps_its_pages_and_is_named() {
    let folder = scratch();
    let zero = KDUMP_6_1.manifest()["zero_pages"].clone();
    for (mode, what) in [
        ("panic-open", "panicked in open"),
        ("panic-survey", "panicked in survey"),
        ("panic-classify", "panicked in classify"),
        ("panic-inspect", "panicked in inspect"),
        ("panic-payload", "panicked in inspect"),
        ("exclude-then-panic", "panicked in survey"),
        ("error-inspect", "as asked for"),
        ("unknown-verdict", "unknown verdict 77"),
    ] {
        let run = with_mode(folder.path(), mode, "").status(4);
        let report = run.json();
        let issue = &report["issues"][0];
        assert_eq!(issue["who"], "filter unruly", "{report}");
        assert!(issue["what"].as_str().unwrap().contains(what), "{mode}: {report}");
        // The other filter still works, and every page is there.
        assert_eq!(*class(&report, "zero"), zero);
        peers::same_pages(&KDUMP_6_1.path(), &folder.path().join("out"), 0);
        assert!(!run.stderr.contains("panicked at"), "the plugin printed: {}", run.stderr);
    }
}

#[test]
fn a_compressor_that_fails_or_lies_costs_space_and_never_a_page() {
    let folder = scratch();
    let (input, out) = (KDUMP_6_1.path(), folder.path().join("out"));
    for (mode, status, what) in [
        ("garbage", 4, "does not come back"),
        ("long", 0, ""),
        ("panic", 4, "panicked in compress"),
        ("error", 4, "stored uncompressed"),
        ("panic-drop", 0, ""),
    ] {
        let set = format!("compress.mode={mode}");
        let args = ["dump", "--json", "--force", "--strict-exit", "-d", "1", "--compress", "unruly", "--set", &set];
        let report = coresift(args.iter().map(AsRef::as_ref).chain([input.as_os_str(), out.as_os_str()])).status(status).json();
        assert!(report["issues"].to_string().contains(what), "{mode}: {report}");
        peers::same_pages(&input, &out, 0);
    }
}

#[test]
fn a_filter_that_panics_when_it_is_dropped_costs_nothing() {
    let folder = scratch();
    let report = with_mode(folder.path(), "panic-drop", "").status(0).json();
    assert_eq!(report["outcome"], "complete", "{report}");
    peers::same_pages(&KDUMP_6_1.path(), &folder.path().join("out"), 0);
}

#[test]
fn a_page_that_one_filter_keeps_is_not_dropped_by_another_that_sees_its_bytes() {
    let folder = scratch();
    let profile = folder.path().join("keep.toml");
    let unruly = |mode: &str| format!("[[filter]]\nplugin = \"unruly\"\nmode = \"{mode}\"\nfirst = 0\npages = 1048576\n");
    let (input, out) = (KDUMP_6_1.path(), folder.path().join("out"));
    for order in [["keep-range", "inspect-ones"], ["inspect-ones", "keep-range"]] {
        std::fs::write(&profile, format!("extends = \"plain\"\n{}{}", unruly(order[0]), unruly(order[1]))).unwrap();
        let args = ["dump".as_ref(), "--json".as_ref(), "--force".as_ref(), "--profile".as_ref(), profile.as_os_str(), input.as_os_str()];
        let report = coresift(args.into_iter().chain([out.as_os_str()])).status(0).json();
        assert_eq!(report["pages"]["excluded"], 0, "{order:?}: {report}");
    }
}

#[test]
fn on_failure_stop_ends_the_run() {
    let folder = scratch();
    for mode in ["panic-open", "panic-classify", "panic-inspect"] {
        let run = with_mode(folder.path(), mode, "on_failure = \"stop\"").status(1);
        assert!(run.stderr.contains("filter unruly: panicked in"), "{}", run.stderr);
        assert!(!folder.path().join("out").exists());
    }
}

#[test]
fn ranges_are_left_out_by_survey_and_by_block() {
    let folder = scratch();
    for (mode, name) in [("exclude-range", "ranged"), ("classify-range", "free")] {
        let report = with_mode(folder.path(), mode, "").status(0).json();
        assert_eq!(*class(&report, name), PAGES, "{report}");
        let dumped = Kdump::open(&folder.path().join("out")).unwrap().dumped();
        assert!((FIRST..FIRST + PAGES).all(|pfn| dumped.binary_search(&pfn).is_err()));
        let compared = peers::same_pages(&KDUMP_6_1.path(), &folder.path().join("out"), PAGES);
        assert_eq!(compared["missing"], PAGES);
    }
}

#[test]
fn keep_beats_exclude_in_any_order() {
    let folder = scratch();
    let unruly = |mode: &str| format!("[[filter]]\nplugin = \"unruly\"\nmode = \"{mode}\"\nfirst = {FIRST}\npages = {PAGES}\n");
    for order in [["keep-range", "exclude-range"], ["exclude-range", "keep-range"]] {
        let profile = folder.path().join("keep.toml");
        std::fs::write(&profile, format!("extends = \"kdump\"\n{}{}", unruly(order[0]), unruly(order[1]))).unwrap();
        let (input, out) = (KDUMP_6_1.path(), folder.path().join("out"));
        let args = ["dump".as_ref(), "--json".as_ref(), "--force".as_ref(), "--profile".as_ref(), profile.as_os_str(), input.as_os_str()];
        let report = coresift(args.into_iter().chain([out.as_os_str()])).status(0).json();
        assert_eq!(report["pages"]["excluded"], 0, "{order:?}: {report}");
        peers::same_pages(&input, &out, 0);
    }
}

#[test]
fn pages_that_a_filter_drops_by_their_bytes_are_not_in_the_dump() {
    let folder = scratch();
    let report = with_mode(folder.path(), "inspect-ones", "").status(0).json();
    let ones = class(&report, "ones").as_u64().unwrap_or(0);
    assert_eq!(report["outcome"], "complete");
    assert_eq!(ones, KDUMP_6_1.manifest()["pages_of_ones"].as_u64().unwrap());
    let compared = peers::same_pages(&KDUMP_6_1.path(), &folder.path().join("out"), ones);
    assert_eq!(compared["missing"], ones);
}

#[test]
fn erased_bytes_are_not_in_the_dump() {
    let folder = scratch();
    with_mode(folder.path(), "erase-range", "").status(0);
    let out = folder.path().join("out");
    // Read back by makedumpfile as an uncompressed file, so that pages can be looked at where they stand.
    let raw = folder.path().join("raw");
    assert_eq!(peers::makedumpfile(&["-d", "0"], &out, &raw).status, 0);
    let raw = Kdump::open(&raw).unwrap();
    let dumped = raw.dumped();
    for pfn in FIRST - 1..=FIRST + PAGES {
        let (at, size, _) = raw.descriptor(dumped.binary_search(&pfn).unwrap());
        let page = &raw.bytes[at..at + size];
        assert_eq!(page.iter().all(|&b| b == b'X'), (FIRST..FIRST + PAGES).contains(&pfn), "PFN {pfn:#x}");
    }
}
