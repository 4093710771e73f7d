//! `phys_base` by page tables that are built here (Intel SDM, volume 3, sections 4.5 and 6.14.1).

use std::collections::BTreeMap;

use coresift_sdk::Machine;

use crate::synth::{PAGE, Sadump, Shape, open, patch, warns};

/// Where Linux maps the interrupt descriptor table (`CPU_ENTRY_AREA_RO_IDT`).
const IDT: u64 = 0xffff_fe00_0000_0000;
const PRESENT: u64 = 1;
const LARGE: u64 = 1 << 7;

/// Physical memory by page.
#[derive(Clone, Default)]
struct Memory(BTreeMap<u64, Vec<u8>>);

impl Memory {
    fn put(&mut self, paddr: u64, value: u64) {
        let page = self.0.entry(paddr / PAGE as u64).or_insert_with(|| vec![0; PAGE]);
        patch(page, (paddr % PAGE as u64) as usize, &value.to_le_bytes());
    }

    /// Page tables at `root` for a kernel whose divide error handler is at `handler` and whose text is moved by `phys_base`.
    fn kernel(&mut self, root: u64, levels: u32, handler: u64, phys_base: u64) {
        let (idt, tables) = (root + 0x10_0000, root + 0x20_0000);
        let entry = |vaddr: u64, level: u32| (vaddr >> (12 + 9 * level) & 511) * 8;
        let mut top = root;
        if levels == 5 {
            self.put(root + entry(IDT, 4), (tables + 0x5000) | PRESENT);
            top = tables + 0x5000;
        }
        // The table by four levels of pages of 4 KiB, not executable.
        self.put(top + entry(IDT, 3), tables | PRESENT);
        self.put(tables + entry(IDT, 2), (tables + 0x1000) | PRESENT);
        self.put(tables + 0x1000 + entry(IDT, 1), (tables + 0x2000) | PRESENT);
        self.put(tables + 0x2000 + entry(IDT, 0), idt | PRESENT | 1 << 63);
        // Kernel text by a page of 2 MiB; bit 12 is PAT there, no address.
        let text = (handler - 0xffff_ffff_8000_0000).wrapping_add(phys_base) & !0x1f_ffff;
        self.put(top + entry(handler, 3), (tables + 0x3000) | PRESENT);
        self.put(tables + 0x3000 + entry(handler, 2), (tables + 0x4000) | PRESENT);
        self.put(tables + 0x4000 + entry(handler, 1), text | PRESENT | LARGE | 1 << 12);
        // An interrupt gate: offset 15:0, selector, IST and type, P, offset 31:16, offset 63:32.
        self.put(idt, handler & 0xffff | 0x10 << 16 | 0x8e00 << 32 | (handler >> 16 & 0xffff) << 48);
        self.put(idt + 8, handler >> 32);
    }

    fn open(&self, states: Vec<Vec<u8>>) -> Box<dyn coresift_sdk::Reader> {
        let ram = self.0.iter().map(|(pfn, page)| (*pfn, Some(page.clone())));
        open(Sadump { states, ..Sadump::new(Shape::Set(2), ram) }.build()).unwrap()
    }

    fn machine(&self, states: Vec<Vec<u8>>) -> Machine {
        self.open(states).machine()
    }
}

fn state(cr3: u64, cr4: u32, idt: u64) -> Vec<u8> {
    let mut state = vec![0; 1024];
    patch(&mut state, 472, &((idt >> 32) as u32).to_le_bytes());
    patch(&mut state, 576, &cr4.to_le_bytes());
    patch(&mut state, 660, &(idt as u32).to_le_bytes());
    patch(&mut state, 992, &0xd01u64.to_le_bytes());
    patch(&mut state, 1008, &cr3.to_le_bytes());
    state
}

const ROOT: u64 = 0x40_0000;
const HANDLER: u64 = 0xffff_ffff_8600_0b50;
const BASE: u64 = 0x540_0000;
const CR4: u32 = 0x75_0eb0 & !(1 << 12);
const LA57: u32 = CR4 | 1 << 12;

#[test]
fn four_and_five_levels_lead_to_it() {
    for (levels, cr4) in [(4, CR4), (5, LA57)] {
        let mut memory = Memory::default();
        memory.kernel(ROOT, levels, HANDLER, BASE);
        assert_eq!(memory.machine(vec![state(ROOT, cr4, IDT)]).phys_base, Some(BASE), "{levels} levels");
        // A PCID in the low bits, and bit 63 "do not flush".
        assert_eq!(memory.machine(vec![state(ROOT | 6 | 1 << 63, cr4, IDT)]).phys_base, Some(BASE));
    }
}

#[test]
fn a_kernel_below_its_link_address_has_a_negative_phys_base() {
    let mut memory = Memory::default();
    let base = 0xffff_ffff_ed60_0000;
    memory.kernel(ROOT, 5, 0xffff_ffff_9b80_0b50, base);
    assert_eq!(memory.machine(vec![state(ROOT, LA57, IDT)]).phys_base, Some(base));
}

#[test]
fn page_tables_of_user_space_do_as_well() {
    // Page table isolation: bit 12 of CR3 selects the second half of a pair of root tables.
    let mut memory = Memory::default();
    memory.kernel(ROOT, 4, HANDLER, BASE);
    assert_eq!(memory.machine(vec![state(ROOT | 0x1000, CR4, IDT)]).phys_base, Some(BASE), "by the kernel's half");
    let mut memory = Memory::default();
    memory.kernel(ROOT | 0x1000, 4, HANDLER, BASE);
    assert_eq!(memory.machine(vec![state(ROOT | 0x1000, CR4, IDT)]).phys_base, Some(BASE), "without isolation bit 12 is address");
}

#[test]
fn cpus_that_tell_nothing_are_passed_over() {
    let mut memory = Memory::default();
    memory.kernel(ROOT, 4, HANDLER, BASE);
    let mut compatible = state(ROOT, CR4, IDT);
    patch(&mut compatible, 992, &[0; 8]);
    let dead = [state(0, CR4, IDT), state(ROOT, CR4, 0), vec![0; 1024], state(0x7777_7000, CR4, IDT), compatible];
    for state in dead.clone() {
        assert_eq!(memory.machine(vec![state]).phys_base, None);
    }
    assert_eq!(memory.machine([dead.as_slice(), &[state(ROOT, CR4, IDT)]].concat()).phys_base, Some(BASE));
}

#[test]
fn what_is_no_kernel_is_not_believed() {
    for handler in [0xffff_ffff_7fff_f000, 0xffff_ffff_c000_0000, 0x40_0000] {
        let mut memory = Memory::default();
        memory.kernel(ROOT, 4, HANDLER, BASE);
        memory.put(ROOT + 0x10_0000, handler & 0xffff | 0x8e00 << 32 | (handler >> 16 & 0xffff) << 48);
        memory.put(ROOT + 0x10_0008, handler >> 32);
        assert_eq!(memory.machine(vec![state(ROOT, CR4, IDT)]).phys_base, None, "{handler:#x}");
    }
    let mut absent = Memory::default();
    absent.kernel(ROOT, 4, HANDLER, BASE);
    absent.put(ROOT + 0x10_0000, HANDLER & 0xffff | (HANDLER >> 16 & 0xffff) << 48);
    assert_eq!(absent.machine(vec![state(ROOT, CR4, IDT)]).phys_base, None, "a gate that is not present");
    let mut cycle = Memory::default();
    (0..512).for_each(|i| cycle.put(ROOT + i * 8, ROOT | PRESENT));
    assert_eq!(cycle.machine(vec![state(ROOT, CR4, IDT), state(ROOT, LA57, IDT)]).phys_base, None);
}

#[test]
fn two_kernels_at_once_are_a_kdump_kernel_at_work() {
    let mut memory = Memory::default();
    memory.kernel(ROOT, 4, HANDLER, BASE);
    memory.kernel(ROOT + 0x100_0000, 4, HANDLER + 0x20_0000, BASE + 0x2000_0000);
    let reader = memory.open(vec![state(ROOT, CR4, IDT), state(ROOT + 0x100_0000, CR4, IDT)]);
    assert_eq!(reader.machine().phys_base, None);
    assert!(warns(reader.as_ref(), "a kdump kernel was running"));
}
