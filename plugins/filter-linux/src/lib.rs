//! Drops pages by what the kernel used them for: free memory, page cache, user memory, as makedumpfile's dump levels do.
//!
//! All that decides is in [`coresift_sdk::linux`]; this plugin walks blocks with it, protects what every dump must have,
//! and says what it could not know. The exact semantics, and where they differ from makedumpfile's, stand in `README.md`.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use coresift_sdk::linux::{Contradiction, Judgement, PageRules, StructPages};
use coresift_sdk::page::is_zero;
use coresift_sdk::{
    Block, ClassSet, Error, Filter, Finding, Kernel, Key, Manifest, PageBatch, RangeVerdict, Result, Run, Setup, Stages, Survey, Verdict,
};

mod free_lists;
mod protect;

/// Classes that a profile may name.
const CLASSES: [Verdict; 6] = [Verdict::ZERO, Verdict::CACHE, Verdict::PRIVATE_CACHE, Verdict::USER, Verdict::FREE, Verdict::MEMMAP];

/// A block is not believed if more struct pages than this, and one of so many, contradict themselves.
const ABSURD_FROM: u64 = 32;
const ABSURD_SHARE: u64 = 512;
/// In a block that is not believed at most one page of so many is taken for one that must not be read.
const FORBIDDEN_SHARE: usize = 64;
/// Fewer pages than this may well have none that is free.
const SUSPICIOUS_FROM: u64 = 16 << 10;

/// What the plugin is.
pub fn manifest() -> Manifest {
    let stages = Stages::SURVEY.and(Stages::CLASSIFY).and(Stages::INSPECT);
    let names: Vec<_> = CLASSES.iter().filter_map(|c| c.class_name()).collect();
    let exclude = Key { choices: names.iter().map(|n| (*n).to_owned()).collect(), ..Key::list("exclude", "classes to leave out") };
    let mut manifest = Manifest::filter("linux", env!("CARGO_PKG_VERSION"), "drops pages by what the kernel used them for", stages)
        .key(Key::integer("level", -1, -1, 31, "makedumpfile's dump level, joined with `exclude`; -1 = only `exclude`"))
        .key(exclude);
    manifest.kernels = "2.6 to 7.3, newer ones as far as they tell".into();
    manifest
}

/// Makes the filter.
///
/// # Errors
/// A setting is missing: a bug of the host. A kernel that makes no sense is no error, it only weakens the filter.
pub fn open(setup: Setup) -> Result<Box<dyn Filter>> {
    let level = u32::try_from(setup.config.integer("level")?).unwrap_or(0);
    let named = setup.config.list("exclude")?;
    let by_name = CLASSES.into_iter().filter(|c| c.class_name().is_some_and(|n| named.iter().any(|x| x == n)));
    let excludes = by_name.fold(ClassSet::from_dump_level(level), ClassSet::with);
    // Level 4 means all of the page cache (exclude_unnecessary_pages() of makedumpfile counts both kinds).
    let wanted = if level & 4 != 0 { excludes.with(Verdict::CACHE) } else { excludes };
    let kernel = setup.machine.as_ref().and_then(|machine| Kernel::of(&setup.host, machine));
    let zero_done = setup.machine.as_ref().is_some_and(|machine| machine.excluded.contains(Verdict::ZERO));
    let mut linux = Linux { excludes, wanted, zero_done, ..Linux::default() };
    if let (Some(kernel), Some(machine)) = (kernel, &setup.machine) {
        match PageRules::find(kernel.info(), machine) {
            Ok(rules) => linux.rules = Some(rules),
            Err(why) => linux.notes.push(Finding {
                text: format!("{why}; pages are kept whatever their class"),
                pages: 0,
                weakens: linux.by_class(),
            }),
        }
        linux.protected = protect::runs(&kernel, machine);
        linux.kernel = Some(kernel);
        linux.try_witnesses(machine.page_shift);
        linux.note_gaps();
    }
    Ok(Box::new(linux))
}

#[cfg(feature = "export")]
coresift_sdk::export_plugin! { kind: filter, name: "linux", manifest: manifest, open: open }

#[derive(Default)]
struct Linux {
    /// classes of the settings
    excludes: ClassSet,
    /// classes to leave out: those, and what they imply
    wanted: ClassSet,
    /// whoever wrote the input has looked for zero pages already, so they need not be read for that
    zero_done: bool,
    kernel: Option<Kernel>,
    rules: Option<PageRules>,
    /// pages that every dump must have, ascending
    protected: Vec<Run>,
    notes: Vec<Finding>,
    /// pages whose `struct page` was read
    examined: AtomicU64,
    /// pages found free
    free: AtomicU64,
    /// pages kept because of evidence against a rule, by kind of contradiction
    contradicted: [AtomicU64; Contradiction::ALL.len()],
    /// pages of the kernel that a rule would have excluded
    rescued: AtomicU64,
    /// what went wrong with the free lists
    list_trouble: std::sync::Mutex<Vec<Finding>>,
}

impl Filter for Linux {
    fn excludes(&self) -> ClassSet {
        self.excludes
    }

    fn stages(&self) -> Stages {
        let bytes = if self.wanted.contains(Verdict::ZERO) && !self.zero_done { Stages::INSPECT } else { Stages::default() };
        Stages::SURVEY.and(Stages::CLASSIFY).and(bytes)
    }

    fn findings(&self) -> Vec<Finding> {
        let mut found = self.notes.clone();
        found.extend(self.list_trouble.lock().map(|list| list.clone()).unwrap_or_default());
        for (kind, pages) in Contradiction::ALL.iter().zip(&self.contradicted) {
            let pages = pages.load(Relaxed);
            if pages > 0 {
                found.push(Finding {
                    text: format!("kept, since the evidence contradicts itself: {}", kind.text()),
                    pages,
                    weakens: false,
                });
            }
        }
        let rescued = self.rescued.load(Relaxed);
        if rescued > 0 {
            let text = "struct pages of kernel text or log claim another use: damaged; kept".to_owned();
            found.push(Finding { text, pages: rescued, weakens: false });
        }
        let examined = self.examined.load(Relaxed);
        if self.wanted.contains(Verdict::FREE) && examined >= SUSPICIOUS_FROM && self.free.load(Relaxed) == 0 {
            let text = "no free page found in a machine that ran: the rules for this kernel are likely wrong".to_owned();
            found.push(Finding { text, pages: examined, weakens: true });
        }
        found
    }

    fn survey(&self, out: &mut dyn Survey) -> Result<()> {
        let (Some(kernel), Some(rules)) = (&self.kernel, &self.rules) else { return Ok(()) };
        if self.wanted.contains(Verdict::MEMMAP) {
            // Decided after all filters have spoken: what must stay is said beforehand.
            let keep = |run: &Run| RangeVerdict { run: *run, verdict: Verdict::KEEP };
            out.ranges(&self.protected.iter().map(keep).collect::<Vec<_>>());
        }
        if !self.wanted.contains(Verdict::FREE) || rules.decidable().contains(Verdict::FREE) {
            return Ok(());
        }
        let (pages, trouble) = free_lists::survey(kernel, rules, &self.protected, out);
        self.free.fetch_add(pages, Relaxed);
        if let (Some(text), Ok(mut list)) = (trouble, self.list_trouble.lock()) {
            list.push(Finding { text, pages: 0, weakens: true });
        }
        Ok(())
    }

    fn classify(&self, block: &Block<'_>, verdicts: &mut [Verdict]) -> Result<()> {
        let (Some(rules), Some(pages)) = (&self.rules, block.mem_map()) else { return Ok(()) };
        let wanted = self.taken(rules);
        let mut counts = Counts::default();
        let from = self.begin_inside(rules, &pages, wanted, verdicts);
        let rest = StructPages {
            bytes: pages.bytes.get(from * rules.struct_page_size()..).unwrap_or_default(),
            first_pfn: pages.first_pfn + from as u64,
            address: pages.address.map(|a| a.wrapping_add((from * rules.struct_page_size()) as u64)),
        };
        let verdicts_of_rest = Cell::from_mut(verdicts.get_mut(from..).unwrap_or_default()).as_slice_of_cells();
        rules.judge_all(
            &rest,
            |i, class| {
                if let Some(verdict) = verdicts_of_rest.get(i).filter(|_| wanted.contains(class)) {
                    verdict.set(class);
                }
            },
            |i, judged| {
                counts.look(&judged);
                apply(&judged, wanted, verdicts_of_rest.get(i..).unwrap_or_default())
            },
        );
        if let Err(why) = counts.check(block) {
            // The host goes on with what must not be read. A few such pages are likely, many are as absurd as the rest.
            let forbidden = verdicts.iter().filter(|v| v.forbids_reading()).count();
            if forbidden > block.pages() / FORBIDDEN_SHARE {
                verdicts.fill(Verdict::UNDECIDED);
            }
            return Err(why);
        }
        self.rescue(block, verdicts);
        self.examined.fetch_add(block.pages() as u64, Relaxed);
        self.free.fetch_add(counts.free, Relaxed);
        for (sum, more) in self.contradicted.iter().zip(counts.contradicted) {
            sum.fetch_add(more, Relaxed);
        }
        Ok(())
    }

    fn inspect(&self, batch: &PageBatch<'_>, verdicts: &mut [Verdict]) -> Result<()> {
        if self.wanted.contains(Verdict::ZERO) {
            for (page, verdict) in batch.pages().zip(verdicts) {
                if is_zero(page) {
                    *verdict = Verdict::ZERO;
                }
            }
        }
        Ok(())
    }
}

/// Counts of one block.
#[derive(Default)]
struct Counts {
    free: u64,
    contradicted: [u64; Contradiction::ALL.len()],
}

impl Counts {
    /// Damage hits a few struct pages; when many contradict themselves, something else is read for them (a page-table entry
    /// that leads astray, a kernel with another layout), and what the rest says is worth nothing.
    fn check(&self, block: &Block<'_>) -> Result<()> {
        let contradicted: u64 = self.contradicted.iter().sum();
        if contradicted <= ABSURD_FROM + block.pages() as u64 / ABSURD_SHARE {
            return Ok(());
        }
        let message = format!("{contradicted} of {} struct pages contradict themselves: they are not believed", block.pages());
        Err(Error::format(message).at_pfn(block.first_pfn()))
    }

    fn look(&mut self, judged: &Judgement) {
        if judged.class == Verdict::FREE {
            self.free += 1 << judged.order;
        }
        if let Some(n) = judged.contradiction.and_then(|kind| self.contradicted.get_mut(kind as usize)) {
            *n += 1;
        }
    }
}

/// Gives the pages that a judgement is about their verdict; `verdicts` begins at its page. Returns how many pages are
/// settled.
fn apply(judged: &Judgement, wanted: ClassSet, verdicts: &[Cell<Verdict>]) -> usize {
    let fill = |order: u32, class: Verdict| {
        let n = verdicts.len().min(1 << order);
        verdicts.iter().take(n).for_each(|v| v.set(class));
        n
    };
    let mut settled = 1;
    if wanted.contains(judged.class) {
        settled = fill(judged.order, judged.class);
    }
    if let Some(order) = judged.poisoned {
        settled = settled.max(fill(order, Verdict::HWPOISON));
    }
    settled
}

impl Linux {
    fn by_class(&self) -> bool {
        self.wanted.0 & !ClassSet::default().with(Verdict::ZERO).0 != 0
    }

    /// The classes that are left out: those wanted that can be told, and those that must not be read.
    fn taken(&self, rules: &PageRules) -> ClassSet {
        let never_read = [Verdict::HWPOISON, Verdict::OFFLINE, Verdict::UNACCEPTED];
        ClassSet(never_read.into_iter().fold(self.wanted, ClassSet::with).0 & rules.decidable().0)
    }

    /// A slice may begin inside a compound page: then its head, in another slice, decides. Returns how many pages are
    /// settled by it.
    fn begin_inside(&self, rules: &PageRules, pages: &StructPages<'_>, wanted: ClassSet, verdicts: &mut [Verdict]) -> usize {
        let Some(kernel) = &self.kernel else { return 0 };
        let head = rules.head_of(pages, 0, |address| kernel.pfn(address)).filter(|head| *head < pages.first_pfn);
        // The head and the page behind it, which has the order.
        let Some((head, pair)) = head.and_then(|head| Some((head, kernel.struct_pages(head, 2, rules).ok()?))) else { return 0 };
        let slice = StructPages { bytes: &pair, first_pfn: head, address: kernel.struct_page(head) };
        let mut judged = rules.judge(&slice, 0);
        // Only hugetlb says of the whole page that it is broken; of others a tail says it for itself.
        let (before, end) = (pages.first_pfn - head, |order: u32| head.saturating_add(1 << order));
        judged.poisoned = judged.poisoned.filter(|order| *order > 0);
        if judged.class == Verdict::UNDECIDED || end(judged.order) <= pages.first_pfn {
            return 0;
        }
        let inside = ((1u64 << judged.order) - before).min(verdicts.len() as u64) as usize;
        let whole = Judgement { order: 63, poisoned: judged.poisoned.map(|_| 63), ..judged };
        match wanted.contains(judged.class) || judged.poisoned.is_some() {
            true => apply(&whole, wanted, Cell::from_mut(verdicts.get_mut(..inside).unwrap_or_default()).as_slice_of_cells()),
            false => 0,
        }
    }

    /// Kernel text and log are in every dump, whatever a damaged struct page says of them.
    fn rescue(&self, block: &Block<'_>, verdicts: &mut [Verdict]) {
        let (first, end) = (block.first_pfn(), block.first_pfn() + block.pages() as u64);
        let from = self.protected.partition_point(|r| r.end_pfn() <= first);
        for run in self.protected.iter().skip(from).take_while(|r| r.first_pfn < end) {
            let range = (run.first_pfn.max(first) - first) as usize..(run.end_pfn().min(end) - first) as usize;
            for verdict in verdicts.get_mut(range).unwrap_or_default() {
                if verdict.excludes() && !verdict.forbids_reading() {
                    *verdict = Verdict::UNDECIDED;
                    self.rescued.fetch_add(1, Relaxed);
                }
            }
        }
    }

    /// Pages that are known to be the kernel's own must not fall under any rule. A rule that takes one is wrong on this
    /// kernel, and is not used.
    fn try_witnesses(&mut self, page_shift: u32) {
        let (Some(kernel), Some(rules)) = (&self.kernel, &mut self.rules) else { return };
        let mut against: Vec<(Verdict, u64, &str)> = Vec::new();
        let witnesses = protect::witnesses(kernel, page_shift);
        let one_page = witnesses.iter().all(|(_, pfn)| witnesses.first().is_some_and(|(_, first)| first == pfn));
        for (name, pfn) in witnesses {
            let Ok(bytes) = kernel.struct_pages(pfn, 2, rules) else { continue };
            let slice = StructPages { bytes: &bytes, first_pfn: pfn, address: kernel.struct_page(pfn) };
            let class = rules.judge(&slice, 0).class;
            if class.excludes() && rules.decidable().contains(class) && against.iter().all(|(c, p, _)| (*c, *p) != (class, pfn)) {
                against.push((class, pfn, name));
            }
        }
        // One alone is a struct page that was damaged; two are a rule that is wrong.
        for (class, pfn, name) in &against {
            let class_name = class.class_name().unwrap_or_default();
            let alone = !one_page && against.iter().filter(|(c, _, _)| c == class).count() == 1;
            if !alone && !rules.decidable().contains(*class) {
                continue;
            }
            let what = format!("the page of the kernel's own `{name}` (PFN {pfn:#x})");
            let text = match alone {
                true => format!("the struct page of {what} claims to be {class_name}: damaged"),
                false => format!("{class_name} pages are kept: the rule for them would take {what}, and not only that"),
            };
            if !alone {
                rules.distrust(*class);
            }
            self.notes.push(Finding { text, pages: 0, weakens: !alone && self.wanted.contains(*class) });
        }
    }

    /// What the rules cannot know, as far as it matters for what is wanted.
    fn note_gaps(&mut self) {
        let Some(rules) = &self.rules else { return };
        for gap in rules.notes() {
            let weakens = self.wanted.contains(gap.class);
            if weakens || gap.class == Verdict::UNDECIDED {
                self.notes.push(Finding { text: gap.text.clone(), pages: 0, weakens });
            }
        }
    }
}
