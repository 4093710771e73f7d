//! A kernel whose structures are damaged: the dump is there, and kernel text and log are in it, whatever was hit.
//!
//! Bits of struct pages, page tables, section arrays and VMCOREINFO are turned at random in a copy of a real vmcore. The
//! places are found here by a walk of its own, and what must be kept is what crash says of the kernel.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use coresift_tests::vmcores::KDUMP_6_1;
use coresift_tests::walker::Walker;
use coresift_tests::{coresift, inside, peers, scratch};
use serde_json::Value;

const SEEDS: u64 = 2000;
/// Every so many seeds the whole dump is written and read back.
const WHOLE_EVERY: u64 = 100;

/// xorshift64: the same places for the same seed.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % n
    }
}

/// The vmcore to damage, and where its structures are.
struct Victim {
    path: PathBuf,
    memory: Walker,
    tables: Vec<u64>,
    sections: Vec<u64>,
    mem_map: u64,
}

impl Victim {
    fn new(folder: &Path) -> Self {
        let path = folder.join("vmcore");
        std::fs::copy(KDUMP_6_1.path(), &path).unwrap();
        let memory = Walker::open(&path);
        let (roots, first, mem_map) = memory.mem_map();
        let words = |address: u64, count: u64| (0..count).map(|i| memory.walk(address).unwrap() + i * 8).collect::<Vec<_>>();
        let sections = [words(roots, 4), words(first, 8)].concat();
        let ways =
            [memory.symbol("_stext"), memory.symbol("prb"), memory.symbol("init_uts_ns"), roots, first, mem_map, mem_map + 64 * 0x10000];
        let tables = ways.into_iter().flat_map(|address| memory.entries(address)).collect();
        Self { path, tables, sections, mem_map, memory }
    }

    /// Damages some places; returns what stood there.
    fn damage(&self, random: &mut Random) -> Vec<(u64, u8)> {
        let mut before = Vec::new();
        for _ in 0..=random.below(8) {
            let at = match random.below(4) {
                // Half of the struct pages hit are those of the kernel image.
                0 => {
                    let pfn = if random.below(2) == 0 { 0x10400 + random.below(0x2830) } else { random.below(0x14000) };
                    self.memory.walk(self.mem_map + pfn * 64).and_then(|p| self.memory.offset(p + random.below(64)))
                }
                1 => self.memory.offset(self.tables[random.below(self.tables.len() as u64) as usize] + random.below(8)),
                2 => self.memory.offset(self.sections[random.below(self.sections.len() as u64) as usize] + random.below(8)),
                _ => Some(self.memory.info.0 + random.below(self.memory.info.1)),
            };
            let Some(at) = at else { continue };
            let mut byte = [0u8];
            self.memory.file.read_exact_at(&mut byte, at).unwrap();
            before.push((at, byte[0]));
            let new = if random.below(4) == 0 { random.below(256) as u8 } else { byte[0] ^ 1 << random.below(8) };
            self.memory.file.write_all_at(&[new], at).unwrap();
        }
        before
    }

    fn heal(&self, before: Vec<(u64, u8)>) {
        // The last write first: a place may have been hit twice.
        for (at, byte) in before.into_iter().rev() {
            self.memory.file.write_all_at(&[byte], at).unwrap();
        }
    }
}

/// PFNs that every dump must have: text and log.
fn needed() -> Vec<u64> {
    let kept = &KDUMP_6_1.manifest()["kernel_text_and_log"];
    let runs = kept["log"].as_array().unwrap().iter().chain([&kept["text"]]);
    let number = |v: &Value| v.as_u64().unwrap();
    runs.flat_map(|r| number(&r["first_pfn"])..number(&r["first_pfn"]) + number(&r["pages"])).collect()
}

#[test]
fn whatever_is_damaged_there_is_a_dump_with_kernel_text_and_log() {
    let folder = scratch();
    let victim = Victim::new(folder.path());
    let filter = inside::page_filter(folder.path(), 30);
    let run = |seed: u64| {
        let kept = filter.run(&victim.path, None);
        kept.unwrap_or_else(|e| panic!("seed {seed}: no dump: {}", e.message))
    };
    let needed = needed();
    let (sound, all) = run(0);
    assert!(sound.issues.is_empty() && all.len() < 30_000, "{sound:?}");
    let (mut weaker, mut started) = (0, Instant::now());
    for seed in 1..=SEEDS {
        let before = victim.damage(&mut Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1));
        let (report, kept) = run(seed);
        let missing = needed.iter().find(|pfn| kept.binary_search(pfn).is_err());
        assert!(
            missing.is_none(),
            "seed {seed}: PFN {:#x} of text or log is not in the dump: {:?} {:?} {:?} {before:x?}",
            missing.unwrap(),
            report.issues,
            report.classes,
            report.notes
        );
        weaker += u64::from(kept.len() > all.len());
        if seed % WHOLE_EVERY == 0 {
            let out = folder.path().join("whole");
            coresift(["dump".as_ref(), "--force".as_ref(), victim.path.as_os_str(), out.as_os_str()]).status(0);
            peers::same_pages(&victim.path, &out, u64::MAX);
        }
        victim.heal(before);
        assert!(started.elapsed() < Duration::from_secs(60), "seed {seed} hung");
        started = Instant::now();
    }
    assert!(weaker > SEEDS / 10, "only {weaker} of {SEEDS} damaged kernels were noticed: are they damaged at all?");
    // Healed, it is the kernel it was.
    assert_eq!(run(0).1, all);
}
