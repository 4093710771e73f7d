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
use crate::report::Issues;
use crate::scheduler::{self, Lane, Writing};
use crate::sink::Output;

/// Batches of each part that a sample is taken of; in a large dump many batches lie between them.
const SAMPLED_BATCHES: u64 = 64;
/// Pages of such a batch that are compressed to learn how well its pages compress: one of 128.
const SAMPLE_PAGES: u64 = 4;
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
    pub fn cut(&self, parts: u32, workers: &mut [Worker], pool: Option<&ThreadPool>) -> Result<Vec<Range<u64>>> {
        let end = self.image.machine.max_pfn;
        if parts <= 1 {
            return Ok(std::iter::once(0..end).collect());
        }
        let batch_pages = (BATCH_BYTES >> self.image.machine.page_shift).max(1) as u64;
        let batches = self.dumped.count() / batch_pages;
        let every = (batches / u64::from(parts) / SAMPLED_BATCHES).max(1);
        let samples: Vec<BatchPlan> =
            (0..).zip(self.planner(0..end)).filter(|(i, _)| i % every == 0).map(|(_, plan)| sample(&plan)).collect();
        let page_bytes = self.page_bytes(samples, workers, pool)?;
        // Bytes up to the end of each batch.
        let mut sum = 0.0;
        let mut marks: Vec<(u64, f64)> = Vec::new();
        for (i, plan) in (0..).zip(self.planner(0..end)) {
            sum += page_bytes.get((i / every) as usize).copied().unwrap_or(0.0) * plan.pages as f64;
            marks.push((plan.pieces.last().map_or(0, |p| p.run.end_pfn()), sum));
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

    /// Packs samples, and tells for each how many bytes a page of it takes.
    fn page_bytes(&self, samples: Vec<BatchPlan>, workers: &mut [Worker], pool: Option<&ThreadPool>) -> Result<Vec<f64>> {
        // What goes wrong with a page of a sample goes wrong again when it is dumped, and is reported then. Few pages of many
        // places are read faster than mapped.
        let issues = Issues::default();
        let packing = Packing { issues: &issues, map_size: 0, ..*self.packing };
        let mut packed: Vec<Result<f64>> = samples.iter().map(|_| Ok(0.0)).collect();
        let share = samples.len().div_ceil(workers.len().max(1)).max(1);
        let mut samples = samples.into_iter();
        let tasks = packed.chunks_mut(share).zip(workers).map(|(out, worker)| {
            let samples: Vec<BatchPlan> = samples.by_ref().take(share).collect();
            let packing = &packing;
            move || {
                let mut batch = Batch::default();
                for (sample, out) in samples.into_iter().zip(out) {
                    let pages = sample.pages.max(1);
                    *out = worker
                        .pack(&mut batch, sample, packing)
                        .map(|()| batch.pages().iter().map(|page| stored_bytes(page.content())).sum::<usize>() as f64 / pages as f64);
                    batch.clear();
                }
            }
        });
        match pool {
            Some(pool) => pool.scope(|scope| tasks.for_each(|task| scope.spawn(move |_| task()))),
            None => tasks.for_each(|task| task()),
        }
        packed.into_iter().collect()
    }

    /// Copies the pages of all parts. What went wrong stands in each.
    pub fn run(&self, parts: &mut [Part], workers: Vec<Worker>, pool: Option<&ThreadPool>) {
        let planners: Vec<Planner<'_>> = parts.iter().map(|part| self.planner(part.pfns.clone())).collect();
        let mut writings: Vec<Writing<'_>> = parts
            .iter_mut()
            .map(|Part { writer, output, .. }| Writing {
                writer: writer.as_mut(),
                title: self.title,
                output: output.as_mut(),
                progress: self.progress,
                pages: 0,
            })
            .collect();
        let lanes = planners.into_iter().zip(&mut writings).map(|(planner, writing)| Lane { planner, writing }).collect();
        let outcomes = scheduler::run(lanes, self.packing, workers, self.budget.batches, pool);
        let pages: Vec<u64> = writings.iter().map(|writing| writing.pages).collect();
        for (part, (outcome, pages)) in parts.iter_mut().zip(outcomes.into_iter().zip(pages)) {
            part.ended = outcome.err();
            part.pages = pages;
        }
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
