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
    /// `PT_LOAD`s cover all RAM: a gap shorter than [`LONG_GAP`] has room in the file, a longer one is memory behind the
    /// file's part of its segment.
    Coarse,
}

/// A `PT_LOAD`. There may be a million: 24 bytes each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// its first PFN
    pub first_pfn: u64,
    /// pages, from the first on, that the file has room for
    pub file_pages: u64,
    /// pages of memory
    pub mem_pages: u64,
}

/// The segments of an output, ascending, and the number of its dumped pages.
pub fn segments(plan: &Plan<'_>, holes: Holes) -> (Vec<Segment>, u64) {
    let mut pages = 0;
    let dumped = Runs::new(plan, PageSet::Dumped).inspect(|run| pages += run.pages);
    let segments = match holes {
        Holes::Exact => dumped.map(exact).collect(),
        Holes::Coarse => coarse(dumped, Runs::new(plan, PageSet::Ram)),
    };
    (segments, pages)
}

fn exact(run: Run) -> Segment {
    Segment { first_pfn: run.first_pfn, file_pages: run.pages, mem_pages: run.pages }
}

fn coarse(mut dumped: impl Iterator<Item = Run>, ram: impl Iterator<Item = Run>) -> Vec<Segment> {
    let mut segments = Vec::new();
    // A run, or what is left of it, that lies behind the extent at hand.
    let mut rest: Option<Run> = None;
    for extent in ram {
        let mut segment = Segment { first_pfn: extent.first_pfn, file_pages: 0, mem_pages: 0 };
        while let Some(run) = rest.take().or_else(|| dumped.next()) {
            if run.first_pfn >= extent.end_pfn() {
                rest = Some(run);
                break;
            }
            // All that is dumped should be RAM. What is not gets segments of its own rather than get lost.
            let outside = extent.first_pfn.saturating_sub(run.first_pfn).min(run.pages);
            if outside > 0 {
                segments.push(exact(Run { first_pfn: run.first_pfn, pages: outside }));
            }
            let first = run.first_pfn + outside;
            let end = run.end_pfn().min(extent.end_pfn());
            if end > first {
                if first - (segment.first_pfn + segment.file_pages) >= LONG_GAP {
                    segments.push(Segment { mem_pages: first - segment.first_pfn, ..segment });
                    segment.first_pfn = first;
                }
                segment.file_pages = end - segment.first_pfn;
            }
            if run.end_pfn() > extent.end_pfn() {
                rest = Some(Run { first_pfn: extent.end_pfn(), pages: run.end_pfn() - extent.end_pfn() });
                break;
            }
        }
        segments.push(Segment { mem_pages: extent.end_pfn() - segment.first_pfn, ..segment });
    }
    segments.extend(rest.into_iter().chain(dumped).map(exact));
    segments
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
