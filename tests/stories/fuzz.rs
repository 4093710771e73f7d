//! Inputs of every format with damaged bytes: each run ends soon, with a dump or with an error that a person understands, and
//! no plugin panics. The plugins' own tests do the same with inputs built field by field; these are made of a real vmcore.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use coresift_engine::dump::{self, Job};
use coresift_engine::profile::{self, Setting};
use coresift_engine::progress::{Hidden, Progress};
use coresift_engine::registry::Registry;
use coresift_tests::vmcores::KDUMP_6_1;
use coresift_tests::{built, coresift, images, scratch};

/// Damaged inputs of each format.
const SEEDS: u64 = 200;
/// Far more than a sample of 4 MiB takes, however it is damaged.
const SLOW: Duration = Duration::from_secs(20);

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

/// The first pages of a dump of 6.1 in a format.
fn sample(folder: &Path, name: &str, args: &[&str]) -> PathBuf {
    let output = folder.join(name);
    let fixed = ["dump", "-d", "31", "--limit", "4MiB", "--progress", "none"];
    let files = [KDUMP_6_1.path(), output.clone()];
    coresift(fixed.iter().chain(args).map(AsRef::as_ref).chain(files.iter().map(|f| f.as_os_str()))).status(0);
    output
}

/// Damages a file in up to four places, half of them near its beginning or at its end; returns what stood there.
fn damage(file: &std::fs::File, len: u64, random: &mut Random) -> Vec<(u64, Vec<u8>)> {
    let mut before = Vec::new();
    for _ in 0..=random.below(4) {
        let at = match random.below(4) {
            0 => random.below(len),
            1 => random.below(len.min(600)),
            2 => random.below(len.min(64 << 10)),
            _ => len - 1 - random.below(len.min(4096)),
        };
        let width = 1 << random.below(4);
        let mut bytes = vec![0u8; width.min((len - at) as usize)];
        file.read_exact_at(&mut bytes, at).unwrap();
        before.push((at, bytes.clone()));
        match random.below(4) {
            0 => bytes.fill(0xff),
            1 => bytes.fill(0),
            2 => bytes[0] ^= 1 << random.below(8),
            _ => bytes.iter_mut().for_each(|b| *b = random.below(256) as u8),
        }
        file.write_all_at(&bytes, at).unwrap();
    }
    before
}

#[test]
fn damaged_inputs_of_every_format_end_in_a_dump_or_an_error() {
    let folder = scratch();
    let samples = [
        sample(folder.path(), "kdump", &["--compress", "lzo"]),
        sample(folder.path(), "kdump-zstd", &["--compress", "zstd"]),
        sample(folder.path(), "flattened", &["--flattened", "--compress", "snappy"]),
        sample(folder.path(), "elf", &["--writer", "elf"]),
        sample(folder.path(), "lime", &["--writer", "lime"]),
        folder.path().join("sadump"),
        folder.path().join("xen"),
    ];
    images::sadump(&images::pages(2000), &[&samples[5]]);
    images::xen_core(&images::pages(1000), &samples[6]);
    // Every page that is found is read and looked at.
    let settings: Vec<_> = ["compress.plugin=none", "compress.fallback=[]"].map(|s| Setting::parse(s).unwrap()).into();
    let profile = profile::open("plain", &settings).unwrap();
    let registry = Registry::new(&[built()]);
    let mut random = Random(0x2545_f491_4f6c_dd1d);
    for path in samples {
        let file = std::fs::File::options().read(true).write(true).open(&path).unwrap();
        let len = file.metadata().unwrap().len();
        let (mut dumps, mut errors) = (0, 0);
        for seed in 0..SEEDS {
            let before = damage(&file, len, &mut random);
            // One in eight is cut, too.
            let input = if random.below(8) == 0 {
                let cut = folder.path().join("cut");
                std::fs::copy(&path, &cut).unwrap();
                std::fs::File::options().write(true).open(&cut).unwrap().set_len(1 + random.below(len)).unwrap();
                cut
            } else {
                path.clone()
            };
            let progress: Arc<dyn Progress> = Arc::new(Hidden);
            let job = Job { inputs: vec![input], output: None, more_outputs: Vec::new(), force: false, profile: profile.clone() };
            let clock = Instant::now();
            let outcome = dump::run(&job, &registry, &progress);
            let place = format!("{}, seed {seed}", path.display());
            assert!(clock.elapsed() < SLOW, "{place} took {:?}", clock.elapsed());
            match outcome {
                Ok(report) => {
                    dumps += 1;
                    assert!(report.issues.iter().all(|issue| !issue.what.contains("panic")), "{place}: {:?}", report.issues);
                    let pages = &report.pages;
                    assert!(pages.stored + pages.zero + pages.lost + pages.excluded + pages.absent <= pages.ram, "{place}: {pages:?}");
                }
                Err(e) => {
                    errors += 1;
                    assert!(!e.message.contains("panic") && !e.message.contains("bug"), "{place}: {e}");
                }
            }
            // The last write first: a place may have been hit twice.
            before.iter().rev().for_each(|(at, bytes)| file.write_all_at(bytes, *at).unwrap());
        }
        // Damage in the data leaves a dump; a header that makes no sense is refused.
        assert!(dumps > SEEDS / 4, "{}: {dumps} dumps, {errors} errors", path.display());
    }
}
