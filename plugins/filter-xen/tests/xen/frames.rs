//! Machines whose frames have other numbers in the frame table, and ways to Xen's page tables.

use coresift_sdk::{Stages, Value, Verdict};

use crate::synth::{ALLOCATED, DIRECT, DOMAINS, PAGE, Synth, TABLE_VIRT, TOP, finding, judge};

const KEPT: Verdict = Verdict::UNDECIDED;
const OTHER: Verdict = Verdict::plugin_class(0);
const GUEST: u32 = DOMAINS as u32 + 1;

/// The last 2 MiB of the machine's 8 lie at 64 GiB, but stand behind the others in the direct map and the frame table.
fn with_hole() -> Synth {
    let mut s = Synth::bare((4, 17));
    (0..3).for_each(|i| s.map(DIRECT + (i << 21), i << 21, 1));
    s.map(DIRECT + (3 << 21), HIGH * PAGE, 1);
    for pfn in 0x600..0x800 {
        let page = s.pages.remove(&pfn).unwrap();
        s.pages.insert(HIGH + pfn - 0x600, page);
    }
    s.info(0x610, ALLOCATED | 1, GUEST);
    s.info(0x611, 3 << 58, 0);
    s
}

const HIGH: u64 = 1 << 24;

#[test]
fn the_direct_map_says_which_entry_a_frame_has() {
    let filter = with_hole().open();
    assert!(!finding(filter.as_ref(), "direct map").weakens);
    assert_eq!(judge(filter.as_ref(), HIGH + 0xf, 4), [KEPT, OTHER, Verdict::FREE, KEPT]);
    // No memory: no entry, and nothing is missing.
    assert_eq!(judge(filter.as_ref(), 0x60f, 4), [KEPT; 4]);
    // A block with both.
    assert_eq!(judge(filter.as_ref(), HIGH - 2, 0x13)[2 + 0x10], OTHER);
    assert_eq!(filter.findings().len(), 1);
}

#[test]
fn a_frame_that_is_mapped_twice_is_kept() {
    let mut s = with_hole();
    // A damaged entry: behind the machine's end it maps frames of the first 2 MiB again.
    s.map(DIRECT + (9 << 21), 0, 1);
    s.info(0x10, ALLOCATED | 1, GUEST);
    s.info(0x5f0, ALLOCATED | 1, GUEST);
    let filter = s.open();
    assert_eq!(judge(filter.as_ref(), 0x10, 1), [KEPT]);
    assert_eq!(judge(filter.as_ref(), 0x5f0, 1), [OTHER]);
    assert_eq!(judge(filter.as_ref(), HIGH + 0x10, 1), [OTHER]);
    assert_eq!(finding(filter.as_ref(), "cannot be read").pages, 1);
}

#[test]
fn no_direct_map_no_verdicts() {
    let filter = Synth::bare((4, 17)).open();
    assert!(finding(filter.as_ref(), "direct map cannot be read").weakens);
    assert_eq!(filter.stages(), Stages::default());
}

#[test]
fn xens_tables_are_found_by_a_cpu_or_a_setting_where_no_note_says_the_place() {
    let guest = |mut s: Synth| {
        s.info(0x500, ALLOCATED | 1, GUEST);
        judge(s.open().as_ref(), 0x500, 1)
    };
    // A crash note before 3.3 has one word behind the eight.
    let old = || {
        let mut s = Synth::new((4, 17));
        s.tail = vec![0x2ff];
        s
    };
    assert!(finding(old().open().as_ref(), "page tables cannot be read").weakens);
    let mut s = old();
    s.settings = vec![("phys_start", Value::Size(0x20_0000))];
    assert_eq!(guest(s), [OTHER]);
    // A CPU used a table of a domain, with Xen's part in it.
    let mut s = old();
    let copy = s.pages[&TOP].clone();
    s.pages.insert(0x2f0, copy);
    s.cr3 = 0x2f0 << 12 | 0x18;
    assert_eq!(guest(s), [OTHER]);
    // The note is wrong, the CPU right.
    let mut s = Synth::new((4, 17));
    s.tail = vec![0x66_6000, 0x2ff];
    s.cr3 = TOP * PAGE;
    assert_eq!(guest(s), [OTHER]);
}

#[test]
fn without_its_symbol_the_frame_table_is_where_the_version_has_it() {
    let mut s = Synth::new((4, 3)).without("frame_table");
    s.info(0x500, ALLOCATED | 1, GUEST);
    assert_eq!(judge(s.open().as_ref(), 0x500, 1), [OTHER]);
    // Before 4.3 it was elsewhere.
    let s = Synth::new((4, 2)).without("frame_table");
    assert!(finding(s.open().as_ref(), "no domain 0").weakens);
    let mut s = Synth::new((4, 2)).without("frame_table");
    (0..16).for_each(|i| s.map(0xffff_82f6_0000_0000 + i * PAGE, (0x400 + i) * PAGE, 0));
    s.info(0x500, ALLOCATED | 1, GUEST);
    assert_eq!(judge(s.open().as_ref(), 0x500, 1), [OTHER]);
    assert_eq!(TABLE_VIRT, 0xffff_82e0_0000_0000);
}

#[test]
fn domain_0_must_be_found() {
    // Without dom_xen nothing is amiss.
    let mut s = Synth::new((4, 17)).without("dom_xen");
    s.info(0x500, ALLOCATED | 1, GUEST);
    assert_eq!(judge(s.open().as_ref(), 0x500, 1), [OTHER]);
    let s = Synth::new((4, 17)).without("domain_list");
    assert!(finding(s.open().as_ref(), "no SYMBOL(domain_list)").weakens);
    // It need not be the first.
    let behind = |next: u64| {
        let mut s = Synth::new((4, 17));
        s.put(0x200, 0x10, &(DIRECT + (DOMAINS + 1) * PAGE).to_le_bytes());
        s.put(DOMAINS + 1, 136, &next.to_le_bytes());
        s.info(0x500, ALLOCATED | 1, GUEST);
        s
    };
    assert_eq!(judge(behind(DIRECT + DOMAINS * PAGE).open().as_ref(), 0x500, 1), [OTHER]);
    // The list ends, is a circle, leads nowhere, or cannot be walked.
    let lists = [behind(0), behind(DIRECT + (DOMAINS + 1) * PAGE), behind(u64::MAX - 100)];
    let unknown = behind(DIRECT + DOMAINS * PAGE).without("OFFSET(domain.next_in_list)");
    for s in lists.into_iter().chain([unknown]) {
        assert!(finding(s.open().as_ref(), "there is no domain 0 in the list of domains that begins at 0xffff830000301000").weakens);
    }
    // A damaged number.
    let mut s = behind(DIRECT + DOMAINS * PAGE);
    s.put(DOMAINS, 0, &[0, 1]);
    assert!(finding(s.open().as_ref(), "no domain 0").weakens);
}

#[test]
fn the_direct_map_may_have_pages_of_1_gib_and_of_4_kib() {
    let guest = |map: &dyn Fn(&mut Synth)| {
        let mut s = Synth::bare((4, 17));
        map(&mut s);
        s.info(0x500, ALLOCATED | 1, GUEST);
        let filter = s.open();
        assert_eq!(filter.findings(), []);
        judge(filter.as_ref(), 0x4ff, 3)
    };
    assert_eq!(guest(&|s| s.map(DIRECT, 0, 2)), [KEPT, OTHER, KEPT]);
    assert_eq!(guest(&|s| (0..0x800).for_each(|pfn| s.map(DIRECT + pfn * PAGE, pfn * PAGE, 0))), [KEPT, OTHER, KEPT]);
}

#[test]
fn members_are_where_the_note_says() {
    let mut s = Synth::new((4, 17));
    s.numbers.iter_mut().filter(|(key, _)| *key == "OFFSET(domain.domain_id)").for_each(|(_, at)| *at = 0x40);
    for (i, id) in (0..).zip([0u16, 1, 0x7ff2]) {
        s.put(DOMAINS + i, 0, &[9, 0]);
        s.put(DOMAINS + i, 0x40, &id.to_le_bytes());
    }
    s.info(0x500, ALLOCATED | 1, GUEST);
    s.info(0x501, ALLOCATED | 1, DOMAINS as u32);
    assert_eq!(judge(s.open().as_ref(), 0x500, 2), [OTHER, KEPT]);
}

#[test]
fn symbols_that_no_note_has_may_come_from_the_user() {
    let mut s = Synth::new((4, 17));
    s.info(0x500, ALLOCATED | 1, GUEST);
    let text = s.notes();
    let own = Synth { symbols: Vec::new(), numbers: Vec::new(), ..Synth::new((4, 17)) };
    let machine = coresift_sdk::Machine { vmcoreinfo: text, ..own.machine() };
    assert_eq!(judge(s.open_as(machine).as_ref(), 0x500, 1), [OTHER]);
}
