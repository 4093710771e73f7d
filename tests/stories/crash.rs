//! The readers that people use open our dumps: crash and drgn, with debug information that fits the kernel.

use coresift_tests::vmcores::{KDUMP_6_1, vmlinux_6_1};
use coresift_tests::{coresift, peers, scratch};

#[test]
fn crash_prints_sys_bt_and_log_with_every_codec() {
    let (folder, vmlinux) = (scratch(), vmlinux_6_1());
    for codec in ["none", "zlib", "libdeflate", "lzo", "snappy", "zstd"] {
        let dump = folder.path().join(codec);
        coresift(["dump".as_ref(), "--compress".as_ref(), codec.as_ref(), KDUMP_6_1.path().as_os_str(), dump.as_os_str()]).status(0);
        let run = peers::crash(&[], &vmlinux, &dump, "sys\nbt\nlog").status(0);
        for text in [
            "PANIC: \"Kernel panic - not syncing: sysrq triggered crash\"",
            "RELEASE: 6.1.0-57-cloud-amd64",
            "COMMAND: \"labtool\"",
            "sysrq_handle_crash at",
            "Linux version 6.1.0-57-cloud-amd64",
        ] {
            assert!(run.stdout.contains(text), "{codec}: `{text}` is not in {}", run.stdout);
        }
    }
}

#[test]
fn drgn_walks_the_tasks_and_reads_the_log() {
    let (folder, vmlinux) = (scratch(), vmlinux_6_1());
    let dump = folder.path().join("dump");
    coresift(["dump".as_ref(), KDUMP_6_1.path().as_os_str(), dump.as_os_str()]).status(0);
    let code = "from drgn.helpers.linux.pid import for_each_task\nprint(len(list(for_each_task(prog))), prog['init_uts_ns'].name.release.string_().decode())";
    let run = peers::drgn(&vmlinux, &dump, code).status(0);
    // 50 tasks: what drgn counts in the vmcore itself.
    assert_eq!(run.stdout.trim(), "50 6.1.0-57-cloud-amd64");
}
