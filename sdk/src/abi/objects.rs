//! Objects of the host as plugins see them, in both directions: wrapped for the border, and unwrapped behind it.

use abi_stable::sabi_trait::TD_Opaque;

use super::plugin_side::{contain, guard};
use super::values::safe;
use super::*;
use crate::error::{Error, Result};
use crate::host::{PHYSICAL_MEMORY, PhysicalMemoryTable};
use crate::kernel::KERNEL;
use crate::traits::{PageSet, PageSets, Sink, Survey};

/// Bytes of an input; the engine and the test kit implement it.
pub trait SourceBytes: Send + Sync {
    /// The path or another name for messages.
    fn name(&self) -> String;
    /// Length in bytes, if the input tells.
    fn size(&self) -> Option<u64>;
    /// Reads at `offset`; fewer bytes than asked for mean the end.
    ///
    /// # Errors
    /// The read failed.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize>;
}

/// Services of the host; the engine and the test kit implement it.
pub trait HostServices: Send + Sync {
    /// A message for the user, see [`crate::Level`].
    fn log(&self, level: u32, message: &str);
    /// True when the run is to stop.
    fn cancelled(&self) -> bool;
    /// Physical memory of the crashed machine, if it can be read already.
    fn physical_memory(&self) -> Option<&dyn ReadPhysical> {
        None
    }
    /// The crashed kernel, if it can be made sense of. Asked for once a filter; finding it may take long the first time.
    fn kernel(&self) -> Option<&dyn KernelView> {
        None
    }
    /// Another interface of exactly this version.
    fn interface(&self, name: &str, version: u32) -> Option<AbiInterface> {
        let _ = (name, version);
        None
    }
}

/// Physical memory of the crashed machine.
pub trait ReadPhysical: Send + Sync {
    /// Reads at a physical address; returns how many bytes could be read from the start.
    fn read_physical(&self, paddr: u64, buf: &mut [u8]) -> usize;
}

/// The crashed kernel, see [`crate::Kernel`].
pub trait KernelView: Send + Sync {
    /// Address of a symbol.
    fn symbol(&self, name: &str) -> Option<u64>;
    /// Where a kernel address leads.
    fn translate(&self, vaddr: u64) -> Option<crate::Mapping>;
    /// Reads at a kernel address; returns how many bytes could be read from the start.
    fn read(&self, vaddr: u64, buf: &mut [u8]) -> usize;
    /// Address of the `struct page` of a PFN.
    fn struct_page(&self, pfn: u64) -> Option<u64>;
    /// PFN of a `struct page` by its address.
    fn pfn(&self, struct_page: u64) -> Option<u64>;
}

// ---------------------------------------------------------------- sources

pub(super) struct SourceOut(pub std::sync::Arc<dyn SourceBytes>);

// A panic of the host must not cross the border either: it would end the process.
impl AbiSource for SourceOut {
    fn name(&self) -> RString {
        contain(|| self.0.name()).unwrap_or_default().into()
    }
    fn size(&self) -> ROption<u64> {
        contain(|| self.0.size()).unwrap_or_default().into()
    }
    fn read_at(&self, offset: u64, mut buf: RSliceMut<'_, u8>) -> AbiResult<usize> {
        guard("the host's read_at", || self.0.read_at(offset, buf.as_mut_slice()))
    }
}

pub(super) struct SourceIn(pub AbiSource_TO<'static, RBox<()>>);

impl SourceBytes for SourceIn {
    fn name(&self) -> String {
        self.0.name().into_string()
    }
    fn size(&self) -> Option<u64> {
        self.0.size().into_option()
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        safe(self.0.read_at(offset, buf.into()))
    }
}

pub(super) fn source_out(source: &crate::Source) -> AbiSource_TO<'static, RBox<()>> {
    AbiSource_TO::from_value(SourceOut(source.0.clone()), TD_Opaque)
}

pub(super) fn source_in(source: AbiSource_TO<'static, RBox<()>>) -> crate::Source {
    crate::Source::new(std::sync::Arc::new(SourceIn(source)))
}

// ---------------------------------------------------------------- host services

pub(super) struct HostOut(pub std::sync::Arc<dyn HostServices>);

impl AbiHost for HostOut {
    fn log(&self, level: u32, message: RStr<'_>) {
        let _ = contain(|| self.0.log(level, message.as_str()));
    }
    fn cancelled(&self) -> bool {
        contain(|| self.0.cancelled()).unwrap_or_default()
    }
    fn interface(&self, name: RStr<'_>, version: u32) -> ROption<AbiInterface> {
        if (name.as_str(), version) == KERNEL {
            let offered = contain(|| self.0.kernel().is_some()).unwrap_or_default();
            return offered.then(|| kernel_out::interface(self)).into();
        }
        if (name.as_str(), version) != PHYSICAL_MEMORY {
            return contain(|| self.0.interface(name.as_str(), version)).unwrap_or_default().into();
        }
        let offered = contain(|| self.0.physical_memory().is_some()).unwrap_or_default();
        let object = std::ptr::from_ref(self).cast();
        // SAFETY: the table is the one of this name and version, and is called with this object, which lives in the box
        // that the plugin's host object owns.
        offered.then(|| unsafe { AbiInterface::new(&PHYSICAL_MEMORY_TABLE, object) }).into()
    }
}

static PHYSICAL_MEMORY_TABLE: PhysicalMemoryTable = PhysicalMemoryTable { read: read_physical };

/// `errno` for an address that is not there (ENXIO of asm-generic/errno-base.h).
const NO_SUCH_ADDRESS: i64 = 6;

unsafe extern "C" fn read_physical(object: *const core::ffi::c_void, paddr: u64, buf: *mut u8, len: usize) -> i64 {
    // SAFETY: `object` is what stood beside this table: a `HostOut`, alive as long as the plugin holds its host object.
    let host = unsafe { &*object.cast::<HostOut>() };
    // SAFETY: by the contract of `PhysicalMemoryTable::read`, `buf` is valid for writes of `len` bytes.
    let buf = unsafe { std::slice::from_raw_parts_mut(buf, len) };
    let read = contain(|| host.0.physical_memory().map_or(0, |m| m.read_physical(paddr, buf))).unwrap_or_default();
    if read == 0 && len > 0 { -NO_SUCH_ADDRESS } else { i64::try_from(read).unwrap_or(i64::MAX) }
}

pub(super) struct HostIn(pub AbiHost_TO<'static, RBox<()>>);

impl HostServices for HostIn {
    fn log(&self, level: u32, message: &str) {
        self.0.log(level, message.into());
    }
    fn cancelled(&self) -> bool {
        self.0.cancelled()
    }
    fn interface(&self, name: &str, version: u32) -> Option<AbiInterface> {
        self.0.interface(name.into(), version).into_option()
    }
}

// ---------------------------------------------------------------- page sets

pub(super) struct PageSetsOut<'a>(pub &'a dyn PageSets);

fn which(number: u32) -> Option<PageSet> {
    [PageSet::Ram, PageSet::Dumped].into_iter().find(|&set| set as u32 == number)
}

// A set that this host does not know is empty.
impl AbiPageSets for PageSetsOut<'_> {
    fn bitmap(&self, set: u32, first_pfn: u64, mut out: RSliceMut<'_, u8>) {
        let out = out.as_mut_slice();
        match which(set) {
            Some(set) => drop(contain(|| self.0.bitmap(set, first_pfn, out))),
            None => out.fill(0),
        }
    }
    fn runs(&self, set: u32, from_pfn: u64, mut out: RSliceMut<'_, Run>) -> usize {
        which(set).and_then(|set| contain(|| self.0.runs(set, from_pfn, out.as_mut_slice())).ok()).unwrap_or(0)
    }
    fn count(&self, set: u32) -> u64 {
        which(set).and_then(|set| contain(|| self.0.count(set)).ok()).unwrap_or(0)
    }
}

pub(super) struct PageSetsIn<'b, 'a>(pub &'b AbiPageSets_TO<'a, RRef<'a, ()>>);

impl PageSets for PageSetsIn<'_, '_> {
    fn bitmap(&self, which: PageSet, first_pfn: u64, out: &mut [u8]) {
        self.0.bitmap(which as u32, first_pfn, out.into());
    }
    fn runs(&self, which: PageSet, from_pfn: u64, out: &mut [Run]) -> usize {
        self.0.runs(which as u32, from_pfn, out.into())
    }
    fn count(&self, which: PageSet) -> u64 {
        self.0.count(which as u32)
    }
}

// ---------------------------------------------------------------- sinks

pub(super) struct SinkOut<'a>(pub &'a mut dyn Sink);

impl AbiSink for SinkOut<'_> {
    fn write_at(&mut self, offset: u64, pieces: RSlice<'_, RSlice<'_, u8>>) -> AbiResult<()> {
        let pieces: Vec<&[u8]> = pieces.iter().map(|p| p.as_slice()).collect();
        guard("the host's write_at", || self.0.write_at(offset, &pieces))
    }
    fn reserve(&mut self, len: u64) -> AbiResult<()> {
        guard("the host's reserve", || self.0.reserve(len))
    }
    fn positioned(&self) -> bool {
        contain(|| self.0.positioned()).unwrap_or_default()
    }
}

pub(super) struct SinkIn<'a, 'b>(pub AbiSink_TO<'a, RMut<'b, ()>>);

impl Sink for SinkIn<'_, '_> {
    fn write_at(&mut self, offset: u64, pieces: &[&[u8]]) -> Result<()> {
        let pieces: Vec<RSlice<'_, u8>> = pieces.iter().map(|&p| p.into()).collect();
        safe(self.0.write_at(offset, pieces.as_slice().into()))
    }
    fn reserve(&mut self, len: u64) -> Result<()> {
        safe(self.0.reserve(len))
    }
    fn positioned(&self) -> bool {
        self.0.positioned()
    }
}

// ---------------------------------------------------------------- surveys

pub(super) struct SurveyOut<'a>(pub &'a mut dyn Survey);

impl AbiSurvey for SurveyOut<'_> {
    fn ranges(&mut self, ranges: RSlice<'_, RangeVerdict>) {
        let _ = contain(|| self.0.ranges(ranges.as_slice()));
    }
    fn erase(&mut self, patches: RSlice<'_, Erase>) {
        let _ = contain(|| self.0.erase(patches.as_slice()));
    }
}

pub(super) struct SurveyIn<'a, 'b>(pub AbiSurvey_TO<'a, RMut<'b, ()>>);

impl Survey for SurveyIn<'_, '_> {
    fn ranges(&mut self, ranges: &[RangeVerdict]) {
        self.0.ranges(ranges.into());
    }
    fn erase(&mut self, patches: &[Erase]) {
        self.0.erase(patches.into());
    }
}

// ---------------------------------------------------------------- setup

pub(super) fn setup_out(setup: crate::Setup) -> AbiSetup {
    AbiSetup {
        config: values::settings(&setup.config),
        host: AbiHost_TO::from_value(HostOut(setup.host.0), TD_Opaque),
        machine: setup.machine.as_deref().map(AbiMachine::from).into(),
        sources: setup.sources.iter().map(source_out).collect(),
    }
}

pub(super) fn setup_in(setup: AbiSetup) -> std::result::Result<crate::Setup, Error> {
    Ok(crate::Setup {
        config: values::config(setup.config)?,
        host: crate::Host::new(std::sync::Arc::new(HostIn(setup.host))),
        machine: setup.machine.into_option().map(|m| std::sync::Arc::new(m.into())),
        sources: setup.sources.into_iter().map(source_in).collect(),
    })
}
