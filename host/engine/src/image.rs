//! Image: an opened input. The reader plugin said what it is and where its pages are; what it said is checked here once.

mod memory;

use std::path::PathBuf;
use std::sync::Arc;

use coresift_kernel::{Kernel, Vmcoreinfo};
use coresift_sdk::{Config, Extent, ExtentKind, Kind, Machine, Reader, Score, Setup, Value};

use crate::decode::Decoders;
use crate::error::{Error, Result};
use crate::profile::{self, Chosen, Use};
use crate::progress::Progress;
use crate::registry::{Plugin, Registry};
use crate::services::services;
use crate::source::Source;
use crate::vmcoreinfo;
use memory::Cache;

/// Physical addresses end here: no architecture that Linux runs on has more than 52 bits of them. A damaged header that
/// claims more would ask for bitmaps of terabytes.
const PADDR_BITS: u32 = 52;
/// Most pages of RAM: 256 TiB of 4 KiB pages, ten times the largest machine there is. Each costs a bit or two.
const PAGES_MAX: u64 = 1 << 36;

/// Page sizes that Linux has: 4 KiB to 1 MiB bound what a reader may claim.
const PAGE_SHIFTS: std::ops::RangeInclusive<u32> = 12..=20;

/// An opened input.
pub struct Image {
    /// the input files
    pub sources: Vec<Arc<Source>>,
    /// the plugin that reads it
    pub plugin: Arc<Plugin>,
    /// why this plugin
    pub why: String,
    /// what it says of the machine
    pub machine: Arc<Machine>,
    /// RAM and where its bytes are: ascending, not overlapping, none empty
    pub extents: Vec<Extent>,
    /// the crashed kernel, or why it makes no sense
    pub kernel: std::result::Result<Kernel, String>,
    reader: Box<dyn Reader>,
    decoders: Decoders,
    cache: Cache,
}

/// How to open an input.
#[derive(Debug, Clone, Default)]
pub struct Opening {
    /// the reader, if it is not to be the one that knows the input best
    pub reader: Option<Chosen>,
    /// settings for the reader that is not named
    pub settings: Option<Use>,
    /// a file with VMCOREINFO lines, for what the input's own note leaves out
    pub vmcoreinfo: Option<PathBuf>,
}

/// What the readers say of an input.
#[derive(Debug, Clone)]
pub struct Candidate {
    /// name of the reader
    pub reader: String,
    /// its answer, or what went wrong with asking
    pub answer: Result<Score>,
}

/// Opens the input files.
///
/// # Errors
/// See [`Source::open`].
pub fn open_sources(paths: &[PathBuf], progress: &dyn Progress) -> Result<Vec<Arc<Source>>> {
    paths.iter().map(|p| Source::open(p, progress).map(Arc::new)).collect()
}

/// Asks every reader about an input; best first.
pub fn candidates(registry: &Registry, sources: &[Arc<Source>]) -> Vec<(Arc<Plugin>, Candidate)> {
    let given: Vec<_> = sources.iter().map(|s| coresift_sdk::Source::new(s.clone())).collect();
    let (plugins, _) = registry.all(Kind::Reader);
    let mut asked: Vec<_> = plugins
        .into_iter()
        .map(|plugin| {
            let answer = plugin.library.probe(&given).map_err(|e| Error::plugin(&plugin.title(), &e));
            let reader = plugin.manifest.name.clone();
            (plugin, Candidate { reader, answer })
        })
        .collect();
    asked.sort_by_key(|(_, c)| std::cmp::Reverse(c.answer.as_ref().map_or(0, |s| s.percent)));
    asked
}

fn pick(registry: &Registry, sources: &[Arc<Source>], settings: Option<&Use>, progress: &dyn Progress) -> Result<(Chosen, String)> {
    let asked = candidates(registry, sources);
    let name = sources.first().map(|s| s.path().display().to_string()).unwrap_or_default();
    let score = |c: &Candidate| c.answer.as_ref().map_or(0, |s| s.percent);
    if asked.is_empty() {
        let (_, refused) = registry.all(Kind::Reader);
        let why = refused.first().map_or("no reader plugin was found".to_owned(), |r| r.error.message.clone());
        return Err(Error::failed(format!("no reader for {name}: {why}")).hint("give the folder of the plugins with --plugin-dir"));
    }
    let (best, rest) = match asked.split_first() {
        Some((best, rest)) if score(&best.1) > 0 => (best, rest),
        _ => {
            let reason = |c: &Candidate| match &c.answer {
                Ok(s) => format!("reader {}: {}", c.reader, s.reason),
                Err(e) => e.message.clone(),
            };
            let reasons: Vec<_> = asked.iter().map(|(_, c)| reason(c)).collect();
            return Err(Error::failed(format!("{name}: format not recognised ({})", reasons.join("; ")))
                .hint("give a vmcore: /proc/vmcore, or a file that kdump, virsh dump or QEMU's dump-guest-memory wrote"));
        }
    };
    if let Some(tie) = rest.first().filter(|r| score(&r.1) == score(&best.1)) {
        progress.warn(&format!(
            "{name}: readers {} and {} both claim it; {0} is taken (--set input.reader=NAME chooses)",
            best.1.reader, tie.1.reader
        ));
    }
    let why = best.1.answer.as_ref().map(|s| s.reason.clone()).unwrap_or_default();
    let config = match settings {
        Some(settings) => profile::configure(&best.0.manifest, settings)?,
        None => best.0.manifest.configure(&[]).map_err(|e| Error::plugin(&best.0.title(), &e))?,
    };
    Ok((Chosen { plugin: best.0.clone(), config }, why))
}

impl Image {
    /// Opens an input with the reader chosen, or with the one that knows it best, and looks for the kernel in it.
    ///
    /// # Errors
    /// No reader knows it, or the reader cannot open it.
    pub fn open(sources: Vec<Arc<Source>>, opening: &Opening, registry: &Registry, progress: &Arc<dyn Progress>) -> Result<Self> {
        let given = opening.vmcoreinfo.as_deref().map(vmcoreinfo::read_file).transpose()?;
        let (Chosen { plugin, config }, why) = match &opening.reader {
            Some(chosen) => (chosen.clone(), "named by the profile".to_owned()),
            None => pick(registry, &sources, opening.settings.as_ref(), progress.as_ref())?,
        };
        let mut image = Self::open_with(sources, plugin.clone(), config.clone(), why, registry, progress)?;
        vmcoreinfo::complete(&mut image, given.as_deref(), progress.as_ref());
        // The kernel's own page size may only be known now; the reader counts in it.
        let page_size = image.vmcoreinfo().page_size().filter(|p| p.is_power_of_two() && *p != image.machine.page_size() as u64);
        if let Some(size) = page_size.and_then(|p| i64::try_from(p).ok()) {
            // All other settings stay as they were given.
            let with = |value: Value| {
                let others = config.iter().filter(|(key, _)| *key != "page_size").map(|(key, value)| (key, value.clone()));
                plugin.manifest.configure(&others.chain([("page_size", value)]).collect::<Vec<_>>())
            };
            let settings = [Value::Size(size.cast_unsigned()), Value::Integer(size)].map(with);
            if let Some(config) = settings.into_iter().find_map(std::result::Result::ok) {
                let found = image.machine.vmcoreinfo.clone();
                match Self::open_with(image.sources.clone(), plugin, config, image.why.clone(), registry, progress) {
                    // A reader may know better than VMCOREINFO.
                    Ok(again) if again.machine.page_size() as i64 == size => {
                        image = again;
                        vmcoreinfo::supply(&mut image, found);
                    }
                    Ok(_) => {}
                    Err(why) => progress.warn(&format!("PAGESIZE={size} of VMCOREINFO is not used: {}", why.message)),
                }
            }
        }
        image.find_kernel();
        Ok(image)
    }

    /// Looks for the kernel in memory, and takes from it what the reader could not know.
    fn find_kernel(&mut self) {
        if self.machine.hypervisor {
            self.kernel = Err("the pages are those of a hypervisor's machine, which no Linux kernel describes".to_owned());
            return;
        }
        let shift = self.machine.page_shift;
        let ram: Vec<_> = self.extents.iter().map(|e| e.first_pfn << shift..e.end_pfn() << shift).collect();
        self.kernel = Kernel::find(&self.machine, self, &ram);
        let Ok(kernel) = &self.kernel else { return };
        let machine = Arc::make_mut(&mut self.machine);
        machine.warnings.extend(kernel.notes().iter().map(|n| format!("kernel: {n}")));
        if let Some(names) = kernel.space().utsname() {
            machine.utsname = names.clone();
        }
        // The kernel's own goes first: a reader may have it from registers of another kernel, such as kdump's.
        machine.phys_base = kernel.space().phys_base().or(machine.phys_base);
    }

    fn open_with(
        sources: Vec<Arc<Source>>,
        plugin: Arc<Plugin>,
        config: Config,
        why: String,
        registry: &Registry,
        progress: &Arc<dyn Progress>,
    ) -> Result<Self> {
        let given = sources.iter().map(|s| coresift_sdk::Source::new(s.clone())).collect();
        let setup = Setup { config, host: services(progress, None, &Arc::default()), machine: None, sources: given };
        let name = sources.first().map(|s| s.path().display().to_string()).unwrap_or_default();
        let reader = plugin.library.reader(setup).map_err(|e| {
            let e = Error::plugin(&plugin.title(), &e);
            if e.message.contains(&name) { e } else { Error { message: format!("{name}: {}", e.message), ..e } }
        })?;
        let mut machine = reader.machine();
        let bad = |what: String| {
            Error::failed(format!("{}: {}: {what}", name, plugin.title())).hint("this is a bug of the plugin: report it to its author")
        };
        if !PAGE_SHIFTS.contains(&machine.page_shift) {
            return Err(bad(format!("claims pages of 2^{} bytes", machine.page_shift)));
        }
        let mut extents = reader.extents();
        check_extents(&extents, sources.len(), machine.page_shift).map_err(bad)?;
        machine.warnings.extend(clip(&mut extents, machine.page_shift));
        machine.max_pfn = extents.last().map_or(0, Extent::end_pfn);
        machine.warnings.extend(sources.iter().flat_map(|s| s.warnings.clone()));
        machine.incomplete |= sources.iter().any(|s| s.cut);
        let kernel = Err("not looked for".to_owned());
        let stored = extents.iter().any(|e| e.kind == ExtentKind::STORED);
        let decoders = if stored { Decoders::find(registry, services(progress, None, &Arc::default())) } else { Decoders::default() };
        Ok(Self { sources, plugin, why, machine: Arc::new(machine), extents, kernel, reader, decoders, cache: Cache::default() })
    }

    /// The VMCOREINFO of the crashed kernel, empty if the input has none.
    pub fn vmcoreinfo(&self) -> Vmcoreinfo {
        Vmcoreinfo::parse(&self.machine.vmcoreinfo)
    }
}

/// Nothing a plugin says is trusted: the rest of the engine relies on order and bounds.
fn check_extents(extents: &[Extent], sources: usize, page_shift: u32) -> Result<(), String> {
    let mut end = 0;
    for e in extents {
        if e.pages == 0 || e.first_pfn < end {
            return Err(format!("its extents do not ascend at PFN {:#x}", e.first_pfn));
        }
        // Physical addresses are 64 bits wide, and so are offsets.
        let bytes = e.pages.checked_shl(page_shift).filter(|b| b >> page_shift == e.pages);
        let last = e.first_pfn.checked_add(e.pages).filter(|l| *l <= 1 << (64 - page_shift));
        let (Some(bytes), Some(last)) = (bytes, last) else {
            return Err(format!("its extent at PFN {:#x} is beyond 64 bits", e.first_pfn));
        };
        end = last;
        if e.kind == ExtentKind::MAPPED && (e.source as usize >= sources || e.offset.checked_add(bytes).is_none()) {
            return Err(format!("its extent at PFN {:#x} lies in no input", e.first_pfn));
        }
    }
    Ok(())
}

/// Takes out what no machine has: an input whose headers are damaged still gives its sound part.
fn clip(extents: &mut Vec<Extent>, page_shift: u32) -> Option<String> {
    let (before, mut left) = (extents.iter().map(|e| e.pages).sum::<u64>(), PAGES_MAX);
    let pfn_max = 1u64 << (PADDR_BITS - page_shift);
    extents.retain_mut(|e| {
        e.pages = e.pages.min(pfn_max.saturating_sub(e.first_pfn)).min(left);
        left -= e.pages;
        e.pages > 0
    });
    let gone = before - extents.iter().map(|e| e.pages).sum::<u64>();
    (gone > 0).then(|| {
        format!("{gone} pages lie beyond {PADDR_BITS} bits of address or 2^36 pages of RAM and are left out: the headers are damaged")
    })
}
