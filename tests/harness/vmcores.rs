//! The real vmcores in `tests/data`, unpacked once for all tests, and what is true about each.

use std::path::PathBuf;

use crate::{built, workspace};

/// A real vmcore.
#[derive(Debug, Clone, Copy)]
pub struct Vmcore {
    /// name of the file in `tests/data`, without suffixes
    pub name: &'static str,
    /// suffix before `.zst`
    pub suffix: &'static str,
}

/// Debian 12's 6.1 on x86_64: `/proc/vmcore` after a real panic, with KASLR.
pub const KDUMP_6_1: Vmcore = Vmcore { name: "kdump-6.1", suffix: "vmcore" };

/// `/proc/vmcore` of arm64, 4 KiB pages; the kernel image stands in two PT_LOADs.
pub const ARM64_KDUMP: Vmcore = Vmcore { name: "arm64-4k-kdump", suffix: "elf" };

/// QEMU's dump of arm64 with 16 KiB pages; program headers and segments at odd offsets.
pub const ARM64_16K: Vmcore = Vmcore { name: "arm64-16k-va52", suffix: "elf" };

/// QEMU's dump of ppc64le with 64 KiB pages, no VMCOREINFO note.
pub const PPC64EL: Vmcore = Vmcore { name: "ppc64el", suffix: "elf" };

/// QEMU's dump of s390x: big-endian, no VMCOREINFO note.
pub const S390X: Vmcore = Vmcore { name: "s390x", suffix: "elf" };

/// All of them.
pub const ALL: [Vmcore; 5] = [KDUMP_6_1, ARM64_KDUMP, ARM64_16K, PPC64EL, S390X];

impl Vmcore {
    /// The compressed file in the repository.
    pub fn packed(self) -> PathBuf {
        workspace().join("tests/data").join(format!("{}.{}.zst", self.name, self.suffix))
    }

    /// The vmcore itself.
    pub fn path(self) -> PathBuf {
        unpacked(&format!("{}.{}", self.name, self.suffix))
    }

    /// The manifest: numbers found by tools that are not ours, see `tests/data/README.md`.
    pub fn manifest(self) -> serde_json::Value {
        let path = workspace().join("tests/data").join(format!("{}.json", self.name));
        let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
    }
}

/// Debug information for crash and drgn that fits [`KDUMP_6_1`].
pub fn vmlinux_6_1() -> PathBuf {
    unpacked("vmlinux-6.1.small")
}

/// A file of `tests/data`, unpacked beside the build once; tests may run at the same time.
fn unpacked(name: &str) -> PathBuf {
    let folder = built().join("test-data");
    std::fs::create_dir_all(&folder).expect("a folder in target");
    let path = folder.join(name);
    let source = workspace().join("tests/data").join(format!("{name}.zst"));
    let newer = |a: &PathBuf, b: &PathBuf| match (a.metadata().and_then(|m| m.modified()), b.metadata().and_then(|m| m.modified())) {
        (Ok(a), Ok(b)) => a >= b,
        _ => false,
    };
    if newer(&path, &source) {
        return path;
    }
    let packed = std::fs::File::open(&source).unwrap_or_else(|e| panic!("{}: {e}", source.display()));
    let part = tempfile::NamedTempFile::new_in(&folder).expect("a file in target");
    let mut decoder = zstd::stream::read::Decoder::new(packed).expect("a zstd decoder");
    decoder.window_log_max(31).expect("a large window");
    std::io::copy(&mut decoder, &mut part.as_file()).unwrap_or_else(|e| panic!("{}: {e}", source.display()));
    part.persist(&path).expect("a file in target");
    path
}
