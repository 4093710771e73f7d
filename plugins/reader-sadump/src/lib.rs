//! Reads sadump images: what the firmware of Fujitsu's PRIMEQUEST and PRIMERGY servers writes when a machine hangs or
//! crashes, whatever the kernel can still do.
//!
//! All numbers are little endian, a block is a page of 4096 bytes. Three ways to lay it out, one after the other in
//! blocks:
//!
//! ```text
//! single partition   [partition header]                   [dump header][sub header][RAM][dumpable][pages ...]
//! media backup       [media header][partition header]     [dump header][sub header][RAM][dumpable][pages ...]
//! disk set, disk 1   [partition header][disk set header]  [dump header][sub header][RAM][dumpable][pages ...]
//!           disk 2…n [partition header][pages that go on where the disk before ended ...]
//! ```
//!
//! | part | says |
//! |---|---|
//! | partition header | IDs of system, set and volume, time stamp, number of the disk, bytes used, 982 magic numbers |
//! | disk set header | number of disks, IDs of the volumes 2 to n |
//! | media header | IDs and time stamp once more, number of the medium |
//! | dump header | version, block size, sizes of the next three parts, `max_mapnr`, number of CPUs |
//! | sub header | APIC IDs, and what the CPUs saved to SMRAM: their registers |
//! | RAM | one bit a PFN, most significant first: it is RAM |
//! | dumpable | the same: its page is in the image; the others of RAM were zero pages |
//! | pages | raw, ascending, one block each, without gaps |
//!
//! There is no public specification. The layout is that of `sadump_mod.h` (makedumpfile) and `sadump.h` (crash), both
//! by the engineers of the firmware; compressed images are not defined there.
//!
//! The way of an input, one module a step:
//!
//! | module | does |
//! |---|---|
//! | [`header`] | the fields of the headers; [`time`] its time stamps |
//! | [`container`] | which of the three it is, and where its parts are |
//! | [`disk_set`] | brings the disks of a set in order, and says what is wrong with them |
//! | [`bitmap`] | the two bitmaps as runs of PFNs |
//! | [`layout`] | from runs to extents, and from PFNs to bytes |
//! | [`cpu`] | registers to ELF notes |
//! | [`paging`] | `phys_base` by the CPUs' page tables |
//! | [`image`] | the reader itself: joins the above |
//!
//! ## What an image does not tell
//! - VMCOREINFO and kernel names: the firmware knows nothing of Linux. The host finds them in memory.
//! - The KASLR offset: it is an address of the running kernel minus its link address, and only a vmlinux knows that one.
//! - Which Linux CPU has which APIC ID: notes are in the order of the image, as makedumpfile assumes it.
//! - What the kernel itself saved of the CPUs (`crash_notes`) when it panicked before the firmware came: makedumpfile prefers
//!   that, but finds it by symbols only.
//! - The bases of FS and GS: SMRAM has no place for them; they are 0 in the notes.
//! - If a kdump kernel was running, it had moved the first 640 KiB to a backup region. Where that is, only kernel symbols
//!   tell (`saved_command_line` with `elfcorehdr=`): these pages are given as they stand in the image.

pub mod bitmap;
pub mod container;
pub mod cpu;
pub mod disk_set;
pub mod header;
pub mod image;
pub mod layout;
pub mod paging;
pub mod time;

use coresift_sdk::{Key, Manifest, Reader, Result, Score, Setup, Source};

use container::{Kind, Sighting};
use image::SadumpImage;

/// What this plugin says about itself.
pub fn manifest() -> Manifest {
    let formats = [Kind::SinglePartition, Kind::DiskSet, Kind::MediaBackup].map(Kind::format);
    Manifest::reader("sadump", env!("CARGO_PKG_VERSION"), "reads memory images of Fujitsu's sadump", &formats).key(Key::choice(
        "left_out",
        "absent",
        &["absent", "zero"],
        "what RAM pages are that the firmware left out of the image: absent from the output, or pages of zeros as makedumpfile takes them",
    ))
}

/// Says whether the inputs are sadump images; looks at their first blocks only.
///
/// # Errors
/// An input cannot be read.
pub fn probe(sources: &[Source]) -> Result<Score> {
    let mut refusal = "no input".to_owned();
    let mut damaged = None;
    for source in sources {
        match container::look(source)? {
            Sighting::Partition(part) if part.disk_number == 0 => return Ok(Score::certain(Kind::SinglePartition.format())),
            Sighting::Partition(part) => return Ok(Score::certain(format!("disk {} of a sadump disk set", part.disk_number))),
            Sighting::Media(..) => return Ok(Score::certain(Kind::MediaBackup.format())),
            // Nobody else will know it: opening it says what is wrong.
            Sighting::Damaged(why) => damaged = damaged.or(Some(why.message)),
            Sighting::Other(why) => refusal = why,
        }
    }
    Ok(damaged.map_or_else(|| Score::no(refusal), Score::likely))
}

/// Opens a sadump image.
///
/// # Errors
/// It is none, disks of the set are missing or foreign, or nothing of the machine's memory can be found in it.
pub fn open(setup: Setup) -> Result<Box<dyn Reader>> {
    let zeros = setup.config.text("left_out")? == "zero";
    Ok(Box::new(SadumpImage::open(setup.sources, zeros, &setup.host)?))
}

#[cfg(feature = "export")]
coresift_sdk::export_plugin! { kind: reader, name: "sadump", manifest: manifest, probe: probe, open: open }
