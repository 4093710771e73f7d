//! Loads one library: permissions, Hello, layout, manifest, in this order; each refusal is one line.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use coresift_sdk::abi;
use coresift_sdk::hello::{self, Hello};
use coresift_sdk::{Kind, Manifest};
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW, Symbol};

use super::Plugin;
use crate::error::{Error, Result, plain};

/// Loads the library at an absolute path.
///
/// # Errors
/// It must not or cannot be loaded; one line says why.
pub fn load_file(path: &Path) -> Result<Plugin> {
    check_permissions(path)?;
    let hello = read_hello(path)?;
    check_hello(path, &hello)?;
    let refused = |e: &coresift_sdk::Error| Error::failed(format!("refused: {}: {e}", path.display())).hint(e.hint.clone());
    let library = abi::load(path).map_err(|e| refused(&e))?;
    let manifest = library.manifest().map_err(|e| refused(&e))?;
    check_manifest(path, &hello, &manifest)?;
    Ok(Plugin { path: path.to_owned(), manifest, library })
}

/// As root, a library that somebody else can change is code of somebody else: neither it nor any folder above it may
/// belong to, or be writable by, another user.
pub(super) fn check_permissions(path: &Path) -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    for place in path.ancestors().filter(|p| !p.as_os_str().is_empty()) {
        let meta = std::fs::metadata(place).map_err(|e| Error::io("cannot look at the plugin", place, &e))?;
        if meta.uid() != 0 {
            let message = format!("refused: {}: {} belongs to user {}, and this runs as root", path.display(), place.display(), meta.uid());
            return Err(Error::failed(message).hint(format!("chown root {}", place.display())));
        }
        let mode = meta.permissions().mode();
        // In a folder such as /tmp only the owner can replace a file.
        if meta.is_dir() && mode & 0o1000 != 0 {
            continue;
        }
        let by_group = mode & 0o020 != 0 && meta.gid() != 0;
        if mode & 0o002 != 0 || by_group {
            let who = if by_group { "its group" } else { "everybody" };
            let message = format!("refused: {}: {} may be changed by {who}, and this runs as root", path.display(), place.display());
            return Err(Error::failed(message).hint(format!("chmod go-w {}", place.display())));
        }
    }
    Ok(())
}

fn not_a_plugin(path: &Path, why: &str) -> Error {
    Error::failed(format!("refused: {}: not a coresift plugin: {why}", path.display()))
        .hint("a plugin exports CORESIFT_HELLO, by coresift-sdk's export_plugin! line")
}

fn read_hello(path: &Path) -> Result<Hello> {
    // A file that is no ELF object is told apart before dlopen, whose own message may be long.
    let head = std::fs::File::open(path).and_then(|mut f| {
        let mut head = [0u8; 4];
        std::io::Read::read_exact(&mut f, &mut head).map(|()| head)
    });
    match head {
        Ok(head) if head == *b"\x7fELF" => {}
        Ok(_) => return Err(not_a_plugin(path, "it is no shared library")),
        Err(e) => return Err(not_a_plugin(path, &plain(&e))),
    }
    // SAFETY: loading runs the library's initialisers. The user chose its folder, and as root nobody else can write it
    // (`check_permissions`). Symbols stay local; RTLD_NOW makes a missing symbol an error here and not later.
    let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) }.map_err(|e| not_a_plugin(path, &short(&e)))?;
    // SAFETY: the symbol is only taken as an address of bytes; its contents are checked below.
    let found: Result<Symbol<*const Hello>, _> = unsafe { library.get(hello::SYMBOL) };
    let address = found.map_or(std::ptr::null(), |symbol| symbol.as_raw_ptr().cast_const().cast::<Hello>());
    if address.is_null() {
        return Err(not_a_plugin(path, "no symbol CORESIFT_HELLO"));
    }
    // SAFETY: a library that exports this name promises a Hello behind it; any bytes are valid for its integer fields.
    let hello = unsafe { address.read_unaligned() };
    // Never unloaded: see the module above.
    std::mem::forget(library);
    Ok(hello)
}

/// The loader's message without the path, which stands before it already.
fn short(e: &libloading::Error) -> String {
    let text = e.to_string();
    text.rsplit(": ").next().unwrap_or(&text).to_owned()
}

fn check_hello(path: &Path, hello: &Hello) -> Result<()> {
    let refused = |why: String| Error::failed(format!("refused: {}: {why}", path.display()));
    if hello.magic != hello::MAGIC {
        return Err(not_a_plugin(path, "its CORESIFT_HELLO has another magic number"));
    }
    let (major, minor) = (hello.abi_major, hello.abi_minor);
    if (major, minor) != (hello::ABI_MAJOR, hello::ABI_MINOR) {
        let why = format!("plugin ABI {major}.{minor}, this coresift has {}.{}", hello::ABI_MAJOR, hello::ABI_MINOR);
        return Err(refused(why).hint("rebuild the plugin with this version's coresift-sdk"));
    }
    if hello.panic_unwind != 1 {
        let why = "built with panic=abort; a bug in it would kill the run".to_owned();
        return Err(refused(why).hint("build it with panic = \"unwind\" in its Cargo profile"));
    }
    if Kind::from_number(hello.kind).is_none() {
        return Err(refused(format!("unknown kind of plugin {}", hello.kind)).hint("rebuild the plugin"));
    }
    Ok(())
}

fn check_manifest(path: &Path, hello: &Hello, manifest: &Manifest) -> Result<()> {
    if manifest.kind as u32 != hello.kind || manifest.name != hello.name() {
        let message = format!(
            "refused: {}: its export_plugin! line says {:?}, its manifest {} {:?}",
            path.display(),
            hello.name(),
            manifest.kind.name(),
            manifest.name
        );
        return Err(Error::failed(message).hint("make both the same"));
    }
    let codec = manifest.codec;
    let reserved = ["plugin", "reader", "writer", "on_failure", "fallback", "limit", "flattened"];
    let wrong = match manifest.kind {
        Kind::Filter if manifest.stages.0 == 0 => Some("a filter that names no stage is never called"),
        Kind::Filter if manifest.classes.len() > 128 => Some("more than 128 page classes of its own"),
        Kind::Compressor if codec.count_ones() != 1 => Some("a compressor has exactly one codec bit"),
        _ if manifest.keys.iter().any(|k| reserved.contains(&k.name.as_str())) => Some("a configuration key has a name that profiles use"),
        _ => None,
    };
    if let Some(wrong) = wrong {
        return Err(Error::failed(format!("refused: {}: {wrong}", path.display())).hint("correct the plugin's manifest"));
    }
    let bad_default = manifest.keys.iter().find_map(|k| k.default.as_ref().and_then(|d| k.check(d).err().map(|why| (k, why))));
    if let Some((key, why)) = bad_default {
        return Err(Error::failed(format!("refused: {}: default of key `{}`: {why}", path.display(), key.name))
            .hint("correct the plugin's manifest"));
    }
    Ok(())
}
