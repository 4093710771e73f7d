//! Every field stands where the format has it. The offsets are those of the C structures, worked out by hand from
//! makedumpfile's diskdump_mod.h and the comment on them in crash's diskdump.c, not from our code.

// clippy.toml allows these in test functions only, not in their helpers.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, dead_code)]

mod common;

use common::{Pages, Recorder, VMCOREINFO, dump, machine, note, plan, read, writer};
use coresift_sdk::{End, Machine, PackedBatch, PackedPage, Plan};

/// A file with fields in a byte order.
struct File {
    bytes: Vec<u8>,
    big_endian: bool,
}

impl File {
    fn of(plan: &Plan<'_>) -> Self {
        let mut sink = Recorder::default();
        writer().begin(plan, &mut sink).unwrap();
        Self { bytes: sink.file(), big_endian: plan.machine.big_endian }
    }
    fn int(&self, at: usize) -> u32 {
        let bytes = self.bytes[at..at + 4].try_into().unwrap();
        if self.big_endian { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) }
    }
    fn ints<const N: usize>(&self, at: usize) -> [u32; N] {
        std::array::from_fn(|i| self.int(at + 4 * i))
    }
    fn long_long(&self, at: usize) -> u64 {
        let bytes = self.bytes[at..at + 8].try_into().unwrap();
        if self.big_endian { u64::from_be_bytes(bytes) } else { u64::from_le_bytes(bytes) }
    }
    fn string(&self, at: usize) -> &str {
        let field = &self.bytes[at..at + 65];
        let end = field.iter().position(|&b| b == 0).unwrap();
        assert!(field[end..].iter().all(|&b| b == 0));
        std::str::from_utf8(&field[..end]).unwrap()
    }
}

fn pages() -> Pages {
    Pages { ram: vec![0, 1, 9, 0x13fd6], dumped: vec![1, 0x13fd6] }
}

/// Signature, version, and the six names of 65 bytes each from offset 12 on: the same in all layouts.
fn starts_as_it_should(file: &File, machine_name: &str) {
    assert_eq!(&file.bytes[..8], b"KDUMP   ");
    assert_eq!(file.int(8), 6);
    let names = [0, 1, 2, 3, 4, 5].map(|i| file.string(12 + 65 * i));
    assert_eq!(names, ["Linux", "db1", "6.1.0-57", "#1 SMP", machine_name, "(none)"]);
}

// Notes of `machine`: 12 + 8 ("CORE\0", padded) + 20 = 40 bytes of registers; 12 + 12 ("VMCOREINFO\0", padded) = 24, so
// the text is 64 bytes in; 33 bytes of text, padded to 36: 100 in all.
const TEXT: u64 = 64;
const NOTES: u64 = 100;

/// The 64-bit layouts: names end at 402; `struct timeval` aligned to 8, two `long`s.
fn has_the_64_bit_layout(file: &File, block: usize) {
    assert_eq!([file.long_long(408), file.long_long(416)], [0x6b0d_dee7, 0]);
    // INCOMPLETE | zstd, block_size
    assert_eq!(file.ints(424), [0x28, block as u32]);
    assert_eq!(file.int(432), 1, "sub_hdr_size");
    // max_mapnr, total_ram_blocks, device_blocks, written_blocks, current_cpu, nr_cpus
    assert_eq!(file.ints(440), [0x13fd7, 0, 0, 0, 0, 3]);

    let sub = block;
    assert_eq!(file.long_long(sub), 0x1234_5678, "phys_base");
    assert_eq!(file.ints(sub + 8), [31, 0], "dump_level, split");
    let longs: Vec<u64> = (16..104).step_by(8).map(|at| file.long_long(sub + at)).collect();
    let notes_at = block as u64 + 104;
    let text = [notes_at + TEXT, VMCOREINFO.len() as u64];
    // start_pfn, end_pfn | VMCOREINFO | notes | eraseinfo | start_pfn_64, end_pfn_64, max_mapnr_64
    assert_eq!(longs, [0, 0, text[0], text[1], notes_at, NOTES, 0, 0, 0, 0, 0x13fd7]);
}

#[test]
fn x86_64() {
    let machine = machine("x86_64", 62, 64, false);
    let pages = pages();
    let file = File::of(&plan(&machine, &pages));
    starts_as_it_should(&file, "x86_64");
    has_the_64_bit_layout(&file, 4096);
    // 0x13fd7 PFNs are 10235 bytes of bits: 3 blocks, twice.
    assert_eq!(file.int(436), 6);
    assert_eq!(&file.bytes[4096 + 104..][..100], machine.notes, "notes go in as they are");
    assert_eq!(&file.bytes[4096 + 104 + 64..][..33], VMCOREINFO);
    // Bitmaps in blocks 2 to 4 and 5 to 7.
    let (ram, dumped) = (2 * 4096, 5 * 4096);
    let set = |at: usize| (0..3 * 4096 * 8).filter(|bit| file.bytes[at + bit / 8] >> (bit % 8) & 1 == 1).collect::<Vec<_>>();
    assert_eq!(set(ram), [0, 1, 9, 0x13fd6]);
    assert!(set(dumped).is_empty(), "pages are marked as they come");
    // Two descriptors from block 8 on, behind them the zero page.
    assert_eq!(file.bytes.len(), 8 * 4096 + 2 * 24 + 4096);
}

#[test]
fn s390x_is_big_endian() {
    let machine = machine("s390x", 22, 64, true);
    let pages = pages();
    let file = File::of(&plan(&machine, &pages));
    starts_as_it_should(&file, "s390x");
    has_the_64_bit_layout(&file, 4096);
    assert_eq!(&file.bytes[428..432], [0, 0, 0x10, 0], "block_size in bytes");
}

#[test]
fn a_block_is_a_page_of_16_kib() {
    let machine = Machine { page_shift: 14, ..machine("aarch64", 183, 64, false) };
    let pages = pages();
    let file = File::of(&plan(&machine, &pages));
    starts_as_it_should(&file, "aarch64");
    has_the_64_bit_layout(&file, 16384);
    assert_eq!(file.int(436), 2);
    assert_eq!(file.bytes.len(), (1 + 1 + 2) * 16384 + 2 * 24 + 16384);
}

/// Both 32-bit layouts: names end at 402, `struct timeval` at 404 with two 4-byte `long`s.
fn has_the_32_bit_header(file: &File) {
    assert_eq!(file.ints(404), [0x6b0d_dee7, 0, 0x28, 4096, 1, 6, 0x13fd7, 0, 0, 0, 0, 3]);
}

#[test]
fn i386_packs_64_bit_fields_at_4_bytes() {
    let machine = machine("i686", 3, 32, false);
    let pages = pages();
    let file = File::of(&plan(&machine, &pages));
    starts_as_it_should(&file, "i686");
    has_the_32_bit_header(&file);
    let sub = 4096;
    // phys_base, dump_level, split, start_pfn, end_pfn
    assert_eq!(file.ints(sub), [0x1234_5678, 31, 0, 0, 0]);
    // off_t at 20, long at 28; off_t at 32, long at 40; off_t at 44, long at 52
    assert_eq!((file.long_long(sub + 20), file.int(sub + 28)), (4096 + 80 + TEXT, 33));
    assert_eq!((file.long_long(sub + 32), file.int(sub + 40)), (4096 + 80, 100));
    assert_eq!((file.long_long(sub + 44), file.int(sub + 52)), (0, 0));
    assert_eq!([56, 64, 72].map(|at| file.long_long(sub + at)), [0, 0, 0x13fd7]);
    assert_eq!(&file.bytes[sub + 80..][..100], machine.notes);
}

#[test]
fn arm_pads_64_bit_fields_to_8_bytes() {
    for (arch, elf_machine, big_endian) in [("armv7l", 40, false), ("ppc", 20, true), ("mips", 8, true)] {
        let machine = machine(arch, elf_machine, 32, big_endian);
        let pages = pages();
        let file = File::of(&plan(&machine, &pages));
        starts_as_it_should(&file, arch);
        has_the_32_bit_header(&file);
        let sub = 4096;
        assert_eq!(file.ints(sub), [0x1234_5678, 31, 0, 0, 0]);
        // off_t at 24, long at 32; off_t at 40, long at 48; off_t at 56, long at 64
        assert_eq!((file.long_long(sub + 24), file.int(sub + 32)), (4096 + 96 + TEXT, 33));
        assert_eq!((file.long_long(sub + 40), file.int(sub + 48)), (4096 + 96, 100));
        assert_eq!((file.long_long(sub + 56), file.int(sub + 64)), (0, 0));
        assert_eq!([72, 80, 88].map(|at| file.long_long(sub + at)), [0, 0, 0x13fd7]);
        assert_eq!(&file.bytes[sub + 96..][..100], machine.notes);
    }
}

#[test]
fn without_vmcoreinfo_a_32_bit_file_still_shows_its_layout() {
    // libkdumpfile takes the i386 layout if the packed offset and size are 0 or within the sub-header's blocks.
    for (arch, elf_machine, big_endian, is_packed) in [("i686", 3, false, true), ("armv7l", 40, false, false), ("ppc", 20, true, false)] {
        for notes in [Vec::new(), note("CORE", 1, &[9; 20], big_endian)] {
            let machine = Machine { notes, vmcoreinfo: Vec::new(), ..machine(arch, elf_machine, 32, big_endian) };
            let file = File::of(&plan(&machine, &Pages::default()));
            let (offset, size) = (file.long_long(4096 + 20), u64::from(file.int(4096 + 28)));
            let within = offset > 4096 && offset + size <= 8192;
            assert_eq!((offset, size) == (0, 0) || within, is_packed, "{arch}: {offset:#x} {size:#x}");
            // crash looks at the size too.
            assert_eq!(file.int(4096 + if is_packed { 28 } else { 32 }), 0, "{arch}");
        }
    }
}

#[test]
fn without_vmcoreinfo_a_64_bit_file_has_no_offset() {
    let machine = Machine { notes: Vec::new(), vmcoreinfo: Vec::new(), ..machine("x86_64", 62, 64, false) };
    let file = File::of(&plan(&machine, &Pages::default()));
    assert_eq!([32, 40, 48, 56].map(|at| file.long_long(4096 + at)), [0; 4]);
}

#[test]
fn vmcoreinfo_from_elsewhere_becomes_a_note() {
    let registers = note("CORE", 1, &[9; 17], false);
    // Even behind notes that end unaligned.
    for cut in [0, 3] {
        let notes = registers[..registers.len() - cut].to_vec();
        let machine = Machine { notes, ..machine("x86_64", 62, 64, false) };
        let file = File::of(&plan(&machine, &Pages::default()));
        let [text, text_len, notes_at, notes_len] = [32, 40, 48, 56].map(|at| file.long_long(4096 + at) as usize);
        assert_eq!(&file.bytes[text..text + text_len], VMCOREINFO);
        let expected = [registers.clone(), note("VMCOREINFO", 0, VMCOREINFO, false)].concat();
        assert_eq!(&file.bytes[notes_at..notes_at + notes_len], expected, "{cut} bytes short");
    }
}

#[test]
fn damaged_notes_go_in_as_they_are() {
    let mut bytes = note("VMCOREINFO", 0, VMCOREINFO, false);
    bytes[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
    for notes in [bytes.clone(), bytes[..5].to_vec(), vec![0; 7], vec![0xff; 64]] {
        let machine = Machine { notes: notes.clone(), vmcoreinfo: Vec::new(), ..machine("x86_64", 62, 64, false) };
        let file = File::of(&plan(&machine, &Pages::default()));
        assert_eq!(&file.bytes[4096 + 104..][..notes.len()], notes);
        assert_eq!(file.long_long(4096 + 40), 0, "size_vmcoreinfo");
    }
}

#[test]
fn many_notes_take_more_blocks() {
    let big = note("VMCOREDD", 0x700, &[5; 10000], false);
    let machine = Machine { notes: [big, note("VMCOREINFO", 0, VMCOREINFO, false)].concat(), ..machine("x86_64", 62, 64, false) };
    let pages = pages();
    let mut sink = Recorder::default();
    let content = [(1, PackedPage::zero()), (0x13fd6, PackedPage::zero())];
    dump(&plan(&machine, &pages), &content, 1, &End { incomplete: false, lost_pages: 0 }, &mut sink).unwrap();
    let file = File { bytes: sink.file(), big_endian: false };
    assert_eq!(file.int(432), 3, "10104 bytes of sub-header and big note, 60 more of VMCOREINFO");
    assert_eq!(&file.bytes[file.long_long(4096 + 32) as usize..][..33], VMCOREINFO);
    assert_eq!(read(&file.bytes).unwrap().there.len(), 2);
}

#[test]
fn what_the_input_does_not_tell_is_made_good() {
    let machine = Machine {
        arch: "riscv64".into(),
        word_bits: 64,
        page_shift: 12,
        max_pfn: 8,
        vmcoreinfo: b"OSRELEASE=6.12.117\nNUMBER(phys_base)=-400556032\n".to_vec(),
        ..Machine::default()
    };
    let file = File::of(&plan(&machine, &Pages::default()));
    // libkdumpfile ignores a utsname without release, version or machine.
    assert_eq!([0, 1, 2, 3, 4, 5].map(|i| file.string(12 + 65 * i)), ["Linux", "", "6.12.117", "unknown", "riscv64", ""]);
    assert_eq!(file.long_long(408), 1_700_000_000, "the time of writing");
    assert_eq!(file.int(460), 1, "crash warns about no CPUs");
    assert_eq!(file.long_long(4096), 0xffff_ffff_e820_0000, "phys_base");
}

#[test]
fn an_input_without_any_names_still_has_a_release() {
    let machine = Machine { arch: "s390x".into(), big_endian: true, word_bits: 64, page_shift: 12, max_pfn: 8, ..Machine::default() };
    let file = File::of(&plan(&machine, &Pages::default()));
    // libkdumpfile makes a version number of it.
    assert_eq!([0, 2, 3, 4].map(|i| file.string(12 + 65 * i)), ["Linux", "0.0.0-unknown", "unknown", "s390x"]);
    assert_eq!(file.long_long(4096), 0, "phys_base");
}

#[test]
fn names_are_cut_to_64_bytes_and_a_nul() {
    let mut machine = machine("x86_64", 62, 64, false);
    machine.utsname.nodename = "n".repeat(300);
    let file = File::of(&plan(&machine, &Pages::default()));
    assert_eq!(file.string(12 + 65), "n".repeat(64));
    starts_as_it_should(&File::of(&plan(&common::machine("x86_64", 62, 64, false), &Pages::default())), "x86_64");
}

#[test]
fn a_machine_of_64_tib_keeps_its_pfns() {
    let max_pfn = (1 << 34) + 1;
    // No set is that large here: the bitmaps are 2 GiB each, so only the header is looked at.
    let machine = Machine { page_shift: 16, max_pfn, ..machine("ppc64le", 21, 64, false) };
    let mut sink = HeadOnly::default();
    writer().begin(&plan(&machine, &Pages::default()), &mut sink).unwrap();
    let file = File { bytes: sink.0, big_endian: false };
    assert_eq!(file.int(440), u32::MAX, "max_mapnr");
    assert_eq!(file.int(436), 2 * ((1 << 15) + 1), "bitmap_blocks");
    assert_eq!(file.long_long(65536 + 96), max_pfn, "max_mapnr_64");
}

/// Keeps the first two blocks and throws the rest away.
#[derive(Default)]
struct HeadOnly(Vec<u8>);

impl coresift_sdk::Sink for HeadOnly {
    fn write_at(&mut self, offset: u64, pieces: &[&[u8]]) -> coresift_sdk::Result<()> {
        let bytes = pieces.concat();
        assert!(bytes.len() <= 1 << 20, "memory stays bounded");
        self.0.resize(2 << 16, 0);
        if let Some(room) = self.0.get_mut(offset as usize..offset as usize + bytes.len()) {
            room.copy_from_slice(&bytes);
        }
        Ok(())
    }
    fn reserve(&mut self, _: u64) -> coresift_sdk::Result<()> {
        Ok(())
    }
    fn positioned(&self) -> bool {
        true
    }
}

#[test]
fn a_part_of_a_split_set_has_only_its_own_descriptors() {
    let machine = machine("x86_64", 62, 64, false);
    let pages = Pages { ram: (0..0x13fd7).collect(), dumped: (0..0x13fd7).step_by(7).collect() };
    let bounds = [0, 0x8000, 0x10000, 0x13fd7];
    let mut heads = Vec::new();
    for (part, range) in bounds.windows(2).enumerate() {
        let (first_pfn, end_pfn) = (range[0], range[1]);
        let plan = Plan { first_pfn, end_pfn, part: part as u32, parts: 3, ..plan(&machine, &pages) };
        let pfns: Vec<u64> = pages.dumped.iter().copied().filter(|pfn| (first_pfn..end_pfn).contains(pfn)).collect();
        let content: Vec<_> = pfns.iter().map(|&pfn| (pfn, PackedPage::zero())).collect();
        let mut sink = Recorder::default();
        dump(&plan, &content, 512, &End { incomplete: false, lost_pages: 0 }, &mut sink).unwrap();
        let file = File { bytes: sink.file(), big_endian: false };
        assert_eq!(file.int(4096 + 12), 1, "split");
        assert_eq!([16, 24, 80, 88].map(|at| file.long_long(4096 + at)), [first_pfn, end_pfn, first_pfn, end_pfn]);
        let seen = read(&file.bytes).unwrap();
        assert_eq!(seen.there.iter().map(|page| page.0).collect::<Vec<_>>(), pfns);
        // makedumpfile's `reassemble_kdump_pages` takes a page for a zero page if it stands where, in each part, the
        // descriptors of all parts would end; what else stands there is lost.
        let zero_at = 8 * 4096 + pages.dumped.len() as u64 * 24;
        let of_descriptors = |at: u64| file.long_long(8 * 4096 + 24 * at as usize);
        assert!((0..pfns.len() as u64).all(|at| of_descriptors(at) == zero_at), "part {part}");
        assert_eq!(file.bytes.len() as u64, zero_at + 4096, "nothing else stands there");
        heads.push(file.bytes[..464].to_vec());
    }
    // crash compares the headers of the parts byte for byte.
    assert!(heads.iter().all(|head| *head == heads[0]));
}

#[test]
fn what_the_format_cannot_hold_is_refused() {
    let machine = machine("x86_64", 62, 64, false);
    let pages = pages();
    let refuses = |plan: Plan<'_>| writer().begin(&plan, &mut Recorder::default()).is_err();
    assert!(refuses(Plan { codec: 0x40, ..plan(&machine, &pages) }), "an unknown codec");
    assert!(refuses(plan(&Machine { page_shift: 8, ..machine.clone() }, &pages)), "no room for the header");
    assert!(refuses(plan(&Machine { page_shift: 31, ..machine.clone() }, &pages)), "a page size beyond int");
    assert!(refuses(plan(&Machine { max_pfn: u64::MAX, ..machine.clone() }, &pages)), "too many bitmap blocks");
    let batch = PackedBatch::new(&[1], &[]);
    assert!(writer().write(&batch, &mut Recorder::default()).is_err(), "a batch before begin");
}
