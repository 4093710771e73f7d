//! Programs that judge our output: libkdumpfile, crash, drgn, makedumpfile.

use std::ffi::OsStr;
use std::path::Path;

use crate::{Run, peer, workspace};

/// Reads every page of `dump` with libkdumpfile and compares it with the page of `vmcore`; returns the counts.
///
/// Fails if a page differs, or if one is missing beyond `missing_allowed`.
#[track_caller]
pub fn same_pages(vmcore: &Path, dump: &Path, missing_allowed: u64) -> serde_json::Value {
    let script = workspace().join("tests/peers/compare.py");
    let allowed = missing_allowed.to_string();
    let mut args: Vec<&OsStr> = vec![script.as_ref(), vmcore.as_ref(), dump.as_ref()];
    if missing_allowed > 0 {
        args.extend([OsStr::new("--allow-missing"), allowed.as_ref()]);
    }
    let run = peer("/usr/bin/python3", "python3-libkdumpfile", &args);
    assert_eq!(run.status, 0, "{} and {} differ: {}{}", vmcore.display(), dump.display(), run.stdout, run.stderr);
    run.json()
}

/// Runs crash's commands on a dump; `options` are crash's own, e.g. `--zero_excluded`.
#[track_caller]
pub fn crash(options: &[&str], vmlinux: &Path, dump: &Path, commands: &str) -> Run {
    let folder = crate::scratch();
    let input = folder.path().join("commands");
    std::fs::write(&input, format!("{commands}\nexit\n")).expect("a file");
    let fixed: [&OsStr; 6] = ["-s".as_ref(), "--no_crashrc".as_ref(), "-i".as_ref(), input.as_ref(), vmlinux.as_ref(), dump.as_ref()];
    let args: Vec<&OsStr> = options.iter().map(OsStr::new).chain(fixed).collect();
    peer("crash", "crash", &args)
}

/// Opens a dump with drgn and runs Python code with `prog` in it.
#[track_caller]
pub fn drgn(vmlinux: &Path, dump: &Path, code: &str) -> Run {
    let open = "import sys, drgn; prog = drgn.Program(); prog.set_core_dump(sys.argv[2]); prog.load_debug_info([sys.argv[1]])";
    let program = format!("{open}\n{code}");
    peer("/usr/bin/python3", "python3-drgn", &["-c".as_ref(), program.as_ref(), vmlinux.as_ref(), dump.as_ref()])
}

/// Runs makedumpfile, without its progress.
#[track_caller]
pub fn makedumpfile(args: &[&str], input: &Path, output: &Path) -> Run {
    let mut all: Vec<&OsStr> = vec!["--message-level".as_ref(), "4".as_ref()];
    all.extend(args.iter().map(OsStr::new));
    all.extend([input.as_os_str(), output.as_os_str()]);
    peer("makedumpfile", "makedumpfile", &all)
}
