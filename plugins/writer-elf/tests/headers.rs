//! Every field has the value that the System V ABI, kexec and the readers want; goblin reads it back.

// clippy.toml allows these in test functions only, not in their helpers.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, dead_code)]

mod common;

use common::{Pages, Parsed, Recorder, VMCOREINFO, WHOLE, dump, machine, note, page, plan, writer};
use coresift_sdk::{Machine, PackedPage, Plan, Sink};
use goblin::elf::note::NoteDataIterator;

/// The file behind `begin`.
fn begun(holes: &str, plan: &Plan<'_>) -> (Vec<u8>, Parsed) {
    let mut sink = Recorder::default();
    writer(holes).begin(plan, &mut sink).unwrap();
    let file = sink.file();
    let parsed = Parsed::of(&file).unwrap();
    (file, parsed)
}

// Notes of `machine`: 12 + 8 ("CORE\0", padded) + 20 = 40 bytes of registers; 12 + 12 ("VMCOREINFO\0", padded) + 33 of
// text, padded to 36 = 60: 100 in all.
const NOTES: u64 = 100;

#[test]
fn elf64_of_either_byte_order() {
    for (arch, number, big_endian) in [("x86_64", 62, false), ("s390x", 22, true), ("ppc64le", 21, false), ("ppc64", 21, true)] {
        let machine = machine(arch, number, 64, big_endian);
        let pages = Pages::all([0, 1, 2, 9, 0x13fd6]);
        let (file, elf) = begun("exact", &plan(&machine, &pages));
        let h = &elf.header;
        assert_eq!(file[..16], [0x7f, b'E', b'L', b'F', 2, if big_endian { 2 } else { 1 }, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!((h.e_type, h.e_machine, h.e_version, h.e_entry), (4, number, 1, 0));
        assert_eq!((h.e_phoff, h.e_shoff, h.e_flags), (64, 0, 1), "incomplete until it is finished");
        assert_eq!((h.e_ehsize, h.e_phentsize, h.e_phnum, h.e_shentsize, h.e_shnum, h.e_shstrndx), (64, 56, 4, 0, 0, 0));

        let notes = &elf.program_headers[0];
        let notes_at = 64 + 4 * 56;
        assert_eq!((notes.p_type, notes.p_offset, notes.p_filesz, notes.p_align), (4, notes_at, NOTES, 4));
        assert_eq!((notes.p_vaddr, notes.p_paddr), (0, 0));
        assert_eq!(elf.notes(&file), machine.notes, "notes go in as they are");

        // RAM without gaps in the file, from the first page boundary on.
        let loads: Vec<_> = elf.loads().map(|ph| (ph.p_offset, ph.p_vaddr, ph.p_paddr, ph.p_filesz, ph.p_memsz)).collect();
        let expected =
            [(0x1000, 0, 0, 0x3000, 0x3000), (0x4000, 0x9000, 0x9000, 0x1000, 0x1000), (0x5000, 0x13fd_6000, 0x13fd_6000, 0x1000, 0x1000)];
        assert_eq!(loads, expected, "p_vaddr is p_paddr where the kernel is unknown");
        // crash takes a first PT_LOAD with an alignment for one of netdump, and then ignores VMCOREINFO.
        assert!(elf.loads().all(|ph| (ph.p_flags, ph.p_align) == (7, 0)));
        assert_eq!(file.len(), 0x1000, "the headers' last page is full, and no page is there");
    }
}

#[test]
fn elf32_of_either_byte_order() {
    for (arch, number, big_endian) in [("i686", 3, false), ("armv7l", 40, false), ("ppc", 20, true)] {
        let machine = machine(arch, number, 32, big_endian);
        let pages = Pages::all([1, 2, 0x13fd6]);
        let (file, elf) = begun("exact", &plan(&machine, &pages));
        let h = &elf.header;
        assert_eq!((file[4], h.e_machine, h.e_phoff, h.e_flags), (1, number, 52, 1));
        assert_eq!((h.e_ehsize, h.e_phentsize, h.e_phnum, h.e_shentsize), (52, 32, 3, 0));
        assert_eq!(elf.program_headers[0].p_offset, 52 + 3 * 32);
        assert_eq!(elf.notes(&file), machine.notes);
        let loads: Vec<_> = elf.loads().map(|ph| (ph.p_offset, ph.p_vaddr, ph.p_paddr, ph.p_filesz, ph.p_memsz, ph.p_flags)).collect();
        assert_eq!(loads, [(0x1000, 0x1000, 0x1000, 0x2000, 0x2000, 7), (0x3000, 0x13fd_6000, 0x13fd_6000, 0x1000, 0x1000, 7)]);
    }
}

#[test]
fn elf32_is_for_what_fits_into_32_bits() {
    let class = |machine: &Machine, pages: &Pages, holes| begun(holes, &plan(machine, pages)).0[4];
    let small = Machine { max_pfn: 1 << 21, ..machine("i686", 3, 32, false) };
    assert_eq!(class(&small, &Pages::all([0xf_fffe]), "exact"), 1, "ends one page below 4 GiB");
    assert_eq!(class(&small, &Pages::all([0xf_ffff]), "exact"), 2, "ends at 4 GiB, which does not fit");
    assert_eq!(class(&small, &Pages::all([0x10_0000]), "exact"), 2, "PAE");
    let excluded = Pages { ram: vec![5, 0x10_0000], ..Pages::all([5]) };
    assert_eq!(class(&small, &excluded, "exact"), 1);
    assert_eq!(class(&small, &excluded, "coarse"), 2, "memory without bytes has an address, too");
    // All below 4 GiB, but headers and pages are not.
    assert_eq!(class(&small, &Pages::all(0..0xf_ffff), "exact"), 2);
    assert_eq!(class(&small, &Pages::all(0..0xf_fff0), "exact"), 1);
    assert_eq!(class(&machine("x86_64", 62, 64, false), &Pages::all([5]), "exact"), 2);
}

#[test]
fn the_page_size_is_the_machines() {
    for shift in [12, 14, 16] {
        let machine = Machine { page_shift: shift, ..machine("aarch64", 183, 64, false) };
        let size = 1u64 << shift;
        let (pages, bytes) = (Pages::all([3, 4, 7]), page(4, size as usize));
        let content: Vec<_> = [3, 4, 7].iter().map(|&pfn| (pfn, PackedPage::stored(&bytes, 0))).collect();
        let mut sink = Recorder::default();
        dump("exact", &plan(&machine, &pages), &content, 9, &WHOLE, &mut sink).unwrap();
        let elf = Parsed::of(&sink.file()).unwrap();
        let loads: Vec<_> = elf.loads().map(|ph| (ph.p_offset, ph.p_paddr, ph.p_filesz, ph.p_memsz)).collect();
        assert_eq!(loads, [(size, 3 * size, 2 * size, 2 * size), (3 * size, 7 * size, size, size)]);
        assert_eq!((sink.file().len() as u64, elf.incomplete()), (4 * size, false));
    }
}

#[test]
fn more_program_headers_than_16_bits_count_are_in_section_header_0() {
    // With PT_NOTE: 65,534, 65,535 and 65,536 program headers; PN_XNUM itself is 65,535.
    for (segments, extended) in [(65_533u64, false), (65_534, true), (65_535, true)] {
        for (word_bits, header_len, entry, section_len) in [(64, 64, 56, 64), (32, 52, 32, 40)] {
            let machine = Machine { max_pfn: 1 << 18, ..machine("any", 62, word_bits, word_bits == 32) };
            let pages = Pages::all((0..segments).map(|i| 2 * i));
            let (file, elf) = begun("exact", &plan(&machine, &pages));
            let h = &elf.header;
            assert_eq!(elf.loads().count() as u64, segments);
            let tables_end = header_len + (segments + 1) * entry;
            if extended {
                assert_eq!((h.e_phnum, h.e_shoff, h.e_shnum, u64::from(h.e_shentsize)), (0xffff, tables_end, 1, section_len));
                let s = elf.section.as_ref().unwrap();
                assert_eq!((s.sh_type, s.sh_info as u64, s.sh_size, s.sh_link), (0, segments + 1, 1, 0));
            } else {
                assert_eq!((u64::from(h.e_phnum), h.e_shoff, h.e_shnum, h.e_shentsize), (segments + 1, 0, 0, 0));
            }
            let notes_at = tables_end + if extended { section_len } else { 0 };
            assert_eq!(elf.program_headers[0].p_offset, notes_at);
            assert_eq!(elf.notes(&file), machine.notes);
            let offsets: Vec<u64> = elf.loads().map(|ph| ph.p_offset).collect();
            let data_at = (notes_at + NOTES).next_multiple_of(4096);
            assert!(offsets.iter().zip(0..).all(|(offset, i)| *offset == data_at + i * 4096));
            assert_eq!(file.len() as u64, data_at);
        }
    }
}

#[test]
fn a_million_segments_go_out_in_small_pieces() {
    struct Counts(u64);
    impl Sink for Counts {
        fn write_at(&mut self, offset: u64, pieces: &[&[u8]]) -> coresift_sdk::Result<()> {
            let bytes: usize = pieces.iter().map(|p| p.len()).sum();
            assert!(bytes <= 1 << 20, "{bytes} bytes at {offset}");
            self.0 += 1;
            Ok(())
        }
        fn reserve(&mut self, _: u64) -> coresift_sdk::Result<()> {
            Ok(())
        }
        fn positioned(&self) -> bool {
            true
        }
    }
    let machine = Machine { max_pfn: 1 << 22, ..machine("x86_64", 62, 64, false) };
    let pages = Pages::all((0..1_000_000).map(|i| 3 * i));
    let mut sink = Counts(0);
    writer("exact").begin(&plan(&machine, &pages), &mut sink).unwrap();
    // 56 MB in pieces of 1 MiB, and three writes more: notes, header, magic.
    assert_eq!(sink.0, 56_000_056u64.div_ceil(56 * ((1 << 20) / 56)) + 3);
}

/// Names of the notes in a file, and the texts of VMCOREINFO.
fn notes(file: &[u8]) -> (Vec<String>, Vec<Vec<u8>>) {
    let elf = Parsed::of(file).unwrap();
    let data = elf.notes(file);
    let all: Vec<_> = NoteDataIterator { data, size: data.len(), offset: 0, ctx: (4, elf.ctx) }.map(Result::unwrap).collect();
    let texts = all.iter().filter(|n| n.name == "VMCOREINFO").map(|n| n.desc.to_vec()).collect();
    (all.iter().map(|n| n.name.to_owned()).collect(), texts)
}

#[test]
fn vmcoreinfo_from_elsewhere_becomes_a_note() {
    for big_endian in [false, true] {
        let registers = note("CORE", 1, &[9; 20], big_endian);
        // The last one, without the padding behind its name, is not whole: readers would stop before ours.
        let unpadded = [registers.clone(), note("LINUX", 7, &[1; 7], big_endian)[..27].to_vec()].concat();
        let broken = [registers.clone(), [0xff; 9].to_vec()].concat();
        let zeros = [registers.clone(), vec![0; 64]].concat();
        let inputs = [
            (Vec::new(), vec!["VMCOREINFO"]),
            (registers.clone(), vec!["CORE", "VMCOREINFO"]),
            (unpadded, vec!["CORE", "LINUX", "VMCOREINFO"]),
            (broken, vec!["CORE", "VMCOREINFO"]),
            (zeros, vec!["CORE", "VMCOREINFO"]),
        ];
        for (input, names) in inputs {
            let machine = Machine { notes: input, ..machine("any", 22, 64, big_endian) };
            let (file, _) = begun("exact", &plan(&machine, &Pages::all([1])));
            assert_eq!(notes(&file), (names.iter().map(|&n| n.to_owned()).collect(), vec![VMCOREINFO.to_vec()]));
        }
        let both = machine("any", 22, 64, big_endian);
        let (file, _) = begun("exact", &plan(&both, &Pages::all([1])));
        assert_eq!(notes(&file).1.len(), 1, "not twice");
    }
}

#[test]
fn notes_without_vmcoreinfo_go_in_as_they_are() {
    for notes in [Vec::new(), vec![0; 7], vec![0xff; 64], note("QEMU", 0, &[3; 400], false)[..300].to_vec()] {
        let machine = Machine { notes, vmcoreinfo: Vec::new(), ..machine("x86_64", 62, 64, false) };
        let (file, elf) = begun("exact", &plan(&machine, &Pages::all([1])));
        assert_eq!(elf.notes(&file), machine.notes);
    }
}

#[test]
fn e_machine_comes_from_the_name_where_the_input_has_no_number() {
    for (arch, number) in [("x86_64", 62), ("aarch64", 183), ("s390x", 22), ("riscv64", 243), ("loongarch64", 258), ("", 0)] {
        let machine = machine(arch, 0, 64, arch == "s390x");
        assert_eq!(begun("exact", &plan(&machine, &Pages::all([1]))).1.header.e_machine, number);
    }
}

#[test]
fn what_the_format_cannot_hold_is_refused() {
    let machine = machine("x86_64", 62, 64, false);
    let pages = Pages::all([1]);
    let error = |plan: Plan<'_>| writer("exact").begin(&plan, &mut Recorder::default()).unwrap_err();
    let compressed = error(Plan { codec: 0x20, ..plan(&machine, &pages) });
    assert!(compressed.hint.contains("compress.plugin = \"none\""), "{compressed:?}");
    error(plan(&Machine { page_shift: 40, ..machine.clone() }, &pages));
    error(plan(&Machine { page_shift: 0, ..machine.clone() }, &pages));
    let huge = Machine { max_pfn: u64::MAX, ..machine };
    error(plan(&huge, &Pages::all([u64::MAX - 5])));
}
