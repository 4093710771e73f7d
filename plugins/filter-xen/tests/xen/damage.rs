//! What is missing or damaged keeps pages; what is no hypervisor is left alone.

use coresift_sdk::{Stages, Verdict};

use crate::synth::{ALLOCATED, DOMAINS, FRAMES, Synth, TABLE, TOP, finding, judge, try_judge};

const KEPT: Verdict = Verdict::UNDECIDED;
const OTHER: Verdict = Verdict::plugin_class(0);
const GUEST: u32 = DOMAINS as u32 + 1;

/// The guest has frames 0x500 to 0x5ff, 0x600 to 0x6ff are free.
fn machine() -> Synth {
    let mut s = Synth::new((4, 17));
    s.infos(0x500..0x600, ALLOCATED | 1, GUEST);
    s.infos(0x600..0x700, 3 << 58, 0);
    s
}

#[test]
fn other_machines_are_left_alone() {
    let mut s = machine();
    s.hypervisor = false;
    let filter = s.open();
    assert_eq!(filter.findings(), []);
    assert_eq!(filter.stages(), Stages::default());
    assert_eq!(judge(filter.as_ref(), 0x500, 0x200), [KEPT; 0x200]);
    assert_eq!(filter.excludes().0, 0);
}

#[test]
fn an_unreadable_part_of_the_frame_table_keeps_its_pages() {
    let mut s = machine();
    // A page of it has 128 entries: these are 0x580 to 0x5ff.
    s.pages.remove(&(TABLE + 0x580 / 128));
    // Of pages that are not in the input nobody needs to know.
    s.pages.remove(&0x5ff);
    let filter = s.open();
    let verdicts = judge(filter.as_ref(), 0x500, 0x200);
    assert_eq!(verdicts[..0x80], [OTHER; 0x80]);
    assert_eq!(verdicts[0x80..0x100], [KEPT; 0x80]);
    assert_eq!(verdicts[0x100..], [Verdict::FREE; 0x100]);
    let found = finding(filter.as_ref(), "page_info cannot be read");
    assert_eq!((found.pages, found.weakens), (0x7f, true));
}

#[test]
fn each_thing_that_is_missing_is_named_and_keeps_all() {
    let named = [
        ("pgd_l4", "SYMBOL(pgd_l4)"),
        ("SIZE(page_info)", "SIZE(page_info)"),
        ("OFFSET(page_info.count_info)", "OFFSET(page_info.count_info)"),
        ("OFFSET(page_info._domain)", "OFFSET(page_info._domain)"),
        ("OFFSET(domain.domain_id)", "OFFSET(domain.domain_id)"),
    ];
    for (name, says) in named {
        let filter = machine().without(name).open();
        assert!(finding(filter.as_ref(), &format!("VMCOREINFO_XEN has no {says}")).weakens);
        assert_eq!(judge(filter.as_ref(), 0x500, 0x200), [KEPT; 0x200]);
    }
    let s = Synth { symbols: Vec::new(), ..machine() };
    assert!(finding(s.open().as_ref(), "no note VMCOREINFO_XEN").weakens);
    let s = Synth { arch: "aarch64", ..machine() };
    assert!(finding(s.open().as_ref(), "known for x86_64 only").weakens);
    let s = machine();
    let machine = coresift_sdk::Machine { notes: Vec::new(), ..s.machine() };
    assert!(finding(s.open_as(machine).as_ref(), "no note VMCOREINFO_XEN").weakens);
    // Cut in the crash note, which comes before the symbols: those are given by the user.
    let s = super::damage::machine();
    let whole = s.notes();
    let machine = coresift_sdk::Machine { notes: whole[..400].to_vec(), vmcoreinfo: whole, ..s.machine() };
    assert!(finding(s.open_as(machine).as_ref(), "no crash note").weakens);
}

#[test]
fn impossible_numbers_are_refused() {
    for (key, value) in [("SIZE(page_info)", 8), ("SIZE(page_info)", 1 << 40), ("OFFSET(page_info.count_info)", 25)] {
        let mut s = machine();
        s.numbers.iter_mut().filter(|(k, _)| *k == key).for_each(|(_, v)| *v = value);
        assert!(finding(s.open().as_ref(), "impossible page_info").weakens);
    }
    let mut s = machine();
    s.numbers.iter_mut().filter(|(k, _)| *k == "OFFSET(domain.domain_id)").for_each(|(_, v)| *v = u64::MAX);
    assert!(finding(s.open().as_ref(), "struct domain").weakens);
}

#[test]
fn tables_that_lead_astray_are_not_used() {
    let mut s = machine();
    s.pages.remove(&TOP);
    assert!(finding(s.open().as_ref(), "page tables cannot be read").weakens);
    // Every entry leads back to the top: pgd_l4 is at another place then.
    let mut s = machine();
    (0..512).for_each(|i| s.put(TOP, i * 8, &(TOP << 12 | 0x63).to_le_bytes()));
    let filter = s.open();
    assert_eq!(judge(filter.as_ref(), 0x500, 0x200), [KEPT; 0x200]);
    assert_eq!(filter.findings().len(), 1);
}

#[test]
fn a_witness_that_is_judged_wrong_stops_the_filter() {
    // Xen's own top table is free, as the frame table says: the frame table is another's.
    let mut s = machine();
    s.info(TOP, 3 << 58, 0);
    let filter = s.open();
    assert!(finding(filter.as_ref(), "Xen's own page table (PFN 0x201) would be taken for Free").weakens);
    assert_eq!(judge(filter.as_ref(), 0x500, 0x200), [KEPT; 0x200]);
    // dom_xen has another number.
    let mut s = machine();
    s.put(DOMAINS + 2, 0, &[5, 0]);
    assert!(finding(s.open().as_ref(), "dom_xen leads to 0xffff830000302000, where no such domain is").weakens);
}

#[test]
fn pages_of_what_is_no_domain_are_kept() {
    let mut s = machine();
    s.info(0x501, ALLOCATED | 1, 0x77); // not Xen's heap
    s.info(0x502, ALLOCATED | 1, u32::MAX); // behind all memory
    s.info(0x503, 3 << 58 | 1, 0); // free, but referenced
    s.info(0x504, 2 << 58 | 1, 0); // offlined, but referenced
    s.info(0x505, 1 << 60 | ALLOCATED | 1, GUEST); // broken, but neither offlined nor about to be
    s.info(0x506, 1 << 60 | 3 << 58, 0); // the same, and free
    s.info(0x507, 1 << 60 | 2 << 58 | 1, 0); // offlined, but referenced
    let filter = s.open();
    assert_eq!(judge(filter.as_ref(), 0x500, 9), [OTHER, KEPT, KEPT, KEPT, KEPT, KEPT, KEPT, KEPT, OTHER]);
    let (ownerless, absurd) = (finding(filter.as_ref(), "is no domain"), finding(filter.as_ref(), "contradicts itself"));
    assert_eq!((ownerless.pages, absurd.pages, ownerless.weakens), (2, 5, false));
    // A number that no domain has.
    let mut s = machine();
    s.put(DOMAINS + 1, 0, &0x7ff4u16.to_le_bytes());
    s.infos(0x510..0x600, 0, 0);
    assert_eq!(judge(s.open().as_ref(), 0x500, 0x11), [KEPT; 0x11]);
}

#[test]
fn a_block_with_many_contradictions_is_kept() {
    let mut s = machine();
    s.infos(0x500..0x540, ALLOCATED | 1, 0x77);
    let filter = s.open();
    let why = try_judge(filter.as_ref(), 0x500, 0x200).unwrap_err().to_string();
    assert!(why.contains("64 of 512 struct page_info contradict themselves"), "{why}");
    // The next is believed.
    assert_eq!(judge(filter.as_ref(), 0x600, 0x100), [Verdict::FREE; 0x100]);
    assert_eq!(filter.findings(), []);
    let mut s = machine();
    s.infos(0x500..0x540, ALLOCATED | 1 << 60 | 1 << 58, 0);
    let why = try_judge(s.open().as_ref(), 0x500, 0x200).unwrap_err().to_string();
    assert!(why.contains("64 of 512 struct page_info say that their page is broken"), "{why}");
}

#[test]
fn memory_of_the_frame_table_that_was_never_used_keeps_its_pages() {
    // Xen fills entries without memory with zeros or ones (`init_frametable_chunk`).
    let mut s = machine();
    s.infos(0x700..0x708, 0, 0);
    s.infos(0x708..0x710, u64::MAX, u32::MAX);
    assert_eq!(judge(s.open().as_ref(), 0x700, 0x10), [KEPT; 0x10]);
}

/// A generator of numbers (xorshift64, Marsaglia 2003).
fn next(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

#[test]
fn damage_anywhere_takes_no_page_of_domain_0_along() {
    let dom0 = DOMAINS as u32;
    let mut state = 0x9e37_79b9_7f4a_7c15;
    let mut judged = 0;
    for round in 0..400 {
        let mut s = machine();
        s.infos(0x710..0x800, ALLOCATED | 1, dom0);
        let expected = judge(machine().open().as_ref(), 0, FRAMES as u32);
        // Bits of the image, the page tables and the domains; entries of the frame table are what they are.
        let frames = [0x200, 0x201, 0x210, 0x211, 0x212, 0x213, 0x214, 0x215, 0x216, 0x300, 0x301, 0x302];
        for _ in 0..1 + round % 8 {
            let pfn = frames[next(&mut state) as usize % frames.len()];
            let at = next(&mut state) as usize % 4096;
            // Mostly where something stands.
            let page = s.pages.get_mut(&pfn).unwrap();
            let at = page.iter().skip(at).position(|b| *b != 0).map_or(at, |n| at + n);
            page[at] ^= 1 << (next(&mut state) % 8);
        }
        let notes = s.notes();
        let mut damaged = notes.clone();
        if round % 4 == 0 {
            let at = next(&mut state) as usize % notes.len();
            damaged[at] ^= 1 << (next(&mut state) % 8);
            damaged.truncate(notes.len() - next(&mut state) as usize % 3 * 7);
        }
        let machine = coresift_sdk::Machine { notes: damaged, ..s.machine() };
        let filter = s.open_as(machine);
        let Ok(verdicts) = try_judge(filter.as_ref(), 0, FRAMES as u32) else { continue };
        // What the damage takes away is kept; no frame gets out that was in.
        if round % 4 != 0 {
            let more = verdicts.iter().zip(&expected).position(|(got, was)| got.excludes() && !was.excludes());
            assert_eq!(more, None, "round {round}");
        }
        judged += u32::from(verdicts.contains(&OTHER));
    }
    assert!(judged > 50, "{judged} of 400 rounds had verdicts");
}
