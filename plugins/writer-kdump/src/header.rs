//! Header and sub-header: `struct disk_dump_header` and `struct kdump_sub_header` of makedumpfile's diskdump_mod.h,
//! which crash (diskdump.h) and libkdumpfile (diskdump.c) repeat.

use coresift_sdk::{Error, Machine, Plan, Result, vmcoreinfo_value};

use crate::geometry::Geometry;
use crate::layout::{Layout, Struct};
use crate::notes::Notes;

/// The first eight bytes of a dump.
pub const SIGNATURE: &[u8; 8] = b"KDUMP   ";

/// Header version 6: PFNs have 64 bits. crash has read it since 7.0.4 (2014), and makedumpfile writes no other.
const VERSION: u32 = 6;

/// `DUMP_DH_COMPRESSED_INCOMPLETE`: a bit of the status.
pub const INCOMPLETE: u32 = 0x8;
/// Status bit: pages of the mem_map that describe only excluded pages are left out (`DUMP_DH_EXCLUDED_VMEMMAP`).
pub const EXCLUDED_VMEMMAP: u32 = 0x10;

/// `__NEW_UTS_LEN + 1`: a field of `struct new_utsname`.
const UTS_FIELD: usize = 65;

/// Stands for a name that the input does not tell: libkdumpfile ignores a utsname, and with it the architecture, unless
/// release, version and machine have a text each.
const UNKNOWN: &str = "unknown";

/// As [`UNKNOWN`], for the release: libkdumpfile reads a version number out of it.
const UNKNOWN_RELEASE: &str = "0.0.0-unknown";

/// The header's bytes, and the offset of its status.
pub fn header(plan: &Plan<'_>, layout: Layout, geometry: &Geometry, status: u32) -> (Vec<u8>, usize) {
    let machine = plan.machine;
    let mut s = Struct::new(layout);
    s.chars(SIGNATURE);
    s.int(VERSION);
    for name in utsname(machine) {
        s.string(UTS_FIELD, name);
    }
    // struct timeval. libkdumpfile tries the 32-bit layout first on every file, and there our microseconds are the block
    // size: only 0 makes it go on to the 64-bit layout for sure.
    s.long(if machine.crash_time == 0 { plan.written_at } else { machine.crash_time });
    s.long(0);
    let status_at = s.len();
    s.int(status);
    s.int(geometry.block as u32);
    s.int(geometry.sub_header_blocks);
    s.int(geometry.bitmap_blocks);
    s.int(capped(machine.max_pfn));
    // total_ram_blocks, device_blocks, written_blocks and current_cpu belong to the older diskdump.
    for _ in 0..4 {
        s.int(0);
    }
    // crash warns about a machine without CPUs.
    s.int(machine.cpus.max(1));
    (s.into_bytes(), status_at)
}

/// The sub-header's bytes.
pub fn sub_header(plan: &Plan<'_>, layout: Layout, geometry: &Geometry, notes: &Notes<'_>) -> Vec<u8> {
    let machine = plan.machine;
    let notes_at = geometry.block + sub_header_len(layout) as u64;
    let split = plan.parts > 1;
    let (start, end) = if split { (plan.first_pfn, plan.end_pfn) } else { (0, 0) };

    let mut s = Struct::new(layout);
    s.long(machine.phys_base.or_else(|| phys_base(machine)).unwrap_or(0));
    s.int(plan.excluded.dump_level());
    s.int(split.into());
    s.long(capped(start).into());
    s.long(capped(end).into());
    // libkdumpfile tells the two 32-bit layouts apart by whether this offset lies in the sub-header's blocks, and takes
    // the i386 one if offset and size are 0: so on 32 bits it is set even where there is no text. crash looks at the
    // size too.
    let text = &notes.vmcoreinfo;
    s.long_long(if text.is_empty() && !layout.is_32_bit() { 0 } else { notes_at + text.start as u64 });
    s.long(text.len() as u64);
    s.long_long(if notes.len() == 0 { 0 } else { notes_at });
    s.long(notes.len() as u64);
    let erased = notes.erased.len();
    s.long_long(if erased == 0 { 0 } else { notes_at + notes.len() as u64 });
    s.long(erased as u64);
    s.long_long(start);
    s.long_long(end);
    s.long_long(machine.max_pfn);
    s.into_bytes()
}

/// Length of the sub-header; the notes follow it without a gap.
pub fn sub_header_len(layout: Layout) -> usize {
    let mut s = Struct::new(layout);
    s.long(0);
    s.int(0);
    s.int(0);
    s.long(0);
    s.long(0);
    // VMCOREINFO, notes, eraseinfo
    for _ in 0..3 {
        s.long_long(0);
        s.long(0);
    }
    for _ in 0..3 {
        s.long_long(0);
    }
    s.len()
}

/// `phys_base` as the kernel itself left it: makedumpfile finds nothing in an x86_64 dump whose header has it wrong.
fn phys_base(machine: &Machine) -> Option<u64> {
    let number: i64 = vmcoreinfo_value(&machine.vmcoreinfo, "NUMBER(phys_base)")?.parse().ok()?;
    Some(number.cast_unsigned())
}

/// A PFN for the obsolete 32-bit fields.
fn capped(pfn: u64) -> u32 {
    u32::try_from(pfn).unwrap_or(u32::MAX)
}

/// The six names, made good where the input has none.
fn utsname(machine: &Machine) -> [&str; 6] {
    let uts = &machine.utsname;
    let release = vmcoreinfo_value(&machine.vmcoreinfo, "OSRELEASE").unwrap_or(UNKNOWN_RELEASE);
    let pick = |name, other| if str::is_empty(name) { other } else { name };
    [
        pick(&uts.sysname, "Linux"),
        &uts.nodename,
        pick(&uts.release, release),
        pick(&uts.version, UNKNOWN),
        pick(&uts.machine, &machine.arch),
        &uts.domainname,
    ]
}

/// The status of a complete dump.
///
/// # Errors
/// A codec that no reader knows: crash takes pages of an unknown one for raw ones.
pub fn status(codec: u32) -> Result<u32> {
    use coresift_sdk::codec::{LZO, NONE, SNAPPY, ZLIB, ZSTD};
    match codec {
        NONE | ZLIB | LZO | SNAPPY | ZSTD => Ok(codec),
        _ => Err(Error::unsupported(format!("the kdump format has no codec {codec:#x}"))),
    }
}
