//! What a `struct page` looks like, by kernel version: the table everything else is made from.
//!
//! Sources: include/linux/mm_types.h and include/linux/page-flags.h of the version named at each line.

use super::arch::Arch;

/// Kernel version.
pub type Version = (u32, u32, u32);

/// Numbers of page flags: enum pageflags in page-flags.h (before 2.6.26 `#define PG_...`).
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs)] // names are the kernel's
pub struct Flags {
    pub lru: u32,
    pub active: u32,
    pub slab: Option<u32>,
    pub reserved: u32,
    pub private: u32,
    pub head: u32,
    /// PG_tail, or the bits which together with `head` mark a tail
    pub tail: Option<u32>,
    pub swapcache: u32,
    pub swapbacked: Option<u32>,
    pub buddy: Option<u32>,
    pub hwpoison: Option<u32>,
}

/// How a free block is marked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Buddy {
    /// PG_buddy in flags, to 2.6.37
    Flag,
    /// this value in _mapcount or page_type
    Type(i32),
}

/// Where a compound page keeps its order and its destructor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// page\[1\].lru.prev and .next (mm/page_alloc.c, to 4.3)
    Lru,
    /// page\[1\].compound_order and .compound_dtor of this width: since 4.4; `unsigned int` on 64 bits and u16 on 32 bits to
    /// 4.15, then u8. `folio`: exported as folio._folio_order (6.3 - 6.5)
    Field { width: u64, folio: bool },
    /// low byte of page\[1\].flags, since 6.6
    Flags,
}

/// How a hugetlb page is known from VMCOREINFO.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Huge {
    /// its destructor's address, which is not exported: not at all (2.6.18 - 3.15)
    Unknown,
    /// page\[1\].lru.next == &free_huge_page, exported since 3.16
    Symbol,
    /// destructor number 2 (HUGETLB_PAGE_DTOR), 4.4 - 6.5
    Dtor,
    /// PG_hugetlb in page\[1\].flags, 6.6 - 6.8
    Flag(u32),
    /// page_type, since 6.9
    Type(i32),
}

/// How a tail points at its head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Link {
    /// page.private (first_page), 2.6.18 - 4.3
    Private,
    /// compound_head = address | 1, since 4.4
    Head,
    /// compound_info = address | 1: 7.1 without CONFIG_HUGETLB_PAGE_OPTIMIZE_VMEMMAP
    Info,
    /// compound_info = mask | 1: 7.1 with it, where sizeof(struct page) is a power of two
    Mask,
}

/// A kernel version's page layout.
#[derive(Debug, Clone, Copy)]
pub struct Layout {
    /// machine
    pub arch: Arch,
    /// release's numbers
    pub version: Version,
    /// a suffix for names
    pub variant: &'static str,
    /// flag numbers
    pub flags: Flags,
    /// free blocks
    pub buddy: Buddy,
    /// compound orders
    pub order: Order,
    /// hugetlb
    pub huge: Huge,
    /// tails
    pub link: Link,
    /// PAGE_SLAB_MAPCOUNT_VALUE, since 6.10
    pub slab: Option<i32>,
    /// PAGE_OFFLINE_MAPCOUNT_VALUE, since 5.1
    pub offline: Option<i32>,
    /// PAGE_UNACCEPTED_MAPCOUNT_VALUE, since 6.16
    pub unaccepted: Option<i32>,
    /// page_type of page tables, since 4.18 (not exported)
    pub table: Option<i32>,
}

/// One type per page in the top byte, since 6.12: enum pagetype.
const fn top(kind: i32) -> i32 {
    kind << 24
}

const F_2_6_18: Flags = Flags {
    lru: 5,
    active: 6,
    slab: Some(7),
    reserved: 10,
    private: 11,
    head: 14,
    tail: None,
    swapcache: 15,
    swapbacked: None,
    buddy: Some(19),
    hwpoison: None,
};
// CONFIG_PAGEFLAGS_EXTENDED, 2.6.26 - 4.3: PG_head and PG_tail
const F_2_6_32: Flags = Flags {
    lru: 5,
    active: 6,
    slab: Some(7),
    reserved: 10,
    private: 11,
    head: 14,
    tail: Some(15),
    swapcache: 16,
    swapbacked: Some(20),
    buddy: Some(19),
    hwpoison: None,
};
const F_3_10: Flags = Flags { swapbacked: Some(19), buddy: None, hwpoison: Some(23), ..F_2_6_32 };
// 4.4: PG_tail is gone (1d798ca3f164 "mm: make compound_head() robust")
const F_4_4: Flags = Flags { tail: None, swapcache: 15, swapbacked: Some(18), hwpoison: Some(22), ..F_3_10 };
// 4.10: PG_waiters is bit 7; PG_swapcache is PG_owner_priv_1
const F_4_18: Flags = Flags {
    lru: 5,
    active: 6,
    slab: Some(8),
    reserved: 11,
    private: 12,
    head: 15,
    tail: None,
    swapcache: 9,
    swapbacked: Some(18),
    buddy: None,
    hwpoison: Some(22),
};
// 4.20: PG_workingset, PG_error moved behind PG_waiters; seen in Debian's 6.1
const F_5_4: Flags = Flags {
    lru: 4,
    active: 5,
    slab: Some(9),
    reserved: 12,
    private: 13,
    head: 16,
    swapcache: 10,
    swapbacked: Some(19),
    hwpoison: Some(23),
    ..F_4_18
};
// 6.6: the low byte of page[1].flags is the order's, so PG_head is 6 and PG_active 8
const F_6_6: Flags = Flags {
    lru: 5,
    active: 8,
    slab: Some(11),
    reserved: 14,
    private: 15,
    head: 6,
    swapcache: 12,
    swapbacked: Some(19),
    hwpoison: Some(23),
    ..F_4_18
};
// 6.12: without PG_error, PG_slab and PG_mappedtodisk, with PG_owner_2
const F_6_12: Flags = Flags {
    lru: 5,
    active: 8,
    slab: None,
    reserved: 13,
    private: 14,
    head: 6,
    swapcache: 10,
    swapbacked: Some(17),
    hwpoison: Some(20),
    ..F_4_18
};

impl Layout {
    /// The layout of a version of the table.
    #[track_caller]
    pub fn of(arch: Arch, version: Version, variant: &'static str) -> Self {
        let wide = if arch.word() == 8 { 4 } else { 2 };
        let base = Self {
            arch,
            version,
            variant,
            flags: F_2_6_18,
            buddy: Buddy::Flag,
            order: Order::Lru,
            huge: Huge::Unknown,
            link: Link::Private,
            slab: None,
            offline: None,
            unaccepted: None,
            table: None,
        };
        let v3 = Self { flags: F_3_10, buddy: Buddy::Type(-128), ..base };
        let v4_4 = Self { flags: F_4_4, order: Order::Field { width: wide, folio: false }, huge: Huge::Dtor, link: Link::Head, ..v3 };
        // ~PG_buddy 0x80, ~PG_table: 0x400 in 4.18 (0x200 since 5.8, value unimportant)
        let v4_18 =
            Self { flags: F_4_18, buddy: Buddy::Type(!0x80), order: Order::Field { width: 1, folio: false }, table: Some(!0x400), ..v4_4 };
        let v5_4 = Self { flags: F_5_4, offline: Some(!0x100), table: Some(!0x200), ..v4_18 };
        let v6_3 = Self { order: Order::Field { width: 1, folio: true }, ..v5_4 };
        let v6_6 = Self { flags: F_6_6, order: Order::Flags, huge: Huge::Flag(F_6_6.active), ..v5_4 };
        let v6_9 = Self { huge: Huge::Type(!0x800), ..v6_6 };
        // 6.11: PG_buddy 0x40000000 and downward, PG_slab is a type since 6.10
        let v6_11 = Self {
            flags: F_6_12,
            buddy: Buddy::Type(!0x4000_0000),
            offline: Some(!0x2000_0000),
            table: Some(!0x1000_0000),
            huge: Huge::Type(!0x0400_0000),
            slab: Some(!0x0200_0000),
            ..v6_9
        };
        let v6_12 = Self {
            buddy: Buddy::Type(top(0xf0)),
            offline: Some(top(0xf1)),
            table: Some(top(0xf2)),
            huge: Huge::Type(top(0xf4)),
            slab: Some(top(0xf5)),
            ..v6_11
        };
        let v6_16 = Self { unaccepted: Some(top(0xf7)), ..v6_12 };
        let mut layout = match version {
            (2, 6, 18) => Self { huge: Huge::Symbol, ..base }, // makedumpfile -g writes SYMBOL(free_huge_page)
            (2, 6, 32) => Self { flags: F_2_6_32, ..base },
            (3, 10, _) => v3,
            (3, 18, _) => Self { huge: Huge::Symbol, ..v3 },
            (4, 4, _) => v4_4,
            (4, 18, _) => v4_18,
            (5, 4, _) | (6, 1, _) => v5_4,
            (6, 3, _) => v6_3,
            (6, 6, _) => v6_6,
            (6, 9, _) => v6_9,
            (6, 11, _) => v6_11,
            (6, 12, _) => v6_12,
            (6, 16, _) => v6_16,
            (7, 1, _) => Self { link: if variant == "mask" { Link::Mask } else { Link::Info }, ..v6_16 },
            other => panic!("no layout of {other:?}"),
        };
        layout.adapt();
        layout
    }

    /// Bits that configurations leave out.
    fn adapt(&mut self) {
        let flags = &mut self.flags;
        // PG_uncached before PG_hwpoison is x86's alone (to 6.8); CONFIG_MEMORY_FAILURE: x86_64 and ppc64 only
        flags.hwpoison = match self.arch {
            Arch::X86_64 => flags.hwpoison,
            Arch::Ppc64 if self.version < (6, 9, 0) => flags.hwpoison.map(|bit| bit - 1),
            Arch::Ppc64 => flags.hwpoison,
            _ => None,
        };
        // Without CONFIG_PAGEFLAGS_EXTENDED (64 bits or few flags): PG_compound 14, a tail has PG_reclaim too, the rest is one lower
        if self.arch.word() == 4 && flags.tail == Some(15) {
            flags.tail = Some(17);
            flags.swapcache = 15;
            for bit in [&mut flags.swapbacked, &mut flags.buddy].into_iter().flatten() {
                *bit -= 1;
            }
        }
        if self.arch.word() == 4 {
            self.unaccepted = None; // CONFIG_UNACCEPTED_MEMORY needs EFI stub of a TDX or SNP guest
        }
    }

    /// Like `4.18` or `7.1-mask`.
    pub fn name(&self) -> String {
        let (a, b, c) = self.version;
        let patch = if a == 2 { format!(".{c}") } else { String::new() };
        let dash = if self.variant.is_empty() { "" } else { "-" };
        format!("{a}.{b}{patch}{dash}{}", self.variant)
    }

    /// The release in utsname and VMCOREINFO.
    pub fn release(&self) -> String {
        format!("{}.{}.{}-synth", self.version.0, self.version.1, self.version.2)
    }

    /// sizeof(long)
    pub fn word(&self) -> u64 {
        self.arch.word()
    }

    /// Era of mm_types.h: 0 to 3.1, 1 to 4.17 (struct page in double words for SLUB), 2 since 4.18.
    fn era(&self) -> usize {
        if self.version < (3, 2, 0) {
            0
        } else if self.version < (4, 18, 0) {
            1
        } else {
            2
        }
    }

    fn by_era(&self, offsets: [u64; 3]) -> u64 {
        offsets[self.era()]
    }

    /// sizeof(struct page): 56 and 32 bytes; 64 since CONFIG_HAVE_ALIGNED_STRUCT_PAGE or with mem_cgroup.
    pub fn size(&self) -> u64 {
        if self.word() == 4 { 32 } else { self.by_era([56, 64, 64]) }
    }

    /// offsetof(struct page, mapping)
    pub fn mapping(&self) -> u64 {
        self.by_era([2 * self.word() + 8, self.word(), 3 * self.word()])
    }

    /// offsetof(struct page, index)
    pub fn index(&self) -> u64 {
        self.by_era([3 * self.word() + 8, 2 * self.word(), 4 * self.word()])
    }

    /// offsetof(struct page, private)
    pub fn private(&self) -> u64 {
        self.by_era([self.word() + 8, 5 * self.word() + 8, 5 * self.word()])
    }

    /// offsetof(struct page, lru)
    pub fn lru(&self) -> u64 {
        self.by_era([4 * self.word() + 8, 3 * self.word() + 8, self.word()])
    }

    /// offsetof(struct page, _mapcount)
    pub fn mapcount(&self) -> u64 {
        self.by_era([self.word() + 4, 3 * self.word(), 6 * self.word()])
    }

    /// offsetof(struct page, _refcount), `_count` before 4.7
    pub fn refcount(&self) -> u64 {
        self.by_era([self.word(), 3 * self.word() + 4, 6 * self.word() + 4])
    }

    /// offsetof(struct page, compound_head), since 4.4
    pub fn compound_head(&self) -> u64 {
        self.lru()
    }

    /// offsetof(struct page, compound_dtor) and compound_order: behind compound_head.
    pub fn dtor_and_order(&self, width: u64) -> (u64, u64) {
        let dtor = self.lru() + self.word();
        (dtor, dtor + width)
    }
}
