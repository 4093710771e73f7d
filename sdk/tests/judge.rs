//! Struct pages made by hand, with the values that kernel headers give, and what must be said of them.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)] // a test that cannot go on fails

use coresift_sdk::linux::{Contradiction, Judgement, PageRules, StructPages, Vmcoreinfo};
use coresift_sdk::{Folio, Kernel, Machine, Verdict, testkit};

/// VMCOREINFO of Debian's 6.1 on x86_64, as far as pages go.
const LINUX_6_1: &str = "\
OSRELEASE=6.1.0-57-cloud-amd64
SIZE(page)=64
OFFSET(page.flags)=0
OFFSET(page._refcount)=52
OFFSET(page.mapping)=24
OFFSET(page.lru)=8
OFFSET(page._mapcount)=48
OFFSET(page.private)=40
OFFSET(page.compound_dtor)=16
OFFSET(page.compound_order)=17
OFFSET(page.compound_head)=8
LENGTH(zone.free_area)=11
NUMBER(PG_lru)=4
NUMBER(PG_private)=13
NUMBER(PG_swapcache)=10
NUMBER(PG_swapbacked)=19
NUMBER(PG_slab)=9
NUMBER(PG_hwpoison)=23
NUMBER(PG_head_mask)=65536
NUMBER(PAGE_BUDDY_MAPCOUNT_VALUE)=-129
NUMBER(HUGETLB_PAGE_DTOR)=2
NUMBER(PAGE_OFFLINE_MAPCOUNT_VALUE)=-257
";

/// The same of 6.12.
const LINUX_6_12: &str = "\
OSRELEASE=6.12.117
SIZE(page)=64
OFFSET(page.flags)=0
OFFSET(page._refcount)=52
OFFSET(page.mapping)=24
OFFSET(page.lru)=8
OFFSET(page._mapcount)=48
OFFSET(page.private)=40
OFFSET(page.compound_head)=8
LENGTH(zone.free_area)=11
NUMBER(PG_lru)=5
NUMBER(PG_private)=14
NUMBER(PG_swapcache)=10
NUMBER(PG_swapbacked)=17
NUMBER(PAGE_SLAB_MAPCOUNT_VALUE)=-184549376
NUMBER(PG_hwpoison)=20
NUMBER(PG_head_mask)=64
NUMBER(PAGE_BUDDY_MAPCOUNT_VALUE)=-268435456
NUMBER(PAGE_HUGETLB_MAPCOUNT_VALUE)=-201326592
NUMBER(PAGE_OFFLINE_MAPCOUNT_VALUE)=-251658240
NUMBER(PAGE_UNACCEPTED_MAPCOUNT_VALUE)=-150994944
";

const MEM_MAP: u64 = 0xffff_ea00_0000_0000;

/// One `struct page` of 64 bytes, little endian.
#[derive(Clone, Copy)]
struct Page {
    flags: u64,
    compound: u64,
    mapping: u64,
    private: u64,
    mapcount: i32,
    refcount: i32,
}

const USED: Page = Page { flags: 0, compound: 0, mapping: 0, private: 0, mapcount: -1, refcount: 1 };
const ANON: Page = Page { mapping: 0xffff_8880_1234_5601, ..USED };

impl Page {
    fn bytes(self) -> [u8; 64] {
        let mut b = [0u8; 64];
        for (at, word) in [(0, self.flags), (8, self.compound), (24, self.mapping), (40, self.private)] {
            b[at..at + 8].copy_from_slice(&word.to_le_bytes());
        }
        b[48..52].copy_from_slice(&self.mapcount.to_le_bytes());
        b[52..56].copy_from_slice(&self.refcount.to_le_bytes());
        b
    }
}

fn machine() -> Machine {
    Machine { arch: "x86_64".into(), word_bits: 64, page_shift: 12, ..Machine::default() }
}

fn rules(text: &str) -> PageRules {
    PageRules::find(&Vmcoreinfo::parse(text.as_bytes()), &machine()).unwrap()
}

/// Judges the first of some pages that begin at this PFN.
fn judge(text: &str, first_pfn: u64, pages: &[Page]) -> Judgement {
    let bytes: Vec<u8> = pages.iter().flat_map(|p| p.bytes()).collect();
    let slice = StructPages { bytes: &bytes, first_pfn, address: Some(MEM_MAP + first_pfn * 64) };
    rules(text).judge(&slice, 0)
}

fn class(text: &str, page: Page) -> Verdict {
    judge(text, 0x1000, &[page; 16]).class
}

/// A compound page of order 2 at PFN 0x1000 whose head is `head` and whose second page has these flags.
fn compound(head: Page, second: u64) -> [Page; 4] {
    let tail = Page { compound: (MEM_MAP + 0x1000 * 64) | 1, ..USED };
    [head, Page { flags: second, ..tail }, tail, tail]
}

#[test]
fn classes_of_single_pages() {
    let lru = 1 << 4;
    assert_eq!(class(LINUX_6_1, USED), Verdict::UNDECIDED);
    assert_eq!(class(LINUX_6_1, Page { flags: lru, mapping: 0xffff_8880_0000_1000, ..USED }), Verdict::CACHE);
    assert_eq!(class(LINUX_6_1, Page { flags: lru | 1 << 13, ..USED }), Verdict::PRIVATE_CACHE);
    assert_eq!(class(LINUX_6_1, Page { flags: lru, ..ANON }), Verdict::USER);
    assert_eq!(class(LINUX_6_1, Page { mapping: 0xffff_8880_0000_1003, ..USED }), Verdict::USER, "KSM");
    assert_eq!(class(LINUX_6_1, Page { mapping: 0xffff_8880_0000_1002, ..USED }), Verdict::UNDECIDED, "movable");
    assert_eq!(class(LINUX_6_1, Page { flags: 1 << 10 | 1 << 19, ..USED }), Verdict::CACHE, "in the swap cache");
    assert_eq!(class(LINUX_6_1, Page { flags: 1 << 10, ..USED }), Verdict::UNDECIDED, "PG_owner_priv_1, which is the same bit");
    assert_eq!(class(LINUX_6_1, Page { mapcount: -257, ..USED }), Verdict::OFFLINE);
    assert_eq!(class(LINUX_6_12, Page { mapcount: 0xf700_0000_u32.cast_signed(), ..USED }), Verdict::UNACCEPTED);
    assert_eq!(class(LINUX_6_12, Page { mapcount: 0xf100_0000_u32.cast_signed(), ..USED }), Verdict::OFFLINE);
    assert_eq!(
        class(LINUX_6_12, Page { mapcount: 0xf100_0003_u32.cast_signed(), ..USED }),
        Verdict::OFFLINE,
        "with a count below the type"
    );
}

#[test]
fn slab_is_kept_whatever_else_its_page_says() {
    // Since 6.2 struct slab lies over mapping (commit 5f17bdd of makedumpfile: pages were dropped as user memory).
    assert_eq!(class(LINUX_6_1, Page { flags: 1 << 9, ..ANON }), Verdict::UNDECIDED);
    assert_eq!(class(LINUX_6_1, Page { flags: 1 << 9 | 1 << 4, ..USED }), Verdict::UNDECIDED, "with PG_lru");
    assert_eq!(class(LINUX_6_12, Page { mapcount: 0xf500_0000_u32.cast_signed(), ..ANON }), Verdict::UNDECIDED);
    assert_eq!(class(LINUX_6_12, Page { mapcount: 0xf500_0020_u32.cast_signed(), ..ANON }), Verdict::UNDECIDED);
}

#[test]
fn free_blocks_have_an_order_that_can_be() {
    let free = |order, mapcount| Page { private: order, mapcount, refcount: 0, ..USED };
    let empty = Page { refcount: 0, ..USED };
    for (text, mark) in [(LINUX_6_1, -129), (LINUX_6_12, 0xf000_0000_u32.cast_signed())] {
        let mut block = [empty; 16];
        block[0] = free(4, mark);
        let judged = judge(text, 0x1000, &block);
        assert_eq!((judged.class, judged.order), (Verdict::FREE, 4));
        assert_eq!(judge(text, 0x1008, &block).contradiction, Some(Contradiction::FreeOrder), "not aligned");
        block[0] = free(11, mark);
        assert_eq!(judge(text, 0x1000, &block).contradiction, Some(Contradiction::FreeOrder), "LENGTH(zone.free_area) is 11");
        block[0] = free(u64::MAX, mark);
        assert_eq!(judge(text, 0x1000, &block).contradiction, Some(Contradiction::FreeOrder));
        block[0] = free(4, mark);
        block[8] = USED;
        assert_eq!(judge(text, 0x1000, &block).contradiction, Some(Contradiction::FreeInUse), "its second half is in use");
        let judged = judge(text, 0x1000, &[Page { refcount: 1, ..free(0, mark) }; 1]);
        assert_eq!((judged.class, judged.contradiction), (Verdict::UNDECIDED, Some(Contradiction::FreeInUse)));
    }
}

#[test]
fn a_match_on_a_head_covers_the_compound_page() {
    let head = Page { flags: 1 << 6, ..ANON };
    let judged = judge(LINUX_6_12, 0x1000, &compound(head, 2));
    assert_eq!((judged.class, judged.order), (Verdict::USER, 2));
    let hugetlb = Page { flags: 1 << 6, mapcount: 0xf400_0000_u32.cast_signed(), ..USED };
    let judged = judge(LINUX_6_12, 0x1000, &compound(hugetlb, 2));
    assert_eq!((judged.class, judged.order), (Verdict::USER, 2), "hugetlb");
    let kernel = Page { flags: 1 << 6, ..USED };
    assert_eq!(judge(LINUX_6_12, 0x1000, &compound(kernel, 2)), Judgement::NOTHING);
    // 6.1: order and destructor are bytes 17 and 16 of the second page.
    let mut bytes: Vec<u8> = compound(Page { flags: 1 << 16, ..USED }, 0).iter().flat_map(|p| p.bytes()).collect();
    (bytes[64 + 16], bytes[64 + 17]) = (2, 2);
    let slice = StructPages { bytes: &bytes, first_pfn: 0x1000, address: Some(MEM_MAP + 0x1000 * 64) };
    let judged = rules(LINUX_6_1).judge(&slice, 0);
    assert_eq!((judged.class, judged.order), (Verdict::USER, 2), "HUGETLB_PAGE_DTOR");
}

#[test]
fn tails_that_belong_elsewhere_are_evidence_against_their_head() {
    let head = Page { flags: 1 << 6, ..ANON };
    let good = compound(head, 2);
    let mut none = good;
    none[1].compound = 0;
    let mut other = good;
    other[3].compound = (MEM_MAP + 0x1004 * 64) | 1;
    for (pages, why) in [(none, "no tail behind it"), (other, "the last tail is another's"), (compound(head, 3), "order 3 of 4 pages")] {
        let mut pages = pages.to_vec();
        pages.extend([USED; 8]);
        let judged = judge(LINUX_6_12, 0x1000, &pages);
        assert_eq!((judged.class, judged.contradiction), (Verdict::UNDECIDED, Some(Contradiction::Compound)), "{why}");
    }
    let tail = judge(LINUX_6_12, 0x1001, &good[1..]);
    assert_eq!(tail, Judgement::NOTHING, "a tail says nothing of itself");
    let misaligned = judge(LINUX_6_12, 0x1002, &good);
    assert_eq!(misaligned.contradiction, Some(Contradiction::Compound));
}

#[test]
fn heads_are_found_by_pointer_and_by_mask() {
    let text = LINUX_6_12.replace("compound_head", "compound_info");
    let rules = rules(&text);
    let pfn_of = |address: u64| address.checked_sub(MEM_MAP).map(|a| a / 64);
    // Since 7.1: the mask that turns a tail's own address into its head's, here of order 9, with bit 0 set.
    let mask = !((512 * 64) - 1) | 1;
    for info in [(MEM_MAP + 0x1000 * 64) | 1, mask] {
        let page = Page { compound: info, ..USED }.bytes();
        let slice = StructPages { bytes: &page, first_pfn: 0x1155, address: Some(MEM_MAP + 0x1155 * 64) };
        assert_eq!(rules.head_of(&slice, 0, pfn_of), Some(0x1000));
    }
    let page = USED.bytes();
    let slice = StructPages { bytes: &page, first_pfn: 0x1155, address: Some(MEM_MAP + 0x1155 * 64) };
    assert_eq!(rules.head_of(&slice, 0, pfn_of), None, "no tail");
}

/// A hugetlb page of order `order` from PFN 0x1000 on whose struct pages all show the frame of the first 64 (5.18 to 7.0).
fn hugetlb_with_shared_frames(order: u64, head_flags: u64) -> Vec<Page> {
    let head = Page { flags: 1 << 6 | head_flags, mapcount: 0xf400_0000_u32.cast_signed(), ..USED };
    let tail = Page { compound: (MEM_MAP + 0x1000 * 64) | 1, ..USED };
    let frame = |i: u64| match i % 64 {
        0 => head,
        1 => Page { flags: order, ..tail },
        _ => tail,
    };
    (0..1 << order).map(frame).collect()
}

#[test]
fn a_head_shown_again_is_a_tail() {
    let pages = hugetlb_with_shared_frames(9, 0);
    let bytes: Vec<u8> = pages.iter().flat_map(|p| p.bytes()).collect();
    let slice = StructPages { bytes: &bytes, first_pfn: 0x1000, address: Some(MEM_MAP + 0x1000 * 64) };
    let rules = rules(LINUX_6_12);
    let head = rules.judge(&slice, 0);
    assert_eq!((head.class, head.order, head.contradiction), (Verdict::USER, 9, None));
    let pfn_of = |address: u64| address.checked_sub(MEM_MAP).map(|a| a / 64);
    assert_eq!(rules.head_of(&slice, 0, pfn_of), None, "the head itself");
    for again in (64..512).step_by(64) {
        assert_eq!(rules.judge(&slice, again), Judgement::NOTHING, "entry {again}");
        assert_eq!(rules.head_of(&slice, again, pfn_of), Some(0x1000), "entry {again}");
    }
    let broken = hugetlb_with_shared_frames(9, 1 << 20);
    assert_eq!(judge(LINUX_6_12, 0x1000, &broken).poisoned, Some(9));
    assert_eq!(judge(LINUX_6_12, 0x1040, &broken[64..]).poisoned, Some(0), "the copy has its flags");
}

#[test]
fn a_compound_page_of_unknown_length_is_no_contradiction() {
    let text: String = LINUX_6_1.lines().filter(|l| !l.contains("compound_order")).map(|l| format!("{l}\n")).collect();
    let head = Page { flags: 1 << 16, ..ANON };
    let judged = judge(&text, 0x1000, &compound(head, 2));
    assert_eq!((judged.class, judged.contradiction), (Verdict::UNDECIDED, None));
}

#[test]
fn broken_pages_are_told_of_heads_and_tails() {
    let poison = 1 << 20;
    assert_eq!(judge(LINUX_6_12, 0x1000, &[Page { flags: poison, ..USED }; 2]).poisoned, Some(0));
    let tail = Page { flags: poison, compound: MEM_MAP | 1, ..USED };
    assert_eq!(judge(LINUX_6_12, 0x1001, &[tail]).poisoned, Some(0));
    let huge = judge(LINUX_6_12, 0x1000, &compound(Page { flags: 1 << 6 | poison, ..ANON }, 2));
    assert_eq!((huge.class, huge.order, huge.poisoned), (Verdict::USER, 2, Some(0)), "of a huge page only the page itself");
    let hugetlb = Page { flags: 1 << 6 | poison, mapcount: 0xf400_0000_u32.cast_signed(), ..USED };
    assert_eq!(judge(LINUX_6_12, 0x1000, &compound(hugetlb, 2)).poisoned, Some(2), "hugetlbfs does not say which");
}

#[test]
fn a_user_page_has_an_anon_vma() {
    let judged = judge(LINUX_6_12, 0x1000, &[Page { mapping: 1, ..USED }; 2]);
    assert_eq!((judged.class, judged.contradiction), (Verdict::UNDECIDED, Some(Contradiction::Anonymous)));
}

#[test]
fn the_width_of_the_order_is_the_distance_to_its_neighbour() {
    // include/linux/mm_types.h of 4.5 to 4.15, 64 bits: unsigned int compound_dtor; unsigned int compound_order.
    let text = LINUX_6_1.replace("compound_dtor)=16", "compound_dtor)=40").replace("compound_order)=17", "compound_order)=44");
    let machine = Machine { big_endian: true, ..machine() };
    let rules = PageRules::find(&Vmcoreinfo::parse(text.as_bytes()), &machine).unwrap();
    let mut bytes = vec![0u8; 4 * 64];
    bytes[0..8].copy_from_slice(&(1u64 << 16).to_be_bytes());
    bytes[24..32].copy_from_slice(&0xc000_0000_0000_1001_u64.to_be_bytes());
    for tail in 1..4 {
        bytes[tail * 64 + 8..][..8].copy_from_slice(&(MEM_MAP | 1).to_be_bytes());
        bytes[tail * 64 + 48..][..4].copy_from_slice(&(-1i32).to_be_bytes());
    }
    bytes[48..52].copy_from_slice(&(-1i32).to_be_bytes());
    bytes[64 + 44..][..4].copy_from_slice(&2u32.to_be_bytes());
    let judged = rules.judge(&StructPages { bytes: &bytes, first_pfn: 0, address: Some(MEM_MAP) }, 0);
    assert_eq!((judged.class, judged.order), (Verdict::USER, 2));
}

#[test]
fn a_key_that_is_missing_never_makes_more_pages_go() {
    let pages: Vec<Page> = {
        let free = Page { private: 1, mapcount: -129, refcount: 0, ..USED };
        let mut list = vec![USED, ANON, Page { flags: 1 << 4, ..USED }, Page { flags: 1 << 4 | 1 << 13, ..USED }];
        list.extend([Page { flags: 1 << 9, ..ANON }, Page { flags: 1 << 10, ..USED }, free, Page { refcount: 0, ..USED }]);
        list.extend(compound(Page { flags: 1 << 16, ..ANON }, 0));
        list
    };
    let bytes: Vec<u8> = pages.iter().flat_map(|p| p.bytes()).collect();
    let slice = StructPages { bytes: &bytes, first_pfn: 0x1000, address: None };
    let excluded = |text: &str| -> Vec<usize> {
        let Ok(rules) = PageRules::find(&Vmcoreinfo::parse(text.as_bytes()), &machine()) else { return Vec::new() };
        let mut gone = Vec::new();
        let known = rules.decidable();
        let add = |gone: &mut Vec<usize>, i: usize, n: usize| gone.extend(i..(i + n).min(pages.len()));
        let found = std::cell::RefCell::new(&mut gone);
        rules.judge_all(
            &slice,
            |i, class| {
                if known.contains(class) {
                    add(&mut found.borrow_mut(), i, 1)
                }
            },
            |i, judged| {
                if known.contains(judged.class) {
                    add(&mut found.borrow_mut(), i, 1 << judged.order);
                }
                1
            },
        );
        gone.sort_unstable();
        gone.dedup();
        gone
    };
    let all = excluded(LINUX_6_1);
    assert!(all.contains(&1) && all.contains(&2) && all.contains(&3) && all.contains(&6) && !all.contains(&4), "{all:?}");
    for line in LINUX_6_1.lines() {
        let without = excluded(&LINUX_6_1.replace(&format!("{line}\n"), ""));
        assert!(without.iter().all(|i| all.contains(i)), "without {line}: {without:?}, with it {all:?}");
    }
}

#[test]
fn a_kernel_newer_than_the_rules_is_judged_by_its_exports_and_says_so() {
    let new = LINUX_6_12.replace("OSRELEASE=6.12.117", "OSRELEASE=8.1.0");
    let rules = rules(&new);
    assert!(rules.notes()[0].text.contains("newer than the rules"), "{:?}", rules.notes());
    assert_eq!(rules.decidable(), self::rules(LINUX_6_12).decidable());
    assert_eq!(class(&new, ANON), Verdict::USER);
    // One that renames the mark of tails again: what cannot be told from tails is kept, and named.
    let renamed = new.replace("OFFSET(page.compound_head)", "OFFSET(page.compound_something)");
    let unknown = self::rules(&renamed);
    assert!(!unknown.decidable().contains(Verdict::USER) && unknown.decidable().contains(Verdict::FREE));
    assert!(unknown.notes().iter().any(|gap| gap.class == Verdict::USER && gap.text.contains("compound_head")), "{:?}", unknown.notes());
}

#[test]
fn a_plugin_finds_the_folio_of_a_page_through_the_kernel() {
    let text = LINUX_6_12.as_bytes().to_vec();
    let machine = Machine { vmcoreinfo: text, ..machine() };
    let mut pages = vec![USED; 0x1010];
    pages[0x1000..0x1004].copy_from_slice(&compound(Page { flags: 1 << 6, ..ANON }, 2));
    let bytes: Vec<u8> = pages.iter().flat_map(|p| p.bytes()).collect();
    let host = testkit::WithKernel {
        memory: vec![(MEM_MAP, bytes), (0xffff_ffff_8100_0000, b"stamp".to_vec())],
        symbols: vec![("acme_stamp".into(), 0xffff_ffff_8100_0000)],
        mem_map: (MEM_MAP, 64),
    };
    let kernel = Kernel::of(&host.host(), &machine).unwrap();
    let rules = PageRules::find(kernel.info(), &machine).unwrap();
    assert_eq!(kernel.folio(0x1002, &rules).unwrap(), Folio { head: 0x1000, order: 2 });
    assert_eq!(kernel.folio(0x1000, &rules).unwrap(), Folio { head: 0x1000, order: 2 });
    assert_eq!(kernel.folio(0x1005, &rules).unwrap(), Folio { head: 0x1005, order: 0 });
    assert!(kernel.folio(0x2000, &rules).is_err(), "no such page");
    assert_eq!(kernel.pfn(MEM_MAP + 0x1002 * 64), Some(0x1002));
    let mut stamp = [0u8; 5];
    kernel.read(kernel.symbol("acme_stamp").unwrap(), &mut stamp).unwrap();
    assert_eq!((&stamp, kernel.symbol("acme_other")), (b"stamp", None));
    let e = kernel.read(0xffff_ffff_8100_0003, &mut stamp).unwrap_err();
    assert!(e.message.contains("0xffffffff81000005"), "{}", e.message);
}
