//! The text of the VMCOREINFO note, with the keys that each version exports and no other.
//!
//! Sources: kernel/kexec.c (to 4.2), kernel/kexec_core.c (to 4.12), kernel/crash_core.c (to 6.8), kernel/vmcore_info.c, and
//! arch_crash_save_vmcoreinfo() of each arch. 2.6.18 has no VMCOREINFO: the text is what `makedumpfile -g -x vmlinux` writes.
//! Keys of the printk buffers and kallsyms are left out: the images have neither.

use std::fmt::Write;

use super::arch::{Arch, TEXT_MAP};
use super::layout::{Buddy, Huge, Layout, Link, Order};
use super::model::{Model, Node};

/// Addresses of the kernel's symbols.
#[derive(Debug, Default)]
#[allow(missing_docs)] // names are the kernel's
pub struct Symbols {
    pub init_uts_ns: u64,
    pub node_online_map: u64,
    pub swapper_pg_dir: u64,
    pub stext: u64,
    pub mem_map: Option<u64>,
    pub contig_page_data: Option<u64>,
    pub mem_section: Option<u64>,
    pub node_data: Option<u64>,
    pub free_huge_page: u64,
}

/// Lines under construction.
struct Text(String);

impl Text {
    fn line(&mut self, key: &str, value: impl std::fmt::Display) {
        writeln!(self.0, "{key}={value}").expect("a string takes it");
    }
    fn symbol(&mut self, name: &str, value: u64) {
        self.line(&format!("SYMBOL({name})"), format_args!("{value:x}"));
    }
    fn numbers(&mut self, kind: &str, values: &[(&str, u64)]) {
        for (name, value) in values {
            self.line(&format!("{kind}({name})"), value);
        }
    }
    fn number(&mut self, name: &str, value: i64) {
        self.line(&format!("NUMBER({name})"), value);
    }
}

/// The note's text.
pub fn text(layout: &Layout, model: Model, symbols: &Symbols) -> String {
    let (version, arch) = (layout.version, layout.arch);
    let since = |v| version >= v;
    let mut t = Text(String::new());
    t.line("OSRELEASE", layout.release());
    if since((5, 14, 0)) {
        t.line("BUILD-ID", "00112233445566778899aabbccddeeff00112233");
    }
    t.line("PAGESIZE", 1u64 << arch.page_shift());
    // uts namespaces came with 2.6.19
    t.symbol(if since((2, 6, 19)) { "init_uts_ns" } else { "system_utsname" }, symbols.init_uts_ns);
    if since((5, 11, 0)) {
        t.numbers("OFFSET", &[("uts_namespace.name", Node::uts_name(layout))]);
    }
    t.symbol("node_online_map", symbols.node_online_map);
    t.symbol("swapper_pg_dir", symbols.swapper_pg_dir);
    t.symbol("_stext", symbols.stext);
    if since((6, 9, 0)) {
        t.line("NUMBER(VMALLOC_START)", "0xffffc90000000000");
    }
    for (name, symbol) in [("mem_map", symbols.mem_map), ("contig_page_data", symbols.contig_page_data)] {
        if let Some(symbol) = symbol {
            t.symbol(name, symbol);
        }
    }
    if matches!(model, Model::Vmemmap(_)) && since((6, 9, 0)) {
        t.symbol("vmemmap", arch.vmemmap());
    }
    if let Some(symbol) = symbols.mem_section {
        t.symbol("mem_section", symbol);
        t.numbers("LENGTH", &[("mem_section", model.roots(layout))]);
        t.numbers("SIZE", &[("mem_section", model.section_size(layout))]);
        t.numbers("OFFSET", &[("mem_section.section_mem_map", 0)]);
        if since((5, 13, 0)) {
            t.number("SECTION_SIZE_BITS", arch.section_bits().into());
        }
        if since((5, 9, 0)) {
            t.number("MAX_PHYSMEM_BITS", arch.physmem_bits(version).into());
        }
    }
    structures(&mut t, layout, model);
    marks(&mut t, layout, symbols);
    arch_part(&mut t, layout, symbols);
    t.line("CRASHTIME", 1_700_000_000);
    t.0
}

/// SIZE, OFFSET and LENGTH.
fn structures(t: &mut Text, layout: &Layout, model: Model) {
    let (version, word) = (layout.version, layout.word());
    let since = |v| version >= v;
    let node = Node::of(layout);
    t.numbers(
        "SIZE",
        &[("page", layout.size()), ("pglist_data", node.size()), ("zone", node.zone_size()), ("free_area", node.free_area_size())],
    );
    t.numbers("SIZE", &[("list_head", 2 * word), ("nodemask_t", word)]);
    let count = if since((4, 7, 0)) { "page._refcount" } else { "page._count" };
    t.numbers("OFFSET", &[("page.flags", 0), (count, layout.refcount()), ("page.mapping", layout.mapping()), ("page.lru", layout.lru())]);
    // 8d67091ec "kexec: add the values related to buddy system for filtering free pages", 3.8; makedumpfile -g has both
    if since((3, 8, 0)) || version == (2, 6, 18) {
        t.numbers("OFFSET", &[("page._mapcount", layout.mapcount()), ("page.private", layout.private())]);
    }
    if let Order::Field { width, folio } = layout.order {
        let (dtor, order) = layout.dtor_and_order(width);
        if folio {
            t.numbers("OFFSET", &[("folio._folio_dtor", layout.size() + dtor), ("folio._folio_order", layout.size() + order)]);
        } else {
            t.numbers("OFFSET", &[("page.compound_dtor", dtor), ("page.compound_order", order)]);
        }
    }
    match layout.link {
        Link::Private => {}
        Link::Head => t.numbers("OFFSET", &[("page.compound_head", layout.compound_head())]),
        Link::Info | Link::Mask => t.numbers("OFFSET", &[("page.compound_info", layout.compound_head())]),
    }
    t.numbers("OFFSET", &[("pglist_data.node_zones", 0), ("pglist_data.nr_zones", node.nr_zones())]);
    if matches!(model, Model::Flat | Model::Discontig) {
        // CONFIG_FLAT_NODE_MEM_MAP, CONFIG_FLATMEM since 5.14
        t.numbers("OFFSET", &[("pglist_data.node_mem_map", node.node_mem_map())]);
    }
    t.numbers("OFFSET", &[("pglist_data.node_start_pfn", node.start_pfn()), ("pglist_data.node_spanned_pages", node.spanned_pages())]);
    t.numbers("OFFSET", &[("pglist_data.node_id", node.node_id())]);
    t.numbers("OFFSET", &[("zone.free_area", node.free_area()), ("zone.vm_stat", node.vm_stat()), ("zone.spanned_pages", 3 * word)]);
    t.numbers("OFFSET", &[("free_area.free_list", 0), ("list_head.next", 0), ("list_head.prev", word)]);
    t.numbers("LENGTH", &[("zone.free_area", layout.arch.orders().into())]);
    if since((2, 6, 24)) {
        t.numbers("LENGTH", &[("free_area.free_list", node.lists())]);
    }
}

/// NUMBERs of flags and page types.
fn marks(t: &mut Text, layout: &Layout, symbols: &Symbols) {
    let since = |v| layout.version >= v;
    let flags = layout.flags;
    let bit = |t: &mut Text, name: &str, value: u32| t.number(name, value.into());
    t.number("NR_FREE_PAGES", 0);
    bit(t, "PG_lru", flags.lru);
    bit(t, "PG_private", flags.private);
    bit(t, "PG_swapcache", flags.swapcache);
    // 1cbf29da3628 "mm: add PG_swapbacked in vmcoreinfo", 4.17
    if let Some(swapbacked) = flags.swapbacked.filter(|_| since((4, 17, 0))) {
        bit(t, "PG_swapbacked", swapbacked);
    }
    if let Some(slab) = flags.slab.filter(|_| since((3, 8, 0)) || layout.version == (2, 6, 18)) {
        bit(t, "PG_slab", slab);
    }
    if let Some(slab) = layout.slab {
        t.number("PAGE_SLAB_MAPCOUNT_VALUE", slab.into());
    }
    if let Some(hwpoison) = flags.hwpoison {
        bit(t, "PG_hwpoison", hwpoison);
    }
    if since((3, 16, 0)) {
        t.number("PG_head_mask", 1 << flags.head);
    }
    match layout.buddy {
        Buddy::Flag if layout.version == (2, 6, 18) => bit(t, "PG_buddy", flags.buddy.expect("of that time")),
        Buddy::Flag => {}
        Buddy::Type(value) => t.number("PAGE_BUDDY_MAPCOUNT_VALUE", value.into()),
    }
    match layout.huge {
        Huge::Unknown => {}
        Huge::Symbol => t.symbol("free_huge_page", symbols.free_huge_page),
        Huge::Dtor => t.number("HUGETLB_PAGE_DTOR", 2),
        Huge::Flag(value) => bit(t, "PG_hugetlb", value),
        Huge::Type(value) => t.number("PAGE_HUGETLB_MAPCOUNT_VALUE", value.into()),
    }
    for (name, value) in [("OFFLINE", layout.offline), ("UNACCEPTED", layout.unaccepted)] {
        if let Some(value) = value {
            t.number(&format!("PAGE_{name}_MAPCOUNT_VALUE"), value.into());
        }
    }
}

/// arch_crash_save_vmcoreinfo().
fn arch_part(t: &mut Text, layout: &Layout, symbols: &Symbols) {
    let (version, arch) = (layout.version, layout.arch);
    if arch == Arch::X86_64 {
        // 401721ecd1dc "kexec: export the value of phys_base instead of symbol address", 4.10
        if version >= (4, 10, 0) {
            let base = arch.image_at() as i64 - (arch.image_va(version) - TEXT_MAP) as i64;
            t.number("phys_base", base);
        }
        let root = if version >= (4, 13, 0) { "init_top_pgt" } else { "init_level4_pgt" };
        t.symbol(root, symbols.swapper_pg_dir);
        if version >= (4, 17, 0) {
            t.number("pgtable_l5_enabled", 0);
        }
    }
    if let Some(node_data) = symbols.node_data {
        t.symbol("node_data", node_data);
        t.numbers("LENGTH", &[("node_data", Node::MAX_NODES)]);
    }
    if matches!(arch, Arch::X86_64 | Arch::I386) && version >= (3, 15, 0) {
        t.line("KERNELOFFSET", format_args!("{:x}", arch.kaslr(version)));
        t.number("KERNEL_IMAGE_SIZE", 0x2000_0000);
    }
    if arch == Arch::X86_64 && version >= (4, 20, 0) {
        t.number("sme_mask", 0);
    }
}
