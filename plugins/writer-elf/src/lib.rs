//! Writes ELF vmcores: core files with the physical memory of a machine, as `/proc/vmcore` is one. For everybody whose
//! tool knows no kdump files (gdb, volatility, zgetdump) or wants pages in place (mmap), and for file systems and
//! archives that compress by themselves.
//!
//! ```text
//! ELF header              ET_CORE, class and byte order of the machine         header.rs
//! program headers         PT_NOTE, one PT_LOAD for each run of pages           header.rs, segments.rs
//! section header 0        only with 65,535 program headers or more (PN_XNUM)   header.rs
//! notes                   those of the input, and VMCOREINFO                   notes.rs
//! zeros                   up to the next page
//! pages                   raw, in PFN order, without gaps                      dump.rs, pieces.rs
//! ```
//!
//! layout.rs says where these parts stand.
//!
//! Every page's place is known before the first one comes, so all headers are written first, marked incomplete (`e_flags`
//! bit 0). A killed writer leaves a file that ends early: readers see `PT_LOAD`s that reach behind the end of the file.
//! Zero pages are holes where the output can have holes.
//!
//! | key | value | meaning |
//! |---|---|---|
//! | `holes` | `exact` (default) | an excluded page is in no `PT_LOAD`: reading it is an error, not zeros |
//! | | `coarse` | as `makedumpfile -E`: `PT_LOAD`s cover all RAM, and shorter gaps than 256 pages read as zeros |
//!
//! `p_paddr` is the truth, and no page is in two `PT_LOAD`s. `p_vaddr` is the kernel's address where page tables prove it,
//! that of the kernel's image for the image and of the direct map for all other memory, else the same as `p_paddr`, as
//! QEMU has it (addresses.rs). gdb needs it, and old versions of drgn; crash, libkdumpfile and makedumpfile do without.

mod addresses;
mod dump;
mod header;
mod layout;
mod notes;
mod pieces;
mod segments;

use coresift_sdk::{End, Error, Host, Key, Level, Manifest, PackedBatch, Plan, Result, Setup, Sink, Writer};

use crate::addresses::Addresses;
use crate::dump::Dump;
use crate::segments::Holes;

/// What the plugin is.
pub fn manifest() -> Manifest {
    let help = "exact: an excluded page is in no PT_LOAD; coarse: as makedumpfile -E, gaps below 256 pages read as zeros";
    Manifest::writer("elf", env!("CARGO_PKG_VERSION"), "ELF vmcores, for gdb, volatility and all others; not compressed", "ELF vmcore", 0)
        .key(Key::choice("holes", "exact", &["exact", "coarse"], help))
}

/// Makes the writer.
///
/// # Errors
/// A setting makes no sense.
pub fn open(setup: Setup) -> Result<Box<dyn Writer>> {
    let holes = if setup.config.text("holes")? == "coarse" { Holes::Coarse } else { Holes::Exact };
    Ok(Box::new(Elf { host: setup.host, holes, dump: None }))
}

#[cfg(feature = "export")]
coresift_sdk::export_plugin! { kind: writer, name: "elf", manifest: manifest, open: open }

struct Elf {
    host: Host,
    holes: Holes,
    dump: Option<Dump>,
}

impl Writer for Elf {
    fn begin(&mut self, plan: &Plan<'_>, sink: &mut dyn Sink) -> Result<()> {
        let addresses = Addresses::find(&self.host, plan);
        let dump = Dump::begin(plan, self.holes, &addresses, sink)?;
        if !dump.architecture_known() {
            let text = "the input does not tell its architecture: e_machine is 0, and most tools will not open the ELF file";
            self.host.log(Level::Warning, text);
        }
        self.dump = Some(dump);
        Ok(())
    }

    fn write(&mut self, batch: &PackedBatch<'_>, sink: &mut dyn Sink) -> Result<()> {
        self.dump.as_mut().ok_or_else(not_begun)?.write(batch, sink)
    }

    fn finish(&mut self, end: &End, sink: &mut dyn Sink) -> Result<()> {
        let dump = self.dump.take().ok_or_else(not_begun)?;
        let missing = dump.missing();
        if missing > end.lost_pages {
            let text = format!("{} pages that a filter excluded by their bytes read as zeros in the ELF file", missing - end.lost_pages);
            self.host.log(Level::Warning, &text);
        }
        dump.finish(end, sink)
    }
}

fn not_begun() -> Error {
    Error::format("the dump was not begun, or is finished")
}
