//! Bad input: one or two lines that say what to do, the right exit status, and nothing under the final name.

use std::ffi::OsString;
use std::path::Path;

use coresift_tests::vmcores::{ARM64_KDUMP, KDUMP_6_1};
use coresift_tests::{Run, coresift, scratch};

/// Runs `coresift dump INPUT OUTPUT EXTRA…` and checks that it left no output.
#[track_caller]
fn refused(input: &Path, output: &Path, extra: &[&str], status: i32, texts: &[&str]) -> Run {
    let mut args: Vec<OsString> = vec!["dump".into(), input.into(), output.into()];
    args.extend(extra.iter().map(OsString::from));
    let run = coresift(args).status(status).says(texts);
    assert!(run.stderr.contains("hint: "), "no remedy: {}", run.stderr);
    assert!(!output.is_file() || output.metadata().unwrap().len() == 5, "left an output");
    run
}

#[test]
fn what_is_no_vmcore_is_named() {
    let folder = scratch();
    let file = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    };
    let out = folder.path().join("out");
    refused(&file("text", b"hello, this is no vmcore at all"), &out, &[], 1, &["text: format not recognised", "not an ELF"]);
    refused(&file("empty", b""), &out, &[], 1, &["empty is empty"]);
    refused(folder.path(), &out, &[], 1, &["is a directory"]);
    refused(&folder.path().join("none"), &out, &[], 1, &["cannot open", "No such file"]);
    let program = std::fs::read("/bin/true").unwrap();
    refused(&file("program", &program), &out, &[], 1, &["format not recognised", "no core file"]);
    refused(&file("dump", b"KDUMP   and so on, but no dump"), &out, &[], 1, &["the header makes no sense", "dump"]);
    refused(&file("cut.zst", &[0x28, 0xb5, 0x2f, 0xfd, 0, 0]), &out, &[], 1, &["zstd"]);
    refused(&file("cut.gz", &[0x1f, 0x8b, 8, 0]), &out, &[], 1, &["gzip"]);
}

#[test]
fn a_pipe_as_input_or_output_is_refused_without_waiting() {
    let folder = scratch();
    let out = folder.path().join("out");
    let fifo = folder.path().join("fifo");
    assert_eq!(coresift_tests::peer("mkfifo", "coreutils", &[fifo.as_ref()]).status, 0);
    refused(&fifo, &out, &[], 1, &["is a pipe"]);
    refused(&KDUMP_6_1.path(), &fifo, &[], 1, &["pipe"]);
    refused(&KDUMP_6_1.path(), Path::new("/dev/full"), &[], 1, &["character device"]);
}

#[test]
fn outputs_that_cannot_be_are_refused_before_the_input_is_read() {
    let folder = scratch();
    let input = KDUMP_6_1.path();
    let exists = folder.path().join("exists");
    std::fs::write(&exists, b"mine!").unwrap();
    refused(&input, &exists, &[], 1, &["exists", "--force"]);
    assert_eq!(std::fs::read(&exists).unwrap(), b"mine!");
    refused(&input, &folder.path().join("no/such/out"), &[], 1, &["folder", "mkdir -p"]);
    refused(&input, folder.path(), &[], 1, &["is a directory"]);
    coresift(["dump".as_ref(), "--force".as_ref(), input.as_os_str(), exists.as_os_str()]).status(0);
    assert!(exists.metadata().unwrap().len() > 1 << 20);
}

#[test]
fn an_unfinished_dump_is_not_overwritten_and_a_link_is_not_followed() {
    let folder = scratch();
    let (input, out) = (KDUMP_6_1.path(), folder.path().join("out"));
    let (unfinished, victim) = (folder.path().join("out.incomplete"), folder.path().join("victim"));
    std::fs::write(&victim, b"other").unwrap();
    std::os::unix::fs::symlink(&victim, &unfinished).unwrap();
    refused(&input, &out, &[], 1, &["an unfinished dump is there already", "--force"]);
    coresift(["dump".as_ref(), "--force".as_ref(), input.as_os_str(), out.as_os_str()]).status(0);
    assert_eq!(std::fs::read(&victim).unwrap(), b"other");
    assert!(!unfinished.exists() && out.is_file());
}

#[test]
fn the_input_is_never_overwritten() {
    let folder = scratch();
    let input = folder.path().join("vmcore");
    std::fs::copy(KDUMP_6_1.path(), &input).unwrap();
    let before = input.metadata().unwrap().len();
    let args: Vec<OsString> = vec!["dump".into(), "--force".into(), input.clone().into(), input.clone().into()];
    coresift(args).status(2).says(&["both input and output"]);
    // An unfinished dump may be an input, but not of a run that would write over it.
    let unfinished = folder.path().join("other.incomplete");
    std::fs::rename(&input, &unfinished).unwrap();
    let args: Vec<OsString> = vec!["dump".into(), "--force".into(), unfinished.clone().into(), folder.path().join("other").into()];
    coresift(args).status(2).says(&["both input and output"]);
    std::fs::rename(&unfinished, &input).unwrap();
    assert_eq!(input.metadata().unwrap().len(), before);
}

#[test]
fn an_input_that_may_not_be_read_says_so() {
    let folder = scratch();
    let input = folder.path().join("vmcore");
    std::fs::copy(KDUMP_6_1.path(), &input).unwrap();
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(&input, std::fs::Permissions::from_mode(0o000)).unwrap();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    // Root may read everything: the command runs as nobody. The build may lie where nobody cannot go, so it is copied.
    let bin = folder.path().join("bin");
    std::fs::create_dir(&bin).unwrap();
    for entry in std::fs::read_dir(coresift_tests::built()).unwrap().flatten().map(|e| e.path()) {
        if entry.is_file() && entry.file_name().is_some_and(|n| n == "coresift" || n.to_string_lossy().ends_with(".so")) {
            std::fs::copy(&entry, bin.join(entry.file_name().unwrap())).unwrap();
        }
    }
    let mut command = std::process::Command::new(bin.join("coresift"));
    command.args(["dump".as_ref(), input.as_os_str(), folder.path().join("out").as_os_str()]);
    if rustix::process::geteuid().is_root() {
        use std::os::unix::process::CommandExt;
        command.uid(65534).gid(65534);
    }
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("cannot open the input") && said.contains("Permission denied") && said.contains("hint: run as"), "{said}");
}

#[test]
fn wrong_usage_is_exit_status_2_and_names_the_option() {
    let folder = scratch();
    let (input, out) = (KDUMP_6_1.path(), folder.path().join("out"));
    refused(&input, &out, &["--profile", "kdmup"], 2, &["profile `kdmup` not found", "did you mean `kdump`?"]);
    refused(&input, &out, &["--set", "engine.thraeds=2"], 2, &["--set engine.thraeds=2", "unknown key", "did you mean `threads`?"]);
    refused(&input, &out, &["--set", "engine.threads=many"], 2, &["--set engine.threads=many", "`threads`"]);
    refused(&input, &out, &["--set", "nonsense"], 2, &["--set nonsense: not KEY=VALUE"]);
    refused(&input, &out, &["--compress", "zstd:99"], 2, &["--compress zstd:99", "`level`", "99 is not within"]);
    refused(&input, &out, &["--compress", "lzo:1"], 2, &["--compress lzo:1", "unknown key `level`"]);
    refused(&input, &out, &["--compress", "none:3"], 2, &["--compress none:3", "`level`", "has no settings"]);
    refused(&input, &out, &["--compress", "zstd:fast"], 2, &["`fast` is no level"]);
    refused(&input, &out, &["--map-size", "4 parsecs"], 2, &["--map-size 4 parsecs", "`map_size`"]);
    refused(&input, &out, &["--limit=-1"], 2, &["--limit -1", "`limit`"]);
    refused(&input, &out, &["--limit", "100KiB"], 1, &["the size limit of 100.0 KiB is reached", "raise --limit"]);
    refused(&input, &out, &["-d", "32"], 2, &["-d 32", "0 to 31"]);
    refused(&input, Path::new("-"), &[], 2, &["random access"]);
    coresift(["dump".as_ref(), input.as_os_str()]).status(2).says(&["no OUTPUT given"]);
    coresift(["dump"]).status(2);
    coresift(["dmup"]).status(2);
}

#[test]
fn two_inputs_that_are_no_parts_of_one_dump_are_refused() {
    let folder = scratch();
    let (input, out) = (KDUMP_6_1.path(), folder.path().join("out"));
    let args = ["dump".as_ref(), input.as_os_str(), input.as_os_str(), out.as_os_str()];
    coresift(args).status(1).says(&["both have a page (PFN 0x100)", "give each part of one split dump once"]);
    let other = ARM64_KDUMP.path();
    let args = ["dump".as_ref(), input.as_os_str(), other.as_os_str(), out.as_os_str()];
    coresift(args).status(1).says(&["are parts of different dumps"]);
    assert!(!out.exists());
}

#[test]
fn errors_are_a_document_when_asked_for() {
    let run = coresift(["--json", "info", "/no/such/file"]).status(1);
    assert_eq!(run.json()["error"]["status"], 1);
    assert!(run.json()["error"]["hint"].as_str().unwrap().contains("check the path"));
}
