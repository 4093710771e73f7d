//! Reads ELF vmcores: `/proc/vmcore`, `/proc/kcore` copies, `makedumpfile -E`, QEMU and libvirt memory dumps,
//! and the parts of a split one, which are ELF vmcores with other pages each.
//!
//! All that knows the format is in [`coresift_elf`], which other readers of ELF files share; this is the plugin around it.

use coresift_sdk::{ErrorKind, Manifest, Parts, Reader, Result, Score, Setup, Source, arch};

use coresift_elf::header::FileHeader;
use coresift_elf::image::ElfImage;
use coresift_elf::machine;

/// What this plugin says about itself.
pub fn manifest() -> Manifest {
    Manifest::reader("elf", env!("CARGO_PKG_VERSION"), "reads ELF vmcores (kdump, QEMU, libvirt)", &["ELF64 vmcore", "ELF32 vmcore"])
        .key(arch::page_size_key())
}

/// Says whether the input is an ELF vmcore, or each part of it is one; looks at the ELF headers only.
///
/// # Errors
/// The input cannot be read.
pub fn probe(sources: &[Source]) -> Result<Score> {
    let mut what = String::new();
    if sources.is_empty() {
        return Ok(Score::no("no input"));
    }
    for source in sources {
        match FileHeader::read(source) {
            Ok(header) => what = machine::describe(&header),
            Err(e) if e.kind == ErrorKind::Io => return Err(e),
            Err(e) if sources.len() > 1 => return Ok(Score::no(format!("{}: {}", source.name(), e.message))),
            Err(e) => return Ok(Score::no(e.message)),
        }
    }
    // QEMU, Xen and /proc/kcore make ELF cores too: a reader that knows more of one goes before this one.
    Ok(Score::likely(if sources.len() > 1 { format!("{} parts, {what}", sources.len()) } else { what }))
}

/// Opens an ELF vmcore.
///
/// # Errors
/// It is none, or nothing of the machine's memory can be found in it.
pub fn open(setup: Setup) -> Result<Box<dyn Reader>> {
    let page_size = arch::page_size(&setup.config)?;
    let open = |source: &Source| Ok(Box::new(ElfImage::open(source.clone(), page_size)?) as Box<dyn Reader>);
    Parts::join(&setup.sources, setup.sources.iter().map(open).collect::<Result<_>>()?)
}

#[cfg(feature = "export")]
coresift_sdk::export_plugin! { kind: reader, name: "elf", manifest: manifest, probe: probe, open: open }
