//! The whole run: profile → plugins → input → classify → copy → dump.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use coresift_sdk::{ClassSet, End, PageSet as Which, PageSets, Plan, Run, Setup, Stages, Verdict, Writer};

use crate::budget;
use crate::classify::{Classified, classify};
use crate::error::{Error, Result};
use crate::image::{Image, Opening, open_sources};
use crate::pack::{Packing, RunningFilter};
use crate::parts::{Copying, Part};
use crate::profile::{self, Plugins, Profile};
use crate::progress::{Phase, Progress};
use crate::registry::Registry;
use crate::report::{Issues, Outcome, Pages, PartWritten, Report, Seconds, Tally};
use crate::scheduler;
use crate::services::services;
use crate::sink::{self, FileSink, Flattened, Limited, Nothing, Output, Pipe};
use crate::vmemmap;

/// Largest window if the profile says nothing: the size at which makedumpfile's authors found mapping /proc/vmcore best.
pub const MAP_SIZE: u64 = 4 << 20;

/// Version of the report's JSON schema.
const SCHEMA: u32 = 1;

/// What to do.
#[derive(Debug)]
pub struct Job {
    /// the inputs
    pub inputs: Vec<PathBuf>,
    /// the dump; `None` = only count (dry run)
    pub output: Option<PathBuf>,
    /// files of the other parts, as many as the profile's `split` says less one; none = numbered ones beside the output
    pub more_outputs: Vec<PathBuf>,
    /// overwrite an existing output
    pub force: bool,
    /// the checked profile
    pub profile: Profile,
}

/// Runs a job.
///
/// # Errors
/// Nothing usable was written; if a part of a dump exists, the message says where.
pub fn run(job: &Job, registry: &Registry, progress: &Arc<dyn Progress>) -> Result<Report> {
    run_to(job, registry, progress, &|part| job.make_output(part))
}

/// Runs a job whose output is made by `make_output`, once the input is open and classified.
///
/// # Errors
/// As [`run`].
pub fn run_to(job: &Job, registry: &Registry, progress: &Arc<dyn Progress>, make_output: &MakeOutput<'_>) -> Result<Report> {
    let started = Instant::now();
    // Everything that can be known before the input is opened is checked before: a typo must not cost a dump.
    let plugins = profile::resolve(&job.profile, registry, progress.as_ref())?;
    job.check_outputs()?;
    let sources = open_sources(&job.inputs, progress.as_ref())?;
    let outputs = job.outputs();
    let mut written = outputs.iter().flat_map(|o| [o.clone(), sink::unfinished(o)]);
    if let Some(output) = written.find(|o| sources.iter().any(|s| s.is_same_file(o))) {
        return Err(Error::usage(format!("{} is both input and output", output.display())).hint("give another output name"));
    }
    let opening =
        Opening { reader: plugins.reader.clone(), settings: Some(job.profile.reader.clone()), vmcoreinfo: job.profile.vmcoreinfo.clone() };
    let image = Arc::new(Image::open(sources, &opening, registry, progress)?);
    image.machine.warnings.iter().for_each(|w| progress.warn(w));
    Dump { job, plugins, image, progress, started, issues: Issues::default() }.run(make_output)
}

/// Makes the output of a run, or a part of it by its number.
pub type MakeOutput<'a> = dyn Fn(u32) -> Result<Box<dyn Output>> + 'a;

impl Job {
    /// The files that will be written.
    pub fn outputs(&self) -> Vec<PathBuf> {
        let Some(name) = &self.output else { return Vec::new() };
        if !self.more_outputs.is_empty() {
            return std::iter::once(name).chain(&self.more_outputs).cloned().collect();
        }
        match self.profile.split {
            0 | 1 => vec![name.clone()],
            parts => (1..=parts).map(|part| numbered(name, part)).collect(),
        }
    }

    /// True if the output is standard output.
    pub fn to_stdout(&self) -> bool {
        self.output.as_ref().is_some_and(|name| name.as_os_str() == STDOUT)
    }

    fn check_outputs(&self) -> Result<()> {
        let outputs = self.outputs();
        if let Some(twice) = outputs.iter().enumerate().find(|(i, name)| outputs.iter().skip(i + 1).any(|other| other == *name)) {
            return Err(Error::usage(format!("{} is the output of two parts", twice.1.display())).hint("give each part its own file"));
        }
        if self.profile.flattened {
            return match (self.to_stdout() || self.output.as_ref().is_some_and(|name| is_pipe(name)), self.profile.split) {
                (true, 0 | 1) => Ok(()),
                (true, _) => Err(Error::usage("a pipe takes one stream, not the parts of a split dump").hint("give a file name")),
                (false, _) => self.outputs().iter().try_for_each(|output| FileSink::check(output, self.force)),
            };
        }
        if self.to_stdout() {
            let message = "a dump needs random access to its output, and standard output has none";
            return Err(Error::usage(message).hint("add --flattened, or give a file name"));
        }
        self.outputs().iter().try_for_each(|output| FileSink::check(output, self.force))
    }

    fn make_output(&self, part: u32) -> Result<Box<dyn Output>> {
        let outputs = self.outputs();
        let output: Box<dyn Output> = match outputs.get(part as usize) {
            Some(_) if self.profile.flattened && self.to_stdout() => Box::new(Pipe::stdout()?),
            Some(name) if self.profile.flattened && is_pipe(name) => Box::new(Pipe::open(name)?),
            Some(name) => Box::new(FileSink::create(name, self.force)?),
            None => Box::new(Nothing::default()),
        };
        let output: Box<dyn Output> = if self.profile.flattened { Box::new(Flattened::new(output)) } else { output };
        Ok(match self.profile.limit {
            Some(limit) => Box::new(Limited::new(output, limit)),
            None => output,
        })
    }
}

/// Name that stands for standard output.
const STDOUT: &str = "-";

fn is_pipe(name: &std::path::Path) -> bool {
    use std::os::unix::fs::FileTypeExt;
    std::fs::metadata(name).is_ok_and(|m| m.file_type().is_fifo() || m.file_type().is_char_device())
}

/// Name of a part of a split dump.
fn numbered(name: &std::path::Path, part: u32) -> PathBuf {
    let mut file = name.as_os_str().to_owned();
    file.push(format!(".{part}"));
    file.into()
}

/// A run whose plugins and input are open.
struct Dump<'a> {
    job: &'a Job,
    plugins: Plugins,
    image: Arc<Image>,
    progress: &'a Arc<dyn Progress>,
    started: Instant,
    issues: Issues,
}

impl Dump<'_> {
    fn run(self, make_output: &MakeOutput<'_>) -> Result<Report> {
        let mut seconds = Seconds { open: self.started.elapsed().as_secs_f64(), ..Seconds::default() };
        self.plugins.weakened.iter().for_each(|w| self.issues.add("profile", "", w));
        let cancel = Arc::default();
        let host = services(self.progress, Some(self.image.clone()), &cancel);
        let mut filters = Vec::new();
        for chosen in &self.plugins.filters {
            filters.extend(RunningFilter::start(chosen, &self.image, host.clone(), &self.issues)?);
        }
        let tally = Tally::new(filters.len());
        let profile = &self.job.profile;
        let budget = budget::plan(profile.threads, profile.map_size, profile.memory, self.image.machine.page_size());

        let pool = scheduler::pool(budget);
        let clock = Instant::now();
        self.progress.phase(Phase::Classify, self.image.extents.iter().map(|e| e.pages).sum());
        let map = budget.map_size > 0;
        let mut classified = classify(&self.image, &filters, &tally, &self.issues, self.progress.as_ref(), pool.as_ref(), map)?;
        self.exclude_mem_map(&mut classified, &filters, &tally);
        let mut notes = self.findings(&filters);
        if classified.unknown > 0 {
            notes.push(format!("{} pages lie outside of the kernel's mem_map (firmware, devices); they are kept", classified.unknown));
        }
        seconds.classify = clock.elapsed().as_secs_f64();

        let clock = Instant::now();
        let packing = Packing {
            image: &self.image,
            filters: &filters,
            patches: &classified.patches,
            pinned: &classified.pinned,
            compressor: self.plugins.compressor.as_ref(),
            writable: self.plugins.writer.plugin.manifest.codecs,
            keep_codecs: self.plugins.keep_codecs,
            host: &host,
            map_size: budget.map_size,
            count_only: self.job.output.is_none()
                && self.plugins.compressor.is_none()
                && classified.patches.is_empty()
                && !filters.iter().any(|f| f.stages.contains(Stages::INSPECT)),
            cancel: &cancel,
            tally: &tally,
            issues: &self.issues,
        };
        let written = self.write(&classified, &filters, &host, &packing, budget, pool.as_ref(), make_output)?;
        seconds.copy = clock.elapsed().as_secs_f64() - written.sync;
        seconds.sync = written.sync;
        seconds.total = self.started.elapsed().as_secs_f64();
        Ok(self.report(&classified, &tally, &filters, notes, written, seconds))
    }

    /// Copies the pages into one output, or into the parts of a split one.
    #[expect(clippy::too_many_arguments, reason = "what the phases before have made")]
    fn write(
        &self,
        classified: &Classified,
        filters: &[RunningFilter],
        host: &coresift_sdk::Host,
        packing: &Packing<'_>,
        budget: budget::Budget,
        pool: Option<&rayon::ThreadPool>,
        make_output: &MakeOutput<'_>,
    ) -> Result<Written> {
        let title = self.plugins.writer.plugin.title();
        let sets = Sets { ram: &classified.ram, dumped: &classified.dumped };
        let progress = self.progress.as_ref();
        let copying = Copying { image: &self.image, dumped: &classified.dumped, packing, title: &title, progress, budget };
        // All that can fail is made before the output is.
        let mut workers = scheduler::workers(packing, pool)?;
        let threads = workers.len();
        let ranges = copying.cut(self.job.profile.split, &mut workers, pool)?;
        let count = ranges.len() as u32;
        let writers = ranges.iter().map(|_| self.writer(host)).collect::<Result<Vec<_>>>()?;
        progress.phase(Phase::Copy, classified.dumped.count());
        let mut parts: Vec<Part> = Vec::new();
        for (number, (pfns, mut writer)) in (0..).zip(ranges.into_iter().zip(writers)) {
            let begun = make_output(number).and_then(|mut output| {
                let plan = Plan { first_pfn: pfns.start, end_pfn: pfns.end, part: number, parts: count, ..self.plan(&sets, filters) };
                let begun = writer.begin(&plan, output.as_mut());
                begun.map_err(|e| self.unfinished(Error::plugin(&title, &e), output.as_mut(), 0))?;
                Ok(output)
            });
            match begun {
                Ok(output) => parts.push(Part { pfns, writer, output, pages: 0, ended: None }),
                Err(e) => {
                    parts.iter().for_each(|part| part.output.discard());
                    return Err(e);
                }
            }
        }
        copying.run(&mut parts, workers, pool);
        let clock = Instant::now();
        let mut written = Written { threads, ..Written::default() };
        // A dump of a part of the memory is no whole dump, however it was copied.
        written.incomplete_because = self.image.machine.incomplete.then(|| "the input is incomplete itself".to_owned());
        let mut failed = None;
        progress.phase(Phase::Sync, 0);
        let outputs = self.job.outputs();
        for (number, part) in parts.iter_mut().enumerate() {
            match part.ended.take() {
                None => {}
                // A size limit was asked for: what fits is the dump.
                Some(e) if e.no_space && part.output.limit_reached() => written.incomplete_because = Some(e.message),
                Some(e) => {
                    // The other parts are finished: with them, and what is left of this one, pages can be read.
                    failed = failed.or(Some(self.unfinished(e, part.output.as_mut(), part.pages)));
                    continue;
                }
            }
            let end = End { incomplete: written.incomplete_because.is_some(), lost_pages: packing.tally.total().lost };
            let finished = part.writer.finish(&end, part.output.as_mut()).map_err(|e| Error::plugin(&title, &e));
            if let Err(e) = finished.and_then(|()| part.output.finish()) {
                failed = failed.or(Some(self.unfinished(e, part.output.as_mut(), part.pages)));
            }
            written.pages += part.pages;
            written.bytes += part.output.written();
            written.parts.push(PartWritten {
                output: outputs.get(number).map(|name| name.display().to_string()).unwrap_or_default(),
                first_pfn: part.pfns.start,
                end_pfn: part.pfns.end,
                pages: part.pages,
                bytes: part.output.written(),
            });
        }
        written.sync = clock.elapsed().as_secs_f64();
        failed.map_or(Ok(written), Err)
    }

    /// Pages of the mem_map go last: whether they are needed depends on every filter.
    fn exclude_mem_map(&self, classified: &mut Classified, filters: &[RunningFilter], tally: &Tally) {
        let Some(index) = filters.iter().position(|f| f.filter.excludes().contains(Verdict::MEMMAP)) else { return };
        match vmemmap::exclude(&self.image, classified) {
            Ok(pages) => {
                let mut counts = tally.local();
                counts.exclude(index, Verdict::MEMMAP, pages);
                tally.add(&counts);
            }
            Err(why) => self.issues.add("kernel", "", &format!("pages of the mem_map are kept: {why}")),
        }
    }

    /// What filters noticed: what weakens the dump becomes an issue, the rest is returned.
    fn findings(&self, filters: &[RunningFilter]) -> Vec<String> {
        // Without the kernel a filter by class is blind; one that excludes nothing by class does not miss it.
        let by_class = |f: &RunningFilter| f.filter.excludes().0 & !ClassSet::default().with(Verdict::ZERO).0 != 0;
        let missing =
            self.image.kernel.as_ref().err().cloned().or_else(|| self.image.kernel.as_ref().ok()?.mem_map().err().map(str::to_owned));
        let mut notes = Vec::new();
        match missing {
            Some(why) if filters.iter().any(by_class) => {
                self.issues.add("kernel", "", &format!("{why}; pages are kept whatever their class"))
            }
            Some(why) if filters.iter().any(|f| f.stages.contains(Stages::CLASSIFY)) => notes.push(format!("kernel: {why}")),
            _ => {}
        }
        for filter in filters {
            for finding in filter.filter.findings() {
                if finding.weakens {
                    self.issues.add_pages(&filter.title, "", &finding.text, finding.pages.max(1));
                } else {
                    let pages = if finding.pages > 0 { format!(" ({} pages)", finding.pages) } else { String::new() };
                    notes.push(format!("{}: {}{pages}", filter.title, finding.text));
                }
            }
        }
        notes
    }

    fn writer(&self, host: &coresift_sdk::Host) -> Result<Box<dyn Writer>> {
        let chosen = &self.plugins.writer;
        let setup =
            Setup { config: chosen.config.clone(), host: host.clone(), machine: Some(self.image.machine.clone()), sources: Vec::new() };
        chosen.plugin.library.writer(setup).map_err(|e| Error::plugin(&chosen.plugin.title(), &e))
    }

    fn plan<'b>(&'b self, sets: &'b Sets<'b>, filters: &[RunningFilter]) -> Plan<'b> {
        Plan {
            machine: &self.image.machine,
            pages: sets,
            excluded: filters.iter().fold(self.image.machine.excluded, |all, f| all.union(f.filter.excludes())),
            codec: self.plugins.compressor.as_ref().map_or(0, |c| c.plugin.manifest.codec),
            first_pfn: 0,
            end_pfn: self.image.machine.max_pfn,
            part: 0,
            parts: 1,
            written_at: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs()),
        }
    }

    /// The error of a run that ended while writing: it says what is left.
    fn unfinished(&self, e: Error, output: &mut dyn Output, pages: u64) -> Error {
        output.abandon();
        let Some(place) = output.place() else { return e };
        let left = if pages > 0 {
            format!("what was written opens: {}", place.display())
        } else {
            output.discard();
            "nothing usable was written".to_owned()
        };
        let hint = match e.no_space {
            true if output.limit_reached() => "raise --limit: the headers alone need more",
            true => "make room, choose a smaller profile (--profile small), or set --limit",
            false => e.hint.as_str(),
        };
        let hint = if hint.is_empty() { left } else { format!("{hint}; {left}") };
        Error { hint, ..e }
    }

    fn report(
        &self,
        classified: &Classified,
        tally: &Tally,
        filters: &[RunningFilter],
        notes: Vec<String>,
        written: Written,
        seconds: Seconds,
    ) -> Report {
        let classes = tally.classes(filters);
        let of = |zero: bool| classes.iter().filter(|c| (c.class == "zero") == zero).map(|c| c.pages).sum();
        let total = tally.total();
        let (zero, excluded, lost): (u64, u64, u64) = (of(true), of(false), total.lost);
        let ram = classified.ram.count();
        let not_written = classified.dumped.count() - written.pages.min(classified.dumped.count());
        let pages = Pages { ram, absent: classified.absent, excluded, zero, stored: total.stored, lost, not_written };
        if lost > 0 {
            self.issues.add("input", "", &format!("{lost} pages could not be read"));
        }
        let issues = self.issues.list();
        let outcome = match (&written.incomplete_because, issues.is_empty()) {
            (Some(_), _) => Outcome::Incomplete,
            (None, false) => Outcome::Degraded,
            (None, true) => Outcome::Complete,
        };
        let title = |c: &profile::Chosen| c.plugin.title();
        let mut plugins = vec![self.image.plugin.title()];
        plugins.extend(self.plugins.filters.iter().map(|f| title(&f.chosen)));
        plugins.extend(self.plugins.compressor.iter().map(title));
        plugins.push(title(&self.plugins.writer));
        Report {
            schema: SCHEMA,
            outcome,
            incomplete_because: written.incomplete_because,
            inputs: self.job.inputs.iter().map(|p| p.display().to_string()).collect(),
            output: self.job.output.as_ref().map(|p| p.display().to_string()),
            parts: if self.job.profile.split > 1 { written.parts } else { Vec::new() },
            profile: self.job.profile.name.clone(),
            plugins,
            page_size: self.image.machine.page_size(),
            pages,
            classes,
            bytes_read: total.bytes_read,
            bytes_written: written.bytes,
            seconds,
            threads: written.threads,
            peak_memory: budget::peak_memory(),
            issues,
            notes,
            warnings: self.image.machine.warnings.clone(),
        }
    }
}

/// What the copy phase leaves for the report.
#[derive(Default)]
struct Written {
    pages: u64,
    bytes: u64,
    parts: Vec<PartWritten>,
    incomplete_because: Option<String>,
    sync: f64,
    threads: usize,
}

/// The sets of pages as a writer asks for them.
struct Sets<'a> {
    ram: &'a crate::pageset::PageSet,
    dumped: &'a crate::pageset::PageSet,
}

impl Sets<'_> {
    fn of(&self, which: Which) -> &crate::pageset::PageSet {
        match which {
            Which::Ram => self.ram,
            Which::Dumped => self.dumped,
        }
    }
}

impl PageSets for Sets<'_> {
    fn bitmap(&self, which: Which, first_pfn: u64, out: &mut [u8]) {
        self.of(which).bitmap(first_pfn, out);
    }

    fn runs(&self, which: Which, from_pfn: u64, out: &mut [Run]) -> usize {
        let mut runs = self.of(which).runs(from_pfn);
        out.iter_mut().zip(&mut runs).map(|(slot, run)| *slot = run).count()
    }

    fn count(&self, which: Which) -> u64 {
        self.of(which).count()
    }
}
