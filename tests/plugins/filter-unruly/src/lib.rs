//! A filter that misbehaves on request: what the tests of containment and of the merge rule load.
//!
//! `mode` chooses what it does; `first` and `pages` name a run of PFNs for the modes that need one.
#![allow(clippy::panic)] // panicking is what it is for

use coresift_sdk::{
    Block, Erase, Error, ErrorKind, Filter, Key, Level, Manifest, PageBatch, PhysicalMemory, RangeVerdict, Result, Run, Setup, Stages,
    Survey, Verdict, export_plugin,
};

const MODES: [&str; 15] = [
    "quiet",
    "panic-open",
    "panic-survey",
    "panic-classify",
    "panic-inspect",
    "error-inspect",
    "unknown-verdict",
    "exclude-range",
    "keep-range",
    "classify-range",
    "erase-range",
    "inspect-ones",
    "panic-drop",
    "panic-payload",
    "exclude-then-panic",
];

fn manifest() -> Manifest {
    let stages = Stages::SURVEY.and(Stages::CLASSIFY).and(Stages::INSPECT);
    Manifest::filter("unruly", "0.1.0", "misbehaves on request, for tests", stages)
        .class("ranged")
        .class("ones")
        .key(Key::choice("mode", "quiet", &MODES, "what it does"))
        .key(Key::integer("first", 0, 0, i64::MAX, "first PFN of the run"))
        .key(Key::integer("pages", 0, 0, i64::MAX, "pages of the run"))
}

struct Unruly {
    mode: String,
    run: Run,
    memory: Option<PhysicalMemory>,
    page_size: u64,
}

fn open(setup: Setup) -> Result<Box<dyn Filter>> {
    let mode = setup.config.text("mode")?.to_owned();
    if mode == "panic-open" {
        panic!("as asked for: open");
    }
    let number = |key| setup.config.integer(key).map(i64::cast_unsigned);
    let memory = setup.host.physical_memory();
    let page_size = setup.machine.as_ref().map_or(4096, |m| m.page_size() as u64);
    Ok(Box::new(Unruly { mode, run: Run { first_pfn: number("first")?, pages: number("pages")? }, memory, page_size }))
}

impl Filter for Unruly {
    fn survey(&self, out: &mut dyn Survey) -> Result<()> {
        let verdict = match self.mode.as_str() {
            "panic-survey" => panic!("as asked for: survey"),
            "exclude-range" => Verdict::plugin_class(0),
            "keep-range" => Verdict::KEEP,
            "exclude-then-panic" => {
                out.ranges(&[RangeVerdict { run: self.run, verdict: Verdict::FREE }]);
                panic!("as asked for: survey");
            }
            "erase-range" => {
                // Looks first whether it can be read: what a redacting filter does to find its bytes.
                let memory = self.memory.as_ref().ok_or_else(|| Error::unsupported("no physical memory"))?;
                let paddr = self.run.first_pfn * self.page_size;
                let mut byte = [0];
                memory.read(paddr, &mut byte)?;
                memory.host().log(Level::Info, "found what to erase");
                out.erase(&[Erase { paddr, len: self.run.pages * self.page_size, fill: b'X' }]);
                return Ok(());
            }
            _ => return Ok(()),
        };
        out.ranges(&[RangeVerdict { run: self.run, verdict }]);
        Ok(())
    }

    fn classify(&self, block: &Block<'_>, verdicts: &mut [Verdict]) -> Result<()> {
        match self.mode.as_str() {
            "panic-classify" => panic!("as asked for: classify"),
            "classify-range" => {
                for (pfn, verdict) in (block.first_pfn()..).zip(verdicts) {
                    if (self.run.first_pfn..self.run.end_pfn()).contains(&pfn) {
                        *verdict = Verdict::FREE;
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn inspect(&self, batch: &PageBatch<'_>, verdicts: &mut [Verdict]) -> Result<()> {
        match self.mode.as_str() {
            "panic-inspect" => panic!("as asked for: inspect"),
            "panic-payload" => std::panic::panic_any(Bomb),
            "error-inspect" => return Err(Error::new(ErrorKind::Other, "as asked for").hint("ask for something else")),
            "unknown-verdict" => verdicts.fill(Verdict(77)),
            "inspect-ones" => {
                for (page, verdict) in batch.pages().zip(verdicts) {
                    if page.iter().all(|&b| b == 0xff) {
                        *verdict = Verdict::plugin_class(1);
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }
}

/// A panic's payload that panics again when it is dropped.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        panic!("as asked for: payload");
    }
}

impl Drop for Unruly {
    fn drop(&mut self) {
        if self.mode == "panic-drop" {
            panic!("as asked for: drop");
        }
    }
}

export_plugin! { kind: filter, name: "unruly", manifest: manifest, open: open }
