//! From every format to every other, each dump judged by a reader that is not ours.

use std::path::{Path, PathBuf};

use coresift_tests::vmcores::{ARM64_16K, KDUMP_6_1, PPC64EL, S390X, vmlinux_6_1};
use coresift_tests::walker::Walker;
use coresift_tests::{Run, coresift, kdump::Kdump, peer, peers, scratch};
use serde_json::Value;

/// Runs `coresift dump` on some inputs.
fn dump<P: AsRef<Path>>(inputs: &[P], output: &Path, extra: &[&str]) -> Run {
    let args = ["dump", "--json", "--force", "--progress", "none"].into_iter().chain(extra.iter().copied());
    coresift(args.map(AsRef::as_ref).chain(inputs.iter().map(|p| p.as_ref().as_os_str())).chain([output.as_os_str()]))
}

fn info(inputs: &[PathBuf], extra: &[&str]) -> Value {
    let args = ["info", "--json"].into_iter().chain(extra.iter().copied());
    coresift(args.map(AsRef::as_ref).chain(inputs.iter().map(|p| p.as_os_str()))).status(0).json()
}

/// Pages that makedumpfile keeps of 6.1 at level 31, zero pages with them.
fn kept() -> u64 {
    KDUMP_6_1.manifest()["reference_d31"]["pfns_dumped_and_zero"].as_u64().unwrap()
}

/// The outputs that `--writer`, `--flattened` and `--split` can make: name, options, parts.
const FORMS: [(&str, &[&str], u32); 8] = [
    ("kdump", &["--compress", "lzo"], 0),
    ("kdump.flat", &["--flattened"], 0),
    ("kdump.set", &["--split", "3"], 3),
    ("elf", &["--writer", "elf"], 0),
    ("elf.flat", &["--writer", "elf", "--flattened"], 0),
    ("elf.set", &["--writer", "elf", "--split", "2"], 2),
    ("lime", &["--writer", "lime"], 0),
    ("image.raw", &["--writer", "raw"], 0),
];

/// The settings that an input needs which has no sign of its own.
fn settings(name: &str) -> &'static [&'static str] {
    if name.ends_with(".raw") { &["--set", "input.reader=raw"] } else { &[] }
}

fn files(folder: &Path, name: &str, parts: u32) -> Vec<PathBuf> {
    match parts {
        0 => vec![folder.join(name)],
        _ => (1..=parts).map(|n| folder.join(format!("{name}.{n}"))).collect(),
    }
}

#[test]
fn each_form_becomes_each_format_with_the_same_pages() {
    let folder = scratch();
    let vmcore = KDUMP_6_1.path();
    let left_out = KDUMP_6_1.manifest()["pfns"].as_u64().unwrap() - kept();
    // The pages that the reference keeps, proven against the vmcore once.
    let truth = folder.path().join("truth");
    dump(&[&vmcore], &truth, &["--writer", "elf", "-d", "30"]).status(0);
    assert_eq!(peers::same_pages(&vmcore, &truth, left_out)["equal"], kept());
    for (name, options, parts) in FORMS {
        dump(&[&vmcore], &folder.path().join(name), &[options, &["-d", "30"]].concat()).status(0);
        let from = files(folder.path(), name, parts);
        for (target, writer, _) in FORMS.into_iter().filter(|(name, ..)| !name.contains(".flat") && !name.contains(".set")) {
            let output = folder.path().join(format!("out.{target}"));
            let report = dump(&from, &output, &[writer, &["-d", "0"], settings(name)].concat()).status(0).json();
            assert_eq!(report["outcome"], "complete", "{name} to {target}: {report}");
            let compared = peers::same_pages(&truth, &output, 0);
            assert_eq!(compared["equal"], kept(), "{name} to {target}: {compared}");
            // A raw image has all pages, those that were left out as zeros.
            let raw = [name, target].iter().any(|form| form.ends_with(".raw"));
            assert!(raw || compared["extra"] == 0, "{name} to {target}: {compared}");
        }
    }
}

#[test]
fn what_a_format_can_say_of_the_machine_survives() {
    let folder = scratch();
    let vmcore = KDUMP_6_1.path();
    let truth = info(std::slice::from_ref(&vmcore), &[]);
    for (name, options, parts) in FORMS {
        dump(&[&vmcore], &folder.path().join(name), &[options, &["-d", "30"]].concat()).status(0);
        let got = info(&files(folder.path(), name, parts), settings(name));
        // The kernel tells its own name and addresses out of memory; registers and the time need notes or a header.
        let always = ["arch", "word_bits", "byte_order", "page_size", "release", "build_id", "kaslr_offset", "memory_model"];
        let noted = ["cpus", "crash_time", "vmcoreinfo"];
        let bare = name == "lime" || name.ends_with(".raw");
        for key in always.iter().chain(noted.iter().filter(|_| !bare)) {
            assert_eq!(got[key], truth[key], "{name}: {key}");
        }
        if bare {
            assert_eq!(got["cpus"], 0, "{name} cannot say it");
        }
    }
}

#[test]
fn elf_output_opens_in_every_reader() {
    let folder = scratch();
    let (vmcore, output) = (KDUMP_6_1.path(), folder.path().join("out"));
    dump(&[&vmcore], &output, &["-d", "31", "--writer", "elf"]).status(0);
    let run = peers::crash(&[], &vmlinux_6_1(), &output, "sys\nbt").status(0);
    assert!(run.stdout.contains("sysrq_handle_crash at"), "{}", run.stdout);
    let banner = "print(prog['init_uts_ns'].name.release.string_().decode())";
    assert_eq!(peers::drgn(&vmlinux_6_1(), &output, banner).status(0).stdout.trim(), "6.1.0-57-cloud-amd64");
    // gdb sees kernel addresses: the PT_LOADs say where the image and the direct map are.
    let uts = Walker::open(&vmcore).symbol("init_uts_ns");
    let show = format!("x/s {:#x}", uts);
    let args = ["-nx", "-batch", "-core"].map(AsRef::as_ref).into_iter().chain([output.as_os_str(), "-ex".as_ref(), show.as_ref()]);
    let run = peer("gdb", "gdb", &args.collect::<Vec<_>>());
    assert!(run.stdout.contains("\"Linux\""), "{}{}", run.stdout, run.stderr);
    // makedumpfile finds nothing more to leave out; zero pages have a descriptor in its dumps.
    let theirs = folder.path().join("theirs");
    peers::makedumpfile(&["-l", "-d", "31"], &output, &theirs).status(0);
    assert_eq!(Kdump::open(&theirs).unwrap().dumped().len() as u64, kept());
    // As makedumpfile -E: gaps below 256 pages read as zeros, and the PT_LOADs cover all RAM.
    dump(&[&vmcore], &output, &["-d", "31", "--writer", "elf", "--set", "output.holes=coarse"]).status(0);
    let coarse = info(std::slice::from_ref(&output), &[]);
    assert_eq!(coarse["pages_present"].as_u64().unwrap() + coarse["pages_absent"].as_u64().unwrap(), KDUMP_6_1.manifest()["pfns"]);
    peers::makedumpfile(&["-f", "-l", "-d", "31"], &output, &theirs).status(0);
    assert_eq!(Kdump::open(&theirs).unwrap().dumped().len() as u64, kept());
}

#[test]
fn other_architectures_go_through_elf_lime_and_raw() {
    let folder = scratch();
    for vmcore in [ARM64_16K, PPC64EL, S390X] {
        let manifest = vmcore.manifest();
        let arch = info(&[vmcore.path()], &[])["arch"].as_str().unwrap().to_owned();
        let tell = [format!("input.arch={arch}"), format!("input.page_size={}", manifest["page_size"])];
        for (format, options) in [("elf", &[][..]), ("lime", &["--set", "input.reader=lime"]), ("raw", &["--set", "input.reader=raw"])] {
            let image = folder.path().join(format!("image.{format}"));
            dump(&[vmcore.path()], &image, &["-d", "0", "--writer", format]).status(0);
            let mut options = options.to_vec();
            if format != "elf" {
                options.extend(["--set", &tell[0], "--set", &tell[1]]);
            }
            let kdump = folder.path().join("kdump");
            dump(&[&image], &kdump, &[&["-d", "1", "--compress", "snappy"], &options[..]].concat()).status(0);
            let compared = peers::same_pages(&vmcore.path(), &kdump, 0);
            assert_eq!(compared["equal"], manifest["pfns"], "{} through {format}: {compared}", vmcore.name);
        }
    }
    // The byte order is the machine's, the image does not say it.
    let image = folder.path().join("image.lime");
    let got = info(&[image], &["--set", "input.reader=lime", "--set", "input.arch=s390x"]);
    assert_eq!((&got["byte_order"], &got["pages_present"]), (&"big".into(), &S390X.manifest()["pfns"]));
}

#[test]
fn parts_of_elf_and_lime_come_together_again() {
    let folder = scratch();
    let (vmcore, set) = (KDUMP_6_1.path(), folder.path().join("set"));
    for format in ["elf", "lime"] {
        let (whole, joined) = (folder.path().join("whole"), folder.path().join("joined"));
        dump(&[&vmcore], &whole, &["-d", "31", "--writer", format]).status(0);
        let report = dump(&[&vmcore], &set, &["-d", "31", "--writer", format, "--split", "3"]).status(0).json();
        assert_eq!(report["parts"].as_array().unwrap().len(), 3);
        let [a, b, c] = [3, 1, 2].map(|n| folder.path().join(format!("set.{n}")));
        let join = |parts: &[&PathBuf]| {
            let args = ["join", "--force", "--progress", "none"].map(AsRef::as_ref).into_iter();
            coresift(args.chain(parts.iter().map(|p| p.as_os_str())).chain([joined.as_os_str()]))
        };
        join(&[&a, &b, &c]).status(0);
        assert!(std::fs::read(&joined).unwrap() == std::fs::read(&whole).unwrap(), "{format}");
        join(&[&a, &b, &a]).status(1).says(&["both have a page", "give each part of one split dump once"]);
    }
}

#[test]
fn what_a_format_cannot_do_is_said_before_memory_is_copied() {
    let folder = scratch();
    let (vmcore, out) = (KDUMP_6_1.path(), folder.path().join("out"));
    let said = [
        (&["--writer", "raw", "--flattened"][..], "cannot be written as a stream"),
        (&["--writer", "elf", "--set", "output.dedup=true"], "unknown key `dedup` in [output] for elf"),
        (&["--writer", "pdf"], "pdf"),
    ];
    for (options, text) in said {
        let run = dump(&[&vmcore], &out, options);
        assert!(run.status != 0 && run.stderr.contains(text), "{options:?}: {}", run.stderr);
        assert!(!out.exists(), "{options:?}");
    }
    let run = coresift(
        ["dump", "--writer", "elf", "--compress", "zlib"].map(AsRef::as_ref).into_iter().chain([vmcore.as_os_str(), out.as_os_str()]),
    );
    run.status(0).says(&["--compress zlib has no effect: writer elf stores pages as they are"]);
}
