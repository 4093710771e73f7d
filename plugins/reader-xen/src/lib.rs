//! Reads what Xen leaves of a machine: `xl dump-core` files of one domain, and vmcores of a crashed hypervisor.
//!
//! **`xl dump-core`** (Xen: docs/misc/dump-core-format.txt) is an ELF64 core file without program headers; sections say
//! all. Page `i` of `.xen_pages` is the page with the number in entry `i` of the index. There is no rule for the order of
//! the entries; entries of all ones are padding.
//!
//! | section | holds |
//! |---|---|
//! | `.note.Xen` | notes: the header (kind of domain, vCPUs, pages, page size), versions |
//! | `.xen_prstatus` | a `vcpu_guest_context` for each vCPU |
//! | `.xen_pages` | the pages |
//! | `.xen_p2m` | index of a paravirtualised domain: PFN of the domain, frame of the machine (MFN); 8 bytes each |
//! | `.xen_pfn` | index of an HVM or PVH domain: PFN of the domain, 8 bytes |
//!
//! **The vmcore of a hypervisor** is an ordinary ELF vmcore of all of the machine, with notes of name `Xen`. Its pages are
//! frames of the machine. With `view = "dom0"` they are those of domain 0, which the hypervisor's crash note leads to.
//!
//! A paravirtualised kernel sees machine frames in its own page tables. In a view by PFN nothing could follow them, so
//! their entries are translated (see [`tables`]); `page_tables = "machine"` leaves them as they are.
//!
//! The way of an input, one module a step:
//!
//! | module | does |
//! |---|---|
//! | [`sections`] | ELF header and section headers of a dump-core file, also of one that is cut |
//! | [`notes`] | the notes of both formats |
//! | [`index`] | from index entries to runs of pages |
//! | [`registers`] | from vCPU contexts to register notes |
//! | [`domain`] | a dump-core file |
//! | [`hypervisor`] | the vmcore of a hypervisor, by machine frames |
//! | [`dom0`] | the same by domain 0's page frames |
//! | [`tables`] | page tables of a paravirtualised kernel |
//! | [`image`] | the reader for views by PFN |
//!
//! Nothing in the input is trusted: sizes are bounded before memory is allocated, additions are checked, and what makes
//! no sense becomes a warning as long as anything can be saved.

pub mod bytes;
pub mod dom0;
pub mod domain;
pub mod hypervisor;
pub mod image;
pub mod index;
pub mod notes;
pub mod registers;
pub mod sections;
pub mod tables;

use coresift_sdk::{Error, ErrorKind, Key, Manifest, Reader, Result, Score, Setup, Source};

use image::Entries;
use tables::Scope;

/// What this plugin says about itself.
pub fn manifest() -> Manifest {
    let about = "reads Xen dump-core files and vmcores of a Xen hypervisor";
    Manifest::reader("xen", env!("CARGO_PKG_VERSION"), about, &[domain::FORMAT, hypervisor::FORMAT])
        .key(Key::choice("view", "machine", &["machine", "dom0"], "whose page frames the vmcore of a hypervisor has"))
        .key(Key::choice(
            "page_tables",
            "kernel",
            &["kernel", "all", "machine"],
            "which page tables of a paravirtualised kernel get the domain's own frame numbers: the kernel's and those of \
             processes that were running; those of all processes, which takes a search through all of memory; or none",
        ))
}

/// Says whether the input comes from Xen; looks at headers and notes.
///
/// # Errors
/// The input cannot be read.
pub fn probe(sources: &[Source]) -> Result<Score> {
    let source = match only_one(sources) {
        Ok(source) => source,
        Err(e) => return Ok(Score::no(e.message)),
    };
    let not_a_domain = match domain::recognise(source) {
        Ok(what) => return Ok(Score::certain(what)),
        Err(e) if e.kind == ErrorKind::Io => return Err(e),
        Err(e) => e,
    };
    Ok(match hypervisor::recognise(source)? {
        Some(what) => Score::certain(what),
        None => Score::no(not_a_domain.message),
    })
}

/// Opens a file from Xen.
///
/// # Errors
/// It is none, or nothing of the machine's memory can be found in it.
pub fn open(setup: Setup) -> Result<Box<dyn Reader>> {
    let source = only_one(&setup.sources)?.clone();
    let entries = match setup.config.text("page_tables")? {
        "machine" => Entries::Machine,
        "all" => Entries::Guest(Scope::All),
        _ => Entries::Guest(Scope::Kernel),
    };
    let dom0 = setup.config.text("view")? == "dom0";
    if hypervisor::recognise(&source)?.is_some() {
        let machine = hypervisor::Hypervisor::open(source)?;
        return if dom0 { dom0::open(machine, entries) } else { Ok(Box::new(machine)) };
    }
    if dom0 {
        let message = format!("view = \"dom0\" is for vmcores of a hypervisor; {} is none", source.name());
        return Err(Error::unsupported(message).hint("leave the key out: a dump-core file has one domain only"));
    }
    domain::open(source, entries)
}

fn only_one(sources: &[Source]) -> Result<&Source> {
    match sources {
        [source] => Ok(source),
        _ => Err(Error::unsupported(format!("a file from Xen is one file, not {}", sources.len()))),
    }
}

#[cfg(feature = "export")]
coresift_sdk::export_plugin! { kind: reader, name: "xen", manifest: manifest, probe: probe, open: open }
