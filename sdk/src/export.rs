//! The macro that turns a trait implementation into a plugin library.

/// Exports the plugin of a library: its Hello, its root module, and the guards around every call.
///
/// ```text
/// export_plugin! { kind: reader,     name: "elf",  manifest: manifest, probe: probe, open: open }
/// export_plugin! { kind: filter,     name: "zero", manifest: manifest, open: open }
/// export_plugin! { kind: compressor, name: "zstd", manifest: manifest, open: open }
/// export_plugin! { kind: writer,     name: "elf",  manifest: manifest, open: open }
/// ```
///
/// `manifest: fn() -> Manifest`, `probe: fn(&[Source]) -> Result<Score>`, `open: fn(Setup) -> Result<Box<dyn Kind>>`.
/// `name` must be the manifest's. A library exports one plugin; the symbols are plain C names, so several plugins that
/// are linked into one program put this line behind a feature.
#[macro_export]
macro_rules! export_plugin {
    (kind: reader, name: $name:literal, manifest: $manifest:path, probe: $probe:path, open: $open:path $(,)?) => {
        const _: () = {
            struct Exported;
            impl $crate::abi::ReaderPlugin for Exported {
                fn manifest() -> $crate::Manifest {
                    $manifest()
                }
                fn probe(sources: &[$crate::Source]) -> $crate::Result<$crate::Score> {
                    $probe(sources)
                }
                fn open(setup: $crate::Setup) -> $crate::Result<::std::boxed::Box<dyn $crate::Reader>> {
                    $open(setup)
                }
            }
            $crate::__export_symbols!($name, $crate::Kind::Reader, $crate::abi::construct_reader::<Exported>);
        };
    };
    (kind: filter, name: $name:literal, manifest: $manifest:path, open: $open:path $(,)?) => {
        $crate::__export_plugin!($name, Filter, FilterPlugin, construct_filter, $manifest, $open);
    };
    (kind: compressor, name: $name:literal, manifest: $manifest:path, open: $open:path $(,)?) => {
        $crate::__export_plugin!($name, Compressor, CompressorPlugin, construct_compressor, $manifest, $open);
    };
    (kind: writer, name: $name:literal, manifest: $manifest:path, open: $open:path $(,)?) => {
        $crate::__export_plugin!($name, Writer, WriterPlugin, construct_writer, $manifest, $open);
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __export_plugin {
    ($name:literal, $kind:ident, $plugin:ident, $construct:ident, $manifest:path, $open:path) => {
        const _: () = {
            struct Exported;
            impl $crate::abi::$plugin for Exported {
                fn manifest() -> $crate::Manifest {
                    $manifest()
                }
                fn open(setup: $crate::Setup) -> $crate::Result<::std::boxed::Box<dyn $crate::$kind>> {
                    $open(setup)
                }
            }
            $crate::__export_symbols!($name, $crate::Kind::$kind, $crate::abi::$construct::<Exported>);
        };
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __export_symbols {
    ($name:literal, $kind:expr, $construct:expr) => {
        #[unsafe(no_mangle)]
        pub static CORESIFT_HELLO: $crate::Hello = $crate::Hello::new($name, $kind as u32, cfg!(panic = "unwind"));

        // The symbol that abi_stable looks for: `abi_stable_shared::mangled_root_module_loader_name`.
        #[unsafe(no_mangle)]
        pub static _1as_0lib_1header_0root_bmodule_bloader: $crate::abi::PluginLibrary = $crate::abi::library($construct);
    };
}
