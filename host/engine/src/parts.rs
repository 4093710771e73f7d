//! The parts of an output: one file, or the files of a split dump, each with the pages of a range of PFNs.
//!
//! All parts of a split dump are written by one run, at the same time. They are cut so that each gets about as many
//! bytes: how well pages compress differs a lot between parts of memory, so a sample of them is compressed beforehand.

use std::ops::Range;

use coresift_sdk::{PageContent, Run, Writer};
use rayon::ThreadPool;

use crate::batch::{BATCH_BYTES, BatchPlan, Piece, Planner};
use crate::budget::Budget;
use crate::error::{Error, Result};
use crate::image::Image;
use crate::pack::{Batch, Packing, Worker};
use crate::pageset::PageSet;
use crate::progress::Progress;
use crate::scheduler::{self, Writing};
use crate::sink::Output;

/// Batches of each part that a sample is taken of; in a large dump many batches lie between them.
const SAMPLED_BATCHES: u64 = 64;
/// Pages of such a batch that are compressed to learn how well its pages compress: one of 64.
const SAMPLE_PAGES: u64 = 8;
/// Places in a batch that they are taken from.
const SAMPLE_PLACES: usize = 4;
/// Where parts may begin: crash counts pages of a part in words of 64 bits of the bitmap (diskdump.c).
const PART_PFNS: u64 = 64;

/// A part on its way.
pub struct Part {
    /// its PFNs
    pub pfns: Range<u64>,
    /// writes it
    pub writer: Box<dyn Writer>,
    /// where it goes
    pub output: Box<dyn Output>,
    /// pages given to the writer so far
    pub pages: u64,
    /// why copying ended early
    pub ended: Option<Error>,
}

/// What all parts share.
pub struct Copying<'a> {
    /// the input
    pub image: &'a Image,
    /// the pages
    pub dumped: &'a PageSet,
    /// how they are packed
    pub packing: &'a Packing<'a>,
    /// title of the writer plugin
    pub title: &'a str,
    /// told of every batch
    pub progress: &'a dyn Progress,
    /// threads and memory
    pub budget: Budget,
}

impl Copying<'_> {
    fn planner(&self, pfns: Range<u64>) -> Planner<'_> {
        Planner::new(self.dumped, &self.image.extents, self.image.machine.page_shift, self.budget.map_size).within(pfns)
    }

    /// Cuts all PFNs into this many ranges of about as many bytes.
    ///
    /// # Errors
    /// A filter failed that must not fail.
    pub fn cut(&self, parts: u32, worker: &mut Worker) -> Result<Vec<Range<u64>>> {
        let end = self.image.machine.max_pfn;
        if parts <= 1 {
            return Ok(std::iter::once(0..end).collect());
        }
        let mut batch = Batch::default();
        let batch_pages = (BATCH_BYTES >> self.image.machine.page_shift).max(1) as u64;
        let batches = self.dumped.count() / batch_pages;
        let every = (batches / u64::from(parts) / SAMPLED_BATCHES).max(1);
        // Bytes up to the end of each batch.
        let (mut sum, mut page_bytes) = (0.0, 0.0);
        let mut marks: Vec<(u64, f64)> = Vec::new();
        for (i, plan) in (0..).zip(self.planner(0..end)) {
            let (pages, end) = (plan.pages, plan.pieces.last().map_or(0, |p| p.run.end_pfn()));
            if i % every == 0 {
                let sample = sample(&plan);
                let sampled = sample.pages.max(1);
                worker.pack(&mut batch, sample, self.packing)?;
                let bytes: usize = batch.pages().iter().map(|page| stored_bytes(page.content())).sum();
                batch.clear();
                page_bytes = bytes as f64 / sampled as f64;
            }
            sum += page_bytes * pages as f64;
            marks.push((end, sum));
        }
        let mut ranges = Vec::new();
        let mut from = 0;
        for part in 1..parts {
            let wanted = sum * f64::from(part) / f64::from(parts);
            let to = (cut_at(&marks, wanted) / PART_PFNS * PART_PFNS).clamp(from, end);
            ranges.push(from..to);
            from = to;
        }
        ranges.push(from..end);
        Ok(ranges)
    }

    /// Copies the pages of all parts. What went wrong stands in each.
    pub fn run(&self, parts: &mut [Part], workers: Vec<Worker>, pool: Option<&ThreadPool>) {
        if let [part] = parts {
            let outcome = self.part(part, workers, self.budget.batches, pool);
            part.ended = outcome.err();
            return;
        }
        // No more parts at a time than workers. Each part has its share of them and one more: parts are never equally much
        // work, and whoever is left last should not have to use one CPU alone.
        let at_once = parts.len().min(workers.len()).max(1);
        let each = if workers.len() > 1 { workers.len() / at_once + 1 } else { 1 };
        let batches = each;
        let mut waiting = std::sync::Mutex::new(workers);
        for parts in parts.chunks_mut(at_once) {
            std::thread::scope(|scope| {
                for part in parts {
                    let waiting = &waiting;
                    scope.spawn(move || {
                        let mine = || -> Result<Vec<Worker>> {
                            let mut waiting = waiting.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                            let from = waiting.len().saturating_sub(each);
                            let mut mine = waiting.split_off(from);
                            drop(waiting);
                            while mine.len() < each {
                                mine.push(Worker::start(self.packing)?);
                            }
                            Ok(mine)
                        };
                        let pool = scheduler::pool(Budget { threads: each, ..self.budget });
                        part.ended = mine().and_then(|mine| self.part(part, mine, batches, pool.as_ref())).err();
                    });
                }
            });
            // Workers have state of their own only; the next parts get new ones.
            waiting.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner).clear();
        }
    }

    fn part(&self, part: &mut Part, workers: Vec<Worker>, batches: usize, pool: Option<&ThreadPool>) -> Result<()> {
        let planner = self.planner(part.pfns.clone());
        let Part { writer, output, .. } = part;
        let mut writing =
            Writing { writer: writer.as_mut(), title: self.title, output: output.as_mut(), progress: self.progress, pages: 0 };
        let copied = scheduler::run(planner, self.packing, &mut writing, workers, batches, pool);
        part.pages = writing.pages;
        copied
    }
}

/// The PFN up to which there are as many bytes as wanted; `marks` are sums up to PFNs. Within a batch bytes are taken as
/// evenly spread.
fn cut_at(marks: &[(u64, f64)], wanted: f64) -> u64 {
    let i = marks.partition_point(|(_, bytes)| *bytes < wanted);
    let (before, sum) = i.checked_sub(1).and_then(|i| marks.get(i)).copied().unwrap_or((0, 0.0));
    match marks.get(i) {
        Some(&(end, bytes)) if bytes > sum => before + ((end - before) as f64 * (wanted - sum) / (bytes - sum)) as u64,
        Some(&(end, _)) => end,
        None => before,
    }
}

/// A few pages of a batch, from several places in it.
fn sample(plan: &BatchPlan) -> BatchPlan {
    let step = plan.pieces.len().div_ceil(SAMPLE_PLACES).max(1);
    let chosen: Vec<Piece> = plan.pieces.iter().step_by(step).copied().collect();
    let each = SAMPLE_PAGES / chosen.len().max(1) as u64;
    let shorten = |piece: Piece| Piece { run: Run { pages: piece.run.pages.min(each.max(1)), ..piece.run }, ..piece };
    let pieces: Vec<Piece> = chosen.into_iter().map(shorten).collect();
    BatchPlan { number: plan.number, pages: pieces.iter().map(|p| p.run.pages as usize).sum(), pieces }
}

fn stored_bytes(content: PageContent<'_>) -> usize {
    match content {
        PageContent::Stored { data, .. } => data.len(),
        PageContent::Zero | PageContent::Missing => 0,
    }
}
