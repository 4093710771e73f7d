//! Dump levels on real kernels: the pages kept are those the reference keeps, and crash and drgn work with them.

use coresift_tests::kdump::Kdump;
use coresift_tests::vmcores::{ARM64_16K, ARM64_KDUMP, KDUMP_6_1, Vmcore, vmlinux_6_1};
use coresift_tests::{coresift, peers, scratch};
use serde_json::Value;
use sha2::{Digest, Sha256};

/// Dumps at a level; the report and the PFNs in the second bitmap.
fn dump(vmcore: Vmcore, extra: &[&str]) -> (Value, Vec<u64>) {
    let folder = scratch();
    let output = folder.path().join("dump");
    let args = ["dump", "--json", "--progress", "none"].iter().chain(extra).map(std::ffi::OsStr::new);
    let run = coresift(args.chain([vmcore.path().as_os_str(), output.as_os_str()])).status(0);
    (run.json(), Kdump::open(&output).expect("a kdump file").dumped())
}

/// sha256 over the PFNs, each as 8 bytes little endian: how the manifests name a set.
fn digest(pfns: &[u64]) -> String {
    let hash = pfns.iter().fold(Sha256::new(), |hash, pfn| hash.chain_update(pfn.to_le_bytes()));
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn class(report: &Value, name: &str) -> u64 {
    let classes = report["classes"].as_array().unwrap();
    classes.iter().filter(|c| c["class"] == name).map(|c| c["pages"].as_u64().unwrap()).sum()
}

#[test]
fn every_level_keeps_exactly_the_pages_that_the_reference_keeps() {
    for vmcore in [KDUMP_6_1, ARM64_KDUMP, ARM64_16K] {
        let manifest = vmcore.manifest();
        let levels = manifest["reference_levels"].as_object().unwrap();
        for (level, expected) in levels.iter().filter(|(name, _)| *name != "tool") {
            let (report, pfns) = dump(vmcore, &["-d", level]);
            let place = format!("{} -d {level}", vmcore.name);
            assert_eq!(report["outcome"], "complete", "{place}: {report}");
            assert_eq!(pfns.len() as u64, expected["pfns"].as_u64().unwrap(), "{place}: {}", report["classes"]);
            assert_eq!(digest(&pfns), expected["sha256_pfns"], "{place}");
            // What the reference counts of each class; zero pages it counts once for each PT_LOAD they are in.
            for (name, pages) in expected["statistics"].as_object().into_iter().flatten().filter(|(name, _)| *name != "zero") {
                assert_eq!(class(&report, name), pages.as_u64().unwrap(), "{place}: {name}");
            }
        }
    }
}

#[test]
fn one_thread_and_reading_find_the_same_pages() {
    let (_, expected) = dump(KDUMP_6_1, &["-d", "31"]);
    for extra in [["--threads", "1"], ["--map-size", "0"]] {
        assert_eq!(dump(KDUMP_6_1, &["-d", "31", extra[0], extra[1]]).1, expected, "{extra:?}");
    }
}

#[test]
fn crash_and_drgn_work_on_the_filtered_dump() {
    let (folder, vmlinux) = (scratch(), vmlinux_6_1());
    let output = folder.path().join("dump");
    coresift(["dump".as_ref(), KDUMP_6_1.path().as_os_str(), output.as_os_str()]).status(0);
    let run = peers::crash(&[], &vmlinux, &output, "sys\nbt -a\nps\nkmem -i\nlog\nmod").status(0);
    let complaints = ["page excluded", "seek error", "read error", "cannot"];
    for text in complaints {
        assert!(!run.stdout.contains(text) && !run.stderr.contains(text), "{text}: {}{}", run.stdout, run.stderr);
    }
    for text in ["RELEASE: 6.1.0-57-cloud-amd64", "sysrq_handle_crash at", "TOTAL MEM", "Linux version 6.1.0-57-cloud-amd64", "labtool"] {
        assert!(run.stdout.contains(text), "`{text}` is not in {}", run.stdout);
    }
    let code = "
from drgn.helpers.linux.pid import for_each_task
from drgn.helpers.linux.list import list_for_each_entry
modules = [m.name.string_().decode() for m in list_for_each_entry('struct module', prog['modules'].address_of_(), 'list')]
stacks = sum(1 for t in for_each_task(prog) if len(t.comm.string_()) and prog.read(t.stack, 16384))
print(stacks, len(modules) > 0, all(modules))";
    let run = peers::drgn(&vmlinux, &output, code).status(0);
    // 50 tasks: what drgn counts in the vmcore itself.
    assert_eq!(run.stdout.trim(), "50 True True");
}

#[test]
fn the_dump_level_is_in_the_header_and_refiltering_keeps_the_same_pages() {
    let (folder, list) = (scratch(), dump(KDUMP_6_1, &["-d", "31"]).1);
    let (ours, theirs) = (folder.path().join("ours"), folder.path().join("theirs"));
    coresift(["dump".as_ref(), "-d".as_ref(), "31".as_ref(), KDUMP_6_1.path().as_os_str(), ours.as_os_str()]).status(0);
    peers::makedumpfile(&["-l", "-d", "31"], &ours, &theirs).status(0);
    assert_eq!(Kdump::open(&theirs).unwrap().dumped(), list);
    let level = |kdump: &Kdump| u32::from_le_bytes(kdump.bytes[4096 + 8..][..4].try_into().unwrap());
    assert_eq!(level(&Kdump::open(&ours).unwrap()), 31, "dump_level of struct kdump_sub_header");
}
