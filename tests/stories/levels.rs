//! Dump levels on real kernels: the pages kept are those the reference keeps, and crash and drgn work with them.

use coresift_tests::kdump::Kdump;
use coresift_tests::vmcores::{ARM64_16K, ARM64_KDUMP, KDUMP_6_1, Vmcore, vmlinux_6_1};
use coresift_tests::walker::Walker;
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

#[test]
fn marked_user_and_cache_pages_are_gone_and_the_kernel_s_are_there() {
    let (folder, marks) = (scratch(), KDUMP_6_1.manifest()["markers"].clone());
    let output = folder.path().join("dump");
    coresift(["dump".as_ref(), "--compress".as_ref(), "none".as_ref(), KDUMP_6_1.path().as_os_str(), output.as_os_str()]).status(0);
    let dump = Kdump::open(&output).unwrap();
    let mut pages: Vec<&[u8]> = Vec::new();
    for rank in 0..dump.dumped().len() {
        let (offset, size, flags) = dump.descriptor(rank);
        assert_eq!((size, flags), (4096, 0), "stored as it is");
        pages.push(&dump.bytes[offset..offset + size]);
    }
    let mark = |class: &str| format!("LABMARK-{class}-").into_bytes();
    let begin = |class: &str| pages.iter().filter(|page| page.starts_with(&mark(class))).count() as u64;
    let anywhere = |class: &str| {
        let mark = mark(class);
        pages.iter().map(|page| page.windows(mark.len()).filter(|w| *w == mark).count() as u64).sum::<u64>()
    };
    // What the test machine's tool wrote into its memory before the crash; counted by a reader of its own.
    for (class, pages) in marks["vmcore"].as_object().unwrap() {
        let kept = marks["reference_d31"].get(class).map_or(0, |n| n.as_u64().unwrap());
        assert!(pages.as_u64().unwrap() >= kept);
        assert_eq!(begin(class), kept, "pages marked {class}");
    }
    for (class, places) in marks["anywhere_reference_d31"].as_object().unwrap() {
        assert_eq!(anywhere(class), places.as_u64().unwrap(), "marks {class} anywhere: slab objects, log lines, pipe buffers");
    }
}

#[test]
fn pages_of_the_mem_map_that_describe_only_dropped_pages_go_on_request() {
    let folder = scratch();
    let profile = folder.path().join("memmap.toml");
    std::fs::write(&profile, "extends = \"kdump\"\n[[filter]]\nplugin = \"linux\"\nlevel = 31\nexclude = [\"memmap\"]\n").unwrap();
    let (_, kept) = dump(KDUMP_6_1, &["-d", "31"]);
    let output = folder.path().join("dump");
    let args = ["dump".as_ref(), "--json".as_ref(), "--profile".as_ref(), profile.as_os_str()];
    let report = coresift(args.into_iter().chain([KDUMP_6_1.path().as_os_str(), output.as_os_str()])).status(0).json();
    let dump = Kdump::open(&output).unwrap();
    let less = dump.dumped();
    // Page i of the mem_map describes PFNs 64 i to 64 i + 63; it goes if all of them are RAM and none is kept.
    let (_, all) = self::dump(KDUMP_6_1, &["-d", "0"]);
    let walker = Walker::open(&KDUMP_6_1.path());
    let (_, _, mem_map) = walker.mem_map();
    let is_in = |set: &[u64], pfn: u64| set.binary_search(&pfn).is_ok();
    let groups =
        all.iter().filter(|pfn| *pfn % 64 == 0).filter(|first| (**first..**first + 64).all(|p| is_in(&all, p) && !is_in(&kept, p)));
    let mut expected: Vec<u64> =
        groups.filter_map(|first| Some(walker.walk(mem_map + first * 64)? / 4096)).filter(|p| is_in(&kept, *p)).collect();
    expected.sort_unstable();
    let gone: Vec<u64> = kept.iter().copied().filter(|p| !is_in(&less, *p)).collect();
    assert_eq!(gone, expected);
    assert_eq!(class(&report, "memmap"), expected.len() as u64);
    // Kernel text and log are pinned then: the few zero pages in them, too.
    let mut pinned = less.iter().filter(|p| !is_in(&kept, **p));
    assert!(pinned.all(|pfn| (0..512).all(|word| walker.word(pfn * 4096 + word * 8) == 0)));
    assert_eq!(dump.status & 0x10, 0x10, "DUMP_DH_EXCLUDED_VMEMMAP of crash's diskdump.h");
    let run = peers::crash(&[], &vmlinux_6_1(), &output, "sys\nbt\nlog\nps").status(0);
    assert!(run.stdout.contains("sysrq_handle_crash at") && run.stdout.contains("Linux version 6.1.0"), "{}", run.stdout);
    // One of these pages, wanted by another filter, stays.
    let wanted = expected[expected.len() / 2];
    let text = std::fs::read_to_string(&profile).unwrap();
    let keep = format!("{text}[[filter]]\nplugin = \"ranges\"\nkeep = [\"{:#x}-{:#x}\"]\n", wanted * 4096, wanted * 4096 + 4095);
    std::fs::write(&profile, keep).unwrap();
    let output = folder.path().join("again");
    coresift(args.into_iter().chain([KDUMP_6_1.path().as_os_str(), output.as_os_str()])).status(0);
    let again = Kdump::open(&output).unwrap().dumped();
    assert_eq!(again.iter().copied().filter(|p| !is_in(&less, *p)).collect::<Vec<_>>(), [wanted]);
}
