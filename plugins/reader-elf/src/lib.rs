//! Reads ELF vmcores: `/proc/vmcore`, `/proc/kcore` copies, `makedumpfile -E`, QEMU and libvirt memory dumps.
//!
//! All that knows the format is in [`coresift_elf`], which other readers of ELF files share; this is the plugin around it.

use coresift_sdk::{Error, ErrorKind, Key, Manifest, Reader, Result, Score, Setup, Source};

use coresift_elf::header::FileHeader;
use coresift_elf::image::ElfImage;
use coresift_elf::machine;

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
