//! What a frame is by its `struct page_info` alone.
//!
//! Xen 4 keeps it all in `count_info` (xen/arch/x86/include/asm/mm.h, formerly xen/include/asm-x86/mm.h), from the top bit
//! down:
//!
//! | bit | until XSA-402 ([`BELOW_CACHE`]) | since ([`NO_CACHE`]) |
//! |---|---|---|
//! | 63 | `PGC_allocated`; of a free page "to be scrubbed" | the same; 4.22 has bit 57 for scrubbing |
//! | 62 | `PGC_xen_heap` | the same |
//! | 61 | `PGC_page_table` | the same, since 4.18 `PGC_extra` |
//! | 60 | cache attributes (60 to 58) | `PGC_broken` |
//! | 59, 58 | | `PGC_state`: in use, offlining, offlined, free |
//! | 57 | `PGC_broken` | varies |
//! | 56, 55 | `PGC_state` | count |
//!
//! The change (June 2022, "x86: Don't change the cacheability of the directmap") is in 4.17 and also in 4.13.5, 4.14.6,
//! 4.15.3 and 4.16.2, and in what distributions made of older ones. So the frames themselves say which one it is.
//!
//! Xen 3 has a bitmap of the frames in use instead (`alloc_bitmap`, xen/common/page_alloc.c).

/// `PGC_allocated`: given to a domain that has not freed it.
const ALLOCATED: u64 = 1 << 63;
/// `PGC_xen_heap`, also of Xen 3.4.
pub const XEN_HEAP: u64 = 1 << 62;
/// References in Xen 3's `count_info`, as far as they matter: no release has fewer bits for them.
const COUNT_3: u64 = 0xffff;

/// Where the parts of Xen 4's `count_info` are that moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// shift of `PGC_state`, two bits
    state: u32,
    /// `PGC_broken`
    broken: u64,
    /// bits that say that a free page is to be scrubbed
    scrub: u64,
}

/// Xen 4.0 to XSA-402.
pub const BELOW_CACHE: Layout = Layout { state: 55, broken: 1 << 57, scrub: 1 << 63 };
/// Since XSA-402.
pub const NO_CACHE: Layout = Layout { state: 58, broken: 1 << 60, scrub: 1 << 63 | 1 << 57 };

/// `PGC_state_inuse`, `_offlining`, `_offlined`, `_free`.
const IN_USE: u64 = 0;
const OFFLINING: u64 = 1;
const OFFLINED: u64 = 2;
const FREE: u64 = 3;

impl Layout {
    /// The layout of a version where that alone decides.
    pub fn of_version(major: u64, minor: u64) -> Option<Self> {
        match (major, minor) {
            (4, ..=12) => Some(BELOW_CACHE),
            (4, 13..=16) => None,
            _ => Some(NO_CACHE),
        }
    }

    /// True if this is a free page's `count_info` and nothing else: of the other layout no page has such bits, since they
    /// would be cache attributes of a page that nobody uses, or more references than there is memory.
    pub fn votes(&self, count_info: u64) -> bool {
        count_info & !self.scrub == FREE << self.state
    }
}

/// What a frame is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Frame {
    /// Xen's own, or nobody's
    Xen,
    /// free memory
    Free,
    /// taken out of use by the administrator or by errors
    Offlined,
    /// broken hardware
    Broken,
    /// a domain's; `_domain`, and if anybody counts references to it
    Owned(u32, bool),
    /// what it says cannot be
    Absurd,
}

/// A frame by the rules of Xen 4. Without a layout only owners are known.
pub fn xen4(count_info: u64, owner: u32, layout: Option<Layout>) -> Frame {
    if count_info & XEN_HEAP != 0 {
        return Frame::Xen;
    }
    if let Some(layout) = layout {
        let state = count_info >> layout.state & 3;
        // Nobody has references to a free or offlined page (`free_heap_pages` of xen/common/page_alloc.c sets all of the
        // word), and what is broken is also on its way out of use (`mark_page_offline`).
        let unused = count_info & !(3 << layout.state | layout.scrub | layout.broken) == 0;
        match (state, count_info & layout.broken != 0) {
            (IN_USE, false) | (OFFLINING, false) => {}
            (OFFLINING, true) => return Frame::Broken,
            (OFFLINED, true) if unused => return Frame::Broken,
            (OFFLINED, false) if unused => return Frame::Offlined,
            (FREE, false) if unused => return Frame::Free,
            _ => return Frame::Absurd,
        }
    }
    match owner {
        0 => Frame::Xen,
        _ if count_info & ALLOCATED == 0 => Frame::Xen,
        _ => Frame::Owned(owner, true),
    }
}

/// A frame by the rules of Xen 3. `in_use` is its bit of `alloc_bitmap`; the others are `None` if they cannot be read.
pub fn xen3(in_use: bool, count_info: Option<u64>, owner: Option<u32>, heap: bool) -> Option<Frame> {
    let counted = count_info.map(|c| c & COUNT_3 != 0);
    match (in_use, owner) {
        (false, _) if counted == Some(true) => Some(Frame::Absurd),
        (false, _) => Some(Frame::Free),
        _ if heap => Some(Frame::Xen),
        (true, Some(0)) => Some(Frame::Xen),
        (true, owner) => Some(Frame::Owned(owner?, counted?)),
    }
}
