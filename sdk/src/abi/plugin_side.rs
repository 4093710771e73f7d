//! The plugin's side of the border: safe traits behind trait objects of the surface, every call guarded.

use std::cell::{Cell, RefCell};
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

use super::objects::{PageSetsIn, SinkIn, SurveyIn};
use super::values::stable;
use super::*;
use crate::error::{Error, ErrorKind, Result};
use crate::machine::Machine;
use crate::traits::{Compressor, End, Filter, Plan, Reader, Writer};

thread_local! {
    /// Inside how many guards this thread is.
    static GUARDS: Cell<u32> = const { Cell::new(0) };
    /// File and line of the last panic in a guard; the hook leaves it here because `catch_unwind` does not tell.
    static PANIC_PLACE: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Makes panics in guarded calls silent (plugins never print) and keeps their place for the error. Panics elsewhere, of
/// a program that the plugin is linked into or of a thread of its own, go where they went before.
pub(super) fn hush_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if GUARDS.try_with(Cell::get).unwrap_or(0) == 0 {
                return before(info);
            }
            let place = info.location().map(|l| format!(" at {}:{}", l.file(), l.line())).unwrap_or_default();
            let _ = PANIC_PLACE.try_with(|p| p.replace(place));
        }));
    });
}

/// Runs a call that must not unwind into the other side; the error is the panic's text and place.
pub(super) fn contain<T>(call: impl FnOnce() -> T) -> Result<T, String> {
    let _ = GUARDS.try_with(|g| g.set(g.get() + 1));
    let outcome = catch_unwind(AssertUnwindSafe(call));
    let _ = GUARDS.try_with(|g| g.set(g.get() - 1));
    outcome.map_err(|payload| {
        let text = payload.downcast_ref::<&str>().map(|s| (*s).to_owned()).or_else(|| payload.downcast_ref::<String>().cloned());
        let place = PANIC_PLACE.try_with(RefCell::take).unwrap_or_default();
        // A payload can panic when it is dropped, too.
        std::mem::forget(payload);
        format!("{place}: {}", text.as_deref().unwrap_or("no message"))
    })
}

/// Runs a method so that a panic becomes an error.
pub(super) fn guard<T>(method: &str, call: impl FnOnce() -> Result<T>) -> AbiResult<T> {
    let panicked = |what| {
        Err(Error::new(ErrorKind::Panic, format!("panicked in {method}{what}"))
            .hint("this is a bug of the plugin: report it to its author"))
    };
    stable(contain(call).unwrap_or_else(panicked))
}

/// A plugin's object, whose drop must not unwind into the host either.
pub(super) struct Contained<T: ?Sized>(ManuallyDrop<Box<T>>);

impl<T: ?Sized> Contained<T> {
    pub(super) fn new(object: Box<T>) -> Self {
        Self(ManuallyDrop::new(object))
    }
}

impl<T: ?Sized> std::ops::Deref for Contained<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: ?Sized> std::ops::DerefMut for Contained<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

impl<T: ?Sized> Drop for Contained<T> {
    fn drop(&mut self) {
        // SAFETY: dropped once, here, and not used after.
        let _ = contain(|| unsafe { ManuallyDrop::drop(&mut self.0) });
    }
}

pub(super) struct ReaderGuard(pub Contained<dyn Reader>);

impl AbiReader for ReaderGuard {
    fn interface(&self, name: RStr<'_>, version: u32) -> ROption<AbiInterface> {
        contain(|| self.0.interface(name.as_str(), version)).unwrap_or_default().into()
    }
    fn machine(&self) -> AbiResult<AbiMachine> {
        guard("machine", || Ok((&self.0.machine()).into()))
    }
    fn extents(&self) -> AbiResult<RVec<Extent>> {
        guard("extents", || Ok(self.0.extents().into()))
    }
    fn read_pages(&self, pfns: RSlice<'_, u64>, mut out: RSliceMut<'_, u8>, mut states: RSliceMut<'_, PageState>) -> AbiResult<()> {
        guard("read_pages", || self.0.read_pages(pfns.as_slice(), out.as_mut_slice(), states.as_mut_slice()))
    }
    fn read_stored(&self, pfns: RSlice<'_, u64>, mut buf: RSliceMut<'_, u8>, mut pages: RSliceMut<'_, StoredPage>) -> AbiResult<usize> {
        guard("read_stored", || self.0.read_stored(pfns.as_slice(), buf.as_mut_slice(), pages.as_mut_slice()))
    }
}

pub(super) struct FilterGuard(pub Contained<dyn Filter>);

impl AbiFilter for FilterGuard {
    fn interface(&self, name: RStr<'_>, version: u32) -> ROption<AbiInterface> {
        contain(|| self.0.interface(name.as_str(), version)).unwrap_or_default().into()
    }
    fn excludes(&self) -> u64 {
        contain(|| self.0.excludes().0).unwrap_or_default()
    }
    fn stages(&self) -> u32 {
        contain(|| self.0.stages().0).unwrap_or(u32::MAX)
    }
    fn findings(&self) -> RVec<AbiFinding> {
        let found = contain(|| self.0.findings()).unwrap_or_default();
        found.into_iter().map(|f| AbiFinding { text: f.text.into(), pages: f.pages, weakens: f.weakens, flags: 0 }).collect()
    }
    fn survey(&self, out: AbiSurvey_TO<'_, RMut<'_, ()>>) -> AbiResult<()> {
        guard("survey", || self.0.survey(&mut SurveyIn(out)))
    }
    fn classify(&self, block: &Block<'_>, mut verdicts: RSliceMut<'_, Verdict>) -> AbiResult<()> {
        guard("classify", || self.0.classify(block, verdicts.as_mut_slice()))
    }
    fn inspect(&self, batch: &PageBatch<'_>, mut verdicts: RSliceMut<'_, Verdict>) -> AbiResult<()> {
        guard("inspect", || self.0.inspect(batch, verdicts.as_mut_slice()))
    }
}

pub(super) struct CompressorGuard(pub Contained<dyn Compressor>);

impl AbiCompressor for CompressorGuard {
    fn interface(&self, name: RStr<'_>, version: u32) -> ROption<AbiInterface> {
        contain(|| self.0.interface(name.as_str(), version)).unwrap_or_default().into()
    }
    fn compress(&mut self, batch: &PageBatch<'_>, mut out: Packed<'_>) -> AbiResult<()> {
        guard("compress", || self.0.compress(batch, &mut out))
    }
    fn decompress(&mut self, stored: RSlice<'_, RSlice<'_, u8>>, page_size: u32, mut out: RSliceMut<'_, u8>) -> AbiResult<()> {
        guard("decompress", || {
            let stored: Vec<&[u8]> = stored.iter().map(|s| s.as_slice()).collect();
            self.0.decompress(&stored, page_size as usize, out.as_mut_slice())
        })
    }
}

pub(super) struct WriterGuard(pub Contained<dyn Writer>);

impl AbiWriter for WriterGuard {
    fn interface(&self, name: RStr<'_>, version: u32) -> ROption<AbiInterface> {
        contain(|| self.0.interface(name.as_str(), version)).unwrap_or_default().into()
    }
    fn begin(&mut self, plan: &AbiPlan<'_>, sink: AbiSink_TO<'_, RMut<'_, ()>>) -> AbiResult<()> {
        guard("begin", || {
            let machine = Machine::from(plan.machine.get().clone());
            let pages = PageSetsIn(&plan.pages);
            let plan = Plan {
                machine: &machine,
                pages: &pages,
                excluded: crate::ClassSet(plan.excluded),
                codec: plan.codec,
                first_pfn: plan.first_pfn,
                end_pfn: plan.end_pfn,
                part: plan.part,
                parts: plan.parts,
                written_at: plan.written_at,
            };
            self.0.begin(&plan, &mut SinkIn(sink))
        })
    }
    fn write(&mut self, batch: &PackedBatch<'_>, sink: AbiSink_TO<'_, RMut<'_, ()>>) -> AbiResult<()> {
        guard("write", || self.0.write(batch, &mut SinkIn(sink)))
    }
    fn finish(&mut self, end: AbiEnd, sink: AbiSink_TO<'_, RMut<'_, ()>>) -> AbiResult<()> {
        let end = End { incomplete: end.incomplete, lost_pages: end.lost_pages };
        guard("finish", || self.0.finish(&end, &mut SinkIn(sink)))
    }
}
