//! PACK: a batch's pages are read, erased where asked, judged by their bytes, and compressed. Runs on every worker.

use std::sync::atomic::AtomicBool;

use coresift_sdk::{Compressor, ErrorKind, Filter, Host, PackBuffer, PackedPage, PageList, Setup, Stages, Verdict};

use crate::batch::BatchPlan;
use crate::classify::Patches;
use crate::error::{Error, Result};
use crate::image::Image;
use crate::load::Loaded;
use crate::pageset::PageSet;
use crate::profile::{Chosen, ChosenFilter, OnFailure};
use crate::report::{Counts, Issues, Tally};

/// A filter at work.
pub struct RunningFilter {
    /// kind and name, for messages
    pub title: String,
    /// the plugin's object
    pub filter: Box<dyn Filter>,
    /// when it is called
    pub stages: Stages,
    /// names of its own page classes
    pub classes: Vec<String>,
    on_failure: OnFailure,
    /// by number: verdicts that mean something
    known: [bool; 256],
}

impl RunningFilter {
    /// Makes a filter from its plugin.
    ///
    /// # Errors
    /// It cannot be made and the profile does not allow to go on without it.
    pub fn start(chosen: &ChosenFilter, image: &Image, host: Host, issues: &Issues) -> Result<Option<Self>> {
        let plugin = &chosen.chosen.plugin;
        let setup = Setup { config: chosen.chosen.config.clone(), host, machine: Some(image.machine.clone()), sources: Vec::new() };
        let title = plugin.title();
        match plugin.library.filter(setup) {
            Ok(filter) => {
                let stages = Stages(plugin.manifest.stages.0 & filter.stages().0);
                let classes = plugin.manifest.classes.clone();
                let mut running = Self { title, filter, stages, classes, on_failure: chosen.on_failure, known: [true; 256] };
                for verdict in (0..=u8::MAX).map(Verdict) {
                    let known = !verdict.excludes() || running.class_name(verdict).is_some();
                    running.known.iter_mut().skip(usize::from(verdict.0)).take(1).for_each(|k| *k = known);
                }
                Ok(Some(running))
            }
            Err(e) if chosen.on_failure == OnFailure::Keep && e.kind != ErrorKind::Config => {
                issues.add(&title, "the whole run", &e.to_string());
                Ok(None)
            }
            Err(e) => Err(Error::plugin(&title, &e)),
        }
    }

    /// Looks at the outcome of a call: true if its verdicts count, false if it failed and may fail.
    ///
    /// # Errors
    /// It failed and must not fail.
    pub fn check(&self, outcome: coresift_sdk::Result<()>, place: &str, issues: &Issues) -> Result<bool> {
        match outcome {
            Ok(()) => Ok(true),
            Err(e) if self.on_failure == OnFailure::Keep => {
                issues.add(&self.title, place, &e.to_string());
                Ok(false)
            }
            Err(e) => {
                let error = Error::plugin(&self.title, &e);
                Err(Error { message: format!("{} ({place}); nothing more is written", error.message), ..error })
            }
        }
    }

    /// Makes verdicts undecided that mean nothing: a number that nobody declared excludes nothing.
    pub fn forget_unknown(&self, verdicts: &mut [Verdict], issues: &Issues) {
        let mut unknown = None;
        // A loop without branches first: hardly any filter ever errs, and few have classes of their own.
        let highest = verdicts.iter().fold(0, |highest, v| v.0.max(highest));
        let all_known = highest <= Verdict::MEMMAP.0 || verdicts.iter().all(|v| self.known(*v));
        for verdict in verdicts.iter_mut().filter(|v| !all_known && !self.known(**v)) {
            unknown = Some(std::mem::take(verdict));
        }
        if let Some(verdict) = unknown {
            issues.add(&self.title, "", &format!("gave the unknown verdict {}; such pages are kept", verdict.0));
        }
    }

    /// True for a verdict that excludes nothing or whose class has a name.
    fn known(&self, verdict: Verdict) -> bool {
        self.known.get(usize::from(verdict.0)).copied().unwrap_or(false)
    }

    /// Name of the class of a verdict.
    pub fn class_name(&self, verdict: Verdict) -> Option<&str> {
        let own = || verdict.0.checked_sub(Verdict::PLUGIN.0).and_then(|i| self.classes.get(usize::from(i)));
        verdict.class_name().or_else(|| own().map(String::as_str))
    }
}

/// What became of a page of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Raw,
    /// as the input has it, not decompressed or needlessly so
    AsStored,
    /// number of the page in the pack buffer
    Packed(u32),
    Zero,
    Gone,
}

/// What all workers share.
#[derive(Clone, Copy)]
pub struct Packing<'a> {
    /// the input
    pub image: &'a Image,
    /// filters; those with the inspect stage are called here
    pub filters: &'a [RunningFilter],
    /// bytes to erase
    pub patches: &'a Patches,
    /// pages that a filter wants kept
    pub pinned: &'a PageSet,
    /// compressor, if pages are compressed
    pub compressor: Option<&'a Chosen>,
    /// codec bits that the writer can store
    pub writable: u32,
    /// store pages as the input has them wherever the writer can
    pub keep_codecs: bool,
    /// services for the compressor
    pub host: &'a Host,
    /// largest window, 0 = read
    pub map_size: usize,
    /// a dry run without compression and without a filter that looks at bytes: pages need not be read
    pub count_only: bool,
    /// set when the run is to end: what plugins see as cancelled
    pub cancel: &'a AtomicBool,
    /// counts
    pub tally: &'a Tally,
    /// what went wrong
    pub issues: &'a Issues,
}

/// One worker's own things.
pub struct Worker {
    compressor: Option<Box<dyn Compressor>>,
    codec: u32,
    /// a page of the compressor's came back as it went in
    proven: bool,
}

/// A batch in flight. Buffers are reused.
#[derive(Default)]
pub struct Batch {
    plan: BatchPlan,
    loaded: Loaded,
    /// copies of pages with erased bytes, page size each
    erased: Vec<u8>,
    /// for each page: where its erased copy begins
    erased_at: Vec<Option<usize>>,
    outcomes: Vec<Outcome>,
    /// for each page: what filters said of its bytes, and which of them
    said: Vec<(Verdict, usize)>,
    packed: PackBuffer,
    codec: u32,
}

impl Worker {
    /// A worker with a compressor of its own.
    ///
    /// # Errors
    /// The compressor cannot be made.
    pub fn start(packing: &Packing<'_>) -> Result<Self> {
        let Some(chosen) = packing.compressor else { return Ok(Self { compressor: None, codec: 0, proven: false }) };
        let setup = Setup {
            config: chosen.config.clone(),
            host: packing.host.clone(),
            machine: Some(packing.image.machine.clone()),
            sources: Vec::new(),
        };
        let compressor = chosen.plugin.library.compressor(setup).map_err(|e| Error::plugin(&chosen.plugin.title(), &e))?;
        Ok(Self { compressor: Some(compressor), codec: chosen.plugin.manifest.codec, proven: false })
    }

    /// Makes a batch ready to be written.
    ///
    /// # Errors
    /// A filter that must not fail failed.
    pub fn pack(&mut self, batch: &mut Batch, plan: BatchPlan, packing: &Packing<'_>) -> Result<()> {
        batch.plan = plan;
        self.attempt(batch, packing, packing.map_size)?;
        if batch.loaded.damaged() { self.pack_again(batch, packing) } else { Ok(()) }
    }

    /// Packs a batch again whose input broke under a window. Reading tells which pages are left.
    ///
    /// # Errors
    /// As [`Self::pack`].
    pub fn pack_again(&mut self, batch: &mut Batch, packing: &Packing<'_>) -> Result<()> {
        self.attempt(batch, packing, 0)
    }

    fn attempt(&mut self, batch: &mut Batch, packing: &Packing<'_>, map_size: usize) -> Result<()> {
        let issues = Issues::default();
        if packing.count_only {
            batch.loaded.stand_in(&batch.plan, packing.image.machine.page_size());
        } else {
            batch.loaded.load(&batch.plan, packing.image, map_size, &issues);
        }
        self.decode(batch, packing, &issues);
        batch.erase(packing);
        batch.inspect(packing, &issues)?;
        self.compress(batch, packing, &issues)?;
        batch.touch();
        // What went wrong with zeros that stood for broken pages went not wrong.
        if !batch.loaded.damaged() {
            packing.issues.absorb(&issues);
        }
        Ok(())
    }

    /// True if a page stored with this codec goes into the output as it is. A raw one does if it was tried to compress it
    /// the same way: then it does not shrink.
    fn is_fine(&self, codec: u32, packing: &Packing<'_>) -> bool {
        let storable = codec == 0 || packing.writable & codec == codec;
        let wanted = packing.keep_codecs || codec == self.codec || codec == 0 && packing.image.machine.codec == self.codec;
        storable && (wanted || !packing.image.decodes(codec))
    }

    /// Decompresses the stored pages whose bytes somebody has to see.
    fn decode(&self, batch: &mut Batch, packing: &Packing<'_>, issues: &Issues) {
        let mut inspecting = packing.filters.iter().filter(|f| f.stages.contains(Stages::INSPECT)).peekable();
        let inspected = inspecting.peek().is_some();
        let must_see = inspecting.any(|f| f.on_failure == OnFailure::Stop);
        let (shift, page_size) = (packing.image.machine.page_shift, packing.image.machine.page_size() as u64);
        let mut unseen = false;
        let seen: Vec<bool> = (0..batch.loaded.pfns().len())
            .map(|i| {
                let paddr = batch.loaded.pfns().get(i).map_or(0, |pfn| pfn << shift);
                let stored = batch.loaded.stored(i).filter(|_| !batch.loaded.is_zero(i));
                let kept = batch.loaded.is_zero(i) || stored.is_some_and(|(_, codec)| self.is_fine(codec, packing));
                // Better a page that a filter has not seen than none, unless the filter is one that must not fail.
                let blind = kept && !must_see && stored.is_some_and(|(_, codec)| !packing.image.decodes(codec));
                unseen |= blind && inspected;
                let erased = !packing.patches.is_empty() && packing.patches.touching(paddr, page_size).next().is_some();
                erased || !blind && (inspected || !kept)
            })
            .collect();
        if unseen {
            issues.add(
                "input",
                "",
                "no compressor plugin for the codec of its pages: no filter sees their bytes, they are stored as they are",
            );
        }
        batch.loaded.decode(|i| seen.get(i) == Some(&true), packing.image, issues);
    }

    fn compress(&mut self, batch: &mut Batch, packing: &Packing<'_>, issues: &Issues) -> Result<()> {
        for (i, outcome) in batch.outcomes.iter_mut().enumerate().filter(|(_, o)| **o == Outcome::Raw) {
            let stored = batch.loaded.stored(i).filter(|(_, codec)| self.is_fine(*codec, packing));
            if stored.is_some() && batch.erased_at.get(i).copied().flatten().is_none() {
                *outcome = Outcome::AsStored;
            }
        }
        let Some(compressor) = &mut self.compressor else { return Ok(()) };
        batch.codec = self.codec;
        let (page_shift, page_size) = (packing.image.machine.page_shift, packing.image.machine.page_size());
        let Batch { loaded, erased, erased_at, outcomes, packed, .. } = batch;
        let mut list = PageList::with_capacity(outcomes.len());
        for (i, _) in outcomes.iter().enumerate().filter(|(_, o)| **o == Outcome::Raw) {
            if let (Some(pfn), Some(page)) = (loaded.pfns().get(i), page_of(loaded, erased, erased_at, i)) {
                list.push(*pfn, page);
            }
        }
        let pages = list.batch(page_shift).map_err(|e| Error::plugin("batch", &e))?;
        if pages.is_empty() {
            return Ok(());
        }
        let title = packing.compressor.map(|c| c.plugin.title()).unwrap_or_default();
        let outcome = compressor.compress(&pages, &mut packed.lend(pages.len(), page_size));
        if let Err(e) = outcome {
            // The pages themselves are good: they are stored raw.
            issues.add(&title, "", &format!("{e}; the batch is stored uncompressed"));
            if e.kind == ErrorKind::Panic {
                self.restart(packing);
            }
            return Ok(());
        }
        // A compressor that writes what nobody can read would lose every page: its first one is read back.
        if !self.proven {
            let first = packed.pages().zip(pages.pages()).find_map(|(stored, page)| stored.map(|s| (s, page)));
            if let Some((stored, page)) = first {
                let mut back = vec![0u8; page_size];
                let read = compressor.decompress(&[stored], page_size, &mut back);
                self.proven = read.is_ok() && back == page;
                // A page that broke under its window between the two is the input's fault; it is packed again.
                if !self.proven && !loaded.damaged() {
                    issues.add(&title, "", "what it compressed does not come back: pages are stored uncompressed");
                    self.compressor = None;
                    return Ok(());
                }
            }
        }
        // A compressed page as long as a page, or longer, is no gain and no writer takes it.
        let shrunk: Vec<bool> = packed.pages().map(|p| p.is_some_and(|bytes| bytes.len() < page_size)).collect();
        let raw = outcomes.iter_mut().filter(|o| **o == Outcome::Raw);
        for ((number, outcome), shrunk) in (0..).zip(raw).zip(shrunk) {
            *outcome = if shrunk { Outcome::Packed(number) } else { Outcome::Raw };
        }
        Ok(())
    }

    /// After a panic a compressor's own state may be half changed: make a new one, or go on without.
    fn restart(&mut self, packing: &Packing<'_>) {
        self.compressor = Self::start(packing).ok().and_then(|w| w.compressor);
    }
}

/// The bytes of a page as they may be written: the erased copy if there is one.
fn page_of<'a>(loaded: &'a Loaded, erased: &'a [u8], erased_at: &[Option<usize>], i: usize) -> Option<&'a [u8]> {
    let page = loaded.page(i)?;
    match erased_at.get(i).copied().flatten() {
        None => Some(page),
        Some(at) => erased.get(at..at + page.len()),
    }
}

impl Batch {
    /// Copies the pages with bytes to erase and overwrites these.
    fn erase(&mut self, packing: &Packing<'_>) {
        self.erased.clear();
        self.erased_at.clear();
        if packing.patches.is_empty() {
            return;
        }
        let (shift, page_size) = (packing.image.machine.page_shift, packing.image.machine.page_size());
        for (i, pfn) in self.loaded.pfns().iter().enumerate() {
            let paddr = pfn << shift;
            let mut touching = packing.patches.touching(paddr, page_size as u64).peekable();
            let page = if touching.peek().is_some() { self.loaded.page(i) } else { None };
            self.erased_at.push(page.map(|page| {
                let at = self.erased.len();
                self.erased.extend_from_slice(page);
                for patch in touching {
                    let from = (patch.paddr.max(paddr) - paddr) as usize;
                    let to = (patch.paddr.saturating_add(patch.len).min(paddr + page_size as u64) - paddr) as usize;
                    self.erased.get_mut(at + from..at + to).unwrap_or_default().fill(patch.fill);
                }
                at
            }));
        }
    }

    /// Lets the filters look at the pages' bytes.
    fn inspect(&mut self, packing: &Packing<'_>, issues: &Issues) -> Result<()> {
        let Self { loaded, erased, erased_at, outcomes, said, .. } = self;
        let pages = loaded.pfns().len();
        outcomes.clear();
        outcomes.extend((0..pages).map(|i| match loaded.page(i) {
            Some(_) => Outcome::Raw,
            None if loaded.is_zero(i) => Outcome::Zero,
            None if loaded.is_stored(i) => Outcome::AsStored,
            None => Outcome::Gone,
        }));
        let pinned = |pfn: &u64| !packing.pinned.is_empty() && packing.pinned.contains(*pfn);
        said.clear();
        let zero_by = packing.filters.iter().position(|f| f.filter.excludes().contains(Verdict::ZERO));
        said.extend(loaded.pfns().iter().zip(outcomes.iter()).map(|(pfn, outcome)| match (outcome, zero_by) {
            (Outcome::Zero, Some(filter)) => (Verdict::ZERO, filter),
            _ => (if pinned(pfn) { Verdict::KEEP } else { Verdict::UNDECIDED }, 0),
        }));
        let present: Vec<usize> = (0..pages).filter(|i| outcomes.get(*i) == Some(&Outcome::Raw)).collect();
        let mut list = PageList::with_capacity(present.len());
        for i in &present {
            if let (Some(pfn), Some(page)) = (loaded.pfns().get(*i), page_of(loaded, erased, erased_at, *i)) {
                list.push(*pfn, page);
            }
        }
        let batch = list.batch(packing.image.machine.page_shift).map_err(|e| Error::plugin("batch", &e))?;
        let mut verdicts = Vec::new();
        for (index, filter) in packing.filters.iter().enumerate().filter(|(_, f)| f.stages.contains(Stages::INSPECT)) {
            verdicts.clear();
            verdicts.resize(batch.len(), Verdict::UNDECIDED);
            let place = format!("batch at PFN {:#x}", batch.pfns().first().copied().unwrap_or(0));
            let outcome = filter.filter.inspect(&batch, &mut verdicts);
            if !filter.check(outcome, &place, issues)? {
                continue;
            }
            filter.forget_unknown(&mut verdicts, issues);
            for (i, verdict) in present.iter().zip(&verdicts) {
                let Some(so_far) = said.get_mut(*i) else { continue };
                let joined = so_far.0.merge(*verdict);
                if joined != so_far.0 {
                    *so_far = (joined, index);
                }
            }
        }
        for ((verdict, _), outcome) in said.iter().zip(outcomes.iter_mut()) {
            if verdict.excludes() && *outcome == Outcome::Raw {
                // Zero pages stay readable at no cost: they share one stored page.
                *outcome = if *verdict == Verdict::ZERO { Outcome::Zero } else { Outcome::Gone };
            }
        }
        Ok(())
    }

    /// Counts what became of some pages of the batch.
    pub fn count(&self, pages: std::ops::Range<usize>, counts: &mut Counts) {
        let outcomes = self.outcomes.get(pages.clone()).unwrap_or_default();
        for (outcome, (verdict, by)) in outcomes.iter().zip(self.said.get(pages).unwrap_or_default()) {
            match outcome {
                Outcome::Raw | Outcome::Packed(_) | Outcome::AsStored => counts.stored += 1,
                Outcome::Zero if !verdict.excludes() => counts.stored += 1,
                Outcome::Zero => counts.exclude(*by, *verdict, 1),
                Outcome::Gone if verdict.excludes() => counts.exclude(*by, *verdict, 1),
                Outcome::Gone => counts.lost += 1,
            }
        }
    }

    /// Faults every page in that will be written as it is: if the input breaks, it does so here, where it is seen, and
    /// not in the middle of a write.
    fn touch(&self) {
        let step = rustix::param::page_size();
        for i in (0..self.outcomes.len()).filter(|i| self.outcomes.get(*i) == Some(&Outcome::Raw)) {
            let sum = self.loaded.page(i).unwrap_or_default().iter().step_by(step).fold(0u8, |s, b| s ^ b);
            std::hint::black_box(sum);
        }
    }

    /// Number of the batch.
    pub fn number(&self) -> u64 {
        self.plan.number
    }

    /// Bytes that were taken from the input for it.
    pub fn bytes_read(&self) -> u64 {
        self.loaded.bytes_read
    }

    /// PFNs, ascending.
    pub fn pfns(&self) -> &[u64] {
        self.loaded.pfns()
    }

    /// What the writer gets, one entry a page.
    pub fn pages(&self) -> Vec<PackedPage<'_>> {
        let packed: Vec<_> = self.packed.pages().collect();
        let raw = |i| page_of(&self.loaded, &self.erased, &self.erased_at, i);
        let page = |(i, outcome): (usize, &Outcome)| match *outcome {
            Outcome::Zero => PackedPage::zero(),
            Outcome::AsStored => self.loaded.stored(i).map_or_else(PackedPage::missing, |(data, codec)| PackedPage::stored(data, codec)),
            Outcome::Raw => raw(i).map_or_else(PackedPage::missing, |page| PackedPage::stored(page, 0)),
            Outcome::Packed(n) => match packed.get(n as usize).copied().flatten() {
                Some(bytes) => PackedPage::stored(bytes, self.codec),
                None => PackedPage::missing(),
            },
            Outcome::Gone => PackedPage::missing(),
        };
        self.outcomes.iter().enumerate().map(page).collect()
    }

    /// Gives the windows back.
    pub fn clear(&mut self) {
        self.loaded.clear();
        self.outcomes.clear();
    }
}
