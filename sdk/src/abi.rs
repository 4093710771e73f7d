//! The stable ABI: every type and trait object that crosses the border between host and plugin.
//!
//! This module is the only one that names `abi_stable`. Plugin authors never need it: they implement the safe traits of
//! the crate root. Everything declared here, down to field order, is the *surface*; `tests/abi_surface.rs` pins it, and
//! a change of it needs a new [`crate::hello::ABI_MINOR`] (a new major from ABI 1 on).
//!
//! Kinds, classes and states are newtypes of integers and not `enum`s: a number that one side does not know is then just
//! unknown, and a value that a faulty plugin made up is not undefined behaviour.
//!
//! Room for growth without a change here: `flags` words, manifest strings and configuration keys, and interfaces asked
//! for by name and version, in both directions: of the host ([`AbiHost::interface`]: the kernel view, codecs, …) and of a
//! plugin (`interface` of each plugin object: stored pages of a reader taken over verbatim, explanations, …).

// abi_stable 0.11.3 predates these lints (its derive macros expand to what they warn of).
#![allow(non_local_definitions, non_camel_case_types)]
#![allow(missing_docs)] // items are documented where their safe counterpart is; the generated `_Ref`/`_TO` types cannot be

use abi_stable::{
    StableAbi, declare_root_module_statics,
    library::RootModule,
    package_version_strings, sabi_trait,
    sabi_types::{RMut, RRef, VersionStrings},
    std_types::{RBox, ROption, RResult, RSlice, RSliceMut, RStr, RString, RVec},
};

mod host_side;
mod kernel_out;
mod library;
mod objects;
mod plugin_side;
mod values;

pub use host_side::{LoadedPlugin, load};
pub use library::{
    CompressorPlugin, FilterPlugin, ModuleResult, PluginLibrary, ReaderPlugin, WriterPlugin, construct_compressor, construct_filter,
    construct_reader, construct_writer, library,
};
pub use objects::{HostServices, KernelView, ReadPhysical, SourceBytes};
pub use values::{error_kinds, key_types, packed_states};

pub type AbiResult<T> = RResult<T, AbiError>;
pub type ByteSlice<'a> = RSlice<'a, u8>;

// ---------------------------------------------------------------- values

#[repr(C)]
#[derive(StableAbi, Debug, Clone)]
pub struct AbiError {
    pub kind: u32,
    /// errno of the failed system call, 0 if there is none
    pub errno: i32,
    pub pfn: ROption<u64>,
    pub offset: ROption<u64>,
    pub message: RString,
    pub hint: RString,
}

/// What a page is to be: kept, undecided, or excluded by class. See the constants in [`crate::page`].
#[repr(transparent)]
#[derive(StableAbi, Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Verdict(pub u8);

/// Where the bytes of an [`Extent`] are. See the constants in [`crate::page`].
#[repr(transparent)]
#[derive(StableAbi, Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ExtentKind(pub u32);

/// Whether a page could be made. See the constants in [`crate::page`].
#[repr(transparent)]
#[derive(StableAbi, Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PageState(pub u8);

/// Where a page's stored bytes are in the buffer they were read into. See [`crate::Reader::read_stored`].
#[repr(C)]
#[derive(StableAbi, Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StoredPage {
    /// Offset in the buffer.
    pub at: u32,
    /// Length in bytes.
    pub len: u32,
    /// Codec bit they are compressed with, 0 = raw.
    pub codec: u32,
    /// Missing, stored or zero.
    pub state: u32,
}

/// A run of pages of an image and where its bytes are.
#[repr(C)]
#[derive(StableAbi, Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// First page frame number of the run.
    pub first_pfn: u64,
    /// Length in pages, not 0.
    pub pages: u64,
    /// Mapped, encoded, stored or absent.
    pub kind: ExtentKind,
    /// Index of the source (input file) that holds the bytes; mapped extents only.
    pub source: u32,
    /// Byte offset of the first page in that source; mapped extents only.
    pub offset: u64,
}

/// A run of page frame numbers.
#[repr(C)]
#[derive(StableAbi, Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// First page frame number.
    pub first_pfn: u64,
    /// Length in pages.
    pub pages: u64,
}

/// A run of pages that a filter gives one verdict.
#[repr(C)]
#[derive(StableAbi, Debug, Clone, Copy, PartialEq, Eq)]
pub struct RangeVerdict {
    /// The pages.
    pub run: Run,
    /// What becomes of them.
    pub verdict: Verdict,
}

/// Bytes that must not reach the output.
#[repr(C)]
#[derive(StableAbi, Debug, Clone, Copy, PartialEq, Eq)]
pub struct Erase {
    /// Physical address of the first byte.
    pub paddr: u64,
    /// Length in bytes.
    pub len: u64,
    /// The byte written in their place.
    pub fill: u8,
}

/// A memory section to classify: the PFNs and, where the kernel model found them, their `struct page`s.
#[repr(C)]
#[derive(StableAbi, Debug, Clone, Copy)]
pub struct Block<'a> {
    pub(crate) first_pfn: u64,
    pub(crate) pages: u32,
    pub(crate) page_shift: u32,
    /// `pages` entries of `struct_page_size` bytes, or empty
    pub(crate) struct_pages: RSlice<'a, u8>,
    pub(crate) struct_page_size: u32,
    pub(crate) flags: u32,
    /// kernel address of the first `struct page`, 0 if unknown
    pub(crate) struct_page_address: u64,
}

/// A batch of pages in PFN order.
#[repr(C)]
#[derive(StableAbi, Debug, Clone, Copy)]
pub struct PageBatch<'a> {
    pub(crate) pfns: RSlice<'a, u64>,
    /// one slice of `1 << page_shift` bytes for each PFN
    pub(crate) pages: RSlice<'a, RSlice<'a, u8>>,
    pub(crate) page_shift: u32,
    pub(crate) flags: u32,
}

/// Where a compressor puts a batch.
#[repr(C)]
#[derive(StableAbi, Debug)]
pub struct Packed<'a> {
    /// room for `pages * page_size` bytes; compressed pages stand one behind the other
    pub(crate) bytes: RSliceMut<'a, u8>,
    /// one length a page, 0 = stored raw
    pub(crate) lens: RSliceMut<'a, u32>,
    /// bytes and pages that were pushed so far
    pub(crate) used: usize,
    pub(crate) pushed: u32,
    pub(crate) flags: u32,
}

/// A page on its way to the writer.
#[repr(C)]
#[derive(StableAbi, Debug, Clone, Copy)]
pub struct PackedPage<'a> {
    pub(crate) data: RSlice<'a, u8>,
    /// codec bit, 0 = raw
    pub(crate) codec: u32,
    /// stored, zero or lost
    pub(crate) state: u32,
}

/// A batch on its way to the writer.
#[repr(C)]
#[derive(StableAbi, Debug, Clone, Copy)]
pub struct PackedBatch<'a> {
    pub(crate) pfns: RSlice<'a, u64>,
    pub(crate) pages: RSlice<'a, PackedPage<'a>>,
    pub(crate) flags: u32,
}

#[repr(C)]
#[derive(StableAbi, Debug, Clone)]
pub struct AbiMachine {
    pub format: RString,
    pub arch: RString,
    pub elf_machine: u32,
    pub word_bits: u32,
    pub big_endian: bool,
    pub incomplete: bool,
    pub page_shift: u32,
    pub cpus: u32,
    pub flags: u32,
    pub excluded: u64,
    pub crash_time: u64,
    pub phys_base: ROption<u64>,
    pub max_pfn: u64,
    /// sysname, nodename, release, version, machine, domainname
    pub utsname: RVec<RString>,
    /// codec bit of most stored pages
    pub codec: u32,
    pub notes: RVec<u8>,
    pub vmcoreinfo: RVec<u8>,
    pub erased: RVec<u8>,
    pub warnings: RVec<RString>,
}

#[repr(C)]
#[derive(StableAbi, Debug, Clone)]
pub struct AbiValue {
    /// which of the fields below holds the value, see [`crate::config::KeyType`]
    pub kind: u32,
    pub number: i64,
    pub text: RString,
    pub list: RVec<RString>,
}

#[repr(C)]
#[derive(StableAbi, Debug, Clone)]
pub struct AbiSetting {
    pub key: RString,
    pub value: AbiValue,
}

#[repr(C)]
#[derive(StableAbi, Debug, Clone)]
pub struct AbiKey {
    pub name: RString,
    pub kind: u32,
    pub help: RString,
    pub default: ROption<AbiValue>,
    pub min: i64,
    pub max: i64,
    pub choices: RVec<RString>,
}

#[repr(C)]
#[derive(StableAbi, Debug, Clone)]
pub struct AbiManifest {
    pub name: RString,
    pub kind: u32,
    pub version: RString,
    pub description: RString,
    pub formats: RVec<RString>,
    pub codec: u32,
    pub codecs: u32,
    pub architectures: RVec<RString>,
    pub kernels: RString,
    pub stages: u32,
    pub flags: u32,
    pub classes: RVec<RString>,
    pub keys: RVec<AbiKey>,
}

#[repr(C)]
#[derive(StableAbi, Debug, Clone)]
pub struct AbiFinding {
    pub text: RString,
    pub pages: u64,
    pub weakens: bool,
    pub flags: u32,
}

#[repr(C)]
#[derive(StableAbi, Debug, Clone)]
pub struct AbiProbe {
    pub score: u32,
    pub reason: RString,
}

/// Entry of a host interface: a `repr(C)` function table of `size` bytes and the object to call it with.
#[repr(C)]
#[derive(StableAbi, Debug, Clone, Copy)]
pub struct AbiInterface {
    pub(crate) table: *const core::ffi::c_void,
    pub(crate) size: usize,
    pub(crate) object: *const core::ffi::c_void,
}

impl AbiInterface {
    /// An interface whose function table is `table` and whose functions are called with `object`.
    ///
    /// # Safety
    /// The table must be the one that belongs to the name and version it is returned for, and both pointers must be
    /// valid as long as the object that returns them.
    pub const unsafe fn new<T>(table: &'static T, object: *const core::ffi::c_void) -> Self {
        Self { table: core::ptr::from_ref(table).cast(), size: size_of::<T>(), object }
    }

    /// The table, if it has at least `size` bytes; the object.
    pub fn parts(&self, size: usize) -> Option<(*const core::ffi::c_void, *const core::ffi::c_void)> {
        (!self.table.is_null() && self.size >= size).then_some((self.table, self.object))
    }
}

#[repr(C)]
#[derive(StableAbi)]
pub struct AbiSetup {
    pub config: RVec<AbiSetting>,
    pub host: AbiHost_TO<'static, RBox<()>>,
    pub machine: ROption<AbiMachine>,
    pub sources: RVec<AbiSource_TO<'static, RBox<()>>>,
}

#[repr(C)]
#[derive(StableAbi)]
pub struct AbiPlan<'a> {
    pub machine: RRef<'a, AbiMachine>,
    pub pages: AbiPageSets_TO<'a, RRef<'a, ()>>,
    pub excluded: u64,
    pub codec: u32,
    pub first_pfn: u64,
    pub end_pfn: u64,
    /// part number and number of parts; 0 of 1 when the output is one file
    pub part: u32,
    pub parts: u32,
    pub written_at: u64,
    pub flags: u32,
}

#[repr(C)]
#[derive(StableAbi, Debug, Clone, Copy)]
pub struct AbiEnd {
    pub incomplete: bool,
    pub lost_pages: u64,
}

// ---------------------------------------------------------------- objects of the host

#[sabi_trait]
pub trait AbiSource: Send + Sync {
    fn name(&self) -> RString;
    fn size(&self) -> ROption<u64>;
    fn read_at(&self, offset: u64, buf: RSliceMut<'_, u8>) -> AbiResult<usize>;
}

#[sabi_trait]
pub trait AbiHost: Send + Sync {
    fn log(&self, level: u32, message: RStr<'_>);
    fn cancelled(&self) -> bool;
    fn interface(&self, name: RStr<'_>, version: u32) -> ROption<AbiInterface>;
}

#[sabi_trait]
pub trait AbiPageSets {
    fn bitmap(&self, which: u32, first_pfn: u64, out: RSliceMut<'_, u8>);
    fn runs(&self, which: u32, from_pfn: u64, out: RSliceMut<'_, Run>) -> usize;
    fn count(&self, which: u32) -> u64;
}

#[sabi_trait]
pub trait AbiSink {
    fn write_at(&mut self, offset: u64, pieces: RSlice<'_, RSlice<'_, u8>>) -> AbiResult<()>;
    fn reserve(&mut self, len: u64) -> AbiResult<()>;
    fn positioned(&self) -> bool;
}

#[sabi_trait]
pub trait AbiSurvey {
    fn ranges(&mut self, ranges: RSlice<'_, RangeVerdict>);
    fn erase(&mut self, patches: RSlice<'_, Erase>);
}

// ---------------------------------------------------------------- objects of a plugin

#[sabi_trait]
pub trait AbiReader: Send + Sync {
    fn machine(&self) -> AbiResult<AbiMachine>;
    fn extents(&self) -> AbiResult<RVec<Extent>>;
    fn read_pages(&self, pfns: RSlice<'_, u64>, out: RSliceMut<'_, u8>, states: RSliceMut<'_, PageState>) -> AbiResult<()>;
    fn read_stored(&self, pfns: RSlice<'_, u64>, buf: RSliceMut<'_, u8>, pages: RSliceMut<'_, StoredPage>) -> AbiResult<usize>;
    fn interface(&self, name: RStr<'_>, version: u32) -> ROption<AbiInterface>;
}

#[sabi_trait]
pub trait AbiFilter: Send + Sync {
    fn excludes(&self) -> u64;
    fn findings(&self) -> RVec<AbiFinding>;
    fn stages(&self) -> u32;
    fn survey(&self, out: AbiSurvey_TO<'_, RMut<'_, ()>>) -> AbiResult<()>;
    fn classify(&self, block: &Block<'_>, verdicts: RSliceMut<'_, Verdict>) -> AbiResult<()>;
    fn inspect(&self, batch: &PageBatch<'_>, verdicts: RSliceMut<'_, Verdict>) -> AbiResult<()>;
    fn interface(&self, name: RStr<'_>, version: u32) -> ROption<AbiInterface>;
}

#[sabi_trait]
pub trait AbiCompressor: Send {
    fn compress(&mut self, batch: &PageBatch<'_>, out: Packed<'_>) -> AbiResult<()>;
    fn decompress(&mut self, stored: RSlice<'_, RSlice<'_, u8>>, page_size: u32, out: RSliceMut<'_, u8>) -> AbiResult<()>;
    fn interface(&self, name: RStr<'_>, version: u32) -> ROption<AbiInterface>;
}

#[sabi_trait]
pub trait AbiWriter: Send {
    fn begin(&mut self, plan: &AbiPlan<'_>, sink: AbiSink_TO<'_, RMut<'_, ()>>) -> AbiResult<()>;
    fn write(&mut self, batch: &PackedBatch<'_>, sink: AbiSink_TO<'_, RMut<'_, ()>>) -> AbiResult<()>;
    fn finish(&mut self, end: AbiEnd, sink: AbiSink_TO<'_, RMut<'_, ()>>) -> AbiResult<()>;
    fn interface(&self, name: RStr<'_>, version: u32) -> ROption<AbiInterface>;
}

// ---------------------------------------------------------------- the root module

#[repr(C)]
#[derive(StableAbi)]
#[sabi(kind(Prefix(prefix_ref = PluginModule_Ref)))]
#[sabi(missing_field(panic))]
pub struct PluginModule {
    pub manifest: extern "C" fn() -> AbiResult<AbiManifest>,
    pub probe: ROption<extern "C" fn(RVec<AbiSource_TO<'static, RBox<()>>>) -> AbiResult<AbiProbe>>,
    pub reader: ROption<extern "C" fn(AbiSetup) -> AbiResult<AbiReader_TO<'static, RBox<()>>>>,
    pub filter: ROption<extern "C" fn(AbiSetup) -> AbiResult<AbiFilter_TO<'static, RBox<()>>>>,
    pub compressor: ROption<extern "C" fn(AbiSetup) -> AbiResult<AbiCompressor_TO<'static, RBox<()>>>>,
    #[sabi(last_prefix_field)]
    pub writer: ROption<extern "C" fn(AbiSetup) -> AbiResult<AbiWriter_TO<'static, RBox<()>>>>,
}

impl RootModule for PluginModule_Ref {
    declare_root_module_statics! {PluginModule_Ref}
    const BASE_NAME: &'static str = "coresift_plugin";
    const NAME: &'static str = "coresift plugin";
    const VERSION_STRINGS: VersionStrings = package_version_strings!();
}
