//! Domain 0's page frames within the vmcore of a hypervisor.

use coresift_sdk::{Extent, ExtentKind, Reader, Result};

use crate::synth::{INVALID, PAGE, Wire, crash_notes, longs, noise, open_with, pages, read, text, vmcore, warns};

const FOREIGN: u64 = 1 << 63;
const IDENTITY: u64 = 1 << 62;

/// The machine's memory: 64 frames from 0x100 on, then half a frame. The list stands in frames 0x100 to 0x106.
const FIRST: u64 = 0x100;
const FRAMES: u64 = 64;
const TOP: u64 = 0x100;
const MID: u64 = 0x101;
const MID_MISSING: u64 = 0x102;
const LEAF: u64 = 0x103;
const LEAF_MISSING: u64 = 0x104;
const LAST_LEAF: u64 = 0x105;

struct Host {
    memory: Vec<u8>,
    cr3: u64,
    extra: Vec<u8>,
}

impl Host {
    /// Lists as Linux builds them: pages without an entry stand for all that is missing.
    fn new(first: &[u64], last: &[u64]) -> Self {
        let mut host = Self { memory: noise(7, (FRAMES as usize) * PAGE + PAGE / 2), cr3: 0, extra: Vec::new() };
        let filled = |with: u64, some: &[(usize, u64)]| {
            let mut table = vec![with; 512];
            some.iter().for_each(|(i, v)| table[*i] = *v);
            table
        };
        host.put(TOP, &filled(MID_MISSING, &[(0, MID)]));
        host.put(MID, &filled(LEAF_MISSING, &[(0, LEAF), (511, LAST_LEAF)]));
        host.put(MID_MISSING, &[LEAF_MISSING; 512]);
        host.put(LEAF, &[first, &vec![INVALID; 512 - first.len()]].concat());
        host.put(LEAF_MISSING, &[INVALID; 512]);
        host.put(LAST_LEAF, &[last, &vec![INVALID; 512 - last.len()]].concat());
        host
    }

    fn put(&mut self, mfn: u64, table: &[u64]) {
        let at = (mfn - FIRST) as usize * PAGE;
        self.memory[at..at + PAGE].copy_from_slice(&longs(table));
    }

    fn frame(&self, mfn: u64) -> Vec<u8> {
        let at = (mfn - FIRST) as usize * PAGE;
        let mut page = self.memory[at..self.memory.len().min(at + PAGE)].to_vec();
        page.resize(PAGE, 0);
        page
    }

    fn bytes(&self) -> Vec<u8> {
        let notes = [crash_notes([self.cr3, 0xdead_d000], TOP), self.extra.clone()].concat();
        vmcore(&notes, &[(FIRST * PAGE as u64, self.memory.clone())])
    }

    fn open(&self) -> Result<Box<dyn Reader>> {
        open_with(self.bytes(), &[text("view", "dom0")])
    }
}

#[test]
fn pages_by_the_frame_list() {
    // PFNs 0 to 7: in order, backwards, another domain's, a device, a gap, the half frame, one that is not in the file.
    let half = FIRST + FRAMES;
    let host = Host::new(&[0x110, 0x111, 0x10f, 0x112 | FOREIGN, 4 | IDENTITY, INVALID, half, 0x9999], &[0x120, 0x121]);
    let bytes = host.bytes();
    let reader = host.open().unwrap();
    let got = pages(&bytes, reader.as_ref());
    let last = 511 * 512;
    let expected = [
        (0, Some(host.frame(0x110))),
        (1, Some(host.frame(0x111))),
        (2, Some(host.frame(0x10f))),
        (6, Some(host.frame(half))),
        (7, None),
        (last, Some(host.frame(0x120))),
        (last + 1, Some(host.frame(0x121))),
    ];
    assert_eq!(got.into_iter().collect::<Vec<_>>(), expected);
    let data = (bytes.len() - host.memory.len()) as u64;
    let at = |mfn: u64| data + (mfn - FIRST) * PAGE as u64;
    assert_eq!(
        reader.extents(),
        [
            Extent::mapped(0, 2, 0, at(0x110)),
            Extent::mapped(2, 1, 0, at(0x10f)),
            Extent::encoded(6, 1),
            Extent::absent(7, 1),
            Extent::mapped(last, 2, 0, at(0x120)),
        ]
    );
    assert!(warns(reader.as_ref(), "1 pages of domain 0 are memory of other domains"));
    assert!(!warns(reader.as_ref(), "frames are those of the host"));
    assert_eq!(read(reader.as_ref(), 3), None);
}

#[test]
fn only_linux_notes_are_kept() {
    let mut host = Host::new(&[0x110], &[]);
    let mut linux = Wire { big_endian: false, bytes: Vec::new() };
    linux.note("VMCOREINFO", 0, b"OSRELEASE=6.1.0\nPAGESIZE=4096\n");
    host.extra = linux.bytes.clone();
    let machine = host.open().unwrap().machine();
    // Readers that see Xen's notes take frames for the machine's; registers are the hypervisor's.
    assert_eq!(machine.notes, linux.bytes);
    assert_eq!((machine.cpus, machine.vmcoreinfo), (0, b"OSRELEASE=6.1.0\nPAGESIZE=4096\n".to_vec()));
    assert_eq!(machine.format, "Xen hypervisor vmcore, domain 0");
    host.extra.clear();
    assert!(host.open().unwrap().machine().vmcoreinfo.is_empty(), "the host looks for it in domain 0's memory");
}

#[test]
fn page_tables_of_domain_0() {
    // PFNs 0 to 4: level 4 (in use), 3, 2, 1 and a page; a device at PFN 5, which an entry of level 1 maps. Frame
    // 0x115 belongs to PFN 0x116, though PFN 0x115 has an identity entry.
    let frames = [0x110, 0x112, 0x114, 0x116, 0x118, IDENTITY];
    let mut list = [frames.to_vec(), vec![INVALID; 0x115 - 6]].concat();
    list.extend([IDENTITY | 0x115, 0x115]);
    let mut host = Host::new(&list, &[]);
    let flags = 0x67;
    let table = |entries: &[(usize, u64)]| {
        let mut table = vec![0; 512];
        entries.iter().for_each(|(i, mfn)| table[*i] = mfn << 12 | flags);
        table
    };
    host.put(0x110, &table(&[(511, 0x112)]));
    host.put(0x112, &table(&[(510, 0x114)]));
    host.put(0x114, &table(&[(8, 0x116)]));
    host.put(0x116, &table(&[(0, 0x118), (1, 5), (2, 0x115), (3, 0x777)]));
    host.cr3 = 0x110 << 12;
    let reader = host.open().unwrap();
    let got = |pfn: u64| read(reader.as_ref(), pfn).unwrap();
    assert_eq!(got(0), longs(&table(&[(511, 1)])));
    assert_eq!(got(1), longs(&table(&[(510, 2)])));
    assert_eq!(got(2), longs(&table(&[(8, 3)])));
    let mut last = table(&[(0, 4), (1, 5), (2, 0x116), (3, 0x777)]);
    last[3] &= !1;
    assert_eq!(got(3), longs(&last), "a page, a device, a page that has a device's number, nobody's");
    assert_eq!(got(4), host.frame(0x118));
    let encoded: Vec<_> = reader.extents().into_iter().filter(|e| e.kind == ExtentKind::ENCODED).collect();
    assert_eq!(encoded, [Extent::encoded(0, 4)]);

    let raw = open_with(host.bytes(), &[text("view", "dom0"), text("page_tables", "machine")]).unwrap();
    assert_eq!(read(raw.as_ref(), 3), Some(host.frame(0x116)));
    host.cr3 = 0x7_7000;
    assert!(warns(host.open().unwrap().as_ref(), "no CPU was in domain 0"));
}

#[test]
fn what_has_no_domain_0_is_refused() {
    let host = Host::new(&[0x110], &[]);
    let refused = |notes: Vec<u8>| {
        let bytes = vmcore(&notes, &[(FIRST * PAGE as u64, host.memory.clone())]);
        let error = open_with(bytes, &[text("view", "dom0")]).map(drop).unwrap_err();
        assert!(error.hint.contains("leave out view"), "{error:?}");
        error.message
    };
    assert!(refused(crash_notes([0, 0], 0)).contains("no note of the hypervisor says"));
    assert!(refused(crash_notes([0, 0], u64::MAX)).contains("no note of the hypervisor says"));
    assert!(refused(crash_notes([0, 0], 0x5_0000)).contains("is not in the file"));
    assert!(refused(crash_notes([0, 0], LEAF_MISSING)).contains("has no page in it"));
}

#[test]
fn the_crash_note_of_older_versions() {
    // Until Xen 3.3 the frame is the ninth long and the last.
    let host = Host::new(&[0x110], &[]);
    let mut w = Wire { big_endian: false, bytes: Vec::new() };
    w.note("Xen", 0x100_0001, &longs(&[3, 2, 0, 0, 0, 0, 0, 0, TOP]));
    let bytes = vmcore(&w.bytes, &[(FIRST * PAGE as u64, host.memory.clone())]);
    let reader = open_with(bytes, &[text("view", "dom0")]).unwrap();
    assert_eq!(read(reader.as_ref(), 0), Some(host.frame(0x110)));
}

#[test]
fn a_part_of_the_list_that_is_missing_is_a_warning() {
    let mut host = Host::new(&[0x110], &[]);
    host.put(MID, &[&[LEAF, 0x8888, 0x7777], &[LEAF_MISSING; 509][..]].concat());
    let reader = host.open().unwrap();
    assert!(warns(reader.as_ref(), "2 pages of domain 0's frame list cannot be read"));
    assert_eq!(read(reader.as_ref(), 0), Some(host.frame(0x110)));
}

#[test]
fn a_list_that_leads_to_itself_ends() {
    let mut host = Host::new(&[0x110], &[]);
    host.put(TOP, &[TOP; 512]);
    let begun = std::time::Instant::now();
    let reader = host.open().unwrap();
    // 2^27 entries of one page: no more are believed than the file has pages, 64 times, and 2^20.
    assert!(reader.extents().iter().map(|e| e.pages).sum::<u64>() <= 64 * 65 + (1 << 20));
    assert!(warns(reader.as_ref(), "longer than the machine can have memory"));
    assert!(begun.elapsed() < std::time::Duration::from_secs(20), "{:?}", begun.elapsed());
}
