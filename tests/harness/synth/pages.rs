//! What is in the pages: one of each thing the kernel does with a page, and some broken ones.
//!
//! makedumpfile judges the x86_64 images too, and where it differs the kernel's sources decided against it:
//! - 1.7.9++ (April 2026) and 1.7.2 leave out three of the `broken` kinds: a buddy in use (PageBuddy is set and cleared with the
//!   refcount at 0, mm/page_alloc.c), a buddy that is not aligned (`__free_one_page` aligns every block), slab on LRU (a slab
//!   page is never on an LRU list). They leave out unaccepted memory at level 16 only, and give up at a mem_map with a gap.
//! - 1.7.2 (October 2022) does not know what came later: orders and hugetlb of 6.3, 6.6 and 6.9 (large folios stay), slab whose
//!   mapping is odd (6.2) and slab as a type (6.10; left out), compound_info (7.1; tails judged by themselves), unaccepted.
//!
//! All else is the same, at levels 0, 1, 2, 4, 8, 16 and 31.

use std::ops::Range;

use super::Class;
use super::layout::{Buddy, Huge, Link};
use super::scene::{Compound, Fields, Scene};

/// Page flags of a scene's version, as masks.
struct Bits {
    lru: u64,
    active: u64,
    private: u64,
    swapcache: u64,
    swapbacked: u64,
    slab: u64,
}

/// Fills `within`.
pub fn fill(scene: &mut Scene<'_>, within: &Range<u64>, broken: bool) {
    let flags = scene.layout.flags;
    let bit = |n: Option<u32>| n.map_or(0, |n| 1u64 << n);
    let bits = Bits {
        lru: bit(Some(flags.lru)),
        active: bit(Some(flags.active)),
        private: bit(Some(flags.private)),
        swapcache: bit(Some(flags.swapcache)),
        swapbacked: bit(flags.swapbacked),
        slab: bit(flags.slab),
    };
    // any address in the linear map, aligned as the slab allocator does
    let pointer = scene.memory.linear(scene.layout.arch.image_at() + 0x6_5440);
    cache(scene, within, &bits, pointer);
    user(scene, within, &bits, pointer);
    kernel(scene, within, &bits, pointer);
    special(scene, within);
    if broken {
        corrupt(scene, within, &bits, pointer);
    }
    large(scene, within, &bits, pointer);
    free(scene, within);
}

fn cache(scene: &mut Scene<'_>, within: &Range<u64>, bits: &Bits, mapping: u64) {
    let (version, page) = (scene.layout.version, Fields { mapping, refcount: 2, ..Fields::default() });
    let with = |flags| Fields { flags, ..page.clone() };
    scene.pages(within, 20, "page cache", Class::Cache, &with(bits.lru));
    scene.pages(within, 4, "page cache, mapped and active", Class::Cache, &Fields { mapcount: 2, ..with(bits.lru | bits.active) });
    scene.pages(within, 3, "page cache, truncated", Class::Cache, &Fields { mapping: 0, ..with(bits.lru) });
    scene.pages(within, 9, "buffers", Class::PrivateCache, &Fields { private: mapping + 0x80, ..with(bits.lru | bits.private) });
    scene.pages(within, 5, "shmem", Class::Cache, &with(bits.lru | bits.swapbacked));
    // shmem on its way to swap: not on an LRU list for the moment, and without a mapping
    let moving = with(bits.swapcache | bits.swapbacked);
    scene.pages(within, 3, "shmem in swap cache", Class::Cache, &Fields { mapping: 0, private: 0x1234, ..moving });
    if version >= (4, 17, 0) {
        // since 4.10 the bit is PG_owner_priv_1 too: without PG_swapbacked it is not the swap cache
        let owned = with(bits.swapcache);
        scene.pages(within, 3, "PG_owner_priv_1 of a driver", Class::Kept, &Fields { mapping: 0, ..owned });
    }
    // mapped by drivers, but on no list: not the page cache
    scene.pages(within, 3, "mapping without LRU", Class::Kept, &with(bits.active));
    if ((4, 8, 0)..(6, 16, 0)).contains(&version) {
        // PAGE_MAPPING_MOVABLE, include/linux/page-flags.h 4.8
        let movable = Fields { mapping: mapping | 2, ..Fields::default() };
        scene.pages(within, 4, "movable", Class::Kept, &movable);
        scene.pages(within, 1, "movable on LRU", Class::Cache, &Fields { flags: bits.lru, ..movable });
    }
}

fn user(scene: &mut Scene<'_>, within: &Range<u64>, bits: &Bits, anon_vma: u64) {
    let anon = Fields { mapping: anon_vma | 1, mapcount: 0, flags: bits.lru | bits.swapbacked, ..Fields::default() };
    scene.pages(within, 20, "anon", Class::User, &anon);
    scene.pages(within, 2, "anon, not on LRU", Class::User, &Fields { flags: bits.swapbacked, ..anon.clone() });
    scene.pages(
        within,
        4,
        "anon in swap cache",
        Class::User,
        &Fields { flags: anon.flags | bits.swapcache, private: 0x77, ..anon.clone() },
    );
    if scene.layout.version >= (2, 6, 33) {
        scene.pages(within, 3, "KSM", Class::User, &Fields { mapping: anon_vma | 3, mapcount: 3, ..anon });
    }
}

fn kernel(scene: &mut Scene<'_>, within: &Range<u64>, bits: &Bits, pointer: u64) {
    let layout = scene.layout;
    let slab = Fields { flags: bits.slab, mapcount: layout.slab.unwrap_or(-1), mapping: pointer, ..Fields::default() };
    scene.pages(within, 6, "slab", Class::Kept, &slab);
    // PG_active is SlabPfmemalloc
    scene.pages(within, 2, "slab of reserves", Class::Kept, &Fields { flags: slab.flags | bits.active, ..slab.clone() });
    if layout.version >= (6, 2, 0) {
        // struct slab has counters in the place of page.mapping (mm/slab.h 6.2)
        scene.pages(within, 5, "slab with an odd mapping", Class::Kept, &Fields { mapping: 7, ..slab.clone() });
    }
    if let (true, Buddy::Type(value)) = (layout.version < (4, 18, 0), layout.buddy) {
        // SLUB's counters share the place of _mapcount
        let looks = Fields { mapcount: value, private: 2, ..slab.clone() };
        scene.pages(within, 2, "slab that looks free", Class::Kept, &looks);
    }
    for order in [1, 3] {
        scene.compound(within, order, "slab of several pages", Class::Kept, Compound::Plain, slab.clone());
    }
    scene.pages(within, 3, "private without LRU", Class::Kept, &Fields { flags: bits.private, private: pointer, ..Fields::default() });
    if let Some(table) = layout.table {
        scene.pages(within, 4, "page table", Class::Kept, &Fields { mapcount: table, ..Fields::default() });
    }
    if layout.version >= (6, 12, 0) {
        // PGTY_zsmalloc is 0xf6; the low 24 bits are its owner's (mm/zpdesc.h: first object's offset)
        let zsmalloc = Fields { mapcount: 0xf6 << 24 | 0x123, flags: bits.private, ..Fields::default() };
        scene.pages(within, 2, "zsmalloc", Class::Kept, &zsmalloc);
    }
    let reserved = Fields { flags: 1 << layout.flags.reserved, ..Fields::default() };
    scene.pages(within, 4, "reserved", Class::Kept, &reserved);
    for order in [1, 2, 4] {
        scene.compound(within, order, "kernel compound", Class::Kept, Compound::Plain, Fields::default());
    }
}

fn special(scene: &mut Scene<'_>, within: &Range<u64>) {
    let layout = scene.layout;
    if let Some(hwpoison) = layout.flags.hwpoison {
        scene.pages(within, 3, "hwpoison", Class::Hwpoison, &Fields { flags: 1 << hwpoison, ..Fields::default() });
    }
    if let Some(offline) = layout.offline {
        scene.pages(within, 6, "offline", Class::Offline, &Fields { mapcount: offline, ..Fields::default() });
    }
}

/// Struct pages that cannot be right: kept, because nothing tells what the page is.
fn corrupt(scene: &mut Scene<'_>, within: &Range<u64>, bits: &Bits, pointer: u64) {
    let (layout, orders) = (scene.layout, scene.layout.arch.orders());
    let (flags, mapcount) = match layout.buddy {
        Buddy::Flag => (1 << layout.flags.buddy.expect("of that time"), -1),
        Buddy::Type(value) => (0, value),
    };
    let buddy = |order: u64| Fields { flags, mapcount, private: order, refcount: 0, ..Fields::default() };
    for order in [u64::from(orders), 40, u64::from(u32::MAX)] {
        scene.page(within, "broken: buddy of an order there is not", Class::Kept, buddy(order));
    }
    if let Some(pfn) = scene.memory.take_if(3, within.clone(), |pfn| pfn % 8 == 4) {
        scene.at(pfn, 3, "broken: buddy not aligned", Class::Kept, buddy(3));
    }
    if let Some(pfn) = scene.memory.take(2, within.clone()) {
        scene.at(pfn, 2, "broken: buddy in use", Class::Kept, Fields { refcount: 1, ..buddy(2) });
    }
    let lru = Fields { flags: bits.slab | bits.lru, mapcount: layout.slab.unwrap_or(-1), mapping: pointer, ..Fields::default() };
    scene.pages(within, 2, "broken: slab on LRU", Class::Kept, &lru);
    if layout.link != Link::Private {
        // a tail follows its head; this one's head is an ordinary page elsewhere, so nobody speaks for the tail
        let elsewhere = *scene.expected.iter().find(|(_, (class, _))| *class == Class::User).expect("put there before").0;
        let head = scene.map.va(&layout, elsewhere).expect("its struct page");
        let tail = Fields { flags: bits.lru, mapping: pointer | 1, ..scene.tail(head, 2) };
        scene.pages(within, 2, "broken: tail of a distant head", Class::Kept, &tail);
    }
}

/// Compound pages of users and of the page cache.
fn large(scene: &mut Scene<'_>, within: &Range<u64>, bits: &Bits, pointer: u64) {
    let (layout, huge) = (scene.layout, scene.layout.arch.huge_order());
    let anon = Fields { mapping: pointer | 1, mapcount: 0, flags: bits.lru | bits.swapbacked, ..Fields::default() };
    let cache = Fields { mapping: pointer, flags: bits.lru, refcount: 17, ..Fields::default() };
    if layout.version >= (5, 16, 0) {
        // large folios
        scene.compound(within, 4, "large folio of the page cache", Class::Cache, Compound::Trans, cache.clone());
        let private = Fields { flags: cache.flags | bits.private, private: pointer, ..cache.clone() };
        scene.compound(within, 2, "large folio with private data", Class::PrivateCache, Compound::Trans, private);
        scene.compound(within, 3, "large anon folio", Class::User, Compound::Trans, anon.clone());
    }
    if layout.version >= (2, 6, 38) && layout.flags.tail.is_none_or(|tail| tail == layout.flags.head + 1) {
        scene.compound(within, huge, "THP", Class::User, Compound::Trans, anon.clone());
    }
    if layout.version >= (4, 8, 0) && layout.word() == 8 {
        let shmem = Fields { flags: bits.lru | bits.swapbacked, ..cache };
        scene.compound(within, huge, "shmem THP", Class::Cache, Compound::Trans, shmem);
    }
    let class = if layout.huge == Huge::Unknown { Class::Kept } else { Class::User };
    scene.compound(within, huge, "hugetlb", class, Compound::Huge, Fields { mapping: pointer, ..Fields::default() });
}

/// Free blocks of most orders, and unaccepted memory.
fn free(scene: &mut Scene<'_>, within: &Range<u64>) {
    let (layout, largest) = (scene.layout, scene.layout.arch.orders() - 1);
    let (flags, mapcount) = match layout.buddy {
        Buddy::Flag => (1 << layout.flags.buddy.expect("of that time"), -1),
        Buddy::Type(value) => (0, value),
    };
    for order in [0, 0, 1, 2, 3, 5, largest - 2, largest] {
        let head = Fields { flags, mapcount, private: order.into(), refcount: 0, ..Fields::default() };
        scene.block(within, order, "free", Class::Free, head);
    }
    if let Some(kind) = layout.unaccepted {
        // accept_memory works in blocks of MAX_PAGE_ORDER (mm/page_alloc.c 6.16)
        let head = Fields { mapcount: kind, refcount: 0, ..Fields::default() };
        scene.block(within, largest, "unaccepted", Class::Unaccepted, head);
    }
}
