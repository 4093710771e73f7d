//! A real vmcore in, a dump with the same pages out: every codec, both levels, and every way to read and to schedule.

use std::path::Path;

use coresift_tests::vmcores::{ALL, KDUMP_6_1, Vmcore};
use coresift_tests::{coresift, kdump::Kdump, peers, scratch};

/// Codec names and their bits (diskdump.h of crash).
const CODECS: [(&str, u32); 6] = [("none", 0), ("zlib", 1), ("libdeflate", 1), ("lzo", 2), ("snappy", 4), ("zstd", 0x20)];

/// Dumps a vmcore, has libkdumpfile compare every page, and checks the report's sums against the manifest.
fn check(vmcore: Vmcore, codec: &str, bit: u32, level: &str) {
    let (folder, input, manifest) = (scratch(), vmcore.path(), vmcore.manifest());
    let output = folder.path().join("dump");
    let args = ["dump", "--json", "--compress", codec, "-d", level, "--progress", "none"];
    let report = coresift(args.iter().map(AsRef::as_ref).chain([input.as_os_str(), output.as_os_str()])).status(0).json();
    let pages = &report["pages"];
    assert_eq!(pages["ram"].as_u64().unwrap() - pages["absent"].as_u64().unwrap(), manifest["pfns"].as_u64().unwrap());
    let zero = if level == "1" { manifest["zero_pages"].as_u64().unwrap() } else { 0 };
    assert_eq!(pages["zero"], zero);
    let compared = peers::same_pages(&input, &output, 0);
    assert_eq!(compared["pages"], manifest["pfns"], "{compared}");
    assert_eq!(compared["equal"], compared["pages"], "{compared}");
    let head = std::fs::read(&output).unwrap();
    let order = if manifest["byte_order"] == "big" { u32::from_be_bytes } else { u32::from_le_bytes };
    assert_eq!(order(head[424..428].try_into().unwrap()), bit, "status: codec and nothing else");
}

#[test]
fn every_page_comes_back_with_every_codec_at_both_levels() {
    for vmcore in ALL {
        for (codec, bit) in CODECS {
            // With zero pages, which level 1 shares, for one of them.
            if vmcore.name == KDUMP_6_1.name {
                check(vmcore, codec, bit, "0");
            }
            check(vmcore, codec, bit, "1");
        }
    }
}

/// Dumps 6.1 with these extra arguments and returns the file's bytes.
fn bytes_with(extra: &[&str]) -> Vec<u8> {
    bytes_of(&KDUMP_6_1.path(), extra)
}

fn bytes_of(input: &Path, extra: &[&str]) -> Vec<u8> {
    let folder = scratch();
    let output = folder.path().join("dump");
    let args = ["dump".as_ref(), "--progress".as_ref(), "none".as_ref(), input.as_os_str(), output.as_os_str()];
    coresift(args.into_iter().chain(extra.iter().map(AsRef::as_ref))).status(0);
    std::fs::read(output).unwrap()
}

#[test]
fn threads_windows_and_reads_change_nothing_in_the_file() {
    let inline = bytes_with(&["--threads", "1"]);
    for extra in [&["--threads", "2"][..], &["--threads", "64"], &["--map-size", "0"], &["--map-size", "64KiB"], &["--map-size", "64MiB"]] {
        assert!(bytes_with(extra) == inline, "{extra:?} gives another file");
    }
}

#[test]
fn a_compressed_input_gives_the_same_dump() {
    assert!(bytes_of(&KDUMP_6_1.packed(), &[]) == bytes_with(&[]));
    // Of a file as large as the vmcore xz and bzip2 take their time: its first 48 MiB do as well.
    let folder = scratch();
    let cut = folder.path().join("cut");
    let whole = std::fs::read(KDUMP_6_1.path()).unwrap();
    std::fs::write(&cut, &whole[..48 << 20]).unwrap();
    let plain = bytes_of(&cut, &[]);
    for (program, package) in [("gzip", "gzip"), ("xz", "xz-utils"), ("bzip2", "bzip2"), ("lz4", "lz4")] {
        let file = folder.path().join(program);
        let script = format!("{program} -1c \"$0\" > \"$1\"");
        let run = coresift_tests::peer("sh", package, &["-c".as_ref(), script.as_ref(), cut.as_ref(), file.as_ref()]);
        assert_eq!(run.status, 0, "{program}: {}", run.stderr);
        assert!(bytes_of(&file, &[]) == plain, "{program} gives another dump");
    }
}

#[test]
fn the_file_is_private_and_no_unfinished_name_stays() {
    use std::os::unix::fs::PermissionsExt;
    let folder = scratch();
    let output = folder.path().join("dump");
    coresift(["dump".as_ref(), KDUMP_6_1.path().as_os_str(), output.as_os_str()]).status(0);
    assert_eq!(output.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn a_dry_run_writes_nothing_and_knows_the_size() {
    let folder = scratch();
    let real = bytes_with(&[]);
    let args = ["dump".as_ref(), "--dry-run".as_ref(), "--json".as_ref()];
    let input = KDUMP_6_1.path();
    let run = command_in(folder.path(), args.into_iter().chain([input.as_os_str()]));
    assert_eq!(run["bytes_written"], real.len());
    assert_eq!(run["output"], serde_json::Value::Null);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

fn command_in<'a>(folder: &std::path::Path, args: impl Iterator<Item = &'a std::ffi::OsStr>) -> serde_json::Value {
    let output = coresift_tests::command(args).current_dir(folder).output().unwrap();
    assert!(output.status.success());
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn makedumpfile_refilters_our_dump_to_the_same_pages_as_the_vmcore() {
    let folder = scratch();
    let (ours, from_ours, from_vmcore) = (folder.path().join("ours"), folder.path().join("a"), folder.path().join("b"));
    let input = KDUMP_6_1.path();
    coresift(["dump".as_ref(), "-d".as_ref(), "0".as_ref(), input.as_os_str(), ours.as_os_str()]).status(0);
    for (from, to) in [(&ours, &from_ours), (&input, &from_vmcore)] {
        assert_eq!(peers::makedumpfile(&["-l", "-d", "31"], from, to).status, 0);
    }
    let dumped = |path| Kdump::open(path).unwrap().dumped();
    let (a, b) = (dumped(&from_ours), dumped(&from_vmcore));
    // What the reference keeps of this vmcore: remaining + zero pages of the manifest.
    assert_eq!(b.len() as u64, KDUMP_6_1.manifest()["reference_d31"]["pfns_dumped_and_zero"].as_u64().unwrap());
    assert_eq!(a, b);
}
