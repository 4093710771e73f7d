//! SPARSEMEM: RAM in sections, and a table of them that says where the `struct page`s of each are.

use coresift_sdk::linux::Version;

use super::{MapRun, Search};

/// `SECTION_MARKED_PRESENT` of include/linux/mmzone.h.
const PRESENT: u64 = 1;
/// `SECTION_HAS_MEM_MAP`.
const HAS_MEM_MAP: u64 = 2;
/// Most sections that are looked at: 4 PiB in sections of 128 MiB. A table may claim anything.
const SECTIONS_MAX: u64 = 1 << 25;

/// What `SYMBOL(mem_section)` is the address of.
#[derive(Debug, Clone, Copy)]
enum Table {
    /// the sections themselves (static SPARSEMEM)
    Sections,
    /// pointers to pages full of sections (SPARSEMEM_EXTREME; since 4.15 the kernel exports where these are)
    Roots,
    /// a pointer to those pointers (SPARSEMEM_EXTREME since 4.15, the address taken from a vmlinux)
    PointerToRoots,
}

/// The layout of the table.
struct Layout {
    /// bytes of a `struct mem_section`
    size: u64,
    /// offset of `section_mem_map` in it
    map: usize,
    /// entries of the array
    length: u64,
    /// sections of a root
    per_root: u64,
    /// log2 of the pages of a section
    pages_shift: u32,
    /// low bits of `section_mem_map` that are flags
    flags: u64,
}

/// The runs of all sections that have a mem_map, and the name of the model.
pub(super) fn find(search: &Search<'_>) -> Result<(&'static str, Vec<MapRun>), String> {
    let symbol = search.info.symbol("mem_section").unwrap_or_default();
    let layout = layout(search)?;
    // What it is depends on the kernel's configuration, which it does not tell: of the three readings the one that leads
    // to the most sections with a readable mem_map is right, the others lead nowhere.
    let readings = [Table::Roots, Table::Sections, Table::PointerToRoots];
    let tried = readings.map(|table| (table, sections(search, symbol, &layout, table)));
    let best = tried.into_iter().max_by_key(|(_, found)| found.iter().map(|run| run.pages).sum::<u64>());
    let Some((table, runs)) = best.filter(|(_, runs)| !runs.is_empty()) else {
        return Err(format!("mem_section at {symbol:#x} leads to no section whose mem_map can be read"));
    };
    let joined = join(runs, search.struct_page);
    let same_base = joined.windows(2).all(|w| match w {
        [a, b] => b.address.wrapping_sub(a.address) == (b.first_pfn - a.first_pfn).wrapping_mul(search.struct_page),
        _ => true,
    });
    let model = match table {
        Table::Sections => "SPARSEMEM",
        _ if same_base => "SPARSEMEM_VMEMMAP",
        _ => "SPARSEMEM_EXTREME",
    };
    Ok((model, joined))
}

fn layout(search: &Search<'_>) -> Result<Layout, String> {
    let info = search.info;
    let size = info.size("mem_section").filter(|s| (8..=256).contains(s)).ok_or("VMCOREINFO has no usable SIZE(mem_section)")?;
    let map = info.offset("mem_section.section_mem_map").unwrap_or(0);
    if map + search.words.long as u64 > size {
        return Err(format!("OFFSET(mem_section.section_mem_map)={map} lies outside of mem_section"));
    }
    let version = info.release().and_then(Version::parse);
    let given = info.number("SECTION_SIZE_BITS").and_then(|n| u32::try_from(n).ok());
    let section_bits = given.or_else(|| section_size_bits(search, version)).ok_or("VMCOREINFO has no NUMBER(SECTION_SIZE_BITS)")?;
    let pages_shift = section_bits
        .checked_sub(search.machine.page_shift)
        .filter(|s| *s <= 24)
        .ok_or(format!("NUMBER(SECTION_SIZE_BITS)={section_bits} is absurd"))?;
    Ok(Layout {
        size,
        map: map as usize,
        length: info.length("mem_section").filter(|l| *l > 0).ok_or("VMCOREINFO has no LENGTH(mem_section)")?,
        per_root: (search.machine.page_size() as u64 / size).max(1),
        pages_shift,
        flags: flag_bits(version),
    })
}

/// `SECTION_SIZE_BITS` of kernels that do not export it (x86: before 5.8, arm64: before 5.8), from asm/sparsemem.h.
fn section_size_bits(search: &Search<'_>, version: Option<Version>) -> Option<u32> {
    let page_shift = search.machine.page_shift;
    Some(match search.machine.arch.as_str() {
        "x86_64" => 27,
        // With PAE 29 since 2.6.26, 30 before; 26 without.
        "i386" | "i486" | "i586" | "i686" if search.info.size("mem_section").is_some() => match search.info.get("CONFIG(X86_PAE)") {
            Some("y") if version.is_some_and(|v| v < Version(2, 6, 26)) => 30,
            Some("y") => 29,
            _ => 26,
        },
        // 5.12 made sections smaller (commit f0b13ee23241).
        "aarch64" if version? < Version(5, 12, 0) => 30,
        "aarch64" => {
            if page_shift == 16 {
                29
            } else {
                27
            }
        }
        "ppc64" | "ppc64le" => 24,
        "s390x" => 28,
        "arm" => 28,
        "riscv64" => 27,
        "loongarch64" | "mips64" => 28,
        _ => return None,
    })
}

/// Bits of `section_mem_map` below the address. There are two up to 4.12 and more in each later release; since 4.15 at
/// the latest every mem_map begins on a page, so that all bits below a page are flags or zero.
fn flag_bits(version: Option<Version>) -> u64 {
    match version {
        Some(v) if v < Version(4, 13, 0) => 0x3,
        Some(v) if v < Version(4, 15, 0) => 0x7,
        Some(_) => 0xfff,
        None => 0x3f,
    }
}

/// One run for each section.
fn sections(search: &Search<'_>, symbol: u64, layout: &Layout, table: Table) -> Vec<MapRun> {
    let long = search.words.long as u64;
    let mut runs = Vec::new();
    let table_address = match table {
        Table::PointerToRoots => search.long(symbol).filter(|p| *p != 0),
        _ => Some(symbol),
    };
    let Some(start) = table_address else { return runs };
    if let Table::Sections = table {
        // Read page by page: a part of the table may be missing.
        let chunk = (4096 / layout.size).max(1);
        let length = layout.length.min(SECTIONS_MAX);
        for first in (0..length).step_by(chunk as usize) {
            root(search, start.wrapping_add(first * layout.size), first, chunk.min(length - first), layout, &mut runs);
        }
        return runs;
    }
    let roots = layout.length.min(SECTIONS_MAX / layout.per_root);
    let chunk = 4096 / long;
    for first in (0..roots).step_by(chunk as usize) {
        // A part of the table may be missing.
        let count = chunk.min(roots - first);
        let Some(pointers) = search.bytes(start.wrapping_add(first * long), count * long) else { continue };
        for number in 0..count {
            let pointer = search.words.long(&pointers, (number * long) as usize).unwrap_or(0);
            if pointer != 0 {
                root(search, pointer, (first + number) * layout.per_root, layout.per_root, layout, &mut runs);
            }
        }
    }
    runs
}

/// The sections of one piece of the table.
fn root(search: &Search<'_>, address: u64, first: u64, count: u64, layout: &Layout, runs: &mut Vec<MapRun>) {
    let Some(bytes) = search.bytes(address, count * layout.size) else { return };
    for (number, section) in (first..).zip(bytes.chunks_exact(layout.size as usize)) {
        let coded = search.words.long(section, layout.map).unwrap_or(0);
        if coded & PRESENT == 0 || coded & HAS_MEM_MAP == 0 {
            continue;
        }
        let first_pfn = number << layout.pages_shift;
        if first_pfn >= search.machine.max_pfn {
            continue;
        }
        let base = coded & !layout.flags;
        let address = base.wrapping_add(first_pfn.wrapping_mul(search.struct_page));
        let address = if search.words.long == 4 { address & u64::from(u32::MAX) } else { address };
        let pages = 1u64 << layout.pages_shift;
        // Sections of a vmemmap have one base: it is proven once, and terabytes do not cost a walk for each section.
        let proven = runs.last().is_some_and(|last| {
            last.address.wrapping_sub(last.first_pfn.wrapping_mul(search.struct_page)) == base && search.words.long == 8
        });
        // Of a section that was hot-plugged in part any page may be the first one there.
        let probes = [0, pages / 2, pages - 1];
        if proven || probes.iter().any(|p| search.has_struct_page(address.wrapping_add(p * search.struct_page))) {
            runs.push(MapRun { first_pfn, pages, address });
        }
    }
}

/// Joins runs that follow each other in PFN and address.
fn join(runs: Vec<MapRun>, struct_page: u64) -> Vec<MapRun> {
    let mut joined: Vec<MapRun> = Vec::new();
    for run in runs {
        match joined.last_mut() {
            Some(last)
                if last.end_pfn() == run.first_pfn && last.address.wrapping_add(last.pages.wrapping_mul(struct_page)) == run.address =>
            {
                last.pages += run.pages;
            }
            _ => joined.push(run),
        }
    }
    joined
}
