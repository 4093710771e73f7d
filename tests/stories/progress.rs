//! Progress: nothing is drawn when it is not wanted, lines where there is no terminal, events for programs.

use coresift_tests::vmcores::KDUMP_6_1;
use coresift_tests::{Run, coresift, scratch};

/// A run of a second or more.
fn dump(mode: &str) -> Run {
    let folder = scratch();
    let (input, out) = (KDUMP_6_1.path(), folder.path().join("out"));
    let args = ["dump", "--json", "-d", "1", "--compress", "libdeflate:9", "--progress", mode];
    coresift(args.iter().map(AsRef::as_ref).chain([input.as_os_str(), out.as_os_str()])).status(0)
}

#[test]
fn none_says_nothing() {
    assert_eq!(dump("none").stderr, "");
}

#[test]
fn that_nobody_hears_it_does_not_cost_the_dump() {
    let folder = scratch();
    let (input, full) = (KDUMP_6_1.path(), std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap());
    for mode in ["auto", "lines", "json"] {
        let out = folder.path().join(mode);
        let args = ["dump".as_ref(), "-d".as_ref(), "1".as_ref(), "--progress".as_ref(), mode.as_ref(), input.as_os_str(), out.as_os_str()];
        let run = coresift_tests::command(args).stderr(full.try_clone().unwrap()).output().unwrap();
        assert!(run.status.success(), "{mode}: {:?}", run.status);
        coresift_tests::peers::same_pages(&input, &out, 0);
    }
}

#[test]
fn without_a_terminal_auto_prints_plain_lines() {
    let said = dump("auto").stderr;
    assert!(!said.contains('\u{1b}') && !said.contains('\r'), "{said:?}");
    assert!(said.starts_with("coresift: copying pages: 48,855 in all\n"), "{said:?}");
}

#[test]
fn json_prints_one_event_a_line_that_ends_at_the_total() {
    let run = dump("json");
    let events: Vec<serde_json::Value> =
        run.stderr.lines().map(|l| serde_json::from_str(l).unwrap_or_else(|e| panic!("{e}: {l}"))).collect();
    let copy: Vec<_> = events.iter().filter(|e| e["phase"] == "copy").collect();
    let total = KDUMP_6_1.manifest()["pfns"].clone();
    assert!(copy.len() >= 2 && copy.iter().all(|e| e["total"] == total && e["unit"] == "pages"), "{events:?}");
    let done: Vec<_> = copy.iter().map(|e| e["done"].as_u64().unwrap()).collect();
    assert!(done.is_sorted() && done[0] == 0);
    assert_eq!(done.last(), total.as_u64().as_ref(), "the last event of a phase has its end");
    // The report stays alone on standard output.
    assert_eq!(run.json()["outcome"], "complete");
}
