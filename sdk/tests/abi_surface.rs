//! Pins the surface of the plugin ABI: every type that crosses it, with sizes, offsets and signatures, as `abi_stable`
//! sees them. The pinned text is `abi-MAJOR.MINOR.txt` beside this file.
//!
//! If this test fails, the surface changed: raise `ABI_MINOR` (from ABI 1 on: the major, with an adapter for the last
//! one), run the test once with `CORESIFT_PIN_ABI=1` to write the new text, and make the kept plugin anew
//! (`tests/abi/README.md`). Never edit the text of a number that was released.
#![allow(clippy::unwrap_used, clippy::panic)] // a test that cannot go on fails

use std::collections::BTreeSet;
use std::fmt::Write;

use abi_stable::StableAbi;
use abi_stable::type_layout::TypeLayout;
use coresift_sdk::abi::PluginModule_Ref;
use coresift_sdk::hello::{ABI_MAJOR, ABI_MINOR, SYMBOL};
use coresift_sdk::host::{PHYSICAL_MEMORY, PhysicalMemoryTable};
use coresift_sdk::{FLAG_ERASES, Hello, KERNEL, KernelTable, Kind, Mapping, PageSet, Stages};

/// How deep the fields of abi_stable's own types are named: enough to tell `ROption<u32>` from `ROption<u64>`.
const DEPTH: usize = 3;

/// Name of a type with what it is made of, where abi_stable's own names leave that out.
fn name(layout: &'static TypeLayout) -> String {
    name_to(layout, DEPTH)
}

fn name_to(layout: &'static TypeLayout, depth: usize) -> String {
    let parameters = layout.generics().type_params().iter().map(|p| p());
    let mut parts: Vec<_> = parameters.map(|p| name_to(p, depth)).collect();
    if parts.is_empty() && depth > 0 && layout.package() == "abi_stable" {
        parts = layout.get_fields().into_iter().flatten().map(|f| name_to(f.layout(), depth - 1)).collect();
    }
    if parts.is_empty() { layout.name().to_owned() } else { format!("{}<{}>", layout.name(), parts.join(", ")) }
}

/// Describes a type and all types it leads to; `seen` has the layouts already visited.
fn describe(layout: &'static TypeLayout, seen: &mut BTreeSet<usize>, out: &mut BTreeSet<String>) {
    if !seen.insert(std::ptr::from_ref(layout) as usize) {
        return;
    }
    let mut text = format!("{}: {} bytes, aligned to {}\n", name(layout), layout.size(), layout.alignment());
    for field in layout.get_fields().into_iter().flatten().chain(layout.phantom_fields()) {
        writeln!(text, "    {}: {} ({} bytes)", field.name(), name(field.layout()), field.layout().size()).unwrap();
        for function in field.function_range().iter() {
            let parameters: Vec<_> = function.param_type_layouts.iter().map(|layout| layout()).collect();
            let result = function.return_type_layout().map(|layout| layout());
            let names: Vec<_> = parameters.iter().map(|p| name(p)).collect();
            writeln!(text, "        fn({}) -> {}", names.join(", "), result.map_or("()".to_owned(), name)).unwrap();
            parameters.into_iter().chain(result).for_each(|l| describe(l, seen, out));
        }
        describe(field.layout(), seen, out);
    }
    // Types of abi_stable itself only lead to others; the version of that crate is pinned by Cargo.lock.
    if layout.package() == "coresift-sdk" {
        out.insert(text);
    }
}

fn surface() -> String {
    let mut types = BTreeSet::new();
    describe(PluginModule_Ref::LAYOUT, &mut BTreeSet::new(), &mut types);
    let symbol = String::from_utf8_lossy(SYMBOL);
    let hello =
        format!("symbol {}, Hello: {} bytes, aligned to {}\n", symbol.trim_end_matches('\0'), size_of::<Hello>(), align_of::<Hello>());
    types.into_iter().fold(hello, |all, t| all + "\n" + &t) + "\n" + &numbers()
}

/// The numbers that have a meaning on both sides; a layout does not change with them.
fn numbers() -> String {
    use coresift_sdk::{ExtentKind as E, PageState as P, Verdict as V, codec};
    let kinds: Vec<_> = Kind::ALL.iter().map(|k| (k.name(), *k as u32)).collect();
    let stages = [Stages::SURVEY.0, Stages::CLASSIFY.0, Stages::INSPECT.0];
    let verdicts = [
        V::UNDECIDED,
        V::KEEP,
        V::ZERO,
        V::CACHE,
        V::PRIVATE_CACHE,
        V::USER,
        V::FREE,
        V::HWPOISON,
        V::OFFLINE,
        V::UNACCEPTED,
        V::MEMMAP,
        V::PLUGIN,
    ];
    let states = [P::MISSING.0, P::PRESENT.0];
    let codecs = [codec::NONE, codec::ZLIB, codec::LZO, codec::SNAPPY, codec::ZSTD];
    [
        format!("kinds {kinds:?}"),
        format!("stages {stages:?}, flag erases {FLAG_ERASES}"),
        format!("verdicts {:?}", verdicts.map(|v| v.0)),
        format!("extent kinds {:?}", [E::MAPPED, E::ENCODED, E::ABSENT].map(|k| k.0)),
        format!("page states {states:?}, page sets {:?}", [PageSet::Ram as u32, PageSet::Dumped as u32]),
        format!("codecs {codecs:?}"),
        format!("error kinds {:?}", coresift_sdk::abi::error_kinds()),
        format!("key types {:?}", coresift_sdk::abi::key_types()),
        format!("packed pages {:?}", coresift_sdk::abi::packed_states()),
        format!("interfaces {PHYSICAL_MEMORY:?} {} bytes", size_of::<PhysicalMemoryTable>()),
        format!("{KERNEL:?} {} bytes, mapping {} bytes", size_of::<KernelTable>(), size_of::<Mapping>()),
    ]
    .join("\n")
        + "\n"
}

#[test]
fn the_crates_version_follows_the_abi() {
    // abi_stable compares it when a plugin is loaded.
    assert!(env!("CARGO_PKG_VERSION").starts_with(&format!("{ABI_MAJOR}.{ABI_MINOR}.")));
}

#[test]
fn the_surface_is_the_one_pinned_for_this_abi_number() {
    let path = format!("{}/tests/abi-{ABI_MAJOR}.{ABI_MINOR}.txt", env!("CARGO_MANIFEST_DIR"));
    let surface = surface();
    if std::env::var_os("CORESIFT_PIN_ABI").is_some() {
        assert!(!std::path::Path::new(&path).exists(), "{path} is pinned already: raise the ABI number");
        std::fs::write(&path, &surface).unwrap();
    }
    let pinned = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
    let changed = surface.lines().zip(pinned.lines()).find(|(a, b)| a != b);
    assert!(surface == pinned, "the surface changed at {changed:?}: see the top of this file");
}

#[test]
fn the_surface_reaches_every_trait() {
    let surface = surface();
    for name in ["Reader", "Filter", "Compressor", "Writer", "Source", "Host", "PageSets", "Sink", "Survey"] {
        assert!(surface.contains(&format!("Abi{name}")), "{name} is not in the surface");
    }
    for value in
        ["Extent", "Block", "PageBatch", "Packed", "PackedBatch", "AbiMachine", "AbiManifest", "AbiSetup", "AbiPlan", "AbiError", "Erase"]
    {
        assert!(surface.contains(&format!("\n{value}")), "{value} is not described");
    }
}
