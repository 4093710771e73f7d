//! Whenever a run ends, what is there opens: killed, disk full, size limit, and the stream cut anywhere.

use std::ffi::OsString;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use coresift_engine::dump::{Job, run_to};
use coresift_engine::profile::Setting;
use coresift_engine::progress::{Hidden, Progress};
use coresift_engine::registry::Registry;
use coresift_engine::sink::{FileSink, Output};
use coresift_engine::{Result, profile};
use coresift_sdk::{Error as PluginError, ErrorKind, Result as PluginResult, Sink};
use coresift_tests::kdump::{INCOMPLETE, Kdump};
use coresift_tests::vmcores::{KDUMP_6_1, vmlinux_6_1};
use coresift_tests::{built, command, coresift, peer, peers, scratch};

fn args(output: &Path, extra: &[&str]) -> Vec<OsString> {
    let mut args: Vec<OsString> = vec!["dump".into(), "-d".into(), "1".into(), KDUMP_6_1.path().into(), output.into()];
    args.extend(extra.iter().map(OsString::from));
    args
}

/// Number of pages of 6.1 with data: what an incomplete dump may lack.
fn all_pages() -> u64 {
    KDUMP_6_1.manifest()["pfns"].as_u64().unwrap()
}

#[test]
fn killed_at_any_moment_what_is_there_opens() {
    let folder = scratch();
    let output = folder.path().join("dump");
    let unfinished = folder.path().join("dump.incomplete");
    let mut opened = 0;
    // Killed at once, and when the file has grown so far; the whole dump has 45 MB.
    for size in [0, 1, 2 << 20, 5 << 20, 11 << 20, 23 << 20, 40 << 20] {
        let _ = std::fs::remove_file(&output);
        let slow = ["--force", "--compress", "libdeflate:9", "--threads", "1", "--progress", "none"];
        let mut child = command(args(&output, &slow)).stdout(std::process::Stdio::null()).spawn().unwrap();
        while child.try_wait().unwrap().is_none() && unfinished.metadata().map_or(0, |m| m.len()) < size {
            std::thread::sleep(Duration::from_micros(200));
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!output.exists() || Kdump::open(&output).unwrap().status & INCOMPLETE == 0, "an unfinished file has the final name");
        if Kdump::open_if_there(&unfinished).is_some_and(|k| k.status & INCOMPLETE != 0) {
            let compared = peers::same_pages(&KDUMP_6_1.path(), &unfinished, all_pages());
            opened += usize::from(compared["equal"].as_u64().unwrap() > 0);
        }
    }
    assert!(opened > 2, "{opened} runs were killed while they wrote");
}

#[test]
fn crash_and_drgn_open_an_incomplete_dump() {
    let folder = scratch();
    let output = folder.path().join("dump");
    // Most of the kernel is there; its page tables and section table lie at the end of this machine's memory and are not.
    coresift(args(&output, &["--limit", "44MiB", "--strict-exit"])).status(3);
    let vmlinux = vmlinux_6_1();
    // The two ways in that crash itself offers for such a file.
    let run = peers::crash(&["--minimal"], &vmlinux, &output, "log").status(0);
    assert!(run.stdout.contains("Linux version 6.1.0-57-cloud-amd64"), "{}", run.stdout);
    let run = peers::crash(&["--zero_excluded"], &vmlinux, &output, "sys").status(0);
    for text in ["This dumpfile is incomplete", "RELEASE: 6.1.0-57-cloud-amd64"] {
        assert!(run.stdout.contains(text), "`{text}` is not in {}", run.stdout);
    }
    let run = peers::drgn(&vmlinux, &output, "print(prog['init_uts_ns'].name.release.string_().decode())").status(0);
    assert_eq!(run.stdout.trim(), "6.1.0-57-cloud-amd64");
}

#[test]
fn a_size_limit_is_kept_and_gives_an_incomplete_dump_under_the_final_name() {
    let folder = scratch();
    for limit in [20 << 20, 33_333_333u64] {
        let output = folder.path().join(format!("dump-{limit}"));
        let run = coresift(args(&output, &["--json", "--limit", &limit.to_string()])).status(0);
        let report = run.json();
        assert_eq!(report["outcome"], "incomplete", "{report}");
        // Every page is somewhere, and what the report calls stored or zero is what a reader finds.
        let pages = &report["pages"];
        let count = |name: &str| pages[name].as_u64().unwrap();
        let sum = ["absent", "excluded", "zero", "stored", "lost", "not_written"].map(count).iter().sum::<u64>();
        assert_eq!(sum, count("ram"), "{pages}");
        let claimed = Kdump::open(&output).unwrap().dumped().len() as u64;
        assert_eq!(claimed, count("stored") + count("zero"), "{pages}");
        assert!(report["incomplete_because"].as_str().unwrap().contains("size limit"));
        let len = output.metadata().unwrap().len();
        assert!(len <= limit && len > limit - (64 << 10), "{len} of {limit}");
        assert_ne!(Kdump::open(&output).unwrap().status & INCOMPLETE, 0);
        let compared = peers::same_pages(&KDUMP_6_1.path(), &output, all_pages());
        assert!(compared["equal"].as_u64().unwrap() > 1000);
    }
}

#[test]
fn a_full_disk_keeps_what_was_written_and_says_where() {
    // A small tmpfs of its own, in a mount namespace of its own.
    let folder = scratch();
    let mount = folder.path().join("disk");
    std::fs::create_dir(&mount).unwrap();
    let script = "mount -t tmpfs -o size=24m none \"$0\" && shift 0; out=\"$1\"; shift; \"$@\"; rc=$?; cp \"$0/dump.incomplete\" \"$out\"; ls \"$0\"; exit $rc";
    let rescued = folder.path().join("rescued");
    let output = mount.join("dump");
    let mut full: Vec<OsString> = vec!["-m".into(), "sh".into(), "-c".into(), script.into(), mount.into(), rescued.clone().into()];
    full.push(built().join("coresift").into());
    full.extend(args(&output, &[]));
    let full: Vec<_> = full.iter().map(OsString::as_os_str).collect();
    let namespace: Vec<_> = if rustix::process::geteuid().is_root() { full } else { std::iter::once("-r".as_ref()).chain(full).collect() };
    let run = peer("unshare", "util-linux", &namespace).status(1).says(&["No space left on device", "what was written opens", "--limit"]);
    assert_eq!(run.stdout.trim(), "dump.incomplete", "nothing else is there");
    let compared = peers::same_pages(&KDUMP_6_1.path(), &rescued, all_pages());
    assert!(compared["equal"].as_u64().unwrap() > 1000);
}

/// Everything a writer wrote, in order.
#[derive(Default)]
struct Record(Vec<(u64, Vec<u8>)>);

/// A sink that only records.
struct Recorder(Arc<Mutex<Record>>, u64);

impl Sink for Recorder {
    fn write_at(&mut self, offset: u64, pieces: &[&[u8]]) -> PluginResult<()> {
        let bytes = pieces.concat();
        self.1 = self.1.max(offset + bytes.len() as u64);
        self.0.lock().unwrap().0.push((offset, bytes));
        Ok(())
    }
    fn reserve(&mut self, len: u64) -> PluginResult<()> {
        self.1 = self.1.max(len);
        self.0.lock().unwrap().0.push((len, Vec::new()));
        Ok(())
    }
    fn positioned(&self) -> bool {
        true
    }
}

impl Output for Recorder {
    fn written(&self) -> u64 {
        self.1
    }
    fn finish(&mut self) -> Result<()> {
        Ok(())
    }
    fn place(&self) -> Option<&Path> {
        None
    }
}

/// The file that stands after the first `bytes` bytes of the stream were written.
fn file_after(record: &Record, bytes: usize) -> Vec<u8> {
    let (mut file, mut left) = (Vec::new(), bytes);
    for (offset, data) in &record.0 {
        let data = &data[..data.len().min(left)];
        let end = *offset as usize + data.len();
        if file.len() < end {
            file.resize(end, 0);
        }
        file[*offset as usize..end].copy_from_slice(data);
        left -= data.len();
        if left == 0 {
            break;
        }
    }
    file
}

/// Offsets spread over all structures of a stream: both sides of every kind of border, and a regular net.
fn cuts(record: &Record, wanted: usize) -> Vec<usize> {
    let total: usize = record.0.iter().map(|(_, d)| d.len()).sum();
    let mut cuts = std::collections::BTreeSet::new();
    let mut at = 0;
    let ends: Vec<usize> = record
        .0
        .iter()
        .map(|(_, d)| {
            at += d.len();
            at
        })
        .collect();
    let near = ends.iter().take(16).chain(ends.iter().rev().take(16));
    for end in near {
        cuts.extend([end - 1, *end, end + 1].into_iter().filter(|c| *c <= total));
    }
    cuts.extend((0..wanted).map(|i| total * i / wanted));
    cuts.into_iter().collect()
}

#[test]
fn the_stream_cut_at_200_offsets_never_gives_a_wrong_page() {
    let record = Arc::new(Mutex::new(Record::default()));
    let registry = Registry::new(&[built()]);
    let progress: Arc<dyn Progress> = Arc::new(Hidden);
    let profile = profile::open("kdump", &[]).unwrap();
    // A twentieth of 6.1, in a vmcore of its own: each cut is read and compared.
    let folder = scratch();
    let set = folder.path().join("set");
    let options = ["dump", "--writer", "elf", "--split", "20", "--progress", "none"].map(AsRef::as_ref);
    coresift(options.into_iter().chain([KDUMP_6_1.path().as_os_str(), set.as_os_str()])).status(0);
    let input = folder.path().join("set.7");
    let pages = input.metadata().unwrap().len() / 4096;
    let job = Job { inputs: vec![input.clone()], output: None, more_outputs: Vec::new(), force: false, profile };
    run_to(&job, &registry, &progress, &|_| Ok(Box::new(Recorder(record.clone(), 0)))).unwrap();
    let record = record.lock().unwrap();
    let cuts = cuts(&record, 200);
    assert!(cuts.len() >= 200);
    let (mut dumps, mut none) = (0, 0);
    for cut in cuts {
        let path = folder.path().join("cut");
        std::fs::write(&path, file_after(&record, cut)).unwrap();
        match Kdump::open(&path) {
            None => none += 1,
            Some(_) => {
                dumps += 1;
                peers::same_pages(&input, &path, pages);
            }
        }
    }
    assert!(dumps > 150 && none > 5, "{dumps} dumps, {none} not yet");
}

/// A file on a disk that has no more room than this.
struct Small(FileSink, u64);

impl Sink for Small {
    fn write_at(&mut self, offset: u64, pieces: &[&[u8]]) -> PluginResult<()> {
        let end = offset + pieces.iter().map(|p| p.len() as u64).sum::<u64>();
        if end > self.1 {
            return Err(PluginError::new(ErrorKind::NoSpace, "no space left on device"));
        }
        self.0.write_at(offset, pieces)
    }
    fn reserve(&mut self, len: u64) -> PluginResult<()> {
        self.0.reserve(len)
    }
    fn positioned(&self) -> bool {
        true
    }
}

impl Output for Small {
    fn written(&self) -> u64 {
        self.0.written()
    }
    fn finish(&mut self) -> Result<()> {
        self.0.finish()
    }
    fn place(&self) -> Option<&Path> {
        self.0.place()
    }
}

#[test]
fn a_full_disk_under_one_part_of_a_dump_leaves_the_other_parts_whole() {
    let folder = scratch();
    let part = |n: u32| folder.path().join(format!("part{n}"));
    let settings = [Setting::parse("output.split=3").unwrap()];
    let profile = profile::open("kdump", &settings).unwrap();
    let more_outputs = vec![part(1), part(2)];
    let job = Job { inputs: vec![KDUMP_6_1.path()], output: Some(part(0)), more_outputs, force: false, profile };
    let progress: Arc<dyn Progress> = Arc::new(Hidden);
    let failed = run_to(&job, &Registry::new(&[built()]), &progress, &|n| {
        let room = if n == 1 { 5 << 20 } else { u64::MAX };
        Ok(Box::new(Small(FileSink::create(&part(n), false)?, room)))
    });
    let error = failed.err().unwrap();
    assert!(error.hint.contains("part1.incomplete") && error.message.contains("no space left"), "{error:?}");
    // Two parts have their names, the third is as far as it came; together they open, without a wrong page.
    let files = [part(0), folder.path().join("part1.incomplete"), part(2)].map(|path| path.display().to_string());
    let kept = KDUMP_6_1.manifest()["reference_levels"]["31"]["pfns"].as_u64().unwrap();
    let compared = peers::same_pages(&KDUMP_6_1.path(), Path::new(&files.join(",")), all_pages());
    let equal = compared["equal"].as_u64().unwrap();
    assert!(equal < kept && equal > kept * 9 / 10, "{compared}");
    let output = folder.path().join("all");
    let inputs = files.iter().map(AsRef::as_ref);
    let run = coresift(["join", "--progress", "none"].map(AsRef::as_ref).into_iter().chain(inputs).chain([output.as_os_str()]));
    assert!(run.status(1).stdout.starts_with("INCOMPLETE"));
    assert_eq!(peers::same_pages(&KDUMP_6_1.path(), &output, all_pages())["equal"], equal);
}
