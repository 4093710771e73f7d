//! Images that firmware and hypervisors write: the headers are made here, the memory is real.

use std::path::{Path, PathBuf};

use coresift_tests::vmcores::KDUMP_6_1;
use coresift_tests::{Run, coresift, images, kdump::Kdump, peers, scratch};

fn dump<P: AsRef<Path>>(inputs: &[P], output: &Path, extra: &[&str]) -> Run {
    let args = ["dump", "--json", "--force", "--progress", "none"].into_iter().chain(extra.iter().copied());
    coresift(args.map(AsRef::as_ref).chain(inputs.iter().map(|p| p.as_ref().as_os_str())).chain([output.as_os_str()]))
}

/// All pages are right, and the kernel is found and filtered as in the vmcore; `more` pages are in the input only.
fn reads_as_the_vmcore(inputs: &[PathBuf], extra: &[&str], more: u64) {
    let folder = scratch();
    let output = folder.path().join("out");
    let report = dump(inputs, &output, &[&["-d", "0", "--compress", "snappy"], extra].concat()).status(0).json();
    assert_eq!(report["outcome"], "complete", "{report}");
    let compared = peers::same_pages(&KDUMP_6_1.path(), &output, 0);
    assert_eq!(compared["equal"], KDUMP_6_1.manifest()["pfns"], "{compared}");
    dump(inputs, &output, &[&["-d", "31"], extra].concat()).status(0);
    let kept = Kdump::open(&output).unwrap().dumped().len() as u64;
    assert_eq!(kept - more, KDUMP_6_1.manifest()["reference_levels"]["31"]["pfns"]);
}

#[test]
fn sadump_images_of_one_and_more_disks() {
    let folder = scratch();
    let disks: Vec<PathBuf> = (1..=3).map(|n| folder.path().join(format!("disk{n}"))).collect();
    let paths: Vec<&Path> = disks.iter().map(PathBuf::as_path).collect();
    let pages = images::pages(usize::MAX);
    let zero = KDUMP_6_1.manifest()["zero_pages"].as_u64().unwrap();
    images::sadump(&pages, &paths[..1]);
    // The firmware left zero pages out; who knows that they were zero says so.
    reads_as_the_vmcore(&disks[..1], &["--set", "input.reader=sadump", "--set", "input.left_out=zero"], 0);
    let output = folder.path().join("out");
    let report = dump(&disks[..1], &output, &["-d", "0"]).status(0).json();
    assert_eq!(report["pages"]["absent"].as_u64().unwrap(), zero);
    peers::same_pages(&KDUMP_6_1.path(), &output, zero);

    images::sadump(&pages, &paths);
    let [first, second, third] = [0, 1, 2].map(|i| disks[i].clone());
    reads_as_the_vmcore(&[third.clone(), first.clone(), second.clone()], &["--set", "input.left_out=zero"], 0);
    // A disk of the set is not given, or a disk comes without its set.
    for inputs in [vec![first.clone(), third.clone()], vec![second]] {
        let run = dump(&inputs, &output, &[]);
        assert!(run.status == 1 && run.stderr.contains("disk"), "{}{}", run.stdout, run.stderr);
    }
    // One that ends early gives what it has.
    std::fs::File::options().write(true).open(&third).unwrap().set_len(20 << 20).unwrap();
    let report = dump(&[first, disks[1].clone(), third], &output, &["-d", "0"]).status(0).json();
    assert_eq!(report["outcome"], "incomplete", "{report}");
    assert!(report["pages"]["stored"].as_u64().unwrap() > 20_000, "{report}");
}

#[test]
fn xen_dump_core_files_whole_and_cut() {
    let folder = scratch();
    let core = folder.path().join("core");
    images::xen_core(&images::pages(usize::MAX), &core);
    reads_as_the_vmcore(std::slice::from_ref(&core), &[], 0);
    // The index stands at the end: without it nobody knows which page is which.
    let len = core.metadata().unwrap().len();
    std::fs::File::options().write(true).open(&core).unwrap().set_len(len - 100_000).unwrap();
    let output = folder.path().join("out");
    let report = dump(std::slice::from_ref(&core), &output, &["-d", "0"]).status(0).json();
    assert_eq!(report["outcome"], "incomplete", "{report}");
    // 100,000 bytes are the entries of 12,500 pages; the rest is right.
    let compared = peers::same_pages(&KDUMP_6_1.path(), &output, 12_500);
    assert_eq!(compared["missing"], 12_500, "{compared}");
}

#[test]
fn vmware_guests_need_their_checkpoint_and_their_memory() {
    let folder = scratch();
    let [vmss, vmem, output] = ["guest.vmss", "guest.vmem", "out"].map(|name| folder.path().join(name));
    // The vmcore has no page between these: the crash kernel's memory and what is not RAM.
    let pages = images::pages(usize::MAX);
    let below = pages.range(..0x10000).next_back().unwrap().0 + 1;
    images::vmware(&pages, (below, 0x10000), &vmss, &vmem);
    // kdump leaves out the first MiB, which firmware uses, a guest's memory has it.
    reads_as_the_vmcore(&[vmem.clone(), vmss.clone()], &[], 256);
    dump(std::slice::from_ref(&vmss), &output, &[]).status(1).says(&["not in the checkpoint", "give the .vmem file"]);
    dump(std::slice::from_ref(&vmem), &output, &[]).status(1).says(&["reader vmware: no VMware checkpoint"]);
    std::fs::File::options().write(true).open(&vmem).unwrap().set_len(100 << 20).unwrap();
    let report = dump(&[vmss, vmem], &output, &["-d", "0"]).status(0).json();
    assert_eq!(report["outcome"], "incomplete", "{report}");
    assert_eq!(report["pages"]["stored"].as_u64().unwrap() + report["pages"]["lost"].as_u64().unwrap(), (100 << 20) / 4096);
}
