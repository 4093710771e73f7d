//! Rules of Xen 3 and Xen 4.

use coresift_sdk::{Stages, Value, Verdict};

use crate::synth::{ALLOCATED, DIRECT, DOMAINS, FRAMES, HEAP, IMAGE, PAGE, Synth, finding, judge};

const KEPT: Verdict = Verdict::UNDECIDED;
const OTHER: Verdict = Verdict::plugin_class(0);
const SPECIAL: Verdict = Verdict::plugin_class(1);

/// `_domain` of domain 0, the guest, dom_xen, dom_io, dom_cow.
const DOM0: u32 = DOMAINS as u32;
const GUEST: u32 = DOM0 + 1;
const XEN: u32 = DOM0 + 2;
const IO: u32 = DOM0 + 3;
const COW: u32 = DOM0 + 4;

/// What owners decide, in every version of Xen 4.
const OWNED: [(u64, u32, Verdict); 10] = [
    (0, 0, KEPT),                      // Xen's image, page tables
    (0, GUEST, KEPT),                  // in use, not allocated: `_domain` means something else
    (1, GUEST, KEPT),                  // the guest freed it, somebody still has a reference
    (HEAP, 0, KEPT),                   // Xen heap
    (ALLOCATED | HEAP | 2, XEN, KEPT), // Xen heap, shared with domains
    (ALLOCATED | 1, 0, KEPT),          // anonymous
    (ALLOCATED | 1, DOM0, KEPT),
    (ALLOCATED | 1 << 61 | 3, GUEST, OTHER), // also a page table
    (ALLOCATED | 1, IO, SPECIAL),
    (ALLOCATED | 1, COW, OTHER),
];

/// Frames 0x500 on are what the table says; 0x600 to 0x640 are free.
fn check(version: (u64, u64), free: u64, table: &[(u64, u32, Verdict)]) {
    let mut s = Synth::new(version);
    s.infos(0x600..0x640, free, 0);
    let all: Vec<_> = OWNED.iter().chain(table).collect();
    (0x500..).zip(&all).for_each(|(pfn, (count, owner, _))| s.info(pfn, *count, *owner));
    let filter = s.open();
    assert_eq!(filter.findings(), [], "{version:?}");
    let expected: Vec<_> = all.iter().map(|(_, _, verdict)| *verdict).collect();
    assert_eq!(judge(filter.as_ref(), 0x500, all.len() as u32), expected, "{version:?}");
    assert_eq!(judge(filter.as_ref(), 0x600, 0x40), [Verdict::FREE; 0x40]);
}

#[test]
fn xen_4_before_the_cache_attributes_went() {
    for version in [(4, 0), (4, 2), (4, 12), (4, 13), (4, 16)] {
        let table = [
            (3 << 55, 9, Verdict::FREE),                                  // the owner is the order of the block then
            (3 << 55 | ALLOCATED, 0, Verdict::FREE),                      // to be scrubbed
            (2 << 55, 0, Verdict::OFFLINE),                               // offlined
            (1 << 55 | ALLOCATED | 1, DOM0, KEPT),                        // to go offline
            (1 << 55 | ALLOCATED | 1, GUEST, OTHER),                      // the same of the guest
            (2 << 55 | 1 << 57, 0, Verdict::HWPOISON),                    // offlined, since it is broken
            (1 << 57 | 1 << 55 | ALLOCATED | 1, DOM0, Verdict::HWPOISON), // broken
            (3 << 55 | HEAP, 0, KEPT),                                    // the heap's bit goes first
            (3 << 58 | ALLOCATED | 1, DOM0, KEPT),                        // cache attributes: "free" since XSA-402
            (1 << 60 | ALLOCATED | 1, DOM0, KEPT),                        // cache attributes: "broken" since XSA-402
            (7 << 58 | ALLOCATED | 1, GUEST, OTHER),
        ];
        check(version, 3 << 55, &table);
    }
}

#[test]
fn xen_4_since() {
    for version in [(4, 13), (4, 16), (4, 17), (4, 22), (5, 0)] {
        let table = [
            (3 << 58, 9, Verdict::FREE),
            (3 << 58 | ALLOCATED, 0, Verdict::FREE),
            (3 << 58 | 1 << 57, 0, Verdict::FREE), // to be scrubbed, 4.22
            (2 << 58, 0, Verdict::OFFLINE),
            (1 << 58 | ALLOCATED | 1, DOM0, KEPT),
            (1 << 58 | ALLOCATED | 1, GUEST, OTHER),
            (2 << 58 | 1 << 60, 0, Verdict::HWPOISON),
            (1 << 60 | 1 << 58 | ALLOCATED | 1, DOM0, Verdict::HWPOISON),
            (3 << 58 | HEAP, 0, KEPT),
            (1 << 57 | ALLOCATED | 1, DOM0, KEPT), // PGC_extra or PGC_shadowed_pt: "broken" before XSA-402
        ];
        check(version, 3 << 58, &table);
    }
}

#[test]
fn the_frames_decide_and_not_the_version() {
    // A distribution's 4.12 with XSA-402, and one that is newer than its number says.
    check((4, 12), 3 << 58, &[(1 << 57 | ALLOCATED | 1, DOM0, KEPT), (2 << 58, 0, Verdict::OFFLINE)]);
    check((4, 17), 3 << 55, &[(1 << 60 | ALLOCATED | 1, DOM0, KEPT), (2 << 55, 0, Verdict::OFFLINE)]);
}

#[test]
fn without_free_pages_the_version_decides_where_it_can() {
    let state = |version, count| {
        let mut s = Synth::new(version);
        s.info(0x500, count, 0);
        s.info(0x501, ALLOCATED | 1, GUEST);
        let filter = s.open();
        (judge(filter.as_ref(), 0x500, 2), filter)
    };
    assert_eq!(state((4, 12), 2 << 55).0, [Verdict::OFFLINE, OTHER]);
    assert_eq!(state((4, 17), 2 << 58).0, [Verdict::OFFLINE, OTHER]);
    for (minor, count) in [(13, 2 << 55), (14, 2 << 58), (15, 1 << 60), (16, 1 << 57), (16, 2 << 58)] {
        let (verdicts, filter) = state((4, minor), count);
        assert_eq!(verdicts, [KEPT, OTHER]);
        let says = format!("no free page tells which layout Xen 4.{minor}'s count_info has");
        assert!(finding(filter.as_ref(), &says).weakens);
    }
    // Both say that they are free: then nobody knows.
    let mut s = Synth::new((4, 15));
    s.infos(0x500..0x504, 3 << 55, 0);
    s.infos(0x504..0x508, 3 << 58, 0);
    assert_eq!(judge(s.open().as_ref(), 0x500, 8), [KEPT; 8]);
}

#[test]
fn only_what_is_named_goes() {
    let only = |names: &[&str]| {
        let mut s = Synth::new((4, 17));
        s.settings = vec![("exclude", Value::List(names.iter().map(|n| (*n).to_owned()).collect()))];
        for (pfn, (count, owner)) in
            (0x500..).zip([(ALLOCATED | 1, GUEST), (ALLOCATED | 1, IO), (3 << 58, 0), (1 << 60 | 2 << 58, 0), (2 << 58, 0)])
        {
            s.info(pfn, count, owner);
        }
        judge(s.open().as_ref(), 0x500, 5)
    };
    let always = [Verdict::HWPOISON, Verdict::OFFLINE];
    let with = |a, b, c| [a, b, c, always[0], always[1]];
    assert_eq!(only(&["other-domain"]), with(OTHER, KEPT, KEPT));
    assert_eq!(only(&["special-domain"]), with(KEPT, SPECIAL, KEPT));
    assert_eq!(only(&["free"]), with(KEPT, KEPT, Verdict::FREE));
    assert_eq!(only(&[]), with(KEPT, KEPT, KEPT));
    assert_eq!(only(&["other-domain", "special-domain", "free"]), with(OTHER, SPECIAL, Verdict::FREE));
}

/// Frame of `alloc_bitmap`.
const BITMAP: u64 = 0x380;

/// Xen 3: all frames in use but 0x600 to 0x63f and 0x505; Xen's heap ends at 0x310 (`xenheap_phys_end`).
fn three(version: (u64, u64), heap_end: bool) -> Synth {
    let mut s = Synth::new(version);
    s.put(BITMAP, 0, &[0xff; FRAMES as usize / 8]);
    s.put(BITMAP, 0x600 / 8, &[0; 8]);
    s.put(BITMAP, 0x505 / 8, &[!(1 << 5)]);
    let image = s.symbols[0].1 - 0x10;
    s.symbols.push(("alloc_bitmap", image + 0x50));
    s.put(IMAGE / PAGE, 0x50, &(DIRECT + BITMAP * PAGE).to_le_bytes());
    if heap_end {
        s.symbols.push(("xenheap_phys_end", image + 0x60));
        s.put(IMAGE / PAGE, 0x60, &(0x310 * PAGE).to_le_bytes());
    }
    s
}

#[test]
fn xen_3() {
    // Until 3.3 `_domain` is the low half of the domain's address, whose direct map begins at a multiple of 4 GiB; since 3.4
    // its frame.
    for (version, scale, heap_end) in [((3, 2), 4096, true), ((3, 3), 4096, true), ((3, 4), 1, true), ((3, 4), 1, false)] {
        let mut s = three(version, heap_end);
        let frames = [
            (1, 0, KEPT),
            (1, DOM0 * scale, KEPT),
            (1, GUEST * scale, OTHER),
            (0, GUEST * scale, OTHER),         // on its way
            (0, DOM0 * scale, Verdict::FREE),  // the same of domain 0
            (0, GUEST * scale, Verdict::FREE), // not in use: the owner is stale
            (1 << 31, IO * scale, SPECIAL),
            (1 << 31 | 1, XEN * scale, SPECIAL),
        ];
        (0x500..).zip(frames).for_each(|(pfn, (count, owner, _))| s.info(pfn, count, owner));
        // Xen's heap keeps whatever it is told.
        s.info(0x30f, HEAP | 1, GUEST * scale);
        s.info(0x310, 1, GUEST * scale);
        // Free, but somebody has references: kept.
        s.info(0x601, 1, DOM0 * scale);
        let filter = s.open();
        assert_eq!(filter.findings(), [], "{version:?}");
        let expected: Vec<_> = frames.iter().map(|f| f.2).collect();
        assert_eq!(judge(filter.as_ref(), 0x500, 8), expected, "{version:?}");
        assert_eq!(judge(filter.as_ref(), 0x30f, 2), [KEPT, OTHER]);
        let mut free = [Verdict::FREE; 0x40];
        free[1] = KEPT;
        assert_eq!(judge(filter.as_ref(), 0x600, 0x40), free);
        // A block need not begin where a byte of the bitmap does.
        assert_eq!(judge(filter.as_ref(), 0x504, 2), [Verdict::FREE; 2]);
        assert_eq!(judge(filter.as_ref(), 0x63f, 2), [Verdict::FREE, KEPT]);
        assert_eq!(finding(filter.as_ref(), "contradicts itself").pages, 1);
    }
}

#[test]
fn what_is_on_its_way_in_xen_3_stays_if_free_pages_do() {
    let mut s = three((3, 2), true);
    s.settings = vec![("exclude", Value::List(vec!["other-domain".into()]))];
    s.info(0x500, 0, DOM0 * 4096);
    s.info(0x501, 0, GUEST * 4096);
    assert_eq!(judge(s.open().as_ref(), 0x500, 2), [KEPT, OTHER]);
}

#[test]
fn xen_3_without_its_bitmap_or_heap_keeps_all() {
    for (name, version) in [("alloc_bitmap", (3, 4)), ("alloc_bitmap", (3, 2)), ("xenheap_phys_end", (3, 3))] {
        let filter = three(version, true).without(name).open();
        assert!(finding(filter.as_ref(), &format!("has no SYMBOL({name})")).weakens);
        assert_eq!(filter.stages(), Stages::default());
        assert!(judge(filter.as_ref(), 0, FRAMES as u32).iter().all(|v| *v == KEPT));
    }
}

#[test]
fn a_bitmap_that_is_missing_keeps_its_frames() {
    let mut s = three((3, 2), true);
    s.info(0x501, 1, GUEST * 4096);
    s.pages.remove(&BITMAP);
    let filter = s.open();
    assert_eq!(judge(filter.as_ref(), 0x500, 0x200), [KEPT; 0x200]);
    assert_eq!(finding(filter.as_ref(), "cannot be read").pages, 0x200);
}
