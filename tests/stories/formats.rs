//! Dumps that others wrote in, dumps that others read out: kdump files of every codec, flattened streams, split sets.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use coresift_tests::vmcores::{ALL, ARM64_KDUMP, KDUMP_6_1, vmlinux_6_1};
use coresift_tests::{Run, built, command, coresift, kdump::Kdump, peers, scratch};

/// Runs `coresift dump` on some inputs.
fn dump(inputs: &[&Path], output: &Path, extra: &[&str]) -> Run {
    let args = ["dump", "--json", "--force", "--progress", "none"].into_iter().chain(extra.iter().copied());
    coresift(args.map(AsRef::as_ref).chain(inputs.iter().map(|p| p.as_os_str())).chain([output.as_os_str()]))
}

/// makedumpfile's dump of 6.1 with these options.
fn reference(folder: &Path, name: &str, options: &[&str]) -> PathBuf {
    let output = folder.join(name);
    peers::makedumpfile(options, &KDUMP_6_1.path(), &output).status(0);
    output
}

/// The stored bytes and flags of each dumped page.
fn stored(path: &Path) -> Vec<(u64, Vec<u8>, u32)> {
    let dump = Kdump::open(path).unwrap();
    let pages = dump.dumped().into_iter().enumerate().map(|(rank, pfn)| {
        let (offset, size, flags) = dump.descriptor(rank);
        (pfn, dump.bytes[offset..offset + size].to_vec(), flags)
    });
    pages.collect()
}

#[test]
fn kdump_files_of_makedumpfile_are_read_page_for_page_and_filtered_as_their_vmcore() {
    let folder = scratch();
    let manifest_31 = KDUMP_6_1.manifest()["reference_levels"]["31"]["pfns"].as_u64().unwrap();
    for (name, options) in [("raw", &["-d", "0"][..]), ("zlib", &["-c", "-d", "0"]), ("lzo", &["-l", "-d", "0"])] {
        let input = reference(folder.path(), name, options);
        let out = folder.path().join("out");
        dump(&[&input], &out, &["-d", "0", "--compress", "zstd"]).status(0);
        let compared = peers::same_pages(&KDUMP_6_1.path(), &out, 0);
        assert_eq!(compared["equal"], KDUMP_6_1.manifest()["pfns"], "{name}: {compared}");
        // The kernel is found through pages that have to be decompressed, and the filter keeps what it keeps of the vmcore.
        dump(&[&input], &out, &["-d", "31"]).status(0);
        assert_eq!(Kdump::open(&out).unwrap().dumped().len() as u64, manifest_31, "{name}");
    }
}

#[test]
fn our_kdump_files_of_all_architectures_and_codecs_are_read_again() {
    let folder = scratch();
    for vmcore in ALL {
        for codec in ["snappy", "lzo"] {
            let (first, second) = (folder.path().join("first"), folder.path().join("second"));
            dump(&[&vmcore.path()], &first, &["-d", "1", "--compress", codec]).status(0);
            dump(&[&first], &second, &["-d", "0", "--compress", "libdeflate"]).status(0);
            let compared = peers::same_pages(&vmcore.path(), &second, 0);
            assert_eq!(compared["equal"], vmcore.manifest()["pfns"], "{codec}: {compared}");
            let info = |vmcore: &Path| {
                let mut info = coresift(["info".as_ref(), "--json".as_ref(), vmcore.as_os_str()]).status(0).json();
                ["inputs", "format", "reader", "reason", "other_readers", "extents", "memory", "warnings"]
                    .iter()
                    .for_each(|key| drop(info.as_object_mut().unwrap().remove(*key)));
                info
            };
            let (before, after) = (info(&vmcore.path()), info(&first));
            for key in ["arch", "word_bits", "byte_order", "page_size", "release", "cpus", "vmcoreinfo", "memory_model"] {
                assert_eq!(before[key], after[key], "{key}");
            }
        }
    }
}

#[test]
fn pages_whose_codec_stays_are_copied_as_they_are_stored() {
    let folder = scratch();
    let input = reference(folder.path(), "in", &["-l", "-d", "31"]);
    let before = stored(&input);
    for extra in [&["-d", "31", "--compress", "lzo"][..], &["-d", "0", "--compress", "keep"], &["-d", "31", "--compress", "keep"]] {
        let out = folder.path().join("out");
        let report = dump(&[&input], &out, extra).status(0).json();
        assert!(stored(&out) == before, "{extra:?}");
        assert_eq!(report["outcome"], "complete");
    }
    // Another codec where nothing is kept, and a filter that must see every page, change the pages' bytes in the file only.
    let out = folder.path().join("out");
    dump(&[&input], &out, &["-d", "31", "--compress", "libdeflate"]).status(0);
    let after = stored(&out);
    assert!(after.iter().all(|(_, _, flags)| *flags <= 1) && after.iter().map(|p| p.0).eq(before.iter().map(|p| p.0)));
    let text = folder.path().join("again");
    dump(&[&out], &text, &["-d", "0", "--compress", "lzo"]).status(0);
    let run = peers::makedumpfile(&["-d", "31"], &text, &folder.path().join("theirs"));
    assert_eq!(run.status, 0, "{}", run.stderr);
}

#[test]
fn pages_of_a_codec_that_is_not_installed_are_kept_as_they_are_stored() {
    let folder = scratch();
    let (input, out) = (folder.path().join("in"), folder.path().join("out"));
    dump(&[&KDUMP_6_1.path()], &input, &["-d", "0", "--compress", "zstd"]).status(0);
    // An installation without zstd.
    let bin = folder.path().join("bin");
    std::fs::create_dir(&bin).unwrap();
    for file in std::fs::read_dir(built()).unwrap().map(|file| file.unwrap()) {
        let name = file.file_name().into_string().unwrap();
        let wanted =
            name == "coresift" || name.starts_with("lib") && name.ends_with(".so") && !name.contains("zstd") && !name.contains("unruly");
        if wanted {
            std::fs::copy(file.path(), bin.join(&name)).unwrap();
        }
    }
    let run = |extra: &[&str]| {
        let mut command = std::process::Command::new(bin.join("coresift"));
        command.args(["dump", "--json", "--force", "--progress", "none"]).args(extra).args([&input, &out]);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap()
    };
    let report = run(&["-d", "1"]);
    assert_eq!(report["outcome"], "degraded");
    assert!(report["issues"].to_string().contains("no compressor plugin for the codec"), "{report}");
    assert!(stored(&out) == stored(&input));
    // A format that cannot hold them says what is missing.
    let report = run(&["-d", "1", "--writer", "elf"]);
    assert!(report["issues"].to_string().contains("(zstd): put it beside the others"), "{report}");
}

#[test]
fn identical_pages_share_one_stored_copy_and_every_reader_takes_it() {
    let folder = scratch();
    let (plain, shared) = (folder.path().join("plain"), folder.path().join("shared"));
    let levels = ["-d", "1", "--compress", "lzo"];
    dump(&[&KDUMP_6_1.path()], &plain, &levels).status(0);
    dump(&[&KDUMP_6_1.path()], &shared, &[&levels[..], &["--set", "output.dedup=true"]].concat()).status(0);
    assert_eq!(peers::same_pages(&KDUMP_6_1.path(), &shared, 0)["equal"], KDUMP_6_1.manifest()["pfns"]);
    let run = peers::makedumpfile(&["-d", "31"], &shared, &folder.path().join("theirs"));
    assert_eq!(run.status, 0, "{}", run.stderr);
    let run = peers::crash(&[], &vmlinux_6_1(), &shared, "sys\nbt").status(0);
    assert!(run.stdout.contains("sysrq_handle_crash at"), "{}", run.stdout);
    // What is saved is what stands in the plain dump more than once.
    let mut offsets = std::collections::BTreeSet::new();
    let dump = Kdump::open(&shared).unwrap();
    offsets.extend((0..dump.dumped().len()).map(|rank| dump.descriptor(rank).0));
    let pages = stored(&plain);
    let distinct: std::collections::BTreeSet<&[u8]> = pages.iter().map(|(_, bytes, _)| bytes.as_slice()).collect();
    let (different, stored) = (distinct.len(), offsets.len());
    assert!(stored >= different && stored <= different + different / 10, "{stored} stored, {different} different");
    let size = |path: &Path| path.metadata().unwrap().len();
    assert!(size(&shared) < size(&plain));
}

#[test]
fn split_dumps_of_ours_open_together_and_those_of_others_are_read_in_any_order() {
    let folder = scratch();
    let vmcore = KDUMP_6_1.path();
    let set = folder.path().join("set");
    let report = dump(&[&vmcore], &set, &["-d", "1", "--split", "3"]).status(0).json();
    let part = |name: &str, n: u32| folder.path().join(format!("{name}.{n}"));
    let sizes: Vec<u64> = (1..=3).map(|n| part("set", n).metadata().unwrap().len()).collect();
    assert_eq!(report["parts"].as_array().unwrap().iter().map(|p| p["bytes"].as_u64().unwrap()).collect::<Vec<_>>(), sizes);
    // Balanced by bytes: no part has more than half again of another's.
    assert!(sizes.iter().max() < sizes.iter().min().map(|least| least * 3 / 2).as_ref(), "{sizes:?}");

    let joined = folder.path().join("theirs");
    let args: Vec<_> = (2..=3).map(|n| part("set", n).display().to_string()).collect();
    let options: Vec<&str> = std::iter::once("--reassemble").chain(args.iter().map(String::as_str)).collect();
    peers::makedumpfile(&options, &part("set", 1), &joined).status(0);
    assert_eq!(peers::same_pages(&vmcore, &joined, 0)["equal"], KDUMP_6_1.manifest()["pfns"]);
    let commas = PathBuf::from([2, 3, 1].map(|n| part("set", n).display().to_string()).join(","));
    assert_eq!(peers::same_pages(&vmcore, &commas, 0)["equal"], KDUMP_6_1.manifest()["pfns"]);

    let ours = folder.path().join("ours");
    let [a, b, c] = [3, 1, 2].map(|n| part("set", n));
    let join = |parts: &[&Path], output: &Path| {
        let args = ["join".as_ref(), "--force".as_ref(), "--progress".as_ref(), "none".as_ref()];
        coresift(args.into_iter().chain(parts.iter().map(|p| p.as_os_str())).chain([output.as_os_str()]))
    };
    join(&[&a, &b, &c], &ours).status(0);
    assert_eq!(peers::same_pages(&vmcore, &ours, 0)["equal"], KDUMP_6_1.manifest()["pfns"]);
    assert!(stored(&ours) == stored(&joined), "pages are copied as they are stored");
    let (whole, size) = (folder.path().join("whole"), |file: &Path| file.metadata().unwrap().len());
    dump(&[&vmcore], &whole, &["-d", "1"]).status(0);
    assert_eq!([size(&joined), size(&ours)], [size(&whole); 2], "zero pages go on sharing one");

    // makedumpfile's own set; with larger blocks it puts all pages of so small a machine into the first part.
    let theirs: Vec<_> = (1..=2).map(|n| part("mk", n).display().to_string()).collect();
    let options = ["--split", "-l", "-d", "31", "--splitblock-size", "4", "--message-level", "4"];
    let args: Vec<_> = options.iter().map(AsRef::as_ref).chain([vmcore.as_os_str(), theirs[0].as_ref(), theirs[1].as_ref()]).collect();
    let run = coresift_tests::peer("makedumpfile", "makedumpfile", &args);
    assert_eq!(run.status, 0, "{}", run.stderr);
    join(&[theirs[1].as_ref(), theirs[0].as_ref()], &ours).status(0);
    let again = folder.path().join("again");
    peers::makedumpfile(&["--reassemble", &theirs[0]], theirs[1].as_ref(), &again).status(0);
    assert_eq!(size(&ours), size(&again), "zero pages go on sharing one");
    assert_eq!(Kdump::open(&ours).unwrap().dumped().len() as u64, KDUMP_6_1.manifest()["reference_levels"]["31"]["pfns"]);

    // Parts with names of their own.
    let (one, two) = (folder.path().join("one"), folder.path().join("two"));
    let also = ["--also", two.to_str().unwrap()];
    let named = dump(&[&vmcore], &one, &[&["-d", "1"], &also[..]].concat()).status(0).json();
    assert_eq!(named["parts"][1]["output"], two.to_str().unwrap());
    join(&[&two, &one], &ours).status(0);
    assert!(stored(&ours) == stored(&joined), "both orders give the same dump");
    let args = ["dump", "--also", one.to_str().unwrap()].map(AsRef::as_ref).into_iter();
    coresift(args.chain([vmcore.as_os_str(), one.as_os_str()])).status(2).says(&["is the output of two parts"]);

    // A part is missing: the rest is there, and the missing PFNs are named.
    let run = join(&[&a, &b], &ours).status(1);
    let parts = report["parts"].as_array().unwrap();
    assert!(run.stdout.contains(&format!("{:#x} to", parts[1]["first_pfn"].as_u64().unwrap())), "{}", run.stdout);
    let there = parts[0]["pages"].as_u64().unwrap() + parts[2]["pages"].as_u64().unwrap();
    assert_eq!(Kdump::open(&ours).unwrap().dumped().len() as u64, there);
    join(&[&a, &b, &a], &ours).status(1).says(&["overlap", "each part of the split dump once"]);
    join(&[&a, &joined], &ours).status(1).says(&["a whole dump, not a part of a split one"]);
    let other = folder.path().join("other");
    dump(&[&ARM64_KDUMP.path()], &other, &["-d", "31", "--split", "2"]).status(0);
    join(&[&a, &part("other", 2)], &ours).status(1).says(&["parts of different dumps"]);
}

#[test]
fn flattened_streams_are_read_as_they_are_and_written_for_others() {
    let folder = scratch();
    let vmcore = KDUMP_6_1.path();
    // Theirs: read in place, and restored byte for byte as they restore it.
    let stream = folder.path().join("theirs.flat");
    flatten(&vmcore, &stream);
    let (ours, theirs) = (folder.path().join("ours"), folder.path().join("theirs"));
    restore_with_makedumpfile(&stream, &theirs);
    coresift(["restore".as_ref(), ours.as_os_str(), stream.as_os_str()]).status(0);
    assert!(std::fs::read(&ours).unwrap() == std::fs::read(&theirs).unwrap());
    let read = folder.path().join("read");
    dump(&[&stream], &read, &["-d", "0", "--compress", "keep"]).status(0);
    assert!(stored(&read) == stored(&theirs));

    // Ours: makedumpfile restores it, and crash opens the stream itself.
    let stream = folder.path().join("ours.flat");
    dump(&[&vmcore], &stream, &["-d", "1", "--flattened"]).status(0);
    let restored = folder.path().join("restored");
    restore_with_makedumpfile(&stream, &restored);
    assert_eq!(peers::same_pages(&vmcore, &restored, 0)["equal"], KDUMP_6_1.manifest()["pfns"]);
    let run = peers::crash(&[], &vmlinux_6_1(), &stream, "sys\nbt").status(0);
    assert!(run.stdout.contains("sysrq_handle_crash at"), "{}", run.stdout);
    // Records ascend but for the header's status, and are long: at most two a MiB.
    let records = records(&stream);
    let bytes: u64 = records.iter().map(|r| r.1).sum();
    assert!(records.len() as u64 <= 8 + bytes / (1 << 19), "{} records for {bytes} bytes", records.len());
}

#[test]
fn a_stream_goes_through_a_pipe_and_leaves_what_came_if_it_is_cut() {
    let folder = scratch();
    let vmcore = KDUMP_6_1.path();
    let made = command(
        ["dump", "--flattened", "-d", "31", "--progress", "none"].map(AsRef::as_ref).into_iter().chain([vmcore.as_os_str(), "-".as_ref()]),
    )
    .output()
    .unwrap();
    assert!(made.status.success());
    assert!(String::from_utf8_lossy(&made.stderr).contains("standard output"), "the report goes elsewhere");
    let expected = KDUMP_6_1.manifest()["reference_levels"]["31"]["pfns"].as_u64().unwrap();
    let output = folder.path().join("out");
    let restore = |bytes: &[u8]| {
        let mut child = command(["restore".as_ref(), "--force".as_ref(), output.as_os_str()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // It may end before all is written to it.
        let _ = child.stdin.take().unwrap().write_all(bytes);
        child.wait_with_output().unwrap()
    };
    assert!(restore(&made.stdout).status.success());
    assert_eq!(Kdump::open(&output).unwrap().dumped().len() as u64, expected);
    let whole = std::fs::read(&output).unwrap();
    for share in [10, 50, 90, 99] {
        let cut = &made.stdout[..made.stdout.len() * share / 100];
        let run = restore(cut);
        assert_eq!(run.status.code(), Some(1));
        assert!(String::from_utf8_lossy(&run.stdout).starts_with("INCOMPLETE"));
        let got = std::fs::read(&output).unwrap();
        assert!(got.len() > cut.len() / 2 && got.iter().zip(&whole).filter(|(a, b)| a != b && **a != 0).count() == 0);
        // The cut stream itself: what is in it can be dumped, and is marked.
        let stream = folder.path().join("cut.flat");
        std::fs::write(&stream, cut).unwrap();
        let report = dump(&[&stream], &folder.path().join("rest"), &["-d", "0"]).status(0).json();
        assert_eq!(report["outcome"], "incomplete");
        let (stored, lost) = (report["pages"]["stored"].as_u64().unwrap(), report["pages"]["lost"].as_u64().unwrap());
        assert_eq!(stored + lost, expected, "{share} %");
    }
    for nonsense in [&b"makedumpfile"[..], b"KDUMP   xxxxxxxxxxxx", b""] {
        let run = restore(nonsense);
        assert_eq!(run.status.code(), Some(1));
        assert!(String::from_utf8_lossy(&run.stderr).contains("not a flattened stream"));
    }
}

#[test]
fn a_kdump_file_that_is_cut_anywhere_gives_what_it_has() {
    let folder = scratch();
    let input = reference(folder.path(), "in", &["-l", "-d", "31"]);
    let whole = std::fs::read(&input).unwrap();
    let pages = stored(&input);
    let cut = folder.path().join("cut");
    for share in [2, 5, 30, 60, 95] {
        let len = whole.len() * share / 100;
        std::fs::write(&cut, &whole[..len]).unwrap();
        let out = folder.path().join("out");
        let report = dump(&[&cut], &out, &["-d", "0", "--compress", "keep"]).status(0).json();
        // A page is there if its bytes are.
        let dump = Kdump::open(&input).unwrap();
        let there = (0..pages.len()).filter(|rank| {
            let (offset, size, _) = dump.descriptor(*rank);
            offset + size <= len && 24 * (rank + 1) <= len
        });
        let expected = there.count() as u64;
        assert_eq!(report["pages"]["stored"].as_u64().unwrap(), expected, "{share} %");
    }
    for (len, why) in [(100, "makes no sense"), (7, "not recognised")] {
        std::fs::write(&cut, &whole[..len]).unwrap();
        dump(&[&cut], &folder.path().join("none"), &[]).status(1).says(&[why]);
    }
}

/// Offset and length of each record of a stream.
fn records(stream: &Path) -> Vec<(u64, u64)> {
    let bytes = std::fs::read(stream).unwrap();
    let word = |at: usize| u64::from_be_bytes(bytes[at..at + 8].try_into().unwrap());
    let (mut at, mut records) = (4096, Vec::new());
    while word(at) != u64::MAX {
        records.push((word(at), word(at + 8)));
        at += 16 + word(at + 8) as usize;
    }
    records
}

/// makedumpfile's stream of a vmcore; it goes to its standard output.
fn flatten(vmcore: &Path, stream: &Path) {
    let script = "makedumpfile -F -l -d 31 --message-level 4 \"$0\" > \"$1\"";
    let run = coresift_tests::peer("sh", "makedumpfile", &["-c".as_ref(), script.as_ref(), vmcore.as_ref(), stream.as_ref()]);
    assert_eq!(run.status, 0, "{}", run.stderr);
}

fn restore_with_makedumpfile(stream: &Path, output: &Path) {
    let script = "makedumpfile -R \"$1\" < \"$0\"";
    let run = coresift_tests::peer("sh", "makedumpfile", &["-c".as_ref(), script.as_ref(), stream.as_ref(), output.as_ref()]);
    assert_eq!(run.status, 0, "{}", run.stderr);
}
