//! What [`crate::export_plugin!`] puts into a library: the root module of its kind.

use abi_stable::library::{__call_root_module_loader, CheckTypeLayout, LibHeader, RootModuleResult};
use abi_stable::prefix_type::PrefixTypeTrait;
use abi_stable::sabi_trait::TD_Opaque;

use super::objects::{setup_in, source_in};
use super::plugin_side::{CompressorGuard, Contained, FilterGuard, ReaderGuard, WriterGuard, guard, hush_panics};
use super::*;
use crate::error::Result;
use crate::manifest::Manifest;
use crate::traits::{Compressor, Filter, Reader, Score, Setup, Writer};

/// Type of the static that holds a library's root module.
pub type PluginLibrary = LibHeader;
/// Result of making a root module.
pub type ModuleResult = RootModuleResult;

/// Wraps a constructor; called by [`crate::export_plugin!`] in a constant.
pub const fn library(construct: extern "C" fn() -> ModuleResult) -> PluginLibrary {
    // SAFETY: the constructors below all make a `PluginModule_Ref`, and the layout of that type goes with it.
    unsafe { LibHeader::from_constructor::<PluginModule_Ref>(construct, CheckTypeLayout::Yes) }
}

/// A reader as [`crate::export_plugin!`] sees it.
pub trait ReaderPlugin {
    fn manifest() -> Manifest;
    fn probe(sources: &[crate::Source]) -> Result<Score>;
    fn open(setup: Setup) -> Result<Box<dyn Reader>>;
}

/// A filter as [`crate::export_plugin!`] sees it.
pub trait FilterPlugin {
    fn manifest() -> Manifest;
    fn open(setup: Setup) -> Result<Box<dyn Filter>>;
}

/// A compressor as [`crate::export_plugin!`] sees it.
pub trait CompressorPlugin {
    fn manifest() -> Manifest;
    fn open(setup: Setup) -> Result<Box<dyn Compressor>>;
}

/// A writer as [`crate::export_plugin!`] sees it.
pub trait WriterPlugin {
    fn manifest() -> Manifest;
    fn open(setup: Setup) -> Result<Box<dyn Writer>>;
}

fn module(manifest: extern "C" fn() -> AbiResult<AbiManifest>) -> PluginModule {
    PluginModule {
        manifest,
        probe: ROption::RNone,
        reader: ROption::RNone,
        filter: ROption::RNone,
        compressor: ROption::RNone,
        writer: ROption::RNone,
    }
}

fn constructed(make: fn() -> PluginModule_Ref) -> ModuleResult {
    hush_panics();
    __call_root_module_loader(make)
}

/// Root module of a reader.
pub extern "C" fn construct_reader<P: ReaderPlugin>() -> ModuleResult {
    extern "C" fn manifest<P: ReaderPlugin>() -> AbiResult<AbiManifest> {
        guard("manifest", || Ok(P::manifest().into()))
    }
    extern "C" fn probe<P: ReaderPlugin>(sources: RVec<AbiSource_TO<'static, RBox<()>>>) -> AbiResult<AbiProbe> {
        guard("probe", || {
            let sources: Vec<_> = sources.into_iter().map(source_in).collect();
            P::probe(&sources).map(|s| AbiProbe { score: s.percent, reason: s.reason.into() })
        })
    }
    extern "C" fn open<P: ReaderPlugin>(setup: AbiSetup) -> AbiResult<AbiReader_TO<'static, RBox<()>>> {
        guard("open", || Ok(AbiReader_TO::from_value(ReaderGuard(Contained::new(P::open(setup_in(setup)?)?)), TD_Opaque)))
    }
    constructed(|| {
        let open = ROption::RSome(open::<P> as _);
        PluginModule { probe: ROption::RSome(probe::<P>), reader: open, ..module(manifest::<P>) }.leak_into_prefix()
    })
}

/// Root module of a filter.
pub extern "C" fn construct_filter<P: FilterPlugin>() -> ModuleResult {
    extern "C" fn manifest<P: FilterPlugin>() -> AbiResult<AbiManifest> {
        guard("manifest", || Ok(P::manifest().into()))
    }
    extern "C" fn open<P: FilterPlugin>(setup: AbiSetup) -> AbiResult<AbiFilter_TO<'static, RBox<()>>> {
        guard("open", || Ok(AbiFilter_TO::from_value(FilterGuard(Contained::new(P::open(setup_in(setup)?)?)), TD_Opaque)))
    }
    constructed(|| PluginModule { filter: ROption::RSome(open::<P>), ..module(manifest::<P>) }.leak_into_prefix())
}

/// Root module of a compressor.
pub extern "C" fn construct_compressor<P: CompressorPlugin>() -> ModuleResult {
    extern "C" fn manifest<P: CompressorPlugin>() -> AbiResult<AbiManifest> {
        guard("manifest", || Ok(P::manifest().into()))
    }
    extern "C" fn open<P: CompressorPlugin>(setup: AbiSetup) -> AbiResult<AbiCompressor_TO<'static, RBox<()>>> {
        guard("open", || Ok(AbiCompressor_TO::from_value(CompressorGuard(Contained::new(P::open(setup_in(setup)?)?)), TD_Opaque)))
    }
    constructed(|| PluginModule { compressor: ROption::RSome(open::<P>), ..module(manifest::<P>) }.leak_into_prefix())
}

/// Root module of a writer.
pub extern "C" fn construct_writer<P: WriterPlugin>() -> ModuleResult {
    extern "C" fn manifest<P: WriterPlugin>() -> AbiResult<AbiManifest> {
        guard("manifest", || Ok(P::manifest().into()))
    }
    extern "C" fn open<P: WriterPlugin>(setup: AbiSetup) -> AbiResult<AbiWriter_TO<'static, RBox<()>>> {
        guard("open", || Ok(AbiWriter_TO::from_value(WriterGuard(Contained::new(P::open(setup_in(setup)?)?)), TD_Opaque)))
    }
    constructed(|| PluginModule { writer: ROption::RSome(open::<P>), ..module(manifest::<P>) }.leak_into_prefix())
}
