//! Synthetic vmcores: small ELF core files whose kernel structures are made from facts of kernel headers, and what is to become
//! of every page. They know nothing of coresift's rules, so they can judge them.
//!
//! [`Spec::all`] lists them, [`build`] writes one. The parts: `arch` (address layouts), `layout` (struct page by version),
//! `memory` (RAM), `model` (where struct pages are), `tables` (page tables), `scene` and `pages` (what is in the pages),
//! `vmcoreinfo` and `elf` (the file).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

pub mod arch;
mod elf;
pub mod layout;
mod memory;
pub mod model;
mod pages;
mod scene;
mod specs;
mod tables;
mod vmcoreinfo;

use arch::Arch;
use layout::Layout;
use memory::Memory;
use model::{MemMap, Model, Node, Sections};
use scene::{Compound, Fields, Scene};
use tables::Tables;
use vmcoreinfo::Symbols;

/// What is to become of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs)] // the names say it
pub enum Class {
    Kept,
    Cache,
    PrivateCache,
    User,
    Free,
    Hwpoison,
    Offline,
    Unaccepted,
}

impl Class {
    /// Name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Kept => "kept",
            Self::Cache => "cache",
            Self::PrivateCache => "private-cache",
            Self::User => "user",
            Self::Free => "free",
            Self::Hwpoison => "hwpoison",
            Self::Offline => "offline",
            Self::Unaccepted => "unaccepted",
        }
    }

    /// Is it left out at this dump level? 4 implies 2; bad, offline and unaccepted memory is never dumped.
    pub fn excluded(self, level: u32) -> bool {
        match self {
            Self::Kept => false,
            Self::Cache => level & 6 != 0,
            Self::PrivateCache => level & 4 != 0,
            Self::User => level & 8 != 0,
            Self::Free => level & 16 != 0,
            Self::Hwpoison | Self::Offline | Self::Unaccepted => true,
        }
    }
}

/// A page of an image.
#[derive(Debug, Clone, Copy)]
pub struct Expected {
    /// page frame number
    pub pfn: u64,
    /// what is to become of it
    pub class: Class,
    /// has it nothing but zeros?
    pub zero: bool,
    /// what it is, for messages; starts with `broken` where the struct page cannot be right
    pub what: &'static str,
}

/// What is special about an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Twist {
    /// nothing
    None,
    /// half of a section's vmemmap is not mapped
    Half,
    /// a compound page of order 16 in two sections
    Crossing,
    /// a hugetlb page whose struct pages share frames
    Optimised,
    /// no struct page is broken
    Sound,
}

/// An image to build.
#[derive(Debug, Clone, Copy)]
pub struct Spec {
    /// struct page
    pub layout: Layout,
    /// memory model
    pub model: Model,
    /// what is special
    pub twist: Twist,
}

/// An image on disk.
#[derive(Debug)]
pub struct Image {
    /// the file
    pub path: PathBuf,
    /// all pages of RAM, ascending
    pub pages: Vec<Expected>,
    /// text of the note
    pub vmcoreinfo: String,
}

impl Image {
    /// PFNs that a dump at this level has in its second bitmap; zero pages are among them.
    pub fn kept(&self, level: u32) -> Vec<u64> {
        self.pages.iter().filter(|p| !p.class.excluded(level)).map(|p| p.pfn).collect()
    }

    /// Pages of each class at this level, as reports name them; zero pages are those that are kept otherwise.
    pub fn counts(&self, level: u32) -> BTreeMap<&'static str, u64> {
        let mut counts = BTreeMap::new();
        for page in &self.pages {
            if page.class.excluded(level) {
                *counts.entry(page.class.name()).or_default() += 1;
            } else if page.zero && level & 1 != 0 {
                *counts.entry("zero").or_default() += 1;
            }
        }
        counts
    }

    /// Explains the first differences between a set of kept PFNs and the expected one; empty if there are none.
    pub fn differences(&self, level: u32, kept: &[u64]) -> String {
        let kept: std::collections::BTreeSet<u64> = kept.iter().copied().collect();
        let mut by_kind: BTreeMap<(&str, &str, bool), Vec<u64>> = BTreeMap::new();
        for page in self.pages.iter().filter(|p| p.class.excluded(level) == kept.contains(&p.pfn)) {
            by_kind.entry((page.what, page.class.name(), kept.contains(&page.pfn))).or_default().push(page.pfn);
        }
        let known: std::collections::BTreeSet<u64> = self.pages.iter().map(|p| p.pfn).collect();
        let strange: Vec<u64> = kept.difference(&known).copied().collect();
        if !strange.is_empty() {
            by_kind.insert(("not RAM", "absent", true), strange);
        }
        let line = |((what, class, kept), pfns): (&(&str, &str, bool), &Vec<u64>)| {
            let done = if *kept { "kept" } else { "left out" };
            format!("{what} ({class}) is {done}: {} pages from PFN {:#x}\n", pfns.len(), pfns[0])
        };
        by_kind.iter().map(line).collect()
    }
}

/// init_uts_ns and what else is in the kernel's image; returns the symbols' addresses.
fn symbols(memory: &mut Memory, layout: &Layout) -> Symbols {
    let (_, stext) = memory.image(0x1000, 0x1000);
    let (uts, init_uts_ns) = memory.image(0x1000, 64);
    let texts = ["Linux", "synth", &layout.release(), "#1 SMP synthetic", layout.arch.machine_name(), "(none)"];
    for (i, text) in texts.iter().enumerate() {
        memory.write(uts + Node::uts_name(layout) + 65 * i as u64, text.as_bytes());
    }
    Symbols { init_uts_ns, stext, free_huge_page: stext + 0x400, ..Symbols::default() }
}

/// Writes the image of a spec into `folder`.
pub fn build(folder: &Path, spec: &Spec) -> Image {
    let (layout, model) = (spec.layout, spec.model);
    let arch = layout.arch;
    let below = 0x3000;
    let mut memory = Memory::new(arch, layout.version, model::pieces(arch, model, spec.twist == Twist::Crossing));
    let mut symbols = symbols(&mut memory, &layout);
    let (root, swapper_pg_dir) = memory.image(Tables::root_len(arch), Tables::root_len(arch));
    symbols.swapper_pg_dir = swapper_pg_dir;
    let mut map = MemMap::default();
    let nodes = nodes(&mut memory, &mut map, spec, &mut symbols, below);

    let mut tables = Tables::new(root, below);
    tables.clear(&mut memory);
    tables.map_ram(&mut memory);
    // every table must be there before pages are given away; the entries of vmemmap come last
    let mapped = map.mapped.clone();
    for (va, large) in &mapped {
        let pa = map.frames[&(va / model::FRAME)];
        tables.map(&mut memory, *va, pa, *large);
    }

    let mut scene = Scene::new(&mut memory, &mut map, layout, symbols.free_huge_page);
    let pieces = scene.memory.pieces.clone();
    pieces.iter().for_each(|piece| scene.set_unknown(piece.clone()));
    if spec.twist == Twist::Crossing {
        let section = arch.section_pages();
        let head = Fields { mapping: scene.memory.linear(0x6_5440), ..Fields::default() };
        scene.compound(&(2 * section..4 * section), 16, "gigantic hugetlb", Class::User, Compound::Huge, head).expect("room");
    }
    if spec.twist == Twist::Optimised {
        let section = 3 * arch.section_pages();
        let head = Fields { mapping: scene.memory.linear(0x6_5440), ..Fields::default() };
        let within = section + 512..section + 0x800;
        let pfn = scene.compound(&within, 9, "hugetlb with shared struct pages", Class::User, Compound::Huge, head).expect("room");
        scene.optimise(pfn, 9);
    }
    for (i, piece) in pieces.iter().enumerate().rev() {
        // the first piece of a PC is small and full of other things
        if i > 0 || pieces.len() == 1 || piece.end > 0x100 {
            pages::fill(&mut scene, piece, spec.twist != Twist::Sound);
        }
    }
    scene.rest();
    scene.write();
    let (expected, free) = (std::mem::take(&mut scene.expected), std::mem::take(&mut scene.free));
    for (va, large) in mapped {
        let pa = map.frames[&(va / model::FRAME)];
        tables.map(&mut memory, va, pa, large);
    }
    for (id, (span, mem_map, at)) in nodes.iter().enumerate() {
        let own = free.iter().copied().filter(|(_, pfn)| span.contains(pfn)).collect();
        model::node(&mut memory, &map, &layout, id as u64, span.clone(), *mem_map, &own, *at);
    }

    let vmcoreinfo = vmcoreinfo::text(&layout, model, &symbols);
    let path = folder.join(format!("{}.vmcore", spec.name()));
    elf::write(&path, &memory, &vmcoreinfo);
    let page = |(pfn, (class, what)): (u64, (Class, &'static str))| Expected { pfn, class, zero: memory.page(pfn).is_none(), what };
    Image { path, pages: expected.into_iter().map(page).collect(), vmcoreinfo }
}

/// A node: its PFNs, the address of its mem_map, and where struct pglist_data is, physically and virtually.
type NodeAt = (std::ops::Range<u64>, u64, (u64, u64));

/// Makes the mem_maps and the symbols that lead to them.
fn nodes(memory: &mut Memory, map: &mut MemMap, spec: &Spec, symbols: &mut Symbols, below: u64) -> Vec<NodeAt> {
    let (layout, word) = (spec.layout, spec.layout.word());
    let end = memory.pieces.last().expect("RAM").end;
    let spans = if spec.model == Model::Discontig {
        let second = memory.pieces.last().expect("RAM").clone();
        vec![0..memory.pieces[memory.pieces.len() - 2].end, second]
    } else {
        std::iter::once(0..end).collect()
    };
    let (online, online_va) = memory.image(word, word);
    memory.word(online, (1 << spans.len()) - 1);
    symbols.node_online_map = online_va;
    let numa = spec.model == Model::Discontig || layout.arch == Arch::X86_64 && spec.model != Model::Flat;
    let at: Vec<_> = spans.iter().map(|_| memory.image(Node::of(&layout).size(), 64)).collect();
    let mut mem_maps = vec![0; spans.len()];
    match spec.model {
        Model::Flat | Model::Discontig => {
            for (mem_map, span) in mem_maps.iter_mut().zip(&spans) {
                *mem_map = map.linear(memory, &layout, span.clone(), below);
            }
        }
        _ => {
            let special = Sections {
                absent: Some(5),
                half: (spec.twist == Twist::Half).then_some(3),
                scattered: (spec.twist != Twist::Crossing).then_some(3),
            };
            symbols.mem_section = Some(model::sections(memory, map, &layout, spec.model, special, below));
        }
    }
    if numa {
        let (table, table_va) = memory.image(word * Node::MAX_NODES, 64);
        for (i, (_, va)) in at.iter().enumerate() {
            memory.word(table + i as u64 * word, *va);
        }
        symbols.node_data = Some(table_va);
    } else {
        // without CONFIG_NUMA mem_map is exported whatever the model; with sections it is NULL
        let (variable, variable_va) = memory.image(word, word);
        memory.word(variable, mem_maps[0]);
        symbols.mem_map = Some(variable_va);
        symbols.contig_page_data = Some(at[0].1);
    }
    spans.into_iter().zip(mem_maps).zip(at).map(|((span, mem_map), at)| (span, mem_map, at)).collect()
}
