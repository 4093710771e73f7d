//! The host's side of the border: a loaded library as safe trait objects.

use std::path::Path;
use std::sync::Mutex;

use abi_stable::library::{LibraryError, lib_header_from_path};
use abi_stable::sabi_trait::TD_Opaque;

use super::objects::{PageSetsOut, SinkOut, SurveyOut, setup_out, source_out};
use super::values::safe;
use super::*;
use crate::error::{Error, ErrorKind, Result};
use crate::machine::Machine;
use crate::manifest::{Kind, Manifest};
use crate::traits::{Compressor, End, Filter, Plan, Reader, Score, Setup, Sink, Survey, Writer};

/// A plugin: its manifest and the constructor of its kind.
#[derive(Clone, Copy)]
pub struct LoadedPlugin(PluginModule_Ref);

/// Loads a library whose Hello was already found good. The library is never unloaded.
///
/// `path` must be absolute: the system searches a bare name in the library path.
///
/// # Errors
/// It has no root module or its layout is not that of this SDK; the message is one line.
pub fn load(path: &Path) -> Result<LoadedPlugin> {
    let refused =
        |e: LibraryError| Error::new(ErrorKind::Unsupported, short(&e)).hint("rebuild the plugin with this version's coresift-sdk");
    let header = lib_header_from_path(path).map_err(refused)?;
    header.init_root_module::<PluginModule_Ref>().map(LoadedPlugin).map_err(refused)
}

/// abi_stable's layout report has hundreds of lines; its sense stands in the lines that begin with "Error:" and the
/// two values behind each.
fn short(e: &LibraryError) -> String {
    let text = e.to_string();
    let LibraryError::AbiInstability(_) = e else {
        return text.split_whitespace().collect::<Vec<_>>().join(" ");
    };
    let mut parts = Vec::new();
    let mut lines = text.lines().map(str::trim).skip_while(|l| !l.starts_with("Error:"));
    if let Some(first) = lines.next() {
        parts.push(first.to_owned());
        parts.extend(lines.take_while(|l| !l.starts_with("Error:")).filter(|l| !l.is_empty()).take(4).map(str::to_owned));
    }
    format!("another ABI layout: {}", parts.join(" "))
}

fn no(kind: Kind) -> Error {
    Error::new(ErrorKind::Unsupported, format!("the library has no {}", kind.name()))
}

impl LoadedPlugin {
    /// What the plugin says about itself.
    ///
    /// # Errors
    /// The plugin panicked, or says something this SDK does not know.
    pub fn manifest(&self) -> Result<Manifest> {
        safe(self.0.manifest()()).and_then(AbiManifest::into_manifest)
    }

    /// Asks a reader whether it can open these inputs.
    ///
    /// # Errors
    /// The plugin is no reader or panicked.
    pub fn probe(&self, sources: &[crate::Source]) -> Result<Score> {
        let probe = self.0.probe().into_option().ok_or_else(|| no(Kind::Reader))?;
        let probed = safe(probe(sources.iter().map(source_out).collect()))?;
        Ok(Score { percent: probed.score.min(100), reason: probed.reason.into_string() })
    }

    /// Makes a reader.
    ///
    /// # Errors
    /// The plugin is no reader, panicked, or cannot open the input; so for the other kinds.
    pub fn reader(&self, setup: Setup) -> Result<Box<dyn Reader>> {
        let open = self.0.reader().into_option().ok_or_else(|| no(Kind::Reader))?;
        let object = safe(open(setup_out(setup)))?;
        // Asked for once, here: a panic in one of these is then an error of opening, and the trait stays free of errors.
        let machine = safe(object.machine())?.into();
        let extents = Mutex::new(safe(object.extents())?.into_vec());
        Ok(Box::new(ReaderIn { object, machine, extents }))
    }

    /// Makes a filter.
    ///
    /// # Errors
    /// See [`Self::reader`].
    pub fn filter(&self, setup: Setup) -> Result<Box<dyn Filter>> {
        let open = self.0.filter().into_option().ok_or_else(|| no(Kind::Filter))?;
        Ok(Box::new(FilterIn(safe(open(setup_out(setup)))?)))
    }

    /// Makes a compressor.
    ///
    /// # Errors
    /// See [`Self::reader`].
    pub fn compressor(&self, setup: Setup) -> Result<Box<dyn Compressor>> {
        let open = self.0.compressor().into_option().ok_or_else(|| no(Kind::Compressor))?;
        Ok(Box::new(CompressorIn(safe(open(setup_out(setup)))?)))
    }

    /// Makes a writer.
    ///
    /// # Errors
    /// See [`Self::reader`].
    pub fn writer(&self, setup: Setup) -> Result<Box<dyn Writer>> {
        let open = self.0.writer().into_option().ok_or_else(|| no(Kind::Writer))?;
        Ok(Box::new(WriterIn(safe(open(setup_out(setup)))?)))
    }
}

struct ReaderIn {
    object: AbiReader_TO<'static, RBox<()>>,
    machine: Machine,
    extents: Mutex<Vec<Extent>>,
}

impl Reader for ReaderIn {
    fn machine(&self) -> Machine {
        self.machine.clone()
    }
    fn extents(&self) -> Vec<Extent> {
        // Handed over, not copied: a fragmented input has millions. The host asks once.
        self.extents.lock().map(|mut e| std::mem::take(&mut *e)).unwrap_or_default()
    }
    fn read_pages(&self, pfns: &[u64], out: &mut [u8], states: &mut [PageState]) -> Result<()> {
        safe(self.object.read_pages(pfns.into(), out.into(), states.into()))
    }
    fn read_stored(&self, pfns: &[u64], buf: &mut [u8], pages: &mut [StoredPage]) -> Result<usize> {
        safe(self.object.read_stored(pfns.into(), buf.into(), pages.into()))
    }
    fn interface(&self, name: &str, version: u32) -> Option<AbiInterface> {
        self.object.interface(name.into(), version).into_option()
    }
}

struct FilterIn(AbiFilter_TO<'static, RBox<()>>);

impl Filter for FilterIn {
    fn excludes(&self) -> crate::ClassSet {
        crate::ClassSet(self.0.excludes())
    }
    fn stages(&self) -> crate::Stages {
        crate::Stages(self.0.stages())
    }
    fn findings(&self) -> Vec<crate::Finding> {
        let found = self.0.findings().into_iter();
        found.map(|f| crate::Finding { text: f.text.into_string(), pages: f.pages, weakens: f.weakens }).collect()
    }
    fn interface(&self, name: &str, version: u32) -> Option<AbiInterface> {
        self.0.interface(name.into(), version).into_option()
    }
    fn survey(&self, out: &mut dyn Survey) -> Result<()> {
        let mut out = SurveyOut(out);
        safe(self.0.survey(AbiSurvey_TO::from_ptr(RMut::new(&mut out), TD_Opaque)))
    }
    fn classify(&self, block: &Block<'_>, verdicts: &mut [Verdict]) -> Result<()> {
        safe(self.0.classify(block, verdicts.into()))
    }
    fn inspect(&self, batch: &PageBatch<'_>, verdicts: &mut [Verdict]) -> Result<()> {
        safe(self.0.inspect(batch, verdicts.into()))
    }
}

struct CompressorIn(AbiCompressor_TO<'static, RBox<()>>);

impl Compressor for CompressorIn {
    fn interface(&self, name: &str, version: u32) -> Option<AbiInterface> {
        self.0.interface(name.into(), version).into_option()
    }
    fn compress(&mut self, batch: &PageBatch<'_>, out: &mut Packed<'_>) -> Result<()> {
        let lent =
            Packed { bytes: out.bytes.as_mut_slice().into(), lens: out.lens.as_mut_slice().into(), used: 0, pushed: 0, flags: out.flags };
        safe(self.0.compress(batch, lent))
    }
    fn decompress(&mut self, stored: &[&[u8]], page_size: usize, out: &mut [u8]) -> Result<()> {
        let stored: Vec<RSlice<'_, u8>> = stored.iter().map(|&s| s.into()).collect();
        let page_size = u32::try_from(page_size).map_err(|_| Error::unsupported("a page size above 4 GiB"))?;
        safe(self.0.decompress(stored.as_slice().into(), page_size, out.into()))
    }
}

struct WriterIn(AbiWriter_TO<'static, RBox<()>>);

impl Writer for WriterIn {
    fn interface(&self, name: &str, version: u32) -> Option<AbiInterface> {
        self.0.interface(name.into(), version).into_option()
    }
    fn begin(&mut self, plan: &Plan<'_>, sink: &mut dyn Sink) -> Result<()> {
        let machine = AbiMachine::from(plan.machine);
        let pages = PageSetsOut(plan.pages);
        let plan = AbiPlan {
            machine: RRef::new(&machine),
            pages: AbiPageSets_TO::from_ptr(RRef::new(&pages), TD_Opaque),
            excluded: plan.excluded.0,
            codec: plan.codec,
            first_pfn: plan.first_pfn,
            end_pfn: plan.end_pfn,
            part: plan.part,
            parts: plan.parts,
            written_at: plan.written_at,
            flags: 0,
        };
        let mut sink = SinkOut(sink);
        safe(self.0.begin(&plan, AbiSink_TO::from_ptr(RMut::new(&mut sink), TD_Opaque)))
    }
    fn write(&mut self, batch: &PackedBatch<'_>, sink: &mut dyn Sink) -> Result<()> {
        let mut sink = SinkOut(sink);
        safe(self.0.write(batch, AbiSink_TO::from_ptr(RMut::new(&mut sink), TD_Opaque)))
    }
    fn finish(&mut self, end: &End, sink: &mut dyn Sink) -> Result<()> {
        let mut sink = SinkOut(sink);
        let end = AbiEnd { incomplete: end.incomplete, lost_pages: end.lost_pages };
        safe(self.0.finish(end, AbiSink_TO::from_ptr(RMut::new(&mut sink), TD_Opaque)))
    }
}
