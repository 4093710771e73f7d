//! Reads ELF vmcores: `/proc/vmcore`, `/proc/kcore` copies, `makedumpfile -E`, QEMU and libvirt memory dumps.
//!
//! An ELF core file is a header, a table of program headers, and what the table points to. `PT_NOTE` segments hold notes
//! (CPU registers, the VMCOREINFO text of the kernel), `PT_LOAD` segments hold memory: so many bytes at this physical
//! address stand at that file offset. Format: System V ABI, chapters "Object Files" and "Program Loading"; what Linux
//! makes of it: fs/proc/vmcore.c.
//!
//! The way of an input, one module a step:
//!
//! | module | does |
//! |---|---|
//! | [`header`] | the ELF header: is it a core, which class, byte order and machine, where the table is |
//! | [`segments`] | the table: `PT_LOAD`s checked and clipped, places of the notes |
//! | [`notes`] | the notes: VMCOREINFO, number of CPUs |
//! | [`machine`] | architecture and page size, and all else that goes into [`coresift_sdk::Machine`] |
//! | [`layout`] | from any set of `PT_LOAD`s to ascending, disjoint extents of pages |
//! | [`image`] | the reader itself: joins the above |
//!
//! Nothing in the input is trusted: sizes are bounded before memory is allocated, additions are checked, and what makes
//! no sense becomes a warning as long as anything can be saved.

pub mod header;
pub mod image;
pub mod layout;
pub mod machine;
pub mod notes;
pub mod segments;

use coresift_sdk::{Error, ErrorKind, Key, Manifest, Reader, Result, Score, Setup, Source};

use header::FileHeader;
use image::ElfImage;

/// What this plugin says about itself.
pub fn manifest() -> Manifest {
    Manifest::reader("elf", env!("CARGO_PKG_VERSION"), "reads ELF vmcores (kdump, QEMU, libvirt)", &["ELF64 vmcore", "ELF32 vmcore"]).key(
        Key::size(
            "page_size",
            0,
            0,
            machine::MAX_PAGE_SIZE,
            "page size of the crashed machine where the input does not tell it; 0 = by architecture",
        ),
    )
}

/// Says whether the input is an ELF vmcore; looks at the ELF header only.
///
/// # Errors
/// The input cannot be read.
pub fn probe(sources: &[Source]) -> Result<Score> {
    let source = match only_one(sources) {
        Ok(source) => source,
        Err(e) => return Ok(Score::no(e.message)),
    };
    match FileHeader::read(source) {
        // QEMU, Xen and /proc/kcore make ELF cores too: a reader that knows more of one goes before this one.
        Ok(header) => Ok(Score::likely(machine::describe(&header))),
        Err(e) if e.kind == ErrorKind::Io => Err(e),
        Err(e) => Ok(Score::no(e.message)),
    }
}

/// Opens an ELF vmcore.
///
/// # Errors
/// It is none, or nothing of the machine's memory can be found in it.
pub fn open(setup: Setup) -> Result<Box<dyn Reader>> {
    let page_size = setup.config.size("page_size")?;
    if page_size != 0 && !machine::is_page_size(page_size) {
        let message = format!("key `page_size`: {page_size} is not a power of two from 4 KiB on");
        return Err(Error::new(ErrorKind::Config, message));
    }
    let source = only_one(&setup.sources)?.clone();
    Ok(Box::new(ElfImage::open(source, page_size)?))
}

fn only_one(sources: &[Source]) -> Result<&Source> {
    match sources {
        [source] => Ok(source),
        _ => Err(Error::unsupported(format!("an ELF vmcore is one file, not {}", sources.len()))),
    }
}

#[cfg(feature = "export")]
coresift_sdk::export_plugin! { kind: reader, name: "elf", manifest: manifest, probe: probe, open: open }
