//! Notes, and what they say about the machine.

use coresift_sdk::{ErrorKind, Value};

use crate::synth::{ALL_KINDS, Elf, Kind, Load, PAGE, load, noise, open, open_with, warns};

const TEXT: &str = "OSRELEASE=6.1.0-57-cloud-amd64\nPAGESIZE=4096\nNUMBER(phys_base)=-400556032\nCRASHTIME=1796071143\n";

fn one_page(kind: Kind) -> Elf {
    Elf { loads: vec![load(PAGE, noise(1, PAGE))], ..Elf::new(kind) }
}

#[test]
fn vmcoreinfo_and_registers_are_found_in_all_kinds() {
    for kind in ALL_KINDS {
        let mut elf = one_page(kind);
        let cpu = elf.note("CORE", 1, &[7; 336]);
        elf.notes =
            vec![[cpu.clone(), cpu.clone(), elf.note("QEMU", 0, &[1; 9]), elf.note("VMCOREINFO", 0, TEXT.as_bytes()), cpu].concat()];
        let m = open(elf.bytes()).unwrap().machine();
        assert_eq!((m.cpus, m.crash_time, m.page_shift), (3, 1_796_071_143, 12));
        assert_eq!(m.phys_base, Some((-400_556_032i64) as u64));
        assert_eq!((m.utsname.sysname.as_str(), m.utsname.release.as_str()), ("Linux", "6.1.0-57-cloud-amd64"));
        assert_eq!(m.utsname.machine, m.arch);
        assert_eq!(m.vmcoreinfo, TEXT.as_bytes());
        assert_eq!(m.notes, elf.notes[0]);
        assert!(m.warnings.is_empty(), "{:?}", m.warnings);
    }
}

#[test]
fn all_note_segments_are_read_and_padded() {
    let mut elf = one_page(ALL_KINDS[0]);
    let (a, b) = (elf.note("CORE", 1, &[7; 8]), elf.note("CORE", 1, &[8; 5]));
    // The first one lacks the padding of its last note.
    elf.notes = vec![b[..b.len() - 3].to_vec(), a.clone(), elf.note("VMCOREINFO", 0, TEXT.as_bytes())];
    let m = open(elf.bytes()).unwrap().machine();
    assert_eq!(m.cpus, 2);
    assert_eq!(m.notes, [b, a, elf.notes[2].clone()].concat());
}

#[test]
fn the_first_vmcoreinfo_wins() {
    let elf = one_page(ALL_KINDS[0]).with_vmcoreinfo("OSRELEASE=first\n").with_vmcoreinfo("OSRELEASE=second\n");
    assert_eq!(open(elf.bytes()).unwrap().machine().utsname.release, "first");
}

#[test]
fn malformed_notes_end_the_walk_with_a_warning() {
    let mut elf = one_page(ALL_KINDS[0]);
    let (cpu, mut bad) = (elf.note("CORE", 1, &[7; 8]), elf.note("CORE", 1, &[7; 8]));
    bad[4..8].fill(0xff); // n_descsz
    elf.notes = vec![[cpu.clone(), bad, cpu.clone()].concat(), cpu];
    let reader = open(elf.bytes()).unwrap();
    assert_eq!(reader.machine().cpus, 2, "one before the malformed one, one in the next segment");
    assert!(warns(reader.as_ref(), "a malformed note"));
}

#[test]
fn zeros_behind_the_notes_are_no_oddity() {
    for zeros in [1, 4, 12, 40] {
        let mut elf = one_page(ALL_KINDS[0]);
        elf.notes = vec![[elf.note("CORE", 1, &[7; 8]), vec![0; zeros]].concat()];
        let m = open(elf.bytes()).unwrap().machine();
        assert_eq!(m.cpus, 1);
        assert!(m.warnings.is_empty(), "{zeros}: {:?}", m.warnings);
    }
}

#[test]
fn notes_cut_at_any_byte_do_no_harm() {
    let mut elf = one_page(ALL_KINDS[0]);
    elf.notes = vec![[elf.note("CORE", 1, &[7; 336]), elf.note("VMCOREINFO", 0, TEXT.as_bytes())].concat()];
    let built = elf.build();
    for len in built.table_end..built.notes_end {
        let reader = open(built.bytes[..len].to_vec()).unwrap();
        assert!(warns(reader.as_ref(), "bytes of notes are missing"));
        assert!(reader.machine().incomplete);
    }
}

#[test]
fn more_notes_than_fit_into_64_mib_are_left_out() {
    let mut elf = one_page(ALL_KINDS[0]);
    elf.notes = vec![elf.note("CORE", 1, &vec![0; 40 << 20]); 2];
    let reader = open(elf.bytes()).unwrap();
    assert_eq!(reader.machine().notes.len(), 64 << 20);
    assert!(warns(reader.as_ref(), "more than 64 MiB of notes"));
}

#[test]
fn xen_notes_get_a_warning() {
    let mut elf = one_page(ALL_KINDS[0]);
    elf.notes = vec![elf.note("VMCOREINFO_XEN", 0, b"PAGESIZE=4096\n")];
    let reader = open(elf.bytes()).unwrap();
    assert!(warns(reader.as_ref(), "Xen hypervisor"));
    assert!(reader.machine().vmcoreinfo.is_empty());
}

#[test]
fn architectures_have_their_names_and_page_sizes() {
    let [le64, be64, le32, be32] = ALL_KINDS;
    // e_machine, kind, name, word bits, page size, page size is a guess
    for (machine, kind, name, bits, page_size, guess) in [
        (62, le64, "x86_64", 64, 4096, false),
        (3, le32, "i686", 32, 4096, false),
        (3, le64, "i686", 32, 4096, false), // PAE: kexec writes ELF64
        (40, le32, "armv7l", 32, 4096, false),
        (183, le64, "aarch64", 64, 4096, true),
        (21, le64, "ppc64le", 64, 65536, true),
        (21, be64, "ppc64", 64, 65536, true),
        (20, be32, "ppc", 32, 4096, true),
        (22, be64, "s390x", 64, 4096, false),
        (243, le64, "riscv64", 64, 4096, false),
        (258, le64, "loongarch64", 64, 16384, true),
        (8, le64, "mips64", 64, 4096, true),
        (8, be32, "mips", 32, 4096, true),
        (50, le64, "ia64", 64, 16384, true),
        (43, be64, "sparc64", 64, 8192, false),
        (999, le64, "", 64, 4096, true),
    ] {
        let elf = Elf { machine, loads: vec![load(1 << 20, noise(1, 65536))], ..Elf::new(kind) };
        let reader = open(elf.bytes()).unwrap();
        let m = reader.machine();
        assert_eq!((m.arch.as_str(), m.word_bits, m.page_size(), m.elf_machine), (name, bits, page_size, machine));
        assert_eq!(warns(reader.as_ref(), "does not tell its page size"), guess, "{name}");
    }
}

#[test]
fn the_page_size_comes_from_vmcoreinfo_then_the_key() {
    let elf = Elf { machine: 183, loads: vec![load(1 << 20, noise(1, 65536))], ..Elf::new(ALL_KINDS[0]) };
    let key = [("page_size", Value::Size(65536))];
    assert_eq!(open_with(elf.bytes(), &key).unwrap().machine().page_shift, 16);

    let told = elf.clone().with_vmcoreinfo("PAGESIZE=16384\n");
    assert_eq!(open(told.bytes()).unwrap().machine().page_shift, 14);
    let reader = open_with(told.bytes(), &key).unwrap();
    assert_eq!(reader.machine().page_shift, 14);
    assert!(warns(reader.as_ref(), "is not used"));

    for nonsense in ["0", "4095", "2048", "2097152", "-4096", "x", "99999999999999999999"] {
        let reader = open(elf.clone().with_vmcoreinfo(&format!("PAGESIZE={nonsense}\n")).bytes()).unwrap();
        assert_eq!(reader.machine().page_shift, 12);
        assert!(warns(reader.as_ref(), "makes no sense"), "{nonsense}");
    }
    let x86 = Elf { loads: elf.loads.clone(), ..Elf::new(ALL_KINDS[0]) }.with_vmcoreinfo("PAGESIZE=65536\n");
    let reader = open(x86.bytes()).unwrap();
    assert_eq!(reader.machine().page_shift, 12);
    assert!(warns(reader.as_ref(), "which x86_64 cannot have"));
    for wrong in [1, 2048, 4097, 12288] {
        let error = open_with(elf.bytes(), &[("page_size", Value::Size(wrong))]).err().unwrap();
        assert_eq!(error.kind, ErrorKind::Config);
    }
}

#[test]
fn a_release_of_any_length_fits_into_utsname() {
    let elf = one_page(ALL_KINDS[0]).with_vmcoreinfo(&format!("OSRELEASE={}\n", "ä".repeat(100)));
    assert_eq!(open(elf.bytes()).unwrap().machine().utsname.release, "ä".repeat(32));
}

#[test]
fn an_input_with_notes_but_absent_memory_opens() {
    let elf = Elf::x86_64(vec![Load { memsz: PAGE, ..load(PAGE, Vec::new()) }]).with_vmcoreinfo(TEXT);
    assert_eq!(open(elf.bytes()).unwrap().machine().max_pfn, 2);
}
