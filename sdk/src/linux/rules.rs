//! The rules as data: for each fact about a page, by which exports or versions of the kernel it is decided, and how.
//!
//! [`TABLE`] is read from the top: the first row of a fact whose keys the kernel exports, and whose versions it lies in,
//! is the rule. Rows that rest on exports stand before those that rest on a version number: distributions backport.
//! A fact without a row is unknown, and what needs it keeps its pages.

use super::Vmcoreinfo;

/// A kernel version: `uname -r` up to the third number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(pub u16, pub u16, pub u16);

impl Version {
    /// Before all.
    pub const MIN: Self = Self(0, 0, 0);
    /// After all.
    pub const MAX: Self = Self(u16::MAX, 0, 0);
    /// The newest kernel whose headers and vmcores these rules were checked against.
    pub const NEWEST_KNOWN: Self = Self(7, 3, u16::MAX);

    /// Reads the numbers that a release begins with: `6.12.117+deb13-arm64` is 6.12.117.
    pub fn parse(release: &str) -> Option<Self> {
        let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|n| n.parse::<u16>().ok());
        Some(Self(numbers.next()??, numbers.next()??, numbers.next().flatten().unwrap_or(0)))
    }
}

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}.{}", self.0, self.1, self.2)
    }
}

/// Something to know about a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fact {
    /// first page of a free block of the buddy allocator
    Buddy,
    /// first page of a compound page
    Head,
    /// later page of a compound page
    Tail,
    /// log2 of a compound page's length
    Order,
    /// compound page of hugetlbfs
    Hugetlb,
    /// memory of the slab allocator
    Slab,
    /// on a list of reclaimable pages: page cache or user memory
    Lru,
    /// has buffer heads or other private data
    Private,
    /// in the swap cache
    Swapcache,
    /// backed by swap
    Swapbacked,
    /// taken away by a balloon or hot-unplug
    Offline,
    /// not accepted from the hypervisor yet
    Unaccepted,
    /// broken hardware
    Hwpoison,
}

/// A number that a rule needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Number {
    /// `NUMBER(key)`
    Exported(&'static str),
    /// the same in all kernels of the row
    Fixed(i64),
    /// `NUMBER(key)` plus a distance
    Above(&'static str, i64),
}

/// How a fact is told from a page's `struct page` or the one behind it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// bit of `flags`
    Flag(Number),
    /// mask of `flags`
    FlagMask(Number),
    /// value of `_mapcount`, which is `page_type` in pages that are not mapped
    Type(Number),
    /// bit 0 of this member
    BitZero(&'static str),
    /// no page
    Never,
    /// `lru.prev` of the next page
    NextLruPrev,
    /// `lru.next` of the next page is the address of this symbol
    NextLruNextIs(&'static str),
    /// this member of the next page; it is as wide as the distance to the other one
    NextField(&'static str, &'static str),
    /// this member of the next page equals the number; width as above
    NextFieldIs(&'static str, &'static str, &'static str),
    /// low byte of the next page's `flags`
    NextFlagsByte,
    /// bit of the next page's `flags`
    NextFlag(Number),
}

/// One row of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    /// what it tells
    pub fact: Fact,
    /// first kernel it holds for
    pub from: Version,
    /// first kernel it does not hold for any more
    pub until: Version,
    /// VMCOREINFO keys that must be there besides those that `how` names
    pub needs: &'static [&'static str],
    /// how
    pub how: How,
    /// where this stands
    pub source: &'static str,
}

const fn row(fact: Fact, needs: &'static [&'static str], how: How, source: &'static str) -> Row {
    Row { fact, from: Version::MIN, until: Version::MAX, needs, how, source }
}

impl Row {
    const fn within(self, from: Version, until: Version) -> Self {
        Self { from, until, ..self }
    }
    const fn until(self, until: Version) -> Self {
        self.within(Version::MIN, until)
    }
}

use Fact::{Buddy, Head, Hugetlb, Hwpoison, Lru, Offline, Order, Private, Slab, Swapbacked, Swapcache, Tail, Unaccepted};
use How::{BitZero, Flag, FlagMask, Never, NextField, NextFieldIs, NextFlag, NextFlagsByte, NextLruNextIs, NextLruPrev, Type};
use Number::{Above, Exported, Fixed};

const MAPCOUNT: &str = "OFFSET(page._mapcount)";
const PRIVATE: &str = "OFFSET(page.private)";
/// Kernels tell dump tools about themselves since then; older ones are described by a file (`makedumpfile -g`).
const VMCOREINFO_BEGINS: Version = Version(2, 6, 24);

/// All rules.
pub const TABLE: &[Row] = &[
    // -128 (2.6.39 to 4.17), ~PG_buddy = -129 (4.18 to 6.11), PGTY_buddy << 24 (6.12)
    row(Buddy, &[MAPCOUNT, PRIVATE], Type(Exported("PAGE_BUDDY_MAPCOUNT_VALUE")), "include/linux/page-flags.h; exported since 3.10"),
    row(Buddy, &[PRIVATE], Flag(Exported("PG_buddy")), "enum pageflags of 2.6.26 to 2.6.37").until(Version(2, 6, 38)),
    row(Buddy, &[PRIVATE], Flag(Fixed(19)), "include/linux/page-flags.h of 2.6.17").within(Version(2, 6, 17), Version(2, 6, 26)),
    row(Buddy, &[MAPCOUNT, PRIVATE], Type(Fixed(-2)), "include/linux/mm.h of 2.6.38").within(Version(2, 6, 38), Version(2, 6, 39)),
    row(Buddy, &[MAPCOUNT, PRIVATE], Type(Fixed(-128)), "include/linux/mm.h of 2.6.39").within(Version(2, 6, 39), Version(3, 10, 0)),
    row(Head, &[], FlagMask(Exported("PG_head_mask")), "exported since 3.16"),
    row(Head, &[], FlagMask(Fixed(1 << 14)), "PG_compound, later PG_head: bit 14 up to 3.15").until(Version(3, 16, 0)),
    row(Tail, &[], BitZero("page.compound_head"), "include/linux/mm_types.h of 4.4"),
    row(Tail, &[], BitZero("page.compound_info"), "include/linux/mm_types.h of 7.1"),
    row(Tail, &[], Never, "before 4.4 nothing of a tail looks like cache or user memory").until(Version(4, 4, 0)),
    row(Order, &[], NextField("page.compound_order", "page.compound_dtor"), "mm_types.h: u16 in 4.4, u32 to 4.15 (64 bits), u8 to 6.2"),
    row(Order, &[], NextField("folio._folio_order", "folio._folio_dtor"), "mm_types.h of 6.3 to 6.5"),
    row(Order, &["NUMBER(PG_hugetlb)"], NextFlagsByte, "folio_set_order() in mm/internal.h of 6.6"),
    row(Order, &["NUMBER(PAGE_HUGETLB_MAPCOUNT_VALUE)"], NextFlagsByte, "folio_set_order() in mm/internal.h of 6.6"),
    row(Order, &[], NextFlagsByte, "folio_set_order() in mm/internal.h of 6.6").within(Version(6, 6, 0), Version::MAX),
    row(Order, &["OFFSET(page.lru)"], NextLruPrev, "set_compound_order() in include/linux/mm.h").until(Version(4, 4, 0)),
    row(Hugetlb, &[MAPCOUNT], Type(Exported("PAGE_HUGETLB_MAPCOUNT_VALUE")), "page type since 6.9"),
    row(Hugetlb, &[], NextFlag(Exported("PG_hugetlb")), "6.6 to 6.8"),
    row(Hugetlb, &[], NextFieldIs("folio._folio_dtor", "folio._folio_order", "HUGETLB_PAGE_DTOR"), "6.3 to 6.5"),
    row(Hugetlb, &[], NextFieldIs("page.compound_dtor", "page.compound_order", "HUGETLB_PAGE_DTOR"), "4.4 to 6.2"),
    row(Hugetlb, &["OFFSET(page.lru)"], NextLruNextIs("free_huge_page"), "mm/hugetlb.c before 4.4").until(Version(4, 4, 0)),
    row(Slab, &[MAPCOUNT], Type(Exported("PAGE_SLAB_MAPCOUNT_VALUE")), "page type since 6.10"),
    row(Slab, &[], Flag(Exported("PG_slab")), "exported from 3.10 to 6.9"),
    row(Slab, &[], Flag(Fixed(7)), "include/linux/page-flags.h").until(Version(3, 10, 0)),
    row(Lru, &[], Flag(Exported("PG_lru")), "exported since 2.6.24"),
    row(Lru, &[], Flag(Fixed(5)), "include/linux/page-flags.h").until(VMCOREINFO_BEGINS),
    row(Private, &[], Flag(Exported("PG_private")), "exported since 2.6.24"),
    row(Private, &[], Flag(Fixed(11)), "include/linux/page-flags.h").until(VMCOREINFO_BEGINS),
    row(Swapcache, &[], Flag(Exported("PG_swapcache")), "exported since 2.6.24"),
    row(Swapcache, &[], Flag(Fixed(15)), "include/linux/page-flags.h").until(VMCOREINFO_BEGINS),
    row(Swapbacked, &[], Flag(Exported("PG_swapbacked")), "exported since 4.17 (commit 1cbf29da3628)"),
    row(Swapbacked, &[], Flag(Above("PG_private", 6)), "enum pageflags of 4.10 to 4.16").within(Version(4, 10, 0), Version(4, 17, 0)),
    row(Offline, &[MAPCOUNT], Type(Exported("PAGE_OFFLINE_MAPCOUNT_VALUE")), "exported since 5.0"),
    row(Unaccepted, &[MAPCOUNT], Type(Exported("PAGE_UNACCEPTED_MAPCOUNT_VALUE")), "exported since 6.16"),
    row(Hwpoison, &[], Flag(Exported("PG_hwpoison")), "exported with CONFIG_MEMORY_FAILURE"),
];

impl Number {
    fn of(self, info: &Vmcoreinfo) -> Option<i64> {
        match self {
            Self::Exported(key) => info.number(key),
            Self::Fixed(n) => Some(n),
            Self::Above(key, n) => info.number(key)?.checked_add(n),
        }
    }

    /// The number as bit of a flags word: a mask of one bit.
    pub(super) fn bit(self, info: &Vmcoreinfo, word_bits: usize) -> Option<u64> {
        let bit = u32::try_from(self.of(info)?).ok()?;
        (bit < word_bits as u32).then(|| 1 << bit)
    }

    /// The number as mask of a flags word, not empty.
    pub(super) fn mask(self, info: &Vmcoreinfo) -> Option<u64> {
        self.of(info).map(i64::cast_unsigned).filter(|m| *m != 0)
    }

    /// The number as value of a 32-bit member; a kernel prints it signed or unsigned.
    pub(super) fn type_value(self, info: &Vmcoreinfo) -> Option<u32> {
        let n = self.of(info)?;
        i32::try_from(n).map(i32::cast_unsigned).or_else(|_| u32::try_from(n)).ok()
    }
}

impl Row {
    /// True if the kernel has all that the row rests on. A row with bounds needs to know the version.
    fn holds(&self, info: &Vmcoreinfo, version: Option<Version>) -> bool {
        let bounded = self.from > Version::MIN || self.until < Version::MAX;
        let in_bounds = version.map_or(!bounded, |v| self.from <= v && v < self.until);
        let number = |n: Number| n.of(info).is_some();
        let how = match self.how {
            Flag(n) | FlagMask(n) | Type(n) | NextFlag(n) => number(n),
            BitZero(member) => info.offset(member).is_some(),
            NextField(member, other) => info.offset(member).is_some() && info.offset(other).is_some(),
            NextFieldIs(member, other, value) => {
                info.offset(member).is_some() && info.offset(other).is_some() && info.number(value).is_some()
            }
            NextLruNextIs(symbol) => info.symbol(symbol).is_some(),
            Never | NextLruPrev | NextFlagsByte => true,
        };
        in_bounds && how && self.needs.iter().all(|key| info.get(key).is_some())
    }
}

/// The rule for a fact on this kernel.
pub fn pick(fact: Fact, info: &Vmcoreinfo, version: Option<Version>) -> Option<&'static Row> {
    TABLE.iter().find(|r| r.fact == fact && r.holds(info, version))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_from_releases() {
        let v = Version::parse;
        assert_eq!(v("6.12.117+deb13-arm64-16k"), Some(Version(6, 12, 117)));
        assert_eq!(v("2.6.32-754.el6.x86_64"), Some(Version(2, 6, 32)));
        assert_eq!((v("7.3-rc1"), v("5.10"), v("7.3.4+deb13")), (Some(Version(7, 3, 0)), Some(Version(5, 10, 0)), Some(Version(7, 3, 4))));
        assert_eq!((v(""), v("linux"), v("99999999.1")), (None, None, None));
    }

    #[test]
    fn exports_decide_before_versions() {
        // A distribution's 3.10 with the compound_head of 4.4 ported back.
        let info = Vmcoreinfo::parse(b"OFFSET(page.compound_head)=32\nOFFSET(page.lru)=32\n");
        let picked = pick(Fact::Tail, &info, Some(Version(3, 10, 0))).unwrap();
        assert_eq!(picked.how, How::BitZero("page.compound_head"));
        let none = Vmcoreinfo::parse(b"");
        assert_eq!(pick(Fact::Tail, &none, Some(Version(3, 10, 0))).unwrap().how, How::Never);
        assert_eq!(pick(Fact::Tail, &none, Some(Version(6, 1, 0))), None, "a kernel that has tails but does not say where");
        assert_eq!(pick(Fact::Tail, &none, None), None, "an unknown kernel is no old one");
    }

    #[test]
    fn a_rule_needs_every_key_it_rests_on() {
        let text = "OFFSET(page._mapcount)=48\nOFFSET(page.private)=40\nNUMBER(PAGE_BUDDY_MAPCOUNT_VALUE)=-129\n";
        let v = Some(Version(6, 1, 0));
        assert!(pick(Fact::Buddy, &Vmcoreinfo::parse(text.as_bytes()), v).is_some());
        for line in text.lines() {
            assert_eq!(pick(Fact::Buddy, &Vmcoreinfo::parse(text.replace(line, "").as_bytes()), v), None, "without {line}");
        }
    }
}
