//! What a run did: counts per class, seconds per phase, bytes, memory, and what went wrong on the way.

use std::sync::Mutex;

use coresift_sdk::Verdict;
use serde::Serialize;

use crate::pack::RunningFilter;
use crate::size::{grouped, human};

/// Different problems that are kept; more are only counted.
const ISSUES_MAX: usize = 100;

/// Counts of one batch or block, or of the whole run.
#[derive(Debug, Clone, Default)]
pub struct Counts {
    /// per filter: pages excluded by verdict number
    excluded: Vec<[u64; 256]>,
    /// pages that the input could not give
    pub lost: u64,
    /// pages stored with their bytes
    pub stored: u64,
    /// bytes taken from the input
    pub bytes_read: u64,
}

impl Counts {
    /// Pages more that a filter excluded.
    pub fn exclude(&mut self, filter: usize, verdict: Verdict, pages: u64) {
        if let Some(n) = self.excluded.get_mut(filter).and_then(|f| f.get_mut(usize::from(verdict.0))) {
            *n += pages;
        }
    }
}

/// Counts of the run, fed once a batch.
#[derive(Debug)]
pub struct Tally {
    filters: usize,
    total: Mutex<Counts>,
}

impl Tally {
    /// Counts for this number of filters.
    pub fn new(filters: usize) -> Self {
        let tally = Self { filters, total: Mutex::default() };
        tally.add(&tally.local());
        tally
    }

    /// Empty counts of a batch.
    pub fn local(&self) -> Counts {
        Counts { excluded: vec![[0; 256]; self.filters], ..Counts::default() }
    }

    /// Adds a batch.
    pub fn add(&self, batch: &Counts) {
        let mut total = self.total.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        total.excluded.resize(self.filters, [0; 256]);
        for (sum, more) in total.excluded.iter_mut().flatten().zip(batch.excluded.iter().flatten()) {
            *sum += more;
        }
        total.lost += batch.lost;
        total.stored += batch.stored;
        total.bytes_read += batch.bytes_read;
    }

    /// The sums so far.
    pub fn total(&self) -> Counts {
        self.total.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    }

    /// Pages excluded, by class and filter.
    pub fn classes(&self, filters: &[RunningFilter]) -> Vec<ClassCount> {
        let total = self.total();
        let mut classes = Vec::new();
        for (filter, counts) in filters.iter().zip(&total.excluded) {
            for (verdict, pages) in (0..=255).map(Verdict).zip(counts).filter(|(_, n)| **n > 0) {
                let class = filter.class_name(verdict).unwrap_or("unknown").to_owned();
                classes.push(ClassCount { class, filter: filter.title.clone(), pages: *pages });
            }
        }
        classes
    }
}

/// Something that weakened the run but did not end it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Issue {
    /// who: a plugin or a stage
    pub who: String,
    /// where it was seen first
    pub first: String,
    /// what
    pub what: String,
    /// how often
    pub count: u64,
}

/// Collects issues from all workers.
#[derive(Debug, Default)]
pub struct Issues(Mutex<Vec<Issue>>);

impl Issues {
    /// Notes a problem.
    pub fn add(&self, who: &str, place: &str, what: &str) {
        self.add_pages(who, place, what, 1);
    }

    /// Notes a problem of so many pages.
    pub fn add_pages(&self, who: &str, place: &str, what: &str, count: u64) {
        let mut issues = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(issue) = issues.iter_mut().find(|i| i.who == who && i.what == what) {
            issue.count += count;
        } else if issues.len() < ISSUES_MAX {
            issues.push(Issue { who: who.to_owned(), first: place.to_owned(), what: what.to_owned(), count });
        }
    }

    /// Adds what was collected elsewhere.
    pub fn absorb(&self, other: &Issues) {
        for issue in other.list() {
            self.add_pages(&issue.who, &issue.first, &issue.what, issue.count);
        }
    }

    /// All so far.
    pub fn list(&self) -> Vec<Issue> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    }
}

/// Pages of one class.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ClassCount {
    /// name of the class
    pub class: String,
    /// filter that said so
    pub filter: String,
    /// number of pages
    pub pages: u64,
}

/// Pages of the input and what became of them. `ram = absent + excluded + zero + stored + lost + not_written`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Pages {
    /// RAM that the input knows of
    pub ram: u64,
    /// left out by the input already
    pub absent: u64,
    /// excluded by filters, zero pages not counted
    pub excluded: u64,
    /// zero pages, which share one stored page
    pub zero: u64,
    /// stored with their bytes
    pub stored: u64,
    /// could not be read from the input
    pub lost: u64,
    /// not reached before the run ended
    pub not_written: u64,
}

/// Seconds per phase.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Seconds {
    /// opening and unpacking the input, loading plugins
    pub open: f64,
    /// verdicts per block
    pub classify: f64,
    /// reading, filtering, compressing, writing
    pub copy: f64,
    /// making it durable
    pub sync: f64,
    /// all
    pub total: f64,
}

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// all pages that were to be kept are in the dump
    Complete,
    /// the dump ends early
    Incomplete,
    /// complete, but a filter, page or plugin failed on the way
    Degraded,
}

/// A file of a split dump.
#[derive(Debug, Clone, Serialize)]
pub struct PartWritten {
    /// the file
    pub output: String,
    /// its first PFN
    pub first_pfn: u64,
    /// one behind its last PFN
    pub end_pfn: u64,
    /// pages in it
    pub pages: u64,
    /// size of the file
    pub bytes: u64,
}

/// What a run did.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// version of this document's schema
    pub schema: u32,
    /// how it ended
    pub outcome: Outcome,
    /// why it is incomplete
    pub incomplete_because: Option<String>,
    /// the inputs
    pub inputs: Vec<String>,
    /// the file written, `None` for a dry run
    pub output: Option<String>,
    /// the files of a split dump
    pub parts: Vec<PartWritten>,
    /// profile
    pub profile: String,
    /// reader, filters, compressor, writer
    pub plugins: Vec<String>,
    /// bytes of a page
    pub page_size: usize,
    /// pages and what became of them
    pub pages: Pages,
    /// pages excluded by class, zero pages included
    pub classes: Vec<ClassCount>,
    /// bytes taken from the input
    pub bytes_read: u64,
    /// size of the output
    pub bytes_written: u64,
    /// seconds per phase
    pub seconds: Seconds,
    /// threads at work
    pub threads: usize,
    /// largest resident memory of the process, in bytes
    pub peak_memory: u64,
    /// what weakened the run
    pub issues: Vec<Issue>,
    /// what filters noticed and weakens nothing
    pub notes: Vec<String>,
    /// oddities of the input
    pub warnings: Vec<String>,
}

impl Report {
    /// The report as people read it.
    pub fn text(&self) -> String {
        let size = |pages: u64| human(pages.saturating_mul(self.page_size as u64));
        let mut out = String::new();
        let mut line = |name: &str, pages: u64, note: &str| {
            let note = if note.is_empty() { String::new() } else { format!("   {note}") };
            out.push_str(&format!("  {name:<22}{:>14}  {:>10}{note}\n", grouped(pages), size(pages)));
        };
        line("pages of RAM", self.pages.ram, "");
        let listed = [(self.pages.absent, "not in the input"), (self.pages.lost, "unreadable"), (self.pages.not_written, "not written")];
        for class in &self.classes {
            line(&format!("- {}", class.class), class.pages, &class.filter);
        }
        for (pages, name) in listed.into_iter().filter(|(n, _)| *n > 0) {
            line(&format!("- {name}"), pages, "");
        }
        line("= stored", self.pages.stored, "");
        let kept = self.pages.stored.saturating_mul(self.page_size as u64);
        let ratio = if self.bytes_written > 0 { kept as f64 / self.bytes_written as f64 } else { 0.0 };
        let seconds = &self.seconds;
        out.push_str(&format!("  {:<22}{:>14}  {:>10}   {ratio:.2} : 1 of the stored pages\n", "dump", "", human(self.bytes_written)));
        let rate = self.bytes_read as f64 / seconds.total.max(1e-9);
        out.push_str(&format!(
            "  {:.2} s ({}/s read; open {:.2}, classify {:.2}, copy {:.2}, sync {:.2}), {} thread{}, {} peak memory\n",
            seconds.total,
            human(rate as u64),
            seconds.open,
            seconds.classify,
            seconds.copy,
            seconds.sync,
            self.threads,
            if self.threads == 1 { "" } else { "s" },
            human(self.peak_memory),
        ));
        for warning in &self.warnings {
            out.push_str(&format!("  input: {warning}\n"));
        }
        for note in &self.notes {
            out.push_str(&format!("  note: {note}\n"));
        }
        for issue in &self.issues {
            let place = if issue.first.is_empty() { String::new() } else { format!(" ({})", issue.first) };
            let times = if issue.count > 1 { format!(", {} times", grouped(issue.count)) } else { String::new() };
            out.push_str(&format!("  degraded: {}{place}: {}{times}\n", issue.who, issue.what));
        }
        out
    }
}
