//! Where the `struct page`s are: memory models, section tables and nodes.
//!
//! Sources: include/linux/mmzone.h, mm/sparse.c, include/asm-generic/memory_model.h.

use std::collections::HashMap;
use std::ops::Range;

use super::arch::Arch;
use super::layout::Layout;
use super::memory::Memory;

/// Which form SYMBOL(mem_section) has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Root {
    /// the root array itself, to 4.14
    Array,
    /// the address of the allocated root array: VMCOREINFO_SYMBOL_ARRAY of a pointer, since 4.15 (83e3c48729d9, a0b1280368d1)
    Address,
    /// a pointer variable that holds it: what `-x vmlinux` gives since 4.15
    Pointer,
}

/// A memory model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Model {
    /// mem_map is one array
    Flat,
    /// one array per node, two nodes with a hole between
    Discontig,
    /// SPARSEMEM_STATIC: mem_section\[\] holds the sections
    Static,
    /// SPARSEMEM_EXTREME without vmemmap: roots of pages full of sections; mem_maps in the linear map
    Extreme(Root),
    /// SPARSEMEM_VMEMMAP: mem_maps in a virtual range of their own
    Vmemmap(Root),
}

/// Bits of section_mem_map: SECTION_MARKED_PRESENT, SECTION_HAS_MEM_MAP, SECTION_IS_ONLINE (4.13), SECTION_IS_EARLY (5.3),
/// SECTION_TAINT_ZONE_DEVICE (5.12).
fn section_bits(layout: &Layout, number: u64) -> u64 {
    let mut bits = 3;
    if layout.version >= (4, 13, 0) {
        bits |= 4;
    }
    if layout.version >= (5, 3, 0) {
        bits |= 8;
    }
    if layout.version >= (5, 12, 0) && number > 0 {
        bits |= 16;
    }
    bits
}

impl Model {
    /// Name for files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Flat => "flat",
            Self::Discontig => "discontig",
            Self::Static => "static",
            Self::Extreme(Root::Array) => "extreme",
            Self::Extreme(Root::Address) => "extreme-address",
            Self::Extreme(Root::Pointer) => "extreme-pointer",
            Self::Vmemmap(Root::Array) => "vmemmap",
            Self::Vmemmap(Root::Address) => "vmemmap-address",
            Self::Vmemmap(Root::Pointer) => "vmemmap-pointer",
        }
    }

    /// Has sections?
    pub fn sparse(self) -> bool {
        !matches!(self, Self::Flat | Self::Discontig)
    }

    /// sizeof(struct mem_section): section_mem_map, and pageblock_flags since 2.6.24.
    pub fn section_size(self, layout: &Layout) -> u64 {
        if layout.version < (2, 6, 24) { layout.word() } else { 2 * layout.word() }
    }

    /// NR_SECTION_ROOTS.
    pub fn roots(self, layout: &Layout) -> u64 {
        let sections = 1u64 << (layout.arch.physmem_bits(layout.version) - layout.arch.section_bits());
        if self == Self::Static { sections } else { sections.div_ceil(self.per_root(layout)) }
    }

    fn per_root(self, layout: &Layout) -> u64 {
        (1 << layout.arch.page_shift()) / self.section_size(layout)
    }
}

/// The struct pages: where each is, virtually and physically.
#[derive(Debug, Default)]
pub struct MemMap {
    /// PFNs and the address of the first one's struct page
    pub regions: Vec<(Range<u64>, u64)>,
    /// virtual page of 4 KiB → physical address
    pub frames: HashMap<u64, u64>,
    /// virtual pages with their own entry in the page tables: those of vmemmap; with `true` a leaf of 2 MiB starts here
    pub mapped: Vec<(u64, bool)>,
}

/// The granule of `frames`.
pub const FRAME: u64 = 0x1000;

impl MemMap {
    /// Address of a struct page.
    pub fn va(&self, layout: &Layout, pfn: u64) -> Option<u64> {
        let (range, va) = self.regions.iter().find(|(range, _)| range.contains(&pfn))?;
        Some(va + (pfn - range.start) * layout.size())
    }

    /// Is all of this struct page in memory that can be found?
    pub fn readable(&self, memory: &Memory, layout: &Layout, pfn: u64) -> bool {
        let Some(va) = self.va(layout, pfn) else { return false };
        [va, va + layout.size() - 1]
            .iter()
            .all(|va| self.frames.get(&(va / FRAME)).is_some_and(|pa| memory.has(pa >> layout.arch.page_shift())))
    }

    /// Writes into struct pages; what is not mapped stays away.
    pub fn write(&self, memory: &mut Memory, va: u64, bytes: &[u8]) {
        for (i, byte) in bytes.iter().enumerate() {
            let va = va + i as u64;
            if let Some(frame) = self.frames.get(&(va / FRAME)) {
                memory.write(frame + va % FRAME, &[*byte]);
            }
        }
    }

    /// A mem_map in one piece, in the linear map.
    pub fn linear(&mut self, memory: &mut Memory, layout: &Layout, range: Range<u64>, below: u64) -> u64 {
        let len = (range.end - range.start) * layout.size();
        let pages = len.div_ceil(memory.page_size());
        let at = memory.system(pages, 1, below);
        let va = memory.linear(at);
        for n in 0..pages * memory.page_size() / FRAME {
            self.frames.insert(va / FRAME + n, at + n * FRAME);
        }
        self.regions.push((range, va));
        va
    }

    /// A section's part of vmemmap: one leaf of 2 MiB, or frames that do not follow each other; only the first `frames` are there.
    fn virtual_part(&mut self, memory: &mut Memory, layout: &Layout, range: Range<u64>, scattered: bool, frames: u64, below: u64) -> u64 {
        let va = layout.arch.vmemmap() + range.start * layout.size();
        let count = ((range.end - range.start) * layout.size()).div_ceil(FRAME);
        if scattered {
            for n in 0..count.min(frames) {
                // every other one from the top, so that neighbours are apart
                let at = memory.system(1, 2, below);
                self.frames.insert(va / FRAME + n, at);
                self.mapped.push((va + n * FRAME, false));
            }
        } else {
            let at = memory.system(512, 512, below);
            self.frames.extend((0..count).map(|n| (va / FRAME + n, at + n * FRAME)));
            self.mapped.push((va, true));
        }
        self.regions.push((range, va));
        va
    }
}

/// What to leave out, and how a section is mapped.
#[derive(Debug, Clone, Copy, Default)]
pub struct Sections {
    /// this section is not present, though it has RAM
    pub absent: Option<u64>,
    /// this section's vmemmap is made of scattered 4 KiB pages
    pub scattered: Option<u64>,
    /// of this section's vmemmap only that of the first 1,024 pages is mapped: half of its RAM
    pub half: Option<u64>,
}

/// Makes the section table and the mem_maps; returns the address for SYMBOL(mem_section).
pub fn sections(memory: &mut Memory, map: &mut MemMap, layout: &Layout, model: Model, special: Sections, below: u64) -> u64 {
    let per_section = layout.arch.section_pages();
    let (word, size) = (layout.word(), model.section_size(layout));
    let numbers: std::collections::BTreeSet<u64> =
        memory.pieces.iter().flat_map(|p| p.start / per_section..p.end.div_ceil(per_section)).collect();
    let array_len = model.roots(layout) * if model == Model::Static { size } else { word };
    let (root, symbol) = match model {
        Model::Extreme(Root::Address | Root::Pointer) | Model::Vmemmap(Root::Address | Root::Pointer) => {
            let root = memory.system(array_len.div_ceil(memory.page_size()), 1, below);
            let va = memory.linear(root);
            let (variable, variable_va) = memory.image(word, word);
            memory.word(variable, va);
            let pointer = matches!(model, Model::Extreme(Root::Pointer) | Model::Vmemmap(Root::Pointer));
            (root, if pointer { variable_va } else { va })
        }
        _ => memory.image(array_len, 64),
    };
    let mut rooms = std::collections::BTreeMap::new();
    for number in numbers {
        let at = if model == Model::Static {
            root + number * size
        } else {
            let (index, within) = (number / model.per_root(layout), number % model.per_root(layout));
            let room = *rooms.entry(index).or_insert_with(|| {
                let room = memory.system(1, 1, below);
                let va = memory.linear(room);
                memory.word(root + index * word, va);
                room
            });
            room + within * size
        };
        if special.absent == Some(number) {
            continue;
        }
        let pfn = number * per_section;
        let range = pfn..pfn + per_section;
        let va = if let Model::Vmemmap(_) = model {
            let half = special.half == Some(number);
            let scattered = half || special.scattered == Some(number) || layout.size() != 64;
            // of the 2,048 pages of RAM there the first 1,024
            let frames = if half { 0x400 * layout.size() / FRAME } else { u64::MAX };
            map.virtual_part(memory, layout, range, scattered, frames, below)
        } else {
            map.linear(memory, layout, range, below)
        };
        // sparse_encode_mem_map(): mem_map - section_nr_to_pfn(nr), in units of struct page
        let coded = va.wrapping_sub(pfn * layout.size());
        memory.word(at, coded | section_bits(layout, number));
    }
    symbol
}

/// struct pglist_data and struct zone: offsets of our own, the images say them in VMCOREINFO.
#[derive(Debug, Clone, Copy)]
pub struct Node {
    word: u64,
    lists: u64,
    orders: u64,
}

impl Node {
    /// MAX_NUMNODES.
    pub const MAX_NODES: u64 = 64;
    const ZONES: u64 = 4;

    /// For a kernel version: MIGRATE_TYPES is 5 since 2.6.24, before there is one list.
    pub fn of(layout: &Layout) -> Self {
        Self { word: layout.word(), lists: if layout.version < (2, 6, 24) { 1 } else { 5 }, orders: layout.arch.orders().into() }
    }
    /// Offset of the name in uts_namespace: behind a kref to 5.10; 2.6.18 has system_utsname.
    pub fn uts_name(layout: &Layout) -> u64 {
        if layout.version < (2, 6, 19) || layout.version >= (5, 11, 0) { 0 } else { 4 }
    }
    /// LENGTH(free_area.free_list)
    pub fn lists(self) -> u64 {
        self.lists
    }
    /// sizeof(struct free_area): lists and nr_free
    pub fn free_area_size(self) -> u64 {
        self.lists * 2 * self.word + self.word
    }
    /// offsetof(struct zone, free_area)
    pub fn free_area(self) -> u64 {
        16 * self.word
    }
    /// offsetof(struct zone, vm_stat)
    pub fn vm_stat(self) -> u64 {
        self.free_area() + self.orders * self.free_area_size()
    }
    /// sizeof(struct zone)
    pub fn zone_size(self) -> u64 {
        (self.vm_stat() + 32 * self.word).next_multiple_of(64)
    }
    /// offsetof(struct pglist_data, nr_zones)
    pub fn nr_zones(self) -> u64 {
        Self::ZONES * self.zone_size()
    }
    /// offsetof(struct pglist_data, node_mem_map)
    pub fn node_mem_map(self) -> u64 {
        self.nr_zones() + self.word
    }
    /// offsetof(struct pglist_data, node_start_pfn)
    pub fn start_pfn(self) -> u64 {
        self.nr_zones() + 2 * self.word
    }
    /// offsetof(struct pglist_data, node_spanned_pages)
    pub fn spanned_pages(self) -> u64 {
        self.nr_zones() + 4 * self.word
    }
    /// offsetof(struct pglist_data, node_id)
    pub fn node_id(self) -> u64 {
        self.nr_zones() + 5 * self.word
    }
    /// sizeof(struct pglist_data)
    pub fn size(self) -> u64 {
        (self.nr_zones() + 8 * self.word).next_multiple_of(64)
    }
}

/// A node's free blocks: order and head PFN.
pub type Free = Vec<(u32, u64)>;

/// Writes a node: its span, its mem_map, and the free lists of its first zone, linked through page.lru.
#[allow(clippy::too_many_arguments)] // a node has this many parts
pub fn node(memory: &mut Memory, map: &MemMap, layout: &Layout, id: u64, span: Range<u64>, mem_map: u64, free: &Free, at: (u64, u64)) {
    let (n, word) = (Node::of(layout), layout.word());
    let (pa, va) = at;
    let pages = span.end - span.start;
    memory.number(pa + n.nr_zones(), Node::ZONES, 4);
    memory.word(pa + n.node_mem_map(), mem_map);
    memory.word(pa + n.start_pfn(), span.start);
    memory.word(pa + n.start_pfn() + word, pages);
    memory.word(pa + n.spanned_pages(), pages);
    memory.number(pa + n.node_id(), id, 4);
    memory.word(pa + 3 * word, pages); // zone 0: spanned_pages; the other zones are empty
    memory.word(pa + n.vm_stat(), free.iter().map(|(order, _)| 1u64 << order).sum());
    let zone_span = 3 * word;
    assert!(zone_span < n.free_area());
    for order in 0..layout.arch.orders() {
        let area = n.free_area() + u64::from(order) * n.free_area_size();
        let blocks: Vec<u64> = free.iter().filter(|(o, _)| *o == order).map(|(_, pfn)| *pfn).collect();
        memory.word(pa + area + n.lists() * 2 * word, blocks.len() as u64);
        for list in 0..n.lists() {
            let head = area + list * 2 * word;
            // all blocks are on the list of MIGRATE_UNMOVABLE; a page's link is its lru
            let mut ring = vec![va + head];
            if list == 0 {
                ring.extend(blocks.iter().map(|pfn| map.va(layout, *pfn).expect("its struct page") + layout.lru()));
            }
            for (i, link) in ring.iter().enumerate() {
                let (next, prev) = (ring[(i + 1) % ring.len()], ring[(i + ring.len() - 1) % ring.len()]);
                let bytes = [memory.bytes(next, word), memory.bytes(prev, word)].concat();
                if i == 0 { memory.write(pa + head, &bytes) } else { map.write(memory, *link, &bytes) }
            }
        }
    }
}

/// PFNs of RAM for a model: with holes, a second node or several sections.
pub fn pieces(arch: Arch, model: Model, crossing: bool) -> Vec<Range<u64>> {
    let section = arch.section_pages();
    let mut pieces: Vec<Range<u64>> = match arch {
        // 640 KiB, the hole of the PC, and the rest
        Arch::X86_64 | Arch::I386 => vec![0..0x9f, 0x100..0x3000],
        Arch::Ppc64 => std::iter::once(0..3 * section).collect(),
        Arch::Ppc32 | Arch::S390x => std::iter::once(0..0x3400).collect(),
    };
    match model {
        Model::Flat => pieces.push(0x3600..0x3800),
        Model::Discontig => pieces.push(0x8000..0x8c00),
        _ if arch == Arch::Ppc64 => pieces.extend([4 * section..5 * section, 6 * section..6 * section + 64, 8 * section..8 * section + 64]),
        // section 2 (whole leaf), 3 (scattered or half), 5 (not present), 6
        _ => {
            pieces.push(2 * section..2 * section + 0x800);
            pieces.push(3 * section..3 * section + 0x800);
            pieces.extend([5 * section..5 * section + 0x100, 6 * section..6 * section + 0x100]);
        }
    }
    if crossing {
        pieces.retain(|p| p.start < 2 * section);
        pieces.push(2 * section..4 * section);
    }
    pieces
}
