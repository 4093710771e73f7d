//! The notes of both formats.
//!
//! Note numbers: xen/include/public/elfnote.h of Xen.

use coresift_sdk::{Error, Result};
use goblin::container::Ctx;
use goblin::elf::note::NoteDataIterator;

use crate::bytes::{u32_at, u64_at};

/// Name of the notes that Xen writes.
const XEN: &str = "Xen";
/// Name of the hypervisor's counterpart of VMCOREINFO (xen/common/kexec.c).
const VMCOREINFO_XEN: &str = "VMCOREINFO_XEN";

/// `XEN_ELFNOTE_CRASH_INFO`: versions, and where domain 0's frames are.
const CRASH_INFO: u32 = 0x0100_0001;
/// `XEN_ELFNOTE_CRASH_REGS`: control registers of a CPU.
const CRASH_REGS: u32 = 0x0100_0002;
/// `XEN_ELFNOTE_DUMPCORE_NONE`: this is a dump-core file.
const DUMPCORE_NONE: u32 = 0x0200_0000;
/// `XEN_ELFNOTE_DUMPCORE_HEADER`
const DUMPCORE_HEADER: u32 = 0x0200_0001;
/// `XEN_ELFNOTE_DUMPCORE_XEN_VERSION`
const DUMPCORE_XEN_VERSION: u32 = 0x0200_0002;
/// `XEN_ELFNOTE_DUMPCORE_FORMAT_VERSION`
const DUMPCORE_FORMAT_VERSION: u32 = 0x0200_0003;

/// `XC_CORE_MAGIC`: a paravirtualised domain.
const MAGIC_PV: u64 = 0xf00f_ebed;
/// `XC_CORE_MAGIC_HVM`: an HVM or PVH domain.
const MAGIC_HVM: u64 = 0xf00f_ebee;

/// Where `pagesize` stands in the version note: behind two numbers, 16 + 144 + 1024 + 64 bytes of text, and a long. For a
/// domain of 32 bits Xen writes it four bytes before (`elfnote_dump_xen_version`, tools/libs/guest/xg_core.c).
const VERSION_PAGESIZE: usize = 1272;

/// What the notes of a dump-core file say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DumpCore {
    /// the domain is paravirtualised: its page tables have machine frames
    pub pv: bool,
    /// vCPU contexts
    pub vcpus: u64,
    /// pages in the file
    pub pages: u64,
    /// bytes of a page
    pub page_size: u64,
    /// the domain is of 32 bits, though the file is of 64
    pub narrow: bool,
    /// Xen's version, 0.0 if unknown
    pub xen: (u64, u64),
}

/// What the notes of a vmcore say about its hypervisor.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Crash {
    /// Xen's version, from the crash note
    pub xen: Option<(u64, u64)>,
    /// machine frame of the first table that leads to domain 0's frames (`dom0_pfn_to_mfn_frame_list_list`)
    pub p2m: Option<u64>,
    /// CR3 of each CPU
    pub cr3: Vec<u64>,
    /// text of the note VMCOREINFO_XEN
    pub vmcoreinfo: Vec<u8>,
    /// there is a note of Xen
    pub any: bool,
}

/// Calls `visit` with name, type and content of each note, until one makes no sense.
pub fn each<'a>(data: &'a [u8], ctx: Ctx, mut visit: impl FnMut(&'a str, u32, &'a [u8])) {
    let notes = NoteDataIterator { data, size: data.len(), offset: 0, ctx: (4, ctx) };
    for note in notes.map_while(std::result::Result::ok) {
        visit(note.name, note.n_type, note.desc);
    }
}

/// True if these notes begin as those of a dump-core file.
pub fn is_dump_core(data: &[u8], ctx: Ctx) -> bool {
    let mut found = false;
    each(data, ctx, |name, n_type, _| found |= name == XEN && (DUMPCORE_NONE..=DUMPCORE_FORMAT_VERSION).contains(&n_type));
    found
}

/// Reads the notes of a dump-core file.
///
/// # Errors
/// There is no header note, or it says what cannot be.
pub fn dump_core(data: &[u8], ctx: Ctx, warnings: &mut Vec<String>) -> Result<DumpCore> {
    let big = !ctx.is_little_endian();
    let (mut header, mut version, mut format) = (None, None, None);
    each(data, ctx, |name, n_type, desc| match n_type {
        DUMPCORE_HEADER if name == XEN => header = header.or(Some(desc)),
        DUMPCORE_XEN_VERSION if name == XEN => version = version.or(Some(desc)),
        DUMPCORE_FORMAT_VERSION if name == XEN => format = format.or(u64_at(desc, 0, big)),
        _ => {}
    });
    let field = |at| header.and_then(|h| u64_at(h, at, big));
    let (Some(magic), Some(vcpus), Some(pages), Some(page_size)) = (field(0), field(8), field(16), field(24)) else {
        return Err(Error::format("the section .note.Xen has no whole header note (type 0x2000001)")
            .hint("the file is cut or damaged; copy it again"));
    };
    if !coresift_sdk::arch::is_page_size(page_size) {
        let message = format!("the header note says that pages have {page_size} bytes, which is no page size");
        return Err(Error::format(message).hint("the file is damaged; copy it again"));
    }
    if magic != MAGIC_PV && magic != MAGIC_HVM {
        warnings.push(format!("the header note has the unknown magic {magic:#x}"));
    }
    // The upper half is the major version: a new one may mean anything. All files so far have 0.1.
    if let Some(format) = format.filter(|f| f >> 32 != 0) {
        warnings.push(format!("the file has format version {}.{}, which is newer than this reader", format >> 32, format & 0xffff_ffff));
    }
    let version = version.unwrap_or_default();
    let word = |at: usize| u32_at(version, at, big).map(u64::from);
    let narrow = word(VERSION_PAGESIZE - 4) == Some(page_size) && word(VERSION_PAGESIZE) == Some(0);
    let xen = (u64_at(version, 0, big).unwrap_or(0), u64_at(version, 8, big).unwrap_or(0));
    Ok(DumpCore { pv: magic == MAGIC_PV, vcpus, pages, page_size, narrow, xen })
}

/// Reads the notes of an ELF vmcore.
pub fn crash(data: &[u8], ctx: Ctx) -> Crash {
    let mut crash = Crash::default();
    each(data, ctx, |name, n_type, desc| match n_type {
        _ if name == VMCOREINFO_XEN => {
            crash.any = true;
            crash.vmcoreinfo = desc.to_vec();
        }
        CRASH_INFO if name == XEN => {
            crash.any = true;
            let words: Vec<u64> = longs(desc, ctx);
            crash.xen = words.first().zip(words.get(1)).map(|(a, b)| (*a, *b)).or(crash.xen);
            // crash_xen_info_t (xen/include/xen/elfcore.h): eight longs; on x86 one more that is the frame, since Xen 3.3
            // ten, of which it is the last.
            crash.p2m = words.get(9).or(words.get(8)).copied().filter(|mfn| *mfn != 0 && *mfn != u64::MAX).or(crash.p2m);
        }
        CRASH_REGS if name == XEN => {
            crash.any = true;
            // crash_xen_core_t of x86 (xen/include/asm-x86/elf.h): cr0, cr2, cr3, cr4.
            crash.cr3.extend(longs(desc, ctx).get(2));
        }
        _ => {}
    });
    crash
}

/// Longs of the file's class.
fn longs(desc: &[u8], ctx: Ctx) -> Vec<u64> {
    let big = !ctx.is_little_endian();
    if ctx.is_big() {
        (0..desc.len() / 8).filter_map(|i| u64_at(desc, i * 8, big)).collect()
    } else {
        (0..desc.len() / 4).filter_map(|i| u32_at(desc, i * 4, big).map(u64::from)).collect()
    }
}
