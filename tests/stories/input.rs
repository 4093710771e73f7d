//! Damaged inputs: cut at every structure, shrinking while it is read, unreadable in places. Each costs pages, not the run.

use std::ffi::OsString;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use coresift_engine::Result;
use coresift_engine::dump::{Job, run_to};
use coresift_engine::profile::{self, Setting};
use coresift_engine::progress::{Hidden, Progress};
use coresift_engine::registry::Registry;
use coresift_engine::sink::{FileSink, Output};
use coresift_sdk::{Result as PluginResult, Sink};
use coresift_tests::vmcores::KDUMP_6_1;
use coresift_tests::{built, command, coresift, kdump, libs, peers, scratch};

/// A copy of the first `len` bytes of 6.1.
fn cut(folder: &Path, len: u64) -> PathBuf {
    let path = folder.join(format!("cut-{len}"));
    std::fs::copy(KDUMP_6_1.path(), &path).unwrap();
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(len).unwrap();
    path
}

fn dump(input: &Path, output: &Path, extra: &[&str]) -> Vec<OsString> {
    let mut args: Vec<OsString> = vec!["dump".into(), "--json".into(), input.into(), output.into()];
    args.extend(extra.iter().map(OsString::from));
    args
}

#[test]
fn a_file_cut_before_its_data_is_refused_and_one_cut_in_its_data_gives_the_rest() {
    let folder = scratch();
    let out = folder.path().join("out");
    // ELF header: bytes 0 to 63; program headers from 64 on (readelf -h -l).
    for len in [3, 20, 63, 64, 70, 119] {
        let run = coresift(dump(&cut(folder.path(), len), &out, &[])).status(1).says(&["hint: "]);
        assert!(!out.exists(), "{len}: {}", run.stderr);
    }
    // In the notes, behind them, in the first and in the last PT_LOAD.
    let whole = KDUMP_6_1.path().metadata().unwrap().len();
    for len in [0x1200, 0x2000, 0x3001, 0x100_0123, whole - 4097, whole - 1] {
        let input = cut(folder.path(), len);
        let report = coresift(dump(&input, &out, &["--force", "-d", "0", "--strict-exit"])).json();
        assert_eq!(report["outcome"], "incomplete", "{report}");
        let pages = &report["pages"];
        assert!(pages["absent"].as_u64().unwrap() > 0, "{len}: {report}");
        assert!(report["warnings"].to_string().contains("cut") || report["warnings"].to_string().contains("ends"), "{len}: {report}");
        assert_ne!(kdump::Kdump::open(&out).unwrap().status & kdump::INCOMPLETE, 0);
        if len > 0x10_0000 {
            // The page in which the file ends is not there.
            peers::same_pages(&input, &out, 1);
        }
    }
}

#[test]
fn a_cut_compressed_file_gives_what_stands_before_the_cut() {
    let folder = scratch();
    let (input, out) = (folder.path().join("cut.zst"), folder.path().join("out"));
    let packed = std::fs::read(KDUMP_6_1.packed()).unwrap();
    std::fs::write(&input, &packed[..packed.len() * 3 / 4]).unwrap();
    let report = coresift(dump(&input, &out, &["-d", "0"])).status(0).json();
    assert!(report["warnings"].to_string().contains("zstd stream breaks"), "{report}");
    assert!(report["pages"]["absent"].as_u64().unwrap() > 0);
    peers::same_pages(&KDUMP_6_1.path(), &out, report["pages"]["absent"].as_u64().unwrap());
}

#[test]
fn an_input_that_shrinks_while_it_is_read_costs_pages_and_not_the_run() {
    let folder = scratch();
    // The same pages several times over, so that there is time to cut the file under the run.
    let (input, out) = (folder.path().join("vmcore"), folder.path().join("out"));
    std::fs::copy(KDUMP_6_1.path(), &input).unwrap();
    let args = dump(&input, &out, &["-d", "0", "--compress", "libdeflate", "--set", "compress.level=6", "--threads", "1"]);
    let mut child = command(args).stdout(std::process::Stdio::piped()).spawn().unwrap();
    let unfinished = folder.path().join("out.incomplete");
    let begun = Instant::now();
    while unfinished.metadata().map_or(0, |m| m.len()) < 4 << 20 {
        assert!(begun.elapsed() < Duration::from_secs(60), "the run does not begin");
        std::thread::sleep(Duration::from_millis(1));
    }
    let file = std::fs::OpenOptions::new().write(true).open(&input).unwrap();
    file.set_len(100 << 20).unwrap();
    let output = {
        use std::io::Read;
        let mut text = String::new();
        child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
        text
    };
    assert!(child.wait().unwrap().success());
    let report: serde_json::Value = serde_json::from_str(&output).unwrap();
    let lost = report["pages"]["lost"].as_u64().unwrap();
    assert!(lost > 10_000, "{report}");
    assert_eq!(report["outcome"], "degraded");
    assert_ne!(kdump::Kdump::open(&out).unwrap().status & kdump::INCOMPLETE, 0, "a dump that lost pages says so");
    // Every page that is there is the vmcore's.
    peers::same_pages(&KDUMP_6_1.path(), &out, lost);
}

/// A file that cuts the input just before one of its writes: after the pages were packed, while they are in a window.
struct Cutter {
    file: FileSink,
    input: PathBuf,
    writes: usize,
}

/// The head of a dump takes five writes, a batch three: data, descriptors, bits. This is the data of the third batch.
const CUT_AT_WRITE: usize = 5 + 2 * 3 + 1;

impl Sink for Cutter {
    fn write_at(&mut self, offset: u64, pieces: &[&[u8]]) -> PluginResult<()> {
        self.writes += 1;
        if self.writes == CUT_AT_WRITE {
            std::fs::OpenOptions::new().write(true).open(&self.input).unwrap().set_len(1 << 20).unwrap();
        }
        self.file.write_at(offset, pieces)
    }
    fn reserve(&mut self, len: u64) -> PluginResult<()> {
        self.file.reserve(len)
    }
    fn positioned(&self) -> bool {
        true
    }
}

impl Output for Cutter {
    fn written(&self) -> u64 {
        self.file.written()
    }
    fn finish(&mut self) -> Result<()> {
        self.file.finish()
    }
    fn place(&self) -> Option<&Path> {
        self.file.place()
    }
}

#[test]
fn an_input_that_shrinks_between_packing_and_writing_costs_pages_and_not_the_run() {
    for threads in [1, 2] {
        let folder = scratch();
        let (input, out) = (folder.path().join("vmcore"), folder.path().join("out"));
        std::fs::copy(KDUMP_6_1.path(), &input).unwrap();
        let settings = [Setting::parse(&format!("engine.threads={threads}")).unwrap()];
        let profile = profile::open("plain", &settings).unwrap();
        let job = Job { inputs: vec![input.clone()], output: Some(out.clone()), more_outputs: Vec::new(), force: false, profile };
        let progress: Arc<dyn Progress> = Arc::new(Hidden);
        let make = |_| -> Result<Box<dyn Output>> {
            Ok(Box::new(Cutter { file: FileSink::create(&out, false)?, input: input.clone(), writes: 0 }))
        };
        let report = run_to(&job, &Registry::new(&[built()]), &progress, &make).unwrap();
        let pages = &report.pages;
        assert!(pages.lost > 40_000 && pages.stored >= 1024, "{pages:?}");
        assert_eq!(pages.stored + pages.lost, pages.ram, "{pages:?}");
        let compared = peers::same_pages(&KDUMP_6_1.path(), &out, pages.lost);
        assert_eq!(compared["missing"], pages.lost);
    }
}

/// `pread64` fails with EIO in a range of the input, and `mmap` of it raises no error but the file is not mappable.
const BAD_DISK: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>
static int is_input(int fd) {
    struct stat a, b;
    const char *path = getenv("BAD_DISK");
    return path && fd >= 0 && fstat(fd, &a) == 0 && stat(path, &b) == 0 && a.st_ino == b.st_ino && a.st_dev == b.st_dev;
}
ssize_t pread64(int fd, void *buf, size_t len, off_t at) {
    static ssize_t (*real)(int, void *, size_t, off_t);
    if (!real) real = dlsym(RTLD_NEXT, "pread64");
    off_t from = 0x1000000, to = 0x1000000 + 3 * 4096;
    if (is_input(fd) && at < to && at + (off_t)len > from) {
        if (at >= from) { errno = EIO; return -1; }
        len = from - at;
    }
    return real(fd, buf, len, at);
}
void *mmap64(void *addr, size_t len, int prot, int flags, int fd, off_t at) {
    static void *(*real)(void *, size_t, int, int, int, off_t);
    if (!real) real = dlsym(RTLD_NEXT, "mmap64");
    if (is_input(fd)) { errno = ENODEV; return MAP_FAILED; }
    return real(addr, len, prot, flags, fd, at);
}
void *mmap(void *addr, size_t len, int prot, int flags, int fd, off_t at) { return mmap64(addr, len, prot, flags, fd, at); }
"#;

#[test]
fn unreadable_pages_are_left_out_and_counted() {
    let folder = scratch();
    let shim = libs::compile(folder.path(), "baddisk.so", BAD_DISK);
    let (input, out) = (KDUMP_6_1.path(), folder.path().join("out"));
    let output =
        command(dump(&input, &out, &["-d", "0", "--strict-exit"])).env("LD_PRELOAD", shim).env("BAD_DISK", &input).output().unwrap();
    assert_eq!(output.status.code(), Some(4), "{}", String::from_utf8_lossy(&output.stderr));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["pages"]["lost"], 3);
    peers::same_pages(&input, &out, 3);
    // The neighbours of the bad pages are there: exactly three are not.
    let compared = peers::same_pages(&input, &out, 3);
    assert_eq!(compared["missing"], 3);
}

#[test]
fn a_file_with_zeros_for_headers_behind_the_magic_is_refused() {
    let folder = scratch();
    let input = cut(folder.path(), 1 << 20);
    let file = std::fs::OpenOptions::new().write(true).open(&input).unwrap();
    file.write_all_at(&[0; 200], 20).unwrap();
    coresift(dump(&input, &folder.path().join("out"), &[])).status(1).says(&["hint: "]);
}
