//! Judges `struct page`s by the rules picked for a kernel.

mod find;

use super::Words;
use super::rules::Row;

use crate::page::{ClassSet, Verdict};
use crate::prefetch::prefetch;

/// Largest `struct page` that makes sense: 64 bytes are usual, debugging options add some.
const STRUCT_PAGE_MAX: u64 = 1024;
/// `struct page` of 64-bit kernels without debugging options: one cache line.
const USUAL_SIZE: usize = 64;
/// How many entries ahead the processor is asked for: one 4 KiB page of them measured best of 8 to 160.
const AHEAD: usize = 64;
/// Orders from here on are absurd: 2^31 pages of 4 KiB are 8 TiB.
const ORDER_MAX: u32 = 31;
/// Smallest page of the mem_map itself.
const FRAME_MIN: u64 = 4096;
/// Lists of `zone.free_area` when the kernel does not say: `MAX_ORDER` was 11 on all architectures by default.
const FREE_AREAS: u64 = 11;

/// A slice of the mem_map.
#[derive(Debug, Clone, Copy)]
pub struct StructPages<'a> {
    /// the entries, one behind the other
    pub bytes: &'a [u8],
    /// PFN of the first
    pub first_pfn: u64,
    /// kernel address of the first, if known: then a tail's pointer to its head can be checked
    pub address: Option<u64>,
}

/// Kernel address of an entry.
fn own_address(pages: &StructPages<'_>, i: usize, size: usize) -> Option<u64> {
    pages.address.map(|a| a.wrapping_add((i * size) as u64))
}

/// Evidence against a rule: the page is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Contradiction {
    /// a free block of an order that the allocator does not have, or not aligned to it
    FreeOrder,
    /// a free block whose pages are in use
    FreeInUse,
    /// a compound page whose length is absurd, or whose tails do not belong to it
    Compound,
    /// a user page without its anon_vma
    Anonymous,
}

impl Contradiction {
    /// All kinds, by number.
    pub const ALL: [Self; 4] = [Self::FreeOrder, Self::FreeInUse, Self::Compound, Self::Anonymous];

    /// In words.
    pub const fn text(self) -> &'static str {
        match self {
            Self::FreeOrder => "free block with an order that cannot be",
            Self::FreeInUse => "free block with pages in use",
            Self::Compound => "compound page whose tails do not belong to it",
            Self::Anonymous => "user page without its anon_vma",
        }
    }
}

/// What a `struct page` says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Judgement {
    /// class that may exclude the page, [`Verdict::UNDECIDED`] if none
    pub class: Verdict,
    /// the class holds for 2^order pages from here on
    pub order: u32,
    /// 2^n pages from here on are broken hardware, whatever else they are; a hugetlb page does not say which of its pages
    pub poisoned: Option<u32>,
    /// why the page has no class although a rule said so
    pub contradiction: Option<Contradiction>,
}

impl Judgement {
    /// Nothing to say: the page is kept.
    pub const NOTHING: Self = Self { class: Verdict::UNDECIDED, order: 0, poisoned: None, contradiction: None };

    fn class(class: Verdict, order: u32) -> Self {
        Self { class, order, ..Self::NOTHING }
    }
    fn against(contradiction: Contradiction) -> Self {
        Self { contradiction: Some(contradiction), ..Self::NOTHING }
    }
}

/// A value of `_mapcount`; the default matches nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Typed {
    mask: u32,
    value: u32,
}

impl Typed {
    const NONE: Self = Self { mask: 0, value: 1 };

    /// Since 6.12 the type is the top byte (at least 0xf0) and the rest may count something.
    fn new(value: u32) -> Self {
        let top_byte = value >= 0xf000_0000 && value.trailing_zeros() >= 24;
        Self { mask: if top_byte { 0xff00_0000 } else { u32::MAX }, value }
    }
    #[inline(always)]
    fn is(self, mapcount: u32) -> bool {
        mapcount & self.mask == self.value
    }
}

/// A member of the page behind a compound head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    /// unsigned member of this offset and width
    Member(usize, usize),
    FlagsByte,
}

/// How a compound page of hugetlbfs is told by the page behind its head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NextHugetlb {
    Flag(u64),
    MemberIs(usize, usize, u64),
}

/// Something that cannot be known on a kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gap {
    /// class that is kept therefore, [`Verdict::UNDECIDED`] if none
    pub class: Verdict,
    /// one sentence
    pub text: String,
}

/// The rules for one kernel, ready to judge.
#[derive(Debug, Clone)]
pub struct PageRules {
    words: Words,
    size: usize,
    flags: usize,
    mapping: Option<usize>,
    mapcount: Option<usize>,
    refcount: Option<usize>,
    private: Option<usize>,
    /// member whose bit 0 marks a tail and whose rest leads to its head
    tail: Option<usize>,
    /// masks of `flags`; 0 = unknown
    lru: u64,
    private_flag: u64,
    swapcache: u64,
    swapbacked: u64,
    head: u64,
    slab_flag: u64,
    hwpoison: u64,
    buddy_flag: u64,
    buddy: Typed,
    slab: Typed,
    offline: Typed,
    unaccepted: Typed,
    hugetlb: Typed,
    next_order: Option<Next>,
    next_hugetlb: Option<NextHugetlb>,
    free_areas: u32,
    decidable: ClassSet,
    notes: Vec<Gap>,
    picked: Vec<&'static Row>,
}

impl PageRules {
    /// Word size and byte order of the machine.
    pub fn words(&self) -> Words {
        self.words
    }

    /// Bytes of a `struct page`.
    pub fn struct_page_size(&self) -> usize {
        self.size
    }

    /// Classes that a single `struct page` tells. Free pages of kernels that are not in the set are on the lists of
    /// `zone.free_area`.
    pub fn decidable(&self) -> ClassSet {
        self.decidable
    }

    /// Number of free lists: orders of free blocks are below it.
    pub fn free_areas(&self) -> u32 {
        self.free_areas
    }

    /// What cannot be known on this kernel.
    pub fn notes(&self) -> &[Gap] {
        &self.notes
    }

    /// The rows in use.
    pub fn picked(&self) -> &[&'static Row] {
        &self.picked
    }

    /// Takes a class away that turned out to be wrong on this kernel, and those that rest on the same rule.
    pub fn distrust(&mut self, class: Verdict) {
        let both = [Verdict::CACHE, Verdict::PRIVATE_CACHE];
        let wrong = if both.contains(&class) { both.to_vec() } else { vec![class] };
        self.decidable = ClassSet(self.decidable.0 & !wrong.into_iter().fold(ClassSet::default(), ClassSet::with).0);
    }

    /// Judges the pages from the first on. `plain(index, class)` is told of pages by themselves; `special(index,
    /// judgement)` of all others, and returns how many pages to go on by.
    ///
    /// The hot loop. Most pages are plain: they take no call that is not inlined and no step that depends on what was
    /// read, so that the processor fetches many struct pages at a time.
    pub fn judge_all(&self, pages: &StructPages<'_>, plain: impl FnMut(usize, Verdict), special: impl FnMut(usize, Judgement) -> usize) {
        let usual = self.words == Words { long: 8, big_endian: false } && self.size == USUAL_SIZE;
        if usual { self.run_usual(pages, plain, special) } else { self.run_any(pages, plain, special) }
    }

    /// For 64-bit little-endian kernels with a `struct page` of one cache line: no check and no turning of bytes is left.
    fn run_usual(
        &self,
        pages: &StructPages<'_>,
        mut plain: impl FnMut(usize, Verdict),
        mut special: impl FnMut(usize, Judgement) -> usize,
    ) {
        let (all, _) = pages.bytes.as_chunks::<USUAL_SIZE>();
        let mut i = 0;
        while let Some(page) = all.get(i) {
            prefetch(pages.bytes, (i + AHEAD) * USUAL_SIZE);
            let (words, _) = page.as_chunks::<8>();
            let word = |offset: usize| words.get(offset / 8 % 8).map_or(0, |w| u64::from_le_bytes(*w));
            let half = |offset: usize| (word(offset) >> (offset % 8 * 8)) as u32;
            if let Some(class) = self.plain(word, half) {
                plain(i, class);
                i += 1;
            } else {
                i += special(i, self.judge(pages, i)).max(1);
            }
        }
    }

    /// For all other kernels.
    fn run_any(&self, pages: &StructPages<'_>, mut plain: impl FnMut(usize, Verdict), mut special: impl FnMut(usize, Judgement) -> usize) {
        let mut i = 0;
        while let Some(page) = self.page(pages, i) {
            let long = |offset: usize| self.words.long(page, offset).unwrap_or(0);
            let int = |offset: usize| self.words.u32(page, offset).unwrap_or(0);
            if let Some(class) = self.plain(long, int) {
                plain(i, class);
                i += 1;
            } else {
                i += special(i, self.judge(pages, i)).max(1);
            }
        }
    }

    /// Class of a page that is neither part of a compound page nor marked by a type, a flag of its own or damage.
    #[inline(always)]
    fn plain(&self, long: impl Fn(usize) -> u64, int: impl Fn(usize) -> u32) -> Option<Verdict> {
        let flags = long(self.flags);
        let tail = self.tail.map_or(0, &long) & 1;
        let mapcount = self.mapcount.map_or(u32::MAX, int);
        let marked = flags & (self.head | self.slab_flag | self.buddy_flag | self.hwpoison);
        let owner = self.mapping.map_or(0, long);
        if tail != 0 || marked != 0 || mapcount.cast_signed() < -1 || owner & 1 == 1 && owner & !3 == 0 {
            return None;
        }
        Some(self.class(flags, owner))
    }

    /// The class that flags and owner tell of a page that is no slab page.
    #[inline(always)]
    fn class(&self, flags: u64, owner: u64) -> Verdict {
        let swapped = flags & self.swapcache != 0 && (self.swapbacked == 0 || flags & self.swapbacked != 0);
        if owner & 1 == 1 {
            Verdict::USER
        } else if flags & self.lru != 0 || swapped {
            if flags & self.private_flag == 0 { Verdict::CACHE } else { Verdict::PRIVATE_CACHE }
        } else {
            Verdict::UNDECIDED
        }
    }

    /// The PFN of the head of the compound page that this page is a tail of; `None` if it is no tail or leads nowhere.
    ///
    /// `pfn_of` finds the PFN of a `struct page` by its kernel address.
    pub fn head_of(&self, pages: &StructPages<'_>, i: usize, pfn_of: impl Fn(u64) -> Option<u64>) -> Option<u64> {
        let page = self.page(pages, i)?;
        let info = self.words.long(page, self.tail?)?;
        if info & 1 == 0 {
            return pfn_of(self.head_shown_again(pages, i, self.words.long(page, self.flags)?)?);
        }
        pfn_of(self.head_address(info, own_address(pages, i, self.size)?))
    }

    /// The address of the head that this entry only shows again; `None` if it is an entry of its own.
    ///
    /// From 5.18 to 7.0 the tails of a hugetlb page may share the frame of its first struct pages, so every entry that
    /// begins a page of the mem_map looks like the head. The entry behind it tells: its head is another one
    /// (`page_fixed_fake_head()`, include/linux/page-flags.h).
    fn head_shown_again(&self, pages: &StructPages<'_>, i: usize, flags: u64) -> Option<u64> {
        let own = own_address(pages, i, self.size).filter(|own| flags & self.head != 0 && own.is_multiple_of(FRAME_MIN))?;
        let info = self.words.long(self.page(pages, i + 1)?, self.tail?)?;
        let head = self.head_address(info, own.wrapping_add(self.size as u64));
        (info & 1 == 1 && head < own && head.is_multiple_of(FRAME_MIN)).then_some(head)
    }

    /// Where a tail's info leads: a pointer, or since 7.1 (with CONFIG_HUGETLB_PAGE_OPTIMIZE_VMEMMAP and a `struct page`
    /// of a power of two bytes) a mask for the tail's own address. A mask is ones down to the compound page's size.
    fn head_address(&self, info: u64, own: u64) -> u64 {
        let all = if self.words.long == 8 { u64::MAX } else { u64::from(u32::MAX) };
        let info = info & !1;
        let zeros = info.trailing_zeros();
        let is_mask = info != 0 && info == all & !((1 << zeros) - 1) && (1 << zeros) / self.size as u64 <= 1 << ORDER_MAX;
        if is_mask { own & info } else { info }
    }

    /// False if a `struct page` says that somebody uses its page: it counts references, or is cache or slab. For kernels
    /// whose free pages are told by lists only.
    pub fn may_be_free(&self, page: &[u8]) -> bool {
        let count = self.refcount.and_then(|offset| self.words.u32(page, offset));
        let flags = self.words.long(page, self.flags).unwrap_or(0);
        // Up to 2.6.15 the count of a page that nobody uses is -1 (include/linux/mm.h).
        count.is_none_or(|n| n == 0 || n == u32::MAX) && flags & (self.lru | self.slab_flag) == 0
    }

    #[inline(always)]
    fn page<'a>(&self, pages: &StructPages<'a>, i: usize) -> Option<&'a [u8]> {
        pages.bytes.get(i * self.size..)?.get(..self.size)
    }

    /// Judges one page of a slice.
    pub fn judge(&self, pages: &StructPages<'_>, i: usize) -> Judgement {
        let words = self.words;
        let Some(page) = self.page(pages, i) else { return Judgement::NOTHING };
        let long = |offset: usize| words.long(page, offset).unwrap_or(0);
        let flags = long(self.flags);
        let poisoned = (flags & self.hwpoison != 0).then_some(0);
        let tail = self.tail.is_some_and(|offset| long(offset) & 1 == 1);
        if tail || self.head_shown_again(pages, i, flags).is_some() {
            return Judgement { poisoned, ..Judgement::NOTHING };
        }
        let mapcount = self.mapcount.and_then(|offset| words.u32(page, offset)).unwrap_or(u32::MAX);
        // Types and the markers before them are negative numbers below -1, the value of a page that is not mapped.
        let typed = mapcount.cast_signed() < -1;
        if typed || flags & (self.slab_flag | self.buddy_flag) != 0 {
            if self.slab.is(mapcount) || flags & self.slab_flag != 0 {
                return Judgement { poisoned, ..Judgement::NOTHING };
            }
            if self.buddy.is(mapcount) || flags & self.buddy_flag != 0 {
                return Judgement { poisoned, ..self.free(pages, i, page) };
            }
            if self.unaccepted.is(mapcount) {
                let order = self.free_areas - 1;
                let aligned = (pages.first_pfn + i as u64).trailing_zeros() >= order;
                return Judgement { poisoned, ..Judgement::class(Verdict::UNACCEPTED, if aligned { order } else { 0 }) };
            }
        }
        let owner = self.mapping.map_or(0, long);
        let class = match self.class(flags, owner) {
            Verdict::UNDECIDED if typed && self.offline.is(mapcount) => Verdict::OFFLINE,
            class => class,
        };
        let (judged, hugetlb) =
            if flags & self.head != 0 { self.compound(pages, i, class, mapcount) } else { (Judgement::class(class, 0), false) };
        // The lowest two bits are marks; a user page without what they mark is a bit that fell over.
        if class == Verdict::USER && owner & !3 == 0 {
            return Judgement { poisoned, ..Judgement::against(Contradiction::Anonymous) };
        }
        Judgement { poisoned: poisoned.map(|_| if hugetlb { judged.order } else { 0 }), ..judged }
    }

    /// First page of a free block.
    fn free(&self, pages: &StructPages<'_>, i: usize, page: &[u8]) -> Judgement {
        let words = self.words;
        let Some(order) = self.private.and_then(|offset| words.long(page, offset)) else { return Judgement::NOTHING };
        let pfn = pages.first_pfn + i as u64;
        if order >= u64::from(self.free_areas) || u64::from(pfn.trailing_zeros()) < order {
            return Judgement::against(Contradiction::FreeOrder);
        }
        // The block was joined from halves: the first page of each half it could consist of must be free, too.
        let in_use = |at: usize| {
            let count = self.refcount.and_then(|offset| words.u32(self.page(pages, i + at)?, offset));
            count.is_some_and(|n| n != 0)
        };
        if in_use(0) || (0..order).any(|half| in_use(1 << half)) {
            return Judgement::against(Contradiction::FreeInUse);
        }
        Judgement::class(Verdict::FREE, order as u32)
    }

    /// First page of a compound page: the judgement, and whether it is one of hugetlbfs.
    fn compound(&self, pages: &StructPages<'_>, i: usize, class: Verdict, mapcount: u32) -> (Judgement, bool) {
        let words = self.words;
        let Some(next) = self.page(pages, i + 1) else { return (Judgement::class(class, 0), false) };
        let unsigned = |offset, width| words.unsigned(next, offset, width);
        let hugetlb = self.hugetlb.is(mapcount)
            || match self.next_hugetlb {
                Some(NextHugetlb::Flag(bit)) => words.long(next, self.flags).is_some_and(|flags| flags & bit != 0),
                Some(NextHugetlb::MemberIs(offset, width, value)) => unsigned(offset, width) == Some(value),
                None => false,
            };
        let class = if hugetlb && class == Verdict::UNDECIDED { Verdict::USER } else { class };
        if class == Verdict::UNDECIDED || class == Verdict::OFFLINE {
            return (Judgement::class(class, 0), false);
        }
        let order = match self.next_order {
            Some(Next::Member(offset, width)) => unsigned(offset, width),
            Some(Next::FlagsByte) => words.long(next, self.flags).map(|flags| flags & 0xff),
            None => None,
        };
        let pfn = pages.first_pfn + i as u64;
        let order = order.filter(|o| (1..u64::from(ORDER_MAX)).contains(o) && u64::from(pfn.trailing_zeros()) >= *o);
        let Some(tail) = self.tail else {
            // Before 4.4 nothing else marks tails; PG_head may even be another flag there.
            return (Judgement::class(class, order.unwrap_or(0) as u32), hugetlb);
        };
        if self.next_order.is_none() {
            // The kernel does not say how long it is: no evidence against it.
            return (Judgement::NOTHING, hugetlb);
        }
        let own = own_address(pages, i, self.size);
        let belongs = |at: usize| match self.page(pages, i + at) {
            Some(page) => {
                let info = words.long(page, tail).unwrap_or(0);
                let at = own.map(|own| own.wrapping_add((at * self.size) as u64));
                info & 1 == 1 && own.zip(at).is_none_or(|(own, at)| self.head_address(info, at) == own)
            }
            // The rest of a gigantic page lies in another block.
            None => true,
        };
        match order {
            Some(order) if belongs(1) && belongs((1 << order) - 1) => (Judgement::class(class, order as u32), hugetlb),
            _ => (Judgement::against(Contradiction::Compound), hugetlb),
        }
    }
}
