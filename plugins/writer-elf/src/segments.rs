//! Which pages go into which `PT_LOAD`.

use coresift_sdk::{PageSet, Plan, Run};

/// With coarse holes, so many excluded pages in a row begin a new `PT_LOAD` (`PFN_EXCLUDED`, makedumpfile.h).
const LONG_GAP: u64 = 256;

/// Runs asked for at a time.
const RUNS: usize = 256;

/// What becomes of pages that are not dumped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Holes {
    /// No `PT_LOAD` has them.
    Exact,
    /// `PT_LOAD`s cover all RAM: a gap shorter than [`LONG_GAP`] has room in the file, a longer one is memory without it.
    Coarse,
}

/// The `PT_LOAD`s of an output. There may be a million: 16 bytes each.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Segments {
    /// those that the file has room for, ascending
    pub loads: Vec<Run>,
    /// those without bytes in the file (`p_filesz` 0), ascending.
    ///
    /// makedumpfile -E makes one segment of both, with a `p_filesz` below `p_memsz`. But makedumpfile 1.7.2 takes `p_memsz`
    /// for the length in the file, too, and reads wrong pages from such a file if its pages are aligned.
    pub absent: Vec<Run>,
    /// number of dumped pages
    pub dumped: u64,
}

impl Segments {
    /// The segments of what is planned.
    pub fn of(plan: &Plan<'_>, holes: Holes) -> Self {
        let mut segments = Self::default();
        let mut pages = 0;
        let dumped = Runs::new(plan, PageSet::Dumped).inspect(|run| pages += run.pages);
        match holes {
            Holes::Exact => segments.loads.extend(dumped),
            Holes::Coarse => segments.cover(Runs::new(plan, PageSet::Ram), dumped),
        }
        segments.dumped = pages;
        segments
    }

    fn cover(&mut self, ram: impl Iterator<Item = Run>, mut dumped: impl Iterator<Item = Run>) {
        // A run, or what is left of it, that lies behind the extent at hand.
        let mut rest: Option<Run> = None;
        for extent in ram {
            let (mut start, mut end) = (extent.first_pfn, extent.first_pfn);
            while let Some(run) = rest.take().or_else(|| dumped.next()) {
                if run.first_pfn >= extent.end_pfn() {
                    rest = Some(run);
                    break;
                }
                // All that is dumped should be RAM. What is not gets segments of its own rather than get lost.
                push(&mut self.loads, run.first_pfn, run.end_pfn().min(extent.first_pfn));
                let first = run.first_pfn.max(extent.first_pfn);
                if run.end_pfn() > first {
                    if first - end >= LONG_GAP {
                        push(&mut self.loads, start, end);
                        push(&mut self.absent, end, first);
                        start = first;
                    }
                    end = run.end_pfn().min(extent.end_pfn());
                }
                if run.end_pfn() > extent.end_pfn() {
                    rest = Some(Run { first_pfn: extent.end_pfn(), pages: run.end_pfn() - extent.end_pfn() });
                    break;
                }
            }
            push(&mut self.loads, start, end);
            push(&mut self.absent, end, extent.end_pfn());
        }
        self.loads.extend(rest.into_iter().chain(dumped));
    }
}

/// Adds a run if it is not empty.
fn push(runs: &mut Vec<Run>, first_pfn: u64, end: u64) {
    if first_pfn < end {
        runs.push(Run { first_pfn, pages: end - first_pfn });
    }
}

/// The runs of a set within an output's PFNs, each as long as it gets.
struct Runs<'a> {
    plan: &'a Plan<'a>,
    which: PageSet,
    /// runs got from the host, and the next of them
    buffer: Vec<Run>,
    next: usize,
    /// where to ask on; `None` when there are no more
    from: Option<u64>,
    /// a run that the next one may continue
    open: Option<Run>,
}

impl<'a> Runs<'a> {
    fn new(plan: &'a Plan<'a>, which: PageSet) -> Self {
        Self { plan, which, buffer: Vec::new(), next: 0, from: Some(plan.first_pfn), open: None }
    }

    /// The next piece as the host gives it.
    fn piece(&mut self) -> Option<Run> {
        loop {
            if let Some(run) = self.buffer.get(self.next) {
                self.next += 1;
                return Some(*run);
            }
            let from = self.from?;
            self.buffer.resize(RUNS, Run { first_pfn: 0, pages: 0 });
            let filled = self.plan.pages.runs(self.which, from, &mut self.buffer).min(RUNS);
            let more = filled == RUNS;
            self.buffer.truncate(filled);
            self.next = 0;
            // A host that does not get on would be asked for ever.
            self.from = self.buffer.last().map(|last| last.end_pfn()).filter(|end| more && *end > from);
        }
    }
}

impl Iterator for Runs<'_> {
    type Item = Run;

    fn next(&mut self) -> Option<Run> {
        while let Some(piece) = self.piece() {
            let first_pfn = piece.first_pfn.max(self.plan.first_pfn);
            let end = piece.end_pfn().min(self.plan.end_pfn);
            if end <= first_pfn {
                continue;
            }
            let run = Run { first_pfn, pages: end - first_pfn };
            match &mut self.open {
                Some(open) if open.end_pfn() == run.first_pfn => open.pages += run.pages,
                open => {
                    if let Some(done) = open.replace(run) {
                        return Some(done);
                    }
                }
            }
        }
        self.open.take()
    }
}
