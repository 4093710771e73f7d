//! The registry: finds plugin libraries, refuses what must not be loaded, and makes plugins from them.
//!
//! A library is called `lib<kind>_<name>.so`, so that one plugin is found without opening the others: what a run does
//! not use costs nothing. Loaded libraries are never unloaded; their threads and thread-locals may outlive any use.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use coresift_sdk::abi::LoadedPlugin;
use coresift_sdk::{Kind, Manifest};

use crate::error::{Error, Result};

mod loader;

pub use loader::load_file;

/// Environment variable with more plugin folders, separated by colons.
pub const PATH_VARIABLE: &str = "CORESIFT_PLUGIN_PATH";
/// Where packages put plugins.
const SYSTEM_DIR: &str = "/usr/lib/coresift/plugins";

/// A loaded plugin.
pub struct Plugin {
    /// the library's file
    pub path: PathBuf,
    /// what it says about itself
    pub manifest: Manifest,
    /// its constructors
    pub library: LoadedPlugin,
}

impl Plugin {
    /// Kind and name for messages: `compressor zstd`.
    pub fn title(&self) -> String {
        format!("{} {}", self.manifest.kind.name(), self.manifest.name)
    }
}

impl std::fmt::Debug for Plugin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Plugin").field("path", &self.path).field("name", &self.manifest.name).finish_non_exhaustive()
    }
}

/// A library that was found in a folder but not loaded.
#[derive(Debug)]
pub struct Refused {
    /// the library's file
    pub path: PathBuf,
    /// why
    pub error: Error,
}

/// Finds and loads plugins.
#[derive(Debug)]
pub struct Registry {
    folders: Vec<PathBuf>,
    loaded: Mutex<BTreeMap<PathBuf, Arc<Plugin>>>,
}

impl Registry {
    /// The registry with the search order of the design: the folders given (`--plugin-dir`), `CORESIFT_PLUGIN_PATH`, the
    /// executable's folder, `../lib/coresift/plugins` from it, `/usr/lib/coresift/plugins`. Never the working directory.
    pub fn new(given: &[PathBuf]) -> Self {
        let mut folders = given.to_vec();
        if let Some(list) = std::env::var_os(PATH_VARIABLE) {
            // An empty element means the working directory to other tools; here it means nothing.
            folders.extend(std::env::split_paths(&list).filter(|p| p.is_absolute()));
        }
        if let Some(bin) = std::env::current_exe().ok().and_then(|exe| exe.parent().map(Path::to_owned)) {
            folders.push(bin.clone());
            if let Some(prefix) = bin.parent() {
                folders.push(prefix.join("lib/coresift/plugins"));
            }
        }
        folders.push(SYSTEM_DIR.into());
        let mut seen = std::collections::BTreeSet::new();
        folders.retain(|f| seen.insert(std::fs::canonicalize(f).unwrap_or_else(|_| f.clone())));
        Self { folders, loaded: Mutex::default() }
    }

    /// The folders searched, first wins.
    pub fn folders(&self) -> &[PathBuf] {
        &self.folders
    }

    /// Loads the plugin of this kind and name.
    ///
    /// # Errors
    /// No folder has it, or the first that has it holds a library that is refused.
    pub fn get(&self, kind: Kind, name: &str) -> Result<Arc<Plugin>> {
        let file = file_name(kind, name);
        let Some(path) = self.folders.iter().map(|f| f.join(&file)).find(|p| p.exists()) else {
            let known: Vec<_> = self.files(kind).into_iter().filter_map(|p| name_of(kind, &p)).collect();
            let near = crate::profile::nearest(name, known.iter().map(String::as_str));
            let hint = match near {
                Some(near) => format!("did you mean `{near}`? `coresift plugins list` shows all"),
                None if known.is_empty() => format!("no {} at all was found; give its folder with --plugin-dir", kind.name()),
                None => format!("available: {}; searched: {}", known.join(", "), self.searched()),
            };
            return Err(Error::failed(format!("{} `{name}` not found ({file})", kind.name())).hint(hint));
        };
        named_as(self.load(&path)?, &path, kind, name)
    }

    /// All plugins of a kind that load, and the libraries that do not; a name found twice counts where it is first.
    pub fn all(&self, kind: Kind) -> (Vec<Arc<Plugin>>, Vec<Refused>) {
        let (mut good, mut bad) = (Vec::new(), Vec::new());
        for path in self.files(kind) {
            let named = name_of(kind, &path).unwrap_or_default();
            match self.load(&path).and_then(|p| named_as(p, &path, kind, &named)) {
                Ok(plugin) => good.push(plugin),
                Err(error) => bad.push(Refused { path, error }),
            }
        }
        (good, bad)
    }

    fn load(&self, path: &Path) -> Result<Arc<Plugin>> {
        // The folder it was found in, too: a link in it may lead to a library that is safe by itself.
        loader::check_permissions(path)?;
        let path = std::fs::canonicalize(path).map_err(|e| Error::io("cannot find the plugin", path, &e))?;
        let mut loaded = self.loaded.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(plugin) = loaded.get(&path) {
            return Ok(plugin.clone());
        }
        let plugin = Arc::new(load_file(&path)?);
        loaded.insert(path, plugin.clone());
        Ok(plugin)
    }

    /// Library files of a kind in all folders, the first of each name.
    fn files(&self, kind: Kind) -> Vec<PathBuf> {
        let mut found = BTreeMap::new();
        for folder in &self.folders {
            for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
                if let Some(name) = name_of(kind, &entry.path()) {
                    found.entry(name).or_insert_with(|| entry.path());
                }
            }
        }
        found.into_values().collect()
    }

    fn searched(&self) -> String {
        self.folders.iter().map(|f| f.display().to_string()).collect::<Vec<_>>().join(", ")
    }
}

/// A plugin that is called what its file is called: two files with one plugin would be two claims to one name.
fn named_as(plugin: Arc<Plugin>, path: &Path, kind: Kind, name: &str) -> Result<Arc<Plugin>> {
    if plugin.manifest.kind == kind && plugin.manifest.name == name {
        return Ok(plugin);
    }
    let message = format!("refused: {}: it calls itself {}, its file {} {name}", path.display(), plugin.title(), kind.name());
    Err(Error::failed(message).hint(format!("rename the file to {}", file_name(plugin.manifest.kind, &plugin.manifest.name))))
}

/// Name of the library of a plugin.
pub fn file_name(kind: Kind, name: &str) -> String {
    format!("lib{}_{}.so", kind.name(), name.replace('-', "_"))
}

/// The plugin's name in a library's file name, if it is of this kind.
fn name_of(kind: Kind, path: &Path) -> Option<String> {
    let stem = path.file_name()?.to_str()?.strip_suffix(".so")?;
    stem.strip_prefix(&format!("lib{}_", kind.name())).map(|n| n.replace('_', "-"))
}
