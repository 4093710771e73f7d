//! Registers of SMRAM as notes. Offsets in the state: `struct sadump_smram_cpu_state`; in the note: `struct elf_prstatus` and
//! `struct user_regs_struct` of x86_64.

use crate::synth::{PAGE, Sadump, Shape, open, patch, small, warns};

/// A state whose registers all differ: the value is the offset in the state, times 0x0001_0001_0001_0001.
fn state() -> Vec<u8> {
    let mut state = vec![0; 1024];
    for at in (796..924).step_by(8).chain((968..1024).step_by(8)) {
        patch(&mut state, at, &value(at).to_le_bytes());
    }
    for at in (936..968).step_by(4) {
        patch(&mut state, at, &(0xfff0_0000 | at as u32).to_le_bytes());
    }
    state
}

fn value(at: usize) -> u64 {
    at as u64 * 0x0001_0001_0001_0001
}

fn with(states: Vec<Vec<u8>>) -> Sadump {
    Sadump { states, ..small(Shape::Single) }
}

#[test]
fn each_cpu_gets_a_note_with_its_registers() {
    let mut other = state();
    patch(&mut other, 984, &0x1234u64.to_le_bytes());
    let machine = open(with(vec![state(), other]).build()).unwrap().machine();
    assert_eq!(machine.cpus, 2);
    // Nhdr 12, "CORE" 8, elf_prstatus 336
    assert_eq!(machine.notes.len(), 2 * 356);
    let note = &machine.notes[..356];
    assert_eq!(note[..20], [5, 0, 0, 0, 80, 1, 0, 0, 1, 0, 0, 0, b'C', b'O', b'R', b'E', 0, 0, 0, 0]);
    assert!(note[20..132].iter().all(|b| *b == 0), "signals and process are not known");
    let registers: Vec<u64> = note[132..348].chunks(8).map(|r| u64::from_le_bytes(r.try_into().unwrap())).collect();
    let general = |number: usize| value(796 + 8 * number);
    let expected = [
        general(0),  // r15: the save map begins with it
        general(1),  // r14
        general(2),  // r13
        general(3),  // r12
        general(13), // rbp
        general(11), // rbx
        general(4),  // r11
        general(5),  // r10
        general(6),  // r9
        general(7),  // r8
        general(8),  // rax
        general(9),  // rcx
        general(10), // rdx
        general(14), // rsi
        general(15), // rdi
        general(8),  // orig_rax
        value(984),  // rip
        940,         // cs
        value(1000), // eflags
        general(12), // rsp
        944,         // ss
        0,           // fs_base
        0,           // gs_base
        948,         // ds
        936,         // es
        952,         // fs
        956,         // gs
    ];
    assert_eq!(registers, expected);
    assert!(note[348..].iter().all(|b| *b == 0));
    assert_eq!(machine.notes[356 + 132 + 16 * 8..][..8], 0x1234u64.to_le_bytes());
}

#[test]
fn longer_states_are_stepped_over() {
    let long = |rip: u64| {
        let mut state = state();
        patch(&mut state, 984, &rip.to_le_bytes());
        state.resize(3000, 0xee);
        state
    };
    let machine = open(with(vec![long(1), long(2), long(3)]).build()).unwrap().machine();
    let rips: Vec<u8> = machine.notes.chunks(356).map(|note| note[132 + 16 * 8]).collect();
    assert_eq!(rips, [1, 2, 3]);
}

#[test]
fn a_cpu_that_saved_nothing_keeps_its_place() {
    let reader = open(with(vec![vec![0; 1024], state()]).build()).unwrap();
    assert!(warns(reader.as_ref(), "1 of 2 CPUs left no registers"));
    let machine = reader.machine();
    assert_eq!(machine.cpus, 2);
    assert!(machine.notes[20..356].iter().all(|b| *b == 0));
    assert!(machine.notes[376..].iter().any(|b| *b != 0));
}

#[test]
fn without_a_sub_header_there_are_no_notes() {
    let reader = open(with(Vec::new()).build()).unwrap();
    assert!(warns(reader.as_ref(), "no sub header"));
    assert_eq!((reader.machine().cpus, reader.machine().notes.len()), (0, 0));
}

#[test]
fn states_that_do_not_fit_are_not_read() {
    let image = with(vec![state(), state()]);
    for (at, value) in [
        (image.dump_at() + 80, 0u32), // no CPUs
        (image.dump_at() + 80, 3),    // 682 bytes each
        (image.dump_at() + 80, u32::MAX),
        (image.dump_at() + PAGE, 2047),      // 1023 bytes each
        (image.dump_at() + PAGE, 4096 - 35), // one byte more than the sub header has
        (image.dump_at() + PAGE, u32::MAX),
    ] {
        let mut bytes = image.bytes();
        patch(&mut bytes, at, &value.to_le_bytes());
        let reader = open(vec![bytes]).unwrap();
        assert!(warns(reader.as_ref(), "registers are not read"), "{at} {value}");
        assert_eq!((reader.machine().cpus, reader.extents().len()), (0, 3));
    }
    let mut bytes = image.bytes();
    patch(&mut bytes, image.dump_at() + PAGE, &(4096u32 - 36).to_le_bytes());
    assert_eq!(open(vec![bytes]).unwrap().machine().cpus, 2);
}

#[test]
fn cpus_that_ran_no_64_bit_code_are_pointed_out() {
    // IA32_EFER at 992: LMA is bit 10.
    for (efer, told) in [(0xd01u64, false), (0x801, true)] {
        let mut state = state();
        patch(&mut state, 992, &efer.to_le_bytes());
        let reader = open(with(vec![state]).build()).unwrap();
        assert_eq!(warns(reader.as_ref(), "no CPU ran 64-bit code"), told);
    }
}
