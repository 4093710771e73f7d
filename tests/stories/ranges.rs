//! The filter of physical ranges and patterns: what a site names is out, or stays, whatever other filters say.

use coresift_tests::kdump::Kdump;
use coresift_tests::vmcores::KDUMP_6_1;
use coresift_tests::{Run, coresift, peers, scratch};
use serde_json::Value;

/// Dumps 6.1 with the page filter at this level and these settings of `ranges`.
fn with(folder: &std::path::Path, level: i32, settings: &str) -> Run {
    beside(folder, &format!("plugin = \"linux\"\nlevel = {level}"), settings, &KDUMP_6_1.path())
}

/// Dumps an input with another filter and these settings of `ranges`.
fn beside(folder: &std::path::Path, other: &str, settings: &str, input: &std::path::Path) -> Run {
    let profile = folder.join("ranges.toml");
    let text =
        format!("extends = \"kdump\"\n[[filter]]\n{other}\n[[filter]]\nplugin = \"ranges\"\n{settings}\n[compress]\nplugin = \"none\"\n");
    std::fs::write(&profile, text).unwrap();
    let out = folder.join("out");
    let args = ["dump".as_ref(), "--json".as_ref(), "--force".as_ref(), "--progress".as_ref(), "none".as_ref(), "--profile".as_ref()];
    coresift(args.into_iter().chain([profile.as_os_str(), input.as_os_str(), out.as_os_str()]))
}

fn dumped(folder: &std::path::Path) -> Vec<u64> {
    Kdump::open(&folder.join("out")).unwrap().dumped()
}

fn class(report: &Value, name: &str) -> u64 {
    let classes = report["classes"].as_array().unwrap();
    classes.iter().filter(|c| c["class"] == name).map(|c| c["pages"].as_u64().unwrap()).sum()
}

/// `/proc/iomem` as it was for this machine: RAM by the vmcore's segments, and the kernel's image among it.
fn iomem(folder: &std::path::Path) -> String {
    let loads = KDUMP_6_1.manifest()["loads"].clone();
    let hex = |v: &Value| u64::from_str_radix(v.as_str().unwrap().trim_start_matches("0x"), 16).unwrap();
    let line =
        |load: &Value, name: &str| format!("{:08x}-{:08x} : {name}\n", hex(&load["paddr"]), hex(&load["paddr"]) + hex(&load["filesz"]) - 1);
    let text = line(&loads[1], "System RAM") + &line(&loads[2], "System RAM") + "  " + &line(&loads[0], "Kernel image");
    let path = folder.join("iomem");
    std::fs::write(&path, text).unwrap();
    format!("iomem = {path:?}")
}

#[test]
fn ranges_by_number_and_by_name_are_left_out() {
    let folder = scratch();
    let report = with(folder.path(), -1, "exclude = [\"0x10400000+1MiB\"]").status(0).json();
    let kept = dumped(folder.path());
    assert_eq!(class(&report, "range"), 256);
    assert!(kept.iter().all(|pfn| !(0x10400..0x10500).contains(pfn)) && kept.contains(&0x10500) && kept.contains(&0x103ff));

    let settings = format!("exclude = [\"Kernel image\"]\n{}", iomem(folder.path()));
    let report = with(folder.path(), -1, &settings).status(0).json();
    assert_eq!(class(&report, "range"), 0x2830, "the length of the PT_LOAD of the kernel's image");
}

#[test]
fn what_is_to_be_kept_is_kept_against_every_other_filter() {
    let folder = scratch();
    // Level 31 drops 17,543 free pages and more; RAM up to 128 MiB is to stay whole.
    let settings = format!("keep = [\"0x100000-0x7ffffff\"]\n{}", iomem(folder.path()));
    with(folder.path(), 31, &settings).status(0);
    let kept = dumped(folder.path());
    assert!((0x100..0x8000).all(|pfn| kept.binary_search(&pfn).is_ok()));
    assert!(kept.len() < KDUMP_6_1.manifest()["pfns"].as_u64().unwrap() as usize, "the rest is filtered as ever");
}

#[test]
fn zero_pages_that_are_to_be_kept_are_stored_and_no_longer_counted_as_zero() {
    let folder = scratch();
    let manifest = KDUMP_6_1.manifest();
    let zero = |keep: &str| {
        let report = beside(folder.path(), "plugin = \"zero\"", &format!("keep = [{keep}]"), &KDUMP_6_1.path()).status(0).json();
        assert_eq!(dumped(folder.path()).len() as u64, manifest["pfns"].as_u64().unwrap(), "zero pages are readable either way");
        peers::same_pages(&KDUMP_6_1.path(), &folder.path().join("out"), 0);
        assert_eq!(class(&report, "zero") + report["pages"]["stored"].as_u64().unwrap(), manifest["pfns"].as_u64().unwrap());
        class(&report, "zero")
    };
    assert_eq!(zero(""), manifest["zero_pages"].as_u64().unwrap());
    assert_eq!(zero("\"0x0-0xffffffffff\""), 0);
}

#[test]
fn pages_that_match_a_pattern_are_left_out_or_kept() {
    let folder = scratch();
    let marks = &KDUMP_6_1.manifest()["markers"];
    let report = with(folder.path(), 31, "exclude_pattern = [\"text:LABMARK-PIPEB-@0\"]").status(0).json();
    assert_eq!(class(&report, "pattern"), marks["reference_d31"]["PIPEB"].as_u64().unwrap());
    // The same anywhere in the page: every page that has it, at a level that reads all of memory.
    let freed = with(folder.path(), -1, "exclude_pattern = [\"text:LABMARK-FREED-@0\"]").status(0).json();
    assert_eq!(class(&freed, "pattern"), marks["vmcore"]["FREED"].as_u64().unwrap());
    assert_eq!(dumped(folder.path()).len() as u64, KDUMP_6_1.manifest()["pfns"].as_u64().unwrap() - class(&freed, "pattern"));
    // A keep in either form beats it.
    for keep in ["keep = [\"0x0-0xffffffffff\"]", "keep_pattern = [\"hex:4c 41 ?? 4d@0\"]"] {
        let kept = with(folder.path(), -1, &format!("exclude_pattern = [\"text:LABMARK-FREED-@0\"]\n{keep}")).status(0).json();
        assert_eq!(kept["pages"]["excluded"], 0, "{keep}: {kept}");
    }
    // Pages that are dropped unread are not looked at: 6 of these pages are not in the free lists.
    let unread = with(folder.path(), 31, "keep_pattern = [\"text:LABMARK-FREED-@0\"]").status(0).json();
    assert_eq!(class(&unread, "free"), KDUMP_6_1.manifest()["reference_levels"]["31"]["statistics"]["free"].as_u64().unwrap());
    let anywhere = with(folder.path(), -1, "exclude_pattern = [\"text:LABMARK-URAND-\"]").status(0).json();
    assert!(class(&anywhere, "pattern") >= marks["vmcore"]["URAND"].as_u64().unwrap(), "{anywhere}");
    let bytes = std::fs::read(folder.path().join("out")).unwrap();
    assert!(!bytes.windows(14).any(|w| w == b"LABMARK-URAND-"), "a page with the pattern is in the dump");
}

#[test]
fn settings_that_make_no_sense_end_the_run_before_anything_is_written() {
    let folder = scratch();
    let iomem = iomem(folder.path());
    for (settings, says) in [
        ("exclude = [\"0x2000-0x1000\"]", vec!["exclude", "ends before it begins"]),
        ("exclude = [\"Kernel image\"]", vec!["exclude", "iomem"]),
        (&format!("exclude = [\"Kernel code\"]\n{iomem}"), vec!["no such name", "Kernel image, System RAM"]),
        ("exclude = [\"Kernel code\"]\niomem = \"/nowhere/iomem\"", vec!["/nowhere/iomem", "save /proc/iomem as root"]),
        ("keep_pattern = [\"SECRET\"]", vec!["keep_pattern", "text:SECRET"]),
        ("exclude = [\"01000000-02000000\"]", vec!["exclude", "must begin with 0x"]), // copied from /proc/iomem
        ("exclude_pattern = [\"hex:abc\"]", vec!["exclude_pattern", "a byte has two digits", "hex:deadbeef"]),
        ("exclude_pattern = [\"hex:00@4096\"]", vec!["exclude_pattern", "beyond the page"]),
    ] {
        let run = with(folder.path(), 31, settings).status(2);
        run.says(&says);
        assert!(!folder.path().join("out").exists() && !folder.path().join("out.incomplete").exists());
    }
}

#[test]
fn settings_of_the_wrong_type_are_refused_before_the_input_is_looked_at() {
    let folder = scratch();
    let nowhere = folder.path().join("nowhere");
    for (settings, says) in [
        ("exclude = 4096", vec!["exclude", "not a list of texts"]),
        ("exclude_patern = [\"text:SECRET\"]", vec!["exclude_patern", "exclude_pattern"]),
    ] {
        beside(folder.path(), "plugin = \"zero\"", settings, &nowhere).status(2).says(&says);
    }
}
