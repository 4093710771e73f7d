//! Vmcores of a hypervisor, by machine frames.

use coresift_sdk::testkit;

use crate::synth::{PAGE, Wire, crash_notes, noise, open, pages, vmcore, warns};

#[test]
fn frames_of_the_machine_and_all_notes() {
    let notes = crash_notes([0x1000, 0x2000], 0x23e18);
    // The second ends within a page: 0x9fc00 is where the first RAM of a PC ends.
    let (low, high) = (noise(1, 3 * PAGE), noise(2, PAGE + 0xc00));
    let bytes = vmcore(&notes, &[(0x1000, low.clone()), (0x9e000, high.clone())]);
    let score = reader_xen::probe(&[testkit::source("xen", bytes.clone())]).unwrap();
    assert!(score.percent == 100 && score.reason.contains("Xen 4.17"), "{score:?}");
    assert!(score.percent > coresift_sdk::Score::likely("").percent, "it goes before the reader of all ELF vmcores");

    let reader = open(bytes.clone()).unwrap();
    let machine = reader.machine();
    assert_eq!((machine.format.as_str(), machine.arch.as_str(), machine.cpus), ("Xen hypervisor vmcore", "x86_64", 2));
    assert_eq!(machine.notes, notes);
    // No VMCOREINFO of a Linux may say which frames of the machine are free.
    assert!(machine.hypervisor && machine.vmcoreinfo.is_empty());
    assert!(warns(reader.as_ref(), "view = \"dom0\""));
    let got = pages(&bytes, reader.as_ref());
    let expected = [(1, &low[..PAGE]), (2, &low[PAGE..2 * PAGE]), (3, &low[2 * PAGE..]), (0x9e, &high[..PAGE])];
    for (mfn, page) in expected {
        assert_eq!(got[&mfn].as_deref(), Some(page));
    }
    let last = [&high[PAGE..], &[0; PAGE - 0xc00]].concat();
    assert_eq!(got[&0x9f], Some(last));
    assert_eq!(got.len(), 5);
}

#[test]
fn one_note_of_xen_is_enough() {
    let of = |name: &str, n_type: u32| {
        let mut w = Wire { big_endian: false, bytes: Vec::new() };
        w.note(name, n_type, &[0; 32]);
        vmcore(&w.bytes, &[(0x1000, noise(1, PAGE))])
    };
    for (name, n_type, percent) in [
        ("VMCOREINFO_XEN", 0, 100),
        ("Xen", 0x100_0001, 100),
        ("Xen", 0x100_0002, 100),
        ("Xen", 4, 0),
        ("VMCOREINFO", 0, 0),
        ("CORE", 0x100_0001, 0),
    ] {
        let score = reader_xen::probe(&[testkit::source("input", of(name, n_type))]).unwrap();
        assert_eq!(score.percent, percent, "{name} {n_type:#x}");
    }
    assert!(open(of("Xen", 0x100_0002)).unwrap().machine().hypervisor, "whatever it says of itself");
}
