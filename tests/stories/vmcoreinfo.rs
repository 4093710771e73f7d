//! VMCOREINFO that is not in the notes, or not all there: searched in memory, taken from a file, and never missed in silence.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use coresift_tests::kdump::Kdump;
use coresift_tests::vmcores::{ARM64_16K, KDUMP_6_1, PPC64EL, S390X, Vmcore};
use coresift_tests::{coresift, inside, scratch};
use serde_json::Value;

/// A copy of a vmcore whose notes have no VMCOREINFO any more; without `in_memory` it stands nowhere else either. The path
/// and the text.
fn without(folder: &Path, vmcore: Vmcore, in_memory: bool) -> (PathBuf, Vec<u8>) {
    let path = folder.join("vmcore");
    std::fs::copy(vmcore.path(), &path).unwrap();
    let bytes = std::fs::read(&path).unwrap();
    let file = File::options().write(true).open(&path).unwrap();
    let places = |text: &[u8]| bytes.windows(text.len()).enumerate().filter(|(_, w)| *w == text).map(|(at, _)| at).collect::<Vec<_>>();
    let first = places(b"OSRELEASE=6.")[0];
    let end = bytes[first..].iter().position(|b| !matches!(b, b'\n' | b' '..=b'~')).unwrap();
    let notes = places(b"VMCOREINFO\0").into_iter().filter(|at| *at < 8192);
    let texts = places(b"OSRELEASE=6.").into_iter().filter(|_| !in_memory);
    for at in notes.chain(texts) {
        file.write_all_at(b"##########", at as u64).unwrap();
    }
    (path, bytes[first..first + end].to_vec())
}

fn dump(input: &Path, output: &Path, extra: &[&str]) -> (Value, Vec<u64>) {
    let args = ["dump", "--json", "--force", "--progress", "none"].iter().chain(extra).map(std::ffi::OsStr::new);
    let run = coresift(args.chain([input.as_os_str(), output.as_os_str()])).status(0);
    (run.json(), Kdump::open(output).expect("a kdump file").dumped())
}

fn reference(vmcore: Vmcore) -> u64 {
    vmcore.manifest()["reference_d31"]["pfns_dumped_and_zero"].as_u64().unwrap()
}

#[test]
fn without_the_note_it_is_found_in_memory() {
    let folder = scratch();
    for vmcore in [KDUMP_6_1, ARM64_16K] {
        let (input, _) = without(folder.path(), vmcore, true);
        let (report, pfns) = dump(&input, &folder.path().join("out"), &["-d", "31"]);
        assert_eq!(pfns.len() as u64, reference(vmcore), "{}: {report}", vmcore.name);
        assert_eq!(report["outcome"], "complete", "{report}");
    }
    // QEMU's dumps of these have no note; the release is in the text that the guest's memory has.
    for vmcore in [PPC64EL, S390X] {
        let info = coresift(["--json".as_ref(), "info".as_ref(), vmcore.path().as_os_str()]).status(0).json();
        assert_eq!(info["release"], vmcore.manifest()["osrelease"], "{info}");
    }
}

#[test]
fn without_any_there_is_a_dump_that_says_what_it_lacks() {
    let folder = scratch();
    let (input, text) = without(folder.path(), KDUMP_6_1, false);
    let out = folder.path().join("out");
    let (report, pfns) = dump(&input, &out, &["-d", "31"]);
    let manifest = KDUMP_6_1.manifest();
    assert_eq!(pfns.len() as u64, manifest["pfns"].as_u64().unwrap(), "every page is there");
    assert_eq!(report["outcome"], "degraded");
    assert_eq!(report["pages"]["zero"], manifest["zero_pages"], "zero pages can be told without a kernel");
    let issue = report["issues"][0]["what"].as_str().unwrap();
    assert!(issue.contains("VMCOREINFO") && issue.contains("kept"), "{report}");
    let strict = coresift(["dump".as_ref(), "--force".as_ref(), "--strict-exit".as_ref(), input.as_os_str(), out.as_os_str()]);
    assert_eq!(strict.status, 4, "{}", strict.stderr);

    // The same with the text in a file, as `makedumpfile -g` would have written it before the crash.
    let file = folder.path().join("vmcoreinfo.txt");
    std::fs::write(&file, text).unwrap();
    let (report, pfns) = dump(&input, &out, &["-d", "31", "--vmcoreinfo", file.to_str().unwrap()]);
    assert_eq!((pfns.len() as u64, &report["outcome"]), (reference(KDUMP_6_1), &Value::from("complete")));

    // A number that is wrong: no page looks free, in a machine that ran.
    let text =
        std::fs::read_to_string(&file).unwrap().replace("NUMBER(PAGE_BUDDY_MAPCOUNT_VALUE)=-129", "NUMBER(PAGE_BUDDY_MAPCOUNT_VALUE)=-133");
    std::fs::write(&file, text).unwrap();
    let (report, _) = dump(&input, &out, &["-d", "31", "--vmcoreinfo", file.to_str().unwrap()]);
    assert_eq!(report["outcome"], "degraded");
    assert!(report["issues"][0]["what"].as_str().unwrap().contains("no free page found"), "{report}");

    let refused = |path: &Path| {
        coresift(["dump".as_ref(), "--vmcoreinfo".as_ref(), path.as_os_str(), input.as_os_str(), folder.path().join("no").as_os_str()])
    };
    std::fs::write(&file, "this is no such text\n").unwrap();
    refused(&file).status(2).says(&["vmcoreinfo.txt", "OSRELEASE=", "makedumpfile -g"]);
    refused(&folder.path().join("nowhere")).status(1).says(&["nowhere"]);
}

#[test]
fn a_key_that_is_missing_never_makes_more_pages_go() {
    let folder = scratch();
    let (input, text) = without(folder.path(), KDUMP_6_1, false);
    let text = String::from_utf8(text).unwrap();
    let (file, filter) = (folder.path().join("vmcoreinfo.txt"), inside::page_filter(folder.path(), 30));
    let run = |text: &str| {
        std::fs::write(&file, text).unwrap();
        filter.run(&input, Some(&file)).unwrap_or_else(|e| panic!("{}", e.message))
    };
    let (_, all) = run(&text);
    let mut silent = Vec::new();
    for line in text.lines() {
        let (report, kept) = run(&text.replacen(&format!("{line}\n"), "", 1));
        let lost = all.iter().find(|pfn| kept.binary_search(pfn).is_err());
        assert!(lost.is_none(), "without {line}: PFN {:#x} is gone: {:?}", lost.unwrap(), report.classes);
        if kept.len() > all.len() + all.len() / 20 && report.issues.is_empty() {
            silent.push(line);
        }
    }
    assert!(silent.is_empty(), "the dump grows and nobody says why, without {silent:?}");
}

#[test]
fn a_kernel_that_is_not_where_it_says_is_found_by_its_name() {
    let folder = scratch();
    let file = folder.path().join("vmcoreinfo.txt");
    let x86_64: [&[(&str, &str)]; 2] =
        [&[("NUMBER(phys_base)=", "16777216")], &[("NUMBER(phys_base)=", ""), ("NUMBER(pgtable_l5_enabled)=", "1")]];
    let arm64: [&[(&str, &str)]; 3] = [
        &[("NUMBER(kimage_voffset)=", "0xffffe11200000000")],
        &[("NUMBER(TCR_EL1_T1SZ)=", "0x10")],
        &[("NUMBER(TCR_EL1_T1SZ)=", ""), ("NUMBER(kimage_voffset)=", ""), ("NUMBER(VA_BITS)=", "")],
    ];
    for (vmcore, cases) in [(KDUMP_6_1, &x86_64[..]), (ARM64_16K, &arm64[..])] {
        let (input, text) = without(folder.path(), vmcore, false);
        let text = String::from_utf8(text).unwrap();
        for wrong in cases {
            // An empty value takes the line away.
            let line = |line: &str| match wrong.iter().find(|(key, _)| line.starts_with(key)) {
                Some((_, "")) => String::new(),
                Some((key, value)) => format!("{key}{value}\n"),
                None => format!("{line}\n"),
            };
            std::fs::write(&file, text.lines().map(line).collect::<String>()).unwrap();
            let (report, pfns) = dump(&input, &folder.path().join("out"), &["-d", "31", "--vmcoreinfo", file.to_str().unwrap()]);
            assert_eq!(pfns.len() as u64, reference(vmcore), "{} {wrong:?}: {report}", vmcore.name);
            if wrong[0].1.len() > 4 {
                let warnings = report["warnings"].to_string();
                assert!(warnings.contains("not where VMCOREINFO says"), "{wrong:?}: {warnings}");
            }
        }
    }
}
