//! Reads the memory of VMware guests: a suspended one (`.vmss`), or a snapshot (`.vmsn`), with its `.vmem`.
//!
//! ```text
//! checkpoint    magic    u32   0xbed2bed2 and others, see checkpoint.rs
//! (.vmss,       version  u32
//!  .vmsn)       groups   u32   how many of the next
//!               group          name[64], u64 position in the file, u64 size
//!               …
//! group         tag      u16   bits 0-5: bytes of the value, 6-7: number of indices, 8-15: length of the name; 0 = the end
//!               name, then the indices, u32 each, then the value
//!               …              a value of 63 (62: compressed) "bytes" is a block: its length in the file and in memory, u64
//!                              each, a u16 of padding, as many bytes, the data
//! memory        group `memory`: `regionsCount`, and for each region `regionPPN[i]` (physical page), `regionPageNum[i]`
//!               (page of the memory file), `regionSize[i]` (pages); none where memory has no hole
//! .vmem         the pages, or the block `Memory` of the same group where the checkpoint has them itself
//! ```
//!
//! All numbers are little endian, a page has 4096 bytes. There is no public specification: the layout is that of crash's
//! `vmware_vmss.h`, whose authors are VMware's, and of volatility's `vmware.py`.
//!
//! The checkpoint tells where pages belong, the `.vmem` has them; both are given, in any order. Registers are not read:
//! the host finds the kernel in memory.
//!
//! Nothing in the input is trusted; what is cut costs its own pages and no others.

pub mod checkpoint;
pub mod image;

use coresift_sdk::{Error, Manifest, Reader, Result, Score, Setup, Source, arch};

use crate::checkpoint::Checkpoint;
use crate::image::VmwareImage;

/// What this plugin says about itself.
pub fn manifest() -> Manifest {
    Manifest::reader(
        "vmware",
        env!("CARGO_PKG_VERSION"),
        "reads memory of VMware guests (.vmss or .vmsn, and .vmem)",
        &["VMware checkpoint"],
    )
    .key(arch::arch_key())
}

/// Says whether there is a checkpoint among the inputs; looks at their first bytes only.
///
/// # Errors
/// An input cannot be read.
pub fn probe(sources: &[Source]) -> Result<Score> {
    let mut found = 0;
    for source in sources {
        found += usize::from(checkpoint::is_checkpoint(source)?);
    }
    Ok(match (found, sources.len()) {
        (0, _) => Score::no("no VMware checkpoint (.vmss or .vmsn)"),
        (1, 1) => Score::certain("VMware checkpoint"),
        (1, 2) => Score::certain("VMware checkpoint and its memory file"),
        _ => Score::no("a VMware guest is one checkpoint and one memory file"),
    })
}

/// Opens a checkpoint and its memory.
///
/// # Errors
/// It is none, or the memory is not in the inputs.
pub fn open(setup: Setup) -> Result<Box<dyn Reader>> {
    let mut checkpoint = None;
    let mut memory = None;
    for (i, source) in setup.sources.iter().enumerate() {
        let slot = if checkpoint::is_checkpoint(source)? { &mut checkpoint } else { &mut memory };
        if slot.replace((i, source)).is_some() {
            let message = format!("{}: a VMware guest is one checkpoint and one memory file", source.name());
            return Err(Error::unsupported(message).hint("give GUEST.vmss (or .vmsn) and GUEST.vmem"));
        }
    }
    let Some((number, source)) = checkpoint else {
        let message = "none of the inputs is a VMware checkpoint";
        return Err(Error::format(message).hint("give GUEST.vmss (or .vmsn) and GUEST.vmem; they stand in one folder"));
    };
    let parsed = Checkpoint::read(source)?;
    Ok(Box::new(VmwareImage::new(&parsed, (number, source), memory, setup.config.text("arch")?)?))
}

#[cfg(feature = "export")]
coresift_sdk::export_plugin! { kind: reader, name: "vmware", manifest: manifest, probe: probe, open: open }
