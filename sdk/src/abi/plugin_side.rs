//! The plugin's side of the border: safe traits behind trait objects of the surface, every call guarded.

use std::any::Any;
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::objects::{PageSetsIn, SinkIn, SurveyIn};
use super::values::stable;
use super::*;
use crate::error::{Error, ErrorKind, Result};
use crate::machine::Machine;
use crate::traits::{Compressor, End, Filter, Plan, Reader, Writer};

thread_local! {
    /// File and line of the last panic on this thread; the hook leaves it here because `catch_unwind` does not tell.
    static PANIC_PLACE: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Makes panics of this library silent (plugins never print) and keeps their place for the error.
pub(super) fn hush_panics() {
    std::panic::set_hook(Box::new(|info| {
        let place = info.location().map(|l| format!(" at {}:{}", l.file(), l.line())).unwrap_or_default();
        PANIC_PLACE.with(|p| *p.borrow_mut() = place);
    }));
}

/// Runs a plugin's method so that a panic becomes an error.
pub(super) fn guard<T>(method: &str, call: impl FnOnce() -> Result<T>) -> AbiResult<T> {
    stable(catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|payload| Err(panic_error(method, payload.as_ref()))))
}

fn panic_error(method: &str, payload: &(dyn Any + Send)) -> Error {
    let text = payload.downcast_ref::<&str>().map(|s| (*s).to_owned()).or_else(|| payload.downcast_ref::<String>().cloned());
    let place = PANIC_PLACE.with(|p| std::mem::take(&mut *p.borrow_mut()));
    Error::new(ErrorKind::Panic, format!("panicked in {method}{place}: {}", text.as_deref().unwrap_or("no message")))
        .hint("this is a bug of the plugin: report it to its author")
}

pub(super) struct ReaderGuard(pub Box<dyn Reader>);

impl AbiReader for ReaderGuard {
    fn machine(&self) -> AbiResult<AbiMachine> {
        guard("machine", || Ok((&self.0.machine()).into()))
    }
    fn extents(&self) -> AbiResult<RVec<Extent>> {
        guard("extents", || Ok(self.0.extents().into()))
    }
    fn read_pages(&self, pfns: RSlice<'_, u64>, mut out: RSliceMut<'_, u8>, mut present: RSliceMut<'_, bool>) -> AbiResult<()> {
        guard("read_pages", || self.0.read_pages(pfns.as_slice(), out.as_mut_slice(), present.as_mut_slice()))
    }
}

pub(super) struct FilterGuard(pub Box<dyn Filter>);

impl AbiFilter for FilterGuard {
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

pub(super) struct CompressorGuard(pub Box<dyn Compressor>);

impl AbiCompressor for CompressorGuard {
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

/// A writer and the machine of its plan, converted once.
pub(super) struct WriterGuard(pub Box<dyn Writer>);

impl AbiWriter for WriterGuard {
    fn begin(&mut self, plan: &AbiPlan<'_>, sink: AbiSink_TO<'_, RMut<'_, ()>>) -> AbiResult<()> {
        guard("begin", || {
            let machine = Machine::from(plan.machine.get().clone());
            let pages = PageSetsIn(&plan.pages);
            let plan = Plan {
                machine: &machine,
                pages: &pages,
                dump_level: plan.dump_level,
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
