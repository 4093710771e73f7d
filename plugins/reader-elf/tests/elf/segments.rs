//! Tables of program headers with oddities.

use coresift_sdk::Extent;

use crate::synth::{ALL_KINDS, Elf, Load, PAGE, extents, load, noise, open, page, warns};

#[test]
fn all_kinds_give_the_pages_that_went_in() {
    for kind in ALL_KINDS {
        let (a, b) = (noise(1, 3 * PAGE), noise(2, 2 * PAGE));
        let elf = Elf { loads: vec![load(4 * PAGE, a.clone()), load(0x7_0000, b.clone())], ..Elf::new(kind) };
        let (bytes, data) = (elf.bytes(), elf.build().data);
        let extents = extents(bytes.clone());
        assert_eq!(extents, [Extent::mapped(4, 3, 0, data[0]), Extent::mapped(0x70, 2, 0, data[1])]);
        let reader = open(bytes.clone()).unwrap();
        assert_eq!(page(&bytes, reader.as_ref(), &extents, 5).unwrap(), a[4096..8192]);
        assert_eq!(page(&bytes, reader.as_ref(), &extents, 0x71).unwrap(), b[4096..]);
        assert!(reader.machine().warnings.is_empty());
    }
}

#[test]
fn a_segment_without_memory_is_skipped() {
    let empty = Load { memsz: 0, ..load(PAGE, noise(1, PAGE)) };
    let elf = Elf::x86_64(vec![empty, load(8 * PAGE, noise(2, PAGE))]);
    assert_eq!(extents(elf.bytes()), [Extent::mapped(8, 1, 0, elf.build().data[1])]);
}

#[test]
fn a_segment_without_an_address_is_skipped_with_a_warning() {
    for kind in ALL_KINDS {
        let ones = if kind.wide { u64::MAX } else { u64::from(u32::MAX) };
        let elf = Elf { loads: vec![load(ones, noise(1, PAGE)), load(8 * PAGE, noise(2, PAGE))], ..Elf::new(kind) };
        assert_eq!(extents(elf.bytes()), [Extent::mapped(8, 1, 0, elf.build().data[1])]);
        assert!(warns(open(elf.bytes()).unwrap().as_ref(), "1 PT_LOADs without a physical address"));
    }
}

#[test]
fn a_file_without_any_address_is_refused_with_a_hint() {
    let error = open(Elf::x86_64(vec![load(u64::MAX, noise(1, PAGE))]).bytes()).err().unwrap();
    assert!(error.hint.contains("/proc/kcore"), "{error:?}");
}

#[test]
fn memory_that_the_file_does_not_have_is_absent() {
    let elf = Elf::x86_64(vec![
        Load { memsz: 5 * PAGE, ..load(PAGE, noise(1, 2 * PAGE)) },
        Load { memsz: 3 * PAGE, ..load(9 * PAGE, Vec::new()) },
    ]);
    assert_eq!(extents(elf.bytes()), [Extent::mapped(1, 2, 0, elf.build().data[0]), Extent::absent(3, 3), Extent::absent(9, 3)]);
    let machine = open(elf.bytes()).unwrap().machine();
    assert!(!machine.incomplete && machine.warnings.is_empty(), "already filtered is not incomplete: {:?}", machine.warnings);
}

#[test]
fn a_byte_that_any_segment_has_beats_absence() {
    let elf = Elf::x86_64(vec![Load { memsz: 4 * PAGE, ..load(PAGE, Vec::new()) }, load(2 * PAGE, noise(1, PAGE))]);
    assert_eq!(extents(elf.bytes()), [Extent::absent(1, 1), Extent::mapped(2, 1, 0, elf.build().data[1]), Extent::absent(3, 2)]);
}

#[test]
fn surplus_bytes_of_the_file_are_left_out() {
    let elf = Elf::x86_64(vec![Load { memsz: PAGE, ..load(PAGE, noise(1, 3 * PAGE)) }]);
    assert_eq!(extents(elf.bytes()), [Extent::mapped(1, 1, 0, elf.build().data[0])]);
    assert!(warns(open(elf.bytes()).unwrap().as_ref(), "more bytes in the file than in memory"));
}

#[test]
fn a_segment_that_wraps_around_is_clipped_with_a_warning() {
    let high = (1u64 << 56) - PAGE;
    let elf = Elf::x86_64(vec![
        load(PAGE, noise(1, PAGE)),
        Load { memsz: u64::MAX, ..load(high, noise(2, PAGE)) },
        Load { memsz: u64::MAX, ..load(u64::MAX - 5, noise(3, PAGE)) },
    ]);
    let data = elf.build().data;
    assert_eq!(extents(elf.bytes()), [Extent::mapped(1, 1, 0, data[0]), Extent::mapped(high / PAGE, 1, 0, data[1])]);
    assert!(warns(open(elf.bytes()).unwrap().as_ref(), "2 PT_LOADs reach beyond"));
}

#[test]
fn an_offset_that_wraps_around_has_no_data() {
    for offset in [u64::MAX - 5, i64::MAX as u64, 1 << 40] {
        let elf = Elf::x86_64(vec![load(PAGE, noise(1, PAGE)), Load { offset: Some(offset), ..load(4 * PAGE, noise(1, PAGE)) }]);
        assert_eq!(extents(elf.bytes()), [Extent::mapped(1, 1, 0, elf.build().data[0]), Extent::absent(4, 1)]);
        assert!(open(elf.bytes()).unwrap().machine().incomplete);
    }
}

#[test]
fn behind_the_cut_of_a_file_all_is_absent() {
    let elf = Elf::x86_64(vec![load(PAGE, noise(1, 4 * PAGE)), load(16 * PAGE, noise(2, 2 * PAGE))]);
    let built = elf.build();
    // In the middle of the third page: half of it is there, which is not enough.
    let cut = built.bytes[..built.data[0] as usize + 2 * 4096 + 2048].to_vec();
    assert_eq!(extents(cut.clone()), [Extent::mapped(1, 2, 0, built.data[0]), Extent::absent(3, 2), Extent::absent(16, 2)]);
    let reader = open(cut).unwrap();
    assert!(reader.machine().incomplete);
    assert!(warns(reader.as_ref(), "14336 bytes of memory"), "{:?}", reader.machine().warnings);
}

#[test]
fn a_cut_table_gives_what_is_left_of_it() {
    let elf = Elf::x86_64(vec![load(PAGE, noise(1, PAGE)), load(4 * PAGE, noise(2, PAGE))]);
    let built = elf.build();
    for len in 0..built.table_end {
        match open(built.bytes[..len].to_vec()) {
            Ok(reader) => {
                assert!(len >= built.headers_end + 56, "the first program header is whole");
                assert_eq!(reader.extents(), [Extent::absent(1, 1)]);
                assert!(reader.machine().incomplete);
                assert!(warns(reader.as_ref(), "1 program headers are missing"));
            }
            Err(e) => assert!(len < built.headers_end + 56, "{len}: {e}"),
        }
    }
}

#[test]
fn the_core_of_a_process_is_refused() {
    let elf = Elf::x86_64(vec![load(0, noise(1, PAGE)), load(0, noise(2, PAGE))]);
    assert!(open(elf.bytes()).err().unwrap().message.contains("core of a process"));
    // With VMCOREINFO it is a machine, whatever the addresses.
    assert!(open(elf.with_vmcoreinfo("PAGESIZE=4096\n").bytes()).is_ok());
}

#[test]
fn a_machine_with_all_ram_at_0_is_none() {
    let elf = Elf::x86_64(vec![load(0, noise(1, PAGE))]);
    assert!(open(elf.bytes()).is_ok());
    let auxv = elf.note("CORE", 6, &[0; 16]);
    assert!(open(Elf { notes: vec![auxv], ..elf }.bytes()).is_err(), "only a process has an auxiliary vector");
}
