//! Page tables of a paravirtualised domain: walked through the reader's pages, by page frame.

use coresift_sdk::{ExtentKind, Reader, Value};

use crate::synth::{Context, Core, Kind, PAGE, longs, noise, open, open_with, pages, read, text};

/// Machine frame of a PFN in these tests; the other way round it never is another PFN of the domain.
fn mfn(pfn: u64) -> u64 {
    0x9000 - pfn
}

/// A frame that belongs to Xen.
const XENS: u64 = 0xf_0000;
/// Present, writable, accessed, dirty; and not executable.
const FLAGS: u64 = 0x8000_0000_0000_0063;
/// An address of the kernel's text, and one of the map of all RAM.
const TEXT: u64 = 0xffff_ffff_8100_0000;
const DIRECT: u64 = 0xffff_8880_0000_3000;

/// PFNs: the table of a running process, the kernel's own, one of a process that sleeps, far away.
const RUNNING: u64 = 2;
const OWN: u64 = 20;
const SLEEPING: u64 = 3000;
/// Level 3, 2 and 1 of the text; of the direct map; of the sleeper's own memory.
const OF_TEXT: [u64; 3] = [21, 22, 23];
const OF_DIRECT: [u64; 3] = [5, 6, 7];
const OF_SLEEPER: [u64; 3] = [3001, 3002, 3003];
/// Pages that are mapped.
const TEXT_PAGE: u64 = 40;
const DATA_PAGE: u64 = 41;
const SLEEPERS_PAGE: u64 = 3010;
/// Pages that are no tables, though something speaks for it.
const NO_TABLE: u64 = 31;
const LIKE_TOP: u64 = 30;
/// An address of the sleeper.
const USER: u64 = 0x40_0000;

fn index(address: u64, level: usize) -> usize {
    (address >> (12 + 9 * (level - 1)) & 511) as usize
}

fn entry(pfn: u64) -> u64 {
    mfn(pfn) << 12 | FLAGS
}

/// A PV domain with 4-level tables as Linux has them on Xen.
fn domain() -> Core {
    let mut tables: std::collections::BTreeMap<u64, Vec<u64>> = std::collections::BTreeMap::new();
    let mut map = |top: u64, address: u64, [l3, l2, l1]: [u64; 3], page: u64| {
        for (level, table, next) in [(4, top, l3), (3, l3, l2), (2, l2, l1), (1, l1, page)] {
            tables.entry(table).or_insert_with(|| vec![0; 512])[index(address, level)] = entry(next);
        }
    };
    for top in [RUNNING, OWN, SLEEPING] {
        map(top, TEXT, OF_TEXT, TEXT_PAGE);
        map(top, DIRECT, OF_DIRECT, DATA_PAGE);
    }
    map(SLEEPING, USER, OF_SLEEPER, SLEEPERS_PAGE);
    for top in [RUNNING, OWN, SLEEPING] {
        tables.get_mut(&top).unwrap()[256] = XENS << 12 | FLAGS;
        tables.get_mut(&top).unwrap()[270] = entry(NO_TABLE);
    }
    // What Xen's entries lead to is no table, and neither is a page near the kernel's that only has the same last entry.
    let mut like_top = vec![entry(TEXT_PAGE); 512];
    like_top[511] = entry(OF_TEXT[0]);
    tables.insert(LIKE_TOP, like_top);
    // A frame of another domain, a swapped page (not present), a frame number without the present bit.
    let direct = tables.get_mut(&OF_DIRECT[2]).unwrap();
    direct[100] = (XENS + 1) << 12 | FLAGS;
    direct[101] = 0x1234_5678_0000_0000 | 2;
    direct[102] = mfn(TEXT_PAGE) << 12;
    let pfns = (0..64).chain(2990..3020);
    let page = |pfn: u64| tables.get(&pfn).map_or_else(|| noise(pfn, PAGE), |t| longs(t));
    let context = Context { flags: 4, control: [0, 0, 0, mfn(RUNNING) << 12, 0, 0, 0, 0], ..Context::default() };
    Core { contexts: vec![context.bytes()], ..Core::new(Kind::Pv, pfns.map(|p| (p, mfn(p), page(p))).collect()) }
}

/// Walks from the top table at `pfn`, by page frames only. `Err` has the level and the entry that ends it.
fn walk(reader: &dyn Reader, top: u64, address: u64) -> Result<u64, (usize, u64)> {
    let mut pfn = top;
    for level in [4, 3, 2, 1] {
        let table = read(reader, pfn).ok_or((level, u64::MAX))?;
        let entry = u64::from_le_bytes(table[8 * index(address, level)..][..8].try_into().unwrap());
        if entry & 1 == 0 {
            return Err((level, entry));
        }
        assert_eq!(entry & !0x000f_ffff_ffff_f000, FLAGS, "flags are kept");
        pfn = entry >> 12 & 0xff_ffff_ffff;
    }
    Ok(pfn)
}

#[test]
fn the_tables_of_kernel_and_running_process_lead_to_page_frames() {
    let core = domain();
    let bytes = core.bytes();
    let reader = open(bytes.clone()).unwrap();
    for top in [RUNNING, OWN] {
        assert_eq!(walk(reader.as_ref(), top, TEXT), Ok(TEXT_PAGE));
        assert_eq!(walk(reader.as_ref(), top, DIRECT), Ok(DATA_PAGE));
    }
    let direct = DIRECT & !0x1f_ffff;
    assert_eq!(walk(reader.as_ref(), OWN, 0xffff_8000_0000_0000), Err((4, XENS << 12 | FLAGS & !1)), "Xen's own");
    assert_eq!(walk(reader.as_ref(), OWN, direct + (100 << 12)), Err((1, (XENS + 1) << 12 | FLAGS & !1)), "another domain's");
    assert_eq!(walk(reader.as_ref(), OWN, direct + (101 << 12)), Err((1, 0x1234_5678_0000_0002)), "swap entries stay");
    assert_eq!(walk(reader.as_ref(), OWN, direct + (102 << 12)), Err((1, mfn(TEXT_PAGE) << 12)), "not present: stays");

    // All else is mapped from the file as it is.
    let tables = [RUNNING, OWN].into_iter().chain(OF_TEXT).chain(OF_DIRECT);
    let mut encoded: Vec<u64> = tables.collect();
    encoded.sort_unstable();
    let extents = reader.extents();
    let of_kind = extents.iter().filter(|e| e.kind == ExtentKind::ENCODED).flat_map(|e| e.first_pfn..e.end_pfn());
    assert_eq!(of_kind.collect::<Vec<_>>(), encoded);
    let got = pages(&bytes, reader.as_ref());
    assert_eq!(got.len(), core.pages.len());
    for (pfn, _, bytes) in core.pages.iter().filter(|p| !encoded.contains(&p.0)) {
        assert_eq!(got[pfn].as_ref(), Some(bytes), "page {pfn}");
    }
}

#[test]
fn tables_of_sleeping_processes_on_demand() {
    let reader = open(domain().bytes()).unwrap();
    assert!(read(reader.as_ref(), SLEEPING) == domain().pages.iter().find(|p| p.0 == SLEEPING).map(|p| p.2.clone()));
    let reader = open_with(domain().bytes(), &[text("page_tables", "all")]).unwrap();
    assert_eq!(walk(reader.as_ref(), SLEEPING, USER), Ok(SLEEPERS_PAGE));
    assert_eq!(walk(reader.as_ref(), SLEEPING, TEXT), Ok(TEXT_PAGE));
}

#[test]
fn as_the_input_has_them() {
    let core = domain();
    let bytes = core.bytes();
    for core in [core.clone(), Core { kind: Kind::Hvm, ..core.clone() }, Core { narrow: true, ..core }] {
        // An HVM domain has its own page frames in its tables; with 32 bits the contexts mean something else.
        let settings: [(&str, Value); 1] = [text("page_tables", "machine")];
        let settings = if core.kind == Kind::Pv && !core.narrow { &settings[..] } else { &[] };
        let bytes = core.bytes();
        let reader = open_with(bytes.clone(), settings).unwrap();
        assert!(reader.extents().iter().all(|e| e.kind == ExtentKind::MAPPED));
        for (pfn, _, page) in &core.pages {
            assert_eq!(read(reader.as_ref(), *pfn).as_ref(), Some(page));
        }
    }
    let lost = Core { contexts: Vec::new(), ..domain() };
    let reader = open(lost.bytes()).unwrap();
    assert!(crate::synth::warns(reader.as_ref(), "no page tables could be found"));
    assert_ne!(lost.bytes(), bytes);
}

#[test]
fn large_entries_need_frames_in_order() {
    // 512 pages from PFN 512 on at frames 0x20000 on; the same from PFN 1024 on at frames that go down.
    let mut core = domain();
    for i in 0..512 {
        core.pages.push((512 + i, 0x2_0000 + i, noise(i, PAGE)));
        core.pages.push((1024 + i, 0x3_01ff - i, noise(i, PAGE)));
    }
    let large = FLAGS | 1 << 7;
    let l2 = core.pages.iter_mut().find(|p| p.0 == OF_DIRECT[1]).unwrap();
    l2.2[8 * 100..8 * 102].copy_from_slice(&longs(&[0x2_0000 << 12 | large, 0x3_0000 << 12 | large]));
    let reader = open(core.bytes()).unwrap();
    let table = read(reader.as_ref(), OF_DIRECT[1]).unwrap();
    assert_eq!(table[8 * 100..8 * 102], longs(&[512 << 12 | large, 0x3_0000 << 12 | large & !1]));
}

#[test]
fn tables_that_lead_to_themselves_end() {
    let mut core = domain();
    let top = core.pages.iter_mut().find(|p| p.0 == RUNNING).unwrap();
    top.2 = longs(&[entry(RUNNING); 512]);
    let reader = open(core.bytes()).unwrap();
    assert_eq!(read(reader.as_ref(), RUNNING), Some(longs(&[RUNNING << 12 | FLAGS; 512])));
}
