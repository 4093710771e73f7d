//! Register notes made of vCPU contexts.

use crate::synth::{Context, Core, Kind, Wire, open, warns};

fn context() -> Context {
    Context {
        flags: 0x3d,
        general: std::array::from_fn(|i| 0x1111_0000_0000_0000 + i as u64),
        rip: 0xffff_ffff_81a0_43a5,
        cs: 0xe033,
        rflags: 0x1246,
        rsp: 0xffff_ffff_82a0_3e58,
        segments: [0xe02b, 0x22, 0x33, 0x44, 0x55],
        control: [0x8005_0033, 0, 0, 0, 0, 0, 0, 0],
        bases: [0xf5, 0xffff_8880_04a0_0000, 0x7fff_0000],
    }
}

/// `struct elf_prstatus` of x86_64 in a note, member by member (include/linux/elfcore.h).
fn note(regs: &[u64; 27]) -> Vec<u8> {
    let mut desc = Wire { big_endian: false, bytes: Vec::new() };
    (0..3).for_each(|_| desc.int(0)); // pr_info
    desc.int(0); // pr_cursig, padding
    (0..2).for_each(|_| desc.long(0)); // pr_sigpend, pr_sighold
    (0..4).for_each(|_| desc.int(0)); // pr_pid, pr_ppid, pr_pgrp, pr_sid
    (0..8).for_each(|_| desc.long(0)); // four times
    regs.iter().for_each(|r| desc.long(*r));
    desc.long(0); // pr_fpvalid, padding
    assert_eq!(desc.bytes.len(), 336, "sizeof(struct elf_prstatus)");
    let mut w = Wire { big_endian: false, bytes: Vec::new() };
    w.note("CORE", 1, &desc.bytes);
    w.bytes
}

/// In the order of `struct user_regs_struct`: r15 to rdi, orig_rax, rip, cs, rflags, rsp, ss, fs_base, gs_base, ds, es, fs, gs.
fn expected(c: &Context, gs_base: u64) -> Vec<u8> {
    let mut regs = [0; 27];
    regs[..15].copy_from_slice(&c.general);
    let [ss, es, ds, fs, gs] = c.segments.map(u64::from);
    regs[15..].copy_from_slice(&[u64::MAX, c.rip, u64::from(c.cs), c.rflags, c.rsp, ss, c.bases[0], gs_base, ds, es, fs, gs]);
    note(&regs)
}

#[test]
fn a_note_for_each_vcpu_in_order_before_those_of_xen() {
    let kernel = context();
    // A process of a paravirtualised domain, and ring 0 of an HVM domain: Xen sets no flag for it.
    let process = Context { flags: 0x31, rip: 0x40_1000, ..context() };
    let hvm = Context { flags: 0, cs: 0x10, rsp: 7, ..context() };
    let core = Core { contexts: [&kernel, &process, &hvm].map(Context::bytes).to_vec(), ..Core::of(Kind::Hvm, &[0]) };
    let machine = open(core.bytes()).unwrap().machine();
    assert_eq!(machine.cpus, 3);
    let all = [expected(&kernel, kernel.bases[1]), expected(&process, process.bases[2]), expected(&hvm, hvm.bases[1]), core.build().notes];
    assert_eq!(machine.notes, all.concat());
}

#[test]
fn contexts_of_another_size_are_counted_only() {
    let core = Core { machine: 183, contexts: vec![vec![1; 360], vec![2; 360]], ..Core::of(Kind::Hvm, &[0]) };
    let machine = open(core.bytes()).unwrap().machine();
    assert_eq!((machine.arch.as_str(), machine.cpus), ("aarch64", 2));
    assert_eq!(machine.notes, core.build().notes);
}

#[test]
fn a_section_of_contexts_without_size_is_told_from_none() {
    let core = Core { contexts: vec![Vec::new()], ..Core::of(Kind::Hvm, &[0]) };
    let reader = open(core.bytes()).unwrap();
    assert!(warns(reader.as_ref(), "the section .xen_prstatus has entries of 0 bytes: registers are missing"));
}
