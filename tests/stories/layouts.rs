//! Dump levels on every kernel layout: synthetic vmcores, with an expectation for each page that kernel headers gave.

use std::collections::BTreeMap;

use coresift_tests::kdump::Kdump;
use coresift_tests::synth::{Image, Spec, build};
use coresift_tests::{coresift, scratch};

/// Dumps an image at a level; what is wrong with the kept pages and with the report's counts.
fn wrong(image: &Image, level: u32) -> Vec<String> {
    let folder = scratch();
    let output = folder.path().join("dump");
    let level_text = level.to_string();
    let args = ["dump", "--json", "--progress", "none", "-d", &level_text].map(std::ffi::OsStr::new);
    let run = coresift(args.into_iter().chain([image.path.as_os_str(), output.as_os_str()]));
    let place = format!("{} -d {level}", image.path.file_stem().unwrap().display());
    if run.status != 0 {
        return vec![format!("{place}: status {}: {}", run.status, run.stderr)];
    }
    let mut wrong = Vec::new();
    let differences = image.differences(level, &Kdump::open(&output).expect("a kdump file").dumped());
    if !differences.is_empty() {
        wrong.push(format!("{place}:\n{differences}"));
    }
    let report = run.json();
    let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
    for class in report["classes"].as_array().unwrap() {
        *counts.entry(class["class"].as_str().unwrap()).or_default() += class["pages"].as_u64().unwrap();
    }
    counts.retain(|name, pages| *name != "kept" && *pages > 0);
    if counts != image.counts(level) {
        wrong.push(format!("{place}: the report counts {counts:?}, there are {:?}", image.counts(level)));
    }
    wrong
}

/// Builds the images whose name a condition holds for, and dumps each at these levels.
#[track_caller]
fn check(condition: impl Fn(&str) -> bool, levels: &[u32]) {
    let specs: Vec<Spec> = Spec::all().into_iter().filter(|spec| condition(&spec.name())).collect();
    assert!(!specs.is_empty());
    let mut all = Vec::new();
    for spec in specs {
        let folder = scratch();
        let image = build(folder.path(), &spec);
        all.extend(levels.iter().flat_map(|level| wrong(&image, *level)));
    }
    assert!(all.is_empty(), "{}", all.join("\n"));
}

#[test]
fn x86_64_before_folios() {
    check(|name| name.starts_with("x86_64-") && ["2.6.", "3.", "4.", "5."].iter().any(|v| name[7..].starts_with(v)), &[31]);
}

#[test]
fn x86_64_with_folios() {
    check(|name| name.starts_with("x86_64-") && ["6.", "7."].iter().any(|v| name[7..].starts_with(v)), &[31]);
}

#[test]
fn machines_of_32_bits() {
    check(|name| name.starts_with("i386-") || name.starts_with("ppc32-"), &[31]);
}

#[test]
fn big_endian_machines_of_64_bits() {
    check(|name| name.starts_with("ppc64-") || name.starts_with("s390x-"), &[31]);
}

#[test]
fn every_level_by_itself() {
    let names = ["x86_64-4.4-vmemmap", "x86_64-6.16-vmemmap-address", "s390x-5.4-extreme-address", "ppc32-6.12-flat"];
    check(|name| names.contains(&name), &[0, 1, 2, 4, 8, 16]);
}
