//! Drops what is not Xen's or domain 0's from the vmcore of a Xen hypervisor: the memory of other domains, and free memory.
//! makedumpfile's `-X` does the same.
//!
//! ```text
//! notes ─► versions, symbols ─► page tables ─► frame_table[frame]: count_info, _domain ─► whose, or free
//!                                    └───────► direct map: frame ─► index of the frame table; _domain ─► struct domain
//! ```
//!
//! | module | |
//! |---|---|
//! | `notes` | what Xen's notes say |
//! | `tables` | Xen's page tables, memory by its addresses |
//! | `frames` | from frame to index of the frame table |
//! | `rules` | what a frame is, by Xen 3's and Xen 4's rules |
//! | `xen` | the frame table and the domains |
//!
//! What cannot be known keeps its page, and the report says so. In inputs that are no hypervisor's the plugin does nothing.
//! The exact semantics, and where they differ from makedumpfile's, stand in `README.md`.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use coresift_sdk::{Block, Config, Error, Filter, Finding, Key, Manifest, Result, Setup, Stages, Value, Verdict};

use crate::rules::Frame;
use crate::xen::{FRAMES_AT_ONCE, Owner, Xen};

mod bytes;
mod frames;
mod notes;
mod rules;
mod tables;
mod xen;

/// The plugin's own classes, in the order of their verdicts.
const OTHER: &str = "other-domain";
const SPECIAL: &str = "special-domain";
/// The standard class.
const FREE: &str = "free";

/// A part of the frame table is not believed if more frames than this, and one of so many, contradict themselves.
const ABSURD_FROM: u64 = 32;
const ABSURD_SHARE: u64 = 512;
/// Of a part that is believed at most one page of so many is taken for broken hardware.
const BROKEN_SHARE: u64 = 64;

/// What the plugin is.
pub fn manifest() -> Manifest {
    let about = "drops pages of other domains, and free ones, from the vmcore of a Xen hypervisor";
    let names = [OTHER, SPECIAL, FREE].map(str::to_owned).to_vec();
    let exclude = Key {
        choices: names.clone(),
        default: Some(Value::List(names)),
        ..Key::list("exclude", "classes to leave out; all of them are what makedumpfile -X leaves out")
    };
    let start = "physical address of Xen's image, for notes that do not say it (Xen before 3.3); 0 = as the notes say";
    let mut manifest = Manifest::filter("xen", env!("CARGO_PKG_VERSION"), about, Stages::CLASSIFY)
        .class(OTHER)
        .class(SPECIAL)
        .key(exclude)
        .key(Key::size("phys_start", 0, 0, i64::MAX as u64, start));
    manifest.architectures = vec!["x86_64".into()];
    manifest.kernels = "Xen 3 and 4".into();
    manifest
}

/// Makes the filter.
///
/// # Errors
/// A setting is missing: a bug of the host. A hypervisor that makes no sense is no error, the filter then keeps all pages.
pub fn open(setup: Setup) -> Result<Box<dyn Filter>> {
    let mut filter = Others::new(&setup.config)?;
    let phys_start = Some(setup.config.size("phys_start")?).filter(|start| *start != 0);
    let Some(machine) = setup.machine.filter(|machine| machine.hypervisor) else { return Ok(Box::new(filter)) };
    let memory = setup.host.physical_memory().ok_or_else(|| "the host offers no physical memory".to_owned());
    match memory.and_then(|memory| Xen::find(memory, &machine, phys_start)) {
        Ok(xen) => {
            filter.notes.extend(xen.gap().map(|text| Finding { text, pages: 0, weakens: filter.free }));
            if xen.compressed() {
                let text = "Xen numbers frames with holes left out here; the numbers are taken from its direct map".to_owned();
                filter.notes.push(Finding { text, pages: 0, weakens: false });
            }
            filter.xen = Some(xen);
        }
        Err(why) => filter.notes.push(Finding { text: format!("{why}; pages are kept whosever they are"), pages: 0, weakens: true }),
    }
    Ok(Box::new(filter))
}

#[cfg(feature = "export")]
coresift_sdk::export_plugin! { kind: filter, name: "xen", manifest: manifest, open: open }

struct Others {
    /// classes to leave out
    other: bool,
    special: bool,
    free: bool,
    /// the hypervisor; `None` in inputs that have none, or whose makes no sense
    xen: Option<Xen>,
    notes: Vec<Finding>,
    /// pages in the input whose `struct page_info` cannot be read
    unreadable: AtomicU64,
    /// pages that belong to no domain that can be found
    ownerless: AtomicU64,
    /// pages whose `struct page_info` contradicts itself
    absurd: AtomicU64,
}

/// Counts of one block.
#[derive(Default)]
struct Counts {
    unreadable: u64,
    ownerless: u64,
    absurd: u64,
    /// broken or offlined
    lost: u64,
}

impl Others {
    fn new(config: &Config) -> Result<Self> {
        let named = config.list("exclude")?;
        let has = |name: &str| named.iter().any(|n| n == name);
        Ok(Self {
            other: has(OTHER),
            special: has(SPECIAL),
            free: has(FREE),
            xen: None,
            notes: Vec::new(),
            unreadable: AtomicU64::new(0),
            ownerless: AtomicU64::new(0),
            absurd: AtomicU64::new(0),
        })
    }

    fn verdict(&self, xen: &Xen, pfn: u64, frame: Option<Frame>, last: &mut (u32, Owner), counts: &mut Counts) -> Verdict {
        let mut owner_of = |owner: u32| {
            // Neighbours mostly have one owner.
            if last.0 != owner {
                *last = (owner, xen.who(owner));
            }
            last.1
        };
        let when = |wanted: bool, verdict: Verdict| if wanted { verdict } else { Verdict::UNDECIDED };
        match frame {
            Some(Frame::Xen) => Verdict::UNDECIDED,
            Some(Frame::Free) => when(self.free, Verdict::FREE),
            Some(Frame::Broken) => {
                counts.lost += 1;
                Verdict::HWPOISON
            }
            Some(Frame::Offlined) => {
                counts.lost += 1;
                Verdict::OFFLINE
            }
            Some(Frame::Absurd) => {
                counts.absurd += 1;
                Verdict::UNDECIDED
            }
            Some(Frame::Owned(owner, counted)) => match owner_of(owner) {
                // On its way to or from the domain.
                Owner::Dom0 => when(self.free && !counted, Verdict::FREE),
                Owner::Other => when(self.other, Verdict::plugin_class(0)),
                Owner::Special => when(self.special, Verdict::plugin_class(1)),
                Owner::Unknown => {
                    counts.ownerless += 1;
                    Verdict::UNDECIDED
                }
            },
            None => {
                counts.unreadable += u64::from(xen.has_frame(pfn));
                Verdict::UNDECIDED
            }
        }
    }
}

impl Filter for Others {
    // `excludes` stays empty: the classes it names are those that a Linux kernel's `struct page` decides, and none describes
    // this machine. makedumpfile's `-X` does not count as a dump level either.

    fn stages(&self) -> Stages {
        if self.xen.is_some() { Stages::CLASSIFY } else { Stages::default() }
    }

    fn findings(&self) -> Vec<Finding> {
        let mut found = self.notes.clone();
        let counted = [
            (&self.unreadable, "kept, since their struct page_info cannot be read", true),
            (&self.ownerless, "kept, since what their struct page_info names as owner is no domain", false),
            (&self.absurd, "kept, since their struct page_info contradicts itself", false),
        ];
        for (count, text, weakens) in counted {
            let pages = count.load(Relaxed);
            if pages > 0 {
                found.push(Finding { text: text.to_owned(), pages, weakens });
            }
        }
        found
    }

    fn classify(&self, block: &Block<'_>, verdicts: &mut [Verdict]) -> Result<()> {
        let Some(xen) = &self.xen else { return Ok(()) };
        let mut counts = Counts::default();
        let mut last = (0, Owner::Unknown);
        let mut pfn = block.first_pfn();
        for part in verdicts.chunks_mut(FRAMES_AT_ONCE as usize) {
            let first = pfn;
            xen.judge(first, part.len() as u64, |pfn, frame| {
                let verdict = self.verdict(xen, pfn, frame, &mut last, &mut counts);
                if let Some(slot) = part.get_mut((pfn - first) as usize) {
                    *slot = verdict;
                }
            });
            pfn += part.len() as u64;
        }
        let pages = block.pages() as u64;
        let limit = ABSURD_FROM + pages / ABSURD_SHARE;
        // Damage hits a few; when it is many, something else is read for the frame table, and the rest is worth nothing.
        let contradicted = counts.absurd + counts.ownerless;
        if contradicted > limit || counts.lost > limit + pages / BROKEN_SHARE {
            verdicts.fill(Verdict::UNDECIDED);
            let message = match contradicted > limit {
                true => format!("{contradicted} of {pages} struct page_info contradict themselves: they are not believed"),
                false => format!("{} of {pages} struct page_info say that their page is broken: they are not believed", counts.lost),
            };
            return Err(Error::format(message).at_pfn(block.first_pfn()));
        }
        for (sum, more) in [(&self.unreadable, counts.unreadable), (&self.ownerless, counts.ownerless), (&self.absurd, counts.absurd)] {
            sum.fetch_add(more, Relaxed);
        }
        Ok(())
    }
}
